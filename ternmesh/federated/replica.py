"""What voters agree to: how the next global update is made, so that each can make it again.

A proposal names the bodies that count, not what comes of them. A voter that holds the state before
it makes the same global update, and compares its hash. SPEC.md section 13.
"""

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import cbor2

from ternmesh.errors import WireError
from ternmesh.federated.aggregation import read_step
from ternmesh.federated.agreement.messages import DIGEST_SIZE
from ternmesh.federated.combiner import state_hash
from ternmesh.federated.guard import newest_rounds
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.open_round import check_round, round_of
from ternmesh.federated.state import ChainLink, HostSettings, HostState, RegisteredNode, RunState
from ternmesh.plan import Plan
from ternmesh.security.authenticator import OPEN, SecurityLayer
from ternmesh.wire.control import read_plain
from ternmesh.wire.frame import NODE_MAX
from ternmesh.wire.global_update import GlobalUpdate, hash_adapter, hash_global_update

PROPOSED_MAX = 16 << 20  # bytes of a proposal: the updates of a thousand boards are 1 MB


@dataclass(frozen=True, slots=True)
class ProposedUpdate:
    """How the global update to `version` is made of the state before it."""

    run: bytes
    version: int
    before: bytes  # the hash of the global update before
    members: int  # the number of the membership list that holds
    muted: tuple[str, ...]  # boards that count nothing, by the owner
    returns_to: int | None  # an older version, for the owner; then no body counts
    joined: tuple[tuple[int, str, int], ...]  # address, name and samples of the run's boards
    bodies: tuple[tuple[int, bytes], ...]  # of updates and silences, by address, as they came
    state: bytes  # the hash of what the voter knows before it (`combiner.state_hash`)
    made: bytes  # the hash of what comes of it (`made_by`)


class OtherStateError(WireError):
    """A proposal was made by who knows something else of the boards."""


def write_proposal(item: ProposedUpdate) -> bytes:
    """The bytes of a proposal."""
    written: bytes = cbor2.dumps(
        [getattr(item, name) for name in ProposedUpdate.__slots__], canonical=True
    )
    return written


def read_proposal(data: bytes) -> ProposedUpdate:
    """The proposal in exactly these bytes. Raises WireError."""
    try:
        found: Any = read_plain(data[:PROPOSED_MAX])
        run, version, before, members, muted, returns_to, joined, bodies, state, made = found
        item = ProposedUpdate(
            run=run,
            version=version,
            before=before,
            members=members,
            muted=tuple(muted),
            returns_to=returns_to,
            joined=tuple((a, n, s) for a, n, s in joined),
            bodies=tuple((a, b) for a, b in bodies),
            state=state,
            made=made,
        )
        is_exact = write_proposal(item) == data
    except (cbor2.CBORError, TypeError, ValueError, RecursionError) as error:
        raise WireError("agreement", "a proposal is not well formed") from error
    sizes_fit = all(isinstance(part, bytes) for part in (run, before, state, made))
    sizes_fit = sizes_fit and (len(made), len(run)) == (DIGEST_SIZE, 8)
    numbers = [version, members, *(a for a, _, _ in item.joined), *(s for *_, s in item.joined)]
    numbers += [a for a, _ in item.bodies] + ([] if returns_to is None else [returns_to])
    fit = all(isinstance(n, int) and 0 <= n < 1 << 32 for n in numbers)
    fit &= all(isinstance(name, str) for name in (*item.muted, *(n for _, n, _ in item.joined)))
    fit &= all(isinstance(body, bytes) and body for _, body in item.bodies)
    if not (is_exact and sizes_fit and fit):
        raise WireError("agreement", "a proposal has a field of another form")
    return item


def proposal_hash(data: bytes) -> bytes:
    """What voters sign in place of a proposal."""
    return hashlib.sha256(data).digest()


def reproduce(
    item: ProposedUpdate,
    *,
    plan: Plan,
    settings: HostSettings,
    model_hash: bytes,
    run: bytes,
    state: HostState,
    members: int,
    security: SecurityLayer,
) -> tuple[HostProtocol, bytes]:
    """Make the global update of a proposal from the state before it.

    Return the host, which `awaits` it, and the hash of that state. WireError where that is not
    possible; OtherStateError where that state is not the proposal's, if this names one. `made` is
    not looked at.
    """
    reached = run, state.version + 1, members
    if (item.run, item.version, item.members) != reached:
        raise WireError("agreement", f"a proposal to version {item.version} of another state")
    host = HostProtocol(
        plan=plan,
        settings=replace(settings, has_voters=True),
        model_hash=model_hash,
        run=run,
        state=replace(
            state,
            nodes=tuple(_nodes(state.nodes, item.joined, settings.nodes_max)),
            bodies=(),
            started=state.version > 0 or bool(item.bodies),
        ),
        security=security,
    )
    if host.global_hash != item.before:
        raise WireError("agreement", "a proposal follows another global update than ours")
    host.combiner.mute(item.muted)
    known = state_hash(host.combiner, residual=host.residual, membership=members)
    if item.state not in (b"", known):
        raise OtherStateError("agreement", "this voter knows something else of the boards")
    if any(node.counted is None and host.is_excluded(node.name) for node in host.nodes.values()):
        raise WireError("unknown key", "a proposal takes a board in that is not enrolled here")
    if host.state is RunState.FINISHED:
        raise WireError("agreement", "a proposal follows the last global update of the run")
    for address, body in item.bodies:
        if address not in host.nodes:
            raise WireError("unknown node", f"a proposal names the address {address}")
        check_round(round_of(body, host.version, plan), host.version, is_open=True)
        host.take_body(host.nodes[address], body)
    if host.state is RunState.GATHERING:
        host.begin_run(0.0)
    elif item.returns_to is not None:
        host.return_to(item.returns_to, 0.0)
    elif len(host.round.present()) >= settings.min_peers:
        host.end_round(0.0)
    if host.awaiting is None:
        raise WireError("agreement", "what a proposal names makes no global update")
    return host, known


