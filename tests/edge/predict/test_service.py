"""A node with [predict]: while it trains, without a host, over MQTT, and of live samples."""

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edge.config import NodeConfig, PredictConfig
from edge.data.feed import Feed
from edge.data.sources import Sample
from edge.predict.server import predicting
from ternmesh_service.control_socket import ControlError, ask
from tests.edge.fleet import board_config, running
from tests.edge.predict.conftest import Client
from transports.link_config import LinkConfig
from transports.mqtt.topics import TopicClient, TopicSettings

GOOD = {"x": [0.5, -1, 0, 1, 2, 3]}


def config_of(tmp_path: Path, url: str, model: Path, **predict: Any) -> NodeConfig:
    config = board_config(tmp_path, model, predict=PredictConfig(enabled=True, **predict))
    return replace(config, state_dir=str(tmp_path), link=LinkConfig(url=url))


def test_a_node_without_a_host_predicts(tiny, tiny_data, tmp_path: Path, eventually) -> None:
    """The link is dead from the start: no broker listens there."""
    data: dict[str, Any] = tiny_data
    np.savez(tmp_path / "ada.npz", **data)
    path = tmp_path / "predict.sock"
    with running(config_of(tmp_path, "mqtt://127.0.0.1:1", tiny.folder)):
        eventually(path.is_socket)
        with Client(path) as client:
            found = client.ask({"id": 1, "inputs": GOOD})
        status = ask(tmp_path / "control.sock", {"command": "status"})
    assert (found["id"], found["version"], len(found["output"])) == (1, 0, 3)
    assert status["predict"]["count"] == 1
    assert not path.exists()


@pytest.fixture
def node() -> Any:
    """The parts of a node that predictions use."""

    class Source:
        def poll(self, now: float) -> list[Sample]:
            return [Sample("k1", {"x": np.zeros(6, np.float32)})]

    buffer: Any = SimpleNamespace(add=lambda items, certainties: np.arange(len(items)))
    return SimpleNamespace(
        management=SimpleNamespace(settings={}),
        data=SimpleNamespace(feed=Feed(Source(), buffer, 1.0)),
    )


def test_requests_and_live_samples_over_mqtt(
    mosquitto, classifier, adapter, write, node, tmp_path: Path, eventually
) -> None:
    config = config_of(tmp_path, mosquitto.url, classifier.folder, topic="attic/says")
    heard = ("attic/says/ada/answer", "attic/says/ada/live")
    other = TopicClient(TopicSettings(mosquitto.url, topics=heard))
    other.open()
    found: dict[str, list[Any]] = {}

    def enough(topic: str, count: int) -> bool:
        for name, payload in other.drain():
            found.setdefault(name.rpartition("/")[2], []).append(json.loads(payload))
        return len(found.get(topic, ())) >= count

    with closing(other), predicting(config, classifier, node) as status:
        eventually(lambda: other.connected and status().topics.connected)
        for line in (json.dumps({"id": 5, "inputs": GOOD}).encode(), b"{}", b"x" * 50_000):
            assert other.publish("attic/says/ada/request", line)
        assert status().topics.numbers["unsent"] == 0
        eventually(lambda: enough("answer", 3))
        assert [one["id"] for one in found["answer"]].count(5) == 1
        assert sum("error" in one for one in found["answer"]) == 2
        node.data.feed.poll(0.0)
        eventually(lambda: enough("live", 1))
        assert found["live"][0]["id"] == "k1"
        assert (status().live or {})["label"] == found["live"][0]["label"]
        node.management.settings = {"threshold": 1.0}  # by the host, over the link
        node.data.feed.poll(9.0)
        eventually(lambda: enough("live", 2))
        assert (found["live"][1]["label"], found["live"][1]["uncertain"]) == (None, True)
        mosquitto.kill9()  # requests on the socket go on
        with Client(tmp_path / "predict.sock") as client:
            assert client.ask({"id": 1, "inputs": GOOD})["uncertain"]
        eventually(lambda: not status().topics.connected)
        node.data.feed.poll(20.0)
        eventually(lambda: status().topics.numbers["unsent"] == 1)


def test_a_path_in_the_way_is_a_sentence(classifier, node, tmp_path: Path) -> None:
    (tmp_path / "predict.sock").write_text("mine")
    config = config_of(tmp_path, "mqtt://127.0.0.1:1", classifier.folder)
    with pytest.raises(ControlError, match="in the way"), predicting(config, classifier, node):
        pass
    assert (tmp_path / "predict.sock").read_text() == "mine"


def test_a_node_with_a_front_predicts_samples(
    fronted, slopes: dict[str, Any], tmp_path: Path, eventually
) -> None:
    np.savez(tmp_path / "ada.npz", **slopes)
    path, inputs = tmp_path / "predict.sock", {"sound": slopes["sound"][0].tolist()}
    with running(config_of(tmp_path, "mqtt://127.0.0.1:1", fronted.folder)):
        eventually(path.is_socket)
        with Client(path) as client:
            assert client.ask({"id": 1, "inputs": inputs})["label"] in ("down", "up")
    assert [*(tmp_path / "rows").glob("*.npz")]
