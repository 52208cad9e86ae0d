"""What a fleet has promised, by the events that its stores recorded, and which promises broke.

An acknowledgement is a receipt (SPEC.md R6.4-2): the global update of its round counts the chunks
that it names, of the update with its digest. A node subtracts these chunks from what the update
was made from, and no others (R6.3-4): nothing is lost and nothing is applied twice.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from ternmesh.codec.permutation import order
from ternmesh.federated.events import (
    Advanced,
    FellSilent,
    GlobalUpdateMade,
    HostEvent,
    Joined,
    NodeEvent,
    ResidualChanged,
    UpdateMade,
    UpdateReceived,
)
from ternmesh.federated.local_update import settle_update
from ternmesh.federated.state import HostState, NodeState, new_node_state
from ternmesh.types import Vector
from ternmesh.wire.global_update import Counted
from ternmesh.wire.update import write_bitmap
from ternmesh_store.host_store import HostStore
from ternmesh_store.node_store import NodeStore
from ternmesh_store.store import Store

EVENTS = "events"  # the file beside a state file
WRONG = "wrong"  # settled in another way than by chunks
TAIL = 1 << 16  # bytes

Line = dict[str, Any]


@contextmanager
def watched() -> Iterator[None]:
    """Write a line for each event that stores of this process record; a kill leaves the lines."""
    known: dict[Path, tuple[bytes, NodeState]] = {}  # model and state of each node
    load, record_node, record_host = NodeStore.load, NodeStore.record, HostStore.record

    def load_watched(store: NodeStore, model: bytes, *of_model: Any) -> NodeState:
        known[store.path] = model, load(store, model, *of_model)
        return known[store.path][1]

    def record_node_watched(store: NodeStore, event: NodeEvent) -> None:
        model, state = known[store.path]
        known[store.path] = model, _noted(store, event, model, state)
        record_node(store, event)

    def record_host_watched(store: HostStore, event: HostEvent) -> None:
        if isinstance(event, GlobalUpdateMade):
            rows = {row.address: _row(row) for row in event.counted}
            write_line(store.path, made=event.version, hash=event.global_hash.hex(), counted=rows)
        record_host(store, event)

    with (
        mock.patch.object(NodeStore, "load", load_watched),
        mock.patch.object(NodeStore, "record", record_node_watched),
        mock.patch.object(HostStore, "record", record_host_watched),
    ):
        yield


def _noted(store: Store, event: NodeEvent, model: bytes, state: NodeState) -> NodeState:
    """Write the line of an event; the state after it, as far as lines need it."""
    pending, plan = state.pending, state.plan
    match event:
        case Joined(run, address, plan):
            write_line(store.path, address=address)
            if (run, plan) != (state.run, state.plan):
                return replace(new_node_state(plan.dimension), run=run, plan=plan)
        case UpdateMade(made):
            return replace(state, pending=made)
        case UpdateReceived(number) if pending is not None and plan is not None:
            every = write_bitmap(range(plan.up.count), plan.up.count)
            write_line(
                store.path, received=number, row=_row(Counted(0, number, pending.digest, every))
            )
        case ResidualChanged() | FellSilent():
            return replace(state, residual=event.residual)
        case Advanced(version, global_hash, _, residual):
            of = (pending.round, pending.digest.hex()) if pending is not None else (-1, "")
            settled = _settled(model, state, residual)
            write_line(store.path, version=version, hash=global_hash.hex(), of=of, settled=settled)
            return replace(state, residual=residual, pending=None)
    return state


def _settled(model: bytes, state: NodeState, after: Vector) -> str:
    """Which chunks of the pending update a node has subtracted, as a bitmap in hex, or `WRONG`."""
    pending, plan = state.pending, state.plan
    if pending is None or plan is None:
        return "" if np.array_equal(after, state.residual) else WRONG
    places = order(model, pending.round, plan.dimension)
    changed = np.flatnonzero((after != pending.corrected)[places]) // plan.up_span
    have = write_bitmap(sorted(set(changed.tolist())), plan.up.count)
    row = Counted(0, pending.round, pending.digest, have)
    expected = settle_update(pending, [row], 0, model, plan)
    return have.hex() if np.array_equal(after, expected) else WRONG


def _row(row: Counted) -> tuple[int, str, str]:
    return row.round, row.digest.hex(), row.have.hex()


def write_line(state: Path, **line: object) -> None:
    """Append a line beside a state file with one call.

    A kill may halve it, so each one begins on a new line.
    """
    file = os.open(state.with_name(EVENTS), os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    os.write(file, b"\n" + json.dumps(line).encode())
    os.close(file)


def lines(folder: Path, tail: int = 1 << 30) -> list[Line]:
    """The events of an end, or those in the last bytes of its file.

    A halved line is left out: its event was never committed.
    """
    path, found = folder / EVENTS, []
    data = path.read_bytes() if path.exists() else b""
    for text in data[-tail:].split(b"\n"):
        with suppress(ValueError):
            line = json.loads(text)
            found += [line] if isinstance(line, dict) else []
    return found


def version_of(folder: Path) -> int:
    """The newest version that a host has recorded."""
    return max((line["made"] for line in lines(folder, TAIL) if "made" in line), default=0)


def acknowledged(nodes: Mapping[str, Path]) -> int:
    """How many updates have a receipt."""
    found = [lines(folder) for folder in nodes.values()]
    return sum(len({line.get("received") for line in events} - {None}) for events in found)


def _made(host: Path) -> dict[int, Line]:
    """The global updates of a host; the last of several of a version was committed."""
    return {line["made"]: line for line in lines(host) if "made" in line}


def counted(hosts: Sequence[Path]) -> dict[int, dict[str, Any]]:
    """Whom the global updates count, by version."""
    made = {version: line for host in hosts for version, line in _made(host).items()}
    return {version: line["counted"] for version, line in made.items()}


def broken(hosts: Sequence[Path], nodes: Mapping[str, Path]) -> Counter[str]:
    """The promises that broke, by the events of ends that have ended.

    The round after the newest global update is still open. Several hosts are voters of one fleet.
    """
    made = {version: line for host in hosts for version, line in _made(host).items()}
    rows = counted(hosts)
    faults = Counter(
        "hosts have different global updates"
        for host in hosts
        for version, line in _made(host).items()
        if line["hash"] != made[version]["hash"]
    )
    faults += Counter(
        "counted for another round"
        for version, of_version in rows.items()
        for number, _, _ in of_version.values()
        if number != version - 1
    )
    for folder in nodes.values():
        address = ""
        received: dict[int, list[Any]] = {}
        for line in lines(folder):
            address = str(line.get("address", address))
            if "received" in line:
                received[line["received"]] = line["row"]
            if "version" not in line:
                continue
            published = made.get(line["version"], {}).get("hash")
            faults["a global update was taken back"] += published != line["hash"]
            number, digest = line["of"]
            _, counted_digest, have = rows.get(number + 1, {}).get(address, (0, None, ""))
            wanted = have if counted_digest == digest else "00" * (len(line["settled"]) // 2)
            faults["other chunks settled than counted"] += line["settled"] != wanted
        for number, row in received.items():
            is_counted = rows.get(number + 1, {}).get(address) == row
            is_open = number >= max(made, default=0)
            faults["an acknowledged update was not counted"] += not (is_counted or is_open)
    return +faults


def differing(host: HostState, nodes: Sequence[NodeState], rounds: int) -> Counter[str]:
    """The ends of a finished run that do not hold what the host holds."""
    faults = Counter({"the run has not ended": int(host.version != rounds)})
    for node in nodes:
        is_same = (node.version, node.global_hash) == (host.version, host.global_hash)
        is_same = is_same and np.array_equal(node.model_q24, host.model_q24)
        faults["a board differs from the host"] += not is_same
        faults["a board has an update pending"] += node.pending is not None
    return +faults
