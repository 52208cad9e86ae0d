"""The same keyword fleet on Flower with torch, on Flower with our client, and on ternmesh.

Accuracy, bytes, time, memory and disk of a node, and what a kill -9 of each part costs. Each kind
of node gets an environment of its own in build/flower, which is made where it is missing.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import venv
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from socketserver import ThreadingTCPServer
from threading import Thread
from typing import Any

import numpy as np
import psutil

from bench.jobs import environment as one_thread
from bench.keyword import clips_of
from bench.processes import ProcessFleet, kill9, send_signal, started, status_of, until
from bench.result import Figure, Result, mean_figure
from bench.simulated_fleet import accuracy, run_fleet
from edge.onnx.session import load_model, read_adapter
from examples.split.keyword import shipped_keyword
from host.config import RunConfig, plan_of
from models.zoo import package_path
from ternmesh_cli.demo.fleet import BOARDS, HOST
from tests.mosquitto import Mosquitto, free_port, listens

ROOT = Path(__file__).parents[1]
HOME, EXAMPLE = ROOT / "build" / "flower", ROOT / "examples" / "flower"
TORCH, CLIENT, OURS = "flower_torch", "flower_onnx", "ours"
PEER = "flwr==1.42.*"
PACKAGES = {
    TORCH: (PEER, "numpy", f"torch=={version('torch')}"),  # as here, also without CUDA
    CLIENT: (PEER, f"{ROOT}[flower]"),
    OURS: (f"{ROOT}[node]",),
}
SEEDS, ROUNDS = 3, 20
MEASURED = {TORCH: 3, CLIENT: 3, OURS: 10}  # rounds
LAST = 60  # a fleet whose parts are killed does not end by itself
DOWN_S = 1.0  # a killed part is started again after so long
RUN: Mapping[str, Any] = {"local_steps": 8, "learning_rate": 0.005, "learning_rate_drop": 0.8}
NOTES = (
    "wall times were taken on a shared machine of two cores, one run each",
    "three boards, one speaker each, 8 steps of 32 clips a round, learning rate 0.005 falling by "
    "80 %, LoRA of 15,312 numbers, the same base model and first adapter; accuracy on 150 clips "
    f"after {ROUNDS} rounds in one process: of Flower with its apps, strategies and messages but "
    "without its network, of ours with the whole protocol and keys",
    f"{TORCH}: torch and FedAvg, and only the adapter is sent; {CLIENT}: examples/flower; {OURS}: "
    "updates of the default size (bench demo has smaller ones, which cost accuracy)",
    f"bytes, time: {MEASURED[TORCH]} rounds (train and evaluate) of Flower and {MEASURED[OURS]} of "
    "ours in real processes, after joining; start: of all processes until the first round; bytes: "
    "TCP payload of a node and round, counted by a proxy; Flower over HTTP without TLS, with a "
    "request for each tensor and a new process for each message; ours over MQTT, sealed and signed",
    "memory: the peak of a node's processes: own pages of all, mapped files of the largest; "
    f"installed: what pip installs for a node, without Python and pip; torch is {version('torch')}",
    "kills: SIGKILL within a round; SuperNode, SuperLink (with --database) and our parts start "
    "again after 1 s; seconds: until the next round begins; a round of Flower waits two heartbeats "
    "of 30 s for what is gone (a ClientApp that has not begun is started again after one), one of "
    "ours until the board is back; run_lost: the run has ended as failed, and its adapter is gone "
    "unless the ServerApp has stored it",
)


def measure(*, quick: bool) -> Result:
    """All of it; `quick` takes one seed of our client and of ours, and no processes."""
    os.environ |= one_thread(threads=1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        apps = {CLIENT: EXAMPLE} if quick else {TORCH: torch_app(folder), CLIENT: EXAMPLE}
        values: dict[str, list[float]] = {kind: [] for kind in (*apps, OURS)}
        for seed in range(1 if quick else SEEDS):
            for kind, app in apps.items():
                out = folder / f"{kind}-{seed}.npz"
                values[kind].append(flower_accuracy(environment_of(kind), app, out, seed))
            values[OURS].append(our_accuracy(seed))
            print(f"seed {seed}: {json.dumps({k: row[-1] for k, row in values.items()})}")
        figures = {f"accuracy_{kind}": mean_figure(row) for kind, row in values.items()}
        apart = np.mean(values[CLIENT]) - np.mean(values[OURS])
        figures["points_apart"] = Figure(abs(100 * float(apart)), "<=1")
        for kind in () if quick else values:
            own = folder / kind
            rows = measure_flower(kind, apps[kind], own) if kind in apps else measure_ours(own)
            rows["installed_mb"] = size_mb(environment_of(kind))
            print(f"{kind}: {json.dumps(rows)}", flush=True)
            figures |= {f"{key}_{kind}": Figure(value) for key, value in rows.items()}
    return Result("peers", figures, {}, NOTES, {"accuracies": values}, quick)


def environment_of(kind: str) -> Path:
    """A virtual environment with what such a node needs, and no pip."""
    home = HOME / kind
    if not (home / "complete").exists():
        venv.create(home, clear=True)
        install = (sys.executable, "-m", "pip", "--python", str(home), "install", "--quiet")
        subprocess.run([*install, *PACKAGES[kind]], check=True)
        (home / "complete").touch()
    return home


def size_mb(home: Path) -> float:
    """The 10**6 bytes of the files below a folder."""
    files = (path for path in home.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files) / 1e6


def torch_app(folder: Path) -> Path:
    """The app of bench.peers_flower, with the settings of our example and the model's weights."""
    app = folder / "torch_app"
    app.mkdir()
    np.savez(app / "weights.npz", **torch_weights())
    project = (EXAMPLE / "pyproject.toml").read_text()  # it ends with the settings
    (app / "pyproject.toml").write_text(f'{project}\nweights = "{app / "weights.npz"}"\n')
    apps = [f"{name} = peers_flower.{name}" for name in ("client", "server")]  # as Flower wants it
    (app / "keyword_fleet.py").write_text("\n".join(["from bench import peers_flower", *apps]))
    return app


