"""Every board leaves a bad model release by itself, goes back to the last good one, and trains on.

Fifteen bad releases, one after the other, go to three boards (processes with keys on a real
mosquitto). In some trials a process is killed. A release that `ternmesh release install` refuses is
copied into the board's folder directly.
"""

import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from bench.processes import CONFIG, MODEL, ProcessFleet, kill9, started, status_of, until, wait
from bench.result import Figure, Result
from edge.files import entry_of
from models.zoo import package_path
from ternmesh.model_package import FORWARD, TRAIN_STEP, read_model_package, write_model_package
from ternmesh.release import (
    ATTEMPTS_MAX,
    DESCRIPTION,
    FILES,
    MANIFEST,
    SIGNATURES,
    make_manifest,
    write_manifest,
)
from ternmesh.security.identity import ENTROPY_SIZE, Identity, Role, make_identity
from ternmesh.security.signatures import Signers, sign_release
from ternmesh_cli import keys
from ternmesh_cli.demo.fleet import HOST
from ternmesh_cli.keys import keyring_at
from ternmesh_cli.workers import Worker, python
from ternmesh_service.control_socket import INSTALLED
from tests.mosquitto import Mosquitto

QUICK = ("signed by a stranger", "loss out of bounds")
FIRST = 1  # the version of the good release that the fleet goes back to
RUN: Mapping[str, Any] = {"rounds": 100_000, "local_steps": 2}
TABLES = {"releases": {"dir": "releases", "memory_mib": 256, "cpu_s": 5}}
TRIAL = b"edge.releases.trial"  # in the command line of the process that tries a release
Limits = tuple[float, float]  # the largest loss, and the longest seconds of a step
LENIENT: Limits = (100.0, 60.0)
Change = Callable[[Any], None]  # of an ONNX graph


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes releases in `folder`, signed by `own` for the fleet with this digest."""

    folder: Path
    own: Identity
    fleet: bytes
    rng: np.random.Generator

    def package(self, version: int) -> Path:
        """A copy of the shipped model package, to be changed."""
        folder = self.folder / f"package-{version}"
        shutil.copytree(package_path(MODEL), folder)
        return folder

    def good(self, version: int, limits: Limits = LENIENT) -> Path:
        """The shipped model as a release."""
        return self.signed(version, self.package(version), limits)

    def signed(self, version: int, package: Path, limits: Limits = LENIENT) -> Path:
        """A signed release of any package: `ternmesh release make` would refuse a bad one."""
        loaded = read_model_package((package / DESCRIPTION).read_bytes())
        entries = tuple(entry_of(package / name) for name in FILES)
        release = self.folder / f"release-{version}"
        shutil.copytree(package, release)
        manifest = write_manifest(make_manifest(loaded, version, entries, limits))
        (release / MANIFEST).write_bytes(manifest)
        self.sign(release, self.own)
        return release

    def sign(self, release: Path, by: Identity) -> None:
        """Write the signature of `by` beside the manifest."""
        content = (release / MANIFEST).read_bytes()
        signature = sign_release(by, self.fleet, content, Signers((by.public,)))
        (release / SIGNATURES).write_bytes(signature)

    def with_train_step(self, version: int, content: bytes, limits: Limits = LENIENT) -> Path:
        """A release with another train step, rightly described and signed."""
        folder = self.package(version)
        package = read_model_package((folder / DESCRIPTION).read_bytes())
        files = {**package.files, TRAIN_STEP: hashlib.sha256(content).hexdigest()}
        (folder / TRAIN_STEP).write_bytes(content)
        (folder / DESCRIPTION).write_bytes(write_model_package(replace(package, files=files)))
        return self.signed(version, folder, limits)


Make = Callable[[Maker, int], Path]


def changed(change: Change, limits: Limits = LENIENT) -> Make:
    """A release whose train step has another graph."""

    def make(maker: Maker, version: int) -> Path:
        model = onnx.load(str(package_path(MODEL) / TRAIN_STEP))
        change(model.graph)
        return maker.with_train_step(version, model.SerializeToString(), limits)

    return make


def spoilt(spoil: Callable[[Maker, Path], object]) -> Make:
    """A good release that is spoilt after it was signed."""

    def make(maker: Maker, version: int) -> Path:
        release = maker.good(version)
        spoil(maker, release)
        return release

    return make


def _flip_bit(maker: Maker, release: Path) -> None:
    data = bytearray((release / FORWARD).read_bytes())
    data[int(maker.rng.integers(len(data)))] ^= 1 << int(maker.rng.integers(8))
    (release / FORWARD).write_bytes(data)


def _random_manifest(maker: Maker, release: Path) -> None:
    (release / MANIFEST).write_bytes(maker.rng.bytes(300))
    maker.sign(release, maker.own)


def _signature_of_another(maker: Maker, release: Path) -> None:
    other = maker.good(10_000 + int(release.name.removeprefix("release-")))
    shutil.copy(other / SIGNATURES, release / SIGNATURES)


def _stranger(maker: Maker) -> Identity:
    return make_identity(HOST, Role.HOST, maker.rng.bytes(ENTROPY_SIZE))


def _rewire(graph: Any, output: str, kind: str, *more: str) -> None:
    """Put one more operator between an output and the operator that made it."""
    before = f"{output} before"
    for node in graph.node:
        node.output[:] = [before if name == output else name for name in node.output]
    graph.node.append(helper.make_node(kind, [before, *more], [output]))


def _constant(graph: Any, name: str, value: Any, kind: type) -> None:
    graph.initializer.append(numpy_helper.from_array(np.array(value, kind), name))


def _insert(graph: Any, nodes: list[Any], zero: str) -> None:
    """Add the output `zero` of the last of these operators to the loss."""
    _rewire(graph, "loss", "Add", zero)
    last = graph.node.pop()
    graph.node.extend([*nodes, last])


def _products(side: int, count: int, start: str = "zeros") -> Change:
    """A chain of matrix products, computed when the model is loaded; or, from data, each step."""

    def change(graph: Any) -> None:
        _constant(graph, "square", [side, side], np.int64)
        nodes = [helper.make_node("ConstantOfShape", ["square"], ["zeros"])]
        nodes += [helper.make_node("ReduceMin", ["features"], ["lowest"], keepdims=0)]
        nodes += [helper.make_node("Add", ["zeros", start], ["product 0"])]
        nodes += [
            helper.make_node("MatMul", [f"product {i}", f"product {i}"], [f"product {i + 1}"])
            for i in range(count)
        ]
        nodes += [helper.make_node("ReduceSum", [f"product {count}"], ["no sum"], keepdims=0)]
        _insert(graph, nodes, "no sum")

    return change


def _breaks_on_data(graph: Any) -> None:
    """Looks up row 0 of a table of one row for zeros, and a missing row for anything else.

    The trial sees zeros only, so the fault shows on the board's own data.
    """
    _constant(graph, "rows", [0.0], np.float32)
    nodes = [
        helper.make_node("ReduceMax", ["features"], ["largest"], keepdims=0),
        helper.make_node("Ceil", ["largest"], ["ceiling"]),
        helper.make_node("Cast", ["ceiling"], ["row"], to=onnx.TensorProto.INT64),
        helper.make_node("Gather", ["rows", "row"], ["found"], axis=0),
    ]
    _insert(graph, nodes, "found")


@dataclass(frozen=True, slots=True)
class Bad:
    """One kind of bad release."""

    make: Make
    words: str  # that the reason of every board must contain
    deaths: int = 0  # how often a process is killed in the trial, on each board
    dies: str = ""  # which one: "trial" (the process of the trial) or "node"


_SLOW = _products(600, 60)  # so that its trial lasts long enough to be killed in
KINDS: Mapping[str, Bad] = {
    "a bit flipped in forward.onnx": Bad(spoilt(_flip_bit), "forward.onnx is not"),
    "a manifest of rubbish": Bad(spoilt(_random_manifest), "not the manifest"),
    "not signed": Bad(spoilt(lambda _, r: (r / SIGNATURES).unlink()), "not signed by the host"),
    "signed by a stranger": Bad(
        spoilt(lambda m, r: m.sign(r, _stranger(m))), "not signed by the host"
    ),
    "another one's signature": Bad(spoilt(_signature_of_another), "not signed by the host"),
    "an old release again": Bad(lambda m, _: m.folder / f"release-{FIRST}", "holds version 1"),
    "no ONNX at all": Bad(
        lambda m, v: m.with_train_step(v, m.rng.bytes(4096)), "train_step.onnx is refused"
    ),
    "a forbidden operator": Bad(
        changed(lambda graph: _rewire(graph, "loss", "Bernoulli")), "not on the list"
    ),
    "too much processor time": Bad(changed(_products(1000, 400, "lowest")), "SIGXCPU"),
    "its process dies": Bad(changed(_SLOW), "died of SIGSEGV", 1, "trial"),
    "loss out of bounds": Bad(lambda m, v: m.good(v, (1e-6, 60.0)), "its loss on"),
    "loss, node killed once": Bad(changed(_SLOW, (1e-6, 60.0)), "its loss on", 1, "node"),
    "too slow": Bad(lambda m, v: m.good(v, (100.0, 0.001)), "a step takes"),
    "breaks on the board's data": Bad(changed(_breaks_on_data), "onnxruntime cannot run"),
    "node killed in each trial": Bad(
        changed(_SLOW), "the node died in 3 trials", ATTEMPTS_MAX, "node"
    ),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one release."""

    reasons: Mapping[str, str]  # of each board
    seconds: float
    is_good: bool  # every board went back, for the right reason, and was counted in later rounds


