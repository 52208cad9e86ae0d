"""`ternmesh experiment m3` with a tiny encoder: the whole command, a kill, and another setting."""

import gzip
import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from ternmesh.bundle import Bundle, TensorSpec
from ternmesh.config import ConfigError
from ternmesh_cli.experiment.arm import Standing, keep_same
from ternmesh_cli.experiment.errors import ExperimentError, PayloadError
from ternmesh_cli.experiment.job import Ledger, State, load_state, save_state
from ternmesh_cli.experiment.payload import FRAME, Message, decode, encode, mean
from ternmesh_cli.experiment.prepare import TESTS, TRAIN, find_data
from ternmesh_cli.experiment.published import OPT_NUMBERS, comparisons, text_bytes
from ternmesh_cli.experiment.result import ArmResult, Round, load_result, save_result, shares
from ternmesh_cli.experiment.screen import Line, seconds_left
from ternmesh_cli.experiment.settings import JSON, TERNARY
from ternmesh_cli.toml import write_toml

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "man", "runs", "sleeps", "nobody", "dog", "the"]
ROUNDS, PAIRS, KILL_S = 2, 2510, 120.0


def bundle() -> Bundle:
    tensors = (
        TensorSpec("encoder.layer.0.attention.self.query.lora_A", "float32", (3, 2)),
        TensorSpec("encoder.layer.0.attention.output.dense.lora_B", "float32", (2, 5)),
        TensorSpec("head.weight", "float32", (7,)),
    )
    return Bundle("tiny", 1, (), (), (), tensors, "accuracy", {})


def vector(seed: int = 0):
    return np.random.default_rng(seed).standard_normal(23).astype(np.float32)


# What travels in the published arms


def test_json_text_holds_every_number_exactly():
    payload = encode(JSON, bundle(), Message("one", 3, vector()))
    message = decode(JSON, bundle(), payload.data)
    assert (message.sender, message.version) == ("one", 3)
    np.testing.assert_array_equal(message.vector, vector())
    content = json.loads(payload.data)
    assert content["tensors"]["head.weight"] == vector()[16:].tolist()


def test_trits_are_the_largest_30_percent_with_one_scale_a_tensor():
    alternating = np.arange(10.0) * (-1.0) ** np.arange(10)
    state = np.concatenate([np.zeros(6), alternating, np.ones(7)]).astype(np.float32)
    decoded = decode(TERNARY, bundle(), encode(TERNARY, bundle(), Message("one", 0, state)).data)
    expected = np.zeros(10, np.float32)
    expected[7:] = (-8, 8, -8)  # of -7, 8 and -9
    np.testing.assert_allclose(decoded.vector[6:16], expected, rtol=1e-6)
    assert not decoded.vector[:6].any()  # nothing stands out: a scale of zero
    assert not decoded.vector[16:].any()


def test_trits_are_packed_first_number_highest():
    state = np.zeros(23, np.float32)
    state[16:18] = (1.0, -1.0)
    content = json.loads(encode(TERNARY, bundle(), Message("one", 0, state)).data)
    assert content["tensors"]["head.weight"]["data"] == "YAA="  # 01 10 00 00, 00 00 00 00
    assert content["tensors"]["head.weight"]["scale"] == 1.0


@pytest.mark.parametrize("codec", [JSON, TERNARY])
def test_the_parts_of_a_payload_are_all_of_it(codec):
    payload = encode(codec, bundle(), Message("one", 3, vector()))
    assert set(payload.parts) == {"q", "o", "head", FRAME}
    assert sum(payload.parts.values()) == len(payload.data)
    assert 40 < payload.parts[FRAME] < 80


@pytest.mark.parametrize("codec", [JSON, TERNARY])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: content.pop("tensors"),
        lambda content: content["tensors"].pop("head.weight"),
        lambda content: content["tensors"].update({"head.weight": [1.0]}),
        lambda content: content["tensors"].update({"head.weight": [float("nan")] * 7}),
        lambda content: content["tensors"].update({"head.weight": "x"}),
        lambda content: content["tensors"].update(
            {"head.weight": {"shape": [7], "scale": float("inf"), "data": "YAA="}}
        ),
        lambda content: content["tensors"].update(
            {"head.weight": {"shape": [7], "scale": 1.0, "data": "Y"}}
        ),
        lambda content: content.update(version="later"),
    ],
)
def test_a_spoilt_payload_is_an_error_of_its_own(codec, spoil):
    content = json.loads(encode(codec, bundle(), Message("one", 3, vector())).data)
    spoil(content)
    with pytest.raises(PayloadError):
        decode(codec, bundle(), json.dumps(content).encode())
    with pytest.raises(PayloadError):
        decode(codec, bundle(), b"\xff{")


