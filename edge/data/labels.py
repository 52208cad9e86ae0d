"""Labels that people give, and requests about the samples of a source (docs/labels.md)."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edge.config import NodeConfig
from edge.data import label_queue
from edge.data.buffer import ReplayBuffer
from edge.data.sources import Label, class_count, class_names, label_arrays
from edge.errors import DataError, EdgeError
from ternmesh_service.config_file import load_model_package
from ternmesh_service.control_socket import DATA
from ternmesh_store.database import StoreError
from ternmesh_store.state_file import StateFile

LATER = "later"  # in place of an answer: the rest of the work, for `finish_data`
BUSY_S = 5.0  # how long a request waits while the work of another one is done
_WORK = threading.Lock()  # held by that one: each needs memory


def answer_stopped(config: NodeConfig, request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of a node that does not run, from its state file; DataError or StoreError."""
    state, data = StateFile(Path(config.state_dir)), config.data
    if data.source is None or not state.path.exists():
        raise StoreError(f"{config.name} has no samples of a source in {config.state_dir}")
    package = load_model_package(config.model)
    buffer = ReplayBuffer(state, package, data.replay_samples_max, data.replay_bytes_max)
    state.open()
    try:
        buffer.load(may_clear=False)
        return finish_data(answer_data(buffer, request))
    finally:
        state.close()


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
    model: label_queue.PresentModel | None = None,
) -> dict[str, Any]:
    """The answer to a request about samples, for `finish_data`."""
    try:
        if buffer is None:
            raise DataError("the samples of this node are files: it has none of a source")
        match request[DATA]:
            case "list":
                return {DATA: _groups(buffer)}
            case "queue" | "labelled":
                return {LATER: label_queue.begin_rows(buffer, request, model)}
            case "label" if "keys" in request:
                return {DATA: label_queue.label_many(buffer, request)}
            case "unlabel":
                return {DATA: label_queue.unlabel(buffer, request)}
            case "worst":
                return {LATER: label_queue.begin_worst(buffer, model)}
            case "label":
                newest = buffer.groups().get(None, [])[-1:]
                if not (key := request["key"] or next(map(buffer.key, newest), "")):
                    raise DataError("no sample waits for a label")
                label = Label(key, label_arrays(buffer.package, request["label"]))
                return {DATA: key if buffer.label(label) else None}
            case "forget":
                return {DATA: _forget(buffer, **request["which"])}
            case other:
                raise DataError(f"a node does not know the request {other!r:.100}")
    except DataError as error:
        return {"error": str(error)}


def _groups(buffer: ReplayBuffer) -> list[dict[str, Any]]:
    """What waits for a label (None), and what is stored under each."""
    names = {None: None} | dict(enumerate(class_names(buffer.package)))
    return [
        {
            "label": names.get(label, "labelled"),
            "samples": len(rows),
            "bytes": len(rows) * buffer.sizes()[label is not None],
            "newest": buffer.key(rows[-1]),
            "newest_s": buffer.age_s(rows[-1]),
            "oldest_s": buffer.age_s(rows[0]),
        }
        for label, rows in buffer.groups().items()
    ]


def _forget(
    buffer: ReplayBuffer,
    key: str | None = None,
    label: str | None = None,
    older_s: float | None = None,
    unlabelled: bool = False,
) -> int:
    """Delete the samples that fit all that is given."""
    groups = buffer.groups()
    chosen = {row for rows in groups.values() for row in rows}
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
