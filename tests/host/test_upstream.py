"""Aggregators: what their boards learn counts once, and everybody has one adapter."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from bench.loopback import LoopbackHub
from host.runs import continue_or_begin
from host.service import HostService
from host.upstream import Upstream, settings_below
from ternmesh.errors import WireError
from ternmesh.federated.audit import FIRST, Audits, Shown, read_shown, write_shown
from ternmesh.federated.evaluation import NOT_EVALUATED
from ternmesh.federated.events import AddedUp, Advanced, WorkReady
from ternmesh.federated.joining import NodeSettings
from ternmesh.federated.node import NodeProtocol
from ternmesh.federated.state import HostSettings, new_node_state
from ternmesh.plan import Plan, make_plan
from ternmesh.wire.control import FINISHED
from ternmesh.wire.global_update import Counted, GlobalUpdate
from ternmesh.wire.proof import Proof, RoundRows, Tree, restored
from ternmesh_cli.keys import enrol_fleet
from ternmesh_service.alarms import alarms
from ternmesh_service.keyring import Keyring, SecurityConfig
from ternmesh_service.member_list import MemberListClient
from ternmesh_store.host_store import HostStore
from ternmesh_store.node_store import NodeStore
from ternmesh_store.state_file import StateFile
from tests.host.test_service import MODEL, PACKAGE
from transports.driver import Driver

DIMENSION = 2000
PLAN = make_plan(DIMENSION, rounds=9, local_steps=1, learning_rate=0.1, announce_s=5)
LONG = replace(PLAN, rounds=9999)
TOP, BELOW = HostSettings(min_peers=2, deadline_s=20.0), HostSettings(min_peers=1, deadline_s=10.0)
SHED, BARN = "shed", "barn"
BOARDS = {SHED: ("ada", "bob", "cyd"), BARN: ("dan",), "": ("eve",)}


class Fleet:
    """A host, two aggregators and five boards, with keys, files and loopbacks."""

    def __init__(self, folder: Path, stack: ExitStack, plan: Plan = PLAN) -> None:
        self.folder, self._stack, self.now, self.plan = folder, stack, 1000.0, plan
        boards = {name: folder / name for names in BOARDS.values() for name in names}
        gateways = {SHED: folder / SHED, BARN: folder / BARN}
        enrol_fleet("garden", folder / "host", boards, gateways)
        self.hubs = {name: LoopbackHub() for name in BOARDS}
        self.rings = {name: self.open(name) for name in ("host", *gateways, *boards)}
        self.boards: dict[str, Driver[Any]] = {}
        self.advanced: dict[str, list[Advanced]] = {name: [] for name in boards}
        self.hosts: dict[str, HostService] = {}
        self.upstreams: dict[str, Upstream] = {}
        self.boot_top()
        for name in gateways:
            self.boot(name)
        for below, names in BOARDS.items():
            for name in names:
                self.join(name, below)

    def open(self, name: str, folder: str = "") -> Keyring:
        ring = Keyring(StateFile(self.folder / (folder or name)), SecurityConfig())
        ring.state.open(keep=())
        self._stack.callback(ring.state.close)
        ring.open()
        return ring

    def boot_top(self) -> None:
        ring = self.rings["host"]
        store, end = HostStore(ring.state), self.hubs[""].host()
        end.open()
        stored = continue_or_begin(store, self.plan, PACKAGE)
        self.hosts[""] = self.serve(stored, TOP, store, end, ring, None)

    def serve(self, stored, settings, store, end, ring, upstream) -> HostService:
        service = HostService(
            stored, settings, MODEL, store, end, lambda: self.now, ring, upstream=upstream
        )
        service.start()
        return service

    def boot(self, name: str) -> None:
        """Start an aggregator, or start it again after a kill."""
        ring = self.rings[name]
        if not ring.state.is_open:
            ring.state.open(keep=())
        above = StateFile(self.folder / name / "upstream")
        above.open(keep=())
        self._stack.callback(above.close)
        keys, store, end = ring.twin(above), NodeStore(above), self.hubs[""].node(name)
        end.open()
        state = store.load(MODEL, DIMENSION, b"")
        node = NodeProtocol(
            NodeSettings(name, MODEL, name.encode().ljust(8)),
            state,
            samples=1,
            rng=np.random.default_rng(1),
            security=keys.security(name, MODEL, state.counter),
        )
        clock = lambda: self.now  # noqa: E731
        upstream = Upstream(
            node=node,
            store=store,
            keyring=keys,
            members=MemberListClient(ring),
            transport=cast(Any, end),
            clock=clock,
        )
        node.start(self.now)
        while node.plan is None:
            self.now += 1.0
            upstream.poll()
            self.hosts[""].poll(0.0)
        own, below = HostStore(ring.state), self.hubs[name].host()
        below.open()
        stored = continue_or_begin(own, PLAN, PACKAGE, followed=upstream.run)
        self.hosts[name] = self.serve(stored, settings_below(BELOW), own, below, ring, upstream)
        self.upstreams[name] = upstream

    def kill(self, name: str) -> None:
        """Lose what no commit has put on disk."""
        self.rings[name].state.close()
        self.upstreams[name]._store._database.close()
        self.hosts.pop(name).driver.transport.close()
        self.upstreams.pop(name).transport.close()

    def join(self, name: str, below: str) -> None:
        end = self.hubs[below].node(name)
        end.open()
        node = NodeProtocol(
            NodeSettings(name, MODEL, name.encode().ljust(8), has_aggregator=bool(below)),
            new_node_state(DIMENSION),
            samples=10,
            rng=np.random.default_rng(2),
            security=self.rings[name].security(name, MODEL, 0, aggregator=below),
        )
        self.boards[name] = Driver(node, end, lambda: self.now)
        node.start(self.now)

    def work(self, name: str, event: object) -> None:
        self.rings[name].record(event)
        node: Any = self.boards[name].endpoint
        if isinstance(event, WorkReady):
            rng = np.random.default_rng((len(name), ord(name[0]), event.round))
            node.submit(event.round, rng.normal(0, 0.01, DIMENSION).astype(np.float32), self.now)
        elif isinstance(event, Advanced):
            self.advanced[name].append(event)

    def live(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.now += 1.0
            for _ in range(40):
                if not self.turn():
                    break

    def turn(self) -> bool:
        """Every end does one step."""
        moved = [service.poll(0.0) for service in self.hosts.values()]
        for name, driver in self.boards.items():
            moved.append(driver.poll(0.0, partial(self.work, name), lambda: None))
        return any(moved)

    @property
    def top(self) -> Any:
        return self.hosts[""].protocol

    def check(self) -> None:
        """Everybody has one adapter, and settles what counted of it."""
        assert self.top.version > 0
        for below, host in self.hosts.items():
            for link in host.protocol.chain.newest_first() if below else ():
                rows = restored(link.rows).rows or ()
                counted = {host.protocol.nodes[row.address].name for row in rows}
                settled = {
                    name
                    for name in BOARDS[below]
                    for event in self.advanced[name]
                    if event.version == link.version and event.counts_own
                }
                assert settled == counted, (below, link.version)
        for driver in self.boards.values():
            node: Any = driver.endpoint
            assert node.version == self.top.version
            assert np.array_equal(node.model_q24, self.top.model_q24)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(tmp_path, stack)


def test_boards_behind_aggregators_learn_with_the_others(fleet: Fleet) -> None:
    fleet.live(120)
    fleet.check()
    assert fleet.top.phase == FINISHED
    assert all(event.counts_own for events in fleet.advanced.values() for event in events)
    assert fleet.top.nodes.named(SHED).members == len(BOARDS[SHED])


@pytest.mark.parametrize(
    "turns",
    [pytest.param(n, marks=[] if n % 12 == 1 else pytest.mark.nightly) for n in range(1, 40, 3)],
)
def test_an_aggregator_that_is_killed_goes_on_from_its_disk(fleet: Fleet, turns: int) -> None:
    fleet.live(15)
    fleet.now += 1.0
    for _ in range(turns):
        fleet.turn()
    fleet.kill(SHED)
    fleet.live(3)
    fleet.boot(SHED)
    fleet.live(200)
    fleet.check()
    assert fleet.top.phase == FINISHED


def test_what_does_not_count_above_stays_with_the_boards(tmp_path, caplog) -> None:
    caplog.set_level(logging.ERROR)
    with ExitStack() as stack:
        fleet = Fleet(tmp_path, stack, LONG)
        fleet.live(25)
        fleet.upstreams[SHED].transport.close()  # cut off
        before = fleet.top.version
        fleet.live(40)
        assert fleet.top.version > before  # the others go on after a deadline
        fleet.upstreams[SHED].transport.open()
        fleet.live(60)
        ada: Any = fleet.boards["ada"].endpoint
        assert fleet.top.version - ada.version < 3
        counts = [event.counts_own for event in fleet.advanced["ada"]]
        assert False in counts
        assert all(counts[-9:])


def test_a_board_that_comes_late_gets_the_newest_adapter_with_its_proof(fleet: Fleet) -> None:
    ada = fleet.boards.pop("ada")
    fleet.live(20)
    host = fleet.hosts[SHED].protocol
    host.chain.clear()
    fleet.live(1)
    fleet.boards["ada"] = ada
    fleet.join("ada", SHED)
    fleet.live(200)
    fleet.check()


def test_only_a_gateway_may_send_what_others_learned(fleet: Fleet) -> None:
    node: Any = fleet.boards["eve"].endpoint
    fleet.live(3)
    made = AddedUp(
        round=node.version,
        vector=np.ones(DIMENSION, np.float32),
        samples=10,
        members=9,
        root=bytes(16),
        evaluation=NOT_EVALUATED,
    )
    node.submit = lambda number, _delta, now: node.submit_for_others(
        replace(made, round=number), now
    )
    fleet.live(30)
    assert fleet.top.refused["signature"]
    assert fleet.top.nodes.named("eve").members == 0


def test_an_honest_aggregator_passes_each_audit(fleet: Fleet) -> None:  # R6.8-31
    passed = []
    check = Audits._check

    def counted(*args: Any) -> bytes:
        passed.append(1)
        return check(*args)

    Audits._check = counted  # type: ignore[assignment, method-assign]
    try:
        fleet.live(120)
    finally:
        Audits._check = check  # type: ignore[method-assign]
    fleet.check()
    assert len(passed) >= 2 * FIRST
    assert not fleet.hosts[""].caught


def lie(made: AddedUp, kind: str, node: NodeProtocol) -> AddedUp:
    """What a lying aggregator gives in place of what its boards' updates come to."""
    ones = np.full(DIMENSION, 0.02, np.float32)
    match kind:
        case "scaled":
            return replace(made, vector=-3 * made.vector)
        case "invented":
            return replace(made, members=made.members + 1, samples=9 * made.samples)
        case "other rows":
            return replace(made, root=bytes(16))
        case "remainder":
            node.residual = ones
            return made
    return replace(made, vector=ones)


