"""A gateway between a radio, here a lossy hub with the link around it, and a network."""

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from bench.loopback import LoopbackHub
from edge.gateway import service
from ternmesh.config import ConfigError
from ternmesh.errors import SecurityError
from ternmesh.link.settings import LinkSettings
from ternmesh.wire.frame import BROADCAST, Header, seal_open
from ternmesh_cli.keys import enrol_fleet
from ternmesh_cli.status_text import describe
from ternmesh_service.config_file import control_path
from ternmesh_service.control_socket import ControlError
from ternmesh_service.status import ask_status
from ternmesh_store.state_file import StateFile
from tests.faulty import Faults, FaultyTransport
from transports.base import ALL, HOST, Arrival, NameTaken, NotConnected, Transport
from transports.mqtt.embedded_broker import EmbeddedBroker
from transports.reliable import ReliableTransport
from transports.serial_lora.emulator.radios import EmulatedRadios, new_modem

BOARDS = ("ada", "bo")


class Air:
    """Radios of a gateway and two boards, and the network behind; time passes by turns."""

    def __init__(self, folder: Path, drop: float = 0.2) -> None:
        self.states: dict[str, StateFile] = {}
        self.now, self.drop, self.folder = 0.0, drop, folder
        self.radio, self.network = LoopbackHub(mtu=120), LoopbackHub()
        self.boards = {board: self.linked(board) for board in BOARDS}
        self.host = self.network.host()
        self.start()
        self.host.open()
        for board in self.boards.values():
            board.open()

    def start(self) -> None:
        network = {board: self.network.node(board) for board in BOARDS}
        self.gateway = service.Gateway(self.linked(HOST), network)
        self.gateway.open()

    def linked(self, name: str) -> ReliableTransport:
        raw = self.radio.host() if name == HOST else self.radio.node(name)
        rng = np.random.default_rng(len(name))
        inner = FaultyTransport(raw, Faults(drop=self.drop), rng, lambda: self.now)
        settings = LinkSettings(mtu=120, idle_s=1.0, longest_s=30.0)
        state = self.states[name] = StateFile(self.folder / name)
        state.open()
        return ReliableTransport(inner, settings, state.link(), lambda: self.now, rng, BOARDS)

    def run(self, seconds: float) -> dict[str, list]:
        found: dict[str, list] = {name: [] for name in (HOST, *BOARDS)}
        until = self.now + seconds
        while self.now < until:
            while self.gateway.turn(0.0):
                pass
            ends: dict[str, Transport] = {HOST: self.host, **self.boards}
            for name, end in ends.items():
                while (arrival := end.receive(0.0)) is not None:
                    found[name].append((arrival.peer, arrival.frames))
            self.now += 0.05
        return found


def frames(count: int, address: int = 7, size: int = 200) -> list[bytes]:
    rng = np.random.default_rng(count)
    return [seal_open(Header(address, i), b"\x02" + rng.bytes(size)) for i in range(count)]


def test_frames_pass_in_the_name_of_a_board_and_to_all_once(tmp_path: Path) -> None:  # R8.2-30
    air = Air(tmp_path)
    mine, everybodys = frames(3, address=0x8001), frames(4, address=BROADCAST)
    air.boards["bo"].send(HOST, frames(5))
    air.host.send("ada", mine)
    air.host.send(ALL, everybodys)
    found = air.run(120.0)
    assert found[HOST] == [("bo", tuple(frames(5)))]
    assert sorted(found["ada"]) == sorted([(HOST, tuple(mine)), (HOST, tuple(everybodys))])
    assert found["bo"] == [(HOST, tuple(everybodys))]
    assert (air.gateway.frames_up, air.gateway.frames_down) == (5, 7)


@pytest.mark.parametrize("restarts", [False, True])
def test_what_the_radio_brought_waits_while_the_network_is_down(tmp_path, restarts) -> None:
    air = Air(tmp_path, drop=0.0)
    air.network.up = False
    for board, count in (("ada", 3), ("bo", 4)):
        air.boards[board].send(HOST, frames(count))
    assert air.run(100.0)[HOST] == []
    if restarts:
        air.gateway.close()
        air.states[HOST].close()
        air.start()
    air.network.up = True
    assert sorted(air.run(60.0)[HOST]) == sorted(
        [("ada", tuple(frames(3))), ("bo", tuple(frames(4)))]
    )


