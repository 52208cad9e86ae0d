"""Whole nodes over a loopback hub: what they learn, keep, report, and what ends them."""

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from edge.config import DataConfig, EvaluateConfig
from edge.data.sources import Label, Sample
from edge.errors import DataError, ModelError, OutOfMemory
from edge.node import Node
from edge.onnx.session import Inference, adapter_version, read_adapter
from edge.report import status, summary
from edge.service import present_model
from ternmesh.federated import robust
from ternmesh.federated.refusals import DIVERGED
from ternmesh.federated.reputation import NodeStanding, Reputations
from ternmesh.federated.state import new_host_state
from ternmesh.wire.update import read_manifest
from ternmesh_service.status import to_json
from tests.edge.fleet import ROUNDS, SECOND_RUN, World, new_plan, replace_step


def test_two_nodes_learn_together_to_the_end(world: World) -> None:
    world.new_host(min_peers=2)
    nodes = [world.add("ada"), world.add("bob")]
    assert present_model(nodes[0]).score is None
    world.finish()
    for node in nodes:
        np.testing.assert_array_equal(node.global_adapter, world.global_adapter())
        assert adapter_version(node.config.adapter_path) == ROUNDS
        entries: list[Any] = list(node.evaluation.history)
        assert [entry.version for entry in entries] == list(range(ROUNDS + 1))
        assert entries[-1].metric < entries[0].metric / 2
        assert entries[0].loss is None
        assert entries[-1].loss < entries[1].loss
        assert sum(entry.bytes_up for entry in entries[1:]) > 0
        assert node.diverged == 0
        asked = present_model(node)  # for requests about labels
        assert (asked.score, asked.held_out_count) == (entries[-1].metric, 16)


@pytest.mark.parametrize("report", [True, False])
def test_the_host_hears_losses_and_effects_of_probes(world, report, monkeypatch) -> None:
    world.new_host(min_peers=2)
    reputations = world.host.protocol.combiner.aggregation.reputations
    reputations.first_loss = 1.0
    reputations.standings = {address: NodeStanding(wait=1) for address in (1, 2)}
    effects: list[dict[int, float]] = []
    probed = Reputations.probed

    def note(*given: Any) -> None:
        effects.append(dict(given[-1]))
        probed(*given)

    monkeypatch.setattr(Reputations, "probed", note)
    monkeypatch.setattr(robust, "PROBE_FIRST", 1)
    for name in ("ada", "bob"):
        config = world.config(name)
        world.add(name, replace(config, evaluate=replace(config.evaluate, report=report)))
    world.finish()
    evaluations, nodes = world.host.evaluations, world.nodes.values()
    assert effects
    assert {node.evaluation.probe.effect is not None for node in nodes} == {report}
    assert {item.nodes for item in evaluations} == {2 if report else 0}
    if not report:
        assert effects == [{}] * len(effects)
        return
    losses = [[entry.metric_loss for entry in node.evaluation.history] for node in nodes]
    wanted = np.mean(np.array(losses, float), axis=0)[:ROUNDS]
    assert [item.loss for item in evaluations] == pytest.approx(wanted, abs=0.001)
    assert {item.accuracy for item in evaluations} == {None}  # this model has another metric
    assert all(set(rises) == {1, 2} for rises in effects)
    assert any(rise < 0 for rises in effects for rise in rises.values()), "updates help"


def update_of_round(world: World, number: int) -> bytes:
    node = world.nodes["ada"]
    world.until(lambda: node.protocol.pending and node.protocol.pending.round == number)
    assert node.protocol.pending is not None
    return node.protocol.pending.digest


def test_a_power_cut_in_mid_training_gives_the_same_update(world: World) -> None:
    world.add("ada")
    expected = update_of_round(world, 2)
    world.cut_power("ada")
    shutil.rmtree(world.config("ada").state_dir)
    world.new_host()
    node = world.add("ada")
    world.until(lambda: node.trainer.round == 2 and node.trainer.progress[0] == 4)
    world.cut_power("ada")
    again = world.add("ada")
    assert [entry.version for entry in again.evaluation.history] == [0, 1, 2]
    assert again.trainer.round is None
    assert update_of_round(world, 2) == expected


