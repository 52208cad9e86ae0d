import random
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transports.base import HOST
from transports.mqtt.settings import (
    BrokerAddress,
    BrokerLimits,
    MqttSettings,
    Pauses,
    ProtocolChoice,
    keepalive_s,
    message_max,
    mtu,
    packet_max,
    parse_url,
)

URL = "mqtt://localhost"
HOST_END = MqttSettings(URL, "barn", HOST)
NODE_END = MqttSettings(URL, "barn", "ada")


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("mqtt://broker", BrokerAddress("broker", 1883, False)),
        ("mqtts://broker/", BrokerAddress("broker", 8883, True)),
        ("mqtt://[::1]:99", BrokerAddress("::1", 99, False)),
        ("mqtt://a%40b:p%3Aw@broker", BrokerAddress("broker", 1883, False, "a@b", "p:w")),
        ("MQTT://ada@broker", BrokerAddress("broker", 1883, False, "ada")),
        ("mqtt://ada:@broker", BrokerAddress("broker", 1883, False, "ada")),
        ("mqtt://a:100%@broker", BrokerAddress("broker", 1883, False, "a", "100%")),
        ("mqtt://a:%2541@broker", BrokerAddress("broker", 1883, False, "a", "%41")),
        ("mqtt://a:p@w:x@[::1]:99", BrokerAddress("::1", 99, False, "a", "p@w:x")),
        ("mqtts://a:#/?[]@://@b/", BrokerAddress("b", 8883, True, "a", "#/?[]@://")),
    ],
)
def test_good_urls(url: str, address: BrokerAddress) -> None:
    assert parse_url(url) == address


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("", r"broker URL \(empty\) does not begin with mqtt://"),
        ("broker:1883", "broker URL broker:1883 does not begin with mqtt://"),
        ("http://broker", "broker URL http://broker does not begin with mqtt://"),
        ("mqtt://", "broker URL mqtt:// names no host"),
        ("mqtt://broker:0", "port 0"),
        ("mqtt://broker:99999", "broker URL mqtt://broker:99999 has no valid port"),
        ("mqtt://[::1", "has no valid port or host"),
        ("mqtt://broker/topic", "has a path after the port"),
        ("mqtt://broker?x=1", "has a path after the port"),
        ("mqtt://a:p@broker#x", "broker URL broker#x has a path after the port"),
        ("mqtt://:secret@broker", "broker URL broker has a password without a user name"),
    ],
)
def test_bad_urls_get_a_sentence_that_says_how_to_write_them(url: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"{sentence}.*: write it as mqtt://host:port"):
        parse_url(url)


@given(st.text(min_size=1), st.text(min_size=1))
def test_any_credentials_may_be_written_percent_encoded(username: str, password: str) -> None:
    quoted = f"{quote(username, safe='')}:{quote(password, safe='')}"
    expected = BrokerAddress("broker", 1883, False, username, password)
    assert parse_url(f"mqtt://{quoted}@broker") == expected
    if ":" not in username and "%" not in username + password:
        assert parse_url(f"mqtt://{username}:{password}@broker") == expected


def test_a_percent_that_stands_for_no_text_is_named() -> None:
    with pytest.raises(
        ValueError, match="wrong % in its user name or password: write %25"
    ) as caught:
        parse_url("mqtt://ada:se%ffcret@broker")
    assert "cret" not in str(caught.value)


@given(st.text(max_size=40))
def test_any_text_is_an_address_or_a_value_error(text: str) -> None:
    try:
        address = parse_url("mqtt://" + text)
    except ValueError:
        return
    assert address.host
    assert 1 <= address.port <= 65_535