@pytest.mark.parametrize("kind", ["scaled", "invented", "other rows", "remainder", "silent", "own"])
def test_a_lying_aggregator_is_caught_and_muted(fleet: Fleet, kind: str) -> None:
    # R6.8-32, R6.8-33
    upstream = fleet.upstreams[SHED]
    node, take = upstream.node, upstream.take
    if kind == "silent":
        upstream.show = lambda data: None  # type: ignore[method-assign]
    else:
        upstream.take = lambda made: take(lie(made, kind, node))  # type: ignore[method-assign]
    fleet.live(120)
    if kind != "other rows":  # its boards lack proofs: they come later
        fleet.check()
    assert list(fleet.hosts[""].caught) == [SHED]
    assert fleet.hosts[""]._store.muted == [SHED]
    assert any("has lied" in alarm.text for alarm in alarms(fleet.hosts[""].status()))


def test_a_board_that_is_revoked_above_is_shut_out_below(tmp_path: Path) -> None:
    with ExitStack() as stack:
        fleet = Fleet(tmp_path, stack, LONG)
        fleet.live(25)
        ring = fleet.rings["host"]
        ring.member_list.revoke("ada")
        ring.keep_member_list()
        ring.rekey()
        fleet.live(62)  # an aggregator asks once a minute
        shed = fleet.hosts[SHED].protocol
        assert shed.is_excluded("ada")
        assert "ada" not in fleet.rings[SHED].store.member_list().boards()  # on disk
        counted = [restored(link.rows).rows or () for link in shed.chain.newest_first()]
        names = {shed.nodes[row.address].name for row in counted[0]}
        assert names == {"bob", "cyd"}
        ada: Any = fleet.boards["ada"].endpoint
        bob: Any = fleet.boards["bob"].endpoint
        assert ada.version < bob.version  # its key opens no broadcast any more
        assert not fleet.hosts[""].caught  # an aggregator may hear of it later


