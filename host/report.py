"""What a host says of itself: a line of log for each event, and the answer to `ternmesh status`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ternmesh.plan import SNAPSHOT_HEAD_MAX
from ternmesh.swarm.coordinator import Coordinator
from ternmesh.swarm.drift import Drift
from ternmesh.swarm.events import (
    FIRST_CONTACT,
    HostEvent,
    NodeJoined,
    PacketForgotten,
    ReferenceMade,
    Refused,
    RoundExtended,
    RoundOpened,
    refusals,
)
from ternmesh.swarm.open_round import BUNDLE
from ternmesh.swarm.records import Node
from ternmesh.wire.control import OPEN, PHASES
from ternmesh_store.host_store import Round, Tally

HISTORY_MAX = 100
HISTORY_CELLS_MAX = 20_000  # nodes times rounds in one answer, so that it stays below its limit


def describe(event: HostEvent, coordinator: Coordinator, now: float) -> str | None:
    """The log line for an event, or None where it is not worth one."""
    rounds = coordinator.plan.rounds
    match event:
        case NodeJoined():
            return f"{event.name} takes part with {event.samples} samples"
        case RoundOpened():
            left = f"{max(0.0, event.deadline - now):.0f} s"
            return f"round {event.round + 1} of {rounds} is open for {left}"
        case RoundExtended():
            return f"round {event.round + 1} goes on: too few packets by its deadline"
        case PacketForgotten():
            name = _names(coordinator, [event.context % BUNDLE])
            return f"the packet of {name} does not add up: it must come again"
        case ReferenceMade():
            counted = _names(coordinator, [entry.context for entry in event.counted])
            missing = _names(coordinator, event.missing)
            end = "; the run is finished" if event.finished else ""
            rest = f", without {missing}" if missing else ""
            return f"reference {event.version} of {rounds} counts {counted or 'nobody'}{rest}{end}"
        case Refused(reason="ahead"):
            return (
                f"{event.peer} holds a newer reference of this run than this host: was its "
                "state_dir restored from an old copy? Bring a newer one back, or begin a new run "
                "in an empty state_dir"
            )
        case Refused() if event.reason == FIRST_CONTACT:
            return None
        case Refused():
            return f"refused from {event.peer}: {event.reason}"
        case _:
            return None


def status(
    coordinator: Coordinator,
    tallies: Mapping[str, Tally],
    drifts: Mapping[int, Drift],
    history: Sequence[Round],
    now: float,
) -> dict[str, Any]:
    """Where the run stands, ready for JSON. Refusals are those since this process began."""
    is_open = coordinator.phase == OPEN
    kept = min(HISTORY_MAX, HISTORY_CELLS_MAX // max(1, len(coordinator.nodes)))
    return {
        "role": "host",
        "run": coordinator.run.hex(),
        "version": coordinator.version,
        "rounds": coordinator.plan.rounds,
        "plan": asdict(coordinator.plan),
        "phase": PHASES[coordinator.phase],
        "deadline_s": round(max(0.0, coordinator.deadline - now), 1) if is_open else None,
        "min_peers": coordinator.settings.min_peers,
        "reference": coordinator.reference.hex(),
        # What a node costs at most that comes back after any time away.
        "snapshot_bytes_max": 4 * coordinator.plan.dimension + SNAPSHOT_HEAD_MAX,
        "nodes": [
            {
                **_node(node, coordinator.delivered(node.context), now),
                **asdict(tallies.get(node.name, Tally())),
                **_drift(drifts.get(node.context, Drift())),
            }
            for node in coordinator.nodes.values()
        ],
        "refused": refusals(coordinator.refused),
        "first_contacts": coordinator.refused[FIRST_CONTACT],
        "history": [asdict(item) for item in history[-kept:]],
    }


def _node(node: Node, delivered: str, now: float) -> dict[str, Any]:
    return {
        "name": node.name,
        "context": node.context,
        "samples": node.samples,
        "active": node.active,
        "heard_s_ago": None if node.heard_at is None else round(now - node.heard_at, 1),
        "delivered": delivered,
        # In whose name the bundle came in which it was counted last; None: its own packet was.
        "bundle": None if node.bundle is None else node.bundle.context,
        "refused": refusals(node.refused),
    }


def _drift(drift: Drift) -> dict[str, Any]:
    own, others = drift.similarity_own, drift.similarity_others
    return {
        "similarity_own": None if own is None else round(own, 3),
        "similarity_others": None if others is None else round(others, 3),
        "drifting": drift.drifting,
    }


def _names(coordinator: Coordinator, contexts: Sequence[int]) -> str:
    return ", ".join(coordinator.nodes[context].name for context in contexts)
