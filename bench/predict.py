"""What a prediction costs beside a bare onnxruntime loop, and whether one is ever lost.

A real node process, a real host and mosquitto. The requests of one client on the node's socket and
the runs of a bare loop in the client's process take turns in short blocks, first while the node
waits, then while it trains. Then requests go on without a pause while the host is killed.
"""

import json
import os
import socket
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import edge
from bench.processes import CLIPS, CONFIG, MODEL, end, kill9, status_of, wait
from bench.result import Figure, Result
from edge.config import ADAPTER, PREDICT_SOCKET
from edge.predict.messages import as_request
from models.zoo import fsdd_path, package_path
from ternmesh_cli.keys import enrol_fleet
from ternmesh_cli.process import write_toml
from ternmesh_cli.workers import Worker, python
from tests.mosquitto import Mosquitto

BOARD = "theo"
BLOCK = 100  # requests, then as many bare runs
BLOCKS, BLOCKS_QUICK = 100, 15
REQUESTS, SWAPS, KILLS = 100_000, 100, 20
REQUESTS_QUICK, SWAPS_QUICK, KILLS_QUICK = 5_000, 8, 2
WINDOW = 4  # requests under way in the second part
ENDLESS: Mapping[str, Any] = {"rounds": 1, "local_steps": 65_535}
SHORT: Mapping[str, Any] = {"rounds": 10_000, "local_steps": 2}
PATIENCE_S = 400.0
Latency = dict[str, NDArray[np.float64]]


def measure(*, quick: bool) -> Result:
    """Latency of requests and of bare runs in both states; requests lost over swaps and kills."""
    figures: dict[str, Figure] = {}
    peers: dict[str, float] = {}
    with _fleet(ENDLESS) as (host, node):
        for state in ("waiting", "training"):
            if state == "training":
                host.start()
                wait(node, lambda now: now["activity"] == "training", "training")
            found = _latency(node, BLOCKS_QUICK if quick else BLOCKS)
            activity = status_of(node)["activity"]
            if (activity == "training") != (state == "training"):
                raise RuntimeError(f"the node was {activity} in the block of {state}")
            p50 = {name: float(np.percentile(found[name], 50)) for name in found}
            overhead = p50["socket"] - p50["bare"]
            figures[f"overhead_p50_ms_{state}"] = Figure(overhead, "<=1.0")
            figures[f"p50_ms_{state}"] = Figure(p50["socket"])
            figures[f"p99_ms_{state}"] = Figure(float(np.percentile(found["socket"], 99)))
            peers[f"bare_p50_ms_{state}"] = p50["bare"]
            peers[f"bare_p99_ms_{state}"] = float(np.percentile(found["bare"], 99))
    wanted = (REQUESTS_QUICK, SWAPS_QUICK, KILLS_QUICK) if quick else (REQUESTS, SWAPS, KILLS)
    with _fleet(SHORT) as (host, node):
        host.start()
        counts = _survive(host, node, *wanted)
    limits = [None if quick else f">={count}" for count in wanted]
    for name, limit in zip(("requests", "swaps", "host_kills"), limits, strict=True):
        figures[name] = Figure(counts[name], limit)
    figures["requests_lost"] = Figure(counts["lost"], "<=0")
    figures["seconds"] = Figure(counts["seconds"])
    notes = (
        f"{os.cpu_count()} cores for node (1 thread of training, 1 of predictions), client, host "
        "and broker; socket and bare loop take turns in blocks, under the same competition",
        "bare: session.run on forward.onnx with the same adapter, options and clips, in the "
        "client's process; socket: base64 of a float32 clip in, label and 3 probabilities out",
        "lost: no answer, an error, `busy`, another id, or an older adapter than before; "
        f"{WINDOW} requests under way",
    )
    return Result("predict", figures, peers, notes, dict(counts), quick)


