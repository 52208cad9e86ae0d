"""What a node costs a board: memory, start-up time, disk.

A real node process runs in the tree of our package (packaging/tree.py), with byte code as after an
installation, against a real host and an embedded broker, which run in this bench's own environment.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.processes import wait
from bench.result import Figure, Result
from models.zoo import fsdd_path
from ternmesh_cli.keys import enrol_fleet
from ternmesh_cli.process import write_toml
from ternmesh_cli.workers import Worker, running
from transports.mqtt.embedded_broker import EmbeddedBroker

ROOT = Path(__file__).parents[1]
STARTS, STARTS_QUICK = 7, 2
IDLE_S, IDLE_QUICK_S = 40.0, 25.0


def measure(*, quick: bool) -> Result:
    """Memory of an idle and of a training node, time to ready, size of its environment."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        python = _new_environment(folder / "env")
        size_mb = _size_mb(folder / "env")
        url = stack.enter_context(EmbeddedBroker()).url
        starts = [_start_s(python, folder, url) for _ in range(STARTS_QUICK if quick else STARTS)]
        idle, anonymous = _idle_mib(python, folder, url, IDLE_QUICK_S if quick else IDLE_S)
        training = _training_mib(python, folder, url)
    figures = {
        "idle_mib": Figure(idle, "<=80"),
        "idle_anonymous_mib": Figure(anonymous, None),
        "training_mib": Figure(training, "<=120"),
        "ready_s": Figure(max(starts), "<=2"),
        "environment_mb": Figure(size_mb, "<=120"),
    }
    notes = (
        "idle: resident set (VmRSS), joined, the host waits for a second node; training: peak "
        "resident set (VmHWM) over a run of 20 rounds of the keyword model, inference and "
        "evaluation included",
        "anonymous: the part of the idle set that is no file (RssAnon); the other part, and 15 MiB "
        "of onnxruntime's code that an idle node unmaps, may stay in the system's file cache",
        f"ready: the slowest of {len(starts)} starts, until the control socket answers",
        "x86-64",
    )
    details = {"starts_s": [round(s, 3) for s in starts]}
    return Result("footprint", figures, {}, notes, details, quick=quick)


def _new_environment(folder: Path) -> Path:
    packaging = [sys.executable, str(ROOT / "packaging"), "tree", "--out", str(folder)]
    subprocess.run(packaging, check=True, stdout=subprocess.DEVNULL)
    python = folder / "opt" / "ternmesh" / "bin" / "python"
    subprocess.run([str(python), "-I", "-m", "compileall", "-q", str(folder)], check=True)
    return python


def _size_mb(folder: Path) -> float:
    """Bytes on disk, as `du` counts them, in units of 10**6."""
    blocks = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        blocks[status.st_ino] = status.st_blocks * 512
    return sum(blocks.values()) / 1e6


def _start_s(python: Path, folder: Path, url: str) -> float:
    enrol_fleet("footprint", folder / "host", {"theo": folder / "node"})
    begun = time.monotonic()
    with running(_process(python, "node", _node(folder / "node", url))) as node:
        while node.status() is None:
            time.sleep(0.005)
        return time.monotonic() - begun


def _idle_mib(python: Path, folder: Path, url: str, wait_s: float) -> tuple[float, float]:
    with (
        running(_process(Path(sys.executable), "host", _host(folder / "host", url, 2))),
        running(_process(python, "node", _node(folder / "node", url))) as node,
    ):
        wait(node, lambda status: status["joined"], "joined")
        time.sleep(wait_s)
        return _memory_mib(node, "VmRSS"), _memory_mib(node, "RssAnon")


def _training_mib(python: Path, folder: Path, url: str) -> float:
    with (
        running(_process(Path(sys.executable), "host", _host(folder / "host", url, 1))),
        running(_process(python, "node", _node(folder / "node", url))) as node,
    ):
        wait(node, lambda status: status["version"] == status["rounds"], "the last version")
        return _memory_mib(node, "VmHWM")


def _host(folder: Path, url: str, min_peers: int) -> Path:
    enrol_fleet("footprint", folder, {"theo": folder.parent / "node"})
    run = {"rounds": 20, "min_peers": min_peers}
    return _write(folder, url, {"run": run})


def _node(folder: Path, url: str) -> Path:
    clips = {"divide_by": 255.0, "arrays": {"features": "x", "target": "y"}}
    mine = {**clips, "where": {"speaker": "theo"}}
    data = {"path": str(fsdd_path("train")), **mine}
    return _write(
        folder,
        url,
        {"data": data, "evaluate": {"path": str(fsdd_path("dev")), **mine}},
        name="theo",
    )


def _write(folder: Path, url: str, tables: Mapping[str, Any], **names: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "config.toml"
    own = {"state_dir": str(folder), "model": "keyword", **names}
    link = {"url": url, "fleet": "footprint"}
    path.write_text(write_toml({"": own, "link": link, **tables}))
    return path


def _process(python: Path, command: str, config: Path) -> Worker:
    # Not from the repository's root: the fresh environment must use what was installed in it.
    arguments = [str(python), "-I", "-m", "ternmesh_cli.main", command, "--config", str(config)]
    return Worker(command, config.parent, arguments)


def _memory_mib(worker: Worker, field: str) -> float:
    """A field of /proc/PID/status in MiB."""
    assert worker.process is not None
    lines = Path(f"/proc/{worker.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))
