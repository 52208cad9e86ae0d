"""Statuses of hosts for tests and the bench of the page, in the form of `host.report.status`."""

import math
from typing import Any


def board(name: str, **changes: Any) -> dict[str, Any]:
    """The row of a board that does well."""
    standing = {"weight": 1.0, "reason": "", "since": 0, "agreement": 0.4, "uptime": 1.0}
    report = {"activity": "training", "disk_free_mb": 9000, "airtime_s": 12.0, "power_w": 2.5}
    known = {
        "software": "0.1.0", "wanted": {}, "in_force": {}, "behind": False, "awaited": False,
        "reported_s_ago": 30.0, "report": report,
    }  # fmt: skip
    return {
        "name": name, "address": 1, "samples": 400, "revoked": False, "active": True,
        "heard_s_ago": 2.0, "delivered": "none", "partial_aggregate": None, "refused": {},
        "rounds_counted": 7, "rounds_missed": 1, "bytes_up": 9000, "bytes_down": 4000,
        "standing": standing, "influence": None, "board": known, **changes,
    }  # fmt: skip


def made_round(version: int, names: list[str], accuracy: float | None = None) -> dict[str, Any]:
    """A round, with a report of each board; the accuracy rises where none is given."""
    share = 1 - 0.4 * math.exp(-version / 8) if accuracy is None else accuracy
    reports = {
        name: (round(1.2 - share, 3), round(min(1.0, share - 0.01 * (i % 7)), 4))
        for i, name in enumerate(names)
    }
    return {
        "version": version, "counted": names, "missing": [], "seconds": 2.0,
        "bytes_up": dict.fromkeys(names, 680), "bytes_down": 1300, "loss": 1.2 - share,
        "accuracy": share, "evaluations": len(names), "useful_bytes": 500 * len(names),
        "reports": reports,
    }  # fmt: skip


def host_status(names: list[str], version: int = 8, **changes: Any) -> dict[str, Any]:
    """The status of a host whose fleet does well, with all rounds."""
    return {
        "role": "host", "software": "0.1.0", "run": "00ff00ff", "version": version, "rounds": 60,
        "phase": "open", "deadline_s": 20.0, "min_peers": 2, "model": "keyword", "fleet": "demo",
        "nodes": [board(name) for name in names], "behind": None, "refused": {},
        "aggregation": {"rule": "weighted_mean", "remark": "", "returned": ""},
        "metrics": {
            "global_loss": 0.4, "convergence_rate": 0.05, "model_divergence": 0.3,
            "communication_overhead": 1.3, "round_latency_s": 2.0, "byzantine_detections": 0,
        },
        "history": [made_round(number, names) for number in range(1, version + 1)],
        "transport": {"connected": True, "broker": "mqtt://127.0.0.1:1883", "airtime_us": None},
        "security": {"mode": "keys", "clones": {}}, "release": None, "carried_from": None,
        **changes,
    }  # fmt: skip