def leave_behind(world: World) -> tuple[Node, int]:
    """A node whose round closes without it, in mid-training, and that round."""
    slow, _ = world.add("ada"), world.add("bob")
    world.until(lambda: slow.trainer.progress[0] == 5)
    late = slow.trainer.round or 0
    world.until(lambda: world.host.protocol.version > late, ["bob"], each_s=1.0)
    return slow, late


@pytest.mark.parametrize(("rounds", "staleness_rounds"), [(ROUNDS, 0), (1, 0), (1, 4)])
def test_late_work_is_kept_for_a_later_update(world, rounds, staleness_rounds) -> None:
    world.new_host(replace(new_plan(rounds=rounds), staleness_rounds=staleness_rounds))
    slow, late = leave_behind(world)
    learned, residual = slow.trainer.delta(), slow.protocol.residual
    assert np.abs(learned).max() > 0.01
    slow.turn(0.0)
    assert slow.protocol.version == late + 1
    np.testing.assert_array_equal(slow.protocol.residual, residual + learned)
    assert slow.trainer.round == (None if rounds == 1 else late + 1)
    world.finish()


def test_a_slow_node_goes_on_training_and_counts_later(world: World) -> None:  # R6.3-9
    world.new_host(replace(new_plan(), staleness_rounds=1, own_permille=500))
    slow, late = leave_behind(world)
    slow.turn(0.0)
    assert slow.protocol.version == late + 1
    assert slow.trainer.round == late
    assert slow.trainer.progress[0] > 5
    world.until(lambda: slow.protocol.pending is not None)
    assert slow.protocol.pending.round == late + 1
    counted = world.host.counted[1]
    world.until(lambda: slow.protocol.version > late + 1)
    assert world.host.counted[1] == counted + 1
    world.finish()
    kept = slow.global_adapter
    assert not np.array_equal(kept, world.nodes["bob"].global_adapter)
    world.cut_power("ada")
    np.testing.assert_array_equal(world.add("ada").global_adapter, kept)


def test_a_round_that_diverges_is_counted_and_sends_only_the_residual(
    world: World, caplog, monkeypatch
) -> None:
    config = world.config("ada")
    kept = replace(config, training=replace(config.training, keep_moments=True))
    ada = world.add("ada", kept)

    def broken(run: Callable[..., Any], adapter: Any, batch: Any) -> Any:
        loss, gradient = run(adapter, batch)
        return (float("nan"), gradient * np.nan) if ada.trainer.round == 2 else (loss, gradient)

    replace_step(monkeypatch, broken)
    shown: list[object] = []

    def diverged() -> bool:
        if ada.trainer.round == 2 and ada.trainer.progress[0] == 1:
            shown.append(status(ada).training.loss)
        return ada.diverged == 1

    world.until(diverged)
    assert f"training has diverged): {DIVERGED}" in caplog.text
    np.testing.assert_array_equal(ada.protocol.pending.corrected, ada.protocol.residual)
    reported = read_manifest(ada.protocol.pending.bodies[0]).evaluation
    assert reported == ada.evaluation.report(2), "of this version, not of one before"
    assert np.isfinite(ada.protocol.residual).all()
    np.testing.assert_array_equal(ada.global_adapter, world.global_adapter())
    world.finish()
    assert (ada.diverged, set(shown), world.host.counted[1]) == (1, {None}, ROUNDS)
    losses = [entry.loss for entry in ada.evaluation.history]
    assert losses[3] is None
    assert all(loss is not None for loss in losses[4:])
    assert json.dumps(to_json(status(ada)), allow_nan=False)


def is_quiet(node: Node) -> bool:
    return node.protocol.silent and node.trainer.round is None


