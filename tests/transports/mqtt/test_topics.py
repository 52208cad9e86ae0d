"""Plain messages over a broker."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transports.mqtt.topics import TopicClient, TopicSettings, check_topic

FAST = {"reconnect_min_s": 0.02, "reconnect_max_s": 0.2}


@pytest.fixture
def new_client(eventually) -> Iterator[Callable[..., TopicClient]]:
    clients: list[TopicClient] = []

    def make(url: str, *topics: str, **options: Any) -> TopicClient:
        client = TopicClient(TopicSettings(url, topics=topics, **FAST, **options))  # type: ignore[arg-type]
        clients.append(client)
        client.open()
        eventually(lambda: client.connected)
        return client

    yield make
    for client in clients:
        client.close()


def collect(client: TopicClient, eventually, count: int) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []

    def enough() -> bool:
        found.extend(client.drain())
        return len(found) >= count

    eventually(enough)
    return found


def test_messages_reach_their_subscribers(mosquitto, new_client, eventually) -> None:
    publisher = new_client(mosquitto.url)
    reader = new_client(mosquitto.url, "attic/+", "cellar/#")
    assert publisher.publish("attic/air", b"1")
    assert publisher.publish("attic/air/deep", b"2")
    assert publisher.publish("cellar/a/b", bytes(60_000))
    assert collect(reader, eventually, 2) == [("attic/air", b"1"), ("cellar/a/b", bytes(60_000))]


def test_the_oldest_arrivals_are_dropped_and_long_ones_refused(
    mosquitto, new_client, eventually
) -> None:
    client = new_client(mosquitto.url, "a", arrivals_max=3, payload_max=4)
    assert client.publish("a", b"too long")
    for number in range(5):
        assert client.publish("a", str(number).encode())
    eventually(lambda: client.counters.messages_in == 5)
    assert client.drain() == [("a", b"2"), ("a", b"3"), ("a", b"4")]
    assert client.status().numbers["dropped"] == 2
    assert client.counters.malformed == 1


def test_a_message_that_the_broker_does_not_allow_is_not_sent(
    new_mosquitto, new_client, eventually
) -> None:
    broker = new_mosquitto("max_packet_size 1000")
    client = new_client(broker.url, "a")
    assert not client.publish("a", bytes(995))
    assert client.publish("a", bytes(900))
    assert collect(client, eventually, 1) == [("a", bytes(900))]
    assert client.status().numbers["reconnects"] == 0


def test_retained_messages_are_left_out(mosquitto, new_client, eventually) -> None:
    writer = new_client(mosquitto.url)
    assert writer.publish("a", b"old", retain=True)
    eventually(lambda: writer.counters.acked == 1)
    reader = new_client(mosquitto.url, "a")
    assert writer.publish("a", b"new", retain=True)
    assert collect(reader, eventually, 1) == [("a", b"new")]


def test_nothing_is_sent_before_it_is_open() -> None:
    client = TopicClient(TopicSettings("mqtt://127.0.0.1:1", topics=("a",)))
    assert not client.publish("a", b"")
    assert (client.drain(), client.status().connected) == ([], False)
    client.close()


@pytest.mark.parametrize("topic", ["", "a\0", "a/b+", "+a", "#/a", "a#", "x" * 1025])
def test_wrong_topics_are_refused(topic: str) -> None:
    with pytest.raises(ValueError, match="topic"):
        TopicSettings("mqtt://localhost", topics=(topic,))


@given(st.text())
def test_any_text_is_a_topic_or_refused(topic: str) -> None:
    try:
        check_topic(topic)
    except ValueError:
        return
    assert topic
    assert not set("+#\0") & set(topic)
