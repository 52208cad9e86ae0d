import hashlib
import random
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.errors import WireError
from ternmesh.wire import fragments

MTU = 64
SIZE = fragments.fragment_size(MTU)


@given(st.binary(min_size=1, max_size=900), st.randoms(use_true_random=False))
def test_pieces_add_up_in_any_order(content: bytes, rng: random.Random) -> None:  # R4.4-1
    bodies = fragments.split(content, MTU)
    assert all(len(body) <= MTU - 14 for body in bodies)
    rng.shuffle(bodies)
    assembly = fragments.Reassembler(MTU, object_max=1000)
    doubled = [body for body in bodies[:-1] for _ in range(2)] + bodies[-1:]
    answers = [assembly.add(body) for body in doubled]
    assert answers == [None] * (len(doubled) - 1) + [content]


def head(size: int, index: int, name: bytes = b"name") -> bytes:
    return b"\x04" + name + size.to_bytes(4, "little") + index.to_bytes(2, "little")


def test_a_refused_object_of_one_piece_takes_no_place() -> None:  # R4.4-5
    """Forgeries of one piece each would otherwise make a node forget all that it waits for."""
    contents = [bytes([number]) * 100 for number in range(4)]
    assembly = fragments.Reassembler(MTU, object_max=1000)
    for content in contents:
        assembly.add(fragments.split(content, MTU)[0])
    for _ in range(4):
        with pytest.raises(WireError, match="form the object"):
            assembly.add(head(3, 0) + b"abc")
    assert assembly.add(fragments.split(b"abc", MTU)[0]) == b"abc"
    for content in contents:
        assert [assembly.add(body) for body in fragments.split(content, MTU)[1:]][-1] == content


def test_pieces_that_disagree_about_the_size_are_of_two_objects() -> None:
    assembly = fragments.Reassembler(MTU, object_max=1000)
    first, *rest = fragments.split(bytes(200), MTU)
    assert assembly.add(first[:5] + (300).to_bytes(4, "little") + first[9:]) is None
    assert [assembly.add(body) for body in (first, *rest)][-1] == bytes(200)


def test_a_false_piece_in_front_of_the_true_one_costs_a_search() -> None:  # R4.4-4
    content = bytes(range(200))
    bodies = fragments.split(content, MTU)
    assembly = fragments.Reassembler(MTU, object_max=1000)
    for body in bodies:  # one in every place
        with suppress(WireError):  # the last one completes a choice of which none is right
            assembly.add(body[:-1] + bytes((body[-1] ^ 1,)))
        if body is not bodies[-1]:
            assert assembly.add(body) is None
    assert assembly.add(bodies[-1]) == content
    assert assembly.forged == len(bodies)
    assert not assembly._partials


def test_where_the_true_piece_is_lost_a_second_try_succeeds() -> None:  # R4.4-5
    bodies = fragments.split(bytes(range(200)), MTU)
    assembly = fragments.Reassembler(MTU, object_max=1000)
    assembly.add(bodies[1][:-1] + b"!")
    assembly.add(bodies[0])
    for body in bodies[2:-1]:
        assembly.add(body)
    with pytest.raises(WireError, match="form the object"):
        assembly.add(bodies[-1])
    assert assembly.add(bodies[0]) is None
    assert assembly.add(bodies[1]) == bytes(range(200))


def test_forgeries_take_bounded_room_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # R4.4-4, R4.4-5
    """17 false pieces are one too many: the object is given up, and a second try succeeds."""
    content, hashed = bytes(range(240)) * 3, list[int]()
    bodies = fragments.split(content, MTU)
    sha256 = hashlib.sha256

    def note(data: bytes) -> "hashlib._Hash":
        hashed.append(len(data))
        return sha256(data)

    monkeypatch.setattr(hashlib, "sha256", note)
    assembly = fragments.Reassembler(MTU, object_max=1000)
    for number in range(100):
        assembly.add(bodies[number % 18][:-1] + bytes((number,)))
    [partial] = assembly._partials.values()
    assert sum(map(len, partial.candidates.values())) <= 18 + 16
    for body in bodies[18:-1]:
        assert assembly.add(body) is None
    del hashed[:]
    with pytest.raises(WireError, match="form the object"):
        assembly.add(bodies[-1])
    assert sum(hashed) <= fragments.SEARCHED_MAX
    assert not assembly._partials
    assert [assembly.add(body) for body in bodies][-1] == content


def test_an_object_that_still_arrives_is_not_the_one_forgotten() -> None:  # R4.4-3
    """A long snapshot must survive a row of references that each lost a piece."""
    long = fragments.split(bytes(range(240)) * 3, MTU)
    assembly = fragments.Reassembler(MTU, object_max=1000, objects_max=2)
    for number, body in enumerate(long[:-1]):
        assert assembly.add(body) is None
        broken = fragments.split(bytes([number]) * 100, MTU)[0]
        assert assembly.add(broken) is None
        assert len(assembly._partials) == 2
    assert assembly.add(long[-1]) == bytes(range(240)) * 3
