"""The state machines of federated learning: any frames in any order, and nothing is raised.

A frame that a machine refuses must change nothing in it.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from fuzz import wire
from fuzz.target import Target, is_refusal, joined, parts, same, settle, steps
from ternmesh.errors import WireError
from ternmesh.federated.aggregation import encode_step, global_delta_q24
from ternmesh.federated.audit import Shown, read_shown, write_shown
from ternmesh.federated.events import GlobalUpdateMade, WorkReady
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.joining import NodeSettings
from ternmesh.federated.local_update import make_update
from ternmesh.federated.node import NodeProtocol
from ternmesh.federated.open_round import UpdateReassembler
from ternmesh.federated.state import HostSettings, new_host_state, new_node_state
from ternmesh.plan import Plan, genesis, to_numbers
from ternmesh.wire import control, fragments
from ternmesh.wire.frame import BROADCAST, DOWN, UNASSIGNED
from ternmesh.wire.global_update import (
    Counted,
    GlobalSnapshot,
    GlobalUpdate,
    certify,
    hash_adapter,
    write_global_snapshot,
    write_global_update,
)
from ternmesh.wire.proof import RoundRows, Tree, proved_rows, read_proof, root_of, write_proof

RUN = b"runrunru"
_WORK = np.full(wire.DIMENSION, 0.1, np.float32)
_QUIET_PLAN = replace(wire.PLAN, silence_permille=1000, silence_rounds=2)
_SAMPLES = 10


def _update(round_number: int, value: float = 0.1) -> list[bytes]:
    """The bodies of an update for a round of `wire.PLAN`: the manifest and one chunk."""
    vector = np.full(wire.DIMENSION, value, np.float32)
    made = make_update(vector, wire.MODEL, round_number, _SAMPLES, wire.PLAN)
    return list(made.bodies)


def _hello(name: str = "ada", version: int = 0, instance: bytes = b"instance") -> bytes:
    """The first message of a node, or a later one when it is at `version`."""
    place = wire.MODEL[:8], RUN if version else bytes(8), version, bytes(16)
    return control.write_control(control.Hello(name, instance, *place, _SAMPLES))


def _welcome(plan: Plan = wire.PLAN, address: int = 1, instance: bytes = b"instance") -> bytes:
    """The answer to `_hello`."""
    place = address, RUN, 0, control.OPEN, 5000
    return control.write_control(control.Welcome(instance, *place, to_numbers(plan)))


def _counted(address: int = 1) -> Counted:
    """The row of the update `_update(0)` in a global update."""
    made = make_update(_WORK, wire.MODEL, 0, _SAMPLES, wire.PLAN)
    return Counted(address, 0, made.digest, b"\x01")


def _global_update(*rows: Counted) -> list[bytes]:
    """The first global update of a run on `wire.PLAN`, in fragments."""
    chunks = encode_step(np.ones(wire.DIMENSION, np.float32), wire.MODEL, 1, wire.PLAN)[0]
    adapter = global_delta_q24(chunks, wire.MODEL, 1, wire.PLAN).astype(np.int32)
    name = hash_adapter(genesis(wire.MODEL, RUN, wire.PLAN), 1, adapter)
    content = write_global_update(GlobalUpdate(1, name, wire.MODEL[:8], False, 5000, rows, chunks))
    return fragments.split(certify(content), wire.PLAN.frame_mtu)


def _global_snapshot() -> list[bytes]:
    fields = 2, bytes(range(16)), wire.MODEL[:8], False, 5000, (_counted(),)
    content = write_global_snapshot(
        GlobalSnapshot(*fields, np.arange(wire.DIMENSION, dtype=np.int32) << 20)
    )
    return fragments.split(certify(content), wire.PLAN.frame_mtu)


def _proofs() -> list[bytes]:
    """Proofs of a host, and of one that is below two others."""
    rows = tuple(map(_counted, (1, 2, 9, 40)))
    region = replace(rows[2], root=Tree(rows).root)
    [above] = RoundRows(1, rows=(*rows[:2], region)).proofs([9])
    top = [replace(region, root=Tree((*rows[:2], region)).root)]
    [first] = RoundRows(1, rows=tuple(top)).proofs([9])
    below = RoundRows(1, (9, 9), first.leaves + above.leaves, rows)
    proofs = [*RoundRows(1, rows=rows).proofs([1, 9, 99]), *below.proofs([40])]
    return [write_proof(proof) for proof in (*proofs, *RoundRows(1, (9,)).proofs([1]))]


def _check_proof(data: bytes) -> None:
    proof = read_proof(data)
    same(write_proof(proof), data, "a proof written again")
    root = root_of(proof.leaves[0]) if proof.leaves else b""
    step = GlobalUpdate(proof.version, bytes(16), b"", False, 0, (), (), root=root)
    for address in {row.address for leaf in proof.leaves for row in leaf.rows}:
        with suppress(WireError):
            found = {row.address for row in proved_rows(step, proof, address)}
            same(found <= {address}, True, "whether a proof shows its own node only")


def _audit() -> bytes:
    """What an aggregator shows of two boards."""
    boards = {1: ("ada", tuple(_update(3))), 2: ("bob", tuple(_update(3, 0.2)))}
    return write_shown(Shown(3, _WORK, boards))


def _check_reassembly(data: bytes) -> None:
    """The chunks of one update."""
    reassembler = UpdateReassembler(wire.PLAN, wire.MODEL[:8], 0)
    for body in parts(data):
        with suppress(WireError):
            reassembler.add(body or b"\0")
    reassembler.hypervector().delta_q24()
    _ = reassembler.have, reassembler.usable, reassembler.complete


def _check_host(data: bytes) -> None:
    settings = HostSettings(min_peers=1, deadline_s=5.0, nodes_max=2, chain_max=2)
    host = HostProtocol(
        plan=_QUIET_PLAN,
        settings=settings,
        model_hash=wire.MODEL,
        run=RUN,
        state=new_host_state(wire.DIMENSION),
    )

    def state() -> object:
        nodes = [(n.name, n.samples, host.round.delivered(n.address)) for n in host.nodes.values()]
        return host.version, host.global_hash, host.phase, host.model_q24.tobytes(), nodes

    host.start(0.0)
    for step in steps(data):
        frame = step.frame((UNASSIGNED, 1, 2, 900)[step.choice & 3], is_raw=bool(step.choice & 8))
        before, peer = state(), ("ada", "bob")[step.choice >> 2 & 1]
        host.receive_frames(peer, [frame], step.now)
        found = list(iter(host.next_event, None))
        if is_refusal(found, peer):
            same(state(), before, "a host after a refusal")
        for event in (*found, *settle(host, step.now)):
            if isinstance(event, GlobalUpdateMade):
                addresses = [row.address for row in event.counted]
                same(sorted(set(addresses)), addresses, "the nodes of a round, each counted once")
                same(set(addresses) <= host.nodes.keys(), True, "whether all nodes are known")
        host.frames_to_send(step.now)


def _to_host() -> Iterator[bytes]:
    yield joined(b"\x00" + body for body in wire.bodies())
    ada, bob = [b"\x00" + _hello()], [b"\x04" + _hello("bob")]
    of_ada, of_bob = ([kind + body for body in _update(0)] for kind in (b"\x01", b"\x06"))
    yield joined(ada + bob + of_ada[::-1] + of_ada + of_bob + ada)
    silent = b"\x01" + control.write_control(control.Silent(0))
    ahead = b"\xf0" + _hello(version=7)
    yield joined([*ada, *bob, silent, *of_bob, *of_ada[:1], *3 * [b"\xf4" + _hello("bob")], ahead])


def _check_node(data: bytes) -> None:
    rng = np.random.default_rng(0)
    node = NodeProtocol(
        NodeSettings("ada", wire.MODEL, b"instance"),
        new_node_state(wire.DIMENSION),
        samples=10,
        rng=rng,
    )

    def state() -> object:
        pending = None if node.pending is None else node.pending.digest
        place = node.run, node.address, node.version, node.global_hash, node.target, node.joined
        return place, node.model_q24.tobytes(), node.residual.tobytes(), pending, node.received

    def work(found: Sequence[object], now: float) -> None:
        for event in found:
            if isinstance(event, WorkReady):
                node.submit(event.round, _WORK, now)

    node.start(0.0)
    for step in steps(data):
        address = (UNASSIGNED, DOWN | 1, BROADCAST, 1)[step.choice & 3]
        frame = step.frame(address, is_raw=bool(step.choice & 8))
        before, chain, version = state(), (node.run, node.plan), node.version
        node.receive_frames("host", [frame], step.now)
        found = list(iter(node.next_event, None))
        if is_refusal(found, "host"):
            same(state(), before, "a node after a refusal")
        if (node.run, node.plan) == chain and node.version < version:
            raise AssertionError("a node went back to an older version of its run")
        work(found, step.now)
        if step.choice & 4:  # work for a round that is over, or the same work again
            node.submit(node.version, _WORK, step.now)
        work(settle(node, step.now), step.now)
        node.frames_to_send(step.now)


def _to_node() -> Iterator[bytes]:
    joins = [b"\x00" + _welcome()]
    receipt = control.write_control(control.Receipt(0, _counted().digest, b"\x01"))
    got = [b"\x01" + receipt]
    update, global_snapshot = _global_update(_counted()), _global_snapshot()
    yield joined(joins + got + [b"\x02" + body for body in update] + joins)
    yield joined(joins + [b"\x01" + body for body in global_snapshot] + got)
    yield joined(joins + [b"\x01" + body for body in wire.controls()])
    quiet = [b"\x00" + _welcome(_QUIET_PLAN), *(b"\x01" + body for body in global_snapshot)]
    yield joined(quiet + 13 * [b"\xf1\0"])


TARGETS = (
    Target("proof", _proofs, _check_proof),
    Target("audit", lambda: [_audit()], lambda data: read_shown(data, wire.DIMENSION)),
    Target("intake", lambda: [joined([*wire.manifests(), *wire.chunks()])], _check_reassembly),
    Target("host", _to_host, _check_host),
    Target("node", _to_node, _check_node),
)
