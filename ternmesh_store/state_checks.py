"""Whether an endpoint can go on with a state that was read: a damaged value is found here, at once.

ValueError or WireError where it cannot. Values that only say something else, such as another
sample count within its limits, are not found: nothing says what they were.
"""

from ternmesh.link import frames
from ternmesh.link.code import INDEX_END
from ternmesh.link.outbound import is_shared, slots_of
from ternmesh.link.records import InRecord, LinkState, OutRecord
from ternmesh.plan import Plan
from ternmesh.swarm.bitmap import read_bitmap
from ternmesh.swarm.intake import Intake
from ternmesh.swarm.open_round import BUNDLE, OpenRound
from ternmesh.swarm.records import NO_RUN, CoordinatorState, Link, MemberState, NodeRecord
from ternmesh.wire import manifest
from ternmesh.wire.control import INTEGER_MAX, NAME
from ternmesh.wire.manifest import DIGEST_SIZE, MODEL_SIZE, SAMPLES_MAX
from ternmesh.wire.reference import HASH_SIZE, reference_hash, split_certificate
from ternmesh.wire.seal import NODE_MAX

COUNTER_END = 1 << 62  # SQLite's integers end at 2**63, and more counters are reserved at once
_RUN_SIZE = len(NO_RUN)


def check_run(run: bytes, plan: Plan, state: CoordinatorState, model_hash: bytes) -> None:
    """What a host goes on with."""
    _check(len(run) == _RUN_SIZE, "its run")
    _check(0 <= state.counter < COUNTER_END, "its counter")
    _check(0 <= state.version <= plan.rounds, "its version")
    _check(len(state.reference) == (HASH_SIZE if state.version else 0), "its reference")
    _check(state.fixed.size == state.residual.size == plan.dimension, "its vectors")
    for node in state.nodes:
        _check_node(node, plan, state.version)
    _check_chain(state)
    contexts = {node.context for node in state.nodes}
    opened = OpenRound(plan, model_hash[:MODEL_SIZE], state.version, contexts)
    for place, body in state.bodies:
        _check(place & ~BUNDLE in contexts, "whose a body is")
        opened.add(place, body)


def _check_node(node: NodeRecord, plan: Plan, version: int) -> None:
    _check(0 < node.context <= NODE_MAX and bool(NAME.match(node.name)), "a node's context or name")
    _check(0 <= node.samples <= SAMPLES_MAX, "a node's samples")
    for row in (node.counted, node.bundle):
        if row is not None:
            _check(0 <= row.round < version, "the round in which a node was counted")
            _check(len(row.digest) == DIGEST_SIZE, "the digest of what was counted")
            read_bitmap(row.have, plan.up.count)


def _check_chain(state: CoordinatorState) -> None:
    versions = [link.version for link in state.chain]
    first = state.version - len(versions) + 1
    _check(versions == list(range(first, state.version + 1)), "the versions of its references")
    _check(all(map(_is_whole, state.chain)), "a reference")
    _check(not versions or state.chain[-1].reference == state.reference, "its newest reference")


def _is_whole(link: Link) -> bool:
    return reference_hash(split_certificate(link.content)[0]) == link.reference


def check_member(state: MemberState, model_hash: bytes, dimension: int) -> None:
    """What a node goes on with."""
    _check(len(state.run) == _RUN_SIZE and len(state.reference) == HASH_SIZE, "its run")
    _check(0 <= state.context <= NODE_MAX, "its context")
    _check(0 <= state.version <= INTEGER_MAX, "its version")
    _check(0 <= state.counter < COUNTER_END, "its counter")
    _check(state.fixed.size == state.residual.size == dimension, "its vectors")
    plan, pending = state.plan, state.pending
    _check(plan is None or plan.dimension == dimension, "its plan")
    if pending is None:
        return
    if plan is None:
        raise ValueError("a packet of no plan")
    _check(0 <= pending.round <= INTEGER_MAX, "its packet's round")
    _check(pending.corrected.size == dimension, "what its packet was made from")
    intake = Intake(plan, model_hash[:MODEL_SIZE], pending.round)
    for body in pending.bodies:
        intake.add(body)
    head = intake.manifest if intake.complete and pending.bodies[0][0] == manifest.KIND else None
    _check(head is not None and head.digest == pending.digest, "its packet")


def check_link(state: LinkState) -> None:
    """What a link goes on with."""
    _check(0 <= state.counter < COUNTER_END, "its counter")
    _check(0 <= state.number < COUNTER_END, "the number of its next object")
    slots: set[tuple[str, int]] = set()
    for record in state.outgoing:
        _check_outgoing(record, state.number)
        if record.slot is not None:
            lane = "" if is_shared(record.queued) else record.queued.peer
            _check((lane, record.slot) not in slots, "a slot that two objects have")
            slots.add((lane, record.slot))
    for held in state.incoming:
        _check_incoming(held)
    for names in state.arrived.values():
        _check(all(len(name) == frames.NAME_SIZE for name in names), "the name of an object")


def _check_outgoing(record: OutRecord, numbers: int) -> None:
    queued = record.queued
    _check(0 <= queued.number < numbers, "the number of an object")
    _check(len(queued.payload) > 0, "an object of nothing")
    _check(all(type(name) is str for name in queued.receivers), "the receivers of an object")
    _check(0 <= record.repairs < COUNTER_END, "how many repairs were reserved")
    _check(record.slot is None or record.slot in slots_of(queued), "the slot of an object")


def _check_incoming(record: InRecord) -> None:
    offer = record.offer
    _check(frames.read(frames.write(offer)) == offer, "what was offered")
    for index, data in record.symbols:
        _check(0 <= index < INDEX_END and len(data) == offer.symbol_bytes, "a symbol")


def _check(is_right: bool, what: str) -> None:
    if not is_right:
        raise ValueError(what)
