"""The state machines: whatever frames arrive, in whatever order, nothing is raised."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from bench.fuzz_targets import wire
from bench.fuzz_targets.target import Target, joined, number, parts, same
from ternmesh.errors import WireError
from ternmesh.plan import Plan, genesis, to_numbers
from ternmesh.swarm import member, packet
from ternmesh.swarm.coordinator import Coordinator
from ternmesh.swarm.events import (
    CountersReserved,
    Pending,
    ReferenceMade,
    Refused,
    TrustChanged,
    WorkReady,
)
from ternmesh.swarm.intake import Intake
from ternmesh.swarm.member import Member
from ternmesh.swarm.records import Settings, new_state
from ternmesh.swarm.step import encode_step, read_shares, step_units
from ternmesh.wire import control, pieces, reference, seal, share

RUN = b"runrunru"
WORK = np.full(wire.DIMENSION, 0.1, np.float32)
QUIET_PLAN = replace(wire.PLAN, silence_permille=1000, silence_rounds=2)
_PEERS = ("ada", "bob")
STEPS_MAX = 64


def _check_intake(data: bytes) -> None:
    intake = Intake(wire.PLAN, wire.MODEL[:8], 0)
    for body in parts(data):
        try:
            intake.add(body or b"\0")
        except WireError:
            continue
    intake.hypervector().units()
    _ = intake.have, intake.usable, intake.complete


def _check_step(data: bytes) -> None:
    bodies = list(parts(data))[: wire.SHARES_MAX]
    read_shares((share.read_share(body) for body in bodies), wire.PLAN.down)
    step_units(bodies, wire.MODEL, 0, wire.PLAN)


class HostRun:
    """A host and what it promises whatever it is told."""

    def __init__(self, host: Coordinator) -> None:
        self.host = host
        host.start(0.0)

    def hear(self, frame: bytes, now: float, peer: str = "ada") -> None:
        """Deliver a frame; AssertionError where it is refused and yet changes something."""
        before = self._state()
        self.host.receive_frames(peer, [frame], now)
        if _is_refusal(self._events(), peer):
            same(self._state(), before, "a host after a refusal")

    def settle(self, now: float) -> list[bytes]:
        """Let it do what is due; the frames that leave then."""
        if (due := self.host.next_timeout()) is not None and due <= now:
            self.host.handle_timeout(now)
        self._events()
        return [frame for _, frames in self.host.frames_to_send(now) for frame in frames]

    def _events(self) -> list[object]:
        found: list[object] = list(iter(self.host.next_event, None))
        for event in found:
            if isinstance(event, ReferenceMade):
                contexts = [row.context for row in event.counted]
                same(sorted(set(contexts)), contexts, "nodes, of which a round counts one packet")
                same(set(contexts) <= self.host.nodes.keys(), True, "whether all are known")
        return found

    def _state(self) -> object:
        host = self.host
        nodes = [(n.name, n.samples, host.delivered(n.context)) for n in host.nodes.values()]
        return host.version, host.reference, host.phase, host.fixed.tobytes(), nodes


class NodeRun:
    """A node that does what work it is given, and what it promises whatever it is told."""

    def __init__(self, node: Member) -> None:
        self.node = node
        node.start(0.0)

    def hear(self, frame: bytes, now: float) -> None:
        """Deliver a frame; AssertionError where it is refused and yet changes something."""
        before, chain, version = self.state(), self._chain(), self.node.version
        self.node.receive_frames("host", [frame], now)
        if _is_refusal(self._events(now), "host"):
            same(self.state(), before, "a node after a refusal")
        if self._chain() == chain and self.node.version < version:
            raise AssertionError("a node went back to an older version of its run")

    def settle(self, now: float) -> list[bytes]:
        """Let it do what is due; the frames that leave then."""
        if (due := self.node.next_timeout()) is not None and due <= now:
            self.node.handle_timeout(now)
        self._events(now)
        return [frame for _, frames in self.node.frames_to_send(now) for frame in frames]

    def state(self) -> object:
        """What nothing that is refused may change."""
        node = self.node
        pending = None if node.pending is None else node.pending.digest
        place = node.run, node.context, node.version, node.reference, node.target, node.joined
        return place, node.fixed.tobytes(), node.residual.tobytes(), pending, node.received

    def _chain(self) -> object:
        """What versions count from: the genesis is of both."""
        return self.node.run, self.node.plan

    def _events(self, now: float) -> list[object]:
        found: list[object] = []
        while (event := self.node.next_event()) is not None:
            found.append(event)
            if isinstance(event, WorkReady):
                self.node.submit(event.round, WORK, now)
        return found


def _is_refusal(found: list[object], peer: str) -> bool:
    """Whether what became of a frame of a peer is that it was refused."""
    rest = [e for e in found if not isinstance(e, CountersReserved | TrustChanged)]
    return bool(rest) and all(isinstance(e, Refused) and e.peer == peer for e in rest)


def _check_host(data: bytes) -> None:
    settings = Settings(min_peers=1, deadline_s=5.0, nodes_max=2, chain_max=2)
    run = HostRun(Coordinator(QUIET_PLAN, settings, wire.MODEL, RUN, new_state(wire.DIMENSION)))
    now = 0.0
    for step, item in zip(range(STEPS_MAX), parts(data), strict=False):
        choice, body = number(item, 0, 1), item[1:] or b"\0"
        now += (choice >> 4) * 0.5
        context = (seal.ENROL, 1, 2, 900)[choice & 3]
        frame = body if choice & 8 else seal.seal(seal.Header(context, step), body)
        run.hear(frame, now, _PEERS[choice >> 2 & 1])
        run.settle(now)


def _check_node(data: bytes) -> None:
    state, rng = member.new_state(wire.DIMENSION), np.random.default_rng(0)
    run = NodeRun(Member("ada", wire.MODEL, 10, b"instance", state, rng))
    now = 0.0
    for step, item in zip(range(STEPS_MAX), parts(data), strict=False):
        choice, body = number(item, 0, 1), item[1:] or b"\0"
        now += (choice >> 4) * 0.5
        context = (seal.ENROL, seal.DOWN | 1, seal.BROADCAST, 1)[choice & 3]
        frame = body if choice & 8 else seal.seal(seal.Header(context, step), body)
        run.hear(frame, now)
        if choice & 4:  # work for a round that is over, or a second time
            run.node.submit(run.node.version, WORK, now)
        run.settle(now)


def work(round_number: int) -> Pending:
    """The packet that `NodeRun` makes for a round of `wire.PLAN`, if nothing was left over."""
    return packet.make_packet(WORK, wire.MODEL, round_number, 10, wire.PLAN)


def hello(name: str = "ada", version: int = 0) -> bytes:
    """What a node says first, or again."""
    place = b"instance", wire.MODEL[:8], RUN if version else bytes(8), version, bytes(16)
    return control.write_control(control.Hello(name, *place, 10))


def _conversations() -> Iterator[bytes]:
    bodies = wire.bodies()
    yield joined(b"\x00" + body for body in bodies)
    yield joined(b"\x11" + body for body in bodies)
    ada, bob = [b"\x00" + hello()], [b"\x04" + hello("bob")]
    of_ada, of_bob = ([kind + b for b in work(0).bodies] for kind in (b"\x01", b"\x06"))
    yield joined(ada + of_ada + ada)
    yield joined(ada + bob + of_ada[::-1] + of_ada + of_bob + [b"\x01" + silent(1)] + ada)
    again = [b"\x01" + body for body in work(1).bodies]
    ahead = [b"\x00" + hello(version=7)]
    yield joined(ada + bob + of_ada[:1] + of_bob + [b"\xf0" + hello()] + again + ahead)
    yield joined(ada + [b"\x01" + body for body in (*wire.manifests(), *wire.shares(1))])
    rounds = [b"\x01" + body for index in range(3) for body in work(index).bodies]
    yield joined(ada + rounds + ada)
    yield joined(ada + bob + [b"\x01" + silent(0)] + of_bob + 5 * [b"\xf4" + hello("bob")])


def silent(round_number: int) -> bytes:
    """The word that no packet comes."""
    return control.write_control(control.Silent(round_number))


def welcome(plan: Plan = wire.PLAN, instance: bytes = b"instance") -> bytes:
    """The answer to `hello`."""
    place = instance, 1, RUN, 0, control.OPEN, 5000
    return control.write_control(control.Welcome(*place, to_numbers(plan)))


def receipt() -> bytes:
    """Of the whole packet for round 0."""
    return control.write_control(control.Receipt(0, work(0).digest, b"\x01"))


def _answers() -> Iterator[bytes]:
    said = [b"\x00" + welcome()]
    yield joined(said)
    step, whole = (
        _cut(reference.certify(item)) for item in (first_reference(counted()), snapshot())
    )
    got = [b"\x01" + receipt()]
    yield joined(said + got + [b"\x02" + body for body in step] + said)
    yield joined(said + [b"\x01" + body for body in whole] + got)
    wrong = first_reference(replace(counted(), have=b"\xff"))  # of more shares than there are
    yield joined(said + [b"\x02" + body for body in _cut(reference.certify(wrong))] + said)
    yield joined(said + [b"\x01" + body for body in wire.controls()])
    asked = [b"\x00" + welcome(QUIET_PLAN), *(b"\x01" + body for body in whole)]
    yield joined(asked + [b"\x01" + silent(2), b"\x04\0"] + 13 * [b"\xf1\0"])
    quiet = [b"\xf1" + control.write_control(control.Refusal(0, "unknown node")), b"\xf0\0"]
    yield joined(said + [_announce(1)] + quiet + said + [b"\x01" + body for body in step])
    other = b"\x00" + welcome(QUIET_PLAN, control.renewed(b"instance", RUN))
    yield joined([*said, *asked[1:], other, _announce(3), other])


def _announce(version: int) -> bytes:
    return b"\x02" + control.write_control(control.Announce(RUN, version, control.OPEN, 9))


def _cut(item: bytes) -> list[bytes]:
    return pieces.cut(item, wire.PLAN.frame_mtu)


def counted() -> reference.Counted:
    """The row of the packet `work(0)`."""
    return reference.Counted(1, 0, work(0).digest, b"\x01")


def first_reference(*rows: reference.Counted, model: bytes = wire.MODEL[:8]) -> bytes:
    """The content of a reference with these rows, the first of a run on `wire.PLAN`."""
    origin = genesis(wire.MODEL, RUN, wire.PLAN)
    shares = encode_step(np.ones(wire.DIMENSION, np.float32), wire.MODEL, 1, wire.PLAN)
    return reference.write_reference(
        reference.Reference(1, origin, model, False, 5000, rows, shares)
    )


def snapshot(version: int = 2) -> bytes:
    """The content of one that such a node is given."""
    fields = version, bytes(range(16)), wire.MODEL[:8], False, 5000, (counted(),)
    return reference.write_snapshot(
        reference.Snapshot(*fields, np.arange(wire.DIMENSION, dtype=np.int32) << 20)
    )


TARGETS = (
    Target("intake", _check_intake, lambda: [joined([*wire.manifests(), *wire.shares()])]),
    Target("step", _check_step, lambda: [joined(wire.shares(1))]),
    Target("host", _check_host, _conversations, length_max=2048),
    Target("node", _check_node, _answers, length_max=2048),
)
