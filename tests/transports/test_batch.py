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
    with pytest.raises(FrameTooLarge, match="9 bytes does not fit a message of 10"):
        batch.fill([b"x", b"x" * 9], 10)


@pytest.mark.parametrize("frames", [[], [b""], [b"a", b""], [b"x" * 65_536]])
def test_frames_that_could_not_be_split_again_are_not_joined(frames: list[bytes]) -> None:
    with pytest.raises(ValueError, match="at least one frame"):
        batch.join(frames)


def test_one_frame_that_is_too_short_refuses_the_message() -> None:  # R7.1-2
    whole = [bytes(20), bytes(SEALED_MIN)]
    assert batch.split(batch.join(whole), SEALED_MIN) == tuple(whole)
    with pytest.raises(WireError, match="too short"):
        batch.split(batch.join([bytes(20), bytes(SEALED_MIN - 1)]), SEALED_MIN)