def test_a_gateway_without_its_network_costs_no_processor_time(tmp_path, monkeypatch) -> None:
    air = Air(tmp_path, drop=0.0)
    air.network.up = False
    air.boards["ada"].send(HOST, frames(3))
    air.run(20.0)
    slept: list[float] = []
    monkeypatch.setattr("edge.gateway.service.time.sleep", slept.append)
    for _ in range(5):
        assert not air.gateway.turn(0.05)
    assert slept == [0.05] * 5


CONFIG = """
state_dir = "state"
[radio]
region = "EU868"
[radio.serial]
port = "{port}"
dialect = "rnode"
frequency_hz = 869525000
speed = 100.0
addresses = {{ ada = 1, bo = 2 }}
[network]
url = "{url}"
"""


def test_a_whole_gateway_with_a_broker_and_an_emulated_modem(tmp_path: Path, eventually) -> None:
    path = tmp_path / "gateway.toml"
    with EmulatedRadios([new_modem("rnode", 0)], speed=100.0) as air, EmbeddedBroker() as broker:
        text = CONFIG.format(port=air.paths[0], url=broker.url)
        path.write_text(f"{text}[security]\ninsecure = true\n")
        config, stop = service.read_gateway_config(path), threading.Event()
        options = {"insecure": True}
        thread = threading.Thread(target=service.run_gateway, args=(config, stop), kwargs=options)
        thread.start()
        try:
            socket = control_path(config.state_dir, config.control_socket)
            eventually(socket.exists)
            lines: list[str] = []

            def is_up() -> bool:
                with suppress(ControlError):  # it has just begun to listen
                    lines[:] = describe(ask_status(socket))
                return bool(lines) and "not connected" not in "".join(lines)

            eventually(is_up)
            assert lines[0] == "gateway for ada, bo"
            assert lines[1].startswith(f"connected to the rnode modem at {air.paths[0]}")
            assert lines[2].startswith("ada: connected to")
            assert lines[-1].startswith("warning: INSECURE")
        finally:
            stop.set()
            thread.join()


def config_of(tmp_path: Path) -> service.GatewayConfig:
    path = tmp_path / "gateway.toml"
    path.write_text(CONFIG.format(port="/dev/x", url="mqtt://127.0.0.1"))
    return service.read_gateway_config(path)


