"""One host and its nodes; the test carries the frames between them."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import pytest

from ternmesh.federated.events import SecurityChanged
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.joining import NodeSettings
from ternmesh.federated.node import NodeProtocol
from ternmesh.federated.state import (
    HostSettings,
    HostState,
    NodeState,
    new_host_state,
    new_node_state,
)
from ternmesh.plan import Plan, make_plan
from ternmesh.security.authenticator import OPEN, SecurityLayer, make_security_layer
from ternmesh.security.identity import Identity, Role, make_identity
from ternmesh.security.membership import ALL, HOST, MemberList, found_fleet
from ternmesh.security.session import CloneCount, GroupState, PeerState, SealingState
from transports.driver import Endpoint


class Keys:
    """A fleet whose members have keys; `security` makes what an end gets at its start."""

    def __init__(self, *names: str) -> None:
        self._entropy = np.random.default_rng(7)
        self.host = self.identity(HOST, Role.HOST)
        self.members = {name: self.identity(name) for name in names}
        self.kept: dict[str, dict[object, object]] = {}
        self.revoked: set[str] = set()

    def identity(self, name: str, role: Role = Role.NODE) -> Identity:
        return make_identity(name, role, self._entropy.bytes(64))

    def member_list(self) -> MemberList:
        member_list = MemberList(found_fleet("garden", self.host.public))
        for own in self.members.values():
            member_list.enrol(own.public)
        for name in self.revoked:
            member_list.revoke(name)
        return member_list

    def security(self, name: str, counter: int = 0, own: Identity | None = None) -> SecurityLayer:
        own = own or (self.host if name == HOST else self.members[name])
        kept = self.kept.get(name, {})
        peers = tuple(value for value in kept.values() if isinstance(value, PeerState))
        state = SealingState(peers, cast(GroupState | None, kept.get(None)))
        return make_security_layer(
            own, self.member_list(), MODEL, self._entropy.bytes(32), counter, state
        )

    def keep(self, name: str, event: object) -> None:
        """What a store does with `SecurityChanged`."""
        if isinstance(event, SecurityChanged):
            for change in event.changes:
                if not isinstance(change, CloneCount):
                    key = change.name if isinstance(change, PeerState) else None
                    self.kept.setdefault(name, {})[key] = change


MODEL = bytes(range(32))
RUN = b"run-id-8"


@dataclass
class Bench:
    """`events` and `sent` collect those of each end, by its name."""

    plan: Plan
    host: HostProtocol
    nodes: dict[str, NodeProtocol] = field(default_factory=dict)
    events: dict[str, list[object]] = field(default_factory=dict)
    sent: dict[str, list[tuple[str, bytes]]] = field(default_factory=dict)
    now: float = 100.0
    keys: Keys | None = None

    def add(
        self,
        name: str,
        samples: int = 10,
        state: NodeState | None = None,
        security: SecurityLayer | None = None,
    ) -> NodeProtocol:
        state = state or new_node_state(self.plan.dimension)
        rng = np.random.default_rng(len(self.nodes))
        if security is None:
            security = OPEN if self.keys is None else self.keys.security(name, state.counter)
        instance = name.encode().ljust(8)
        node = NodeProtocol(
            NodeSettings(name, MODEL, instance), state, samples=samples, rng=rng, security=security
        )
        self.nodes[name] = node
        node.start(self.now)
        return node

    def host_security(self, counter: int) -> SecurityLayer:
        """What the next process of the host gets."""
        return OPEN if self.keys is None else self.keys.security(HOST, counter)

    def restart_host(self, state: HostState, run: bytes = b"", **changes: Any) -> HostProtocol:
        """Another process of the host, of this run or another; `changes` of its plan."""
        self.host = HostProtocol(
            plan=replace(self.plan, **changes),
            settings=self.host.settings,
            model_hash=MODEL,
            run=run or self.host.run,
            state=state,
            security=self.host_security(state.counter),
        )
        self.events[HOST] = []
        self.host.start(self.now)
        return self.host

    def take(self, name: str) -> list[tuple[str, bytes]]:
        """What an endpoint wants to send now, after its events."""
        endpoint = self.host if name == HOST else self.nodes[name]
        while (event := endpoint.next_event()) is not None:
            self.events.setdefault(name, []).append(event)
            if self.keys is not None:
                self.keys.keep(name, event)
        frames = [(p, f) for p, group in endpoint.frames_to_send(self.now) for f in group]
        self.sent.setdefault(name, []).extend(frames)
        return frames

    def exchange(self) -> None:
        """Carry frames until no end has any."""
        moved = True
        while moved:
            moved = False
            for name in [HOST, *self.nodes]:
                for peer, frame in self.take(name):
                    moved = True
                    for target in [*self.nodes] if peer == ALL else [peer]:
                        endpoint = self.host if target == HOST else self.nodes.get(target)
                        if endpoint is not None:
                            endpoint.receive_frames(name, [frame], self.now)

    def wait(self, seconds: float) -> None:
        """Let time pass; timeouts that fall due are handled."""
        self.now += seconds
        endpoints: list[Endpoint[Any]] = [self.host, *self.nodes.values()]
        for endpoint in endpoints:
            due = endpoint.next_timeout()
            if due is not None and due <= self.now:
                endpoint.handle_timeout(self.now)

    def join(self, *names: str) -> None:
        """Boards of these names say hello, and are welcome."""
        for name in names:
            self.add(name)
        self.exchange()

    def settle(self, turns: int = 3, seconds: float = 2.0) -> None:
        """Time for a first contact: the host first checks that it is no replay."""
        for _ in range(turns):
            self.exchange()
            self.wait(seconds)
        self.exchange()

    def live(self, seconds: float = 20) -> None:
        """Seconds pass, and frames arrive in each of them."""
        self.settle(int(seconds), 1.0)

    def play(self, rounds: int = 1) -> None:
        """Rounds with an update of each node."""
        for _ in range(rounds):
            for seed, node in enumerate(self.nodes.values()):
                node.submit(self.host.version, self.delta(seed), self.now)
            self.exchange()

    def agrees(self) -> bool:
        """Whether all ends have one run, version and global adapter."""
        ends: list[Any] = [self.host, *self.nodes.values()]
        names = {(end.run, end.version, end.global_hash) for end in ends}
        return len(names) == 1 and all(np.array_equal(ends[0].model_q24, e.model_q24) for e in ends)

    def last(self, name: str, kind: type) -> Any:
        return [event for event in self.events[name] if isinstance(event, kind)][-1]

    def count(self, name: str, kind: type) -> int:
        return sum(isinstance(event, kind) for event in self.events.get(name, []))

    def delta(self, seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        return rng.normal(0, 0.01, self.plan.dimension).astype(np.float32)


@pytest.fixture
def new_bench() -> Callable[..., Bench]:
    """A function that makes a bench; keywords are HostSettings', `plan` is for make_plan."""

    def make(
        rounds: int = 3,
        dimension: int = 1500,
        plan: dict[str, Any] | None = None,
        keys: tuple[str, ...] = (),
        **settings: Any,
    ) -> Bench:
        base: dict[str, Any] = {
            "local_steps": 1,
            "learning_rate": 0.1,
            "frame_mtu": 164,
            "announce_s": 10,
        }
        base |= {"rounds": rounds, "up_zeros": 0.5, **(plan or {})}
        made = make_plan(dimension, **base)
        state = new_host_state(dimension)
        fleet = Keys(*keys) if keys else None
        security = OPEN if fleet is None else fleet.security(HOST)
        chosen = HostSettings(**settings)
        host = HostProtocol(
            plan=made, settings=chosen, model_hash=MODEL, run=RUN, state=state, security=security
        )
        bench = Bench(made, host, keys=fleet)
        host.start(bench.now)
        return bench

    return make