def test_a_password_is_never_shown() -> None:
    settings = MqttSettings("mqtt://ada:geheim@broker", "barn", "ada", password="geheim")
    with pytest.raises(ValueError, match="port") as caught:
        parse_url("mqtt://ada:geheim@broker:x")
    for shown in (repr(settings), repr(settings.broker), str(settings.broker), str(caught.value)):
        assert "geheim" not in shown


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"fleet": "a/b"}, "fleet 'a/b' must be 1 to 32"),
        ({"fleet": "x" * 33}, "fleet 'x+' must be 1 to 32"),
        ({"role": "+"}, r"node name '\+' must be"),
        ({"role": "all"}, "a node may not be called 'all'"),
        ({"role": ""}, "node name '' must be"),
        ({"message_max": 10}, "message_max 10 must be 64 to 262144"),
    ],
)
def test_a_wrong_setting_is_named(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        MqttSettings(**({"url": URL, "fleet": "barn", "role": "ada"} | change))


@pytest.mark.parametrize("peer", ["", "a/b", "#", "+", "x" * 33, "é", "host"])
def test_a_peer_cannot_smuggle_a_topic(peer: str) -> None:  # R7.2-1
    with pytest.raises(ValueError, match=r"name|called"):
        HOST_END.topic(peer)


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "ternmesh/barn/up",
        "ternmesh/barn/up/",
        "x/up/ada",
        "ternmesh/barn/up/host",
        "ternmesh/barn/up/a b",
        "ternmesh/barn/down/ada",
        "ternmesh/barn/up/ada/x",
    ],
)
def test_the_host_believes_only_topics_of_its_nodes(topic: str) -> None:
    with pytest.raises(ValueError, match=r"topic|name|called"):
        HOST_END.peer(topic)


def test_a_message_of_the_limit_fills_the_longest_packet_and_no_more() -> None:
    settings = MqttSettings(URL, "f" * 32, HOST)
    limits = BrokerLimits(packet_max=3000)
    room = message_max(settings, limits)
    topic = settings.topic("n" * 32)
    # Type and remaining length, topic, packet id, properties: MQTT 5, section 3.3.
    assert (1 + 4) + (2 + len(topic)) + 2 + 1 + room == 3000
    assert packet_max(settings, room) == 3000
    assert mtu(settings, limits) == room - 2


def test_limits_never_raise_what_we_want_and_never_go_below_zero() -> None:  # R7.2-5
    assert message_max(NODE_END, BrokerLimits()) == 65_536
    assert mtu(NODE_END, BrokerLimits(packet_max=10**9)) == 65_534
    assert mtu(NODE_END, BrokerLimits(packet_max=20)) == 0
    assert mtu(MqttSettings(URL, "barn", "ada", message_max=262_144), BrokerLimits()) == 65_535
    assert keepalive_s(NODE_END, BrokerLimits(keepalive_s=30)) == 30
    assert keepalive_s(NODE_END, BrokerLimits(keepalive_s=300)) == 60


@pytest.mark.parametrize(
    ("ready", "taken_over", "longest_s", "short"),
    [
        ([0.0] * 8, False, (15.0, 37.5), 0),  # nothing listens
        ([0.5] * 8, True, (15.0, 37.5), 8),  # a rival has our name
        ([0.0, 0.5, 0.0, 1.9, 0.0, 0.1] * 20, False, (2.0, 10.0), 1),  # used in between
        ([0.5] * 8 + [3.0], False, (0.75, 1.25), 9),  # it has lasted, but a rival may wait as long
        ([5.0, 0.9] * 4, False, (1.5, 5.0), 8),  # two processes that take turns
        ([0.5] * 8 + [46.0], False, (2.0, 10.0), 0),
    ],
)
def test_pauses_grow_where_waiting_helps(ready, taken_over, longest_s, short) -> None:
    pauses, rng = Pauses(NODE_END), random.Random(1)
    waits = []
    for ready_s in ready:
        pauses.ended(ready_s, taken_over=taken_over)
        waits.append(pauses.next_s(rng))
    assert longest_s[0] <= (waits[-1] if ready[-1] == 3.0 else max(waits)) <= longest_s[1]
    assert pauses.short == short


@pytest.mark.parametrize(
    ("wanted", "ends", "versions"),
    [
        ("auto", [(False, True), (True, False)], ["3.1.1", "3.1.1"]),  # a refusal is believed
        ("auto", [(False, False), (True, False)], ["3.1.1", "5"]),  # it only hung up
        ("auto", [(True, False), (False, False)], ["5", "5"]),  # it has worked
        ("5", [(False, True)], ["5"]),
        ("3.1.1", [(False, True)], ["3.1.1"]),
    ],
)
def test_the_version_follows_how_the_broker_took_the_last_one(wanted, ends, versions) -> None:
    choice = ProtocolChoice(wanted)
    assert choice.current == ("5" if wanted == "auto" else wanted)
    for (accepted, refused), version in zip(ends, versions, strict=True):
        at_once = choice.ended(accepted=accepted, refused=refused)
        assert (choice.current, at_once) == (version, refused and wanted == "auto")
