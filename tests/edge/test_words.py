"""Words in a stream of sound: the rows are those of clips, a word is told once, misses are kept."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.data.front import Front
from edge.data.heard import HEARD, NEAR
from edge.data.logmel import Resampler, resample
from edge.errors import DataError
from edge.onnx.session import FrontGraph, write_adapter
from edge.predict.predictor import Predictor
from edge.words import NOTHING, REFRACTORY_S, Trigger, WordStream, new_stream
from tests.edge.conftest import FrontedPackage

HOP_S = 0.08


@pytest.fixture
def predictor(new_fronted: FrontedPackage, tmp_path: Path) -> Predictor:
    loaded = new_fronted(1.0, 8000, "other")
    write_adapter(tmp_path / "adapter", loaded.package, loaded.initial, 1)
    return Predictor(loaded, tmp_path / "adapter")


def found(scores: list[float], threshold: float = 0.8) -> list[tuple[int, str]]:
    trigger = Trigger("up", threshold)
    events = [trigger.take(score, NOTHING, at * HOP_S) for at, score in enumerate(scores)]
    return [(at, event.kind) for at, event in enumerate(events) if event is not None]


def test_a_word_is_told_once_and_a_miss_when_it_is_over() -> None:
    rest = [0.0, 0.0, 0.0]
    word = [0.9, 0.9, 0.9, *rest]
    wavers = [0.9, 0.9, 0.9, 0.6, 0.9, 0.9, 0.9]
    assert found([*rest, *wavers, *rest]) == [(5, HEARD)], "one word"
    assert found([*rest, 0.7, 0.7, 0.7, *rest]) == [(7, NEAR)]
    assert found([float("nan")] * 5) == [], "a model that has diverged"
    assert HEARD not in dict(found([*rest, 1.0, 0.0, 0.0])).values(), "one score is no word"
    assert found([*rest, *word, *word]) == [(5, HEARD)], "within the pause it is not told again"
    hops = round(REFRACTORY_S / HOP_S)
    assert found([*rest, *word, *(0.0,) * hops, *word]) == [(5, HEARD), (9 + hops + 2, HEARD)]


@given(st.lists(st.floats(0, 1), max_size=200), st.floats(0.1, 1))
def test_of_any_scores(scores: list[float], threshold: float) -> None:
    events = found(scores, threshold)
    heard = [at for at, kind in events if kind == HEARD]
    means = [np.mean(scores[max(0, at - 2) : at + 1]) for at in range(len(scores))]
    assert all(means[at] >= threshold - 1e-9 for at in heard)
    assert all((b - a) * HOP_S >= REFRACTORY_S - 1e-9 for a, b in itertools.pairwise(heard))
    assert all(means[at] < threshold / 2 + 1e-9 for at, kind in events if kind == NEAR)
    assert bool(heard) >= any(mean >= threshold + 1e-9 for mean in means)


@pytest.mark.parametrize("part", [1, 3, 40])
def test_a_stream_scores_the_rows_of_clips(predictor: Predictor, monkeypatch, part: int) -> None:
    """The front sees the loudest moment of its window: another window would be another row."""
    shapes, scored = set(), []
    run, shares = FrontGraph.run, Predictor.shares

    def note(graph: FrontGraph, window: Any) -> Any:
        shapes.add(window.shape)
        return run(graph, window)

    def note_rows(one: Predictor, rows: Any) -> Any:
        [array] = rows.values()
        scored.append(array)
        return shares(one, rows)

    monkeypatch.setattr(FrontGraph, "run", note)
    monkeypatch.setattr(Predictor, "shares", note_rows)
    sound = np.random.default_rng(0).standard_normal(40).astype(np.float32)
    stream = new_stream(predictor, ["up"], 0.8, 8000)
    for start in range(0, len(sound), part):
        stream.take(sound[start : start + part])
    assert shapes == {(1, 4)}
    assert len(scored) == 17
    whole = np.concatenate([np.zeros(2, np.float32), sound])  # a stream begins in silence
    for at, rows in enumerate(scored):
        [clip] = predictor.front.rows({"sound": whole[None, 2 * at : 2 * at + 10]}).values()
        assert clip.tobytes() == rows.tobytes()


@pytest.mark.parametrize("rate", [8000, 11_025, 16_000, 44_100, 48_000])
@pytest.mark.parametrize("part", [500, 4801])
def test_a_stream_is_resampled_as_a_whole_file(rate: int, part: int) -> None:
    sound = np.random.default_rng(1).standard_normal(2 * rate).astype(np.float32)
    resampler = Resampler(rate, 16_000)
    pieces = [resampler.take(sound[at : at + part]) for at in range(0, len(sound), part)]
    made = np.concatenate(pieces)
    wanted = resample(sound, rate, 16_000)
    assert 0 <= len(wanted) - len(made) < 16_000 * 0.1
    edge = 50  # where a file begins, its filter knows no sound before
    np.testing.assert_allclose(made[edge:], wanted[edge : len(made)], atol=1e-5)


def test_a_word_and_a_miss(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    score = 0.0
    monkeypatch.setattr(Predictor, "shares", lambda *_: np.array([[1 - score, score]]))
    stream = new_stream(predictor, ["up"], 0.8, 16_000)
    assert isinstance(stream, WordStream)
    noise = np.random.default_rng(2).normal(size=64_000).astype(np.float32)
    loud = 0.3 * noise[:6400]

    def kinds(sound: Any) -> list[tuple[str, str, int]]:
        return [(one.kind, one.word, len(one.sound)) for one in stream.take(sound)]

    score = 0.9
    assert kinds(loud) == [(HEARD, "up", 10)]
    score = 0.0
    assert kinds(np.zeros(1280, np.float32)) == []
    score = 0.6
    assert kinds(loud[:1280]) == []
    score = 0.0
    assert kinds(np.zeros(640, np.float32)) == [(NEAR, "up", 10)]


def test_a_rate_that_is_none_of_sound(predictor: Predictor) -> None:
    with pytest.raises(DataError, match="7999 Hz: send 8000 to 48000 Hz"):
        new_stream(predictor, ["up"], 0.8, 7999)
    assert isinstance(predictor.front, Front)
