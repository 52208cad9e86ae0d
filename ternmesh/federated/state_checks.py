"""Check whether a node, gateway or host can continue with a state read from disk.

The checks raise ValueError or WireError for a damaged value. They cannot find a damaged value that
is possible, such as another sample count within its limits.
"""

from ternmesh.federated.gateway.partial_aggregate import GatewayState, partial_aggregate_q24
from ternmesh.federated.open_round import PARTIAL_AGGREGATE, OpenRound, UpdateReassembler
from ternmesh.federated.state import NO_RUN, ChainLink, HostState, NodeState, RegisteredNode
from ternmesh.plan import Plan
from ternmesh.wire.control import INTEGER_MAX, NAME
from ternmesh.wire.frame import NODE_MAX
from ternmesh.wire.global_update import HASH_SIZE, hash_global_update, split_certificate
from ternmesh.wire.update import DIGEST_SIZE, MANIFEST_KIND, MODEL_SIZE, SAMPLES_MAX, read_bitmap

COUNTER_END = 1 << 62  # stored integers end at 2**63, and counters are reserved in blocks
_RUN_SIZE = len(NO_RUN)


def check_host(run: bytes, plan: Plan, state: HostState, model_hash: bytes) -> None:
    """Check the state of a host."""
    _check(len(run) == _RUN_SIZE, "its run")
    _check(0 <= state.counter < COUNTER_END, "its counter")
    _check(0 <= state.version <= plan.last_version, "its version")
    _check(len(state.global_hash) == (HASH_SIZE if state.version else 0), "its global hash")
    _check(state.model_q24.size == state.residual.size == plan.dimension, "its vectors")
    for node in state.nodes:
        _check_node(node, plan, state.version)
    _check_chain(state)
    addresses = {node.address for node in state.nodes}
    opened = OpenRound(plan, model_hash[:MODEL_SIZE], state.version, addresses)
    for source, body in state.bodies:
        _check(source & ~PARTIAL_AGGREGATE in addresses, "the node of a body")
        opened.add(source, body)


def _check_node(node: RegisteredNode, plan: Plan, version: int) -> None:
    _check(0 < node.address <= NODE_MAX and bool(NAME.match(node.name)), "a node's address or name")
    _check(0 <= node.samples <= SAMPLES_MAX, "a node's samples")
    for row in (node.counted, node.partial_aggregate):
        if row is not None:
            _check(0 <= row.round < version, "the round in which a node was counted")
            _check(len(row.digest) == DIGEST_SIZE, "the digest of what was counted")
            read_bitmap(row.have, plan.up.count)


def _check_chain(state: HostState | NodeState) -> None:
    versions = [link.version for link in state.chain]
    first = state.version - len(versions) + 1
    _check(versions == list(range(first, state.version + 1)), "the versions of its chain")
    _check(all(map(_is_whole, state.chain)), "a global update")
    _check(
        not versions or state.chain[-1].global_hash == state.global_hash, "its newest global update"
    )


def _is_whole(link: ChainLink) -> bool:
    return hash_global_update(split_certificate(link.content)[0]) == link.global_hash


def check_node(state: NodeState, model_hash: bytes, dimension: int) -> None:
    """Check the state of a node."""
    _check(len(state.run) == _RUN_SIZE and len(state.global_hash) == HASH_SIZE, "its run")
    _check(0 <= state.address <= NODE_MAX, "its address")
    _check(0 <= state.version <= INTEGER_MAX, "its version")
    _check(0 <= state.counter < COUNTER_END, "its counter")
    _check(0 <= state.silences <= INTEGER_MAX, "its silent rounds")
    _check(state.model_q24.size == state.residual.size == dimension, "its vectors")
    _check(state.own_q24 is None or state.own_q24.size == dimension, "its own adapter")
    _check_chain(state)
    if state.before is not None:
        sizes = {state.before.model_q24.size, state.before.residual.size}
        _check(sizes == {dimension}, "the vectors of the run before")
    plan, pending = state.plan, state.pending
    _check(plan is None or plan.dimension == dimension, "its plan")
    if pending is None:
        return
    if plan is None:
        raise ValueError("an update without a plan")
    _check(0 <= pending.round <= INTEGER_MAX, "the round of its update")
    _check(pending.corrected.size == dimension, "the vector that its update was made from")
    reassembler = UpdateReassembler(plan, model_hash[:MODEL_SIZE], pending.round)
    for body in pending.bodies:
        reassembler.add(body)
    is_whole = reassembler.complete and pending.bodies[0][0] == MANIFEST_KIND
    manifest = reassembler.manifest if is_whole else None
    _check(manifest is not None and manifest.digest == pending.digest, "its update")


def check_gateway(state: GatewayState, dimension: int) -> None:
    """Check the state of a gateway."""
    _check(0 <= state.counter < COUNTER_END, "its counter")
    _check(state.residual.size == dimension, "its residual")
    plan, pending = state.plan, state.pending
    if pending is None:
        return
    if plan is None or plan.up.count != len(pending.bodies) - 2:
        raise ValueError("its partial aggregate is of another plan")
    _check(pending.wanted.size == dimension, "its partial aggregate")
    partial_aggregate_q24(pending.bodies[2:], plan)


def _check(is_right: bool, what: str) -> None:
    if not is_right:
        raise ValueError(what)
