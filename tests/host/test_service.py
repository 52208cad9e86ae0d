"""The host's program over the loopback, with bare protocols for nodes and a number for a clock."""

import logging
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from bench.loopback import LoopbackHub
from host.runs import continue_or_begin
from host.service import HostService
from ternmesh.config import ConfigError
from ternmesh.federated.evaluation import Evaluation, write_values
from ternmesh.federated.events import WorkReady
from ternmesh.federated.joining import NodeSettings
from ternmesh.federated.node import NodeProtocol
from ternmesh.federated.recovery import ASKS_MAX
from ternmesh.federated.refusals import NORMAL_UP_TO, why
from ternmesh.federated.reputation import NodeStanding
from ternmesh.federated.state import HostSettings, new_node_state
from ternmesh.plan import make_plan
from ternmesh.security.authenticator import OPEN, SecurityLayer
from ternmesh.timers import NETWORK_TIMERS
from ternmesh.wire import control
from ternmesh_cli.status_text import describe
from ternmesh_service.control_socket import RETURN
from ternmesh_store.database import StoreError
from ternmesh_store.host_store import HostStore
from ternmesh_store.state_file import StateFile
from transports.base import Transport
from transports.driver import Driver

MODEL = bytes(range(32))
PACKAGE: Any = SimpleNamespace(model_hash=lambda: MODEL, adapter_key=lambda: bytes(96))
DIMENSION = 2000
PLAN = make_plan(DIMENSION, rounds=3, local_steps=1, learning_rate=0.1, announce_s=5)
SETTINGS = HostSettings(min_peers=2, deadline_s=60.0)
NAMES = ("ada", "bob")