def check_copy(
    state: HostState,
    *,
    plan: Plan,
    settings: HostSettings,
    model_hash: bytes,
    run: bytes,
    security: SecurityLayer,
    known: Collection[ChainLink] = (),
) -> None:
    """Check that the signers have certified what another voter has. Raises WireError.

    Global updates that are `known` need no certificate: they may be older than the voters. What no
    signer has certified is compared with what the voters have decided (`made_hash`).
    """
    host = HostProtocol(
        plan=plan, settings=settings, model_hash=model_hash, run=run, state=state, security=security
    )
    if not len(state.model_q24) == len(state.residual) == plan.dimension:
        raise WireError("agreement", "the adapter in a copy of a run is of another size")
    if not state.chain:
        raise WireError("agreement", "a copy of a run has no global update")
    certified = [_certified(link, host, model_hash, link in known) for link in state.chain]
    adapter = hash_adapter(host.chain.genesis, state.version, state.model_q24)
    newest = certified[-1].version, state.chain[-1].global_hash, certified[-1].finished
    reached = state.version, state.global_hash, state.finished
    if newest != reached or certified[-1].adapter_hash != adapter:
        raise WireError("agreement", "the adapter in a copy of a run is not its newest")


def _certified(
    link: ChainLink, host: HostProtocol, model_hash: bytes, is_known: bool
) -> GlobalUpdate:
    """A global update that another voter has; WireError where no signers have certified it."""
    authenticator = host.channel.authenticator
    beside = authenticator.objects_to_send(host.run, link.content)[:-1]
    check = partial(authenticator.check_certificate, host.run, beside=beside)
    if is_known:
        check = partial(OPEN.authenticator.check_certificate, host.run)
    step, name = read_step(link.content, host.plan.dimension, model_hash, check)
    if not isinstance(step, GlobalUpdate) or (step.version, name) != (
        link.version,
        link.global_hash,
    ):
        raise WireError("agreement", "a copy of a run has another global update")
    return step


def stored_hash(state: HostState) -> bytes:
    """The hash of all on a voter's disk that global updates follow from, beside their hash."""
    rows = [
        (node.address, node.name, row.round, row.digest, row.have)
        for node in sorted(state.nodes, key=lambda node: node.address)
        if (row := node.counted) is not None
    ]
    parts = (
        state.standings,
        state.mean,
        state.residual.astype("<f4").tobytes(),
        cbor2.dumps(rows),
        *newest_rounds(state.kept),
    )
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).digest()


def made_hash(state: HostState) -> bytes:
    """What a proposal calls `made`, of the state that its global update has led to."""
    return hashlib.sha256(state.global_hash + stored_hash(state)).digest()


def take_over(host: HostProtocol, made: HostProtocol) -> None:
    """Let a host await what another has made of the same bodies, by the state that is on disk.

    In a process that goes on, memories reach further back than what it keeps on disk.
    """
    host.awaiting, host.combiner = made.awaiting, made.combiner
    host.combiner.nodes = host.nodes


def made_by(host: HostProtocol, state: HostState) -> bytes:
    """The hash of what a host awaits, without a certificate, and of what `state` becomes by it."""
    assert host.awaiting is not None
    proposal, count = host.awaiting.proposal, host.awaiting.count
    kept = host.combiner.guard.stored(host.version)
    is_mean_kept = bool(count.rows or host.plan.rounds)
    nodes = (replace(n, counted=count.rows.get(n.address, n.counted)) for n in host.nodes.values())
    return made_hash(
        replace(
            state,
            global_hash=hash_global_update(host.awaiting.content),
            residual=proposal.residual,
            nodes=tuple(nodes),
            mean=state.mean if is_mean_kept else host.combiner.consolidation.stored(),
            standings=host.combiner.aggregation.stored(),
            kept=(*state.kept, *filter(None, [kept])),
        )
    )


def _nodes(
    known: Iterable[RegisteredNode], joined: Collection[tuple[int, str, int]], places: int
) -> Iterable[RegisteredNode]:
    """The nodes of a state, and those that have joined since.

    Nodes that no global update has counted are known to the leader alone that has taken them in.
    """
    addresses, names = {row[0] for row in joined}, {row[1] for row in joined}
    if not len(addresses) == len(names) == len(joined) <= places:
        raise WireError("agreement", "a proposal names a board twice, or too many boards")
    if not all(0 < address <= NODE_MAX for address in addresses):
        raise WireError("agreement", "a proposal has an address that no board can have")
    before = {node.address: node for node in known if node.counted is not None}
    for address, name, samples in joined:
        node = before.pop(address, RegisteredNode(address, name))
        if node.name != name:
            raise WireError("agreement", f"the address {address} has another name")
        node.samples = samples
        yield node
    if before:
        raise WireError("agreement", "a proposal lacks boards of the run")
