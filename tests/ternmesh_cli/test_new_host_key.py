"""A fleet of processes whose host gets another key.

One board is on the broker, the other behind a gateway: it speaks over an emulated modem.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from ternmesh.link.airtime import LoraSetting
from ternmesh_cli.keys import enrol_fleet
from ternmesh_cli.main import main
from ternmesh_cli.process import write_toml
from tests.programs import PATIENCE_S, Process, board_settings, host_settings, running
from transports.mqtt.embedded_broker import EmbeddedBroker
from transports.serial_lora.emulator.radios import EmulatedRadios, new_modem

pytestmark = pytest.mark.nightly  # tests/host/test_host_rotation.py is in one process
RADIO = {
    "dialect": "rnode",
    "frequency_hz": 869_525_000,
    "spreading_factor": 7,
    "addresses": {"nicolas": 1},
    "speed": 100.0,
}


def radio(port: str, **changes: object) -> dict[str, object]:
    return {"region": "EU868", "serial": {**RADIO, "port": port}, **changes}


def emulated() -> EmulatedRadios:
    return EmulatedRadios(
        [new_modem("rnode", i, radio=LoraSetting(7)) for i in range(2)], speed=100
    )


class Fleet:
    """The programs by name; the name of the host is host, that of the gateway shed."""

    def __init__(
        self, folder: Path, host: Mapping[str, object], boards: Mapping[str, Any], eventually: Any
    ) -> None:
        folders = {name: folder / name for name in boards}
        enrol_fleet("ternmesh", folder / "host", folders, {"shed": folder / "shed"})
        settings = host_settings(host, rounds=500, min_peers=1, deadline_s=20)
        self.all = {"host": Process("host", folder / "host", settings)}
        for name, link in boards.items():
            self.all[name] = Process("node", folder / name, board_settings(name, link))
        self._eventually = eventually

    def config(self, name: str) -> str:
        return str(self.all[name].config)

    def wait_for(self, name: str, condition: Callable[[dict[str, Any]], object]) -> None:
        process = self.all[name]
        self._eventually(lambda: (now := process.status()) and condition(now), 3 * PATIENCE_S)

    def wait_for_updates(self, *boards: str) -> None:
        """Wait until the host has counted these boards in a round that has begun by now."""
        now = self.all["host"].status()["version"]

        def are_counted(status: dict[str, Any]) -> bool:
            new = [item for item in status["history"] if item["version"] > now + 1]
            return set(boards) <= {name for item in new for name in item["counted"]}

        self.wait_for("host", are_counted)

    def rotate_host(self, capsys: Any) -> dict[str, str]:
        """Give the host another key, and wait until all others trust it; what the command says."""
        self.all["host"].stop()
        assert main(["enrol", "rotate", "--config", self.config("host"), "--json"]) == 0
        answer: dict[str, str] = json.loads(capsys.readouterr().out)
        self.all["host"].start()
        for name in self.all.keys() - {"host"}:
            self.wait_for(name, lambda status: status["security"]["host"] == answer["key"])
        return answer


def test_a_board_on_the_radio_of_the_host_follows_it(
    tmp_path: Path, eventually: Any, capsys: Any
) -> None:  # R3-12, R9.6-12
    """Their link is sealed with the host's own key: notices pass it in the clear."""
    with emulated() as air:
        host, board = map(radio, air.paths)
        fleet = Fleet(tmp_path, host, {"nicolas": board}, eventually)
        with running(*fleet.all.values()):
            fleet.wait_for("host", lambda status: status["version"] >= 1)
            fleet.rotate_host(capsys)
            fleet.wait_for_updates("nicolas")
            fleet.all["host"].stop()


def test_a_fleet_follows_the_host(tmp_path: Path, eventually: Any, capsys: Any) -> None:
    # R9.6-11, R9.6-12
    with emulated() as air, EmbeddedBroker() as broker:
        link, boards = {"url": broker.url}, ("theo", "nicolas")
        behind = radio(air.paths[1], gateway="shed")
        fleet = Fleet(tmp_path, link, {"theo": link, "nicolas": behind}, eventually)
        top = {"name": "shed", "state_dir": "."}
        settings = write_toml({"": top, "radio": radio(air.paths[0]), "network": link})
        fleet.all["shed"] = Process("gateway", tmp_path / "shed", settings)
        with running(*fleet.all.values()):
            fleet.wait_for("host", lambda status: status["version"] >= 1)
            fleet.wait_for_updates(*boards)
            before = fleet.all["host"].status()
            assert main(["enrol", "rotate", "--config", fleet.config("host")]) == 1
            assert "stop it" in capsys.readouterr().err
            answer = fleet.rotate_host(capsys)
            assert answer["identity"].startswith("TM1-HOST:")
            assert answer["rotation"].startswith("TM1-ROTATION:")
            fleet.wait_for_updates(*boards)
            after = fleet.all["host"].status()
            assert after["run"] == before["run"]
            assert after["version"] > before["version"]
            for name in boards:  # what they trust is on their disk
                fleet.all[name].kill9()
                fleet.all[name].start()
            fleet.wait_for_updates(*boards)
            fleet.all["host"].stop()