class Bench:
    """A hub, a host on a real store, and nodes in memory."""

    def __init__(self, state, keyring=None) -> None:
        self.state, self.keyring = state, keyring
        self.now = 1000.0
        self.hub = LoopbackHub()
        self.nodes: dict[str, Driver[Any]] = {}
        self.service: Any = None
        self.transport: Transport | None = None
        self.boot()

    def boot(self, plan=PLAN, *, package=PACKAGE, **options: Any) -> None:
        """Start the host, or start it again after a kill."""
        if self.service is not None:
            self.state.close()
            self.transport.close()
        if not self.state.is_open:
            self.state.open()
        self.store = HostStore(self.state)
        self.transport = self.hub.host()
        self.transport.open()
        stored = continue_or_begin(self.store, plan, package, **options)
        clock = lambda: self.now  # noqa: E731
        self.service = HostService(
            stored, SETTINGS, package.model_hash(), self.store, self.transport, clock, self.keyring
        )
        self.service.start()
        self.service.poll(0.0)

    def join(self, name: str, security: SecurityLayer = OPEN, model: bytes = MODEL) -> None:
        rng, state = np.random.default_rng(0), new_node_state(DIMENSION)
        member = NodeProtocol(
            NodeSettings(name, model, name.encode().ljust(8)),
            state,
            samples=100,
            rng=rng,
            security=security,
        )
        end = self.hub.node(name)
        end.open()
        self.nodes[name] = Driver(member, end, lambda: self.now)
        member.start(self.now)

    def meet(self, *names: str) -> None:
        """Boards join, and all is done that can be done before the clock goes on."""
        for name in names:
            self.join(name)
        self.settle()

    def submit_all(self) -> None:
        """Each board trains for the round that is open."""
        for driver in self.nodes.values():
            Bench.work(self, driver, WorkReady(cast(NodeProtocol, driver.endpoint).version))

    def settle(self) -> None:
        """Poll until nothing is left to do before the clock goes on."""
        moved = True
        while moved:
            moved = self.service.poll(0.0)
            for driver in self.nodes.values():
                moved |= driver.poll(0.0, partial(self.work, driver), lambda: None)

    def live(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1.0
            self.settle()

    def work(self, driver: Driver[Any], event) -> None:
        if isinstance(event, WorkReady):
            delta = np.full(DIMENSION, 0.01, np.float32)
            cast(NodeProtocol, driver.endpoint).submit(event.round, delta, self.now)

    def node(self, name: str) -> Any:
        return next(node for node in self.service.status().nodes if node.name == name)

    def stranger(self, name: str, *messages: bytes) -> None:
        """A peer that sends arbitrary frames."""
        end = self.hub.node(name)
        end.open()
        for message in messages:
            end.send("host", [message])
            self.service.poll(0.0)


@pytest.fixture
def bench(tmp_path):
    bench = Bench(StateFile(tmp_path))
    yield bench
    bench.state.close()


def test_the_owner_goes_back_and_a_killed_host_goes_on_from_there(bench, caplog):
    caplog.set_level(logging.INFO)
    bench.boot(replace(PLAN, rounds=9), new_run=True)
    work = bench.work
    bench.work = lambda driver, event: (
        work(driver, event) if getattr(event, "round", 9) in (0, 1, 3) else None
    )
    for name in NAMES:
        bench.join(name)
    bench.live(1)
    assert "no version 2 before 2" in bench.service.manage({RETURN: 2})["error"]
    assert bench.service.manage({RETURN: 1}) == {"said": "global update 3 goes back to version 1"}
    bench.settle()
    assert caplog.messages[-2:] == [
        "global update 3 goes back to version 1",
        "global update 4 of 9 counts ada, bob",
    ]
    assert "global update 3 goes back to version 1" in list(describe(bench.service.status()))
    bench.boot(replace(PLAN, rounds=9))
    host = bench.service.protocol
    assert host.version == 4
    bench.live(20)
    for driver in bench.nodes.values():
        assert np.array_equal(driver.endpoint.model_q24, host.model_q24)
    assert "taken back" in bench.service.manage({RETURN: 2})["error"]
    assert bench.service.manage({RETURN: 1}) == {"said": "global update 5 goes back to version 1"}


def test_a_run_to_its_end_with_its_log_and_every_byte_in_some_round(bench, caplog):
    caplog.set_level(logging.INFO)
    bench.meet(*NAMES)
    assert caplog.messages[-6:] == [
        "ada takes part with 100 samples",
        "bob takes part with 100 samples",
        "round 1 of 3 is open for 60 s",
        "global update 1 of 3 counts ada, bob",
        "global update 2 of 3 counts ada, bob",
        "global update 3 of 3 counts ada, bob; the run is finished",
    ]
    status = bench.service.status()
    assert (status.phase, status.version, status.deadline_s) == ("finished", 3, None)
    assert [item.version for item in status.history] == [1, 2, 3]
    assert all(item.counted == ("ada", "bob") for item in status.history)
    assert bench.node("bob").rounds_counted == 3
    assert {bench.node(name).influence.share for name in NAMES} == {0.5}
    for name in NAMES:
        up = bench.nodes[name].traffic["host"].bytes_out
        assert sum(item.bytes_up[name] for item in status.history) == up
        assert bench.node(name).bytes_up == up
    # The announcement at the start of the host belongs to no round.
    broadcast = bench.service.driver.traffic["all"].bytes_out
    direct = sum(bench.service.driver.traffic[name].bytes_out for name in NAMES)
    assert sum(item.bytes_down for item in status.history) == broadcast + direct
    assert all(item.bytes_down > 0 for item in status.history)
    hashes = {driver.endpoint.global_hash.hex() for driver in bench.nodes.values()}
    assert hashes == {status.global_hash}


def test_the_status_has_the_figures_of_the_fleet_and_what_each_board_reports(bench):
    def work(driver, event):
        if isinstance(event, WorkReady):
            loss = 0.5 - 0.1 * event.round
            report = Evaluation(loss, 0.75 if driver is bench.nodes["ada"] else None)
            driver.endpoint.evaluation = write_values(report)
            Bench.work(bench, driver, event)

    bench.work = work
    bench.meet(*NAMES)
    status = bench.service.status()
    rows, figures = status.history, status.metrics
    assert [row.reports["ada"] for row in rows] == [(0.5, 0.75), (0.4, 0.75), (0.3, 0.75)]
    assert {row.reports["bob"] for row in rows} == {(0.5, None), (0.4, None), (0.3, None)}
    assert figures.global_loss == pytest.approx(0.3)
    assert figures.convergence_rate == pytest.approx(0.1)
    moved = sum(sum(row.bytes_up.values()) + row.bytes_down for row in rows)
    useful = sum(row.useful_bytes for row in rows)
    assert moved > useful
    assert figures.communication_overhead == pytest.approx(moved / useful)
    assert figures.byzantine_detections == 0
    assert [row.version for row in bench.service.status(since=2).history] == [3]


def test_a_node_that_is_trusted_little_is_told_once_and_so_is_its_return(bench, caplog):
    caplog.set_level(logging.INFO)
    bench.join("ada")
    bench.join("bob")
    known = bench.service.protocol.combiner.aggregation.reputations
    known.first_loss = 1.0
    known.standings = {n: NodeStanding(rise=9.0 * (n == 1), probed=1) for n in (1, 2, 3)}
    known.__post_init__()
    bench.settle()
    assert caplog.text.count("ada counts 0% from now on: excluded: raises the error") == 1
    bench.boot()
    assert bench.node("ada").weight == 0, "it is kept on disk"


def test_a_global_update_is_logged_once_it_is_on_disk(bench, caplog, monkeypatch):
    def full():
        raise StoreError("the disk is full")

    caplog.set_level(logging.INFO)
    bench.work = lambda driver, event: None
    bench.meet(*NAMES)
    del bench.work
    bench.submit_all()
    for driver in bench.nodes.values():
        driver.poll(0.0, lambda event: None, lambda: None)
    monkeypatch.setattr(bench.store, "commit", full)
    with pytest.raises(StoreError):
        bench.settle()
    assert bench.service.protocol.version == 1
    assert "global update 1" not in caplog.text


def test_a_changed_plan_takes_along_what_was_learned_and_says_so(bench, caplog):  # R6.11-1
    bench.meet(*NAMES)
    before, learned = bench.service.status(), bench.service.protocol.model_q24
    residual = bench.service.protocol.residual
    assert learned.any()
    with pytest.raises(ConfigError, match="rounds is 1, and the first round takes along"):
        bench.boot(replace(PLAN, rounds=1))
    bench.boot(replace(PLAN, rounds=4))
    after = bench.service.status()
    assert (after.version, after.phase) == (0, "gathering")
    assert after.carried_from == f"{before.run} 3"
    assert f"run {before.run}, which has reached global update 3" in caplog.text
    shown = "\n".join(describe(after))
    assert f"begun with the adapter of run {before.run}, global adapter 3" in shown
    bench.boot(replace(PLAN, rounds=5))  # before its first global update
    assert np.array_equal(bench.service.protocol.model_q24, learned)
    bench.work = lambda driver, event: None
    with caplog.at_level(logging.INFO):
        bench.live(20)
    host = bench.service.protocol
    assert (host.version, host.phase) == (1, control.OPEN)
    assert np.allclose(host.residual, residual)
    assert "global update 1 of 5 is the adapter of the run before" in caplog.text
    for driver in bench.nodes.values():
        assert np.array_equal(driver.endpoint.model_q24, learned)


def test_a_finished_run_goes_on_with_another_when_told_to(bench, caplog):  # R6.11-1
    bench.meet(*NAMES)
    before, learned = bench.service.status(), bench.service.protocol.model_q24
    bench.boot()
    assert "--continue begins another" in caplog.text
    assert bench.service.status().run == before.run
    bench.boot(after_end=True)
    run = bench.service.status().run
    assert run != before.run
    assert np.array_equal(bench.service.protocol.model_q24, learned)
    bench.boot(after_end=True)  # it goes on: it is not finished
    assert bench.service.status().run == run
    bench.live(20)
    assert bench.service.status().phase == "finished"
    assert bench.service.protocol.model_q24.sum() > learned.sum()


def package_of(model: int, shape: int, graph: int, start: int) -> Any:
    key = b"".join(bytes([number]) * 32 for number in (shape, graph, start))
    return SimpleNamespace(model_hash=lambda: bytes([model]) * 32, adapter_key=lambda: key)


def test_another_model_of_the_same_adapter_takes_along_what_was_learned(bench, caplog):
    # R6.11-1, R6.11-2
    first = package_of(1, 1, 1, 1)
    bench.boot(package=first, new_run=True)  # PACKAGE has learned nothing
    bench.join("ada", model=bytes([1]) * 32)
    bench.join("bob", model=bytes([1]) * 32)
    bench.settle()
    learned = bench.service.protocol.model_q24
    run = bench.service.status().run
    with pytest.raises(ConfigError, match=f"{run}.*global update 3.*other tensors.*--new-run"):
        bench.boot(package=package_of(2, 2, 2, 1))
    bench.boot(package=first)
    assert bench.service.status().run == run
    bench.boot(package=package_of(2, 1, 2, 2))
    assert np.array_equal(bench.service.protocol.model_q24, learned)
    bench.boot(package=package_of(3, 1, 2, 3))
    assert "an adapter of its own" in caplog.text
    assert not bench.service.protocol.model_q24.any()
    assert bench.service.status().carried_from is None


def test_a_new_run_is_begun_with_another_plan_only_and_says_so(bench, caplog):
    bench.meet(*NAMES)
    before = bench.service.status()
    bench.boot(new_run=True)
    assert bench.service.status().run == before.run
    assert "--new-run changes nothing" in caplog.text
    bench.boot(replace(PLAN, rounds=4), new_run=True)
    after = bench.service.status()
    assert after.run != before.run
    assert (after.version, after.phase, after.nodes) == (0, "gathering", ())
    assert f"run {before.run} is given up at global update 3" in caplog.text


def test_an_old_copy_of_the_state_is_spoken_of_loudly(bench, caplog):
    bench.meet(*NAMES)
    for end in ("", "-wal"):
        bench.state.path.with_name(bench.state.path.name + end).unlink(missing_ok=True)
    bench.state.close()
    bench.service = None
    bench.boot()  # with an empty state
    for driver in bench.nodes.values():
        driver.endpoint.chain.clear()  # so no node can give it back
        driver.endpoint.start(bench.now)
    bench.settle()
    assert "come back from its boards" in bench.service.status().behind
    with caplog.at_level(logging.INFO):
        for _ in range(2 * ASKS_MAX):
            bench.now += NETWORK_TIMERS.catch_up_s
            bench.settle()
    assert bench.service.status().refused["ahead"] >= 2
    assert bench.service.status().behind.startswith("ada, bob holds a newer global update")
    errors = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert len(errors) == 2
    assert errors[0].startswith("refused from ada: ahead: the board holds a newer global update")


def test_it_leaves_once_the_run_is_over_and_those_behind_had_their_time(bench):
    bench.work = lambda driver, event: None
    bench.meet(*NAMES)
    bench.now += 1000.0
    assert not bench.service.may_leave()
    del bench.work
    bench.submit_all()
    bench.settle()
    assert not bench.service.may_leave()
    bench.now += PLAN.announce_s + 9.0
    assert not bench.service.may_leave()
    bench.now += 1.0
    assert bench.service.may_leave()


def test_a_first_contact_is_no_refusal(tmp_path, caplog):
    """A host with keys first asks each board for a sign of life: that is no refusal to log."""
    caplog.set_level(logging.INFO)
    bench = Bench(StateFile(tmp_path))
    for reason in ("sync", "seal", "suite"):
        bench.service.protocol.session.refuse("ada", reason, bench.now)
    bench.service.poll(0.0)
    status = bench.service.status()
    assert (status.refused, status.first_contacts) == ({"seal": 1, "suite": 1}, 1)
    records = [record for record in caplog.records if "refused" in record.getMessage()]
    assert {record.levelno for record in records} == {logging.WARNING}
    told = [record.getMessage() for record in records]
    assert told == [f"refused from ada: suite: {why('suite', on_host=True)}"]
    for _ in range(NORMAL_UP_TO):  # what does not end is no first contact
        bench.service.protocol.session.refuse("ada", "seal", bench.now)
    bench.service.poll(0.0)
    assert caplog.messages[-1] == f"refused from ada: seal: {why('seal', on_host=True)}"
