"""What tests of MQTT share: ends of a fleet that are closed after the test."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from transports.mqtt.settings import MqttSettings
from transports.mqtt.transport import MqttTransport


@pytest.fixture
def new_end() -> Iterator[Callable[..., MqttTransport]]:
    """A function that opens one end of the fleet `barn`; all are closed after the test."""
    ends: list[MqttTransport] = []

    def make(url: str, role: str, **options: Any) -> MqttTransport:
        fast = {"reconnect_min_s": 0.02, "reconnect_max_s": 0.2}
        end = MqttTransport(MqttSettings(url, "barn", role, **(fast | options)))
        ends.append(end)
        end.open()
        return end

    yield make
    for end in ends:
        end.close()
