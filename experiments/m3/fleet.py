"""The processes of an arm, and the bytes that they sent: a published arm's, or ternmesh itself."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edge.config import ADAPTER
from experiments.m3.prepare import Prepared
from experiments.m3.processes import guarded, wait_until
from experiments.m3.published_programs import JOB, READY, ROUNDS, Job
from experiments.m3.settings import HYPERVECTOR, NODES, Arm, Experiment
from experiments.m3.storage import ExperimentError, Round, read_json, write_file, write_json
from ternmesh_cli.keys import enrol_fleet
from ternmesh_cli.process import write_toml
from ternmesh_cli.workers import Worker, python, running
from transports.base import HOST

START_S = 120.0
STATUS_TRIES = 30  # a busy host answers late


@dataclass(frozen=True, slots=True)
class Fleet:
    """The running processes of an arm."""

    folder: Path
    host: Worker
    nodes: tuple[Worker, ...]

    @property
    def workers(self) -> tuple[Worker, ...]:
        """All processes."""
        return (self.host, *self.nodes)

    def adapter(self, node: str) -> Path:
        """Return the file of a node's global adapter."""
        return self.folder / node / ADAPTER


@contextmanager
def open_fleet(
    experiment: Experiment, arm: Arm, prepared: Prepared, url: str, name: str
) -> Iterator[Fleet]:
    """Start the host and the nodes of an arm, and end them when the block ends.

    `name` is the fleet's name on the broker.
    """
    folder = experiment.folder / arm.name
    is_ours = arm.codec == HYPERVECTOR
    make = _ternmesh_worker if is_ours else _published_worker
    if is_ours:
        enrol_fleet(name, folder / HOST, {node: folder / node for node in NODES})
    host, *nodes = (make(arm, prepared, url, name, folder / end) for end in (HOST, *NODES))
    ready = host.folder / READY
    ready.unlink(missing_ok=True)
    with ExitStack() as stack:
        stack.enter_context(running(host))
        if not is_ours:  # a message is lost if the host has not subscribed yet
            wait_until(ready.exists, host, START_S)
        for node in nodes:
            stack.enter_context(running(node))
        yield Fleet(folder, host, tuple(nodes))


def read_rounds(fleet: Fleet, arm: Arm) -> tuple[Round, ...]:
    """Return the rounds of a finished arm with their bytes; ExperimentError."""
    return _ternmesh_rounds(fleet) if arm.codec == HYPERVECTOR else _published_rounds(fleet)


def _published_worker(arm: Arm, prepared: Prepared, url: str, name: str, folder: Path) -> Worker:
    job = Job(
        name=folder.name,
        arm=arm.name,
        codec=arm.codec,
        url=url,
        fleet=name,
        nodes=NODES,
        folder=str(folder),
        model=str(prepared.model),
        data=str(prepared.samples(folder.name)),
        run=arm.run,
        seed=arm.training.seed,
    )
    write_json(job.file(JOB), asdict(job))
    command = python("experiments.m3.published_programs", str(job.file(JOB)))
    return guarded(job.name, folder, command)


def _ternmesh_worker(arm: Arm, prepared: Prepared, url: str, name: str, folder: Path) -> Worker:
    end = folder.name
    tables: dict[str, Mapping[str, Any]] = {
        "": {"state_dir": str(folder), "model": str(prepared.model)},
        "link": {"url": url, "fleet": name},
    }
    if end == HOST:
        tables["run"] = asdict(arm.run)
    else:
        tables[""] = {"name": end, **tables[""]}
        tables["data"] = {"path": str(prepared.samples(end))}
        tables["training"] = asdict(arm.training)
    config = folder / "config.toml"
    write_file(config, write_toml(tables).encode())
    command = "host" if end == HOST else "node"
    return guarded(end, folder, python("ternmesh_cli.main", command, "--config", str(config)))


def _published_rounds(fleet: Fleet) -> tuple[Round, ...]:
    down = read_json(fleet.host.folder / ROUNDS) or {}
    up = {node.name: read_json(node.folder / ROUNDS) or {} for node in fleet.nodes}
    return tuple(
        Round(int(version), {name: sizes[version] for name, sizes in up.items()}, down[version])
        for version in sorted(down, key=int)
    )


def _ternmesh_rounds(fleet: Fleet) -> tuple[Round, ...]:
    for _ in range(STATUS_TRIES):
        if answer := fleet.host.status():
            history = answer["history"]
            return tuple(Round(h["version"], h["bytes_up"], h["bytes_down"]) for h in history)
    raise ExperimentError(f"the host does not answer: see {fleet.host.log}")
