"""Labels that people give, and requests about the samples of a source (docs/labels.md).

A request is begun in the thread of the node, which reads what it needs of the buffer. Where the
model has work to do, `finish_data` does it in the thread of the client: training goes on meanwhile.
"""

import base64
import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.config import NodeConfig
from edge.data.buffer import KEY_MAX, RATED_MAX, ReplayBuffer
from edge.data.feed import Feed
from edge.data.sources import Label, class_count, class_names, label_arrays
from edge.errors import DataError, EdgeError, ModelError
from edge.evaluation import softmax
from edge.trainer import Arrays
from ternmesh.model_package import ModelPackage
from ternmesh_service.config_file import load_model_package
from ternmesh_service.control_socket import DATA
from ternmesh_store.database import StoreError
from ternmesh_store.state_file import StateFile

LATER = "later"  # in place of an answer: the rest of the work, for `finish_data`
BUSY_S = 5.0  # how long a request waits while the work of another one is done
ROWS_MAX, KEYS_MAX, GUESSES = 50, 200, 3
IMAGE_MAX = 48 << 10  # bytes, a third more as base64
READ_MAX = 16 << 20  # bytes of inputs that one request reads
WORK_S = 0.5  # of a queue, after which no further batch is predicted
WORST_MAX, WORST_S = 256, 2.0  # labelled samples that are compared; as WORK_S
LEAST = 1e-30  # the share of a class that counts where it is smaller, so that a loss is finite

Later = Callable[[], dict[str, Any]]  # the rest of an answer; ModelError
_WORK = threading.Lock()  # held by the request whose work is done: each needs memory


@dataclass(frozen=True, slots=True)
class PresentModel:
    """The model of a running node at the time of a request. Any thread may call its functions."""

    scores: Callable[[Arrays], NDArray[Any]]  # the first output
    held_out_count: int  # samples behind `score`; 0: it is that of new labels
    score: float | None  # the newest
    clip_s: float = 0.0  # of sound in one sample of a model with a front that hears


