"""The rights of clients at a real mosquitto configured by `ternmesh broker config`."""

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from ternmesh.wire.frame import SEALED_MIN
from ternmesh_cli import main
from tests.mosquitto import find_mosquitto, free_port, listens, run_as
from transports import batch
from transports.base import ALL, HOST
from transports.link_config import LinkConfig, link_settings
from transports.mqtt.credentials import read_credentials
from transports.mqtt.settings import MESSAGE_MAX
from transports.mqtt.transport import MqttTransport

WAIT_S = 20.0
UP, DOWN, EVERYBODY = "ternmesh/attic/up/", "ternmesh/attic/down/", "ternmesh/attic/all"


def ternmesh(*arguments: object) -> None:
    assert main.main([str(argument) for argument in arguments]) == 0


class Deployment:
    """A deployment folder, and a mosquitto that runs on it."""

    def __init__(self, program: str, folder: Path) -> None:
        self.program, self.folder, self.port = program, folder, free_port()
        names = ("--name", "localhost", "--port", self.port)
        boards = ("--node", "ada", "--node", "bob", "--node", "cleo")
        ternmesh("broker", "config", "--dir", folder, "--fleet", "attic", *names, *boards)
        run_as("root", folder)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            command = [self.program, "-c", str(self.folder / "mosquitto.conf")]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + WAIT_S
        while not listens(self.port):
            text = (self.folder / "log").read_text()
            assert self.process.poll() is None, text
            assert time.monotonic() < deadline, text
            time.sleep(0.005)

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(WAIT_S)

    def credentials(self, role: str) -> Path:
        return self.folder / "credentials" / f"{role}.credentials.toml"

    def link(self, role: str, **changes: Any) -> LinkConfig:
        fields = {
            "url": f"mqtts://localhost:{self.port}",
            "fleet": "attic",
            "ca_file": str(self.folder / "authority.pem"),
            "credentials_file": str(self.credentials(role)),
        }
        return LinkConfig(**(fields | changes))


class Raw:
    """A client that breaks the rules."""

    def __init__(
        self,
        deployment: Deployment,
        role: str | None,
        *,
        client_id: str = "raw",
        password: str | None = None,
        will: str | None = None,
    ) -> None:
        self.connack: str | None = None
        self.ended: str | None = None
        self.topics: list[str] = []
        self.acks: list[str] = []
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id,
            protocol=MQTTProtocolVersion.MQTTv5,
            reconnect_on_failure=False,
        )
        self.client.tls_set(str(deployment.folder / "authority.pem"))
        if role is not None:
            own = read_credentials(deployment.credentials(role), role)
            self.client.username_pw_set(own.username, password or own.password)
        if will is not None:
            self.client.will_set(will, batch.join([framed("will")]), qos=1)
        self.client.on_connect = self._on_connect
        self.client.on_disconnect = self._on_disconnect
        self.client.on_message = lambda _c, _u, message: self.topics.append(message.topic)
        self.client.on_publish = lambda _c, _u, _m, reason, _p: self.acks.append(str(reason))
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 600
        self.client.connect("localhost", deployment.port, properties=properties)
        self.client.loop_start()

    def _on_connect(self, _client, _userdata, _flags, reason, _properties) -> None:
        self.connack = str(reason)

    def _on_disconnect(self, _client, _userdata, _flags, reason, _properties) -> None:
        self.ended = self.ended or str(reason)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    program = find_mosquitto()
    if program is None:
        pytest.skip("mosquitto is not installed: apt install mosquitto")
    made = Deployment(program, tmp_path_factory.mktemp("deployed") / "broker")
    made.start()
    yield made
    made.stop()


@pytest.fixture
def raw(deployment: Deployment, eventually) -> Iterator[Callable[..., Raw]]:
    made: list[Raw] = []

    def connect(role: str | None, **options: Any) -> Raw:
        made.append(Raw(deployment, role, **options))
        eventually(lambda: made[-1].connack is not None, WAIT_S)
        return made[-1]

    yield connect
    for client in made:
        client.close()


@pytest.fixture
def end(deployment: Deployment, eventually) -> Iterator[Callable[..., MqttTransport]]:
    """A connected transport."""
    made: list[MqttTransport] = []

    def connect(role: str, **changes: Any) -> MqttTransport:
        made.append(MqttTransport(link_settings(deployment.link(role, **changes), role)))
        made[-1].open()
        if not changes:
            eventually(lambda: made[-1].connected, WAIT_S)
        return made[-1]

    yield connect
    for transport in made:
        transport.close()


def framed(text: str) -> bytes:
    """A frame of the shortest length that begins with `text`."""
    return text.encode().ljust(SEALED_MIN)


def next_of(end: MqttTransport) -> tuple[str, bytes]:
    """The sender of the next frame that arrives, and the frame."""
    arrival = end.receive(WAIT_S)
    return arrival.peer, arrival.frames[0]


def test_the_ends_of_a_fleet_reach_each_other(end) -> None:
    host, ada, bob = end(HOST), end("ada"), end("bob")
    ada.send(HOST, [framed("from ada")])
    assert next_of(host) == ("ada", framed("from ada"))
    host.send("bob", [framed("to bob")])
    assert next_of(bob) == (HOST, framed("to bob"))
    host.send(ALL, [framed("to all")])
    assert (next_of(ada), next_of(bob)) == ((HOST, framed("to all")), (HOST, framed("to all")))