def test_a_board_that_is_late_does_not_count_after_a_kill(tmp_path: Path) -> None:
    with ExitStack() as stack:
        fleet = Fleet(tmp_path, stack, LONG)
        cyd, late = fleet.boards.pop("cyd"), []
        while fleet.upstreams[SHED].node.pending is None:
            fleet.live(1)  # the round of the aggregator ends without it
        fleet.kill(SHED)
        fleet.boot(SHED)
        fleet.boards["cyd"] = cyd
        fleet.live(60)
        assert not fleet.hosts[""].caught
        for name in ("ada", "bob"):
            late += [event for event in fleet.advanced[name] if not event.counts_own]
        assert late == []


def test_a_muted_board_keeps_its_update(tmp_path: Path) -> None:
    with ExitStack() as stack:
        fleet = Fleet(tmp_path, stack, LONG)
        fleet.live(25)
        fleet.hosts[SHED].protocol.combiner.mute(["ada"])
        fleet.live(5)
        assert not fleet.advanced["ada"][-1].counts_own
        assert fleet.advanced["bob"][-1].counts_own
        assert not fleet.hosts[""].caught


@pytest.mark.parametrize("is_silent_after", [False, True])
def test_who_lies_and_shows_nothing_is_caught(tmp_path: Path, is_silent_after: bool) -> None:
    # R6.8-33
    with ExitStack() as stack:
        fleet = Fleet(tmp_path, stack, LONG)
        upstream = fleet.upstreams[SHED]
        take, rounds = upstream.take, []

        def lying(made: AddedUp) -> None:
            rounds.append(made.round)
            if not (is_silent_after and len(rounds) % 2 == 0):
                take(replace(made, vector=-3 * made.vector))

        upstream.take = lying  # type: ignore[method-assign]
        upstream.show = lambda data: None  # type: ignore[method-assign]
        fleet.live(400)
        assert list(fleet.hosts[""].caught) == [SHED]


