"""What a page for labels is answered, with the shipped keyword model and its recordings."""

import base64
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edge.data import labels
from edge.data.buffer import ReplayBuffer
from edge.data.labels import IMAGE_MAX, PresentModel, image
from edge.data.sources import Label, Sample
from edge.onnx.session import Inference, load_model
from models.zoo import fsdd_path, package_path
from tests.edge.data.conftest import NewBuffer, ask

LOADED = load_model(package_path("keyword"))
NAMES = list(LOADED.package.labels)


@pytest.fixture
def buffer(new_buffer: NewBuffer) -> ReplayBuffer:
    return new_buffer(LOADED.package)


@pytest.fixture(scope="module")
def model() -> PresentModel:
    inference = Inference(LOADED.folder, LOADED.package)

    def scores(inputs: Any) -> Any:
        own = LOADED.package.split(LOADED.initial)
        return inference.predict({**own, **inputs})[LOADED.package.outputs[0].name]

    return PresentModel(scores, 0, 0.5)


def clips(count: int) -> list[Sample]:
    """Recordings 0 to `count`, and noise, of which no model is as certain."""
    with np.load(fsdd_path("dev")) as data:
        x = data["x"][: 3 * count : 3].astype(np.float32) / 255
    noise = np.random.default_rng(0).random((50, 32), np.float32)
    return [
        *(Sample(str(n), {"features": clip}) for n, clip in enumerate(x)),
        Sample("noise", {"features": noise / 9}),
    ]


def target(key: str, number: int) -> Label:
    return Label(key, {"target": np.array(number)})


def test_the_least_certain_come_first_with_guesses_and_a_picture(buffer, model) -> None:
    samples = clips(40)
    buffer.add(samples)
    found = ask(buffer, "queue", model, limit=30)
    rows = found.pop("rows")
    assert found == {
        "labels": NAMES, "waiting": 41, "labelled": 0, "score": 0.5, "held_out": 0, "clip_s": 0.0
    }  # fmt: skip
    sure = [row["certainty"] for row in rows]
    assert len(rows) == 30
    assert sure == sorted(sure)
    assert sure[0] < 0.9 < sure[-1] <= 1
    by_key = {sample.key: sample.inputs["features"] for sample in samples}
    for row in rows:
        scores = model.scores({"features": by_key[row["key"]][None]})[0]
        assert row["guesses"][0] == [NAMES[scores.argmax()], row["certainty"]]
        assert [len(row["guesses"]), row["shape"]] == [3, [50, 32]]
        assert 0 <= row["age_s"] < 60
        x = by_key[row["key"]]
        pixels = np.frombuffer(base64.b64decode(row["image"]), np.uint8).reshape(50, 32)
        np.testing.assert_allclose(pixels / 255, (x - x.min()) / np.ptp(x), atol=0.003)
    assert ask(buffer, "queue", model, limit=1)["rows"][0]["key"] == rows[0]["key"]


def test_wrong_labels_are_among_the_worst(buffer, model, monkeypatch) -> None:
    """A quarter of the labels is wrong, and the model is right on most recordings of this split."""
    samples = clips(40)[:-1]
    with np.load(fsdd_path("dev")) as data:
        right = data["y"][:120:3]
    labels_given = [(y + (n % 4 == 0)) % 10 for n, y in enumerate(right)]
    buffer.add([*samples, *(target(str(n), y) for n, y in enumerate(labels_given))])
    found = ask(buffer, "worst", model)
    rows = found["rows"]
    assert (found["samples"], found["of"], len(rows)) == (40, 40, 40)
    losses = [row["loss"] for row in rows]
    assert losses == sorted(losses, reverse=True)
    wrong = [int(row["key"]) % 4 == 0 for row in rows[:10]]
    assert sum(wrong) >= 7
    assert all(row["guess"] != row["label"] for row in rows[:5])
    monkeypatch.setattr(labels, "WORST_S", 0.0)
    reached = ask(buffer, "worst", model)
    assert (reached["samples"], reached["of"]) == (LOADED.package.batch, 40)
    monkeypatch.setattr(labels, "WORST_MAX", 5)
    assert len(ask(buffer, "worst", model)["rows"]) == 5
    broken = replace(model, scores=lambda inputs: np.full((5, 10), np.nan))
    assert "diverged" in ask(buffer, "worst", broken)


