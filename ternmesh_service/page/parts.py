"""What the page shows, as named parts of a status: a part is sent again only when it changes."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ternmesh_service.page.alarms import Machine, alarms

Answer = Mapping[str, Any]
Parts = dict[str, Any]

ROUND = "round "
STEADY_S = 5.0  # two times that differ by less are the same: they are measured anew each time
_FLEET = (
    "role", "name", "fleet", "model", "software", "run", "version", "rounds", "phase", "min_peers",
    "activity", "samples", "metric", "metric_name", "best", "source", "metrics", "release",
    "carried_from", "predict",
)  # fmt: skip


def parts(answer: Answer, rounds: Sequence[Answer], machine: Machine, now: float) -> Parts:
    """The parts of a host's or node's status at `now`, seconds since 1970.

    "fleet" has what is of the whole, "alarms" a list, "board NAME" a row, "round N" a round. The
    status has the newest rounds, `rounds` all that are known.
    """
    transport = answer.get("transport") or {}
    fleet = {key: answer[key] for key in _FLEET if answer.get(key) is not None}
    fleet |= {key: transport.get(key) for key in ("connected", "airtime_us", "airtime_left_us")}
    fleet["link"] = transport.get("broker") or transport.get("port")
    if (air_us := transport.get("airtime_us")) and (sent := transport.get("bytes_out")):
        fleet["air_s_per_byte"] = air_us / 1e6 / sent
    fleet["refused"] = sum((answer.get("refused") or {}).values())
    fleet["insecure"] = (answer.get("security") or {}).get("mode") == "insecure"
    if answer.get("deadline_s") is not None:
        fleet["deadline_at"] = now + answer["deadline_s"]
    if "aggregation" in answer:
        fleet |= {key: answer["aggregation"][key] for key in ("rule", "returned")}
    signals = transport.get("signal") or {}
    found: Parts = {
        "fleet": fleet,
        "alarms": [asdict(alarm) for alarm in alarms(answer, rounds, machine)],
    }
    for node in answer.get("nodes", ()):
        found[f"board {node['name']}"] = _board(node, signals.get(node["name"]), now)
    kept = {row["version"] for row in rounds}
    for row in (row for row in answer.get("history", ()) if row["version"] in kept):
        found[f"{ROUND}{row['version']}"] = _round(row)
    return found


def _board(node: Answer, signal: Answer | None, now: float) -> dict[str, Any]:
    board, standing = node["board"], node["standing"]
    report = {k: v for k, v in board["report"].items() if k not in ("uptime_s", "memory_mib")}
    row = {key: node[key] for key in ("name", "samples", "revoked", "active", "delivered")}
    row |= {key: node[key] for key in ("rounds_counted", "rounds_missed", "bytes_up", "bytes_down")}
    row |= {key: standing[key] for key in ("weight", "reason", "since", "agreement", "uptime")}
    row |= {
        "refused": sum(node["refused"].values()),
        "gateway": node["partial_aggregate"],
        "software": board["software"],
        "paused": bool(board["wanted"].get("pause")),
        "behind": board["behind"],
        "report": report,
        "signal": signal,
    }
    for key, ago in (("heard_at", node["heard_s_ago"]), ("reported_at", board["reported_s_ago"])):
        row[key] = None if ago is None else now - ago
    return row


def _round(row: Answer) -> dict[str, Any]:
    if "metric" in row:  # of a node
        return dict(row)
    up = row["bytes_up"]
    return {
        **{key: row[key] for key in ("version", "missing", "bytes_down", "loss", "accuracy")},
        "seconds": round(row["seconds"], 2),
        "counted": len(row["counted"]),
        "bytes_up": sum(up.values()),
        "reports": row["reports"],
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
