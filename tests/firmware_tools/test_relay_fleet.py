"""A fleet learns through the relay in C. LoRa modems and BLE controllers are emulated, no more.

A node, its modem, the air with losses, the relay's modem, the relay (a process that is killed), a
real Bluetooth stack, the bridge, the host.
"""

import asyncio
import functools
import random
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from models.zoo import fsdd_path
from ternmesh_cli.keys import enrol_fleet
from ternmesh_cli.process import write_toml
from tests.firmware_tools.c_library import make
from tests.programs import Process
from transports.ble.config import static_address
from transports.ble.gatt import GattError
from transports.serial_lora.emulator.radios import EmulatedRadios, new_modem

pytest.importorskip("bumble")
pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="cc is not installed")
ATT_MTU = 247  # so that a value has RELAY_VALUE_MAX bytes
SPEED, FREQUENCY, ADDRESS, LOSS, ROUNDS = 20.0, 869_525_000, 7, 0.1, 20
BOARD, PATIENCE_S = "theo", 90.0
RADIO = {"spreading_factor": 7, "bandwidth_khz": 125, "coding_rate": 1}


class Central(threading.Thread):
    """The Bluetooth of the relay's board: its values go through a socket to the relay.

    The socket is there while the bridge is connected.
    """

    def __init__(self, path: Path, hci: str) -> None:
        super().__init__(daemon=True)
        self._path, self._hci = path, hci
        self._loop = asyncio.new_event_loop()

    def run(self) -> None:
        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        from transports.ble.bumble_ends import BumbleClient, open_device

        self._task = asyncio.current_task()
        device = functools.partial(open_device, self._hci, static_address("relay"))
        client = BumbleClient(device, static_address(f"bridge of {BOARD}"), ATT_MTU)
        while True:
            with suppress(OSError, GattError):
                await self._pass_on(client)
            with suppress(GattError):
                await client.disconnect()

    async def _pass_on(self, client) -> None:
        """One connection, until an end of it goes away."""
        down: asyncio.Queue[bytes] = asyncio.Queue()
        await client.connect(down.put_nowait, lambda _why: down.put_nowait(b""))
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
            self._path.unlink(missing_ok=True)
            server.bind(str(self._path))
            server.listen(1)
            server.setblocking(False)
            relay, _ = await self._loop.sock_accept(server)
        with relay:
            relay.setblocking(False)
            up = asyncio.create_task(self._pass_up(client, relay))
            try:
                while not up.done():
                    with suppress(TimeoutError):
                        value = await asyncio.wait_for(down.get(), 0.1)
                        if not value:
                            return
                        relay.send(bytes(value))
            finally:
                up.cancel()

    async def _pass_up(self, client, relay: socket.socket) -> None:
        while value := await self._loop.sock_recv(relay, 600):
            await client.write(value)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)
        self.join()


class Fleet:
    def __init__(self, folder: Path, radios: EmulatedRadios, hci: str, program: Path) -> None:
        enrol_fleet("ternmesh", folder / "host", {BOARD: folder / BOARD})
        host: dict[str, dict[str, object]] = {
            "": {"state_dir": ".", "model": "keyword"},
            "link": {"ble": {BOARD: {"hci": hci}}, "relay": RADIO},
            "run": {"rounds": ROUNDS, "min_peers": 1, "announce_s": 5},
        }
        serial = {
            **RADIO, "port": radios.paths[0], "dialect": "meshcore", "frequency_hz": FREQUENCY,
            "preamble_symbols": 16, "addresses": {BOARD: ADDRESS}, "speed": SPEED,
        }  # fmt: skip
        node: dict[str, dict[str, object]] = {
            "": {"name": BOARD, "state_dir": ".", "model": "keyword"},
            "link": {"region": "EU868", "serial": serial},
            "data": {
                "path": str(fsdd_path("train")), "divide_by": 255.0,
                "arrays": {"features": "x", "target": "y"}, "where": {"speaker": BOARD},
            },
        }  # fmt: skip
        self.host = Process("host", folder / "host", write_toml(host))
        self.node = Process("node", folder / BOARD, write_toml(node))
        numbers = FREQUENCY, 7, 125, 1, 14, 100, ADDRESS, SPEED
        self._command = [str(part) for part in (program, radios.paths[1], folder / "ble", *numbers)]
        self.relay = subprocess.Popen(self._command)

    def kill_relay(self) -> None:
        self.relay.kill()
        self.relay.wait()
        self.relay = subprocess.Popen(self._command)

    def round(self) -> int:
        now = self.host.status()
        return int(now["version"]) if now else 0


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    from transports.ble.simulated import VirtualControllers

    modems = [new_modem("meshcore", 0), new_modem("meshcore", 1)]
    program = make(tmp_path / "c", "relay")
    with (
        EmulatedRadios(modems, speed=SPEED, loss=LOSS) as radios,
        VirtualControllers(2, rng=random.Random(0)) as controllers,
    ):
        central = Central(tmp_path / "ble", controllers.names[1])
        central.start()
        found = Fleet(tmp_path, radios, controllers.names[0], program)
        found.host.start()
        found.node.start()
        yield found
        for process in (found.host.process, found.node.process, found.relay):
            process.kill()
            process.wait()
        central.close()


@pytest.mark.nightly
def test_a_fleet_learns_through_a_relay_that_is_killed(fleet: Fleet, eventually: Callable) -> None:
    for kill in range(3):
        eventually(lambda kill=kill: fleet.round() >= 2 + 5 * kill, PATIENCE_S)
        fleet.kill_relay()
    eventually(lambda: fleet.round() == ROUNDS, PATIENCE_S)
    eventually(lambda: (now := fleet.node.status()) and now["version"] == ROUNDS, PATIENCE_S)
    history = fleet.host.status()["history"]
    assert [row["version"] for row in history] == list(range(1, ROUNDS + 1))
    assert {name for row in history for name in row["counted"]} == {BOARD}
