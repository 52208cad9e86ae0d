"""`python -m experiments m3` with a tiny encoder, and the messages of the published arms."""

import gzip
import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from experiments.m3.payload import decode, encode, part_bytes
from experiments.m3.prepare import TESTS, TRAIN
from experiments.m3.report import OPT_NUMBERS, comparisons, text_bytes
from experiments.m3.results import ArmResult, Round
from experiments.m3.settings import JSON, NODES, TERNARY
from ternmesh.model_package import ModelPackage, TensorSpec

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "man", "runs", "sleeps", "nobody", "dog", "the"]
ROUNDS, PAIRS = 2, 2510


def package() -> ModelPackage:
    tensors = (
        TensorSpec("encoder.layer.0.attention.self.query.lora_A", "float32", (3, 2)),
        TensorSpec("encoder.layer.0.attention.output.dense.lora_B", "float32", (2, 5)),
        TensorSpec("head.weight", "float32", (7,)),
    )
    return ModelPackage("tiny", 1, (), (), (), tensors, "accuracy", {})


def vector(seed: int = 0):
    return np.random.default_rng(seed).standard_normal(23).astype(np.float32)


# Messages of the published arms


def test_json_text_holds_every_number_exactly():
    message = encode(JSON, package(), "one", 3, vector())
    np.testing.assert_array_equal(decode(JSON, package(), message), vector())
    content = json.loads(message)
    assert (content["sender"], content["version"]) == ("one", 3)
    assert content["tensors"]["head.weight"] == vector()[16:].tolist()


def test_trits_are_the_largest_30_percent_with_one_scale_a_tensor():
    alternating = np.arange(10.0) * (-1.0) ** np.arange(10)
    sent = np.concatenate([np.zeros(6), alternating, np.ones(7)]).astype(np.float32)
    read = decode(TERNARY, package(), encode(TERNARY, package(), "one", 0, sent))
    expected = np.zeros(10, np.float32)
    expected[7:] = (-8, 8, -8)  # of -7, 8 and -9
    np.testing.assert_allclose(read[6:16], expected, rtol=1e-6)
    assert not read[:6].any()  # no number is above the percentile: a scale of zero
    assert not read[16:].any()


def test_trits_are_packed_first_number_highest():
    sent = np.zeros(23, np.float32)
    sent[16:18] = (1.0, -1.0)
    content = json.loads(encode(TERNARY, package(), "one", 0, sent))
    assert content["tensors"]["head.weight"]["data"] == "YAA="  # 01 10 00 00, 00 00 00 00
    assert content["tensors"]["head.weight"]["scale"] == 1.0


def result(name: str, size: int, accuracy: float = 0.75) -> ArmResult:
    return ArmResult(
        name=name,
        title=name,
        dimension=100,
        rounds=(Round(1, {"one": size, "two": size}, 3),),
        steps=10,
        accuracy=accuracy,
        seconds=1.0,
        parts={},
    )


def test_bytes_are_told_by_component():
    message = encode(JSON, package(), "one", 3, vector())
    sizes = part_bytes(message)
    assert set(sizes) == {"q", "out", "head"}
    assert 0 < len(message) - sum(sizes.values()) < 250


def test_the_published_sizes_follow_from_the_model_of_the_log():
    assert OPT_NUMBERS == 786_432
    assert OPT_NUMBERS * text_bytes() / 1e6 == pytest.approx(17.5, abs=0.2)
    rows = comparisons({"m3a": result("m3a", 2240), "m3b": result("m3b", 35)})
    measured = {name: shown for name, _, _, shown in rows}
    expected = "11.4x below float32, 5.7x below float16, 64.0x below"
    assert expected in measured["Compression"]
    assert "not run" in measured["Hypervectors"]


# The whole command


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A random DistilBERT with a tokenizer of a dozen words, and data in those words."""
    transformers = pytest.importorskip(
        "transformers", reason="transformers is not installed: pip install -e '.[text]'"
    )
    import torch

    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    config = transformers.DistilBertConfig(
        vocab_size=len(WORDS), dim=8, n_layers=1, n_heads=2, max_position_embeddings=40
    )
    transformers.DistilBertModel(config).save_pretrained(folder / "encoder")
    vocabulary = {word: index for index, word in enumerate(WORDS)}
    transformers.DistilBertTokenizerFast(vocab=vocabulary).save_pretrained(folder / "encoder")
    rng = np.random.default_rng(0)
    (folder / "snli").mkdir()
    for name, count in ((TRAIN, PAIRS), *((name, 20) for name in TESTS)):
        rows = ["id\tlabel\tpremise\thypothesis"]
        for index in range(count):
            label = ("entailment", "neutral", "contradiction")[index % 3]
            words = rng.choice(WORDS[4:], 6)
            rows.append(f"{index}\t{label}\t{' '.join(words[:3])}\t{' '.join(words[3:])}")
        with gzip.open(folder / "snli" / name, "wt") as file:
            file.write("\n".join(rows) + "\n")
    return folder


def command(tiny, out, *more: str) -> list[str]:
    return [
        sys.executable, "-m", "experiments", "m3", "--dir", str(out), "--data", str(tiny),
        "--encoder", str(tiny / "encoder"), "--rounds", str(ROUNDS), "--steps", "2",
        "--length", "100", *more,
    ]  # fmt: skip


@pytest.mark.nightly
def test_the_whole_experiment(tiny, tmp_path):
    out = tmp_path / "m3"
    done = subprocess.run(command(tiny, out), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "ours: learning, round 2 of 2" in done.stderr
    results = json.loads((out / "result.json").read_text())
    for name in ("m3a", "m3b", "ours"):
        check_arm(name, results[name])
    page = (out / "report.html").read_text()
    assert page.count("<svg") == 3
    assert "17.5 MB" in page
    again = subprocess.run(command(tiny, out), capture_output=True, text=True, check=False)
    assert again.returncode == 2
    assert "is not empty: name another folder" in again.stderr


def check_arm(name: str, found: dict[str, Any]) -> None:
    lora = 4 * 8 * (8 + 8) + 27
    assert found["dimension"] == (127 if name == "ours" else lora)
    assert (found["steps"], len(found["rounds"])) == (2 * ROUNDS, ROUNDS)
    for item in found["rounds"]:
        for rows in (item["bytes_up"], item["loss"], item["accuracy"]):
            assert set(rows) == set(NODES)
        seen = [v for v in item["accuracy"].values() if v is not None or name != "ours"]
        assert all(0 <= value <= 1 for value in seen)
        assert all(value > 0 for value in item["loss"].values())
    assert None not in found["rounds"][-1]["accuracy"].values()
    up = sum(sum(item["bytes_up"].values()) for item in found["rounds"]) / (2 * ROUNDS)
    if name == "ours":
        assert not found["parts"]
        return
    assert up > 20 * lora if name == "m3a" else up < 4 * lora
    assert set(found["parts"]) == {"q", "k", "v", "out", "head"}