def torch_weights() -> dict[str, Any]:
    """The shipped keyword model for torch: its weights and its first adapter by name."""
    loaded = load_model(package_path("keyword"))
    weights = {name: tensor.numpy() for name, tensor in shipped_keyword().state_dict().items()}
    return weights | loaded.package.split(loaded.initial)


def our_accuracy(seed: int) -> float:
    """The accuracy of our fleet after all rounds."""
    loaded = load_model(package_path("keyword"))
    train, dev = ([clips_of(split, board) for board in BOARDS] for split in ("train", "dev"))
    config = RunConfig(rounds=ROUNDS, min_peers=len(BOARDS), **RUN)
    plan = plan_of(config, loaded.package.dimension)
    found = run_fleet(loaded, train, plan, seed, keys=True, held_out=dev)
    return accuracy(loaded, found.vector, dev)


def flower_accuracy(home: Path, app: Path, out: Path, seed: int) -> float:
    """The accuracy of an app of Flower after all rounds; it writes its adapter to `out`."""
    loaded = load_model(package_path("keyword"))
    settings = json.dumps({"rounds": ROUNDS, "seed": seed, "out": str(out)})
    command = (home / "bin" / "python", "-m", "tests.flower_grid", app, settings)
    given: Any = {"capture_output": True, "text": True, "env": flower_environment(home, out)}
    answer = subprocess.run(command, check=False, **given)
    if answer.returncode:
        raise RuntimeError(f"{app.name}: {answer.stderr[-2000:]}")
    if app == EXAMPLE:
        vector, _ = read_adapter(out, loaded.package)
    else:
        with np.load(out, allow_pickle=False) as tensors:
            vector = np.concatenate([tensors[s.name].ravel() for s in loaded.package.adapter])
    return accuracy(loaded, vector, [clips_of("dev", board) for board in BOARDS])


