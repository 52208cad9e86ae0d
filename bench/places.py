"""Sixty boards in four places: how long rounds last with and without regions, and after a death.

The real hosts, aggregators and boards in virtual time, each fleet in a process of its own:

    python -m bench.places star|drawn|latency SEED

Boards have the host (star), an aggregator by lot, or choose the nearest. One aggregator dies for
good in the middle. Between places a message takes 40 to 150 ms, within one 5 ms, with jitter;
boards train for 2 to 6 s. What is learned is noise: only time is measured.
"""

import heapq
import itertools
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from host.upstream import Upstream, settings_below
from ternmesh.federated.events import AddedUp, GlobalUpdateMade, WorkReady
from ternmesh.federated.grouping import Grouping
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.joining import NodeSettings
from ternmesh.federated.node import NodeProtocol
from ternmesh.federated.state import HostSettings, NodeState, new_host_state, new_node_state
from ternmesh.plan import make_plan
from ternmesh.timers import earliest
from ternmesh_service.keyring import NoKeyring
from transports.base import ALL, HOST, Arrival
from transports.driver import Driver

BOARDS, PLACES, DEATH_S, END_S = 60, 4, 600.0, 1000.0
DEADLINE_S, DEADLINE_BELOW_S = 60.0, 20.0
MODEL = bytes(32)
PLAN = make_plan(256, rounds=9999, local_steps=1, learning_rate=0.1, announce_s=30)


class World:
    """The clock, and messages on their way."""

    def __init__(self, seed: int) -> None:
        self.rng, self.now = np.random.default_rng(seed), 0.0
        far_s = np.triu(self.rng.uniform(0.04, 0.15, (PLACES, PLACES)), 1)
        self._delay_s = far_s + far_s.T + 0.005 * np.eye(PLACES)
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def after(self, wait_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + wait_s, next(self._order), action))

    def delay_s(self, one: int, other: int) -> float:
        return float(self._delay_s[one, other] * self.rng.uniform(0.9, 1.3))

    def step(self, served: "Sequence[Served | Board]") -> None:
        """Go on to what is due next, and serve all."""
        timers = [timer for one in served if (timer := one.next_timeout()) is not None]
        self.now = max(self.now, min([self.now + 1.0, *timers, *(due[0] for due in self._due[:1])]))
        while self._due and self._due[0][0] <= self.now:
            heapq.heappop(self._due)[2]()
        for one in served:
            one.poll()


class End:
    """One end of a hub, where messages take their time."""

    connected, mtu = True, 4096

    def __init__(self, world: World, hub: "dict[str, End]", name: str, place: int) -> None:
        self._world, self._hub, self._name, self._place = world, hub, name, place
        self.inbox: list[Arrival] = []
        self._last_s: dict[str, float] = {}  # when the newest message to each arrives
        hub[name] = self

    def send(self, peer: str, frames: Sequence[bytes]) -> int:
        message = Arrival(self._name, tuple(frames), sum(map(len, frames)))
        for name, end in self._hub.items():
            if name == peer or (peer == ALL and name != HOST):
                wait_s = self._world.delay_s(self._place, end._place)
                arrives = max(self._world.now + wait_s, self._last_s.get(name, 0.0))
                self._last_s[name] = arrives  # in order, as with a broker
                wait_s = arrives - self._world.now
                self._world.after(wait_s, lambda end=end: end.inbox.append(message))  # type: ignore[misc]
        return message.wire_bytes

    def receive(self, _timeout_s: float) -> Arrival | None:
        return self.inbox.pop(0) if self.inbox else None


def new_node(
    world: World, name: str, state: NodeState, *, has_aggregator: bool = False
) -> NodeProtocol:
    settings = NodeSettings(name, MODEL, name.encode().ljust(8)[:8], has_aggregator=has_aggregator)
    return NodeProtocol(settings, state, samples=10, rng=world.rng)


class Served:
    """The host, or an aggregator below `top`."""

    def __init__(self, world: World, name: str, place: int, top: "Served | None" = None) -> None:
        self.world, self.name, self.place = world, name, place
        self.hub: dict[str, End] = {}
        self.rounds: list[tuple[float, int]] = []  # when each ended, and what it counted
        self.upstream: Upstream | None = None
        settings = HostSettings(1, DEADLINE_S)
        if top is not None:
            settings = settings_below(HostSettings(1, DEADLINE_BELOW_S))
            given: Any = {
                "store": SimpleNamespace(record=lambda _event: None, commit=lambda: None),
                "transport": End(world, top.hub, name, place),
            }
            node = new_node(world, name, new_node_state(PLAN.dimension))
            self.upstream = Upstream(
                node=node, keyring=NoKeyring(), members=None, clock=lambda: world.now, **given
            )
            node.start(world.now)
        self.host = HostProtocol(
            plan=PLAN,
            settings=settings,
            model_hash=MODEL,
            run=bytes(range(8)),
            state=new_host_state(PLAN.dimension),
        )
        end: Any = End(world, self.hub, HOST, place)
        self._driver: Driver[Any] = Driver(self.host, end, lambda: world.now)
        self.host.start(world.now)

    def next_timeout(self) -> float | None:
        above = None if self.upstream is None else self.upstream.next_timeout()
        return earliest(self.host.next_timeout(), above)

    def poll(self) -> None:
        self._driver.poll(0.0, self._note, lambda: None)
        if self.upstream is not None:
            self.upstream.turn(self.host, self.world.now)

    def _note(self, event: object) -> None:
        if isinstance(event, GlobalUpdateMade):
            nodes = self.host.nodes
            counted = sum(max(1, nodes[row.address].members) for row in event.counted)
            self.rounds.append((self.world.now, counted))
        elif isinstance(event, AddedUp) and self.upstream is not None:
            self.upstream.take(event)


