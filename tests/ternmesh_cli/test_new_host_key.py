"""A fleet of processes whose host gets another key.

One board is on the broker, the other behind a gateway: it speaks over an emulated modem.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from models.zoo import fsdd_path
from ternmesh.link.airtime import LoraSetting
from ternmesh_cli.keys import enrol_fleet
from ternmesh_cli.main import main
from ternmesh_cli.process import write_toml
from tests.ternmesh_cli.test_fleet import PATIENCE_S, Process
from transports.mqtt.embedded_broker import EmbeddedBroker
from transports.serial_lora.emulator.radios import EmulatedRadios, new_modem

RADIO = {
    "dialect": "rnode",
    "frequency_hz": 869_525_000,
    "spreading_factor": 7,
    "addresses": {"nicolas": 1},
    "speed": 100.0,
}
ROUNDS = 500  # more than there is time for


class Fleet:
    """The programs by name; the name of the host is host, that of the gateway shed."""

    def __init__(self, folder: Path, ports: list[str], url: str, eventually: Callable) -> None:
        self.folder, self._eventually = folder, eventually
        boards = {name: folder / name for name in ("theo", "nicolas")}
        enrol_fleet("ternmesh", folder / "host", boards, {"shed": folder / "shed"})
        host: dict[str, dict[str, object]] = {
            "": {"state_dir": ".", "model": "keyword"},
            "link": {"url": url},
            "run": {"rounds": ROUNDS, "min_peers": 1, "deadline_s": 20, "announce_s": 1},
        }
        radio: dict[str, object] = {"region": "EU868", "serial": {**RADIO, "port": ports[0]}}
        top = {"name": "shed", "state_dir": "."}
        shed: dict[str, dict[str, object]] = {"": {**top}, "radio": radio, "network": {"url": url}}
        self.all = {
            "host": Process("host", folder / "host", write_toml(host)),
            "shed": Process("gateway", folder / "shed", write_toml(shed)),
            "theo": Process("node", folder / "theo", self.node("theo", {"url": url})),
        }
        link: dict[str, object] = {
            "region": "EU868",
            "gateway": "shed",
            "serial": {**RADIO, "port": ports[1]},
        }
        self.all["nicolas"] = Process("node", folder / "nicolas", self.node("nicolas", link))

    def node(self, name: str, link: dict[str, object]) -> str:
        data: dict[str, object] = {
            "path": str(fsdd_path("train")),
            "divide_by": 255.0,
            "arrays": {"features": "x", "target": "y"},
            "where": {"speaker": name},
        }
        top: dict[str, object] = {"name": name, "state_dir": ".", "model": "keyword"}
        return write_toml({"": top, "link": link, "data": data})

    def config(self, name: str) -> str:
        return str(self.all[name].folder / "config.toml")

    def wait_for(self, name: str, condition: Callable[[dict[str, Any]], object]) -> None:
        process = self.all[name]
        self._eventually(lambda: (now := process.status()) and condition(now), 3 * PATIENCE_S)

    def stop(self, name: str) -> None:
        process = self.all[name]
        process.signal(15)
        assert process.process is not None
        assert process.process.wait(PATIENCE_S) == 0, process.log

    def wait_for_updates_of_both(self) -> None:
        """Wait until the host has counted both boards in a round that has begun by now."""
        now = self.all["host"].status()["version"]

        def both(status: dict[str, Any]) -> bool:
            new = [item for item in status["history"] if item["version"] > now + 1]
            return {"theo", "nicolas"} <= {name for item in new for name in item["counted"]}

        self.wait_for("host", both)

    def end(self) -> None:
        for process in self.all.values():
            if process.process is not None and process.process.poll() is None:
                process.process.kill()
                process.process.wait(PATIENCE_S)

    def wait_for_end(self, name: str) -> None:
        process = self.all[name].process
        assert process is not None
        assert process.wait(3 * PATIENCE_S) == 0, self.all[name].log


@pytest.fixture
def fleet(tmp_path: Path, eventually: Callable) -> Iterator[Fleet]:
    modems = [new_modem("rnode", index, radio=LoraSetting(7)) for index in range(2)]
    with EmulatedRadios(modems, speed=100.0) as air, EmbeddedBroker() as broker:
        made = Fleet(tmp_path, air.paths, broker.url, eventually)
        try:
            for process in made.all.values():
                process.start()
            made.wait_for("host", lambda status: status["version"] >= 1)
            yield made
        finally:
            made.end()


@pytest.mark.nightly
def test_a_board_on_the_radio_of_the_host_follows_it(
    tmp_path: Path, eventually: Callable[..., Any], capsys: Any
) -> None:  # R3-12, R9.6-12
    """Their link is sealed with the host's own key: notices pass it in the clear."""
    modems = [new_modem("rnode", index, radio=LoraSetting(7)) for index in range(2)]
    with EmulatedRadios(modems, speed=100.0) as air:
        fleet = Fleet(tmp_path, air.paths, "mqtt://127.0.0.1:1", eventually)
        del fleet.all["theo"], fleet.all["shed"]
        run = {"rounds": ROUNDS, "min_peers": 1, "deadline_s": 20, "announce_s": 1}
        for name, port in (("host", 0), ("nicolas", 1)):
            link = {"region": "EU868", "serial": {**RADIO, "port": air.paths[port]}}
            config = write_toml({"": {"state_dir": ".", "model": "keyword"}, "run": run})
            if name == "nicolas":
                config = fleet.node("nicolas", {})
            fleet.all[name] = Process(
                "host" if name == "host" else "node",
                tmp_path / name,
                config.replace("[link]\n", "") + write_toml({"link": link}),
            )
        try:
            for process in fleet.all.values():
                process.start()
            fleet.wait_for("host", lambda status: status["version"] >= 1)
            fleet.stop("host")
            assert main(["enrol", "rotate", "--config", fleet.config("host"), "--json"]) == 0
            line = json.loads(capsys.readouterr().out)
            fleet.all["host"].start()
            key = line["key"]
            fleet.wait_for("nicolas", lambda status: status["security"]["host"] == key)
            before = fleet.all["host"].status()["version"]
            fleet.wait_for("host", lambda status: status["version"] >= before + 2)
            fleet.stop("host")
        finally:
            fleet.end()


def test_a_fleet_follows_the_host(fleet: Fleet, capsys: Any) -> None:
    # R9.6-11, R9.6-12
    fleet.wait_for_updates_of_both()
    before = fleet.all["host"].status()
    assert main(["enrol", "rotate", "--config", fleet.config("host")]) == 1
    assert "stop it" in capsys.readouterr().err
    fleet.stop("host")
    assert main(["enrol", "rotate", "--config", fleet.config("host"), "--json"]) == 0
    line = json.loads(capsys.readouterr().out)
    assert line["identity"].startswith("TM1-HOST:")
    assert line["rotation"].startswith("TM1-ROTATION:")
    fleet.all["host"].start()
    for name in ("theo", "nicolas", "shed"):
        fleet.wait_for(name, lambda status: status["security"]["host"] == line["key"])
    fleet.wait_for_updates_of_both()
    after = fleet.all["host"].status()
    assert after["run"] == before["run"]
    assert after["version"] > before["version"]
    for name in ("theo", "nicolas"):  # what they trust is on their disk
        fleet.all[name].kill9()
        fleet.all[name].start()
    fleet.wait_for_updates_of_both()
    fleet.stop("host")
