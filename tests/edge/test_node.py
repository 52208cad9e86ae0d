"""Whole nodes over a loopback hub, with a real host and a clock that the test moves."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest

from edge.config import (
    BEST,
    NEWEST,
    DataConfig,
    EvaluateConfig,
    NodeConfig,
    ResourcesConfig,
    TrainingConfig,
)
from edge.data.node_data import open_data
from edge.data.sources import Label, Sample
from edge.errors import DataError, ModelError
from edge.node import RELEASE_AFTER_S, Node
from edge.onnx.session import LoadedModel, adapter_version, read_adapter
from edge.report import status, summary
from edge.service import present_model
from ternmesh.codec.scale import to_float
from ternmesh.federated import robust
from ternmesh.federated.evaluation import Evaluation
from ternmesh.federated.events import GlobalUpdateMade
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.refusals import DIVERGED, NO_ANSWER
from ternmesh.federated.reputation import NodeStanding, Reputations
from ternmesh.federated.state import HostSettings, HostState, new_host_state
from ternmesh.plan import Plan, make_plan
from ternmesh.wire.update import read_manifest
from ternmesh_service.status import to_json
from ternmesh_store.node_store import NodeStore
from ternmesh_store.state_file import StateFile
from transports.driver import Driver
from transports.link_config import LinkConfig
from transports.loopback import LoopbackHub

ROUNDS, STEPS = 6, 10


def make(rounds: int = ROUNDS, steps: int = STEPS) -> Plan:
    return make_plan(
        18, rounds=rounds, local_steps=steps, learning_rate=0.05, up_zeros=0.5, down_zeros=0.5
    )


class Host:
    def __init__(
        self, world: "World", plan: Plan, run: bytes, min_peers: int, state: HostState | None = None
    ) -> None:
        model, settings = (
            world.loaded.package.model_hash(),
            HostSettings(min_peers, deadline_s=60.0),
        )
        self.protocol = HostProtocol(
            plan=plan,
            settings=settings,
            model_hash=model,
            run=run,
            state=state or new_host_state(plan.dimension),
        )
        self.counted: Counter[int] = Counter()  # rounds by address
        self.evaluations: list[Evaluation] = []  # by version of the global adapter
        end = world.hub.host()
        end.open()
        self.driver = Driver(self.protocol, end, lambda: world.now)
        self.protocol.start(world.now)

    def turn(self) -> bool:
        return self.driver.poll(0.0, self._note, lambda: None)

    def _note(self, event: object) -> None:
        if isinstance(event, GlobalUpdateMade):
            self.counted.update(entry.address for entry in event.counted)
            self.evaluations.append(event.evaluation)


class World:
    """A host, nodes by name, and the time."""

    def __init__(self, loaded: LoadedModel, data: dict[str, np.ndarray], folder: Path) -> None:
        self.loaded, self.folder = loaded, folder
        self.hub = LoopbackHub()
        self.now = 1000.0
        self.nodes: dict[str, Node] = {}
        self.opened: dict[str, ExitStack] = {}
        for name, part in (("ada", slice(0, 40)), ("bob", slice(40, 80)), ("dev", slice(80, 96))):
            own: dict[str, Any] = {key: array[part] for key, array in data.items()}
            np.savez(folder / f"{name}.npz", **own)
        self.host = Host(self, make(), b"first   ", 1)

    def new_host(
        self,
        run: bytes = b"first   ",
        min_peers: int = 1,
        plan: Plan | None = None,
        state: HostState | None = None,
    ) -> None:
        self.host = Host(self, plan or make(), run, min_peers, state)

    def config(self, name: str) -> NodeConfig:
        return NodeConfig(
            name=name,
            state_dir=str(self.folder / f"state-{name}"),
            model=str(self.loaded.folder),
            link=LinkConfig("mqtt://unused.example"),
            data=DataConfig(path=str(self.folder / f"{name}.npz")),
            evaluate=EvaluateConfig(path=str(self.folder / "dev.npz")),
            training=TrainingConfig(samples_min=8),
            resources=ResourcesConfig(temperature_max_c=0, memory_pressure_max=0),
        )

    def add(self, name: str, config: NodeConfig | None = None) -> Node:
        config, stack = config or self.config(name), ExitStack()
        file, end = StateFile(Path(config.state_dir)), self.hub.node(name)
        file.open()
        stack.callback(file.close)
        store, package = NodeStore(file), self.loaded.package
        data = open_data(config, package, file)
        state = store.load(package.model_hash(), package.dimension)
        node = Node(config, self.loaded, data, store, state, end, lambda: self.now)
        end.open()
        stack.callback(end.close)
        self.nodes[name], self.opened[name] = node, stack
        node.start()
        return node

    def cut_power(self, name: str) -> None:
        """What was not committed is gone; nothing says goodbye."""
        del self.nodes[name]
        self.opened.pop(name).close()

    def turn(self, names: Sequence[str] | None = None) -> bool:
        moved = self.host.turn()
        for name, node in list(self.nodes.items()):
            if names is None or name in names:
                moved |= node.turn(0.0)
        return moved

    def until(self, done: Callable[[], bool], names: Sequence[str] | None = None) -> None:
        for _ in range(5000):
            if done():
                return
            if not self.turn(names):
                self.now += 1.0
        raise AssertionError("the fleet stands still")

    def close(self) -> None:
        for name in list(self.nodes):
            self.cut_power(name)


@pytest.fixture
def world(tiny, tiny_data, tmp_path) -> Iterator[World]:
    made = World(tiny, tiny_data, tmp_path)
    yield made
    made.close()


def global_adapter(world: World) -> np.ndarray:
    return world.loaded.initial + to_float(world.host.protocol.model_q24)


def test_two_nodes_learn_together_to_the_end(world: World) -> None:
    world.new_host(min_peers=2)
    nodes = [world.add("ada"), world.add("bob")]
    world.until(lambda: all(node.protocol.finished for node in nodes))
    for node in nodes:
        np.testing.assert_array_equal(node.global_adapter, global_adapter(world))
        assert adapter_version(node.config.adapter_path) == ROUNDS
        entries: list[Any] = list(node.evaluation.history)
        assert [entry.version for entry in entries] == list(range(ROUNDS + 1))
        assert entries[-1].metric < entries[0].metric / 2
        assert entries[0].loss is None
        assert entries[-1].loss < entries[1].loss
        assert sum(entry.bytes_up for entry in entries[1:]) > 0
        assert node.diverged == 0


def test_requests_about_labels_get_the_model_and_its_score(world: World) -> None:
    node = world.add("ada")
    assert present_model(node).score is None
    world.until(lambda: node.protocol.finished)
    found, last = present_model(node), list(node.evaluation.history)[-1]
    assert (found.score, found.held_out_count) == (last.metric, 16)
    few = replace(world.config("bob"), evaluate=EvaluateConfig())
    assert present_model(world.add("bob", few)).held_out_count == 0


@pytest.mark.parametrize("report", [True, False])
def test_the_host_hears_how_good_the_global_adapter_is(world: World, report: bool) -> None:
    world.new_host(min_peers=2)
    for name in ("ada", "bob"):
        config = world.config(name)
        world.add(name, replace(config, evaluate=replace(config.evaluate, report=report)))
    world.until(lambda: all(node.protocol.finished for node in world.nodes.values()))
    found = world.host.evaluations
    if not report:
        assert {item.nodes for item in found} == {0}
        return
    assert [item.nodes for item in found] == [2] * ROUNDS
    losses = [
        [entry.metric_loss for entry in node.evaluation.history] for node in world.nodes.values()
    ]
    wanted = np.mean(np.array(losses, float), axis=0)[:ROUNDS]
    assert [item.loss for item in found] == pytest.approx(wanted, abs=0.001)
    assert {item.accuracy for item in found} == {None}  # this model has another metric


@pytest.mark.parametrize("report", [True, False])
def test_a_board_reports_the_effect_of_a_probe(world: World, report: bool) -> None:
    world.new_host(min_peers=2)
    aggregation = world.host.protocol.combiner.aggregation
    aggregation.reputations.first_loss = 1.0
    aggregation.reputations.standings = {address: NodeStanding(wait=1) for address in (1, 2)}
    told: list[dict[int, float]] = []
    reports = Reputations.probed

    def note(self: Reputations, address: int, version: int, rises: dict[int, float]) -> None:
        told.append(dict(rises))
        reports(self, address, version, rises)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reputations, "probed", note)
        patch.setattr(robust, "PROBE_FIRST", 1)
        for name in ("ada", "bob"):
            config = world.config(name)
            world.add(name, replace(config, evaluate=replace(config.evaluate, report=report)))
        world.until(lambda: all(node.protocol.finished for node in world.nodes.values()))
    assert told
    found = {node.evaluation.probe.effect is not None for node in world.nodes.values()}
    if not report:
        assert (told, found) == ([{}] * len(told), {False})
        return
    assert all(set(rises) == {1, 2} for rises in told)
    assert any(rise < 0 for rises in told for rise in rises.values()), "updates help"


def test_the_status_is_json_and_says_where_it_stands(world: World) -> None:
    node = world.add("ada")
    before = status(node)
    assert (before.activity, before.joined, before.rounds) == ("joining", False, None)
    world.until(lambda: node.trainer.progress[0] == 2)
    during = status(node)
    assert during.activity == "training"
    assert during.training.steps_done == 2
    assert during.training.steps == STEPS
    world.until(lambda: node.protocol.pending is not None)
    assert status(node).outbox.round == 0
    node.protocol.receive_frames("host", [b"nonsense"], world.now)
    world.until(lambda: node.protocol.finished)
    after = status(node)
    assert (after.activity, after.phase, after.version) == ("finished", "finished", ROUNDS)
    assert after.metric == after.history[-1].metric
    assert after.bytes_up > 0
    assert after.bytes_down > 0
    assert sum(after.refused.values()) == 1
    assert after.samples == 40
    assert (after.rss_mib or 0) > 1


def test_traffic_is_served_between_two_batches(world: World) -> None:
    node = world.add("ada")
    world.until(lambda: node.trainer.progress[0] == 1)
    frames = node.driver.traffic["host"].frames_in
    world.now += 100.0  # an announcement is due
    world.host.protocol.handle_timeout(world.now)
    world.host.turn()
    waits: list[float] = []
    poll = node.driver.poll

    def noted(wait_s, *arguments):
        waits.append(wait_s)
        return poll(wait_s, *arguments)

    node.driver.poll = noted  # type: ignore[method-assign]
    node.turn(5.0)
    assert waits == [0.0]
    assert node.driver.traffic["host"].frames_in > frames
    assert node.trainer.progress[0] == 2


def update_of_round(world: World, number: int) -> bytes:
    def sent() -> bool:
        pending = world.nodes["ada"].protocol.pending
        return pending is not None and pending.round == number

    world.until(sent)
    pending = world.nodes["ada"].protocol.pending
    assert pending is not None
    return pending.digest


def test_a_power_cut_in_mid_training_gives_the_same_update(
    world: World, tiny, tiny_data, tmp_path_factory
) -> None:
    calm = World(tiny, tiny_data, tmp_path_factory.mktemp("calm"))
    calm.add("ada")
    expected = update_of_round(calm, 2)
    calm.close()
    node = world.add("ada")
    world.until(lambda: node.trainer.round == 2 and node.trainer.progress[0] == 4)
    world.cut_power("ada")
    again = world.add("ada")
    assert [entry.version for entry in again.evaluation.history] == [0, 1, 2]
    assert again.trainer.round is None
    assert update_of_round(world, 2) == expected


def close_without_ada(world: World, late: int) -> None:
    """Let the deadline of a round pass."""

    def closed() -> bool:
        world.now += 1.0
        return world.host.protocol.version > late

    world.until(closed, ["bob"])


@pytest.mark.parametrize(("rounds", "staleness_rounds"), [(ROUNDS, 0), (1, 0), (1, 4)])
def test_late_work_is_kept_for_a_later_update(
    world: World, rounds: int, staleness_rounds: int
) -> None:
    world.new_host(plan=replace(make(rounds=rounds), staleness_rounds=staleness_rounds))
    slow, quick = world.add("ada"), world.add("bob")
    world.until(lambda: slow.trainer.progress[0] == 5)
    learned, residual = slow.trainer.delta(), slow.protocol.residual
    late = slow.trainer.round or 0
    assert np.abs(learned).max() > 0.01
    close_without_ada(world, late)
    slow.turn(0.0)
    assert slow.protocol.version == late + 1
    np.testing.assert_array_equal(slow.protocol.residual, residual + learned)
    assert slow.trainer.round == (None if rounds == 1 else late + 1)
    world.until(lambda: slow.protocol.finished and quick.protocol.finished)


def test_a_slow_node_goes_on_training_and_counts_later(world: World) -> None:  # R6.3-9
    world.new_host(plan=replace(make(), staleness_rounds=1, own_permille=500))
    slow, quick = world.add("ada"), world.add("bob")
    world.until(lambda: slow.trainer.progress[0] == 5)
    late = slow.trainer.round or 0
    close_without_ada(world, late)
    slow.turn(0.0)
    assert slow.protocol.version == late + 1
    assert slow.trainer.round == late
    assert slow.trainer.progress[0] > 5
    world.until(lambda: slow.protocol.pending is not None)
    assert slow.protocol.pending is not None
    assert slow.protocol.pending.round == late + 1
    counted = world.host.counted[1]
    world.until(lambda: slow.protocol.version > late + 1)
    assert world.host.counted[1] == counted + 1
    world.until(lambda: slow.protocol.finished and quick.protocol.finished)
    assert not np.array_equal(slow.global_adapter, quick.global_adapter)
    kept = slow.global_adapter
    world.cut_power("ada")
    np.testing.assert_array_equal(world.add("ada").global_adapter, kept)


class Broken:
    """A train step that gives NaN in one round."""

    def __init__(self, step, node: Node, bad_round: int) -> None:
        self.step, self.node, self.bad_round = step, node, bad_round

    def run(self, adapter, batch):
        loss, gradient = self.step.run(adapter, batch)
        if self.node.trainer.round == self.bad_round:
            return float("nan"), gradient * np.nan
        return loss, gradient


def test_a_round_that_diverges_is_counted_and_sends_only_the_residual(world: World, caplog) -> None:
    world.new_host(min_peers=1)
    config = world.config("ada")
    kept = replace(config, training=replace(config.training, keep_moments=True))
    ada, bob = world.add("ada", kept), world.add("bob")
    ada.trainer._step = Broken(ada.trainer._step, ada, bad_round=2)
    shown: list[object] = []

    def diverged() -> bool:
        if ada.trainer.round == 2 and ada.trainer.progress[0] == 1:
            shown.append(status(ada).training.loss)
        return ada.diverged == 1

    world.until(diverged)
    assert f"training has diverged): {DIVERGED}" in caplog.text
    assert ada.protocol.pending is not None
    np.testing.assert_array_equal(ada.protocol.pending.corrected, ada.protocol.residual)
    reported = read_manifest(ada.protocol.pending.bodies[0]).evaluation
    assert reported == ada.evaluation.report(2), "of this version, not of one before"
    assert np.isfinite(ada.protocol.residual).all()
    np.testing.assert_array_equal(ada.global_adapter, global_adapter(world))
    world.until(lambda: ada.protocol.finished and bob.protocol.finished)
    assert ada.diverged == 1
    assert set(shown) == {None}
    assert world.host.counted[1] == ROUNDS
    losses = [entry.loss for entry in ada.evaluation.history]
    assert losses[3] is None
    assert all(loss is not None for loss in losses[4:])
    assert json.dumps(to_json(status(ada)), allow_nan=False)


def test_a_node_with_little_to_say_is_silent_and_loses_nothing(world: World) -> None:
    plan = replace(make(), silence_permille=1000, silence_rounds=2)
    world.new_host(min_peers=2, plan=plan)
    nodes = [world.add("ada"), world.add("bob")]
    world.until(lambda: any(node.protocol.silent for node in nodes))
    silent = next(node for node in nodes if node.protocol.silent)
    assert status(silent).activity == "silent in this round"
    assert status(silent).outbox is None
    world.until(lambda: all(node.protocol.finished for node in nodes))
    counted = world.host.counted
    for address, node in enumerate(nodes, 1):
        assert status(node).silent_rounds == ROUNDS - counted[address] > 0
        np.testing.assert_array_equal(node.global_adapter, global_adapter(world))
        entries: list[Any] = list(node.evaluation.history)
        assert entries[-1].metric < entries[0].metric


def is_quiet(node: Node) -> bool:
    return node.protocol.silent and node.trainer.round is None


def test_without_an_end_a_node_learns_its_news_and_is_silent(world: World, caplog) -> None:
    caplog.set_level("INFO")
    world.new_host(plan=replace(make(), rounds=0, news_rounds=3))
    node = world.add("ada")
    world.until(lambda: is_quiet(node) and node.news.rounds == 3)
    assert "without end" in caplog.text
    assert "of 0" not in summary(node)
    world.cut_power("ada")
    again = world.add("ada")
    world.until(lambda: again.protocol.joined)
    assert (again.news.rounds, is_quiet(again)) == (3, True)  # the files are no news twice
    before = again.protocol.version
    again.news.add(32)
    world.until(lambda: again.protocol.version == before + 3)


def test_without_an_end_new_labels_are_news(world: World, monkeypatch) -> None:
    world.new_host(plan=replace(make(), rounds=0, news_rounds=2))
    config = with_source(world, monkeypatch, Sensor)
    training = TrainingConfig(samples_min=8, news_min=9)
    node = world.add("ada", replace(config, training=training))
    world.until(lambda: node.wanted == 0 and len(node.data.training) > 0)
    assert (node.protocol.silent, len(node.data.training) < 8) == (False, True)  # it only waits
    world.until(lambda: node.protocol.version > 9)
    assert 0 < node.silent_rounds < node.protocol.version


def test_another_run_begins_from_nothing(world: World) -> None:
    world.new_host(plan=make(steps=50))
    node = world.add("ada")
    world.until(lambda: node.trainer.round == 3 and node.trainer.progress[0] == 5)
    learned = node.global_adapter
    world.new_host(run=b"second  ", plan=make(rounds=2))

    def joined() -> bool:
        world.now += 1.0
        return node.protocol.run == b"second  "

    world.until(joined)  # in mid-training: that work belongs to no reference of the new run
    assert node.trainer.round in (None, 0)
    assert not node.protocol.residual.any()
    assert adapter_version(node.config.adapter_path) == 0
    assert not np.array_equal(node.global_adapter, learned)
    world.until(lambda: node.protocol.finished)
    assert [entry.version for entry in node.evaluation.history] == [0, 1, 2]
    np.testing.assert_array_equal(node.global_adapter, global_adapter(world))
    assert adapter_version(node.config.adapter_path) == 2


def test_a_carried_run_predicts_with_what_was_learned_all_the_time(world: World) -> None:
    # R6.11-4
    node = world.add("ada")
    world.until(lambda: node.protocol.version == 3)
    old, metric = world.host.protocol, status(node).metric
    start = replace(new_host_state(18), model_q24=old.model_q24, residual=old.residual)
    world.new_host(run=b"second  ", min_peers=2, state=start)
    learned = global_adapter(world)

    def joined() -> bool:
        world.now += 1.0
        return node.protocol.run == b"second  "

    world.until(joined)
    for _ in range(2):
        assert node.protocol.version == 0
        assert [entry.version for entry in node.evaluation.history] == []
        assert node.evaluation.best is None
        for path in (node.config.adapter_file(NEWEST), node.config.adapter_file(BEST)):
            vector, _ = read_adapter(path, world.loaded.package)
            if path == node.config.adapter_path:
                np.testing.assert_array_equal(vector, learned)
        world.cut_power("ada")
        node = world.add("ada")
    world.add("bob")
    world.until(lambda: node.protocol.version == 1)
    world.turn()
    first = next(iter(node.evaluation.history))
    assert (first.version, first.metric) == (1, metric)
    assert node.evaluation.best is not None
    assert node.evaluation.best.version == 1
    world.until(lambda: node.protocol.finished)
    np.testing.assert_array_equal(node.global_adapter, global_adapter(world))


@pytest.mark.parametrize("use", [NEWEST, BEST])
def test_the_best_adapter_is_kept_beside_the_newest(world: World, use: str) -> None:
    world.new_host(plan=make(rounds=4))
    config = world.config("ada")
    config = replace(config, evaluate=replace(config.evaluate, use=use))
    node = world.add("ada", config)
    # Before each evaluation the node drops what one without an end has left.
    scores = iter(one for score in [5.0, 3.0, 2.0, 4.0, 3.5] for one in (None, score))
    node.evaluation.evaluator.take = lambda: (next(scores), None)  # type: ignore[method-assign]
    world.until(lambda: node.protocol.finished)

    def versions() -> tuple[int, int]:
        best, newest = config.adapter_file(BEST), config.adapter_file(NEWEST)
        assert config.adapter_path == (best if use == BEST else newest)
        return adapter_version(best), adapter_version(newest)

    assert versions() == (2, 4)
    assert status(node).best == (2, 2.0)
    world.cut_power("ada")
    other = replace(
        config, evaluate=replace(config.evaluate, use=BEST if use == NEWEST else NEWEST)
    )
    world.add("ada", other)
    world.cut_power("ada")
    node = world.add("ada", config)
    assert versions() == (2, 4)
    assert len(list(Path(config.state_dir).glob("*.onnx_adapter"))) == 2
    assert status(node).best == (2, 2.0)
    world.new_host(run=b"second  ", plan=make(rounds=2))
    node.evaluation.evaluator.take = lambda: (9.0, None)  # type: ignore[method-assign]

    def joined() -> bool:
        world.now += 1.0
        return node.protocol.run == b"second  " and node.protocol.finished

    world.until(joined)
    assert status(node).best == (0, 9.0)
    assert versions() == (0, 2)


def test_an_idle_node_frees_its_sessions_and_takes_them_up_again(world: World) -> None:
    world.new_host(min_peers=2)
    ada, bob = world.add("ada"), world.add("bob")
    world.until(lambda: ada.protocol.joined and bob.protocol.joined)
    world.until(lambda: ada.protocol.pending is not None, ["ada"])
    assert ada._step._session is not None
    world.now += RELEASE_AFTER_S
    ada.turn(0.0)
    assert (ada._step._session, ada._inference._session) == (None, None)
    world.until(lambda: ada.protocol.finished and bob.protocol.finished)


class Sensor:
    """Yields `count` samples at each poll, and their labels one poll later."""

    made: ClassVar[list["Sensor"]] = []

    def __init__(self, count: int) -> None:
        self.count, self.polls = count, 0
        rng = np.random.default_rng(4)
        self.x = rng.standard_normal((1000, 6)).astype(np.float32)
        Sensor.made.append(self)

    def poll(self, now: float) -> list[Sample | Label]:
        first = self.polls * self.count
        fresh, old = range(first, first + self.count), range(first - self.count, first)
        self.polls += 1
        samples = [Sample(str(i), {"x": self.x[i % 1000]}) for i in fresh]
        labels = [Label(str(i), {"t": self.x[i % 1000, :3]}) for i in old if i >= 0]
        return samples + labels


def with_source(world: World, monkeypatch, kind: type[Sensor]) -> NodeConfig:
    module = ModuleType("sensors")
    module.Sensor = kind  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sensors", module)
    data = DataConfig(
        source="sensors:Sensor", options={"count": 3}, poll_s=10.0, replay_samples_max=20
    )
    return replace(world.config("ada"), data=data, evaluate=EvaluateConfig())


class Loose(Sensor):
    """A sensor that cannot be read at every second poll."""

    def poll(self, now: float) -> list[Sample | Label]:
        if self.polls % 2:
            self.polls += 1
            raise OSError("no device")
        return super().poll(now)


def test_a_source_that_fails_is_asked_again(world: World, monkeypatch, caplog) -> None:
    node = world.add("ada", with_source(world, monkeypatch, Loose))
    world.until(lambda: status(node).source.failures == 3)
    assert status(node).source.last_failure == "OSError: no device"
    assert status(node).source.counters["samples"] == 9
    assert caplog.text.count("the source failed: OSError: no device") == 1


class Refusing:
    """A train step that a sample breaks in one round."""

    def __init__(self, step, node: Node, bad_round: int) -> None:
        self.step, self.node, self.bad_round = step, node, bad_round

    def run(self, adapter, batch):
        if self.node.trainer.round == self.bad_round:
            raise ModelError("indices element out of data bounds")
        return self.step.run(adapter, batch)


def test_a_sample_that_breaks_the_graph_costs_a_round_and_no_more(
    world: World, monkeypatch
) -> None:
    """It stays in the buffer on disk: a node that gave up would give up again and again."""
    node = world.add("ada", with_source(world, monkeypatch, Sensor))
    node.trainer._step = Refusing(node.trainer._step, node, bad_round=1)
    world.until(lambda: node.protocol.finished)
    assert node.diverged == 1
    assert world.host.counted[1] == ROUNDS


def test_files_that_break_the_graph_stop_the_node(world: World) -> None:
    node = world.add("ada")
    node.trainer._step = Refusing(node.trainer._step, node, bad_round=1)
    with pytest.raises(ModelError, match="out of data bounds"):
        world.until(lambda: node.protocol.finished)


def test_a_buffer_too_small_for_training_is_refused(world: World, monkeypatch) -> None:
    config = with_source(world, monkeypatch, Sensor)
    small = replace(config, data=replace(config.data, replay_samples_max=7))
    with pytest.raises(DataError, match="room for 7 samples"):
        world.add("ada", small)


def test_a_source_with_late_labels_feeds_the_training(world: World, monkeypatch) -> None:
    config = with_source(world, monkeypatch, Sensor)
    node = world.add("ada", config)
    world.until(lambda: node.wanted is not None)
    assert status(node).activity == "waiting for samples"
    assert node.trainer.round is None
    world.until(lambda: node.trainer.round == 0)
    assert len(node.data.training) >= 8
    sensor = Sensor.made[-1]
    assert sensor.polls == 4  # three samples a poll, and the labels come a poll later
    world.until(lambda: node.protocol.finished)
    entries: list[Any] = list(node.evaluation.history)
    assert entries[0].metric is None
    known = [entry.metric for entry in entries if entry.metric is not None]
    assert known
    assert entries[-1].metric is None  # it learnt faster than labels came
    assert status(node).metric == known[-1]
    assert status(node).source.capacity == 20
    world.until(lambda: status(node).source.counters["evicted"] > 0)
    assert 8 <= node.protocol.joining.samples <= 20
    world.cut_power("ada")
    again = world.add("ada", config)
    assert len(again.data.training) == 20


def test_samples_that_are_deleted_in_a_round_end_it(world: World, monkeypatch) -> None:
    """Half of them, then all: a round goes on with the others, or ends."""
    node = world.add("ada", with_source(world, monkeypatch, Sensor))
    buffer = node.data.feed.buffer
    asked: list[int] = []

    def every(buffer: Any) -> list[int]:
        return sorted(row for rows in buffer.groups().values() for row in rows)

    def certainty(inputs: Any) -> Any:
        asked.append(len(inputs["x"]))
        return node.scores(inputs)[:, 0]

    buffer.certainty = certainty
    world.until(lambda: node.trainer.progress[0] == 2)
    assert asked == [3]  # a new global adapter rates all that wait
    buffer.forget(every(buffer)[3:8])
    world.until(lambda: node.trainer.progress[0] == 4)
    buffer.forget(every(buffer))
    node.turn(0.0)
    assert (len(buffer), node.trainer.round) == (0, None)
    world.until(lambda: node.protocol.finished)
    assert world.host.counted[1] == ROUNDS
    assert status(node).source.by_label == {"all": len(buffer)}


def test_a_node_that_nobody_answers_says_so_once(world: World, caplog) -> None:
    node = world.add("ada")
    world.now += 15.0
    for _ in range(3):
        node.turn(0.0)
    assert caplog.messages.count(NO_ANSWER) == 1
