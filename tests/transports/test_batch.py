import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.errors import WireError
from ternmesh.wire.frame import SEALED_MIN
from transports import batch
from transports.base import FrameTooLarge

FRAMES = st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=20)


@given(FRAMES)
def test_what_is_joined_splits_into_the_same_frames(frames: list[bytes]) -> None:
    assert batch.split(batch.join(frames)) == tuple(frames)


@given(st.binary(max_size=400))
def test_any_bytes_are_frames_or_a_wire_error(message: bytes) -> None:
    try:
        frames = batch.split(message)
    except WireError:
        return
    assert batch.join(frames) == message


@pytest.mark.parametrize("message", [b"", b"\x01", b"\x02\x00a", b"\x00\x00", b"\x01\x00a\x00\x00"])
def test_a_message_that_join_would_not_write_is_refused(message: bytes) -> None:  # R7.1-1
    with pytest.raises(WireError) as caught:
        batch.split(message)
    assert caught.value.reason == "batch"


@given(FRAMES, st.data())
def test_a_cut_message_never_gives_other_frames(frames: list[bytes], data: st.DataObject) -> None:
    message = batch.join(frames)
    cut = message[: data.draw(st.integers(0, len(message) - 1))]
    try:
        left = batch.split(cut)
    except WireError:
        return
    assert left == tuple(frames)[: len(left)]


@given(FRAMES, st.integers(302, 2000))
def test_fill_keeps_order_and_limit_and_wastes_no_message(
    frames: list[bytes], message_max: int
) -> None:
    groups = batch.fill(frames, message_max)
    assert [frame for group in groups for frame in group] == frames
    sizes = [len(batch.join(group)) for group in groups]
    assert max(sizes) <= message_max
    for size, following in zip(sizes, groups[1:], strict=False):
        assert size + batch.OVERHEAD + len(following[0]) > message_max


def test_a_frame_that_fits_no_message_is_refused() -> None:
    assert batch.fill([b"x" * 8], 10) == [[b"x" * 8]]
    with pytest.raises(FrameTooLarge, match="9 bytes does not fit a message of 10"):
        batch.fill([b"x", b"x" * 9], 10)


@pytest.mark.parametrize("frames", [[], [b""], [b"a", b""], [b"x" * 65_536]])
def test_frames_that_could_not_be_split_again_are_not_joined(frames: list[bytes]) -> None:
    with pytest.raises(ValueError, match="at least one frame"):
        batch.join(frames)


@pytest.mark.parametrize(("last", "is_taken"), [(15, True), (14, False), (1, False)])
def test_one_frame_that_is_too_short_refuses_the_message(last: int, is_taken: bool) -> None:
    # R7.1-2
    message = batch.join([bytes(20), bytes(last)])
    if is_taken:
        assert batch.split(message, SEALED_MIN) == (bytes(20), bytes(last))
        return
    with pytest.raises(WireError, match="too short"):
        batch.split(message, SEALED_MIN)
