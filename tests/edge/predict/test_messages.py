"""What a request may say."""

import base64
import json
import tracemalloc
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.errors import DataError
from edge.predict.messages import (
    ID_MAX,
    OUTPUT_MAX,
    Request,
    answer,
    as_request,
    read_request,
    read_sample,
)
from edge.predict.predictor import Prediction
from ternmesh.model_package import TensorSpec

SPECS = (TensorSpec("x", "float32", (8, 2, 3)), TensorSpec("n", "int64", (8,)))
X = np.arange(6, dtype=np.float32).reshape(2, 3)
SIZE_MAX = 10_000
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def coded(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode()


@pytest.mark.parametrize(
    "line",
    [
        json.dumps({"id": "a", "inputs": {"x": X.tolist(), "n": 7}}).encode(),
        as_request("a", {"x": X, "n": np.array(7)}),
    ],
)
def test_lists_and_bytes_give_the_same_arrays(line: bytes) -> None:
    request = read_request(line, SIZE_MAX)
    assert request.id == "a"
    assert request.inputs is not None
    found = read_sample(request.inputs, SPECS)
    np.testing.assert_array_equal(found["x"], X)
    assert [str(found[name].dtype) for name in "xn"] == ["float32", "int64"]
    assert int(found["n"]) == 7


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ({"x": X.tolist()}, "has the inputs x, n"),
        ({"x": X.tolist(), "n": 1, "z": 2}, "has the inputs x, n"),
        ({"x": X[0].tolist(), "n": 1}, "shape"),
        ({"x": [[1, 2, 3], [4, 5]], "n": 1}, "shape"),
        ({"x": [[1, 2, 3], [4, 5, "six"]], "n": 1}, "must be float32"),
        ({"x": [[1, 2, 3], [4, 5, None]], "n": 1}, "must be float32"),
        ({"x": [[1, 2, 3], [4, 5, float("nan")]], "n": 1}, "NaN or infinity"),
        ({"x": [[1, 2, 3], [4, 5, 1e300]], "n": 1}, "NaN or infinity"),
        ({"x": coded(X + np.inf), "n": 1}, "NaN or infinity"),
        ({"x": coded(X)[:-4], "n": 1}, "x is no float32"),
        ({"x": "no base64", "n": 1}, "x is no float32"),
        ({"x": X.tolist(), "n": 1.5}, "must be int64"),
        ({"x": X.tolist(), "n": 1 << 70}, "must be int64"),
    ],
    ids=str,
)
def test_what_does_not_fit_the_model_is_a_sentence(inputs: dict[str, object], why: str) -> None:
    with np.errstate(invalid="ignore"), pytest.raises(DataError, match=why):
        read_sample(inputs, SPECS)


LINES = b"""
hello
[1]
3
{"id": %s}
{}
{"id": 1}
{"id": [], "inputs": {}}
{"id": 1.5, "inputs": {}}
{"inputs": []}
{"inputs": {}, "follow": true}
{"follow": 1}
{"follow": true, "surprise": 1}
""".replace(b"%s", b"1" * 5000).split(b"\n")
LONG = b'{"id": "%s", "inputs": {}}' % (b"i" * (ID_MAX + 1))


@pytest.mark.parametrize(
    "line", [*LINES, LONG, b"[" * 9000, b"\xff", b" " * (SIZE_MAX + 1)], ids=lambda line: line[:30]
)
def test_what_is_no_request_is_a_sentence(line: bytes) -> None:
    with pytest.raises(
        DataError, match=r"this is no request: write|a request has|no request \(Exp"
    ):
        read_request(line, SIZE_MAX)


def test_texts_in_place_of_numbers_take_no_memory() -> None:
    """numpy would give each of them the room of the longest: here a gigabyte."""
    texts = ["a" * 100_000, *[""] * 2500]
    tracemalloc.start()
    for inputs, specs in (
        ({"x": texts}, SPECS[:1]),
        ({"x": texts}, (TensorSpec("x", "float32", (8, len(texts))),)),
    ):
        with pytest.raises(DataError):
            read_sample(inputs, specs)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


@given(JSON)
@settings(max_examples=40)
def test_any_value_is_a_request_and_an_input_or_a_sentence(value: object) -> None:
    with suppress(DataError):
        assert isinstance(read_request(json.dumps(value).encode(), SIZE_MAX), Request)
    with suppress(DataError):
        assert read_sample({"x": X.tolist(), "n": value}, SPECS)["n"].shape == ()


def test_answers() -> None:
    sure = Prediction(4, "bee", (("bee", 0.75), ("ant", 0.25)))
    assert answer(1, sure, 0.0021) == {
        "id": 1,
        "version": 4,
        "ms": 2.1,
        "label": "bee",
        "uncertain": False,
        "top": [["bee", 0.75], ["ant", 0.25]],
    }
    unsure = answer(1, Prediction(4, None, (("bee", 0.4),)), 0.0)
    assert (unsure["label"], unsure["uncertain"]) == (None, True)
    assert answer(1, Prediction(4, output=np.array([1.5])), 0.0)["output"] == [1.5]
    assert "not finite" in answer(1, Prediction(4, output=np.array([np.nan])), 0.0)["error"]
    long = Prediction(4, output=np.zeros(OUTPUT_MAX + 1))
    assert "more than" in answer(1, long, 0.0)["error"]
    assert answer(1, DataError("a sentence"), 0.0) == {"id": 1, "error": "a sentence"}
