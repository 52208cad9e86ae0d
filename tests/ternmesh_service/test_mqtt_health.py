"""Retained health on a real broker, and what Home Assistant finds there."""

import json
import logging
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion

from ternmesh.config import ConfigError, read_config
from ternmesh_service import mqtt_health
from ternmesh_service.control_socket import ControlServer
from ternmesh_service.home_assistant import BOARDS_MAX, Topics, discovery, document_of, health
from ternmesh_service.mqtt_health import HealthConfig, served_health
from ternmesh_service.status import HistoryEntry, WordsStatus, to_json
from tests.mosquitto import free_port
from tests.statuses import (
    DOWN,
    board,
    board_status,
    host_status,
    made_round,
    predict_status,
    source_status,
)

OWN = "ternmesh/barn/health/host"
ADA = f"{OWN}/boards/ada"
FOUND = "homeassistant/device/ternmesh__barn__ada/config"
BOARD = board("ada", weight=0.25, samples=40, heard_s_ago=2.5)
ROUND = replace(made_round(7, []), loss=0.5, accuracy=0.75, reports={"ada": (0.25, 0.875)})
HOST = host_status(
    [],
    nodes=(BOARD, replace(BOARD, name="a.b", active=False, heard_s_ago=None)),
    # The newest round has other values in place of accuracies.
    history=(ROUND, replace(ROUND, loss=0.4, accuracy=None, reports={"ada": (0.125, None)})),
)
ENTRY = HistoryEntry(version=7, metric=None, loss=0.25, bytes_up=1, bytes_down=1, seconds=1.0)
WORDS = WordsStatus(hours=2.0, heard=9, right=3, false=1, missed=1)
OWN_STATUS = board_status(
    transport=DOWN,
    source=source_status(words=WORDS),
    metric=0.5,
    history=(ENTRY, replace(ENTRY, loss=None)),
    predict=predict_status(live={"label": "three", "top": [["three", 0.97], ["tree", 0.02]]}),
)


