from typing import Any

import pytest

from transports.base import ALL, HOST, TransportError
from transports.mqtt.embedded_broker import EmbeddedBroker
from transports.mqtt.settings import MqttSettings
from transports.mqtt.transport import MqttTransport

WAIT_S = 20.0
NODES = ("ada", "bob", "cleo", "dan")


def new_end(url: str, role: str) -> MqttTransport:
    # The long patience shows that MQTT 5 is refused at once and not just left without an answer.
    fast: dict[str, Any] = {
        "reconnect_min_s": 0.02,
        "reconnect_max_s": 0.2,
        "connect_timeout_s": 300.0,
    }
    end = MqttTransport(MqttSettings(url, "barn", role, **fast))
    end.open()
    return end


def test_five_clients_fall_back_to_3_1_1_and_exchange_full_messages(eventually) -> None:
    with EmbeddedBroker() as broker:
        host, *nodes = ends = [new_end(broker.url, role) for role in (HOST, *NODES)]
        eventually(lambda: all(end.connected for end in ends))
        assert {end.status()["protocol"] for end in ends} == {"3.1.1"}
        for i in range(10):
            for node in nodes:
                node.send(HOST, [bytes([i]) * node.mtu])
            host.send(ALL, [bytes([i]) * host.mtu])
        arrivals = [host.receive(WAIT_S) for _ in range(10 * len(nodes))]
        for name in NODES:
            frames = [arrival.frames[0] for arrival in arrivals if arrival.peer == name]
            assert frames == [bytes([i]) * 65_534 for i in range(10)]
        for node in nodes:
            assert [node.receive(WAIT_S).frames[0][0] for _ in range(10)] == list(range(10))
        eventually(lambda: host.status()["acked"] == 10)
        for end in ends:
            end.close()


def test_clients_return_to_a_broker_that_was_started_again(eventually) -> None:
    with EmbeddedBroker() as broker:
        host, ada = ends = [new_end(broker.url, role) for role in (HOST, "ada")]
        eventually(lambda: all(end.connected for end in ends))
    eventually(lambda: not any(end.connected for end in ends))
    with EmbeddedBroker(port=broker.port):
        eventually(lambda: all(end.connected for end in ends))
        ada.send(HOST, [b"back".ljust(15)])
        assert host.receive(WAIT_S).frames == (b"back".ljust(15),)
        for end in ends:
            end.close()


def test_a_port_in_use_is_told() -> None:
    with (
        EmbeddedBroker() as broker,
        pytest.raises(TransportError, match=f"did not start on 127.0.0.1:{broker.port}"),
        EmbeddedBroker(port=broker.port),
    ):
        pass
