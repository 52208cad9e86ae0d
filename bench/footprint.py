"""What a node costs a board: memory, start-up time, disk; and wheels for aarch64.

A fresh environment gets the `node` extra and nothing else. A real node process runs in it against a
real host and an embedded broker, which run in this bench's own environment.
"""

import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from bench.result import Figure, Result
from models.zoo import fsdd_path
from ternmesh_cli.keys import enrol_fleet
from transports.broker import EmbeddedBroker
from transports.control_socket import ControlError, ask

ROOT = Path(__file__).parents[1]
STARTS, STARTS_QUICK = 7, 2
IDLE_S, IDLE_QUICK_S = 40.0, 25.0
PATIENCE_S = 60.0
PYTHONS = ("3.11", "3.13")
# A 64-bit Raspberry Pi OS bookworm (glibc 2.36) takes any of these.
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")


def measure(*, quick: bool) -> Result:
    """Memory of an idle and of a training node, time to ready, size of its environment."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        python = _new_environment(folder / "env", "node")
        _new_environment(folder / "demo", "demo")
        sizes_mb = {name: _size_mb(folder / name) for name in ("env", "demo")}
        url = stack.enter_context(EmbeddedBroker()).url
        starts = [_start_s(python, folder, url) for _ in range(STARTS_QUICK if quick else STARTS)]
        idle = _idle_mib(python, folder, url, IDLE_QUICK_S if quick else IDLE_S)
        training = _training_mib(python, folder, url)
        missing = [] if quick else _without_wheel()
    figures = {
        "idle_mib": Figure(idle, "<=80"),
        "training_mib": Figure(training, "<=130"),
        "ready_s": Figure(max(starts), "<=2"),
        "environment_mb": Figure(sizes_mb["env"], "<=200"),
        "demo_environment_mb": Figure(sizes_mb["demo"]),
    }
    if not quick:
        figures["extras_without_aarch64_wheel"] = Figure(float(len(missing)), "<=0")
    notes = (
        "idle: joined, the host waits for a second node; training: peak resident set (VmHWM) over "
        "a run of 20 rounds of the keyword model, inference and evaluation included",
        f"ready: the slowest of {len(starts)} starts, until the control socket answers",
        "x86-64; the aarch64 wheels were looked up for Python 3.11 and 3.13, not run",
    )
    details = {"starts_s": [round(s, 3) for s in starts], "without_wheel": missing}
    return Result("footprint", figures, {}, notes, details, quick=quick)


def _new_environment(folder: Path, extra: str) -> Path:
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    constraints = str(ROOT / "constraints.txt")
    subprocess.run([*install, "-c", constraints, f"{ROOT}[{extra}]"], check=True)
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
    with _Process(python, "node", _node(folder / "node", url)) as node:
        node.wait_for(lambda _: True)
        return time.monotonic() - begun


def _idle_mib(python: Path, folder: Path, url: str, wait_s: float) -> float:
    with (
        _Process(Path(sys.executable), "host", _host(folder / "host", url, min_peers=2)),
        _Process(python, "node", _node(folder / "node", url)) as node,
    ):
        node.wait_for(lambda status: status["joined"])
        time.sleep(wait_s)
        return node.memory_mib("VmRSS")


def _training_mib(python: Path, folder: Path, url: str) -> float:
    with (
        _Process(Path(sys.executable), "host", _host(folder / "host", url, min_peers=1)),
        _Process(python, "node", _node(folder / "node", url)) as node,
    ):
        node.wait_for(lambda status: status["version"] == status["rounds"])
        return node.memory_mib("VmHWM")


def _host(folder: Path, url: str, min_peers: int) -> Path:
    enrol_fleet("footprint", folder, {"theo": folder.parent / "node"})
    return _write(
        folder,
        f'state_dir = "{folder}"\nbundle = "keyword"\n'
        f'[link]\nurl = "{url}"\nfleet = "footprint"\n'
        f"[run]\nrounds = 20\nmin_peers = {min_peers}\n",
    )


def _node(folder: Path, url: str) -> Path:
    clips = (
        'divide_by = 255.0\narrays = {features = "x", target = "y"}\nwhere = {speaker = "theo"}\n'
    )
    return _write(
        folder,
        f'name = "theo"\nstate_dir = "{folder}"\nbundle = "keyword"\n'
        f'[link]\nurl = "{url}"\nfleet = "footprint"\n'
        f'[data]\npath = "{fsdd_path("train")}"\n{clips}'
        f'[evaluate]\npath = "{fsdd_path("dev")}"\n{clips}',
    )


def _write(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "config.toml"
    path.write_text(text)
    return path


class _Process:
    """A host or node process, stopped at the end of the block."""

    def __init__(self, python: Path, command: str, config: Path) -> None:
        self._arguments = [str(python), "-m", "ternmesh_cli.main", command]
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "_Process":
        # Not from the repository's root: the fresh environment must use what was installed in it.
        with (self._config.parent / "log.txt").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._arguments, "--config", str(self._config)],
                cwd=self._config.parent,
                stdout=log,
                stderr=log,
            )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait()

    def wait_for(self, condition: Callable[[dict[str, Any]], bool]) -> None:
        """Until the process answers with a status that fulfils `condition`."""
        assert self._process is not None
        socket, deadline = self._config.parent / "control.sock", time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(ControlError):  # it may still be starting
                if condition(ask(socket, {"command": "status"}, timeout_s=2.0)):
                    return
            time.sleep(0.005)
        log = self._config.parent / "log.txt"
        raise RuntimeError(f"{self._arguments[-1]} did not get there:\n{log.read_text()[-2000:]}")

    def memory_mib(self, field: str) -> float:
        """A field of /proc/PID/status in MiB."""
        assert self._process is not None
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def _without_wheel() -> list[str]:
    """The Python versions for which a node or the demo needs something without aarch64 wheel."""
    missing = []
    for version in PYTHONS:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", folder]
            command += ["--only-binary=:all:", "--python-version", version]
            command += [word for name in PLATFORMS for word in ("--platform", name)]
            command += ["-c", str(ROOT / "constraints.txt"), *_requirements()]
            answer = subprocess.run(command, check=False, capture_output=True, text=True)
            if answer.returncode != 0:
                missing.append(f"{version}: {answer.stderr.strip().splitlines()[-1]}")
    return missing


def _requirements() -> list[str]:
    """What the core, a node and the demo need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    names = [*project["dependencies"], *extras["edge"], *extras["mqtt"], *extras["demo"]]
    return [name for name in names if not name.startswith("ternmesh")]
