import pytest

from transports.base import TransportError
from transports.mqtt.embedded_broker import EmbeddedBroker


def test_a_port_in_use_is_told() -> None:
    with (
        EmbeddedBroker() as broker,
        pytest.raises(TransportError, match=f"did not start on 127.0.0.1:{broker.port}"),
        EmbeddedBroker(port=broker.port),
    ):
        pass
