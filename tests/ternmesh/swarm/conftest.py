"""One host and its nodes, joined by a wire that a test holds in its hands."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from ternmesh.plan import Plan, make_plan
from ternmesh.swarm import member, records
from ternmesh.swarm.coordinator import ALL, Coordinator
from ternmesh.swarm.member import HOST, Member
from ternmesh.swarm.records import MemberState, Settings

MODEL = bytes(range(32))
RUN = b"run-id-8"


@dataclass
class Bench:
    """`events` and `sent` collect what an endpoint said, by its name."""

    plan: Plan
    host: Coordinator
    nodes: dict[str, Member] = field(default_factory=dict)
    events: dict[str, list[object]] = field(default_factory=dict)
    sent: dict[str, list[tuple[str, bytes]]] = field(default_factory=dict)
    now: float = 100.0

    def add(self, name: str, samples: int = 10, state: MemberState | None = None) -> Member:
        state = state or member.new_state(self.plan.dimension)
        rng = np.random.default_rng(len(self.nodes))
        node = Member(name, MODEL, samples, name.encode().ljust(8), state, rng)
        self.nodes[name] = node
        node.start(self.now)
        return node

    def take(self, name: str) -> list[tuple[str, bytes]]:
        """What an endpoint wants to send now, after its events."""
        endpoint = self.host if name == HOST else self.nodes[name]
        while (event := endpoint.next_event()) is not None:
            self.events.setdefault(name, []).append(event)
        frames = [(p, f) for p, group in endpoint.frames_to_send(self.now) for f in group]
        self.sent.setdefault(name, []).extend(frames)
        return frames

    def exchange(self) -> None:
        """Carry everything to and fro until nobody has anything to say."""
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
        for endpoint in (self.host, *self.nodes.values()):
            due = endpoint.next_timeout()
            if due is not None and due <= self.now:
                endpoint.handle_timeout(self.now)

    def last(self, name: str, kind: type) -> object:
        return [event for event in self.events[name] if isinstance(event, kind)][-1]

    def count(self, name: str, kind: type) -> int:
        return sum(isinstance(event, kind) for event in self.events.get(name, []))

    def delta(self, seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        return rng.normal(0, 0.01, self.plan.dimension).astype(np.float32)


@pytest.fixture
def new_bench() -> Callable[..., Bench]:
    """A function that makes a bench; keywords are those of Settings, `plan` those of make_plan."""

    def make(
        rounds: int = 3,
        dimension: int = 1500,
        plan: dict[str, Any] | None = None,
        **settings: object,
    ) -> Bench:
        base = {"local_steps": 1, "learning_rate": 0.1, "frame_mtu": 164, "announce_s": 10}
        base |= {"rounds": rounds, "up_zeros": 0.5, **(plan or {})}
        made = make_plan(dimension, **base)
        state = records.new_state(dimension)
        host = Coordinator(made, Settings(**settings), MODEL, RUN, state)  # type: ignore[arg-type]
        bench = Bench(made, host)
        host.start(bench.now)
        return bench

    return make