class Reader:
    """What a broker has, and what comes: the newest payload and the number by topic."""

    def __init__(self, port: int) -> None:
        self.found: dict[str, str] = {}
        self.count: dict[str, int] = {}
        self.client = paho.Client(CallbackAPIVersion.VERSION2)
        self.client.on_message = self._take
        self.client.connect("127.0.0.1", port)
        self.client.subscribe([("ternmesh/#", 1), ("homeassistant/#", 1)])
        self.client.loop_start()

    def _take(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        self.found[message.topic] = message.payload.decode(errors="replace")
        self.count[message.topic] = self.count.get(message.topic, 0) + 1

    def json(self, topic: str) -> Any:
        return json.loads(self.found[topic])


class Process:
    """A control socket that gives `status`."""

    def __init__(self) -> None:
        self.status = HOST
        self.asked = 0

    def answer(self, _request):
        self.asked += 1
        return to_json(self.status)


@pytest.fixture(autouse=True)
def fast(monkeypatch) -> None:
    monkeypatch.setattr(mqtt_health, "TURN_S", 0.02)
    monkeypatch.setattr(mqtt_health, "ANSWER_S", 0.5)


@pytest.fixture
def process(tmp_path) -> Iterator[Process]:
    made = Process()
    with ControlServer(tmp_path / "c.sock", made.answer):
        yield made


@pytest.fixture
def new_reader(mosquitto) -> Iterator[Callable[[], Reader]]:
    made: list[Reader] = []

    def make() -> Reader:
        made.append(Reader(mosquitto.port))
        return made[-1]

    yield make
    for reader in made:
        reader.client.disconnect()
        reader.client.loop_stop()


@pytest.fixture
def served(mosquitto, process, tmp_path):
    config = HealthConfig(mosquitto.url, interval_s=0.05, home_assistant=True)
    with served_health(config, tmp_path / "c.sock", "barn", "host"):
        yield


def test_who_comes_later_finds_it_retained(served, new_reader, eventually) -> None:
    first = new_reader()
    eventually(lambda: first.found.get(f"{OWN}/available") == "online")
    reader = new_reader()
    eventually(lambda: f"{ADA}/state" in reader.found)
    ada = reader.json(f"{ADA}/state")
    assert (ada["state"], ada["samples"], ada["weight"]) == ("on", 40, 0.25)
    assert (ada["loss"], ada["accuracy"]) == (0.125, 0.875), "each the newest that is known"
    eventually(lambda: f"{OWN}/boards/a.b/state" in reader.found)
    assert reader.json(f"{OWN}/boards/a.b/state")["last_heard"] is None
    fleet = reader.json(f"{OWN}/state")
    assert (fleet["boards_active"], fleet["accuracy"], fleet["loss"]) == (1, 0.75, 0.4)


def test_only_changes_are_published(served, process, new_reader, eventually) -> None:
    reader = new_reader()
    eventually(lambda: f"{ADA}/state" in reader.found)
    before = process.asked
    eventually(lambda: process.asked > before + 5)
    # `last_heard` may pass a minute meanwhile
    assert reader.count[FOUND] == reader.count[f"{OWN}/state"] == 1
    process.status = replace(HOST, nodes=(replace(BOARD, samples=41),))
    eventually(lambda: reader.json(f"{ADA}/state")["samples"] == 41)
    eventually(lambda: reader.found[f"{OWN}/boards/a.b/state"] == "")
    assert reader.found["homeassistant/device/ternmesh__barn__a_2eb/config"] == "", "removed"
    assert reader.count[FOUND] == 1


SERVE = """
import sys, time
from pathlib import Path
from ternmesh_service.mqtt_health import HealthConfig, served_health
with served_health(HealthConfig(sys.argv[1], interval_s=0.05), Path(sys.argv[2]), "barn", "host"):
    time.sleep(60)
"""


def test_the_last_will_says_offline(mosquitto, process, tmp_path, new_reader, eventually) -> None:
    reader = new_reader()
    arguments = [mosquitto.url, str(tmp_path / "c.sock")]
    cut = subprocess.Popen([sys.executable, "-c", SERVE, *arguments])
    try:
        eventually(lambda: reader.found.get(f"{OWN}/available") == "online", 60.0)
        assert not any(topic.startswith("homeassistant") for topic in reader.found)
    finally:
        cut.send_signal(signal.SIGKILL)
        cut.wait()
    eventually(lambda: reader.found[f"{OWN}/available"] == "offline")
    late = new_reader()
    eventually(lambda: late.found.get(f"{OWN}/available") == "offline")


def test_without_an_answer_and_at_its_end_it_says_offline(
    mosquitto, tmp_path, new_reader, eventually
) -> None:
    reader, made = new_reader(), Process()
    config = HealthConfig(mosquitto.url, interval_s=0.05)
    with served_health(config, tmp_path / "c.sock", "barn", "host"):
        with ControlServer(tmp_path / "c.sock", made.answer):
            eventually(lambda: reader.found.get(f"{OWN}/available") == "online")
        eventually(lambda: reader.found[f"{OWN}/available"] == "offline")
    with ControlServer(tmp_path / "c.sock", made.answer):
        with served_health(config, tmp_path / "c.sock", "barn", "host"):
            eventually(lambda: reader.found.get(f"{OWN}/available") == "online")
        eventually(lambda: reader.found[f"{OWN}/available"] == "offline")


def test_a_broker_that_comes_back_gets_all_again(
    mosquitto, served, process, new_reader, eventually
) -> None:
    eventually(lambda: FOUND in new_reader().found)
    mosquitto.kill9()
    before = process.asked
    eventually(lambda: process.asked > before + 3)
    mosquitto.start()  # it has kept nothing
    reader = new_reader()
    eventually(lambda: {FOUND, f"{ADA}/state", f"{OWN}/available"} <= reader.found.keys())


def test_without_a_broker_nothing_waits(process, tmp_path, eventually, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    url = f"mqtt://ada:hushed@127.0.0.1:{free_port()}"
    config = HealthConfig(url, interval_s=0.05, home_assistant=True)
    with served_health(config, tmp_path / "c.sock", "barn", "host"):
        eventually(lambda: process.asked > 3)
        eventually(lambda: "cannot reach" in caplog.text)
    assert "hushed" not in caplog.text + repr(config)


def documents(status: Any) -> dict[str, Any]:
    return {name: document_of(entities) for name, entities in health(status, 0.0).items()}


def test_a_node_tells_of_itself_and_its_prediction() -> None:
    found = documents(OWN_STATUS)[""]
    assert (found["score"], found["loss"], found["connected"]) == (0.5, 0.25, False)
    assert (found["prediction"], found["confidence"]) == ("three", 0.97)
    topic, payload = discovery(Topics("barn", "ada"), "keyword", "", health(OWN_STATUS, 0.0)[""])
    assert topic == "homeassistant/device/ternmesh__barn__ada__own/config"
    assert (found["recall"], found["false_per_hour"]) == (0.75, 0.5)
    assert {"prediction", "confidence", "score", "recall", "false_per_hour"} <= payload[
        "components"
    ].keys()
    assert "prediction" not in documents(replace(OWN_STATUS, predict=None))[""]
    unsure = predict_status(live={"label": None, "top": [["three", 0.2]]})
    assert documents(replace(OWN_STATUS, predict=unsure))[""]["prediction"] is None


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "on"),
        ({"active": False}, "silent"),
        ({"managed": {"in_force": {"pause": 1}}}, "paused"),
        ({"revoked": True, "active": False}, "revoked"),
    ],
)
def test_states_of_a_board(changes, state) -> None:
    status = replace(HOST, nodes=(board("ada", **changes),))
    assert documents(status)["ada"]["state"] == state
    if state == "silent":
        assert documents(replace(status, phase="finished"))["ada"]["state"] == "finished"


def test_no_name_makes_a_wrong_topic_and_the_first_boards_are_shown() -> None:
    hard = ["a/b", "+", "#", "", "\0", "a.b", "a_2eb", "a_b", "a\n", "é", "ALL"]
    names = [*hard, *(f"b{number:04}" for number in range(BOARDS_MAX))]
    found = health(replace(HOST, nodes=tuple(replace(BOARD, name=name) for name in names)), 0.0)
    assert len(found) == 1 + BOARDS_MAX
    topics = Topics("barn", "host")
    made = [discovery(topics, "m", *item) for item in found.items()]
    ids = [part["unique_id"] for _, payload in made for part in payload["components"].values()]
    assert len(set(ids)) == len(ids)
    assert len({topic for topic, _ in made}) == len(found)
    for topic in [topic for topic, _ in made] + [topics.state(name) for name in found]:
        assert not set(topic) & set("+#\0\n")
        assert topic.count("/") in (3, 4, 6)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('url = "mqtt://ada:hushed@192.0.2.1"', "in the clear"),
        ('url = "http://x"', r"\[health\]: .*mqtt://host:port"),
        ("home_assistant = true", "no effect without url"),
    ],
)
def test_wrong_settings_are_sentences(text, said, tmp_path) -> None:
    with pytest.raises(ConfigError, match=said) as caught:  # noqa: PT012
        config = read_config(HealthConfig, text)
        with served_health(config, tmp_path / "none", "barn", "host"):
            pass
    assert "hushed" not in str(caught.value)