class CountingProxy(ThreadingTCPServer):
    """Passes TCP connections on to `target` of this machine; counts bytes "up" to it and "down"."""

    daemon_threads = True

    def __init__(self, target: int) -> None:
        super().__init__(("127.0.0.1", 0), lambda *_: None)  # type: ignore[arg-type]
        self.bytes, self._target = Counter[str](), target
        self.port = int(self.server_address[1])
        Thread(target=self.serve_forever, daemon=True).start()

    def finish_request(self, request: Any, _address: object) -> None:
        """Serve one connection, in a thread of its own."""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self._target)) as far:
            for end in (request, far):  # no delay that the node would not have without us
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            down = Thread(target=self._pass_on, args=(far, request, "down"), daemon=True)
            down.start()
            self._pass_on(request, far, "up")
            down.join()

    def _pass_on(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        with suppress(OSError):  # an end was killed
            while piece := source.recv(1 << 16):
                self.bytes[way] += len(piece)
                sink.sendall(piece)
        for end in (source, sink):
            with suppress(OSError):  # the other thread has closed it
                end.shutdown(socket.SHUT_RDWR)


def tree(pid: int) -> list[psutil.Process]:
    """A process and all that it has started."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def memory_mb(pid: int) -> float:
    """The memory of a tree in 10**6 bytes: all own pages, and the most of files that one maps."""
    found = []
    for process in tree(pid):
        with suppress(psutil.Error):  # it has just ended
            found.append(process.memory_info())
    own = sum(memory.rss - memory.shared for memory in found)
    return float(own + max(memory.shared for memory in found)) / 1e6


def node_rows(
    kind: str, begun_at: float, proxy: CountingProxy, pid: int, begins: Callable[[int], bool]
) -> dict[str, float]:
    """Seconds, bytes and memory of a node; `begins` says whether that round (from 1) has begun."""
    until(lambda: begins(1), f"{kind}: round 1")
    first_at, before, rounds, peak_mb = time.monotonic(), proxy.bytes.copy(), MEASURED[kind], 0.0

    def is_over() -> bool:
        nonlocal peak_mb
        peak_mb = max(peak_mb, memory_mb(pid))
        return begins(1 + rounds)

    until(is_over, f"{kind}: round {1 + rounds}")
    rows = {"start_s": first_at - begun_at, "round_s": (time.monotonic() - first_at) / rounds}
    for way in ("up", "down"):
        rows[f"bytes_{way}"] = (proxy.bytes[way] - before[way]) / len(BOARDS) / rounds
    return {**rows, "memory_mb": peak_mb}


def flower_environment(home: Path, own: Path) -> dict[str, str]:
    """The environment of Flower's programs, with their files in `own`; they ask nothing outside."""
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    where = {"PATH": f"{home / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    return {**os.environ, **quiet, **where, "FLWR_HOME": str(own)}


class FlowerFleet:
    """A SuperLink, three SuperNodes behind a counting proxy, and a run of an app."""

    def __init__(self, home: Path, folder: Path, app: Path) -> None:
        folder.mkdir()
        port = free_port()
        address = f'[superlink.bench]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        (folder / "config.toml").write_text(address)
        self.proxy, self._listens = CountingProxy(port), partial(listens, port)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._folder = folder
        self._given: Any = {"cwd": folder, "env": flower_environment(home, folder)}
        link = f"flower-superlink --insecure --port {port} --database state.db"
        node = f"flower-supernode --insecure --superlink 127.0.0.1:{self.proxy.port}"
        self._commands = {
            "superlink": f"{link} --disable-runtime-dependency-installation".split(),
            "run": ["flwr", "run", str(app), *f"bench --stream --run-config rounds={LAST}".split()],
        }
        for name in "012":
            own = f"--port {free_port()} --node-config partition-id={name}"
            self._commands[name] = f"{node} {own}".split()

    def __enter__(self) -> "FlowerFleet":
        for name in ("superlink", "0", "1", "2", "run"):
            self.start(name)
        return self

    def __exit__(self, *_: object) -> None:
        for process in psutil.process_iter():  # some outlive what has started them
            with suppress(psutil.Error):
                if process.environ().get("FLWR_HOME") == str(self._folder):
                    process.kill()

    def start(self, name: str) -> None:
        """Start `superlink`, the SuperNode called 0, 1 or 2, or a `run` of the app."""
        with (self._folder / f"{name}.log").open("wb") as log:
            given = {"stdout": log, "stderr": log, **self._given}
            self.processes[name] = subprocess.Popen(self._commands[name], **given)
        until(self._listens, "the SuperLink listens")

    def log(self) -> str:
        """What the run has printed."""
        return (self._folder / "run.log").read_text(errors="replace")

    def begins(self, number: int) -> bool:
        """Whether a round of the run has begun; RuntimeError where the run has failed."""
        if self.processes["run"].poll():
            raise RuntimeError(f"flwr run has failed: {self.log()[-2000:]}")
        return f"[ROUND {number}/" in self.log()

    def kill9(self, name: str, word: str, library: str = "") -> None:
        """Kill the process of a tree with `word` in its command, once it has loaded `library`."""

        def is_killed() -> bool:
            for process in tree(self.processes[name].pid):
                with suppress(psutil.Error, OSError):  # it has just ended
                    maps = Path(f"/proc/{process.pid}/maps")
                    if word in " ".join(process.cmdline()) and library in maps.read_text():
                        process.kill()
                        return True
            return False

        until(is_killed, f"a process of {word}")

    def run_lost(self) -> float:
        """1 where the newest run ends as failed, otherwise 0."""
        statuses: list[str] = []  # newest first

        def has_ended() -> bool:
            command = ("flwr", "list", "bench", "--format", "json")
            answer = subprocess.run(command, capture_output=True, text=True, **self._given).stdout
            statuses[:] = re.findall(r'"status": *"([^"]+)"', answer)
            return bool(statuses) and statuses[0].startswith("finished")

        until(has_ended, "the end of the run")
        return float(statuses[0] == "finished:failed")


def measure_flower(kind: str, app: Path, folder: Path) -> dict[str, float]:
    """Bytes, time and memory of a node; with our client then what kills cost."""
    begun_at = time.monotonic()
    with FlowerFleet(environment_of(kind), folder, app) as fleet:
        rows = node_rows(kind, begun_at, fleet.proxy, fleet.processes["0"].pid, fleet.begins)
        if kind == TORCH:
            return rows
        parts = {
            "flwr-clientapp": "onnxruntime",
            "flower-supernode": "",
        }  # the first while it works
        for number, (part, library) in enumerate(parts.items(), 2 + MEASURED[kind]):
            key, before = f"kill_{part.split('-')[1]}", fleet.log().count("is left out")
            fleet.kill9("0", part, library)
            killed_at = time.monotonic()
            if part == "flower-supernode":
                time.sleep(DOWN_S)
                fleet.start("0")
            until(partial(fleet.begins, number), f"round {number}")
            rows[f"{key}_s"] = time.monotonic() - killed_at
            rows[f"{key}_updates_lost"] = fleet.log().count("is left out") - before
        fleet.kill9("superlink", "flwr-serverapp")
        rows["kill_serverapp_run_lost"] = fleet.run_lost()
        fleet.start("run")
        until(partial(fleet.begins, 2), "round 2")
        fleet.kill9("superlink", "flower-superlink")
        time.sleep(DOWN_S)
        fleet.start("superlink")
        rows["kill_superlink_run_lost"] = fleet.run_lost()
    return rows


def measure_ours(folder: Path) -> dict[str, float]:
    """Bytes, time and memory of a node; then what kills cost, in rounds that wait for a board."""
    folder.mkdir()
    with Mosquitto(folder) as broker:
        proxy = CountingProxy(broker.port)
        link = {"url": broker.url.replace(str(broker.port), str(proxy.port))}
        fleet = ProcessFleet(folder, broker.url, {"rounds": LAST, **RUN}, tables={"link": link})
        board, begun_at = fleet.boards[BOARDS[0]], time.monotonic()
        parts: Mapping[str, tuple[Callable[[], None], Callable[[], None]]] = {
            "board": (lambda: kill9(board), board.start),
            HOST: (lambda: kill9(fleet.host), fleet.host.start),
            "broker": (broker.kill9, broker.start),
        }

        def begins(number: int) -> bool:
            now = fleet.host.status() or {"nodes": (), "version": 0}
            return len(now["nodes"]) == len(BOARDS) and now["version"] >= number - 1

        with started(fleet):
            assert board.process is not None
            rows = node_rows(OURS, begun_at, proxy, board.process.pid, begins)
            rounds_lost = 0
            for part, (kill, start) in parts.items():
                version = status_of(fleet.host)["version"] + 1
                version = fleet.hold_open(board.name, version)["version"]
                killed_at = time.monotonic()
                kill()
                time.sleep(DOWN_S)
                start()
                send_signal(board, signal.SIGCONT)
                rounds_lost += max(0, version - status_of(fleet.host)["version"])
                fleet.wait_version(version + 1)
                rows[f"kill_{part}_s"] = time.monotonic() - killed_at
            history = status_of(fleet.host)["history"]
            rows["kills_updates_lost"] = sum(len(item["missing"]) for item in history)
            rows["kills_rounds_lost"] = rounds_lost
    return rows