def test_an_update_that_lacks_a_part_counts_nothing_of_its_members(tmp_path: Path) -> None:
    # R6.8-34
    cut = make_plan(
        DIMENSION, rounds=9, local_steps=1, learning_rate=0.1, announce_s=5, up_zeros=0.5,
        frame_mtu=164,
    )  # fmt: skip
    assert cut.up.count > 1
    with ExitStack() as stack:
        fleet = Fleet(tmp_path, stack, cut)
        node = fleet.upstreams[SHED].node
        bodies = node._work_bodies
        node._work_bodies = lambda: bodies()[:-1]  # type: ignore[method-assign]
        fleet.live(120)
        assert fleet.top.version > 0
        assert fleet.top.nodes.named(SHED).counted is None


def test_a_proof_for_all_shows_only_what_counts(fleet: Fleet) -> None:  # R4.6-8
    fleet.live(2)
    node: Any = fleet.boards["ada"].endpoint
    pending = SimpleNamespace(round=0, digest=b"1234")
    row = Counted(node.address, 0, b"1234", b"\1")
    shed = Counted(1, 0, b"sums", b"\1", Tree([row]).root)
    made = GlobalUpdate(1, bytes(16), b"", False, 1000, (shed,), ())
    proved = partial(node._reassembler.proved, made, node.address, pending, has_aggregator=True)
    forged = [Proof(1, (9999,), ()), Proof(1, (), ())]
    node._reassembler._proofs[True].extend(8 * forged)  # any member could send these
    assert proved() == (None, b"")
    true = RoundRows(1, (1,), rows=(row,)).proofs([node.address])
    node._reassembler._proofs[True].extend(true)
    assert proved()[0] == (row,)
    node._reassembler._proofs[True].clear()
    node._reassembler._proofs[False].append(forged[0])  # of its aggregator itself
    assert proved()[0] == ()


def test_what_is_shown_keeps_to_its_limits() -> None:  # R6.8-31
    shown = Shown(0, np.zeros(4, np.float32), {1 << 40: ("ada", (b"body",))})
    for data in (write_shown(shown), b"\6", write_shown(replace(shown, boards={}))[:-1]):
        with pytest.raises(WireError):
            read_shown(data, 4)
    with pytest.raises(WireError):
        read_shown(write_shown(replace(shown, boards={})), 5)
