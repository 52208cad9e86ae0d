"""Check whether a link can continue with a state read from disk."""

from ternmesh.link.erasure_code import INDEX_END
from ternmesh.link.events import InRecord, LinkState, OutRecord
from ternmesh.link.messages import NAME_SIZE, read_message, write_message
from ternmesh.link.sender import is_shared, slots_of

COUNTER_END = 1 << 62  # stored integers end at 2**63, and counters are reserved in blocks


def check_link(state: LinkState) -> None:
    """Check the state of a link. Raises ValueError or WireError for a damaged value."""
    _check(0 <= state.counter < COUNTER_END, "its counter")
    _check(0 <= state.number < COUNTER_END, "the number of its next object")
    slots: set[tuple[str, int]] = set()
    for record in state.outgoing:
        _check_outgoing(record, state.number)
        if record.slot is not None:
            lane = "" if is_shared(record.queued) else record.queued.peer
            _check((lane, record.slot) not in slots, "a slot of two objects")
            slots.add((lane, record.slot))
    for held in state.incoming:
        _check_incoming(held)
    for names in state.arrived.values():
        _check(all(len(name) == NAME_SIZE for name in names), "the name of an object")


def _check_outgoing(record: OutRecord, number_end: int) -> None:
    queued = record.queued
    _check(0 <= queued.number < number_end, "the number of an object")
    _check(len(queued.payload) > 0, "an empty object")
    _check(all(type(name) is str for name in queued.receivers), "the receivers of an object")
    _check(0 <= record.repairs < COUNTER_END, "its reserved repair symbols")
    _check(record.slot is None or record.slot in slots_of(queued), "the slot of an object")


def _check_incoming(record: InRecord) -> None:
    offer = record.offer
    _check(read_message(write_message(offer)) == offer, "an offer")
    for index, data in record.symbols:
        _check(0 <= index < INDEX_END and len(data) == offer.symbol_bytes, "a symbol")


def _check(is_right: bool, what: str) -> None:
    if not is_right:
        raise ValueError(what)
