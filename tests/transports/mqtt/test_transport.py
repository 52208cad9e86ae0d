import base64
import contextlib
import hashlib
import json
import socket
import threading
from dataclasses import replace
from urllib.parse import quote

import pytest
from paho.mqtt import publish

from ternmesh.wire.frame import SEALED_MIN
from ternmesh_service.alarms import alarms
from ternmesh_service.status import read_status, to_json
from tests import statuses
from tests.open_files import many_open_files
from transports import batch
from transports.base import HOST, Arrival, FrameTooLarge, NameTaken
from transports.mqtt.settings import INBOUND_MESSAGE_MAX
from transports.mqtt.transport import FRAMES_MAX, MqttTransport

WAIT_S = 20.0


def framed(text: str) -> bytes:
    """A frame of the shortest length that begins with `text`."""
    return text.encode().ljust(SEALED_MIN)


def all_connected(*ends: MqttTransport) -> bool:
    return all(end.connected for end in ends)


def test_the_limits_of_the_broker_are_read_and_kept(new_mosquitto, new_end, eventually) -> None:
    # R7.2-4, R7.2-5
    broker = new_mosquitto("max_packet_size 3000\nmax_inflight_messages 3\nmax_keepalive 30")
    name = "n" * 32
    host = new_end(broker.url, HOST, keepalive_s=20)
    node = new_end(broker.url, name, keepalive_s=600)
    eventually(lambda: all_connected(host, node))
    limits = {"packet_max": 3000, "receive_max": 3, "qos_max": 2, "keepalive_s": None}
    assert limits.items() <= host.status().numbers.items()
    assert node.status().numbers["keepalive_s"] == 30
    assert 2900 < host.mtu < 3000

    with pytest.raises(FrameTooLarge, match=f"exceeds the mtu {host.mtu}"):
        host.send(name, [b"x" * (host.mtu + 1)])
    frames = [bytes([i]) * host.mtu for i in range(40)] + [framed("after")]
    host.send(name, frames)
    assert [node.receive(WAIT_S).frames[0] for _ in frames] == frames
    assert host.status().numbers["connects"] == 1


def test_a_message_that_a_3_1_1_broker_refuses_is_not_sent_for_ever(
    new_mosquitto, new_end, eventually
) -> None:
    broker = new_mosquitto("max_packet_size 3000")
    host = new_end(broker.url, HOST, protocol="3.1.1")
    ada = new_end(broker.url, "ada", protocol="3.1.1")
    eventually(lambda: all_connected(host, ada))
    ada.send(HOST, [b"x" * 6000])
    eventually(lambda: ada.status().numbers["connects"] == 2)
    for i in range(20):
        ada.send(HOST, [framed(str(i))])
        assert host.receive(WAIT_S).frames == (framed(str(i)),)
    status = ada.status().numbers
    assert (status["lost"], status["connects"]) == (1, 2)


def test_a_broker_without_qos_1_still_carries(new_mosquitto, new_end, eventually) -> None:
    broker = new_mosquitto("max_qos 0")
    host, ada = new_end(broker.url, HOST), new_end(broker.url, "ada", inflight_max=2)
    eventually(lambda: all_connected(host, ada))
    for i in range(30):
        ada.send(HOST, [bytes([i]) * 15])
    assert [host.receive(WAIT_S).frames[0][0] for _ in range(30)] == list(range(30))
    assert (ada.status().numbers["qos_max"], ada.status().numbers["lost"]) == (0, 0)


def test_malformed_messages_are_counted_and_stop_nothing(mosquitto, new_end, eventually) -> None:
    # R7.1-1, R7.1-2
    host, ada = new_end(mosquitto.url, HOST, protocol="3.1.1"), new_end(mosquitto.url, "ada")
    eventually(lambda: all_connected(host, ada))
    good = batch.join([framed("good")])
    bad = [
        ("ternmesh/barn/up/eve", b""),
        ("ternmesh/barn/up/eve", b"\x05"),
        ("ternmesh/barn/up/eve", b"\x05\x00abc"),
        ("ternmesh/barn/up/eve", good + b"\x0e\x00" + bytes(14)),
        ("ternmesh/barn/up/host", good),
        ("ternmesh/barn/up/" + "x" * 33, good),
        ("ternmesh/barn/up/", good),
    ]
    for topic, payload in bad:
        publish.single(topic, payload, qos=1, hostname="127.0.0.1", port=mosquitto.port)
    ada.send(HOST, [framed("good")])
    assert host.receive(WAIT_S) == Arrival("ada", (framed("good"),), len(good))
    numbers = host.status().numbers
    assert (numbers["malformed"], numbers["messages_in"]) == (len(bad), 1)
    assert numbers["connects"] == 1


