"""A board, a gateway and a broker with keys, as processes: killed in the middle of an object.

The board speaks over an emulated modem on a pseudo-terminal, and the gateway for it on the broker.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ternmesh.link.airtime import LoraSetting
from ternmesh_cli.keys import enrol_fleet
from ternmesh_cli.process import write_toml
from ternmesh_service.control_socket import ControlError, ask
from ternmesh_store.state_file import StateFile
from transports.base import HOST
from transports.factory import make_transport
from transports.link_config import LinkConfig
from transports.mqtt.embedded_broker import EmbeddedBroker
from transports.serial_lora.emulator.radios import EmulatedRadios, new_modem

ROOT = Path(__file__).parents[2]
FRAMES, TRIES_MAX = 120, 8
PATIENCE_S = 60.0
RADIO = {
    "dialect": "rnode",
    "frequency_hz": 869_525_000,
    "spreading_factor": 7,
    "addresses": {"ada": 1},
    "speed": 100.0,
}
# One end of a link: it sends each object in a file once, and prints its status.
BOARD = """
import json, sys
from pathlib import Path
from ternmesh_service.status import to_json
from ternmesh_service.keyring import Keyring, SecurityConfig, hop_keys
from ternmesh_store.state_file import StateFile
from ternmesh.wire.frame import Header, seal_open
from transports.factory import make_transport
from transports.link_config import LinkConfig

folder, link = Path(sys.argv[1]), LinkConfig(**json.loads(sys.argv[2]))
state = StateFile(folder)
state.open()
keyring = Keyring(state, SecurityConfig())
keyring.open()
end = make_transport(link, "ada", state, hop_keys(keyring, "ada", link.gateway))
end.open()
print("{}", flush=True)
while True:
    arrival = end.receive(0.05)
    order = folder / "order"
    if order.exists():
        number, count = json.loads(order.read_text())
        body = bytes((2, number)) * 60
        end.send("host", [seal_open(Header(3, i, suite=1), body) for i in range(count)])
        order.unlink()
    print(json.dumps(to_json(end.status())), flush=True)
"""


class Process:
    """A program with a folder of its own, whose last line of output is its status."""

    def __init__(self, folder: Path, arguments: list[str]) -> None:
        self.folder, self._arguments = folder, arguments
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.folder / "out").open("wb") as out, (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(self._arguments, cwd=ROOT, stdout=out, stderr=log)

    def kill9(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(PATIENCE_S)

    def status(self) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "log").read_text()
        lines = (self.folder / "out").read_bytes().split(b"\n")
        return json.loads(lines[-2]) if len(lines) > 1 else {}


class Neighbourhood:
    """The board, the gateway, and the host's end of the broker."""

    def __init__(self, folder: Path, ports: list[str], url: str, eventually: Callable) -> None:
        self.eventually, self.number = eventually, 0
        fleet = {"ada": folder / "ada"}
        enrol_fleet("ternmesh", folder / HOST, fleet, {"shed": folder / "shed"})
        link = {"region": "EU868", "gateway": "shed", "serial": {**RADIO, "port": ports[1]}}
        board = [sys.executable, "-c", BOARD, str(folder / "ada"), json.dumps(link)]
        self.board = Process(folder / "ada", board)
        config = folder / "gateway.toml"
        tables: dict[str, dict[str, object]] = {
            "": {"name": "shed", "state_dir": str(folder / "shed")},
            "radio": {"region": "EU868", "serial": {**RADIO, "port": ports[0]}},
            "network": {"url": url},
        }
        config.write_text(write_toml(tables))
        gateway = [sys.executable, "-m", "ternmesh_cli.main", "gateway", "--config", str(config)]
        self.gateway = Process(folder / "shed", gateway)
        self.host = make_transport(LinkConfig(url), HOST, StateFile(folder / HOST))
        self.arrived: dict[int, int] = {}  # frames by the number of their object

    def listen(self) -> None:
        while (arrival := self.host.receive(0.0)) is not None:
            assert arrival.peer == "ada"
            for frame in arrival.frames:
                self.arrived[frame[7]] = self.arrived.get(frame[7], 0) + 1

    def order(self) -> int:
        """Let the board send one more object; its number."""
        self.number += 1
        unfinished = self.board.folder / "unfinished"
        unfinished.write_text(json.dumps((self.number, FRAMES)))
        unfinished.rename(self.board.folder / "order")
        return self.number

    def wait_for_airtime(self, airtime_us: int) -> None:
        """Wait until the board has used this airtime since its start."""
        self.eventually(
            lambda: (self.board.status().get("airtime_us") or 0) >= airtime_us, PATIENCE_S
        )

    def wait_for(self, number: int) -> None:
        """Wait until an object has reached the host."""

        def is_there() -> bool:
            self.listen()
            return self.arrived.get(number, 0) >= FRAMES

        self.eventually(is_there, PATIENCE_S)

    def gateway_status(self) -> dict[str, Any]:
        try:
            return ask(self.gateway.folder / "control.sock", {"command": "status"}, PATIENCE_S)
        except ControlError:
            return {}

    def kill_in_the_middle(self, victim: Process) -> int:
        """Kill an end while the gateway holds a part of an object; the object's number."""
        for _ in range(TRIES_MAX):
            spoken = self.board.status().get("airtime_us") or 0
            number = self.order()
            self.wait_for_airtime(spoken + 2_000_000)
            victim.kill9()
            if victim is self.board or self._holds_a_part():
                victim.start()
                return number
            victim.start()
            self.wait_for(number)
        raise AssertionError("the machine is too slow to catch it in the middle")

    def _holds_a_part(self) -> bool:
        state = StateFile(self.gateway.folder)
        state.open()
        try:
            return bool(state.link().load().incoming)
        finally:
            state.close()


@pytest.fixture
def neighbourhood(tmp_path: Path, eventually: Callable) -> Iterator[Neighbourhood]:
    modems = [new_modem("rnode", index, radio=LoraSetting(7)) for index in range(2)]
    with EmulatedRadios(modems, speed=100.0, loss=0.1) as air, EmbeddedBroker() as broker:
        made = Neighbourhood(tmp_path, air.paths, broker.url, eventually)
        made.host.open()
        try:
            made.gateway.start()
            made.board.start()
            eventually(lambda: made.host.connected, PATIENCE_S)
            yield made
        finally:
            made.gateway.kill9()
            made.board.kill9()
            made.host.close()


def test_objects_go_on_after_a_kill_of_gateway_or_board(neighbourhood: Neighbourhood) -> None:
    there = neighbourhood
    there.wait_for(there.order())
    for victim in (there.gateway, there.board):
        there.wait_for(there.kill_in_the_middle(victim))
    link = there.gateway_status()["transport"]["link"]
    assert link["sealed"]
    assert set(link["refused"].get("ada", {})) <= {"seal", "sync", "replay"}
    assert there.gateway_status()["security"]["clones"] == {}
    assert there.board.status()["link"]["sealed"]