def test_without_an_end_a_node_learns_its_news_and_is_silent(world: World, caplog) -> None:
    caplog.set_level("INFO")
    world.new_host(replace(new_plan(), rounds=0, news_rounds=3))
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


def test_another_run_begins_from_nothing(world: World) -> None:
    world.new_host(new_plan(steps=50))
    node = world.add("ada")
    world.until(lambda: node.trainer.round == 3 and node.trainer.progress[0] == 5)
    learned = node.global_adapter
    world.new_host(new_plan(rounds=2), run=SECOND_RUN)
    world.until_run(node, SECOND_RUN)  # in mid-training: that work is of no round of the new run
    assert node.trainer.round in (None, 0)
    assert not node.protocol.residual.any()
    assert adapter_version(node.config.adapter_path) == 0
    assert not np.array_equal(node.global_adapter, learned)
    world.finish()
    assert [entry.version for entry in node.evaluation.history] == [0, 1, 2]
    np.testing.assert_array_equal(node.global_adapter, world.global_adapter())
    assert adapter_version(node.config.adapter_path) == 2


def test_a_carried_run_predicts_with_what_was_learned_all_the_time(world: World) -> None:
    # R6.11-4
    node = world.add("ada")
    world.until(lambda: node.protocol.version == 3)
    old, metric = world.host.protocol, status(node).metric
    start = replace(new_host_state(18), model_q24=old.model_q24, residual=old.residual)
    world.new_host(run=SECOND_RUN, min_peers=2, state=start)
    learned = world.global_adapter()
    world.until_run(node, SECOND_RUN)
    for _ in range(2):
        assert node.protocol.version == 0
        assert [entry.version for entry in node.evaluation.history] == []
        vector, _ = read_adapter(node.config.adapter_path, world.loaded.package)
        np.testing.assert_array_equal(vector, learned)
        world.cut_power("ada")
        node = world.add("ada")
    world.add("bob")
    world.until(lambda: node.protocol.version == 1)
    world.turn()
    first = next(iter(node.evaluation.history))
    assert (first.version, first.metric) == (1, metric)
    world.finish()
    np.testing.assert_array_equal(node.global_adapter, world.global_adapter())


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


class Loose(Sensor):
    """A sensor that cannot be read at every second poll."""

    def poll(self, now: float) -> list[Sample | Label]:
        if self.polls % 2:
            self.polls += 1
            raise OSError("no device")
        return super().poll(now)


def add_with_source(
    world: World, monkeypatch, kind: type[Sensor] = Sensor, samples_max: int = 20, **more: Any
) -> Node:
    monkeypatch.setitem(sys.modules, "sensors", SimpleNamespace(Sensor=kind))
    data = DataConfig(
        source="sensors:Sensor", options={"count": 3}, poll_s=10.0, replay_samples_max=samples_max
    )
    return world.add(
        "ada", replace(world.config("ada"), data=data, evaluate=EvaluateConfig(), **more)
    )


def test_a_source_that_fails_is_asked_again(world: World, monkeypatch, caplog) -> None:
    node = add_with_source(world, monkeypatch, Loose)
    world.until(lambda: status(node).source.failures == 3)
    assert status(node).source.last_failure == "OSError: no device"
    assert status(node).source.counters["samples"] == 9
    assert caplog.text.count("the source failed: OSError: no device") == 1


@pytest.mark.parametrize("is_live", [True, False])
def test_a_model_that_fails_costs_a_round_and_no_more(world: World, monkeypatch, is_live) -> None:
    """A node that gave up would give up again and again."""
    node = add_with_source(world, monkeypatch) if is_live else world.add("ada")

    def refusing(run: Callable[..., Any], *given: Any) -> Any:
        if node.trainer.round == 1:
            raise ModelError("indices element out of data bounds")
        return run(*given)

    replace_step(monkeypatch, refusing)
    world.finish()
    assert (node.diverged, world.host.counted[1]) == (1, ROUNDS)
    assert status(node).aside.count == 0


