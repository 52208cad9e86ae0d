"""Statuses of programs that do well, for tests of all that shows them."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ternmesh.plan import Plan
from ternmesh_service import status
from ternmesh_store.host_store import StoredRound
from transports.base import TransportStatus

UP = TransportStatus(connected=True, last_error=None, end="mqtt://b:1883 with MQTT 5")
DOWN = TransportStatus(connected=False, last_error="no route", end="mqtt://b:1883")
KEYS = status.SecurityStatus(mode="keys", fingerprint="ab" * 16, fleet="cd" * 16)
MACHINE = status.MachineStatus(up_s=600.0, disk_free_mb=9000.0)
PLAN = Plan(
    dimension=1000, frame_mtu=184, up_zeros_permille=900, up_span=500, down_zeros_permille=900,
    down_span=500, rounds=60, local_steps=4, learning_rate_e6=1000, scale_max=1 << 24,
    announce_s=30,
)  # fmt: skip
_MANAGED = status.ManagedBoard(
    name="ada", software="0.1.0", awaited=False, wanted={}, in_force={}, behind=False,
    reported_s_ago=30.0,
    report={"activity": "training", "disk_free_mb": 9000.0, "airtime_s": 12.0},
)  # fmt: skip


def board(name: str, managed: Any = None, **changes: Any) -> status.HostedBoard:
    """A board that its host sees do well; `managed` are changes of what it reported."""
    known: dict[str, Any] = {
        "address": 1, "samples": 400, "revoked": False, "active": True, "heard_s_ago": 2.0,
        "delivered": "none", "members": 0, "refused": {}, "rounds_counted": 7,
        "rounds_missed": 1, "bytes_up": 9000, "bytes_down": 4000, "influence": None,
        "weight": 1.0, "reason": "", "since": 0, "agreement": 0.4, "uptime": 1.0, "harm": 0.0,
        "unlike": False,
    }  # fmt: skip
    return status.HostedBoard(
        name=name,
        board=replace(_MANAGED, **{"name": name, **(managed or {})}),
        **{**known, **changes},
    )


def made_round(version: int, names: Sequence[str], accuracy: float | None = None) -> StoredRound:
    """A round, with a report of each board; the accuracy rises where none is given."""
    share = 1 - 0.4 * math.exp(-version / 8) if accuracy is None else accuracy
    reports = {
        name: (round(1.2 - share, 3), round(min(1.0, share - 0.01 * (i % 7)), 4))
        for i, name in enumerate(names)
    }
    return StoredRound(
        version=version, counted=tuple(names), missing=(), seconds=2.0,
        bytes_up=dict.fromkeys(names, 680), bytes_down=1300, loss=1.2 - share, accuracy=share,
        evaluations=len(names), useful_bytes=500 * len(names), reports=reports,
    )  # fmt: skip


def host_status(names: Sequence[str], version: int = 8, **changes: Any) -> status.HostStatus:
    """A host whose fleet does well, with all rounds."""
    known: dict[str, Any] = {
        "software": "0.1.0", "fleet": "demo", "model": "keyword", "run": "00ff00ff", "rounds": 60,
        "plan": PLAN, "phase": "open", "deadline_s": 20.0, "min_peers": 2,
        "global_hash": "a1b2c3d4e5f60718293a4b5c6d7e8f90", "behind": None, "refused": {},
        "first_contacts": 0, "security": KEYS, "transport": UP, "machine": MACHINE,
        "nodes": tuple(map(board, names)),
        "rule": "weighted_mean", "remark": "", "returned": "",
        "metrics": status.FleetFigures(
            global_loss=0.4, convergence_rate=0.05, model_divergence=0.3,
            communication_overhead=1.3, round_latency_s=2.0, byzantine_detections=0,
        ),
        "history": tuple(made_round(number, names) for number in range(1, version + 1)),
    }  # fmt: skip
    return status.HostStatus(version=version, **{**known, **changes})


def board_status(**changes: Any) -> status.BoardStatus:
    """A board that does well."""
    known: dict[str, Any] = {
        "software": "0.1.0", "name": "ada", "fleet": "demo", "model": "keyword", "joined": True,
        "run": "00ff00ff", "version": 7, "rounds": 20, "phase": "open", "activity": "training",
        "held_back": "", "provider": "CPUExecutionProvider", "training": None, "samples": 400,
        "source": None, "metric_name": "accuracy", "metric": None,
        "adapter": "s/current.onnx_adapter", "outbox": None, "bytes_up": 12_345,
        "bytes_down": 678, "traffic": {}, "settings": {}, "refused": {}, "first_contacts": 0,
        "diverged": 0, "silent_rounds": 0, "history": (), "rss_mib": 100.0, "security": KEYS,
        "transport": UP, "machine": MACHINE,
    }  # fmt: skip
    return status.BoardStatus(**{**known, **changes})


def source_status(**changes: Any) -> status.SourceStatus:
    """A source of samples with a buffer."""
    known: dict[str, Any] = {
        "labelled": 3, "waiting": 7, "capacity": 20, "last_refusal": None, "by_label": {},
        "last_label": None, "failures": 0, "floods": 0, "last_failure": None,
        "counters": {"samples": 9, "repeated": 0, "refused": 3, "evicted": 4, "expired": 5,
                     "unmatched": 2},
        "live": None,
    }  # fmt: skip
    return status.SourceStatus(**{**known, **changes})


def predict_status(**changes: Any) -> status.PredictStatus:
    """Predictions, of which there were none yet."""
    known: dict[str, Any] = {
        "count": 0, "failed": 0, "refused": 0, "clients_refused": 0, "clients_dropped": 0,
        "live_skipped": 0, "p50_ms": None, "p99_ms": None, "max_ms": None, "clients": 0,
        "version": None, "bad_adapters": 0, "last_error": "", "live": None,
    }  # fmt: skip
    return status.PredictStatus(**{**known, **changes})


def gateway_status(**changes: Any) -> status.GatewayStatus:
    """A gateway of one board."""
    known: dict[str, Any] = {
        "frames_up": 1, "frames_down": 2, "frames_refused": 0, "frames_lost": 0, "transport": UP,
        "network": {"ada": UP},
    }  # fmt: skip
    return status.GatewayStatus(**{**known, **changes})


VOTERS = status.AgreementStatus(
    name="barn", mode="crash", term=1, leader="attic", voters=("attic", "barn", "loft"),
    missing=("loft",), needed=2, decisions=9, decision_mean_s=0.5, decision_p95_s=0.75,
)  # fmt: skip
