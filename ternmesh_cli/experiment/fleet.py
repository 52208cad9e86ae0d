"""The processes of an arm, and what they count: a published arm's, or ternmesh itself."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ternmesh_cli.experiment.errors import ExperimentError
from ternmesh_cli.experiment.files import read_json, write_file
from ternmesh_cli.experiment.job import CURRENT, LEDGER, OWN, READY, Job, write_job
from ternmesh_cli.experiment.prepare import Prepared
from ternmesh_cli.experiment.result import Round, shares
from ternmesh_cli.experiment.settings import HYPERVECTOR, NODES, Arm, Experiment
from ternmesh_cli.experiment.workers import guarded
from ternmesh_cli.keys import enrol_fleet
from ternmesh_cli.toml import write_toml
from ternmesh_cli.workers import Worker, python, running
from transports.base import HOST

CONFIG = "config.toml"
POLL_S = 0.1
START_S, ANSWER_S = 120.0, 60.0
MODULES = {HOST: "ternmesh_cli.experiment.published_host"}
NODE_MODULE = "ternmesh_cli.experiment.published_node"


@dataclass(frozen=True, slots=True)
class Traffic:
    """What an arm moved: rounds, mean bytes a round by part, and messages that were sent again."""

    rounds: tuple[Round, ...]
    parts_up: Mapping[str, float]
    parts_down: Mapping[str, float]
    repeats: int


@dataclass(frozen=True, slots=True)
class Fleet:
    """A running arm."""

    folder: Path
    host: Worker
    nodes: tuple[Worker, ...]

    @property
    def workers(self) -> tuple[Worker, ...]:
        """All processes."""
        return (self.host, *self.nodes)

    def adapter(self, node: str) -> Path:
        """The file that holds the reference which a node has."""
        return self.folder / node / CURRENT

    def own(self, node: str) -> Path:
        """The file that holds a node's state before the last exchange, if the arm writes it."""
        return self.folder / node / OWN


@contextmanager
def open_fleet(
    experiment: Experiment, arm: Arm, prepared: Prepared, url: str, name: str
) -> Iterator[Fleet]:
    """The running host and nodes of an arm; they are ended when the block ends."""
    folder = experiment.folder / arm.name
    make = _published
    if arm.codec == HYPERVECTOR:
        make = _ours
        enrol_fleet(name, folder / HOST, {node: folder / node for node in NODES})
    host, *nodes = (make(arm, prepared, url, name, folder / who, who) for who in (HOST, *NODES))
    with ExitStack() as stack:
        (host.folder / READY).unlink(missing_ok=True)
        stack.enter_context(running(host))
        if arm.codec != HYPERVECTOR:
            _wait_for(host)
        for node in nodes:
            stack.enter_context(running(node))
        yield Fleet(folder, host, tuple(nodes))


def traffic(fleet: Fleet, arm: Arm, numbers: Mapping[str, int]) -> Traffic:
    """What a finished arm moved; `numbers` are those that are trained, by part."""
    if arm.codec != HYPERVECTOR:
        return _published_traffic(fleet)
    rounds = _ours_rounds(fleet)
    sizes = [size for item in rounds for size in item.bytes_up.values()]
    up = sum(sizes) / max(1, len(sizes))
    down = sum(item.bytes_down for item in rounds) / max(1, len(rounds))
    return Traffic(rounds, shares(up, numbers), shares(down, numbers), 0)


def _published(arm: Arm, prepared: Prepared, url: str, name: str, folder: Path, who: str) -> Worker:
    job = Job(
        name=who,
        arm=arm.name,
        codec=arm.codec,
        url=url,
        fleet=name,
        nodes=NODES,
        folder=str(folder),
        bundle=str(prepared.bundle),
        data=str(prepared.samples(who)),
        run=arm.run,
        seed=arm.training.seed,
    )
    return guarded(who, folder, python(MODULES.get(who, NODE_MODULE), str(write_job(job))))


def _ours(arm: Arm, prepared: Prepared, url: str, name: str, folder: Path, who: str) -> Worker:
    tables: dict[str, Mapping[str, Any]] = {
        "": {"state_dir": str(folder), "bundle": str(prepared.bundle)},
        "link": {"url": url, "fleet": name},
    }
    if who == HOST:
        tables["run"] = asdict(arm.run)
    else:
        tables[""] = {"name": who, **tables[""]}
        tables["data"] = {"path": str(prepared.samples(who))}
        tables["training"] = asdict(arm.training)
    write_file(folder / CONFIG, write_toml(tables).encode())
    command = "host" if who == HOST else "node"
    return guarded(
        who, folder, python("ternmesh_cli.main", command, "--config", str(folder / CONFIG))
    )


def _wait_for(host: Worker) -> None:
    """Nobody hears what is published before the host listens."""
    deadline = time.monotonic() + START_S
    while not (host.folder / READY).exists():
        host.keep_alive()
        if time.monotonic() > deadline:
            raise ExperimentError(f"the host did not start: {host.last_line()} ({host.log})")
        time.sleep(POLL_S)


def _published_traffic(fleet: Fleet) -> Traffic:
    down = read_json(fleet.host.folder / LEDGER) or {}
    up = {node.name: read_json(node.folder / LEDGER) or {} for node in fleet.nodes}
    rounds = tuple(
        Round(
            int(number) + 1,
            {name: sum(ledger[number]["up"].values()) for name, ledger in up.items()},
            sum(down[number]["down"].values()),
        )
        for number in sorted(down, key=int)
    )
    entries = [entry for ledger in up.values() for entry in ledger.values()]
    return Traffic(
        rounds,
        _means([entry["up"] for entry in entries]),
        _means([entry["down"] for entry in down.values()]),
        sum(entry["repeats"] for entry in entries),
    )


def _ours_rounds(fleet: Fleet) -> tuple[Round, ...]:
    deadline = time.monotonic() + ANSWER_S
    while (answer := fleet.host.status()) is None or answer["version"] < answer["rounds"]:
        fleet.host.keep_alive()
        if time.monotonic() > deadline:
            raise ExperimentError(f"the host does not answer: see {fleet.host.log}")
        time.sleep(POLL_S)
    return tuple(
        Round(item["version"], item["bytes_up"], item["bytes_down"]) for item in answer["history"]
    )


def _means(entries: Sequence[Mapping[str, int]]) -> dict[str, float]:
    names = entries[0] if entries else {}
    return {name: sum(entry[name] for entry in entries) / len(entries) for name in names}