def test_the_mean_of_states():
    np.testing.assert_array_equal(
        mean([np.float32([1, 2]), np.float32([3, -2])]), np.float32([2, 0])
    )


# What is kept


def test_a_state_survives_and_another_models_is_refused(tmp_path):
    path = tmp_path / "state.npz"
    assert load_state(path, vector()).version == 0
    save_state(path, State(4, vector(1)))
    kept = load_state(path, vector())
    assert kept.version == 4
    np.testing.assert_array_equal(kept.vector, vector(1))
    with pytest.raises(ExperimentError, match="another model"):
        load_state(path, vector()[:5])
    for damaged in (b"spoilt", b""):
        path.write_bytes(damaged)
        with pytest.raises(ExperimentError, match="remove it"):
            load_state(path, vector())


# Offsets in an entry of the archive's list of contents: APPNOTE.TXT, section 4.3.12.
@pytest.mark.parametrize(
    "at",
    [
        pytest.param(0, id="signature"),
        pytest.param(8, id="encrypted"),
        pytest.param(10, id="compression method"),
    ],
)
def test_a_damaged_state_says_what_to_do(tmp_path, at: int):
    path = tmp_path / "state.npz"
    save_state(path, State(3, vector()))
    content = bytearray(path.read_bytes())
    content[content.rindex(b"PK\x01\x02") + at] ^= 1
    path.write_bytes(content)
    with pytest.raises(ExperimentError, match="remove it"):
        load_state(path, vector())


def test_a_round_that_is_done_again_is_counted_once(tmp_path):
    Ledger(tmp_path / "rounds.json").note(0, {"up": 1})
    Ledger(tmp_path / "rounds.json").note(0, {"up": 2})
    assert json.loads((tmp_path / "rounds.json").read_text()) == {"0": {"up": 2}}


def result(name: str, size: int, accuracy: float = 0.75) -> ArmResult:
    return ArmResult(
        name, name, {"q": 60, "head": 40}, (Round(1, {"one": size, "two": size}, 3),), 10,
        {"q": 1.0}, {"q": 1.0}, False, {"one": accuracy, "two": accuracy}, {}, ((0, 0.5),), 0, 1.0,
    )  # fmt: skip


def test_a_result_survives(tmp_path):
    assert load_result(tmp_path / "result.json") is None
    save_result(tmp_path / "result.json", result("m3a", 800))
    kept = load_result(tmp_path / "result.json")
    assert kept == result("m3a", 800)
    assert kept.bits(100) == 64
    assert kept.bytes_run == (1600, 3)


def test_shares_are_by_the_count_of_numbers():
    assert shares(200.0, {"q": 60, "head": 40}) == {"q": 120.0, "head": 80.0}


def test_another_setting_is_refused_by_its_name(tmp_path):
    path = tmp_path / "setting.json"
    keep_same(path, {"rounds": 2, "run": {"layers": ("a",)}}, "it holds another")
    keep_same(path, {"rounds": 2, "run": {"layers": ("a",)}}, "it holds another")
    with pytest.raises(ConfigError, match=r"run\.layers = \['a'\], not \['b'\]"):
        keep_same(path, {"rounds": 2, "run": {"layers": ("b",)}}, "it holds another")


# What is told


def test_the_published_sizes_follow_from_the_models_of_the_log():
    assert OPT_NUMBERS == 786_432
    assert OPT_NUMBERS * text_bytes() / 1e6 == pytest.approx(17.5, abs=0.2)
    shown = {c.figure: c for c in comparisons({"m3a": result("m3a", 2240), "m3b": result("m", 35)})}
    measured = shown["Compression"].measured
    assert "11.4x below float32, 5.7x below float16, 64.0x below" in measured
    assert "not run" in shown["Hypervectors"].measured


