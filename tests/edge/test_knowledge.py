"""Knowledge packets on a board, with the shipped keyword model."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edge.config import DataConfig, KnowledgeConfig, NodeConfig, ResourcesConfig, TrainingConfig
from edge.data.knowledge import OWN_SHARE, WithKnowledge
from edge.data.node_data import open_data, with_knowledge
from edge.data.probe_set import ProbeSet, open_probe_set, predict
from edge.data.sources import NpzSettings
from edge.errors import DataError
from edge.knowledge import BoardKnowledge, open_probe_predictions
from edge.node import Node
from edge.onnx.session import Inference, LoadedModel, load_model
from models.zoo import fsdd_path, package_path
from ternmesh.codec.soft_labels import quantise
from ternmesh.config import ConfigError
from ternmesh.errors import WireError
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.state import HostSettings, new_host_state
from ternmesh.model_package import TensorSpec
from ternmesh.plan import make_plan
from ternmesh.wire.knowledge import cut_labels, write_part
from ternmesh_service.notify import no_beat
from ternmesh_store.node_store import NodeStore
from ternmesh_store.state_file import StateFile
from transports.driver import Driver
from transports.link_config import LinkConfig
from transports.loopback import LoopbackHub

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


@pytest.fixture
def store(keyword: LoadedModel, tmp_path: Path) -> Iterator[NodeStore]:
    state = StateFile(tmp_path)
    state.open()
    made = NodeStore(state)
    made.load(keyword.package.model_hash(), keyword.package.dimension)
    yield made
    state.close()


def packet(probe: ProbeSet, truth: np.ndarray, number: int = 1, quality: int = 250) -> list[bytes]:
    units = quantise(np.eye(probe.classes)[truth])
    return [write_part(part) for part in cut_labels(probe.topic, number, quality, units, 105)]


def test_labels_are_drawn_as_the_soft_label_says() -> None:
    own = Rows(x=np.zeros((4, 1)), t=np.full(4, 3))
    samples = WithKnowledge(own, {"x": np.arange(50.0)[:, None]}, TARGET)
    units = np.tile(np.array([6, 2, 0, 0], dtype=np.uint8), (50, 1))
    assert len(samples) == 4
    samples.teach(units, np.ones(50))
    assert len(samples) == 50 + -(-50 // (OWN_SHARE - 1))
    drawn = [samples.batch(np.arange(at, len(samples))) for at in range(17, 50)]
    found = np.concatenate([batch["t"] for batch in drawn])
    assert set(found) == {0, 1}
    assert np.mean(found == 0) == pytest.approx(0.75, abs=0.05)
    one, two = samples.batch(np.arange(67)), samples.batch(np.arange(67))
    assert (one["t"] == two["t"]).all()
    assert (one["t"][:17] == 3).all()


def test_each_round_draws_anew() -> None:
    samples = WithKnowledge(Rows(x=np.zeros(1), t=np.zeros(1)), {"x": np.arange(3.0)}, TARGET)
    samples.teach(np.full((3, 2), 4, np.uint8), np.ones(3))
    drawn = set()
    for samples.round in range(20):
        drawn |= set(samples.batch(np.array([2]))["t"])
    assert drawn == {0, 1}


def test_a_sample_of_weight_zero_is_never_drawn() -> None:
    samples = WithKnowledge(Rows(x=np.zeros(1), t=np.zeros(1)), {"x": np.arange(9.0)}, TARGET)
    weights = np.array([1, 1, 0, 0.1, 0, 0, 0, 0, 0])
    samples.teach(np.full((9, 1), 8, np.uint8), weights)
    assert len(samples) == 1 + 2  # the weights sum to 2.1
    drawn = np.concatenate([samples.batch(np.array([n % 3, 1, 2]))["x"][-2:] for n in range(400)])
    assert set(drawn) <= {0.0, 1.0, 3.0}
    samples.teach(np.full((9, 1), 8, np.uint8), np.full(9, 0.5))
    assert len(samples) == 2 + 4
    samples.teach(np.full((9, 1), 8, np.uint8), np.full(9, 0.01))
    assert len(samples) == 1  # so little is nothing


def test_the_probe_set_is_the_same_for_models_that_see_the_same(
    keyword: LoadedModel, clips: dict[str, Any], tmp_path: Path
) -> None:
    np.savez(tmp_path / "a.npz", x=clips["x"], key=np.arange(CLIPS + OWN))
    np.savez(tmp_path / "b.npz", x=255 - clips["x"], key=np.arange(CLIPS + OWN))
    paths = tmp_path / "a.npz", tmp_path / "b.npz"
    topics = [open_probe_set(path, keyword.package, READ).topic for path in paths]
    assert topics[0].probe != topics[1].probe
    topics = [open_probe_set(path, keyword.package, READ, "key").topic for path in paths]
    assert topics[0] == topics[1]
    with pytest.raises(DataError):
        open_probe_set(paths[0], keyword.package, READ, "nothing")


def test_a_model_without_classes_has_no_probe_set(tiny: LoadedModel, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no classes"):
        open_probe_set(tmp_path, tiny.package, NpzSettings())


def test_a_model_with_more_than_a_row_of_scores_has_no_probe_set(
    keyword: LoadedModel, tmp_path: Path
) -> None:
    outputs = (TensorSpec("output", "float32", (-1, 7, 10)),)
    with pytest.raises(DataError, match="row of scores"):
        open_probe_set(tmp_path, replace(keyword.package, outputs=outputs), READ)


def test_a_packet_is_weighed_stored_and_learned(
    keyword: LoadedModel, clips: dict[str, Any], probe: ProbeSet, store: NodeStore
) -> None:
    own = Rows(features=np.zeros((5, 50, 32), np.float32), t=np.zeros(5, np.int64))
    board, again = BoardKnowledge(probe, own, store), BoardKnowledge(probe, own, store)
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
    again.load()
    again.refresh(inference, 1, 0.6, no_beat)
    assert again.status() == board.status()
    again.refresh(inference, 1, 0.6, no_beat)  # nothing is new


def test_another_run_brings_packets_from_the_first_on(probe: ProbeSet, store: NodeStore) -> None:
    board = BoardKnowledge(probe, Rows(t=np.zeros(1)), store)
    truth = np.zeros(CLIPS, np.int64)
    for body in packet(probe, truth, number=40):
        board.take(body, 0.0)
    board.begin_run()
    for body in packet(probe, truth + 1, number=2):
        board.take(body, 0.0)
    assert board.status().number == 2


@pytest.mark.parametrize(("quality", "shift", "why"), [(100, 0, "worse"), (250, 1, "contradict")])
def test_a_worse_or_lying_teacher_is_not_learned(
    keyword: LoadedModel, clips: dict[str, Any], probe: ProbeSet, store: NodeStore,
    quality: int, shift: int, why: str,
) -> None:  # fmt: skip
    own = Rows(features=np.zeros((5, 50, 32), np.float32), t=np.zeros(5, np.int64))
    board = BoardKnowledge(probe, own, store)
    for body in packet(probe, (clips["y"][:CLIPS] + shift) % 10, quality=quality):
        board.take(body, 0.0)
    board.refresh(Inference(keyword.folder, keyword.package), 1, 0.8, no_beat)
    assert why in board.remark
    assert len(board.samples) == len(own)


def test_the_host_asks_its_model_about_the_probe_set(
    keyword: LoadedModel, probe: ProbeSet, tmp_path: Path
) -> None:
    path = tmp_path / "probe.npz"
    found = open_probe_predictions(keyword.folder, path, READ, "")
    labels = found(np.zeros_like(keyword.initial))
    assert labels.shape == (CLIPS, 10)
    np.testing.assert_allclose(labels.sum(axis=1), 1, rtol=1e-5)
    own = predict(Inference(keyword.folder, keyword.package), probe)
    np.testing.assert_allclose(labels, own, atol=1e-5)
    with pytest.raises(ConfigError, match="knowledge"):
        open_probe_predictions(keyword.folder, tmp_path / "none.npz", READ, "")


@dataclass
class Fleet:
    """A host and a node that has joined it, in simulated time."""

    host: HostProtocol
    driver: Driver[Any]
    node: Node
    knowledge: BoardKnowledge
    time: SimpleNamespace  # its `now`

    def poll(self) -> bool:
        moved = self.driver.poll(0.0, lambda _: None, lambda: None)
        return self.node.turn(0.0) | moved


@pytest.fixture
def fleet(
    keyword: LoadedModel, clips: dict[str, Any], probe: ProbeSet, tmp_path: Path
) -> Iterator[Fleet]:
    np.savez(tmp_path / "own.npz", x=clips["x"][CLIPS:], y=clips["y"][CLIPS:])
    config = NodeConfig(
        name="ada",
        state_dir=str(tmp_path / "ada"),
        model="keyword",
        link=LinkConfig("mqtt://unused.example"),
        data=DataConfig({"features": "x", "target": "y"}, {}, 255.0, str(tmp_path / "own.npz")),
        knowledge=KnowledgeConfig({"features": "x"}, {}, 255.0, str(tmp_path / "probe.npz")),
        training=TrainingConfig(samples_min=8),
        resources=ResourcesConfig(temperature_max_c=0, memory_pressure_max=0),
    )
    package, hub = keyword.package, LoopbackHub()
    plan = make_plan(package.dimension, rounds=2, local_steps=6, learning_rate=0.001)
    host = HostProtocol(
        plan=plan, settings=HostSettings(1, 60.0), model_hash=package.model_hash(), run=b"a run   ",
        state=new_host_state(plan.dimension),
    )  # fmt: skip
    time = SimpleNamespace(now=1000.0)
    driver: Driver[Any] = Driver(host, hub.host(), lambda: time.now)
    driver.transport.open()
    host.start(1000.0)
    state = StateFile(Path(config.state_dir))
    state.open()
    store, end = NodeStore(state), hub.node("ada")
    stored = store.load(package.model_hash(), package.dimension)
    data = with_knowledge(config, package, open_data(config, package, state), store)
    assert data.knowledge is not None
    node = Node(config, keyword, data, store, stored, end, lambda: time.now)
    end.open()
    for body in packet(probe, clips["y"][:CLIPS], number=40):  # of a run before
        data.knowledge.take(body, 0.0)
    node.start()
    yield Fleet(host, driver, node, data.knowledge, time)
    state.close()


def test_a_node_learns_what_its_host_broadcasts(
    fleet: Fleet, clips: dict[str, Any], probe: ProbeSet
) -> None:
    while not fleet.node.protocol.joined:
        fleet.poll()
    fleet.host.session.broadcast(packet(probe, clips["y"][:CLIPS]))
    for _ in range(200):
        fleet.time.now += not fleet.poll()
    assert fleet.host.version == 2
    assert fleet.knowledge.status().known == CLIPS
    assert fleet.knowledge.status().number == 1
    assert fleet.host.nodes[1].samples == OWN  # its weight is that of its own samples
    assert not fleet.node.protocol.refused


def test_a_damaged_part_changes_nothing(probe: ProbeSet, store: NodeStore) -> None:
    board = BoardKnowledge(probe, Rows(t=np.zeros(1)), store)
    body = packet(probe, np.zeros(CLIPS, np.int64))[0]
    with pytest.raises(WireError):
        board.take(body[:-1] + bytes([body[-1] ^ 1]), 0.0)
    assert board.status().known == 0
