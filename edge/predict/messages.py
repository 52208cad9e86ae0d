"""Requests for predictions, and their answers: JSON objects on one line."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge.data.sources import Arrays, convert
from edge.errors import DataError
from edge.predict.predictor import Prediction
from ternmesh.model_package import TensorSpec

ID_MAX = 256  # characters
OUTPUT_MAX = 16_384  # numbers in an answer
BUSY = "busy, try later"

Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """A line of a client: a sample to predict, or whether it wants each live prediction."""

    id: str | int | None = None
    inputs: Mapping[str, Any] | None = None
    follow: bool | None = None


def read_request(line: bytes, size_max: int) -> Request:
    """The request in a line of at most `size_max` bytes; DataError."""
    if len(line) > size_max:
        raise DataError(f"a request has more than {size_max} bytes")
    try:
        request = Request(**json.loads(line))
    except (ValueError, TypeError, RecursionError) as error:
        why = f" ({error})" if isinstance(error, json.JSONDecodeError) else ""
        raise DataError(f'this is no request{why}: write {{"id": 1, "inputs": {{..}}}}') from error
    is_named = isinstance(request.id, str | int | None) and len(str(request.id)) <= ID_MAX
    is_follow = isinstance(request.follow, bool)
    if not is_named or isinstance(request.inputs, Mapping) == is_follow:
        raise DataError(
            f"a request has inputs by name or follow, and an id of at most {ID_MAX} characters"
        )
    return request


def read_sample(inputs: Mapping[str, Any], specs: Sequence[TensorSpec]) -> Arrays:
    """The model's arrays of one sample; DataError where they do not fit, or are not finite.

    Each is an array, a list of lists, or base64 of its little-endian bytes in the model's dtype.
    """
    if set(inputs) != {spec.name for spec in specs}:
        raise DataError(f"a sample has the inputs {', '.join(spec.name for spec in specs)}")
    return {spec.name: _array(inputs[spec.name], spec) for spec in specs}


def _array(value: Any, spec: TensorSpec) -> np.ndarray[Any, Any]:
    shape = spec.shape[1:]
    try:
        if isinstance(value, str):
            raw = base64.b64decode(value, validate=True)
            array = np.frombuffer(raw, np.dtype(spec.dtype).newbyteorder("<")).reshape(shape)
        elif isinstance(value, np.ndarray):
            array = value
        else:
            # As objects first: numpy gives each of many texts the room of the longest.
            array = np.asarray(value, object)
            if array.shape == shape and all(
                issubclass(kind, float | int | np.generic) for kind in set(map(type, array.flat))
            ):
                array = np.asarray(value)
    except (ValueError, OverflowError, RecursionError) as error:
        raise DataError(f"{spec.name} is no {spec.dtype} of shape {shape}: {error}") from error
    if array.shape != shape:
        raise DataError(f"{spec.name} has shape {array.shape}: it must be {shape}")
    return convert(array, spec, spec.name)


def answer(request_id: str | int | None, result: Prediction | Exception, seconds: float) -> Answer:
    """The answer to a request: a prediction, or why there is none."""
    if isinstance(result, Exception):
        return {"id": request_id, "error": str(result) or repr(result)}
    base = {"id": request_id, "version": result.version, "ms": round(1000 * seconds, 3)}
    if result.output is None:
        top = [[label, round(probability, 4)] for label, probability in result.top]
        return {**base, "label": result.label, "uncertain": result.label is None, "top": top}
    if not np.isfinite(result.output).all():
        return {"id": request_id, "error": "the model's output is not finite for this sample"}
    if result.output.size > OUTPUT_MAX:
        return {"id": request_id, "error": f"the output has more than {OUTPUT_MAX} numbers"}
    return {**base, "output": result.output.tolist()}


def as_request(request_id: str | int | None, inputs: Arrays) -> bytes:
    """The line that asks for a prediction of one sample, in the dtypes of the model."""
    arrays = {
        name: base64.b64encode(array.astype(array.dtype.newbyteorder("<")).tobytes()).decode()
        for name, array in inputs.items()
    }
    return json.dumps({"id": request_id, "inputs": arrays}).encode() + b"\n"