def test_a_radio_needs_keys_or_saying_twice_that_it_has_none(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    with pytest.raises(SecurityError, match=r"no identity at .*state/identity"):
        service.run_gateway(config, threading.Event())
    with pytest.raises(ConfigError, match="insecure = true"):
        service.run_gateway(config, threading.Event(), insecure=True)


def test_a_gateway_has_an_identity_of_its_own_role_and_name(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    enrol_fleet("ternmesh", tmp_path / HOST, {"gateway": tmp_path / "state"})
    with pytest.raises(SecurityError, match="the identity of a node"):
        service.run_gateway(config, threading.Event())
    barn = replace(config, state_dir=str(tmp_path / "barn"))
    enrol_fleet("ternmesh", tmp_path / HOST, {}, {"barn": tmp_path / "barn"})
    with pytest.raises(SecurityError, match="identity of barn, not gateway"):
        service.run_gateway(barn, threading.Event())


def test_boards_that_a_gateway_does_not_know_are_named(tmp_path: Path, caplog) -> None:
    config = config_of(tmp_path)
    nodes = {"ada": tmp_path / "ada"}
    enrol_fleet("ternmesh", tmp_path / HOST, nodes, {"gateway": tmp_path / "state"})
    stop = threading.Event()
    stop.set()
    service.run_gateway(config, stop)
    [warning] = [r.getMessage() for r in caplog.records if "enrol them" in r.getMessage()]
    assert warning.startswith("no keys of bo are known")


def test_a_neighbourhood_may_be_bridges(tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text(
        """
        state_dir = "state"
        [radio.ble]
        ada.hci = "usb:0"
        bo.hci = "usb:1"
        [network]
        url = "mqtt://127.0.0.1"
        """
    )
    assert service.read_gateway_config(path).boards == BOARDS


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("[radio.serial]", "[radio.serials]", "radio.serials"),
        ('region = "EU868"', "", "link.region is missing"),
        ("mqtt://127.0.0.1", "", r"\[link\] has no url"),
        ("ada = 1", "ada = 0", "1 to 254"),
        ("[radio.serial]", "[radio.ble]", "radio.region has no effect without radio.serial"),
        ("[network]", '[network]\nservice = "unreliable"', r"in \[network\]: link.service is"),
        ("[network]", "[network]\nmultipath = true", "needs one broker"),
        ("state_dir", 'name = "host"\nstate_dir', "may not be called 'host'"),
        ("[radio]", '[radio]\ngateway = "barn"', "link.gateway is for boards"),
    ],
)
def test_a_wrong_config_is_one_sentence(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text(CONFIG.format(port="/dev/x", url="mqtt://127.0.0.1").replace(old, new))
    with pytest.raises(ConfigError, match=sentence):
        service.read_gateway_config(path)


class Login:
    """A board's connection to a broker, which may refuse it."""

    mtu = 4096

    def __init__(self, connected: bool = True) -> None:
        self.connected = connected
        self.inbox: list[Any] = []
        self.sent: list[Any] = []

    def open(self) -> None:
        pass

    close = open

    def send(self, peer: str, frames: Sequence[bytes]) -> int:
        if not self.connected:
            raise NotConnected("the broker refuses this login")
        self.sent.append((peer, tuple(frames)))
        return sum(map(len, frames))

    def receive(self, timeout_s: float) -> Arrival | None:
        return self.inbox.pop(0) if self.inbox else None


class Neighbourhood:
    """A gateway whose radio brings what a test puts into its inbox."""

    def __init__(self, **is_connected: bool) -> None:
        self.logins = {board: Login(connected) for board, connected in is_connected.items()}
        self.radio = Login()
        self.gateway = service.Gateway(self.radio, self.logins)

    def say(self, board: str, count: int = 1, size: int = 100) -> None:
        self.radio.inbox += [Arrival(board, (f,), len(f)) for f in frames(count, size=size)]

    def turn(self, turns: int = 20) -> None:
        for _ in range(turns):
            self.gateway.turn(0.0)

    def sent(self) -> dict[str, int]:
        return {board: len(login.sent) for board, login in self.logins.items()}


def test_a_board_whose_login_is_refused_holds_up_nobody(monkeypatch) -> None:
    """Whoever reaches the radio may speak in its name, for its seals are opened by the host."""
    near = Neighbourhood(taken=False, thief=False, ada=True, bo=True)
    taken = Mock(side_effect=NameTaken("it is on the network itself"))
    monkeypatch.setattr(near.logins["taken"], "receive", taken)
    for board, count in (("thief", 3), ("ada", 5), ("bo", 5)):
        near.say(board, count)
    near.turn()
    assert near.sent() == {"taken": 0, "thief": 0, "ada": 5, "bo": 5}
    near.logins["thief"].connected = True
    near.turn()
    assert [frame for _, (frame,) in near.logins["thief"].sent] == frames(3, size=100)
    assert near.gateway.frames_lost == 0


@pytest.mark.parametrize(
    ("size", "count"), [(1, service.UP_MAX), (60_000, service.UP_BYTES_MAX // 60_010)]
)
def test_what_waits_for_a_refused_login_is_bounded(size: int, count: int) -> None:
    near = Neighbourhood(thief=False, ada=True)
    near.say("thief", count + 3, size)
    near.say("ada")
    near.turn(count + 10)
    assert (near.gateway.frames_lost, near.sent()["ada"]) == (3, 1)
    near.logins["thief"].connected = True
    near.turn(count + 10)
    assert near.sent()["thief"] == count


def test_nothing_is_taken_from_the_radio_while_no_login_holds() -> None:
    near = Neighbourhood(ada=False, bo=False)
    near.say("ada", 9)
    near.turn()
    assert len(near.radio.inbox) == 8
    near.logins["bo"].connected = True
    near.turn()
    assert near.radio.inbox == []


def test_what_is_said_to_all_is_taken_from_a_board_that_is_connected() -> None:
    near = Neighbourhood(thief=False, ada=True, bo=True)
    [everybodys] = frames(1, address=BROADCAST)
    for board in ("ada", "bo"):
        near.logins[board].inbox.append(Arrival(HOST, (everybodys,), 30))
    near.turn(1)
    assert near.radio.sent == [(ALL, (everybodys,))]