def test_the_time_left_follows_the_pace():
    lines = [Line("m3a", 10, Standing("waiting")), Line("m3b", 10, Standing("waiting"))]
    assert seconds_left(lines) is None
    lines[0].update(Standing("learning", 4), 100.0)  # resumed: the pace counts from here
    lines[0].update(Standing("learning", 6), 120.0)
    assert seconds_left(lines) == 4 * 10.0 + 10 * 10.0


def test_toml_leaves_out_what_is_none():
    assert write_toml({"": {"a": 1, "b": None}, "t": {"c": ("x",), "d": True}}) == (
        'a = 1\n[t]\nc = ["x"]\nd = true\n'
    )


def test_missing_data_says_what_to_fetch(tmp_path):
    with pytest.raises(ExperimentError, match="snli_train_5k"):
        find_data(tmp_path)


# The whole command


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A random encoder with a tokenizer of a dozen words, and data in those words."""
    transformers = pytest.importorskip(
        "transformers", reason="transformers is not installed: pip install -e '.[text]'"
    )
    import torch

    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, max_position_embeddings=40,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(folder / "encoder")
    vocabulary = {word: index for index, word in enumerate(WORDS)}
    transformers.BertTokenizerFast(vocab=vocabulary).save_pretrained(folder / "encoder")
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
        sys.executable, "-m", "ternmesh_cli.main", "experiment", "m3", "--dir", str(out),
        "--data", str(tiny), "--encoder", str(tiny / "encoder"), "--rounds", str(ROUNDS),
        "--steps", "2", "--length", "100", "--json", *more,
    ]  # fmt: skip


def workers(out) -> list[int]:
    """The processes that still run for the experiment in `out`."""
    shown = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True)
    lines = [line.split(None, 1) for line in shown.stdout.splitlines()]
    return [int(pid) for pid, arguments in lines if str(out) in arguments]


def test_the_whole_experiment_through_a_kill(tiny, tmp_path, eventually):
    out = tmp_path / "m3"
    first = subprocess.Popen(
        command(tiny, out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        eventually((out / "m3a" / "host" / "rounds.json").exists, KILL_S)
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    made_at = os.stat(out / "data" / "one.npz").st_mtime_ns

    done = subprocess.run(command(tiny, out), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert os.stat(out / "data" / "one.npz").st_mtime_ns == made_at
    eventually(lambda: not workers(out))
    answer = json.loads(done.stdout)
    check_arms(answer["arms"])
    page = (out / "report.html").read_text()
    kept = (out / "report.md").read_text()
    assert "| m3a | m3b | ours |" in kept
    assert "17.5 MB" in kept
    assert page.count("<svg") == 2
    assert "17.5 MB" in page

    again = subprocess.run(command(tiny, out), capture_output=True, text=True, check=False)
    assert json.loads(again.stdout) == answer  # nothing is run again
    other = [*command(tiny, out), "--seed", "1"]
    refused = subprocess.run(other, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "seed = 0, not 1: name another --dir" in refused.stderr


def check_arms(arms) -> None:
    assert list(arms) == ["m3a", "m3b", "ours"]
    for name, arm in arms.items():
        lora = 8 * (8 + 8)
        published = {"q": lora, "k": lora, "v": lora, "o": lora, "head": 27}
        numbers = {"other": 100, "head": 27} if name == "ours" else published
        found = SimpleNamespace(**arm)
        assert found.numbers == numbers
        assert (found.steps, found.rounds) == (2 * ROUNDS, ROUNDS)
        parts = set(numbers) | (set() if name == "ours" else {FRAME})
        assert set(found.bytes_up_by_part) == set(found.bytes_down_by_part) == parts
        assert sum(found.bytes_up_by_part.values()) == pytest.approx(found.bytes_up)
        assert found.bytes_run_up == pytest.approx(found.bytes_up * 2 * ROUNDS)
        assert found.parts_are_shares_by_count is (name == "ours")
        assert set(found.accuracy) == {"one", "two"}
        assert found.accuracy["one"] == found.accuracy["two"]  # both hold one reference
        assert {version for version, _ in found.curve} >= {0, ROUNDS}
        assert found.seconds > 0
    assert arms["m3a"]["bytes_up"] > 20 * sum(published.values())
    assert arms["m3b"]["bytes_up"] < arms["m3a"]["bytes_up"] / 5