def test_a_flood_of_the_shortest_frames_is_taken_in_parts(mosquitto, new_end, eventually) -> None:
    host = new_end(mosquitto.url, HOST)
    ada = new_end(mosquitto.url, "ada", message_max=INBOUND_MESSAGE_MAX)
    eventually(lambda: all_connected(host, ada))
    frames = [framed(str(i)) for i in range(FRAMES_MAX + 5)]
    ada.send(HOST, frames)
    arrivals = [host.receive(WAIT_S) for _ in range(2)]
    assert [(len(a.frames), a.wire_bytes) for a in arrivals] == [(FRAMES_MAX, 17_408), (5, 85)]
    assert [frame for arrival in arrivals for frame in arrival.frames] == frames


def test_a_message_that_is_too_long_ends_one_connection(mosquitto, new_end, eventually) -> None:
    # R7.2-8: by 3.1.1 the broker does not know our limit, and keeps the message for us
    host, ada = new_end(mosquitto.url, HOST, protocol="3.1.1"), new_end(mosquitto.url, "ada")
    eventually(lambda: all_connected(host, ada))
    long = bytes(INBOUND_MESSAGE_MAX + 100)
    publish.single("ternmesh/barn/up/eve", long, qos=1, hostname="127.0.0.1", port=mosquitto.port)
    eventually(lambda: host.connected and host.status().numbers["connects"] == 2)
    ada.send(HOST, [framed("good")])
    assert host.receive(WAIT_S).frames == (framed("good"),)
    assert host.status().numbers["connects"] == 2


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_two_processes_of_one_name_are_told_by_both(
    mosquitto, new_end, eventually, caplog, protocol
) -> None:
    """mosquitto 2.0 does not say why it ends a connection."""
    slow = {"reconnect_min_s": 0.2, "reconnect_max_s": 2.0, "protocol": protocol}
    ends = [new_end(mosquitto.url, "ada", **slow) for _ in range(2)]

    def told(end: MqttTransport) -> bool:
        return any("another process ternmesh-barn-ada?" in text for text in end.status().remarks)

    # Both may seem connected for a moment before one takes another name.
    eventually(
        lambda: all(map(told, ends)) and all_connected(*ends) and "goes on as" in caplog.text
    )
    status = replace(statuses.host_status(["ada"]), transport=ends[0].status())
    shown = alarms(read_status(json.loads(json.dumps(to_json(status)))))
    assert any("Stop or rename one" in alarm.sentence for alarm in shown)
    assert caplog.text.count("goes on as") == 1


def test_a_link_that_breaks_or_a_broker_that_is_away_is_no_rival(
    mosquitto, new_end, eventually
) -> None:
    ada = new_end(mosquitto.url, "ada")
    for turn in range(1, 6):
        eventually(lambda turn=turn: ada.connected and ada.status().numbers["connects"] == turn)
        mosquitto.kill9()
        eventually(lambda: "cannot reach" in str(ada.status().last_error))
        assert not ada.status().remarks
        mosquitto.start()


def test_more_open_files_than_the_library_can_use_are_told(mosquitto, new_end, eventually) -> None:
    with many_open_files():
        ada = new_end(mosquitto.url, "ada")
        eventually(lambda: "this program has 1,024 files open" in str(ada.status().last_error))
    eventually(lambda: ada.connected)


def test_a_password_is_used_and_a_wrong_one_is_told(
    new_mosquitto, new_end, eventually, tmp_path
) -> None:
    salt, password = b"0123456789ab", "p:w#/?[]@%"
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, 101, 64)
    line = ":".join(["ada", f"$7$101${base64.b64encode(salt).decode()}$"])
    passwords = tmp_path / "passwords"
    passwords.write_text(f"{line}{base64.b64encode(digest).decode()}\n")
    broker = new_mosquitto(f"allow_anonymous false\npassword_file {passwords}")
    address = broker.url.removeprefix("mqtt://")
    by_url = new_end(f"mqtt://ada:{password}@{address}", "ada")
    by_code = new_end(f"mqtt://ada:{quote(password, safe='')}@{address}", "eva")
    by_setting = new_end(broker.url, "bob", username="ada", password=password)
    wrong = new_end(f"mqtt://ada:guess@{address}", "eve")
    eventually(lambda: all_connected(by_url, by_code, by_setting))
    sentence = "connection: Not authorized; check credentials_file"
    eventually(lambda: sentence in str(wrong.status().last_error))
    assert not wrong.connected
    assert "guess" not in str(wrong.status())


class ScriptedBroker:
    """A server that answers each connection's first bytes as the test says, or hangs up."""

    def __init__(self, answers: list[bytes]) -> None:
        self.seen: list[int] = []  # the protocol version in each CONNECT
        self.starts: list[int] = []  # the flags in each CONNECT
        self.then = b""  # what came after the answers
        self._answers = answers
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"mqtt://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        for answer in self._answers:
            connection, _ = self._server.accept()
            with connection:
                connect = connection.recv(4096)
                self.seen.append(connect[8])
                self.starts.append(connect[9])
                with contextlib.suppress(ConnectionError):  # it hung up on what we had said
                    connection.sendall(answer)
                    while answer and (data := connection.recv(4096)):
                        self.then += data
        self._server.close()


