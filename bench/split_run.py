"""One run of a split training with real processes: three boards without torch, a host, a broker."""

import json
import os
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.zoo import fsdd_path
from ternmesh_cli.demo.fleet import BOARDS
from ternmesh_cli.keys import enrol_fleet
from ternmesh_cli.process import write_toml
from ternmesh_cli.workers import Worker, python, running
from tests.mosquitto import Mosquitto

HOST = "host"
PATIENCE_S = 600.0
LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class Arm:
    """What crosses the boundary and how; `drop` is the share of frames lost, each way."""

    name: str
    method: str = "learned"
    latent: int = 8
    bits: int = 4
    labels: str = "sent"
    drop: float = 0.0
    wait_s: float = 20.0
    answer_s: float = 30.0
    is_killed: bool = False

    @property
    def boundary(self) -> Mapping[str, Any]:
        """The [boundary] table."""
        bits = {"bits_up": self.bits, "bits_gradient": self.bits}
        return {"method": self.method, "latent": self.latent, **bits}

    @property
    def folder(self) -> str:
        """The folder of its model parts; arms with the same parts share it."""
        return f"{self.method}-{self.latent}-{self.labels}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended; `boards` are the last statuses, bytes are of a trained sample.

    Bytes are whole MQTT payloads between a board and the host, hello and seals included.
    """

    boards: Sequence[Mapping[str, Any]]
    seconds: float
    kills: int

    @property
    def right(self) -> int:
        """Held-out clips that the boards got right."""
        return sum(board["right"][0] for board in self.boards)

    @property
    def asked(self) -> int:
        """Held-out clips."""
        return sum(board["right"][1] for board in self.boards)

    @property
    def accuracy(self) -> float:
        """The share of held-out clips that are right."""
        return self.right / self.asked

    @property
    def bytes_up(self) -> float:
        """From the board to the host."""
        return self._traffic("bytes_out")

    @property
    def bytes_down(self) -> float:
        """From the host to the board."""
        return self._traffic("bytes_in")

    def total(self, count: str) -> int:
        """The boards' sum of one of their counts."""
        return sum(board["counts"].get(count, 0) for board in self.boards)

    def _traffic(self, name: str) -> float:
        moved = sum(board["learning_traffic"][name] for board in self.boards)
        return float(moved) / self.total("samples")


def export(arm: Arm, folder: Path, micro_batches: int) -> None:
    """Write the arm's parts below `folder`, if they are not there."""
    if (folder / arm.folder).is_dir():
        return
    path = folder / f"{arm.folder}.toml"
    path.write_text(_host_config(arm, folder, folder / "none", "mqtt://127.0.0.1", micro_batches))
    worker = Worker("export", folder / "log", _command("export", path))
    worker.start()
    worker.wait()


def run(arm: Arm, exported: Path, micro_batches: int, seed: int) -> Outcome:
    """Train once with fresh processes and keys."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        broker = stack.enter_context(Mosquitto(folder))
        folders = {board: folder / board for board in BOARDS}
        enrol_fleet("split", folder / HOST, folders)
        path = folder / HOST / "config.toml"
        path.write_text(_host_config(arm, exported, folder / HOST, broker.url, micro_batches))
        host = stack.enter_context(running(Worker(HOST, folder / HOST, _command("host", path))))
        boards = []
        for board, own in folders.items():
            path = own / "config.toml"
            path.write_text(_board_config(arm, exported, own, broker.url, seed))
            command = python("bench.split_board", str(path), str(arm.drop), str(seed))
            worker = Worker(board, own, command, may_end=True)
            boards.append(stack.enter_context(running(worker)))
        start = time.monotonic()
        kills = _watch(host, boards, micro_batches if arm.is_killed else 0)
        seconds = time.monotonic() - start
        ended = [json.loads(board.last_line()) for board in boards]
        if any(board["torch"] for board in ended):
            raise AssertionError(f"a board has loaded {ended[0]['torch']}")
        return Outcome(ended, seconds, kills)


def _watch(host: Worker, boards: Sequence[Worker], micro_batches: int) -> int:
    """Wait for the boards; kill -9 a board at a third, the host at two thirds of the way."""
    victims = [(1 / 3, boards[0]), (2 / 3, host)] if micro_batches else []
    kills, deadline = 0, time.monotonic() + PATIENCE_S
    while any(board.process is not None and board.process.poll() != 0 for board in boards):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the boards do not end: {boards[0].last_line()}")
        for worker in (host, *boards):
            worker.keep_alive()
        if victims and _progress(host) >= victims[0][0] * micro_batches:
            process = victims.pop(0)[1].process
            assert process is not None
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
        time.sleep(LOOK_S)
    return kills


def _progress(host: Worker) -> float:
    """Micro-batches of the slowest board."""
    status = host.status()
    return min((board["number"] for board in status["boards"]), default=0) if status else 0


def _command(name: str, path: Path) -> list[str]:
    return python("ternmesh_cli.main", "split", name, "--config", str(path))


def _host_config(arm: Arm, exported: Path, own: Path, url: str, micro_batches: int) -> str:
    return write_toml(
        {
            "": {"state_dir": str(own), "model": str(exported / arm.folder)},
            "link": {"url": url, "fleet": "split"},
            "boundary": arm.boundary,
            "run": {
                "micro_batches": micro_batches,
                "min_boards": len(BOARDS),
                "labels": arm.labels,
                "wait_s": arm.wait_s,
                "answer_s": arm.answer_s,
            },
        }
    )


def _board_config(arm: Arm, exported: Path, own: Path, url: str, seed: int) -> str:
    clips = {
        "arrays": {"features": "x", "label": "y"},
        "where": {"speaker": own.name},
        "divide_by": 255.0,
    }
    return write_toml(
        {
            "": {"name": own.name, "state_dir": str(own), "model": str(exported / arm.folder)},
            "link": {"url": url, "fleet": "split"},
            "data": {"path": str(fsdd_path("train")), **clips},
            "evaluate": {"path": str(fsdd_path("dev")), **clips},
            "training": {"seed": seed},
        }
    )
