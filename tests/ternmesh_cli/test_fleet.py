"""Host and nodes as processes on a real mosquitto, each of which dies in the middle of a round.

A node that is stopped (SIGSTOP) keeps a round open for as long as a test needs it.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from models.zoo import fsdd_path
from ternmesh_cli.keys import enrol_fleet
from ternmesh_cli.main import main
from ternmesh_service.config_file import load_model_package
from ternmesh_service.control_socket import ControlError, ask
from ternmesh_store.host_store import HostStore
from ternmesh_store.node_store import NodeStore
from ternmesh_store.state_file import StateFile

ROOT = Path(__file__).parents[2]
BOARDS = ("theo", "nicolas", "yweweler")
ROUNDS = 6
ANNOUNCE_S = 1
PATIENCE_S = 60.0

HOST_CONFIG = """
state_dir = "."
model = "keyword"
[link]
url = "{url}"
[run]
rounds = {rounds}
min_peers = 3
deadline_s = 600
announce_s = {announce_s}
"""
NODE_CONFIG = """
name = "{name}"
state_dir = "."
model = "keyword"
[link]
url = "{url}"
[data]
path = '{clips}'
divide_by = 255.0
arrays = {{features = "x", target = "y"}}
where = {{speaker = "{name}"}}
"""


class Process:
    """`ternmesh host` or `ternmesh node` with a folder of its own; it may be started again."""

    def __init__(self, command: str, folder: Path, config: str, *options: str) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        path = folder / "config.toml"
        path.write_text(config)
        self._arguments = [sys.executable, "-m", "ternmesh_cli.main", command]
        self._arguments += ["--config", str(path), *options]
        self.checkout = ROOT  # or the folder of another version
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.folder / "log.txt").open("ab") as log:
            self.process = subprocess.Popen(
                self._arguments, cwd=self.checkout, stdout=log, stderr=log
            )

    def signal(self, number: int) -> None:
        assert self.process is not None
        assert self.process.poll() is None, self.log
        self.process.send_signal(number)

    def kill9(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait(PATIENCE_S)

    def status(self) -> Any:
        """Its status, or None while it does not answer."""
        try:
            return ask(self.folder / "control.sock", {"command": "status"}, PATIENCE_S)
        except ControlError:
            assert self.process.poll() in (None, 0), self.log
            return None

    @property
    def log(self) -> str:
        return (self.folder / "log.txt").read_text()


class Fleet:
    """The processes, and common checks."""

    def __init__(
        self,
        folder: Path,
        url: str,
        eventually: Callable,
        *options: str,
        insecure: bool = False,
        enrol: Callable[..., object] = enrol_fleet,
    ) -> None:
        trusting = ("--insecure",) if insecure else ()
        if not insecure:
            enrol("ternmesh", folder / "host", {name: folder / name for name in BOARDS})
        config = HOST_CONFIG.format(url=url, rounds=ROUNDS, announce_s=ANNOUNCE_S)
        clips = fsdd_path("train")
        self.host = Process("host", folder / "host", config, *trusting, *options)
        self.boards = {
            name: Process(
                "node",
                folder / name,
                NODE_CONFIG.format(name=name, url=url, clips=clips),
                *trusting,
            )
            for name in BOARDS
        }
        self._eventually = eventually

    def wait_for(self, process: Process, condition: Callable[[dict[str, Any]], object]) -> None:
        """Wait until the status of a process fulfils a condition."""
        self._eventually(lambda: (now := process.status()) and condition(now), PATIENCE_S)

    def hold_open(self, name: str) -> dict[str, Any]:
        """Stop a board after the first round, and wait until the host has all other updates."""
        self.wait_for(self.host, lambda status: status["version"] >= 1)
        self.boards[name].signal(signal.SIGSTOP)
        others = set(BOARDS) - {name}
        self.wait_for(self.host, lambda status: others <= delivered(status))
        status = self.host.status()
        assert status["phase"] == "open"
        assert name not in delivered(status), "the round would not stay open: stop it earlier"
        return status

    def finish(self, run: str) -> None:
        """Wait for the end of the run, and check that all have the same result."""
        for process in (self.host, *self.boards.values()):
            self.wait_for(process, lambda status: status["version"] == ROUNDS)
            assert process.status()["run"] == run
        status = self.host.status()
        assert status["phase"] == "finished"
        assert [item["version"] for item in status["history"]] == list(range(1, ROUNDS + 1))
        assert [set(item["counted"]) for item in status["history"]] == [set(BOARDS)] * ROUNDS
        for process in (self.host, *self.boards.values()):
            process.signal(signal.SIGTERM)
            assert process.process.wait(PATIENCE_S) == 0, process.log
        self.check_files()

    def check_files(self) -> None:
        """Check that all files hold the same global adapter."""
        package = load_model_package("keyword")
        file = StateFile(self.host.folder)
        file.open()
        theirs = HostStore(file).load(package.model_hash()).state
        file.close()
        assert theirs.version == ROUNDS
        assert theirs.model_q24.any()
        for board in self.boards.values():
            file = StateFile(board.folder)
            file.open()
            ours = NodeStore(file).load(package.model_hash(), package.dimension)
            file.close()
            assert (ours.version, ours.global_hash) == (ROUNDS, theirs.global_hash)
            assert ours.model_q24.tobytes() == theirs.model_q24.tobytes()


def delivered(status: dict[str, Any]) -> set[str]:
    """The nodes whose updates the host has."""
    return {node["name"] for node in status["nodes"] if node["delivered"] == "whole"}


@pytest.fixture
def new_fleet(tmp_path, mosquitto, eventually) -> Callable[..., Any]:
    @contextmanager
    def start(*options: str, url: str = mosquitto.url, insecure: bool = False) -> Iterator[Fleet]:
        fleet = Fleet(tmp_path, url, eventually, *options, insecure=insecure)
        members = (fleet.host, *fleet.boards.values())
        try:
            for member in members:
                member.start()
            yield fleet
        finally:
            for member in members:
                if member.process is not None and member.process.poll() is None:
                    member.process.kill()
                    member.process.wait(PATIENCE_S)

    return start


@pytest.fixture
def fleet(new_fleet) -> Iterator[Fleet]:
    with new_fleet() as fleet:
        yield fleet


def test_a_fleet_in_peace_and_a_host_that_leaves_when_all_is_done(new_fleet):
    with new_fleet("--until-finished") as fleet:
        for board in fleet.boards.values():
            fleet.wait_for(board, lambda status: status["version"] == ROUNDS)
        status = fleet.host.status()
        assert status["phase"] == "finished"
        config = fleet.boards["theo"].folder / "config.toml"
        command = [sys.executable, "-m", "ternmesh_cli.main", "status", "--config", str(config)]
        shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        assert "board theo of fleet ternmesh, model keyword" in shown
        assert f"global adapter {ROUNDS} of {ROUNDS}, finished" in shown
        for item in status["history"]:
            assert set(item["bytes_up"]) == set(BOARDS)
            assert all(size > 0 for size in item["bytes_up"].values())
            assert item["bytes_down"] > 0
        assert fleet.host.process.wait(PATIENCE_S) == 0, fleet.host.log
        for board in fleet.boards.values():
            board.signal(signal.SIGINT)
            assert board.process.wait(PATIENCE_S) == 0, board.log
        fleet.check_files()


def test_a_host_that_is_killed_goes_on_in_the_same_round(fleet):
    before = fleet.hold_open("theo")
    fleet.host.kill9()
    fleet.host.start()
    fleet.wait_for(fleet.host, lambda status: True)
    after = fleet.host.status()
    assert (after["run"], after["version"]) == (before["run"], before["version"])
    assert after["global_hash"] == before["global_hash"]
    assert delivered(after) == delivered(before), "updates with a receipt are on the host's disk"
    fleet.boards["theo"].signal(signal.SIGCONT)
    fleet.finish(before["run"])


@pytest.mark.nightly
def test_a_broker_that_is_killed_is_found_again(fleet, mosquitto):
    before = fleet.hold_open("nicolas")
    mosquitto.restart()
    fleet.boards["nicolas"].signal(signal.SIGCONT)
    fleet.finish(before["run"])


@pytest.mark.nightly
def test_a_node_that_is_killed_continues_with_its_update(fleet):
    before = fleet.hold_open("yweweler")
    theo, nicolas = fleet.boards["theo"], fleet.boards["nicolas"]
    theo.kill9()  # with an update that the host has, and no global update that counts it
    fleet.boards["yweweler"].signal(signal.SIGCONT)
    theo.start()
    fleet.wait_for(nicolas, lambda status: status["activity"] == "training")
    nicolas.kill9()  # with work that is not on its disk yet
    nicolas.start()
    fleet.finish(before["run"])


class Wiretap:
    """A client of the broker that receives everything and can publish anything."""

    def __init__(self, url: str) -> None:
        self.heard: list[tuple[str, bytes]] = []
        self._client = Client(CallbackAPIVersion.VERSION2, client_id="wiretap")
        self._client.on_message = lambda _c, _u, m: self.heard.append((m.topic, bytes(m.payload)))
        self._client.on_connect = lambda client, *_: client.subscribe("ternmesh/#", qos=1)
        self._address = str(urlsplit(url).hostname), int(urlsplit(url).port or 0)

    def __enter__(self) -> "Wiretap":
        self._client.connect(*self._address)
        self._client.loop_start()
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def say(self, topic: str, payload: bytes) -> None:
        self._client.publish(topic, payload, qos=1).wait_for_publish(PATIENCE_S)


@pytest.mark.nightly
def test_with_keys_nobody_else_gets_a_bit_in(new_fleet, mosquitto, eventually):
    with Wiretap(mosquitto.url) as eve, new_fleet() as fleet:
        before = fleet.hold_open("theo")
        nicolas = fleet.boards["nicolas"]
        clones = {name: p.status()["security"]["clones"] for name, p in (("host", fleet.host),)}
        heard = [*eve.heard]
        assert len(heard) > 20
        assert not any(b"nicolas" in payload for _, payload in heard), "names are sealed, too"
        for topic, payload in heard:
            eve.say(topic, payload)  # every message once more
            bent = bytearray(payload)
            bent[len(bent) // 2] ^= 0x10
            eve.say(topic, bytes(bent))
        fleet.wait_for(fleet.host, lambda status: status["refused"].get("replay", 0) >= 8)
        fleet.wait_for(fleet.host, lambda status: status["refused"].get("seal", 0) >= 4)
        fleet.wait_for(nicolas, lambda status: status["refused"].get("replay", 0) >= 4)
        after = fleet.host.status()
        assert (after["version"], after["global_hash"]) == (
            before["version"],
            before["global_hash"],
        )
        assert after["security"]["mode"] == "keys"
        assert {"host": after["security"]["clones"]} == clones
        fleet.boards["theo"].signal(signal.SIGCONT)
        fleet.finish(before["run"])


def test_a_node_that_is_revoked_is_out_and_the_others_go_on(new_fleet, capsys):
    with new_fleet() as fleet:
        fleet.wait_for(fleet.host, lambda status: status["version"] >= 1)
        config = str(fleet.host.folder / "config.toml")
        assert main(["enrol", "revoke", "--config", config, "theo", "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert [row["name"] for row in answer["members"] if row["revoked"]] == ["theo"]
        fleet.wait_for(fleet.boards["theo"], lambda status: "revoked" in status["activity"])
        fleet.host.kill9()
        fleet.boards["theo"].kill9()
        fleet.host.start()  # and it stays so
        fleet.boards["theo"].start()
        fleet.wait_for(fleet.boards["theo"], lambda status: "revoked" in status["activity"])


@pytest.mark.nightly
def test_a_board_changes_its_keys_in_the_middle_of_a_run(new_fleet, capsys):
    with new_fleet() as fleet:
        before = fleet.hold_open("nicolas")
        theo = fleet.boards["theo"]
        theo.kill9()  # with an update that the host has under the old key
        config = str(theo.folder / "config.toml")
        old = fleet_keys(fleet)["theo"]
        assert main(["enrol", "rotate", "--config", config, "--line", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["name"] == "theo"
        assert (theo.folder / "identity.next").exists()
        theo.start()  # it asks the host by itself
        fleet.wait_for(theo, lambda status: status["joined"])
        addresses = [
            {n["name"]: n["address"] for n in s["nodes"]} for s in (before, fleet.host.status())
        ]
        assert addresses[0] == addresses[1]
        assert fleet_keys(fleet)["theo"] == theo.status()["security"]["fingerprint"] != old
        fleet.boards["nicolas"].signal(signal.SIGCONT)
        fleet.wait_for(fleet.host, lambda status: status["version"] > before["version"])
        theo.kill9()
        assert main(["enrol", "rotate", "--config", config, "--json"]) == 1
        assert "(early)" in capsys.readouterr().err
        (theo.folder / "identity.next").unlink()  # or it would ask until the hour is over
        theo.start()
        other = fleet.boards["yweweler"]
        other.kill9()
        config = str(other.folder / "config.toml")
        assert main(["enrol", "rotate", "--config", config, "--json"]) == 0  # over the link
        again = json.loads(capsys.readouterr().out)["fingerprint"]
        assert fleet_keys(fleet)["yweweler"] == again
        other.start()
        fleet.finish(before["run"])


def fleet_keys(fleet: Fleet) -> dict[str, str]:
    """The members' fingerprints at the running host."""
    answer = ask(fleet.host.folder / "control.sock", {"enrol": "list"}, PATIENCE_S)
    return {row["name"]: row["fingerprint"] for row in answer["members"]}
