import hashlib
import subprocess
import sys

import numpy as np
import onnxruntime as ort
import pytest

from models.zoo import fsdd_path, package_path, rooms_path
from ternmesh.model_package import read_model_package


def clips(split: str, speakers: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    with np.load(fsdd_path(split)) as data:
        wanted = np.isin(data["speaker_names"][data["speaker"]], speakers)
        return data["x"][wanted].astype(np.float32) / 255, data["y"][wanted]


def test_the_shipped_package_is_complete() -> None:
    folder = package_path("keyword")
    package = read_model_package((folder / "model.json").read_bytes())
    assert (package.name, package.metric, package.batch) == ("keyword", "accuracy", 32)
    assert 13_000 <= package.dimension <= 16_500
    for file, digest in package.files.items():
        assert hashlib.sha256((folder / file).read_bytes()).hexdigest() == digest
    assert sum(path.stat().st_size for path in folder.iterdir()) < 4_000_000


def test_the_shipped_model_knows_its_three_speakers_and_not_the_others() -> None:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    path = package_path("keyword") / "forward.onnx"
    forward = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def accuracy(*speakers: str) -> float:
        x, y = clips("dev", speakers)
        (logits,) = forward.run(None, {"features": x})
        return float((logits.argmax(-1) == y).mean())

    assert accuracy("george", "jackson", "lucas") >= 0.97
    assert accuracy("theo", "nicolas", "yweweler") <= 0.85


def test_each_room_lacks_three_words_and_two_voices_say_each() -> None:
    with np.load(rooms_path()) as data:
        part, speaker, word = (data[name] for name in ("part", "speaker", "y"))
        names, index = data["part_names"].tolist(), data["index"]
    heard = [word[(part == names.index("heard")) & (speaker == room)] for room in range(3)]
    counts = np.array([np.bincount(words, minlength=10) for words in heard])
    assert (np.sort(counts) == [0] * 3 + [20] * 7).all()
    assert ((counts > 0).sum(0) == [3] + [2] * 9).all()
    takes = [set(index[part == number].tolist()) for number in range(3)]
    assert not takes[0] & takes[1] | takes[0] & takes[2] | takes[1] & takes[2]
    assert np.bincount(word[part == names.index("judged")]).tolist() == [15] * 10


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="'other': choose one of keyword, words"):
        package_path("other")
    with pytest.raises(ValueError, match="it must be one of train, dev"):
        fsdd_path("test")


def test_the_zoo_needs_neither_torch_nor_onnxruntime() -> None:
    code = "import sys, models.zoo; sys.exit(bool({'torch', 'onnxruntime'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
