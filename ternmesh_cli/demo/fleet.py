"""The demo's fleet: a broker, a host and three board processes, each with one speaker's clips."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.zoo import fsdd_path
from ternmesh.errors import TernmeshError
from transports.control_socket import ControlError, ask

BOARDS = ("theo", "nicolas", "yweweler")
CONFIG = "config.toml"
# What a packet and a reference may take, in bytes, and the falling rate that suits them.
RUN: Mapping[str, Any] = {"up_bytes": 670, "down_bytes": 1200, "learning_rate_drop": 0.8}
STOP_S = 5.0
RESTARTS_MAX = 20


class DemoError(TernmeshError):
    """The demo cannot start or go on."""


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """What the user may choose."""

    folder: Path
    broker: str | None = None
    rounds: int = 20
    seed: int = 0
    name: str = "demo"


@dataclass(slots=True)
class Member:
    """One process of the fleet, started again when something kills it, as systemd would."""

    name: str
    command: str
    folder: Path
    restarts: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """Where it writes what it does."""
        return self.folder / "log.txt"

    def start(self) -> None:
        """Start the process; what it says is added to its log."""
        config = str(self.folder / CONFIG)
        arguments = [sys.executable, "-m", "ternmesh_cli.main", self.command, "--config", config]
        # One thread each: the fleet shares this machine's cores.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(arguments, stdout=out, stderr=out, env=environment)

    def stop(self) -> None:
        """End the process, by force if it does not obey."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def keep_alive(self) -> None:
        """Start it again if it was killed; DemoError if it gave up by itself or dies too often."""
        code = self.process.poll() if self.process else None
        if code is None:
            return
        if code >= 0 or self.restarts >= RESTARTS_MAX:
            lines = self.log.read_text(errors="replace").strip().splitlines()
            last = lines[-1] if lines else "it said nothing"
            raise DemoError(f"{self.name} ended with code {code}: {last} ({self.log})")
        self.restarts += 1
        self.start()

    def status(self) -> Mapping[str, Any] | None:
        """What the process says of itself, or None while it does not answer."""
        try:
            return ask(self.folder / "control.sock", {"command": "status"}, timeout_s=2.0)
        except ControlError:
            return None


@contextmanager
def fleet(settings: DemoSettings) -> Iterator[tuple[Member, list[Member]]]:
    """The running host and boards; everything is stopped when the block ends."""
    with ExitStack() as stack:
        url = settings.broker or _own_broker(stack)
        host = _spawn(stack, "host", settings.folder / "host", _host_config(settings, url))
        boards = [
            _spawn(stack, "node", settings.folder / name, _node_config(settings, url, name))
            for name in BOARDS
        ]
        yield host, boards


def _own_broker(stack: ExitStack) -> str:
    from transports.broker import EmbeddedBroker  # only where the extra is needed

    return stack.enter_context(EmbeddedBroker()).url


def _host_config(settings: DemoSettings, url: str) -> str:
    return _toml(
        {
            "": {"state_dir": str(settings.folder / "host"), "bundle": "keyword"},
            "link": {"url": url, "fleet": settings.name},
            "run": {
                **RUN,
                "rounds": settings.rounds,
                "min_peers": len(BOARDS),
                "deadline_s": 20.0,
            },
        }
    )


def _node_config(settings: DemoSettings, url: str, name: str) -> str:
    # The shipped clips as they are: bytes of 0 to 255, all speakers in one file.
    clips = {"divide_by": 255.0, "arrays": {"features": "x", "target": "y"}}
    mine = {**clips, "where": {"speaker": name}}
    return _toml(
        {
            "": {
                "name": name,
                "state_dir": str(settings.folder / name),
                "bundle": "keyword",
            },
            "link": {"url": url, "fleet": settings.name},
            "data": {"path": str(fsdd_path("train")), **mine},
            "training": {"seed": settings.seed},
            "evaluate": {"path": str(fsdd_path("dev")), **mine},
        }
    )


def _toml(tables: Mapping[str, Mapping[str, object]]) -> str:
    lines = []
    for table, values in tables.items():
        lines += [f"[{table}]"] if table else []
        lines += [f"{key} = {_value(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)  # A JSON text or number is also a TOML one.


def _spawn(stack: ExitStack, command: str, folder: Path, config: str) -> Member:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(config)
    member = Member(folder.name, command, folder)
    stack.callback(member.stop)
    member.start()
    return member