@pytest.mark.parametrize("is_live", [True, False])
def test_a_sample_that_breaks_the_graph_is_set_aside(world: World, monkeypatch, is_live) -> None:
    node = add_with_source(world, monkeypatch) if is_live else world.add("ada")
    bad: list[float] = []

    def refusing(run: Callable[..., Any], adapter: Any, batch: Any) -> Any:
        bad[:] = bad or [batch["x"].flat[0]]
        if bad[0] in batch["x"]:
            raise ModelError("indices element out of data bounds")
        return run(adapter, batch)

    replace_step(monkeypatch, refusing)
    world.finish()
    assert (node.diverged, world.host.counted[1]) == (0, ROUNDS)
    shown = status(node).aside
    assert shown.count >= 1
    assert shown.newest[0][1] == "indices element out of data bounds"


@pytest.mark.parametrize("at", [0, 2, 7])
def test_a_sample_that_breaks_an_evaluation_is_set_aside(world: World, monkeypatch, at) -> None:
    node = add_with_source(world, monkeypatch) if at else world.add("ada")
    bad = node.data.feed.source.x[at] if at else node.data.held_out.batch(np.array([0]))["x"][0]
    predict = Inference.predict

    def refusing(inference: Inference, inputs: Any) -> Any:
        if (inputs["x"] == bad).all(axis=1).any():
            raise ModelError("indices element out of data bounds")
        return predict(inference, inputs)

    monkeypatch.setattr(Inference, "predict", refusing)
    world.finish()
    assert (status(node).aside.count, len(node.evaluation.history)) == (1, ROUNDS + 1)


def test_a_buffer_too_small_for_training_is_refused(world: World, monkeypatch) -> None:
    with pytest.raises(DataError, match="room for 7 samples"):
        add_with_source(world, monkeypatch, samples_max=7)


def test_a_source_with_late_labels_feeds_the_training(world: World, monkeypatch) -> None:
    node = add_with_source(world, monkeypatch)
    assert present_model(node).held_out_count == 0
    world.until(lambda: node.wanted is not None)
    assert status(node).activity == "waiting for samples"
    assert node.trainer.round is None
    world.until(lambda: node.trainer.round == 0)
    assert len(node.data.training) >= 8
    assert Sensor.made[-1].polls == 4  # three samples a poll, and the labels come a poll later
    world.finish()
    metrics = [entry.metric for entry in node.evaluation.history]
    assert metrics[0] is None
    assert metrics[-1] is None  # it learnt faster than labels came
    assert status(node).metric == [metric for metric in metrics if metric is not None][-1]
    assert status(node).source.capacity == 20
    world.until(lambda: status(node).source.counters["evicted"] > 0)
    assert 8 <= node.protocol.joining.samples <= 20
    world.cut_power("ada")
    assert len(world.add("ada", node.config).data.training) == 20


def test_samples_that_are_deleted_in_a_round_end_it(world: World, monkeypatch) -> None:
    """Half of them, then all: a round goes on with the others, or ends."""
    node = add_with_source(world, monkeypatch)
    buffer = node.data.feed.buffer
    rated: list[int] = []

    def every() -> list[int]:
        return sorted(row for rows in buffer.groups().values() for row in rows)

    def certainty(inputs: Any) -> Any:
        rated.append(len(inputs["x"]))
        if len(rated) == 1:
            raise OutOfMemory("it needs more memory than is free")
        return node.scores(inputs)[:, 0]

    buffer.certainty = certainty
    world.until(lambda: node.trainer.progress[0] == 2)
    assert rated == [3]  # a new global adapter rates all that wait
    buffer.forget(every()[3:8])
    world.until(lambda: node.trainer.progress[0] == 4)
    buffer.forget(every())
    node.turn(0.0)
    assert (len(buffer), node.trainer.round) == (0, None)
    world.finish()
    assert world.host.counted[1] == ROUNDS
    assert status(node).source.by_label == {"all": len(buffer)}
