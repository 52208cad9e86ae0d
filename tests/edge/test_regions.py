"""Boards that go from one aggregator to another: nothing counts twice, and nothing is lost."""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from edge.config import NodeConfig
from edge.regions import Regions
from ternmesh.codec.scale import to_vector
from ternmesh.config import ConfigError
from ternmesh.federated.aggregation import update_delta_q24
from ternmesh.federated.events import AddedUp, Advanced, GlobalUpdateMade, UpdateMade, WorkReady
from ternmesh.federated.grouping import ANNOUNCES_LOST, LOOK_SOON_S, STREAK, Grouping
from ternmesh.federated.joining import NodeSettings
from ternmesh.federated.node import NodeProtocol
from ternmesh.federated.state import new_node_state
from ternmesh_store.node_store import NodeStore
from tests.host.test_service import MODEL
from tests.host.test_upstream import BARN, BOARDS, DIMENSION, LONG, PLAN, SHED, Fleet
from transports.base import HOST
from transports.driver import Driver
from transports.factory import check_link
from transports.link_config import LinkConfig

LINK = LinkConfig("mqtt://unused.example", "garden", aggregators={SHED: "", BARN: "", HOST: ""})


class Crash(Exception):
    """A board has lost its power."""


class Moving(Fleet):
    """The same fleet; its boards have disks, and a ledger says where each update has counted."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.regions: dict[str, Regions] = {}
        self.stores: dict[str, NodeStore] = {}
        self.made: dict[tuple[str, int], tuple[np.ndarray, np.ndarray]] = {}  # delta, carried
        self.believed: dict[tuple[str, int], bool] = {}  # whether the board says that it counts
        self.sums: dict[tuple[bytes, int], list[str]] = {}  # boards, by root and round
        self.counted: Counter[tuple[str, int]] = Counter()
        self.staged: defaultdict[str, list[object]] = defaultdict(list)  # not on disk yet
        self.doomed: set[str] = set()  # boards that lose their power at the next commit
        super().__init__(folder, stack, LONG)

    def serve(self, *given: Any) -> Any:
        service = super().serve(*given)
        handle = service._handle

        def note(event: object) -> None:
            host = service.protocol
            if isinstance(event, AddedUp):
                rows = host.added_up.rows
                self.sums[event.root, event.round] = [host.nodes[a].name for a in rows]
            if isinstance(event, GlobalUpdateMade) and not host.settings.is_aggregator:
                for row in event.counted:
                    names = (
                        self.sums[row.root, row.round]
                        if row.root
                        else [host.nodes[row.address].name]
                    )
                    self.counted.update((name, row.round) for name in names)
            handle(cast(Any, event))

        service._handle = note  # type: ignore[method-assign]
        return service

    def join(self, name: str, below: str) -> None:
        config = cast(NodeConfig, SimpleNamespace(name=name, link=LINK))
        self.regions[name] = Regions(config, self.rings[name])
        self.sit(name)
        self.go(name, below or HOST)

    def sit(self, name: str) -> None:
        """Start a board from its disk."""
        state = self.rings[name].state
        if not state.is_open:
            state.open(keep=())
        store = self.stores[name] = NodeStore(state)
        link, last = self.regions[name].begin(store, store.load(MODEL, DIMENSION))
        end = self.hubs[link.aggregator].node(name)
        end.open()
        node = NodeProtocol(
            NodeSettings(name, MODEL, bytes(8), has_aggregator=bool(link.aggregator)),
            last,
            samples=10,
            rng=np.random.default_rng(2),
            security=self.rings[name].security(
                name, MODEL, last.counter, aggregator=link.aggregator
            ),
        )
        self.boards[name] = Driver(node, end, lambda: self.now)
        node.start(self.now)

    def crash(self, name: str) -> None:
        """Cut its power: what no commit has put on disk is gone."""
        self.boards[name].transport.close()
        self.rings[name].state.close()
        self.sit(name)

    def go(self, name: str, to: str, *, dies: bool = False) -> None:
        """A move; with `dies`, the power goes before it is on disk."""
        node: Any = self.boards[name].endpoint
        if dies:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(self.stores[name], "commit", lambda: None)
                self.regions[name].go_to(to, node)
        else:
            self.regions[name].go_to(to, node)
        self.crash(name)

    def work(self, name: str, event: object) -> None:
        self.stores[name].record(cast(Any, event))
        self.rings[name].record(event)
        node: Any = self.boards[name].endpoint
        self.staged[name].append(event)
        if isinstance(event, WorkReady):
            node.submit(event.round, self.delta(name, event.round), self.now)

    def delta(self, name: str, number: int) -> np.ndarray:
        rng = np.random.default_rng((ord(name[0]), number))
        return rng.normal(0, 0.01, DIMENSION).astype(np.float32)

    def commit(self, name: str) -> None:
        """What is on disk counts; a board that is doomed loses its power just before that."""
        events, self.staged[name] = self.staged[name], []
        if name in self.doomed:
            self.doomed.discard(name)
            self.crash(name)
            raise Crash
        self.stores[name].commit()
        for event in events:
            if isinstance(event, UpdateMade):
                done = event.pending
                carried = update_delta_q24(done.bodies[1:], MODEL, done.round, self.plan)
                self.made[name, done.round] = self.delta(name, done.round), to_vector(carried)
            elif isinstance(event, Advanced):
                self.believed[name, event.version - 1] = event.counts_own

    def turn(self) -> bool:
        moved = [service.poll(0.0) for service in list(self.hosts.values())]
        for name, driver in list(self.boards.items()):
            with suppress(Crash):
                moved.append(driver.poll(0.0, partial(self.work, name), partial(self.commit, name)))
        return any(moved)

    def check(self, lost: int = 0) -> None:
        """No update counts twice. At most `lost` are taken for counted and were not."""
        assert max(self.counted.values()) == 1
        believed = {key for key, counts in self.believed.items() if counts}
        made = {key for key in self.made if key in self.believed}
        assert believed >= {key for key in self.counted if key in made}
        assert len(believed - self.counted.keys()) <= lost
        for name, driver in self.boards.items():
            node: Any = driver.endpoint
            held = node.residual if node.pending is None else node.pending.corrected
            own = [key for key in self.made if key[0] == name]
            whole = sum(self.made[key][0].astype(float) for key in own)
            counted = sum(self.made[key][1].astype(float) for key in own if key in believed)
            np.testing.assert_allclose(held + counted, whole, atol=2e-4)
            assert node.version >= self.top.version - 1


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Moving]:
    with ExitStack() as stack:
        yield Moving(tmp_path, stack)


def test_boards_of_a_dead_aggregator_go_on_with_another_one(fleet: Moving) -> None:
    fleet.live(40)
    fleet.kill(SHED)
    fleet.live(5)
    for name in BOARDS[SHED]:
        fleet.go(name, BARN)
    before = fleet.top.version
    fleet.live(90)
    assert fleet.top.version > before + 3
    fleet.check()
    late = [key for key in fleet.counted if key[1] > before + 1]
    assert {name for name, _ in late} == set(fleet.boards)


def test_boards_that_all_wait_for_a_dead_aggregator_go_on(fleet: Moving) -> None:
    fleet.boards = {name: fleet.boards[name] for name in BOARDS[SHED]}
    fleet.top.settings = replace(fleet.top.settings, min_peers=1)
    fleet.live(30)
    fleet.upstreams[SHED].take = lambda made: None  # type: ignore[method-assign]
    fleet.live(5)
    fleet.kill(SHED)
    for name in BOARDS[SHED]:
        fleet.go(name, BARN)
    before = fleet.top.version
    fleet.live(30)
    assert fleet.top.version == before
    for name in BOARDS[SHED]:
        node: Any = fleet.boards[name].endpoint
        assert fleet.regions[name].grouping.settled(node, 0.0) is None
        residual = fleet.regions[name].grouping.settled(node, math.inf)
        assert residual is not None
        fleet.stores[name].settle(residual)
        fleet.crash(name)
    fleet.live(60)
    assert fleet.top.version > before + 3


@pytest.mark.parametrize(
    "seed",
    [pytest.param(n, marks=[] if n == 1 else pytest.mark.nightly) for n in (1, 3, 5, 7, 9, 21)],
)
def test_moves_and_kills_at_any_time_count_nothing_twice(fleet: Moving, seed: int) -> None:
    rng = random.Random(seed)
    names, places = [*fleet.boards], [SHED, BARN, HOST]
    for _ in range(45):
        fleet.live(rng.randint(1, 2))
        for _ in range(rng.randint(0, 9)):
            fleet.turn()
        match rng.randrange(6):
            case 0 | 1 | 2:
                fleet.go(rng.choice(names), rng.choice(places), dies=rng.random() < 0.2)
            case 3:
                fleet.doomed.add(rng.choice(names))
            case 4:
                away = rng.choice([SHED, BARN])
                fleet.kill(away)
                fleet.live(rng.randint(0, 12))
                fleet.boot(away)
            case 5:
                end = fleet.upstreams[rng.choice([SHED, BARN])].transport
                end.close()
                fleet.live(rng.randint(5, 25))
                end.open()
    for name in names:
        fleet.go(name, BARN)
    fleet.doomed.clear()
    fleet.live(60)
    fleet.check(lost=3)


class Answers:
    """What a look at a host shows: how long the answer took, and its version."""

    def __init__(self, trip_s: float, version: int = 9, **more: Any) -> None:
        self.joining = SimpleNamespace(trip_s=trip_s, heard_at=0.0)
        self.run, self.target, self.version = b"run", version, version
        self.plan, self.pending, self.joined = PLAN, None, True
        vars(self).update(more)


def moves(grouping: Grouping, seconds: int, see: Callable[[float], dict[str, Any]]) -> list[Any]:
    """When a board goes where, while it is heard of at once if `see` says so."""
    found = []
    for now in range(seconds):
        seen = see(now)
        if grouping.is_due(seen[grouping.name], now):
            chosen = grouping.choose(seen, now)
            if chosen != grouping.name:
                found.append((now, chosen))
                grouping.begin(chosen, seen[chosen].version, now)
    return found


def heard(now: float, **trips_s: float) -> dict[str, Any]:
    found: dict[str, Any] = {name: Answers(trip_s) for name, trip_s in trips_s.items()}
    for one in found.values():
        one.joining.heard_at = now
    return found


@pytest.mark.parametrize("seed", range(5))
def test_a_board_goes_to_what_is_clearly_nearer_and_stays(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def see(now: float) -> dict[str, Any]:
        jitter = rng.uniform(0.9, 1.1, 3)
        return heard(now, barn=0.2 * jitter[0], shed=0.1 * jitter[1], host=0.12 * jitter[2])

    found = moves(Grouping("barn", rng, 0.0), 20_000, see)
    assert [name for _, name in found] == ["shed"]
    assert found[0][0] >= (STREAK - 1) * LOOK_SOON_S * 0.75


def test_one_slow_answer_moves_nobody() -> None:
    def see(now: float) -> dict[str, Any]:
        return heard(now, barn=0.9 if now < 5 else 0.1, shed=0.1)

    assert not moves(Grouping("barn", np.random.default_rng(1), 0.0), 5000, see)


def test_one_that_is_silent_is_left_and_not_by_all_at_once() -> None:
    def see(now: float) -> dict[str, Any]:
        seen = heard(min(now, 100), barn=math.inf if now > 100 else 0.1, shed=0.1, host=math.inf)
        return seen | {"shed": heard(now, shed=0.1)["shed"]}

    found = [moves(Grouping("barn", np.random.default_rng(n), 0.0), 500, see) for n in range(20)]
    assert {tuple(name for _, name in one) for one in found} == {("shed",)}
    left = [one[0][0] for one in found]
    assert min(left) >= 100 + ANNOUNCES_LOST * PLAN.announce_s
    assert len(set(left)) > 5


def test_one_that_is_behind_the_others_is_left() -> None:
    def see(now: float) -> dict[str, Any]:
        seen = heard(now, barn=0.1, shed=0.1)
        seen["shed"].target = 12
        return seen

    assert moves(Grouping("barn", np.random.default_rng(1), 0.0), 500, see)[0][1] == "shed"


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("shed", {"version": 8, "target": 8}),  # it is behind
        ("shed", {"run": b"other"}),
        ("barn", {"pending": object()}),  # an update waits
    ],
)
def test_what_holds_a_board_with_its_host(name: str, more: dict[str, Any]) -> None:
    def see(now: float) -> dict[str, Any]:
        seen = heard(now, barn=0.5, shed=0.1)
        vars(seen[name]).update(more)
        return seen

    assert not moves(Grouping("barn", np.random.default_rng(1), 0.0), 5000, see)


def test_a_look_registers_nobody(fleet: Moving) -> None:  # R6.5-17
    fleet.live(3)
    end = fleet.hubs[BARN].node("ada")
    fleet.boards["ada"].transport.close()
    end.open()
    security = fleet.rings["ada"].security("ada", MODEL, 1 << 20, aggregator=BARN)
    settings = NodeSettings("ada", MODEL, bytes(8))
    look = NodeProtocol(
        settings,
        new_node_state(DIMENSION),
        samples=0,
        rng=np.random.default_rng(1),
        security=security,
    )
    fleet.boards = {"look": Driver(look, end, lambda: fleet.now)}
    fleet.stores["look"] = cast(Any, SimpleNamespace(commit=lambda: None))
    fleet.work = lambda *_: None  # type: ignore[method-assign]
    look.start(fleet.now)
    fleet.live(3)
    assert look.joining.trip_s < math.inf
    assert (look.run, look.target) == (fleet.top.run, fleet.top.version)
    assert fleet.hosts[BARN].protocol.nodes.named("ada") is None


def test_links_lead_to_each_aggregator_and_to_the_host() -> None:
    link = replace(LINK, aggregators={SHED: "mqtt://shed.example", HOST: ""})
    assert link.toward(SHED) == LinkConfig("mqtt://shed.example", "garden", aggregator=SHED)
    assert link.toward(HOST) == LinkConfig("mqtt://unused.example", "garden")
    check_link(link, "ada")
    for wrong in (
        replace(link, aggregator=BARN),
        replace(link, aggregators={"not a name": ""}),
        replace(link, aggregators={SHED: "http://shed.example"}),
        replace(link, aggregators={SHED: 7}),
    ):
        with pytest.raises(ConfigError, match=r"link\.aggregators"):
            check_link(wrong, "ada")
    with pytest.raises(ConfigError, match="boards on brokers"):
        check_link(link, HOST)
