"""The status of a node: its answer to `ternmesh status`."""

import logging
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from edge.data.sources import class_names
from edge.node import Node
from ternmesh import __version__
from ternmesh.federated.events import FIRST_CONTACT, refusals
from ternmesh.federated.management import ACTIVITIES
from ternmesh.plan import of_rounds
from ternmesh.wire.control import PHASES
from ternmesh_service.status import (
    UNOPENED,
    BoardStatus,
    OutboxStatus,
    SourceStatus,
    TrainingStatus,
)
from transports.base import HOST, TransportStatus
from transports.driver import PeerTraffic


def status(node: Node) -> BoardStatus:
    """The node's state; refusals, bytes and silent rounds since it started."""
    protocol = node.protocol
    plan = protocol.plan
    traffic = node.driver.traffic.get(HOST, PeerTraffic())
    scored = [entry for entry in node.evaluation.history if entry.metric is not None]
    return BoardStatus(
        software=__version__,
        name=node.config.name,
        fleet=node.config.link.fleet,
        model=node.package.name,
        joined=protocol.joined,
        run=protocol.run.hex(),
        version=protocol.version,
        rounds=None if plan is None else plan.rounds,
        phase=PHASES[protocol.host_phase],
        activity=_activity(node),
        held_back=node.throttle.reason,
        provider=node.provider,
        training=_training(node),
        samples=node.data.count,
        aside=node.data.aside(),
        source=_source(node),
        metric_name=node.package.metric,
        metric=scored[-1].metric if scored else None,
        metric_samples=scored[-1].metric_samples if scored else 0,
        adapter=str(node.config.adapter_path),
        outbox=_outbox(node),
        bytes_up=traffic.bytes_out,
        bytes_down=traffic.bytes_in,
        traffic=dict(node.driver.traffic),
        settings=node.management.settings,
        refused=refusals(protocol.refused),
        first_contacts=protocol.refused[FIRST_CONTACT],
        diverged=node.diverged,
        silent_rounds=node.silent_rounds,
        history=tuple(node.evaluation.history),
        rss_mib=rss_mib(),
    )


def values(
    node: Node, started_at: float, transport: Callable[[], TransportStatus] = lambda: UNOPENED
) -> dict[str, float | None]:
    """The values of a report to the host; None for what is not known."""
    radio = transport()
    entries = [*node.evaluation.history]
    metrics = [entry.metric for entry in entries if entry.metric is not None]
    losses = [entry.loss for entry in entries if entry.loss is not None]
    return {
        "uptime_s": time.monotonic() - started_at,
        "disk_free_mb": _read(lambda: shutil.disk_usage(node.config.state_dir).free / 1e6),
        "memory_mib": rss_mib(),
        "temperature_c": node.throttle.readings.temperature_c,
        "activity": ACTIVITIES.index(_activity(node)),
        "version": node.protocol.version,
        "rounds_trained": len(losses),  # in this run
        "rounds_diverged": node.diverged,
        "metric": metrics[-1] if metrics else None,
        "loss": losses[-1] if losses else None,
        "log_level": logging.getLogger().level // 10 - 1,
        "airtime_s": _seconds(radio.airtime_us),
        "airtime_left_s": _seconds(radio.airtime_left_us),
    }


def _seconds(us: int | None) -> float | None:
    return None if us is None else us / 1e6


def _read(sensor: Callable[[], float]) -> float | None:
    try:
        return sensor()
    except (OSError, ValueError):
        return None


def summary(node: Node) -> str:
    """The line of `systemctl status`."""
    protocol, last = node.protocol, node.evaluation.last
    rounds = "" if protocol.plan is None else of_rounds(protocol.plan.rounds)
    metric = last.metric if last else None
    shown = "" if metric is None else f", {node.package.metric} {metric:.4f}"
    why = f", {node.throttle.reason}" if node.throttle.causes else ""
    return f"{_activity(node)}{why}; global adapter {protocol.version}{rounds}{shown}"


def rss_mib() -> float | None:
    """The memory of this process in MiB; None where the system does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return None
    return round(pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20), 1)


def _activity(node: Node) -> str:
    protocol = node.protocol
    if protocol.joining.revoked:
        return "revoked by the host"
    if not protocol.joined:
        return "joining"
    if node.management.paused:
        return "paused by the host"
    if node.throttle.causes and not protocol.finished:
        return next(iter(node.throttle.causes))
    if node.trainer.round is not None:
        return "training"
    if node.wanted is not None:
        return "slowed by the host" if node.slowed else "waiting for samples"
    if protocol.finished:
        return "finished"
    if protocol.version < protocol.target:
        return "catching up"
    if protocol.pending is not None:
        return "waiting for the global update" if protocol.received else "sending"
    if protocol.silent:
        return "silent in this round"
    return "waiting for work"


def _training(node: Node) -> TrainingStatus | None:
    if node.trainer.round is None:
        return None
    done, steps = node.trainer.progress
    return TrainingStatus(
        round=node.trainer.round, steps_done=done, steps=steps, loss=node.trainer.loss
    )


def _outbox(node: Node) -> OutboxStatus | None:
    pending = node.protocol.pending
    if pending is None:
        return None
    size = sum(map(len, pending.bodies))
    return OutboxStatus(round=pending.round, bytes=size, received=node.protocol.received)


def _source(node: Node) -> SourceStatus | None:
    feed = node.data.feed
    if feed is None:
        return None
    buffer, live = feed.buffer, feed.status()
    names, last = dict(enumerate(class_names(node.package))), buffer.last_label
    return SourceStatus(
        labelled=len(buffer),
        waiting=buffer.waiting,
        capacity=buffer.capacity,
        last_refusal=buffer.last_refusal,
        by_label={names.get(k, "all"): n for k, n in Counter(buffer.classes.values()).items()},
        last_label=last and (last[0], names.get(last[1], "all")),
        failures=feed.failures,
        floods=feed.floods,
        last_failure=feed.last_failure,
        counters=asdict(buffer.counters),
        live=live,
        words=None if feed.words is None else feed.words.status(),
    )
