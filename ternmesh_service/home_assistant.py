"""What is published of a fleet and its boards, and what Home Assistant needs to show it.

One table has both: each value with its place in a JSON document and with its entity. The payloads
are those of MQTT device discovery, which Home Assistant has since version 2024.11.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ternmesh import __version__
from ternmesh_service.alarms import is_over
from ternmesh_service.status import BoardStatus, HostedBoard, HostStatus, newest_reports
from transports.base import HOST, check_node

PREFIX = "homeassistant"  # of the topics of discovery
BOARDS_MAX = 1000
STATES = ["on", "silent", "paused", "revoked", "finished"]
NAME_MAX = 64  # characters of a name that a model gives
TEXT_MAX = 100  # characters of a label
HEARD_S = 60  # the unit of `last_heard`, which changes at each frame otherwise

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of the process `name`, HOST or a board; `board` is one of a host, or ""."""

    fleet: str
    name: str

    @property
    def available(self) -> str:
        return f"{self._own}/available"

    def state(self, board: str = "") -> str:
        return f"{self._own}/boards/{board}/state" if board else f"{self._own}/state"

    @property
    def _own(self) -> str:
        return f"ternmesh/{self.fleet}/health/{self.name}"


@dataclass(frozen=True, slots=True)
class Entity:
    """A value under `key` of a document; `shown` is its entity, if Home Assistant shows it."""

    key: str
    value: Any
    shown: Document | None = None


def document_of(entities: Iterable[Entity]) -> Document:
    return {entity.key: entity.value for entity in entities}


def _text(key: str, value: Any, name: str, template: str = "", **options: Any) -> Entity:
    shown = template or f"value_json.{key}"
    about = {"platform": "sensor", "name": name, "value_template": f"{{{{ {shown} }}}}"}
    return Entity(key, value, {**about, **options})


def _number(key: str, value: float | None, name: str, template: str = "", **options: Any) -> Entity:
    known = None if value is None or not math.isfinite(value) else round(value, 4)
    return _text(key, known, name, template, state_class="measurement", **options)


def _percent(key: str, value: float | None, name: str, **options: Any) -> Entity:
    template = f"None if value_json.{key} is none else (100 * value_json.{key}) | round(1)"
    return _number(key, value, name, template, unit_of_measurement="%", **options)


def _loss(value: float | None, name: str = "Loss") -> Entity:
    return _number("loss", value, name, suggested_display_precision=3)


def _binary(key: str, value: bool, name: str, device_class: str) -> Entity:
    template = f"'ON' if value_json.{key} else 'OFF'"
    own = {"platform": "binary_sensor", "device_class": device_class}
    return _text(key, value, name, template, **own)


_ASIDE = {"entity_category": "diagnostic"}


def health(status: HostStatus | BoardStatus, now: float) -> dict[str, list[Entity]]:
    """What is published of a status by board, "" for the process itself; `now` in s since 1970.

    Boards whose names may not stand in a topic are left out, and those after `BOARDS_MAX`.
    """
    about = [
        Entity("software", __version__),
        _number("version", status.version, "Global adapter"),
        _binary("connected", status.transport.connected, "Connected", "connectivity"),
    ]
    if isinstance(status, BoardStatus):
        return {"": [*about, *_own(status)]}
    reports = newest_reports(status.history)
    loss, accuracy = reports.get("", (None, None))
    fleet = [
        *about,
        _text("phase", status.phase, "Phase"),
        _number("boards", len(status.nodes), "Boards"),
        _number("boards_active", sum(board.active for board in status.nodes), "Active boards"),
        _percent("accuracy", accuracy, "Accuracy"),
        _loss(loss),
    ]
    known = [board for board in status.nodes if _may_be_in_a_topic(board.name)][:BOARDS_MAX]
    boards = {
        board.name: _board(board, reports.get(board.name, (None, None)), now, over=is_over(status))
        for board in known
    }
    return {"": fleet, **boards}


def _board(
    board: HostedBoard, report: tuple[float | None, float | None], now: float, *, over: bool
) -> list[Entity]:
    loss, accuracy = report
    state = "on" if board.active else "finished" if over else "silent"
    if board.board.in_force.get("pause") == 1:
        state = "paused"
    if board.revoked:
        state = "revoked"
    heard = None
    if (ago_s := board.heard_s_ago) is not None:
        heard = datetime.fromtimestamp((now - ago_s) // HEARD_S * HEARD_S, UTC).isoformat()
    return [
        Entity("software", board.board.software),
        _text("state", state, "State", device_class="enum", options=STATES),
        _binary("active", board.active, "Takes part", "running"),
        _percent("accuracy", accuracy, "Accuracy"),
        _loss(loss),
        _number("samples", board.samples, "Samples", **_ASIDE),
        _percent("weight", board.weight, "Weight", **_ASIDE),
        _text("last_heard", heard, "Last heard", device_class="timestamp", **_ASIDE),
    ]


def _own(status: BoardStatus) -> list[Entity]:
    """What a board knows of itself, and its newest live prediction."""
    losses = [entry.loss for entry in status.history if entry.loss is not None]
    score = _percent if status.metric_name == "accuracy" else _number
    entities = [
        _text("activity", status.activity, "Activity"),
        Entity("metric", status.metric_name),
        score("score", status.metric, f"Own {status.metric_name}".replace("_", " ")[:NAME_MAX]),
        _loss(losses[-1] if losses else None, "Own loss"),
        _number("samples", status.samples, "Own samples", **_ASIDE),
    ]
    if status.source is not None and (words := status.source.words) is not None:
        entities.append(_percent("recall", words.recall, "Recall of words"))
        entities.append(_number("false_per_hour", words.false_per_hour, "False words an hour"))
    if status.predict is not None:
        live = status.predict.live or {}
        label, top = live.get("label"), live.get("top")
        shown = None if label is None else str(label)[:TEXT_MAX]
        entities.append(_text("prediction", shown, "Prediction"))
        entities.append(_percent("confidence", top[0][1] if top else None, "Confidence"))
    return entities


def _may_be_in_a_topic(name: str) -> bool:
    try:
        return bool(check_node(name))
    except ValueError:
        return False


def discovery(
    topics: Topics, model: str, board: str, entities: Iterable[Entity]
) -> tuple[str, Document]:
    """The topic and the payload for the device that `entities` are about.

    It is a `board` of the host, or with "" the process itself, which trains `model`.
    """
    is_host = topics.name == HOST
    device = _id(topics.fleet, board or topics.name)
    own = device if is_host else f"{device}__own"  # of this payload: the host has one for it too
    name = f"Fleet {topics.fleet}" if is_host and not board else board or topics.name
    about = {"identifiers": [device], "name": name, "manufacturer": "ternmesh", "model": model}
    components = {}
    for entity in entities:
        if entity.shown is not None:
            components[entity.key] = {**entity.shown, "unique_id": f"{own}__{entity.key}"}
        elif entity.key == "software" and entity.value is not None:
            about["sw_version"] = entity.value
    if board:
        about["via_device"] = _id(topics.fleet, HOST)
    return f"{PREFIX}/device/{own}/config", {
        "device": about,
        "origin": {"name": "ternmesh", "sw_version": __version__},
        "availability": [{"topic": topics.available}],
        "state_topic": topics.state(board),
        "components": components,
    }


def _id(fleet: str, name: str) -> str:
    """An id in the letters of discovery topics, another one for each fleet and name."""
    plain = (re.sub("[^A-Za-z0-9-]", lambda one: f"_{ord(one[0]):02x}", p) for p in (fleet, name))
    return "__".join(("ternmesh", *plain))