def test_one_label_for_many_and_undo(buffer, new_buffer, model) -> None:
    buffer.add([*clips(5), target("0", 2)])
    keys = ["4", "0", "1", "4"]
    done = ask(buffer, "label", keys=keys, label="seven")
    assert done == {"labelled": 3, "before": {"4": None, "0": "two", "1": None}}
    buffer = new_buffer(LOADED.package)  # it is on the disk
    found = ask(buffer, "labelled", model)
    assert {row["key"]: row["label"] for row in found["rows"]} == dict.fromkeys("014", "seven")
    assert (found["labelled"], found["waiting"]) == (3, 3)
    assert ask(buffer, "label", keys=["3"], label="3")["labelled"] == 1  # a number is a name, too
    assert ask(buffer, "labelled", limit=1)["rows"][0]["key"] == "3"
    assert [row["key"] for row in ask(buffer, "labelled", keys=["1", "2"])["rows"]] == ["1", "2"]
    assert ask(buffer, "unlabel", keys=["4", "0", "2"])["unlabelled"] == 2
    buffer = new_buffer(LOADED.package)
    assert [row["key"] for row in ask(buffer, "labelled")["rows"]] == ["3", "1"]
    assert buffer.batch(np.arange(2))["target"].tolist() == [7, 3]
    assert sorted(buffer.key(row) for row in buffer.groups()[None]) == ["0", "2", "4", "noise"]


@pytest.mark.parametrize(
    ("what", "values", "sentence"),
    [
        ("label", {"keys": ["0", "a", "b"], "label": "one"}, "no sample has the key 'a', 'b'"),
        ("label", {"keys": ["0"], "label": "ten"}, "'ten' is no label of keyword: it has zero"),
        ("label", {"keys": ["0"], "label": True}, "label must be the name of a label, not True"),
        ("label", {"keys": [], "label": "one"}, "keys must be a list of 1 to 200 keys"),
        ("label", {"keys": ["0"] * 201, "label": "one"}, "keys must be a list of 1 to 200 keys"),
        ("unlabel", {"keys": "0"}, "keys must be a list"),
        ("unlabel", {"keys": ["\ud800"]}, "no sample has the key '\\ud800'"),
        ("unlabel", {}, "keys must be a list"),
        ("queue", {"limit": 51}, "limit must be a whole number from 1 to 50, not 51"),
        ("labelled", {"limit": True}, "limit must be a whole number"),
        ("worst", {}, "needs a node that runs"),
        ([], {}, "does not know the request"),
    ],
)
def test_what_does_not_fit_is_refused_whole(buffer, what, values, sentence) -> None:
    buffer.add(clips(2))
    assert sentence in ask(buffer, what, **values)
    assert (len(buffer), buffer.waiting) == (0, 3)
    assert "are files" in ask(None, what, **values)


def test_what_is_undone_is_kept_and_asked_for_next(new_buffer) -> None:
    buffer = new_buffer(LOADED.package, 4)
    buffer.add([Sample("wrong", {"features": np.zeros((50, 32))}), target("wrong", 1)])
    buffer.add(clips(3), dict.fromkeys(("0", "1", "2", "noise"), 0.2))
    ask(buffer, "unlabel", keys=["wrong"])
    assert [ask(buffer, "queue", limit=4)["rows"][0]["key"], buffer.waiting] == ["wrong", 4]
    assert buffer.counters.expired == 1


def test_a_sample_that_was_learned_is_no_news_after_undo_and_a_slip_stays_news(new_buffer) -> None:
    """Else its next label would be scored by a model that was trained on it."""
    buffer = new_buffer(LOADED.package)
    buffer.add([*clips(3), target("0", 1)])  # which hands it to the evaluation
    ask(buffer, "unlabel", keys=["0"])
    ask(buffer, "label", keys=["2"], label="two")
    ask(buffer, "unlabel", keys=["2"])  # a slip that is corrected at once
    assert buffer.add([]).size == 0
    buffer = new_buffer(LOADED.package)
    ask(buffer, "label", keys=["0", "1", "2"], label="two")
    assert buffer.add([]).tolist() == [1, 2]
    ask(buffer, "unlabel", keys=["1"])
    ask(buffer, "label", keys=["1"], label="one")
    assert buffer.add([]).size == 0


@pytest.mark.parametrize("scores", [np.full((2, 10), np.inf), np.zeros((2, 5, 10))])
def test_a_model_without_shares_gives_no_guess(buffer, model, scores) -> None:
    buffer.add(clips(1))
    for row in ask(buffer, "queue", replace(model, scores=lambda inputs: scores))["rows"]:
        assert (row["guesses"], row["certainty"]) == ([], None)


@pytest.mark.parametrize(
    ("shape", "shown"),
    [
        ((1, 50, 32), [50, 32]),
        ((224, 224), [112, 112]),
        ((3, 224, 224), [3, 112, 112]),
        ((200_000,), [25_000]),
        ((99_999, 2, 2), None),
        ((2, 2, 2, 2), None),
        ((1,), None),
    ],
)
def test_an_image_is_small_or_left_out(shape, shown) -> None:
    found = image(np.zeros(shape, np.float32))
    assert (found["image"] is None) == (shown is None)
    if shown is not None:
        assert found["shape"] == shown
        assert len(base64.b64decode(found["image"])) == np.prod(shown) <= IMAGE_MAX
