from ternmesh.federated.channel import BLOCK, QUEUE_MAX, SealedQueue
from ternmesh.security.signatures import SIGNED
from ternmesh.wire import control
from ternmesh.wire.frame import open_seal
from ternmesh.wire.knowledge import KIND as KNOWLEDGE


def counters(groups: list[tuple[str, list[bytes]]]) -> list[int]:
    return [open_seal(frame)[0].counter for _, frames in groups for frame in frames]


def test_nothing_leaves_before_its_counter_is_reserved() -> None:  # R3-7
    outgoing = SealedQueue(100)
    outgoing.push("a", 1, [b"x", b"y"])
    assert outgoing.drain() == []
    assert outgoing.reserve() == 100 + BLOCK
    assert outgoing.reserve() is None
    assert counters(outgoing.drain()) == [100, 101]


def test_the_queue_is_bounded() -> None:
    outgoing = SealedQueue(0)
    outgoing.push("a", 1, [b"x"] * (QUEUE_MAX + 5))
    assert outgoing.dropped == 5


def test_a_signed_body_is_discarded_by_what_it_carries() -> None:
    outgoing = SealedQueue(0)
    signed = [bytes([SIGNED]) + bytes(64) + bytes([kind]) for kind in (control.KIND, KNOWLEDGE)]
    outgoing.push("all", 1, signed)
    outgoing.discard(1, control.KIND)
    assert not outgoing.holds(1, control.KIND)
    assert outgoing.holds(1, KNOWLEDGE)
