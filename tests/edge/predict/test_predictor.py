"""Predictions with an adapter file that is replaced, also by bad ones."""

import os
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge.errors import ModelError, OutOfMemory
from edge.onnx.session import Inference, LoadedModel, read_adapter, write_adapter
from edge.predict import predictor as module
from edge.predict.predictor import Predictor
from ternmesh.model_package import ModelPackage

X = {"x": np.linspace(-1, 1, 12, dtype=np.float32).reshape(2, 6)}


def bare(loaded: LoadedModel, adapter: Path) -> np.ndarray:
    inference = Inference(loaded.folder, loaded.package)
    inference.use_adapter(adapter)
    return inference.predict(X)["y"]


def test_a_classifier_gives_labels_and_probabilities(classifier, adapter, write) -> None:
    predictor = Predictor(classifier, adapter)
    logits = bare(classifier, adapter).astype(np.float64)
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(predictor.predict_now(X), expected, rtol=1e-6)
    for row, found in zip(expected, predictor.predict(X), strict=True):
        names = [classifier.package.labels[at] for at in np.argsort(-row)]
        assert [label for label, _ in found.top] == names
        assert (found.label, found.version, found.output) == (names[0], 1, None)
        assert found.top[0][1] == pytest.approx(row.max())


def test_a_label_below_the_threshold_is_not_given(classifier, adapter, write) -> None:
    best = Predictor(classifier, adapter).predict_now(X).max(axis=1)
    threshold = [0.0]
    predictor = Predictor(classifier, adapter, threshold=lambda: threshold[0])
    assert all(found.label for found in predictor.predict(X))
    threshold[0] = float(np.mean(best))  # it may change at any time
    assert [bool(one.label) for one in predictor.predict(X)] == list(best >= threshold[0])
    assert all(found.top for found in predictor.predict(X))


def test_a_regression_gives_its_output_and_classes_may_have_no_names(
    tiny, classifier, adapter, write
) -> None:
    predictor = Predictor(tiny, adapter)
    expected = bare(tiny, adapter)
    np.testing.assert_array_equal(predictor.predict_now(X), expected)
    for row, found in zip(expected, predictor.predict(X), strict=True):
        np.testing.assert_array_equal(found.output, row)
        assert (found.label, found.top) == (None, ())
    plain = replace(classifier, package=replace(classifier.package, labels=()))
    (first, _) = Predictor(plain, adapter).predict(X)
    assert sorted(label for label, _ in first.top) == ["0", "1", "2"]


def spoil(bad: str, package: ModelPackage, adapter: Path) -> None:
    """Put something bad in the place of the adapter file."""
    other = adapter.with_name("other")
    match bad:
        case "deleted":
            adapter.unlink()
        case "cut in place":  # a mapped file would end the process
            os.truncate(adapter, 0)
        case "folder" | "fifo":
            adapter.unlink()
            adapter.mkdir() if bad == "folder" else os.mkfifo(adapter)
        case "other model":
            package = replace(package, adapter=package.adapter[:1])
            write_adapter(other, package, np.zeros(package.dimension, np.float32), 2)
            other.replace(adapter)
        case _:
            other.write_text(bad)
            other.replace(adapter)


@pytest.mark.parametrize(
    "bad",
    ["no adapter", "", "nan", "huge", "folder", "fifo", "other model", "deleted", "cut in place"],
)
def test_a_bad_adapter_changes_nothing(bad: str, tiny, adapter, write, caplog) -> None:
    predictor, inference = Predictor(tiny, adapter), Inference(tiny.folder, tiny.package)
    inference.use_adapter(adapter)
    expected, count = predictor.predict_now(X), int(bad != "deleted")
    if bad in ("nan", "huge"):
        write(2, np.nan if bad == "nan" else 3e38)
    else:
        spoil(bad, tiny.package, adapter)
    for _ in range(3):
        np.testing.assert_array_equal(predictor.predict_now(X), expected)
    np.testing.assert_array_equal(inference.predict(X)["y"], expected)
    assert (predictor.version, predictor.bad_adapters) == (1, count)
    assert caplog.text.count("the last good adapter") == count
    if bad != "folder":
        write(3)
        assert predictor.predict(X)[0].version == 3
        np.testing.assert_array_equal(predictor.predict_now(X), bare(tiny, adapter))


def test_short_memory_does_not_make_an_adapter_bad(tiny, adapter, write, monkeypatch) -> None:
    predictor = Predictor(tiny, adapter)

    def short(*_: object) -> None:
        raise OutOfMemory("it needs more memory")

    with monkeypatch.context() as patched:
        patched.setattr(Inference, "predict", short)
        with pytest.raises(ModelError, match="more memory"):
            predictor.predict(X)
    assert predictor.predict(X)[0].version == 1
    assert predictor.bad_adapters == 0


def test_without_an_adapter_there_is_a_sentence(tiny, adapter) -> None:
    with pytest.raises(ModelError, match="no good adapter at"):
        Predictor(tiny, adapter).predict_now(X)


def test_a_file_that_is_replaced_while_it_is_read_is_read_again(
    tiny, adapter, write, monkeypatch
) -> None:
    read = read_adapter
    monkeypatch.setattr(module, "read_adapter", lambda *of: (read(*of), write(7))[0])
    predictor = Predictor(tiny, adapter)
    predictor.refresh()
    assert predictor.version == 1
    monkeypatch.undo()
    assert predictor.predict(X)[0].version == 7


@pytest.mark.nightly
def test_threads_never_see_half_a_swap(tiny, adapter, write) -> None:
    """Each prediction is that of one adapter, and its version is the right one."""
    expected = {}
    for version in range(1, 6):
        write(version)
        expected[version] = bare(tiny, adapter)
    predictor, stop, faults = Predictor(tiny, adapter), threading.Event(), []

    def run() -> None:
        while not stop.is_set():
            found = predictor.predict(X)
            same = np.array_equal(np.asarray(found[0].output), expected[found[0].version][0])
            faults.extend([] if same else [found])

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for swap in range(100):
        write(1 + swap % 5)
    stop.set()
    for thread in threads:
        thread.join()
    assert not faults
    assert predictor.bad_adapters == 0
