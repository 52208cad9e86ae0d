"""What the page shows, as named parts of a status: a part is sent again only when it changes."""

from collections.abc import Sequence
from typing import Any

from ternmesh.federated.refusals import is_normal
from ternmesh_service.alarms import alarms, board_state
from ternmesh_service.commands import as_run
from ternmesh_service.status import BoardStatus, HistoryEntry, HostedBoard, HostStatus, to_json
from ternmesh_store.host_store import StoredRound

Parts = dict[str, Any]
Row = StoredRound | HistoryEntry

ROUND = "round "
STEADY_S = 5.0  # two times that differ by less are the same: they are measured anew each time
_FLEET = (
    "role", "name", "fleet", "model", "software", "run", "version", "rounds", "phase", "min_peers",
    "activity", "samples", "metric", "metric_name", "metric_samples", "source", "metrics",
    "release", "carried_from", "predict",
)  # fmt: skip
_BOARD = (
    "name", "samples", "revoked", "active", "delivered", "rounds_counted", "rounds_missed",
    "bytes_up", "bytes_down", "weight", "reason", "since", "agreement", "uptime",
)  # fmt: skip


def parts(status: HostStatus | BoardStatus, rounds: Sequence[Row], now: float) -> Parts:
    """The parts of a host's or board's status at `now`, seconds since 1970.

    "fleet" has what is of the whole, "alarms" a list, "board NAME" a row, "round N" a round. The
    status has the newest rounds, `rounds` all that are known.
    """
    transport, content = status.transport, to_json(status)
    fleet = {key: content[key] for key in _FLEET if content.get(key) is not None}
    fleet |= {
        "connected": transport.connected,
        "airtime_us": transport.airtime_us,
        "airtime_left_us": transport.airtime_left_us,
        "link": transport.end,
        "refused": sum(n for reason, n in status.refused.items() if not is_normal(reason, n)),
        "insecure": status.security.is_insecure,
    }
    if isinstance(status, BoardStatus) and status.source and status.source.words:
        fleet["words"] = status.source.words.sentence()
    if transport.airtime_us and transport.bytes_out:
        fleet["air_s_per_byte"] = transport.airtime_us / 1e6 / transport.bytes_out
    found: Parts = {"fleet": fleet}
    known = [row for row in rounds if isinstance(row, StoredRound)]
    found["alarms"] = [
        to_json(alarm) | {"advice": as_run(alarm.advice)} for alarm in alarms(status, known)
    ]
    kept = {row.version for row in rounds}
    if isinstance(status, HostStatus):
        if status.deadline_s is not None:
            fleet["deadline_at"] = now + status.deadline_s
        fleet |= {"rule": status.rule, "returned": status.returned}
        if (seat := status.agreement) is not None:
            missing = sorted(seat.missing)
            leader = seat.leader if seat.has_quorum else "nobody"
            follows = seat.has_quorum and seat.leader != seat.name
            fleet["voters"] = {
                "leader": leader,
                "follows": follows,
                "all": len(seat.voters),
                "missing": missing,
            }
        for board in status.nodes:
            found[f"board {board.name}"] = _board(board, status, now)
    for row in status.history:
        if row.version in kept:
            found[f"{ROUND}{row.version}"] = _round(row)
    return found


def _board(board: HostedBoard, status: HostStatus, now: float) -> dict[str, Any]:
    known = board.board
    hidden = ("uptime_s", "memory_mib")
    return {
        **{key: getattr(board, key) for key in _BOARD},
        "state": board_state(board, status),
        "refused": sum(n for reason, n in board.refused.items() if not is_normal(reason, n)),
        "members": board.members,
        "software": known.software,
        "paused": bool(known.wanted.get("pause")),
        "behind": known.behind,
        "report": {key: value for key, value in known.report.items() if key not in hidden},
        "signal": status.transport.signal.get(board.name),
        "heard_at": None if board.heard_s_ago is None else now - board.heard_s_ago,
        "reported_at": None if known.reported_s_ago is None else now - known.reported_s_ago,
    }


def _round(row: Row) -> dict[str, Any]:
    if isinstance(row, HistoryEntry):
        return to_json(row)
    return {
        "version": row.version,
        "missing": list(row.missing),
        "bytes_down": row.bytes_down,
        "loss": row.loss,
        "accuracy": row.accuracy,
        "seconds": round(row.seconds, 2),
        "counted": len(row.counted),
        "bytes_up": sum(row.bytes_up.values()),
        "reports": row.reports,
    }


def steadied(old: object, new: object) -> object:
    """`new`, with the times (`*_at`) of `old` where they are the same."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    kept = {
        key: old[key]
        for key, value in new.items()
        if key.endswith("_at")
        and None not in (value, old.get(key))
        and abs(value - old[key]) < STEADY_S
    }
    return {**new, **kept}
