"""Buttons that label the newest sample, with a FIFO in the place of an input device."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.config import LabelConfig
from edge.data.buttons import EV_KEY, EVENT, Buttons
from edge.data.sources import Sample
from edge.errors import DataError
from ternmesh.model_package import ModelPackage

BUTTONS = {"KEY_1": "1", "BTN_0": 2, "28": "0"}


def press(code: int, value: int = 1, kind: int = EV_KEY) -> bytes:
    return EVENT.pack(0, 0, kind, code, value)


class World:
    """Buttons and their device."""

    def __init__(self, folder: Path, package: ModelPackage, buttons: Any = BUTTONS) -> None:
        self.path = folder / "event0"
        config = LabelConfig(str(self.path), buttons, window_s=10.0)
        self.buttons = Buttons(config, package)

    def labels(self, now: float, *keys: str) -> list[tuple[str, int]]:
        """The labels of a poll at which samples with these keys come."""
        samples = [Sample(key, {"x": np.zeros(6)}) for key in keys]
        return [(i.key, int(i.targets["t"])) for i in self.buttons.labels(samples, now)]


@pytest.fixture
def world(tmp_path: Path, classes: ModelPackage) -> World:
    return World(tmp_path, classes)


def test_a_button_labels_the_newest_sample_within_the_window(world: World) -> None:
    os.mkfifo(world.path)
    assert world.labels(0.0, "a", "b") == []
    with world.path.open("r+b", buffering=0) as device:
        device.write(press(2, 0) + press(2, 2) + press(3) + press(2, kind=4))
        assert world.labels(9.0) == []
        device.write(press(2) + press(2, 0))
        assert world.labels(9.0) == [("b", 1)]
        device.write(press(0x100) + press(28))
        assert world.labels(10.0, "c") == [("c", 0)]  # the last one counts
        device.write(press(2))
        assert world.labels(11.0) == []
        world.labels(20.0, "d")
        device.write(press(2))
        assert world.labels(30.1) == []


def test_a_missing_device_is_said_once_and_tried_again(world: World, caplog, monkeypatch) -> None:
    for now in range(3):
        assert world.labels(float(now), f"a{now}") == []
    assert caplog.text.count("no button works") == 1
    os.mkfifo(world.path)
    world.labels(3.0)
    with world.path.open("r+b", buffering=0) as device:
        device.write(press(2))
        assert world.labels(4.0) == [("a2", 1)]
    monkeypatch.setattr(os, "read", lambda *_: os.stat("/nowhere"))  # it was unplugged
    assert world.labels(5.0) == []
    assert caplog.text.count("no button works") == 2
    monkeypatch.undo()
    assert world.labels(6.0) == []  # it is open again


@pytest.mark.parametrize(
    ("buttons", "sentence"),
    [({"KEY_1": "stop"}, "'stop' is no label"), ({"KEY_?": "1"}, "'KEY_.': write its code")],
)
def test_wrong_buttons_are_refused_at_the_start(tmp_path, classes, buttons, sentence) -> None:
    with pytest.raises(DataError, match=sentence):
        World(tmp_path, classes, buttons)


@given(data=st.binary(max_size=200))
def test_any_bytes_of_a_device_are_no_error(tmp_path_factory, classes, data) -> None:
    world = World(tmp_path_factory.mktemp("device"), classes)
    world.path.write_bytes(data)
    assert len(world.labels(0.0, "a")) <= 1
