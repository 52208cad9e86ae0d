"""What Home Assistant's MQTT discovery needs to show a fleet: one payload for each device.

The payloads are those of device discovery, which Home Assistant has since version 2024.11.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ternmesh import __version__
from transports.base import HOST

BIRTH = "homeassistant/status"  # where it says that it has started, unless it is told otherwise
STATES = ("on", "silent", "paused", "revoked", "finished")
NAME_MAX = 64  # characters of a name that a model gives

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of the process `name`, HOST or a board; `board` is one of a host, or ""."""

    fleet: str
    name: str

    def available(self) -> str:
        return f"{self._of('')}/available"

    def state(self, board: str = "") -> str:
        return f"{self._of(board)}/state"

    def set(self, board: str = "") -> str:
        return f"{self._of(board)}/set"

    def _of(self, board: str) -> str:
        own = f"ternmesh/{self.fleet}/health/{self.name}"
        return f"{own}/boards/{board}" if board else own


def _show(platform: str, name: str, value: str, **options: str | int | list[str]) -> Document:
    return {"platform": platform, "name": name, "value_template": f"{{{{ {value} }}}}", **options}


def _text(name: str, key: str, **options: str | list[str]) -> Document:
    return _show("sensor", name, f"value_json.{key}", **options)


def _number(name: str, key: str, **options: str | int) -> Document:
    return _show("sensor", name, f"value_json.{key}", state_class="measurement", **options)


def _percent(name: str, key: str, **options: str) -> Document:
    value = f"None if value_json.{key} is none else (100 * value_json.{key}) | round(1)"
    unit = {"state_class": "measurement", "unit_of_measurement": "%"}
    return _show("sensor", name, value, **unit, **options)


def _binary(name: str, key: str, device_class: str) -> Document:
    value = f"'ON' if value_json.{key} else 'OFF'"
    return _show("binary_sensor", name, value, device_class=device_class)


_ASIDE = {"entity_category": "diagnostic"}
_loss = partial(_number, suggested_display_precision=3)
_FLEET = {
    "phase": _text("Phase", "phase"),
    "version": _number("Global adapter", "version"),
    "boards": _number("Boards", "boards"),
    "boards_active": _number("Active boards", "boards_active"),
    "accuracy": _percent("Accuracy", "accuracy"),
    "loss": _loss("Loss", "loss"),
    "connected": _binary("Connected", "connected", "connectivity"),
}
_BOARD = {
    "state": _text("State", "state", device_class="enum", options=list(STATES)),
    "active": _binary("Takes part", "active", "running"),
    "accuracy": _percent("Accuracy", "accuracy"),
    "loss": _loss("Loss", "loss"),
    "samples": _number("Samples", "samples", **_ASIDE),
    "weight": _percent("Weight", "weight", **_ASIDE),
    "last_heard": _text("Last heard", "last_heard", device_class="timestamp", **_ASIDE),
}
_BUTTONS = {
    "train": {"platform": "button", "name": "Train now", "payload_press": "train"},
    "pause": {"platform": "button", "name": "Pause", "payload_press": "pause"},
}


def _own(document: Document) -> Document:
    """What a board tells of itself; its host may tell of the same device."""
    score = _percent if document["metric"] == "accuracy" else _number
    shown = {
        "activity": _text("Activity", "activity"),
        "version": _number("Global adapter", "version"),
        "score": score(f"Own {document['metric']}".replace("_", " ")[:NAME_MAX], "score"),
        "loss": _loss("Own loss", "loss"),
        "samples": _number("Own samples", "samples", **_ASIDE),
        "connected": _binary("Connected", "connected", "connectivity"),
    }
    if "prediction" in document:
        shown["prediction"] = _text("Prediction", "prediction")
        shown["confidence"] = _percent("Confidence", "confidence")
    return shown


def discovery(
    topics: Topics, prefix: str, model: str, board: str, document: Mapping[str, Any], buttons: bool
) -> tuple[str, Document]:
    """The topic under `prefix` and the payload for the device that a document is about.

    It is a `board` of the host, or with "" the process itself, which trains `model`.
    """
    is_host = topics.name == HOST
    device = _id(topics.fleet, board or topics.name)
    own = device if is_host else f"{device}__own"  # of this payload: the host has one for it too
    shown = _BOARD if board else _FLEET if is_host else _own(dict(document))
    components = shown | (_BUTTONS if is_host and buttons else {})
    name = f"Fleet {topics.fleet}" if is_host and not board else board or topics.name
    about = {"identifiers": [device], "name": name, "manufacturer": "ternmesh", "model": model}
    if document["software"] is not None:
        about["sw_version"] = document["software"]
    if board:
        about["via_device"] = _id(topics.fleet, HOST)
    return f"{prefix}/device/{own}/config", {
        "device": about,
        "origin": {"name": "ternmesh", "sw_version": __version__},
        "availability": [{"topic": topics.available()}],
        "state_topic": topics.state(board),
        "command_topic": topics.set(board),
        "components": {k: {**part, "unique_id": f"{own}__{k}"} for k, part in components.items()},
    }


def _id(fleet: str, name: str) -> str:
    """An id in the letters of discovery topics, another one for each fleet and name."""
    plain = (re.sub("[^A-Za-z0-9-]", lambda one: f"_{ord(one[0]):02x}", p) for p in (fleet, name))
    return "__".join(("ternmesh", *plain))
