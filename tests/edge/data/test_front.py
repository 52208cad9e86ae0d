"""Samples pass a frozen front once: clips and streams, files, the buffer, nodes."""

import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edge.data.decode import read_sample
from edge.data.feed import Feed
from edge.data.front import Front
from edge.data.live.microphone import MicrophoneSource
from edge.data.live.options import MicrophoneOptions
from edge.data.logmel import RATE, model_input, read_clip
from edge.data.probe_set import open_probe_set, predict
from edge.data.sources import FolderData, Label, NpzSettings, Sample, open_folder
from edge.errors import DataError, ModelError
from edge.export import export_learned
from edge.node import Node
from edge.onnx.session import FrontGraph, Inference, LoadedModel, load_model, write_adapter
from edge.predict.predictor import Predictor
from edge.predict.server import PredictionServer
from models.tails import FrozenFront, write_tail
from ternmesh.model_package import FrontSpec, TensorSpec
from tests.edge.conftest import FrontedPackage, model_file
from tests.edge.data.conftest import NewBuffer, ask
from tests.edge.data.test_logmel import write_wav
from tests.edge.fleet import World
from tests.edge.predict.conftest import Client

Slopes = dict[str, np.ndarray]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes with which fronts are run."""
    shapes: list[tuple[int, ...]] = []
    run = FrontGraph.run

    def note(graph: FrontGraph, window: Any) -> Any:
        shapes.append(window.shape)
        return run(graph, window)

    monkeypatch.setattr(FrontGraph, "run", note)
    return shapes


def files(loaded: LoadedModel, slopes: Slopes, folder: Path) -> FolderData:
    np.savez(folder / "a.npz", **slopes)  # type: ignore[arg-type]
    return open_folder(folder / "a.npz", loaded.package.outside(), NpzSettings())


def sample(number: int, slopes: Slopes) -> Sample:
    return Sample(str(number), {"sound": slopes["sound"][number]})


def label(number: int, slopes: Slopes) -> Label:
    return Label(str(number), {"target": slopes["target"][number]})


def test_the_buffer_keeps_rows_and_sound_only_while_a_label_is_awaited(
    fronted: LoadedModel, slopes: Slopes, new_buffer: NewBuffer, calls: list[Any], state: Any
) -> None:
    buffer, front = new_buffer(fronted.package), Front(fronted)
    items: list[Sample | Label] = [sample(at, slopes) for at in range(3)]
    items += [label(1, slopes), Sample("bad", {"sound": np.zeros(9, np.float32)})]
    items += [Sample("nan", {"sound": np.full(10, np.nan, np.float32)})]
    feed = Feed(SimpleNamespace(poll=lambda _: items), buffer, 1.0, front)
    feed.poll(0.0)
    assert (len(buffer), buffer.waiting, buffer.counters.refused) == (1, 2, 2)
    ran = len(calls)
    assert ran == 3 * 4
    buffer = new_buffer(fronted.package)  # as after a restart
    [rows] = buffer.inputs([1, 2]).values()
    [wanted] = front.rows({"sound": slopes["sound"][:2]}).values()
    np.testing.assert_array_equal(rows, wanted)
    np.testing.assert_array_equal(buffer.batch(np.array([0]))["features"], wanted[1:])
    sizes = [size for (size,) in state.rows("SELECT length(inputs) FROM replay_sample")]
    assert sizes == [32 + 40, 32, 32 + 40]
    np.testing.assert_array_equal(buffer.shown([1])[0], slopes["sound"][0])
    assert buffer.shown([2])[0].shape == (4, 2)
    shown = ask(buffer, "queue")["rows"]
    assert [row["shape"] for row in shown] == [[10], [10]]
    buffer.label(label(0, slopes))
    assert buffer.shown([1])[0].shape == (4, 2)
    assert len(calls) == ran, "nothing passes the front again, in the buffer or lately"


def test_rows_tell_a_moved_file_and_go_with_their_front(
    fronted: LoadedModel, new_fronted: FrontedPackage, slopes: Slopes, new_buffer: NewBuffer, caplog
) -> None:
    front = Front(fronted)
    for name in ("a", "b"):
        buffer = new_buffer(fronted.package)
        buffer.add([front.enter(replace(sample(0, slopes), key=f"{name}@1", file=name))])
    assert (buffer.counters.repeated, buffer.waiting) == (1, 1)
    buffer.label(replace(label(0, slopes), key="b@1"))
    assert len(new_buffer(fronted.package)) == 1
    assert len(new_buffer(new_fronted(2.0).package)) == 0
    assert "1 labelled samples are deleted" in caplog.text


def test_files_pass_the_front_once(
    fronted: LoadedModel,
    new_fronted: FrontedPackage,
    slopes: Slopes,
    calls: list[Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    data = files(fronted, slopes, tmp_path)

    def rows(loaded: LoadedModel = fronted) -> np.ndarray:
        front = Front(loaded, cache=tmp_path / "rows")
        made = front.data(data)
        front.prune()
        assert len(made) == 96
        np.testing.assert_array_equal(made.batch(np.arange(96))["target"], slopes["target"])
        return made.batch(np.arange(96))["features"]

    first = rows()
    assert len(calls) == 96 * 4
    assert "0 of 96 samples have passed" in caplog.text
    np.testing.assert_array_equal(rows(), first)
    assert len(calls) == 96 * 4, "the second start reads what the first has made"
    [file] = (tmp_path / "rows").glob("*.npz")
    file.write_bytes(b"damaged")
    np.testing.assert_array_equal(rows(), first)
    assert not np.array_equal(rows(new_fronted(2.0)), first)
    assert len([*(tmp_path / "rows").glob("*.npz")]) == 1, "rows that nobody reads are deleted"
    full = Front(fronted, cache=tmp_path / "a.npz")  # no folder can be made there
    np.testing.assert_array_equal(full.data(data).batch(np.arange(96))["features"], first)
    assert "makes its rows again" in caplog.text


def test_a_sample_that_gives_no_row_is_set_aside(
    fronted: LoadedModel, slopes: Slopes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = files(fronted, slopes, tmp_path)
    bad: dict[int, Any] = {7: ModelError("broken"), 9: np.full((4, 2), np.inf, np.float32)}
    run, seen = Front.rows, iter(range(96))

    def spoilt(front: Front, inputs: Any) -> Any:
        found = bad.get(next(seen))
        if isinstance(found, ModelError):
            raise found
        return run(front, inputs) if found is None else {"features": found[None]}

    monkeypatch.setattr(Front, "rows", spoilt)
    made = Front(fronted).data(data)
    assert sorted(name[-8:] for name, _ in made.aside.newest) == ["sample 7", "sample 9"]
    assert np.isfinite(made.batch(np.arange(96))["features"]).all()


def test_a_front_that_does_not_fit_its_tail_is_a_sentence(fronted: LoadedModel) -> None:
    specs = fronted.package.batch_inputs
    wide = (replace(specs[0], shape=(8, 4, 3)), specs[1])
    front = Front(replace(fronted, package=replace(fronted.package, batch_inputs=wide)))
    with pytest.raises(ModelError, match="makes rows of 2 numbers, and its tail takes 3"):
        front.row(np.zeros(4, np.float32))


@pytest.fixture
def fleet(fronted: LoadedModel, slopes: Slopes, tmp_path: Path) -> Any:
    parts = {"ada": slice(0, 40), "bob": slice(40, 80), "dev": slice(80, 96)}
    data = {name: {key: a[part] for key, a in slopes.items()} for name, part in parts.items()}
    made = World(fronted, data, tmp_path)
    made.new_host(min_peers=2)
    yield made
    made.close()


def test_nodes_learn_on_rows(fleet: World, calls: list[Any]) -> None:
    nodes: list[Node] = [fleet.add("ada"), fleet.add("bob")]
    ran = len(calls)
    assert ran == (40 + 40 + 16 + 16) * 4
    fleet.finish()
    assert len(calls) == ran, "training and evaluation cost no front"
    for node in nodes:
        scores = [entry.metric for entry in node.evaluation.history]
        assert scores[0] is not None
        assert scores[0] < 0.7
        assert scores[-1] is not None
        assert scores[-1] > 0.9
        np.testing.assert_array_equal(node.global_adapter, fleet.global_adapter())


def test_a_probe_set_is_of_samples_and_is_predicted_by_rows(
    fronted: LoadedModel, new_fronted: FrontedPackage, slopes: Slopes, tmp_path: Path
) -> None:
    np.savez(tmp_path / "a.npz", sound=slopes["sound"][:5])
    made = [
        open_probe_set(tmp_path / "a.npz", one.package, NpzSettings(), "", Front(one))
        for one in (fronted, new_fronted(2.0))
    ]
    assert made[0].topic == made[1].topic
    found = predict(Inference(fronted.folder, fronted.package), made[0])
    assert found.shape == (5, 2)


def test_an_exported_package_keeps_its_front(fronted: LoadedModel, tmp_path: Path) -> None:
    vector = np.arange(18, dtype=np.float32)
    made = export_learned(tmp_path, fronted, vector, 3)
    learned = load_model(made[0])
    assert learned.package.front == fronted.package.front
    np.testing.assert_array_equal(learned.initial, vector)


def test_sound_comes_in_the_rate_of_the_front(new_fronted: FrontedPackage, tmp_path: Path) -> None:
    package, front = new_fronted(rate=16_000).package, FrontSpec(4000, 2000, 4, 1.0, 16_000)
    package = replace(package, front=front, inputs=(TensorSpec("sound", "float32", (-1, 10_000)),))
    package = package.outside()
    tone = np.sin(np.arange(8000) * 0.3).astype(np.float32)
    quiet_then_tone = np.concatenate([tone * 0.01, tone * 0.5, tone[:800]])
    path = write_wav(tmp_path / "a.wav", RATE, 2, 1, quiet_then_tone)
    read = read_sample(path, package)["sound"]
    assert read.shape == (10_000,)
    assert 9900 <= len(read_clip(path, front=front)) <= 10_002
    assert np.abs(read).max() > 0.4
    assert np.argmax(np.abs(np.fft.rfft(read))) == round(10_000 * 0.3 / 2 / np.pi / 2)
    short = model_input(tone[:3], 16_000, front)
    np.testing.assert_array_equal(short, [*[0] * 4998, *tone[:3], *[0] * 4999])
    assert len(model_input(np.resize(tone, 48_000), 48_000, front)) == 10_000
    MicrophoneSource(MicrophoneOptions(), package)
    with pytest.raises(DataError, match="a microphone gives sound"):
        MicrophoneSource(MicrophoneOptions(), new_fronted().package.outside())


def test_predictions_take_samples_and_live_ones_pass_the_front_once(
    fronted: LoadedModel, slopes: Slopes, tmp_path: Path, calls: list[Any]
) -> None:
    write_adapter(tmp_path / "a", fronted.package, np.arange(18, dtype=np.float32), 1)
    predictor, front = Predictor(fronted, tmp_path / "a"), Front(fronted)
    server = PredictionServer(tmp_path / "p.sock", predictor)
    server.start()
    try:
        with Client(tmp_path / "p.sock") as client:
            sound = slopes["sound"][0].tolist()
            found = client.ask({"id": 1, "inputs": {"sound": sound}})
            assert "shape (4,)" in client.ask({"id": 2, "inputs": {"sound": sound[:4]}})["error"]
        entered = front.enter(sample(0, slopes))
        ran = len(calls)
        assert server.predict_live([entered]) == pytest.approx({"0": found["top"][0][1]}, abs=1e-4)
        assert len(calls) == ran
    finally:
        server.close()
    same = predictor.predict({"sound": slopes["sound"][:1]})
    assert same == predictor.predict_rows(front.rows({"sound": slopes["sound"][:1]}))


def test_a_front_may_take_whole_samples(tmp_path: Path) -> None:
    flat = "(float[1, 3, 2, 2] image) => (float[1, 12] row) { row = Flatten (image) }"
    spec = FrontSpec(window=0, hop=0, rows=1, scale=2.0, rate=0)
    front = FrozenFront(spec, model_file(flat), TensorSpec("image", "float32", (-1, 3, 2, 2)))
    write_tail(tmp_path, rows=1, width=12, classes=3, name="eyes", front=front)
    loaded = load_model(tmp_path)
    assert loaded.package.inputs[0].shape == (-1, 3, 2, 2)
    images = np.random.default_rng(0).random((5, 3, 2, 2)).astype(np.float32)
    rows = Front(loaded).rows({"image": images})
    np.testing.assert_array_equal(rows["features"], images.reshape(5, 12) * 2)
    [output] = Inference(loaded.folder, loaded.package).predict(rows).values()
    assert output.shape == (5, 3)
