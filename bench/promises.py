"""What a fleet has promised, by the events that its stores recorded, and which promises broke.

An acknowledgement is a receipt (SPEC.md R6.4-2): the global update of its round counts the chunks
that it names, of the update with its digest. A node subtracts these chunks from what the update
was made from, and no others (R6.3-4): nothing is lost and nothing is applied twice.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
    Pending,
    ResidualChanged,
    UpdateMade,
    UpdateReceived,
)
from ternmesh.federated.local_update import settle_update
from ternmesh.federated.state import CoordinatorState, NodeState
from ternmesh.plan import Plan
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


@dataclass(slots=True)
class _Work:
    """What a node's store holds of its work."""

    model: bytes
    run: bytes
    plan: Plan | None
    residual: Vector
    pending: Pending | None


@contextmanager
def watched() -> Iterator[None]:
    """Write a line for each event that stores of this process record; a kill leaves the lines."""
    loaded: dict[Path, _Work] = {}
    load, record_node, record_host = NodeStore.load, NodeStore.record, HostStore.record

    def load_watched(store: NodeStore, model: bytes, dimension: int) -> NodeState:
        state = load(store, model, dimension)
        loaded[store.path] = _Work(model, state.run, state.plan, state.residual, state.pending)
        return state

    def record_node_watched(store: NodeStore, event: NodeEvent) -> None:
        _note_node(store, event, loaded[store.path])
        record_node(store, event)

    def record_host_watched(store: HostStore, event: HostEvent) -> None:
        if isinstance(event, GlobalUpdateMade):
            rows = {str(row.address): _row(row) for row in event.counted}
            _write(store, made=event.version, hash=event.global_hash.hex(), counted=rows)
        record_host(store, event)

    with (
        mock.patch.object(NodeStore, "load", load_watched),
        mock.patch.object(NodeStore, "record", record_node_watched),
        mock.patch.object(HostStore, "record", record_host_watched),
    ):
        yield


def _note_node(store: Store, event: NodeEvent, work: _Work) -> None:
    match event:
        case Joined():
            _write(store, address=event.address)
            if (event.run, event.plan) != (work.run, work.plan):
                zeros = np.zeros_like(work.residual)
                work.run, work.plan, work.residual, work.pending = (
                    event.run,
                    event.plan,
                    zeros,
                    None,
                )
        case UpdateMade(pending):
            work.pending = pending
        case UpdateReceived() if work.pending is not None and work.plan is not None:
            count = work.plan.up.count
            row = _row(
                Counted(0, event.round, work.pending.digest, write_bitmap(range(count), count))
            )
            _write(store, received=event.round, row=row)
        case ResidualChanged() | FellSilent():
            work.residual = event.residual
        case Advanced():
            line: Line = {"version": event.version, "hash": event.global_hash.hex()}
            if work.pending is not None:
                digest = work.pending.digest.hex()
                line |= {"round": work.pending.round, "digest": digest}
            _write(store, **line, settled=_settled(work, event.residual))
            work.residual, work.pending = event.residual, None


def _settled(work: _Work, after: Vector) -> str:
    """Which chunks of the pending update a node has subtracted, as a bitmap in hex, or `WRONG`."""
    if work.pending is None or work.plan is None:
        return "" if np.array_equal(after, work.residual) else WRONG
    pending, plan = work.pending, work.plan
    places = order(work.model, pending.round, plan.dimension)
    changed = np.flatnonzero((after != pending.corrected)[places]) // plan.up_span
    have = write_bitmap(sorted(set(changed.tolist())), plan.up.count)
    row = Counted(0, pending.round, pending.digest, have)
    expected = settle_update(pending, [row], 0, work.model, plan)
    return have.hex() if np.array_equal(after, expected) else WRONG


def _row(row: Counted) -> tuple[int, str, str]:
    return row.round, row.digest.hex(), row.have.hex()


def _write(store: Store, **line: object) -> None:
    """Append a line with one call. A kill may halve it, so each one begins on a new line."""
    file = os.open(store.path.with_name(EVENTS), os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    os.write(file, b"\n" + json.dumps(line).encode())
    os.close(file)


def events(folder: Path) -> list[Line]:
    """The events of an end. A halved line is left out: its event was never committed."""
    path = folder / EVENTS
    return _lines(path.read_bytes()) if path.exists() else []


def version_of(folder: Path) -> int:
    """The newest version that a host has recorded."""
    path = folder / EVENTS
    if not path.exists():
        return 0
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL))
        return max((line["made"] for line in _lines(file.read()) if "made" in line), default=0)


def _lines(data: bytes) -> list[Line]:
    found = []
    for text in data.split(b"\n"):
        try:
            line = json.loads(text)
        except ValueError:  # empty, or halved
            continue
        found += [line] if isinstance(line, dict) else []
    return found


def broken(host: Path, nodes: Mapping[str, Path]) -> Counter[str]:
    """The promises that broke in a run that has ended, by the events of its ends."""
    made = {line["made"]: line for line in events(host) if "made" in line}  # the last was committed
    faults: Counter[str] = Counter()
    for version, line in made.items():
        faults["counted for another round"] += sum(
            number != version - 1 for number, _, _ in line["counted"].values()
        )
    for folder in nodes.values():
        faults += _broken_of(made, events(folder))
    return +faults


def _broken_of(made: Mapping[int, Line], lines: Sequence[Line]) -> Counter[str]:
    faults: Counter[str] = Counter()
    address = ""
    received = {}
    for line in lines:
        address = str(line.get("address", address))
        if "received" in line:
            received[line["received"]] = line["row"]
        if "version" not in line:
            continue
        published = made.get(line["version"], {"hash": None})["hash"]
        faults["a global update was taken back"] += published != line["hash"]
        counted = made.get(line.get("round", -1) + 1, {"counted": {}})["counted"]
        _, digest, have = counted.get(address, (0, "", ""))
        is_mine = digest and digest == line.get("digest")
        wanted = have if is_mine else "00" * (len(line["settled"]) // 2)
        faults["settled by other chunks than were counted"] += line["settled"] != wanted
    for number, row in received.items():
        counted = made.get(number + 1, {"counted": {}})["counted"]
        faults["an acknowledged update was not counted"] += counted.get(address) != row
    return faults


def differing(host: CoordinatorState, nodes: Sequence[NodeState], rounds: int) -> Counter[str]:
    """The ends of a finished run that do not hold what the host holds."""
    faults = Counter({"the run has not ended": int(host.version != rounds)})
    for node in nodes:
        is_same = (node.version, node.global_hash) == (host.version, host.global_hash)
        is_same = is_same and np.array_equal(node.model_q24, host.model_q24)
        faults["a board differs from the host"] += not is_same
        faults["a board has an update pending"] += node.pending is not None
    return +faults


def acknowledged(nodes: Mapping[str, Path]) -> int:
    """How many updates have a receipt."""
    return sum(
        len({line["received"] for line in events(folder) if "received" in line})
        for folder in nodes.values()
    )