def measure(*, quick: bool) -> Result:
    """All kinds in a seeded order, then a good release, which every board must still take."""
    rng, outcomes = np.random.default_rng(0), dict[str, Outcome]()
    names = list(QUICK if quick else rng.permutation(list(KINDS)))
    with tempfile.TemporaryDirectory() as name, Mosquitto(Path(name)) as broker:
        folder = Path(name)
        fleet = ProcessFleet(folder, broker.url, RUN, tables=TABLES)
        with keyring_at(folder / HOST, HOST, Role.HOST) as ring:
            maker = Maker(folder / "made", ring.own, ring.member_list.fleet, rng)
        maker.folder.mkdir()
        with started(fleet):
            _release(fleet, maker.good(FIRST), FIRST)
            for version, kind in enumerate(names, FIRST + 1):
                outcome = outcomes[kind] = _try(fleet, maker, version, KINDS[kind])
                verdict = "rolled back" if outcome.is_good else "NOT ROLLED BACK"
                print(f"{kind}: {verdict} in {outcome.seconds:.0f} s", flush=True)
            last = FIRST + 1 + len(names)
            _release(fleet, maker.good(last), last)
    count = len(outcomes)
    figures = {
        "releases": Figure(count, None if quick else ">=15"),
        "rolled_back": Figure(sum(o.is_good for o in outcomes.values()), f">={count}"),
        "nodes": Figure(len(fleet.boards), ">=3"),
        "kills": Figure(sum(KINDS[name].deaths for name in names) * len(fleet.boards)),
        "longest_s": Figure(max(outcome.seconds for outcome in outcomes.values())),
    }
    notes = (
        "three node processes and a host on a real mosquitto, with keys; rolled back: every node "
        "left it or refused it by itself, for the right reason, and was counted in later rounds",
        "kills: kill -9 of a node in a trial, and SIGSEGV to the trial's own process",
    )
    details = {
        kind: {n: reason.replace(name, "") for n, reason in outcome.reasons.items()}
        for kind, outcome in outcomes.items()
    }
    return Result("rollback", figures, notes=notes, details=details, quick=quick)


