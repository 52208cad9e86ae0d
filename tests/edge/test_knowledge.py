"""Knowledge packets on a board, with the shipped keyword model."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.config import DataConfig, EvaluateConfig, KnowledgeConfig
from edge.data.feed import Rehearsal
from edge.data.probe_set import ProbeSet, open_probe_set, predict
from edge.data.sources import NpzSettings
from edge.errors import DataError
from edge.knowledge import BoardKnowledge, TaughtSamples, open_probe_predictions
from edge.onnx.session import Inference, LoadedModel, load_model
from models.zoo import fsdd_path, package_path
from ternmesh.config import ConfigError
from ternmesh.federated.knowledge import UNKNOWN
from ternmesh.model_package import TensorSpec
from ternmesh.plan import make_plan
from ternmesh.wire.knowledge import cut_labels, write_part
from ternmesh_service.notify import no_beat
from tests.edge.fleet import World

CLIPS, OWN = 60, 12
TARGET = TensorSpec("t", "int64", (0,))
READ = NpzSettings(arrays={"features": "x"}, divide_by=255.0)


class Rows:
    """Samples in memory."""

    def __init__(self, **arrays: np.ndarray) -> None:
        self.arrays = arrays

    def __len__(self) -> int:
        return len(self.arrays["t"])

    def batch(self, indexes: np.ndarray) -> dict[str, np.ndarray]:
        return {name: array[indexes] for name, array in self.arrays.items()}

    def set_aside(self, reasons: Mapping[int, str]) -> None:
        self.arrays = {name: np.delete(array, list(reasons)) for name, array in self.arrays.items()}


@pytest.fixture(scope="module")
def keyword() -> LoadedModel:
    return load_model(package_path("keyword"))


@pytest.fixture(scope="module")
def clips() -> dict[str, Any]:
    with np.load(fsdd_path("dev"), allow_pickle=False) as data:
        chosen = np.random.default_rng(0).permutation(len(data["x"]))[: CLIPS + OWN]
        return {"x": data["x"][chosen], "y": data["y"][chosen].astype(np.int64)}


@pytest.fixture
def probe(keyword: LoadedModel, clips: dict[str, Any], tmp_path: Path) -> ProbeSet:
    np.savez(tmp_path / "probe.npz", x=clips["x"][:CLIPS])
    return open_probe_set(tmp_path / "probe.npz", keyword.package, READ)


def packet(probe: ProbeSet, truth: np.ndarray, number: int = 1, quality: int = 250) -> list[bytes]:
    parts = cut_labels(probe.topic, number, quality, truth, probe.classes, 105)
    return [write_part(part) for part in parts]


def test_a_board_keeps_a_quarter_of_what_it_draws_for_its_own_samples() -> None:
    own = Rows(x=np.zeros((4, 1)), t=np.full(4, 3))
    taught = TaughtSamples({"x": np.arange(50.0)[:, None]}, TARGET)
    samples = Rehearsal(own, taught)
    assert len(samples) == 4
    taught.teach(np.arange(50) % 2, np.ones(50))
    assert len(samples) == 50 + 17
    batch = samples.batch(np.arange(67))
    assert (batch["t"][:17] == 3).all()
    assert (batch["t"][17:] == np.arange(50) % 2).all()
    taught.teach(np.full(50, UNKNOWN), np.ones(50))
    assert len(samples) == 4


def test_a_sample_of_weight_zero_is_never_drawn() -> None:
    taught = TaughtSamples({"x": np.arange(9.0)}, TARGET)
    samples = Rehearsal(Rows(x=np.zeros(1), t=np.zeros(1)), taught)
    weights = np.array([1, 0.5, 0, 0.5, 0, 0, 0, 0, 0])
    taught.teach(np.zeros(9, np.int64), weights)
    assert len(samples) == 1 + 2  # the sum of the weights
    drawn = []
    for taught.round in range(400):
        batch, same = samples.batch(np.arange(3)), samples.batch(np.arange(3))
        assert (batch["x"] == same["x"]).all()
        drawn.append(batch["x"][-2:])
    assert set(np.concatenate(drawn)) == {0.0, 1.0, 3.0}
    taught.teach(np.zeros(9, np.int64), np.full(9, 0.5))
    assert len(samples) == 2 + 4
    taught.teach(np.zeros(9, np.int64), np.full(9, 0.01))
    assert len(samples) == 1  # so little is nothing


def test_the_probe_set_is_the_same_for_models_that_see_the_same(keyword, clips, tmp_path) -> None:
    np.savez(tmp_path / "a.npz", x=clips["x"], key=np.arange(CLIPS + OWN))
    np.savez(tmp_path / "b.npz", x=255 - clips["x"], key=np.arange(CLIPS + OWN))
    paths = tmp_path / "a.npz", tmp_path / "b.npz"
    topics = [open_probe_set(path, keyword.package, READ).topic for path in paths]
    assert topics[0].probe != topics[1].probe
    topics = [open_probe_set(path, keyword.package, READ, "key").topic for path in paths]
    assert topics[0] == topics[1]
    with pytest.raises(DataError):
        open_probe_set(paths[0], keyword.package, READ, "nothing")


def test_a_model_without_a_row_of_classes_has_no_probe_set(keyword, tiny, tmp_path) -> None:
    with pytest.raises(DataError, match="no classes"):
        open_probe_set(tmp_path, tiny.package, NpzSettings())
    outputs = (TensorSpec("output", "float32", (-1, 7, 10)),)
    with pytest.raises(DataError, match="row of scores"):
        open_probe_set(tmp_path, replace(keyword.package, outputs=outputs), READ)


def test_a_packet_is_weighed_and_learned(keyword, clips, probe) -> None:
    own = Rows(features=np.zeros((5, 50, 32), np.float32), t=np.zeros(5, np.int64))
    board = BoardKnowledge(probe, own)
    inference, truth = Inference(keyword.folder, keyword.package), clips["y"][:CLIPS]
    for body in packet(probe, truth):
        board.take(body, 0.0)
    board.refresh(inference, 1, 0.6, no_beat)
    assert board.status().known == CLIPS
    assert len(board.samples) > len(own) + CLIPS
    taught = board.samples.batch(np.arange(len(board.samples) - CLIPS, len(board.samples)))
    shown = [np.flatnonzero((probe.arrays["features"] == one).all((1, 2)))[0]
             for one in taught["features"]]  # fmt: skip
    assert (taught["target"] == truth[shown]).all()


@pytest.mark.parametrize(("quality", "shift", "why"), [(100, 0, "worse"), (250, 1, "contradict")])
def test_a_worse_or_lying_teacher_is_not_learned(
    keyword: LoadedModel, clips: dict[str, Any], probe: ProbeSet,
    quality: int, shift: int, why: str,
) -> None:  # fmt: skip
    own = Rows(features=np.zeros((5, 50, 32), np.float32), t=np.zeros(5, np.int64))
    board = BoardKnowledge(probe, own)
    for body in packet(probe, (clips["y"][:CLIPS] + shift) % 10, quality=quality):
        board.take(body, 0.0)
    board.refresh(Inference(keyword.folder, keyword.package), 1, 0.8, no_beat)
    assert why in board.remark
    assert len(board.samples) == len(own)


def test_the_host_asks_its_model_about_the_probe_set(keyword, probe, tmp_path) -> None:
    path = tmp_path / "probe.npz"
    found = open_probe_predictions(keyword.folder, path, READ, "")
    labels = found(np.zeros_like(keyword.initial))
    assert labels.shape == (CLIPS, 10)
    np.testing.assert_allclose(labels.sum(axis=1), 1, rtol=1e-5)
    own = predict(Inference(keyword.folder, keyword.package), probe)
    np.testing.assert_allclose(labels, own, atol=1e-5)
    with pytest.raises(ConfigError, match="knowledge"):
        open_probe_predictions(keyword.folder, tmp_path / "none.npz", READ, "")


def test_a_node_learns_what_its_host_broadcasts(keyword, clips, probe, tmp_path) -> None:
    own = {name: array[CLIPS:] for name, array in clips.items()}
    world = World(keyword, {"ada": own}, tmp_path)
    plan = make_plan(keyword.package.dimension, rounds=2, local_steps=6, learning_rate=0.001)
    world.new_host(plan)
    files: dict[str, Any] = {"arrays": {"features": "x", "target": "y"}, "divide_by": 255.0}
    node = world.add(
        "ada",
        replace(
            world.config("ada"),
            evaluate=EvaluateConfig(),
            data=DataConfig(path=str(tmp_path / "ada.npz"), **files),
            knowledge=KnowledgeConfig({"features": "x"}, {}, 255.0, str(tmp_path / "probe.npz")),
        ),
    )
    knowledge, host = node.data.knowledge, world.host.protocol
    assert knowledge is not None
    for body in packet(probe, clips["y"][:CLIPS], number=40):  # of a run before
        knowledge.take(body, 0.0)
    world.until(lambda: node.protocol.joined)
    host.session.broadcast(packet(probe, clips["y"][:CLIPS]))
    world.finish()
    assert (knowledge.status().known, knowledge.status().number) == (CLIPS, 1)
    assert host.nodes[1].samples == OWN  # its weight is that of its own samples
    assert not node.protocol.refused
    world.close()
