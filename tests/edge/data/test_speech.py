"""Shipped speech stands beside a board's own words, and begins no training."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge.data import speech
from edge.data.feed import Rehearsal
from edge.data.speech import SHARE, shipped_speech
from edge.onnx.session import LoadedModel
from models.zoo import speech_path
from ternmesh.model_package import FRONT
from tests.edge.conftest import FrontedPackage


@pytest.fixture
def words(
    new_fronted: FrontedPackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> LoadedModel:
    """A model of words; the shipped speech is 30 rows of its front."""
    loaded = new_fronted(1.0, 8000, "other")
    rows = np.arange(60, dtype=np.int8).reshape(30, 2)
    np.savez(tmp_path / "rows.npz", rows=rows, scale=0.5, front=loaded.package.files[FRONT])
    monkeypatch.setattr(speech, "speech_path", lambda: tmp_path / "rows.npz")
    return loaded


class Own:
    """One sample of the board."""

    def __init__(self, sample: dict[str, np.ndarray]) -> None:
        self._sample = sample

    def __len__(self) -> int:
        return 1

    def batch(self, indexes: np.ndarray) -> dict[str, np.ndarray]:
        return {name: array[indexes * 0] for name, array in self._sample.items()}

    def set_aside(self, reasons: object) -> None: ...


def test_clips_are_rows_in_a_row_and_none_of_the_words(words: LoadedModel) -> None:
    found = shipped_speech(words.package)
    assert found is not None
    assert len(found) == 27
    batch = found.batch(np.array([0, 26]))
    assert batch["target"].tolist() == [0, 0]
    assert batch["features"].tolist()[1] == [[26, 26.5], [27, 27.5], [28, 28.5], [29, 29.5]]
    one = {"features": np.full((1, 4, 2), 99, np.float32), "target": np.array([1])}
    both = Rehearsal(Own(one), found, SHARE)
    drawn = both.batch(np.arange(len(both)))
    assert (drawn["target"] == 1).mean() == SHARE
    assert (drawn["features"][drawn["target"] == 1] == 99).all()


def test_another_front_or_no_label_for_it_has_none(words: LoadedModel) -> None:
    package = words.package
    assert shipped_speech(replace(package, labels=("down", "up"))) is None
    assert shipped_speech(replace(package, files={**package.files, FRONT: "0" * 64})) is None


def test_what_is_shipped_is_speech_in_rows() -> None:
    with np.load(speech_path()) as archive:
        assert (archive["rows"].shape, archive["rows"].dtype) == ((10_000, 96), np.int8)
        assert 0.5 < archive["rows"].std() * archive["scale"] < 2.0, "as the shelf divides them"
        assert len(str(archive["front"])) == 64