def answer_stopped(config: NodeConfig, request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of a node that does not run, from its state file; DataError or StoreError."""
    state, data = StateFile(Path(config.state_dir)), config.data
    if data.source is None or not state.path.exists():
        raise StoreError(f"{config.name} has no samples of a source in {config.state_dir}")
    package = load_model_package(config.model)
    buffer = ReplayBuffer(state, package, data.replay_samples_max, data.replay_bytes_max)
    with closing(state):
        state.open()
        buffer.load(may_clear=False)
        return finish_data(answer_data(buffer, request))


def finish_data(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The whole answer, from that of `answer_data`, in a thread that need not be the node's."""
    if LATER not in answer:
        return dict(answer)
    if not _WORK.acquire(timeout=BUSY_S):
        return {"error": "the answer to another request is being computed: ask again"}
    try:
        return {DATA: answer[LATER]()}
    except (EdgeError, MemoryError) as error:
        return {"error": str(error) or "there is too little memory"}
    finally:
        _WORK.release()


def answer_data(
    buffer: ReplayBuffer | None,
    request: Mapping[str, Any],
    model: PresentModel | None = None,
    feed: Feed | None = None,
) -> dict[str, Any]:
    """The answer to a request about samples, for `finish_data`; `feed` fills the buffer."""
    try:
        if buffer is None:
            raise DataError("the samples of this node are files: it has none of a source")
        match request[DATA]:
            case "heard":
                if feed is None or feed.words is None:
                    raise DataError(f"{buffer.package.name} has no front that hears")
                feed.given += feed.words.take(request)
                return {DATA: len(feed.given)}
            case "record":
                record = getattr(feed and feed.source, "record", None)  # of a microphone
                if record is None:
                    raise DataError('this needs a board with [data] source = "microphone"')
                record(request.get("label"), request.get("count", 0))
                return {DATA: True}
            case "list":
                return {DATA: _groups(buffer)}
            case "queue" | "labelled":
                return {LATER: begin_rows(buffer, request, model)}
            case "label" if "keys" in request:
                answer = label_many(buffer, request)
                _judge(feed, answer["before"], request["label"])
                return {DATA: answer}
            case "unlabel":
                answer = unlabel(buffer, request)
                _judge(feed, answer["before"], None)
                return {DATA: answer}
            case "worst":
                return {LATER: begin_worst(buffer, model)}
            case "label":
                newest = buffer.groups().get(None, [])[-1:]
                if not (key := request["key"] or next(map(buffer.key, newest), "")):
                    raise DataError("no sample waits for a label")
                label = Label(key, label_arrays(buffer.package, request["label"]))
                row = buffer.find(key)
                before = {key: label_of(buffer, row)}
                is_labelled = buffer.label(label)
                _judge(feed, before if is_labelled else {}, label_of(buffer, row))
                return {DATA: key if is_labelled else None}
            case "forget":
                return {DATA: _forget(buffer, **request["which"])}
            case other:
                raise DataError(f"a node does not know the request {other!r:.100}")
    except DataError as error:
        return {"error": str(error)}


def _judge(feed: Feed | None, before: Mapping[str, str | None], label: str | None) -> None:
    """Count what a person says of words that were heard."""
    if feed is not None and feed.words is not None:
        for key, old in before.items():
            feed.words.judge(key, old, label)


def _groups(buffer: ReplayBuffer) -> list[dict[str, Any]]:
    """What waits for a label (None), what is stored under each, and what is set aside, and why."""
    names = {None: None} | dict(enumerate(class_names(buffer.package)))
    groups = [(names.get(label, "labelled"), rows) for label, rows in buffer.groups().items()]
    if aside := buffer.rows_aside():
        groups.append((f"set aside: {buffer.aside.newest[-1][1]}", aside))
    return [
        {
            "label": label,
            "samples": len(rows),
            "bytes": len(rows) * buffer.sizes()[label is not None],
            "newest": buffer.key(rows[-1]),
            "newest_s": buffer.age_s(rows[-1]),
            "oldest_s": buffer.age_s(rows[0]),
        }
        for label, rows in groups
    ]


def _forget(
    buffer: ReplayBuffer,
    key: str | None = None,
    label: str | None = None,
    older_s: float | None = None,
    unlabelled: bool = False,
    set_aside: bool = False,
) -> int:
    """Delete the samples that fit all that is given."""
    groups, aside = buffer.groups(), set(buffer.rows_aside())
    chosen = aside.union(row for rows in groups.values() for row in rows)
    if set_aside:
        chosen &= aside
    if key is not None:
        chosen &= {buffer.find(key)}
    if label is not None:
        if not class_count(buffer.package):
            raise DataError(f"{label!r:.100} is no label of {buffer.package.name}: it has none")
        [target] = label_arrays(buffer.package, label).values()
        chosen.intersection_update(groups.get(int(target), ()))
    if older_s is not None:
        chosen.intersection_update(buffer.older_than(older_s))
    if unlabelled:
        chosen.intersection_update(groups.get(None, ()))
    return buffer.forget(chosen)


def begin_rows(
    buffer: ReplayBuffer, request: Mapping[str, Any], model: PresentModel | None
) -> Later:
    """Samples as a page shows them; DataError.

    "queue": those that wait for a label, the least certain first; "labelled": the newest labels,
    or the samples in `keys`.
    """
    limit, is_queue = request.get("limit", ROWS_MAX), request[DATA] == "queue"
    if type(limit) is not int or not 1 <= limit <= ROWS_MAX:
        raise DataError(f"limit must be a whole number from 1 to {ROWS_MAX}, not {limit!r:.100}")
    if is_queue:
        rows = _readable(buffer, buffer.least_certain(), RATED_MAX)
    else:
        rows = _find(buffer, request)[:limit] if "keys" in request else newest(buffer, limit)
    names, package, inputs = class_names(buffer.package), buffer.package, buffer.inputs(rows)
    images = buffer.shown(rows)
    head = {
        "labels": names,
        "waiting": buffer.waiting,
        "labelled": len(buffer),
        "score": model and model.score,
        "held_out": model and model.held_out_count,
        "clip_s": model.clip_s if model else 0.0,
    }
    shown: list[dict[str, Any]] = []
    for row in rows:
        is_labelled = row in buffer.classes
        about: dict[str, Any] = {"label": label_of(buffer, row)} if is_labelled else {}
        about["certainty"] = None if is_labelled else buffer.certainty_of(row)
        shown.append({"key": buffer.key(row), "age_s": buffer.age_s(row), "guesses": [], **about})

    def finish() -> dict[str, Any]:
        stop_at = time.monotonic() + WORK_S
        predicted = () if model is None else probabilities(model, package, inputs, stop_at)
        for row, shares in zip(shown, predicted, strict=False):
            if np.isfinite(shares).all():
                best = np.argsort(-shares, kind="stable")[:GUESSES]
                row["guesses"] = [[names[at], float(shares[at])] for at in best]
                row["certainty"] = float(shares[best[0]])
        order = list(range(len(shown)))
        if is_queue:
            certainties = [row["certainty"] for row in shown]
            order.sort(key=lambda at: math.inf if certainties[at] is None else certainties[at])
        return {"rows": [shown[at] | image(images[at]) for at in order[:limit]], **head}

    return finish


def begin_worst(buffer: ReplayBuffer, model: PresentModel | None) -> Later:
    """The newest labelled samples, the one with the largest loss first; DataError.

    The loss is large where the model is sure of another label: wrong labels stand at the top.
    """
    names, package, count = class_names(buffer.package), buffer.package, len(buffer)
    if model is None or not names:
        raise DataError("this needs a node that runs, and a model with classes")
    rows = newest(buffer, WORST_MAX) if count else []
    keys, classes = [buffer.key(row) for row in rows], [buffer.classes[row] for row in rows]
    inputs = buffer.inputs(rows)

    def finish() -> dict[str, Any]:
        by_sample = probabilities(model, package, inputs, time.monotonic() + WORST_S)
        if not np.isfinite(by_sample).all():
            raise ModelError("the model gives numbers that are not finite: has training diverged?")
        reached = range(len(by_sample))
        losses = [-math.log(max(LEAST, by_sample[at][classes[at]])) for at in reached]
        shown = [
            {
                "key": keys[at],
                "label": names[classes[at]],
                "guess": names[int(by_sample[at].argmax())],
                "loss": losses[at],
            }
            for at in sorted(reached, key=losses.__getitem__, reverse=True)
        ]
        return {"samples": len(shown), "of": count, "rows": shown}

    return finish


def newest(buffer: ReplayBuffer, limit: int) -> list[int]:
    """The ids of labelled samples, the newest label first; before the start, the newest sample."""
    return _readable(buffer, list(reversed(buffer.classes)), limit)


def label_many(buffer: ReplayBuffer, request: Mapping[str, Any]) -> dict[str, Any]:
    """Give samples one label. DataError, and none has it, where a key or the label is unknown."""
    name = request.get("label")
    if not isinstance(name, str):
        raise DataError(f"label must be the name of a label, not {name!r:.100}")
    targets, rows = label_arrays(buffer.package, name), _find(buffer, request)
    before = {buffer.key(row): label_of(buffer, row) for row in rows}
    return {"labelled": buffer.label(*(Label(key, targets) for key in before)), "before": before}


def unlabel(buffer: ReplayBuffer, request: Mapping[str, Any]) -> dict[str, Any]:
    """Take labels back; the samples wait again. DataError where a key is unknown."""
    rows = _find(buffer, request)
    before = {buffer.key(row): label_of(buffer, row) for row in rows}
    return {"unlabelled": buffer.unlabel(rows), "before": before}


def label_of(buffer: ReplayBuffer, row: int) -> str | None:
    """The name of a sample's label; None where it has none, or no class."""
    return dict(enumerate(class_names(buffer.package))).get(buffer.classes.get(row, -1))


def probabilities(
    model: PresentModel, package: ModelPackage, inputs: Arrays, stop_at: float
) -> NDArray[np.float64]:
    """Shares of the classes [samples, classes] for the first of `inputs`; none of other models.

    It ends with the batch in which `stop_at` is reached (seconds, monotonic).
    """
    parts = [np.empty((0, class_count(package)))]
    count = len(next(iter(inputs.values()), ()))
    for start in range(0, count if class_count(package) else 0, package.batch):
        part = slice(start, start + package.batch)
        output = model.scores({name: array[part] for name, array in inputs.items()})
        if output.ndim != 2:
            break
        parts.append(softmax(output))
        if time.monotonic() >= stop_at:
            break
    return np.concatenate(parts)


def image(array: NDArray[Any]) -> dict[str, Any]:
    """The shape, and base64 of bytes from 0 (its least value) to 255 in C order.

    Axes of length 1 are left out. Of a large array every second row and column is left out until
    it has at most `IMAGE_MAX` bytes; the image is None for more than three axes, or for none.
    """
    array = np.squeeze(array)
    while array.size > IMAGE_MAX and max(array.shape[-2:]) > 1:
        array = array[..., ::2] if array.ndim == 1 else array[..., ::2, ::2]
    shape = list(array.shape)
    if not 1 <= array.ndim <= 3 or not 0 < array.size <= IMAGE_MAX:
        return {"shape": shape, "image": None}
    values = array.astype(np.float64)
    with np.errstate(all="ignore"):  # a span beyond float64
        scaled = (values - values.min()) / (np.ptp(values) or 1.0) * 255
    content = np.nan_to_num(scaled).clip(0, 255).round().astype(np.uint8).tobytes()
    return {"shape": shape, "image": base64.b64encode(content).decode()}


def _readable(buffer: ReplayBuffer, rows: list[int], limit: int) -> list[int]:
    """The first of `rows`, so that their inputs have at most `READ_MAX` bytes."""
    return rows[: max(1, min(limit, READ_MAX // buffer.sizes()[0]))]


def _find(buffer: ReplayBuffer, request: Mapping[str, Any]) -> list[int]:
    """The ids of the samples in `keys`; DataError names those that are unknown."""
    keys = request.get("keys")
    if (
        not isinstance(keys, list)
        or not 1 <= len(keys) <= KEYS_MAX
        or not all(isinstance(key, str) and len(key) <= KEY_MAX for key in keys)
    ):
        raise DataError(f"keys must be a list of 1 to {KEYS_MAX} keys of samples")
    rows = {key: buffer.find(key) for key in keys}
    if unknown := [repr(key) for key, row in rows.items() if not row]:
        raise DataError(f"no sample has the key {', '.join(unknown[:10])}: it may be deleted")
    return list(rows.values())