class Board:
    """A board that trains for some seconds, and may go to another host."""

    def __init__(
        self, world: World, number: int, hosts: dict[str, Served], at: str, alive: set[str]
    ) -> None:
        self.name, self.place, self._world = f"board-{number}", number % PLACES, world
        self._hosts, self._alive = hosts, alive
        self.grouping = Grouping(at, world.rng, world.now)
        self._go(at, new_node_state(PLAN.dimension))

    def _go(self, name: str, state: NodeState) -> None:
        self.node = new_node(self._world, self.name, state, has_aggregator=name != HOST)
        self._end = End(self._world, self._hosts[name].hub, self.name, self.place)
        transport: Any = self._end
        self._driver: Driver[Any] = Driver(self.node, transport, lambda: self._world.now)
        self.node.start(self._world.now)
        self._has_work = True

    def next_timeout(self) -> float | None:
        return self.node.next_timeout()

    def poll(self) -> None:
        due = self.next_timeout()
        if self._end.inbox or self._has_work or (due is not None and due <= self._world.now):
            self._has_work = False
            self._driver.poll(0.0, self._note, lambda: None)

    def _submit(self, node: NodeProtocol, number: int, delta: np.ndarray) -> None:
        node.submit(number, delta, self._world.now)
        self._has_work = True

    def _note(self, event: object) -> None:
        if isinstance(event, WorkReady):
            node = self.node
            delta = self._world.rng.normal(0, 0.01, PLAN.dimension).astype(np.float32)
            trained_s = float(self._world.rng.uniform(2, 6))
            self._world.after(trained_s, lambda: self._submit(node, event.round, delta))

    def look(self) -> None:
        """Choose, by round trips as they are now; a dead one does not answer."""
        now, grouping = self._world.now, self.grouping
        if not grouping.is_due(self.node, now):
            return
        seen: dict[str, Any] = {}
        for name, served in self._hosts.items():
            trip_s = 2 * self._world.delay_s(self.place, served.place)
            look = SimpleNamespace(trip_s=trip_s if name in self._alive else math.inf)
            seen[name] = SimpleNamespace(
                joining=look, run=served.host.run, target=served.host.version
            )
        self.node.joining.trip_s = seen[grouping.name].joining.trip_s
        chosen = grouping.choose(seen | {grouping.name: self.node}, now)
        if chosen != grouping.name:
            node, pending = self.node, self.node.pending
            if pending is not None:
                pending = replace(pending, sent_to=grouping.stays_at(node))
            state = NodeState(
                model_q24=node.model_q24,
                residual=node.residual,
                run=node.run,
                plan=node.plan,
                version=node.version,
                global_hash=node.global_hash,
                pending=pending,
                chain=tuple(node.chain.newest_first())[::-1],
            )
            grouping.begin(chosen, node.version, now)
            node.joining.say_away(node.version)
            self._driver.poll(0.0, lambda _event: None, lambda: None)
            self._go(chosen, state)


def run(arm: str, seed: int) -> dict[str, float]:
    """The 95th percentile of the time of a round before and after the death of an aggregator."""
    world = World(seed)
    top = Served(world, HOST, 0)
    names = [] if arm == "star" else [f"region-{place}" for place in range(PLACES)]
    below = {name: Served(world, name, place, top) for place, name in enumerate(names)}
    alive, hosts = set(below), below if below else {HOST: top}
    at = [str(world.rng.choice([*hosts])) for _ in range(BOARDS)]
    boards = [Board(world, number, hosts, at[number], alive) for number in range(BOARDS)]
    while world.now < END_S:
        dead = [names[-1]] if names and world.now > DEATH_S else []
        alive -= {*dead}
        world.step([top, *(below[name] for name in alive), *boards])
        for board in boards if arm == "latency" else ():
            board.look()
    ends = np.array([end for end, _ in top.rounds])
    counted = np.array([count for _, count in top.rounds])
    times_s, at_s = np.diff(ends), ends[1:]
    calm = (at_s > DEATH_S / 2) & (at_s < DEATH_S)
    whole = at_s[(at_s > DEATH_S) & (counted[1:] == BOARDS)]
    return {
        "p95_s": float(np.percentile(times_s[calm], 95)),
        "p95_after_s": float(np.percentile(times_s[at_s > DEATH_S], 95)),
        "counted_after": float(counted[1:][at_s > DEATH_S].mean()),
        "all_back_s": float(whole[0] - DEATH_S) if names and whole.size else math.inf,
    }


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], int(sys.argv[2]))))