def test_a_node_cannot_publish_as_another_nor_as_the_host(end, raw, eventually) -> None:
    host, bob, eve = end(HOST), end("bob"), raw("ada", client_id="eve")
    frame = batch.join([framed("forge")])
    topics = (UP + "bob", UP + "nobody", DOWN + "bob", EVERYBODY, "ternmesh/barn/up/ada", "other")
    for topic in topics:
        eve.client.publish(topic, frame, qos=1)
    eve.client.publish(UP + "ada", batch.join([framed("mine")]), qos=1)
    assert next_of(host) == ("ada", framed("mine"))
    host.send("bob", [b"the first that bob hears"])
    assert next_of(bob) == (HOST, b"the first that bob hears")
    eventually(lambda: len(eve.acks) == len(topics) + 1)
    assert eve.acks == ["Not authorized"] * len(topics) + ["Success"]


def test_a_node_reads_its_own_topics_whatever_it_subscribes_to(end, raw, eventually) -> None:
    host, _bob, eve = end(HOST), end("bob"), raw("ada", client_id="eve")
    filters = ("#", "+/#", "$SYS/#", UP + "+", DOWN + "+", DOWN + "bob")
    shared = ("$share/thieves/" + UP + "+", "$share/thieves/" + DOWN + "bob")
    eve.client.subscribe([(name, 1) for name in (*filters, *shared, DOWN + "ada", EVERYBODY)])
    eve.client.publish(UP + "ada", batch.join([framed("there")]), qos=1)  # after its subscriptions
    assert next_of(host) == ("ada", framed("there"))
    host.send("bob", [framed("secret")])
    host.send(ALL, [framed("to all")])
    host.send("ada", [framed("the last")])
    eventually(lambda: DOWN + "ada" in eve.topics, WAIT_S)
    assert set(eve.topics) == {DOWN + "ada", EVERYBODY}


@pytest.mark.parametrize("client_id", ["ternmesh-attic-host", "attic~host"])
def test_a_node_cannot_take_the_hosts_place(end, raw, client_id) -> None:
    host, eve = end(HOST), raw("ada", client_id=client_id)
    eve.client.publish(UP + "ada", batch.join([framed("there")]), qos=1)
    assert next_of(host) == ("ada", framed("there"))
    assert (host.connected, host.status().numbers["reconnects"], eve.topics) == (True, 0, [])


def test_a_last_will_follows_the_same_rules(end, raw) -> None:
    host = end(HOST)
    raw("ada", client_id="eve", will=UP + "bob")
    again = raw("ada", client_id="eve")  # now the broker sends the will of the first
    again.client.publish(UP + "ada", batch.join([framed("there")]), qos=1)
    assert next_of(host) == ("ada", framed("there"))


def test_nobody_leaves_a_retained_message(raw, eventually) -> None:
    eve = raw("ada", client_id="eve")
    eve.client.publish(UP + "ada", batch.join([framed("stays")]), qos=1, retain=True)
    eventually(lambda: eve.ended is not None)
    assert eve.ended == "Retain not supported"


@pytest.mark.parametrize(
    ("role", "password"), [(None, None), ("ada", "wrong")], ids=["anonymous", "wrong password"]
)
def test_strangers_are_refused(raw, role, password) -> None:
    assert raw(role, password=password).connack == "Not authorized"


def test_a_packet_beyond_the_limit_is_refused_and_ours_stay_below(end, raw, eventually) -> None:
    host, eve = end(HOST), raw("ada", client_id="eve")
    assert host.status().numbers["message_max"] == MESSAGE_MAX
    host_limit = host.status().numbers["packet_max"]
    eve.client.publish(UP + "ada", bytes(host_limit), qos=1)
    eventually(lambda: eve.ended is not None)  # it may still write when the broker disconnects
    assert eve.acks == []
    bob = end("bob")
    bob.send(HOST, [b"x" * (MESSAGE_MAX - 2)])
    assert next_of(host) == ("bob", b"x" * (MESSAGE_MAX - 2))


def test_nodes_come_and_go_while_the_broker_runs(deployment, end, eventually) -> None:
    host, bob = end(HOST), end("bob")
    command = ("--dir", deployment.folder, "--fleet", "attic", "--node", "dora")
    ternmesh("broker", "add", *command)
    deployment.process.send_signal(signal.SIGHUP)
    dora = end("dora")
    dora.send(HOST, [framed("from dora")])
    assert next_of(host) == ("dora", framed("from dora"))
    ternmesh("broker", "remove", *command)
    deployment.process.send_signal(signal.SIGHUP)
    eventually(lambda: "Not authorized" in str(dora.status().last_error), WAIT_S)
    assert not dora.connected
    bob.send(HOST, [framed("from bob")])
    assert next_of(host) == ("bob", framed("from bob"))


def test_a_new_certificate_is_from_the_same_authority(deployment, end) -> None:
    before = (deployment.folder / "server.pem").read_bytes()
    ternmesh("broker", "renew", "--dir", deployment.folder)
    assert (deployment.folder / "server.pem").read_bytes() != before
    deployment.process.send_signal(signal.SIGHUP)
    assert end("ada").connected