@contextmanager
def _fleet(run: Mapping[str, Any]) -> Iterator[tuple[Worker, Worker]]:
    """A host that is not started and a board that serves, with keys, on a broker."""
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        enrol_fleet("ternmesh", folder / "host", {BOARD: folder / BOARD})
        with Mosquitto(folder) as broker:
            own = {"state_dir": ".", "model": MODEL}
            data = {**CLIPS, "where": {"speaker": BOARD}}
            settings = {"min_peers": 1, "announce_s": 1, "deadline_s": 3600.0, **run}
            host = _worker(folder, "host", broker.url, {"": own, "run": settings})
            tables = {
                "": {"name": BOARD, **own},
                "data": {"path": str(fsdd_path("train")), **data},
                "predict": {"enabled": True},
            }
            node = _worker(folder, BOARD, broker.url, tables)
            try:
                node.start()
                wait(node, lambda now: now["predict"]["version"] is not None, "an adapter")
                yield host, node
            finally:
                end(node)
                end(host)


def _worker(folder: Path, name: str, url: str, tables: Mapping[str, Any]) -> Worker:
    path = folder / name / CONFIG
    path.write_text(write_toml({**tables, "link": {"url": url}}))
    command = "host" if name == "host" else "node"
    return Worker(name, path.parent, python("ternmesh_cli.main", command, "--config", str(path)))


class _Client:
    """A client of the node's socket, with the clips as requests."""

    def __init__(self, node: Worker) -> None:
        self.clips = np.load(fsdd_path("dev"))["x"].astype(np.float32) / 255
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(60.0)
        self._socket.connect(str(node.folder / PREDICT_SOCKET))
        self._answers = self._socket.makefile("rb")

    def line(self, number: int) -> bytes:
        """A request with this id."""
        return as_request(number, {"features": self.clips[number % len(self.clips)]})

    def send(self, line: bytes) -> None:
        self._socket.sendall(line)

    def answer(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self._answers.readline())
        return content


def _latency(node: Worker, blocks: int) -> Latency:
    """Milliseconds of each request and of each bare run."""
    client = _Client(node)
    loaded = edge.load_model(package_path(MODEL))
    bare = edge.Inference(loaded.folder, loaded.package)
    bare.use_adapter(node.folder / ADAPTER)
    lines = [client.line(at) for at in range(BLOCK)]
    found: dict[str, list[float]] = {"socket": [], "bare": []}
    for block in range(-1, blocks):
        times: dict[str, list[float]] = {"socket": [], "bare": []}
        for line in lines:
            begun = time.perf_counter()
            client.send(line)
            answer = client.answer()
            times["socket"].append(1000 * (time.perf_counter() - begun))
            if "error" in answer:
                raise RuntimeError(f"a request has failed: {answer}")
        for clip in client.clips[:BLOCK]:
            begun = time.perf_counter()
            bare.predict({"features": clip[None]})
            times["bare"].append(1000 * (time.perf_counter() - begun))
        for name in found if block >= 0 else ():  # the first block warms up
            found[name] += times[name]
    return {name: np.array(values) for name, values in found.items()}


def _survive(host: Worker, node: Worker, requests: int, swaps: int, kills: int) -> dict[str, float]:
    """Send requests until all three numbers are reached: what happened."""
    client = _Client(node)
    lines = [client.line(at) for at in range(len(client.clips))]
    under_way: deque[int] = deque()
    versions: list[int] = []  # in the order of their first answers
    sent = lost = killed = 0
    begun = time.monotonic()
    while min(sent / requests, (len(versions) - 1) / swaps, killed / kills) < 1 or under_way:
        if time.monotonic() - begun > PATIENCE_S:
            raise RuntimeError(f"only {len(versions)} adapters and {killed} kills so far")
        is_enough = min(sent / requests, (len(versions) - 1) / swaps, killed / kills) >= 1
        while len(under_way) < WINDOW and not is_enough:
            number = sent % len(lines)
            client.send(lines[number])
            under_way.append(number)
            sent += 1
        answer = client.answer()
        expected = under_way.popleft()
        is_good = "top" in answer and answer["id"] == expected
        if is_good and (not versions or answer["version"] > versions[-1]):
            versions.append(answer["version"])
        lost += not is_good or answer["version"] < versions[-1]
        if killed < kills and len(versions) > (killed + 1) * swaps // (kills + 1):
            kill9(host)
            host.start()
            killed += 1
    seconds = time.monotonic() - begun
    return {
        "requests": sent,
        "swaps": len(versions) - 1,
        "host_kills": killed,
        "lost": lost,
        "seconds": round(seconds, 1),
    }