HANG_UP = b""
REFUSE_BY_3_1_1 = bytes([0x20, 2, 0, 1])
REFUSE_BY_5 = bytes([0x20, 3, 0, 0x84, 0])
UNKNOWN_REASON = bytes([0x20, 3, 0, 0x55, 0])
CUT_OFF = bytes([0x20, 1, 0])
ACCEPT_BY_3_1_1 = bytes([0x20, 2, 0, 0])
ACCEPT_BY_5 = bytes([0x20, 3, 0, 0, 0]) + bytes([0x90, 5, 0, 1, 0, 1, 1])
TAKEN_OVER = bytes([0xE0, 7, 0x8E, 5, 0x1F, 0, 2]) + b"hi"  # with a reason string
DISCONNECT = bytes([0xE0, 0])
REFUSE_TOPICS = ACCEPT_BY_3_1_1 + bytes([0x90, 4, 0, 1, 0x80, 0x80])


@pytest.mark.parametrize(
    ("first", "pause_s"),
    [
        (HANG_UP, 0.02),
        (REFUSE_BY_3_1_1, 0.02),
        (REFUSE_BY_5, 300.0),  # after a plain refusal there is no pause
        (UNKNOWN_REASON, 0.02),
        (CUT_OFF, 0.02),
    ],
)
def test_a_broker_that_does_not_take_mqtt_5_is_asked_for_3_1_1(
    new_end, eventually, first: bytes, pause_s: float
) -> None:
    broker = ScriptedBroker([first, ACCEPT_BY_3_1_1])
    new_end(broker.url, "ada", reconnect_min_s=pause_s, reconnect_max_s=pause_s)
    eventually(lambda: broker.seen == [5, 4])


CLAIM = bytes([0x30]) + b"\xff\xff\xff\x7f"
QOS_2 = bytes([7, 0, 1]) + b"t" + bytes([0, 1, 0]) + b"x"


@pytest.mark.parametrize(
    ("answer", "protocol", "sentence"),
    [
        (REFUSE_TOPICS, "3.1.1", "us subscribe to ternmesh/barn/down/ada and ternmesh/barn/all"),
        (ACCEPT_BY_5 + TAKEN_OVER, "auto", "another process is ternmesh-barn-ada"),
        # R7.2-8: nothing of a packet is read that is too long
        (ACCEPT_BY_5 + CLAIM, "auto", "a packet of 268435455 bytes, and 262205 are the most"),
        # R7.2-9: paho would keep a message with QoS 2 until the broker releases it
        *((ACCEPT_BY_5 + bytes([f]) + QOS_2, "auto", "with QoS 2") for f in (0x34, 0x3C, 0x36)),
    ],
)
def test_why_a_broker_is_left_is_told(
    new_end, eventually, answer: bytes, protocol: str, sentence: str
) -> None:
    broker = ScriptedBroker([answer])
    pause = {"reconnect_min_s": 60.0, "reconnect_max_s": 60.0}
    ada = new_end(broker.url, "ada", protocol=protocol, **pause)
    eventually(lambda: sentence in str(ada.status().last_error))
    assert not ada.connected
    if answer is REFUSE_TOPICS:
        eventually(lambda: broker.then.endswith(DISCONNECT))


def test_after_a_message_with_qos_2_the_broker_is_to_forget_it(new_end, eventually) -> None:
    # R7.2-9
    broker = ScriptedBroker([ACCEPT_BY_5 + bytes([0x34]) + QOS_2, ACCEPT_BY_5])
    ada = new_end(broker.url, "ada")
    eventually(lambda: len(broker.starts) == 2 and ada.connected)
    assert broker.starts[1] & 2  # a clean start


@pytest.mark.parametrize(("young_s", "taken_s"), [(120.0, 3600.0), (0.0, 3600.0), (120.0, 0.0)])
def test_a_young_process_whose_name_is_taken_back_ends_and_an_old_one_comes_back(
    new_end, eventually, monkeypatch, young_s: float, taken_s: float
) -> None:
    monkeypatch.setattr("transports.mqtt.client.YOUNG_S", young_s)
    monkeypatch.setattr("transports.mqtt.client.TAKEN_S", taken_s)
    gives_up = bool(young_s and taken_s)
    broker = ScriptedBroker([ACCEPT_BY_5 + TAKEN_OVER] * 3 + [ACCEPT_BY_5])
    ada = new_end(broker.url, "ada")

    def has_ended() -> bool:
        try:
            ada.receive(0.01)
        except NameTaken as error:
            return "another process is ternmesh-barn-ada" in str(error)
        return False

    eventually(has_ended if gives_up else lambda: len(broker.seen) == 4)
    assert has_ended() is gives_up
    assert len(broker.seen) == (1 if gives_up else 4)
    monkeypatch.setattr(ada._connection, "turned_at", -1e6)
    assert (ada.status().turned_s_ago < 1) is gives_up
