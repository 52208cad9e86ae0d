"""The settings of the containers: each is read by the program that gets it."""

from pathlib import Path

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from host.config import read_host_config
from tests.mosquitto import Mosquitto

CLUSTER = Path(__file__).parents[2] / "packaging" / "cluster"


def bridge(far: Mosquitto) -> str:
    """What makes the region's broker a bridge, to another broker."""
    text = (CLUSTER / "region-broker.conf").read_text()
    return text[text.index("connection host") :].replace("broker:1883", f"127.0.0.1:{far.port}")


@pytest.mark.parametrize("name", ["host", "aggregator"])
def test_settings_are_those_of_a_host(name: str) -> None:
    config = read_host_config(CLUSTER / f"{name}.toml")
    assert config.link.fleet == "attic"
    assert bool(config.upstream.url) == bool(config.link.aggregator) == (name == "aggregator")
    assert f"{config.metrics.port}" in (CLUSTER / "prometheus.yml").read_text()


def test_the_compose_file_mounts_what_is_there() -> None:
    text = (CLUSTER / "compose.yml").read_text()
    files = {path.name for path in CLUSTER.iterdir()} - {"compose.yml"}
    assert {name for name in files if f"./{name}:" in text} == files


def test_the_bridge_takes_on_what_is_for_the_host_alone(new_mosquitto, eventually) -> None:
    far = new_mosquitto()
    near = new_mosquitto(bridge(far))
    seen: list[str] = []
    ends = []
    for broker in (far, near):
        end = mqtt.Client(CallbackAPIVersion.VERSION2)
        end.connect("127.0.0.1", broker.port)
        end.loop_start()
        ends.append(end)
    ends[0].on_message = lambda _client, _data, message: seen.append(message.topic)
    ends[0].subscribe("ternmesh/#", 1)

    def arrives() -> bool:
        ends[1].publish("ternmesh/attic.barn/up/ada", b"update", 1)
        ends[1].publish("ternmesh/attic/up/barn", b"sum", 1)
        return bool(seen)

    try:
        eventually(arrives)
        assert set(seen) == {"ternmesh/attic/up/barn"}
    finally:
        for end in ends:
            end.loop_stop()
            end.disconnect()