def _release(fleet: ProcessFleet, release: Path, version: int) -> None:
    """Give a good release to all boards, and wait until each has found it good."""
    for board in fleet.boards.values():
        wait(board, lambda now: now["joined"], "joined")
        if not _install(board, release):
            raise RuntimeError(f"{board.name} refuses a good release")
    for board in fleet.boards.values():
        wait(board, lambda now: now["releases"]["last_good"] == version, "a good release")


def _try(fleet: ProcessFleet, maker: Maker, version: int, bad: Bad) -> Outcome:
    """Give a bad release to all boards; returns when each has left it and gone on with the run."""
    begun, run = time.monotonic(), status_of(fleet.host)["run"]
    release = bad.make(maker, version)
    for board in fleet.boards.values():
        _give(board, release, version, bad)
    currents, reasons = set(), {}
    for name, board in fleet.boards.items():
        now = wait(board, lambda now: now["joined"] and version in _left(now), "back")
        currents.add(now["releases"]["current"])
        reasons[name] = _left(now)[version]
    settled = status_of(fleet.host)["version"]
    # The next round may be closed by updates from before; the one after it may not.
    after = wait(fleet.host, lambda now: now["version"] >= settled + 2, "two more rounds")
    counted = all(set(item["counted"]) == set(fleet.boards) for item in after["history"][-2:])
    is_right = currents == {FIRST} and all(bad.words in reason for reason in reasons.values())
    is_good = after["run"] == run and counted and is_right
    return Outcome(reasons, time.monotonic() - begun, is_good)


def _give(board: Worker, release: Path, version: int, bad: Bad) -> None:
    """Install a release on a board, or copy it there; then kill what this kind says."""
    if not _install(board, release):
        folder = board.folder / "releases"
        shutil.copytree(release, folder / "copied")
        (folder / "copied").rename(folder / str(version))
        assert keys.read(board.folder / CONFIG).ask({INSTALLED: "look"})
    for _ in range(bad.deaths):
        trial = _wait_for_trial(board)
        if bad.dies == "trial":
            os.kill(trial, signal.SIGSEGV)
        else:
            kill9(board)
            board.start()  # as systemd does


def _install(board: Worker, release: Path) -> bool:
    """`ternmesh release install`: whether the board took it."""
    config = str(board.folder / CONFIG)
    command = python("ternmesh_cli.main", "release", "install", str(release), "--config", config)
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert not done.returncode or "ternmesh: " in done.stderr, f"it failed: {done.stderr}"
    return done.returncode == 0


def _wait_for_trial(board: Worker) -> int:
    """The process in which a board tries a release, once there is one."""
    assert board.process is not None
    own = board.process.pid
    found: list[int] = []

    def is_there() -> bool:
        with suppress(OSError):  # it has just ended
            children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
            is_trial = [TRIAL in Path(f"/proc/{each}/cmdline").read_bytes() for each in children]
            found.extend(int(each) for each in compress(children, is_trial))
        return bool(found)

    until(is_there, f"{board.name}: a trial")
    return found[0]


def _left(now: Mapping[str, Any]) -> dict[int, str]:
    """The releases that a board has left or never taken, and why."""
    told = now["releases"]
    return {item["version"]: item["reason"] for item in (*told["bad"], *told["not_taken"])}
