"""Metrics for Prometheus: the status of a process, on `/metrics` (`prometheus_client` only here).

A scrape asks the control socket as `ternmesh status` does: it never touches the process's state.
"""

import logging
import math
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

from ternmesh.config import ConfigError, limits
from ternmesh.extras import installed
from ternmesh_service.control_socket import ControlError, NotServed
from ternmesh_service.fair_listener import FairListener
from ternmesh_service.status import (
    BoardStatus,
    GatewayStatus,
    HostedBoard,
    HostStatus,
    Status,
    ask_status,
    newest_reports,
)

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PREFIX = "ternmesh_"
GAUGE, COUNTER = "gauge", "counter"
METRICS = {  # by name: kind and help
    "info": (GAUGE, "1, with what runs here"),
    "version": (GAUGE, "newest global update"),
    "connected": (GAUGE, "whether the bearer is connected"),
    "airtime_seconds": (COUNTER, "time on air of this radio since the start"),
    "refused_frames": (COUNTER, "what was refused since the start, by reason"),
    "boards": (GAUGE, "boards of the run"),
    "boards_active": (GAUGE, "boards for which a round waits"),
    "boards_doubted": (GAUGE, "boards that count less than in full, by reason"),
    "fleet_loss": (GAUGE, "median loss of the boards, for the newest global adapter with reports"),
    "fleet_accuracy": (GAUGE, "median accuracy of the boards, 0 to 1"),
    "convergence_rate": (GAUGE, "how much the loss of the fleet falls a round"),
    "model_divergence": (GAUGE, "0: the boards' updates agree, 1: they have nothing in common"),
    "communication_overhead": (GAUGE, "bytes on the bearer for each byte that counts"),
    "byzantine_detections": (GAUGE, "boards that are excluded since they do harm"),
    "voters_missing": (GAUGE, "hosts of the fleet of which this one hears nothing"),
    "consensus_latency_seconds": (GAUGE, "time of a decision of the hosts, while this one leads"),
    "round_seconds": (GAUGE, "time of the newest round"),
    "round_bytes": (GAUGE, "bytes on the bearer of the newest round, by direction"),
    "board_samples": (GAUGE, "samples that a board trains on"),
    "board_weight": (GAUGE, "factor of a board's weight, 0 to 1"),
    "board_loss": (GAUGE, "newest loss that a board has reported"),
    "board_accuracy": (GAUGE, "newest accuracy that a board has reported, 0 to 1"),
    "board_heard_seconds": (GAUGE, "time since the last frame of a board"),
    "board_rounds": (COUNTER, "rounds of the run, by whether they counted the board"),
    "board_bytes": (COUNTER, "bytes of a board in the run, by direction"),
    "samples": (GAUGE, "samples that this board trains on"),
    "score": (GAUGE, "newest score on this board's own samples, by its metric"),
    "words_recall": (GAUGE, "share of the words that people confirmed and the model heard"),
    "words_false_per_hour": (GAUGE, "sounds an hour that were taken for a word, as people say"),
    "loss": (GAUGE, "mean loss of the steps of this board's newest round"),
    "bytes": (COUNTER, "bytes on the bearer since the start, by direction"),
    "memory_bytes": (GAUGE, "resident memory of the process"),
}
CLIENTS_MAX = 8  # at once; a further one ends another
CLIENT_S = 10.0  # for what a client sends, and for what it reads
FRESH_S = 0.5  # scrapes within it get one status
Labels = tuple[tuple[str, str], ...]
Sample = tuple[str, float, Labels]
Value = tuple[str, float | None, Labels]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """Where `/metrics` is served. Anybody who reaches the port may read it."""

    port: int = field(default=0, metadata=limits(0, 65_535))  # 0: not served
    address: str = "127.0.0.1"


@contextmanager
def served_metrics(config: MetricsConfig, socket: Path) -> Iterator[None]:
    """Serve the metrics of the process behind a control socket; ConfigError."""
    if config.port == 0:
        yield
        return
    with installed("metrics", "[metrics] needs the package prometheus-client", ConfigError):
        from prometheus_client import CollectorRegistry, MetricsHandler
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(socket))
    handler = type("Handler", (MetricsHandler,), {"registry": registry, "timeout": CLIENT_S})
    try:
        server = _Server(config, handler)
    except OSError as error:
        raise NotServed(
            f"metrics.port {config.port} on {config.address} cannot be used ({error.strerror}): "
            "choose another one"
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    _log.info("metrics are on http://%s:%d/metrics", config.address, config.port)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    """One thread for each of a few clients: none that hangs keeps another away."""

    def __init__(self, config: MetricsConfig, handler: type[BaseHTTPRequestHandler]) -> None:
        place = config.address, config.port
        super().__init__(place, handler, bind_and_activate=False)
        self.socket.close()
        self.socket = FairListener(*place, CLIENTS_MAX)

    def handle_error(self, *_: object) -> None:
        """Clients that hang or go away are no news; what else happens is a fault of ours."""
        error = sys.exception()
        level = logging.DEBUG if isinstance(error, OSError) else logging.ERROR
        _log.log(level, "a scrape failed", exc_info=error)


class _Collector:
    """What a scrape gets. Those that come faster get the same, so that they cost no round."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._asking = threading.Lock()
        self._asked_at = -math.inf
        self._status: Status | None = None
        self._trouble = ""

    def describe(self) -> list["Metric"]:
        """None in advance: there may be no answer yet."""
        return []

    def collect(self) -> Iterator["Metric"]:
        """The metrics of the status now; none while the process does not answer."""
        from prometheus_client.core import Metric

        if self._asking.acquire(blocking=False):  # no thread waits for another
            try:
                self._refresh(time.monotonic())
            finally:
                self._asking.release()
        if (status := self._status) is None:
            return
        found: dict[str, Metric] = {}
        for name, value, labels in samples(status):
            kind, unit_help = METRICS[name]
            if name not in found:
                found[name] = Metric(PREFIX + name, unit_help, kind)
            suffix = "_total" if kind == "counter" else ""
            found[name].add_sample(PREFIX + name + suffix, dict(labels), value)
        yield from found.values()

    def _refresh(self, now: float) -> None:
        if now < self._asked_at + FRESH_S:
            return
        self._asked_at = now
        try:
            self._status, self._trouble = ask_status(self._socket), ""
        except ControlError as error:
            self._status = None
            if self._trouble != (trouble := str(error)):
                _log.warning("no metrics for the scrapes: %s", error)
                self._trouble = trouble


def samples(status: Status) -> Iterator[Sample]:
    """The values of a status by name in `METRICS`, with labels; what is not known is left out."""
    for name, value, labels in _samples(status):
        if value is not None:
            yield name, float(value), labels


def _samples(status: Status) -> Iterator[Value]:
    about = ("role", "software", "model", "fleet", "name", "run")
    known = ((key, getattr(status, key, None)) for key in about)
    yield "info", 1, tuple((key, str(value)) for key, value in known if value)
    yield "version", getattr(status, "version", None), ()
    yield "connected", status.transport.connected, ()
    air_us = status.transport.airtime_us
    yield "airtime_seconds", None if air_us is None else air_us / 1e6, ()
    if not isinstance(status, GatewayStatus):
        for reason, count in status.refused.items():
            yield "refused_frames", count, (("reason", reason),)
    if isinstance(status, HostStatus):
        yield from _host(status)
    elif isinstance(status, BoardStatus):
        yield from _own(status)


def _host(status: HostStatus) -> Iterator[Value]:
    yield "boards", len(status.nodes), ()
    yield "boards_active", sum(board.active for board in status.nodes), ()
    for row in status.history[-1:]:
        yield "round_seconds", row.seconds, ()
        yield "round_bytes", sum(row.bytes_up.values()), (("direction", "up"),)
        yield "round_bytes", row.bytes_down, (("direction", "down"),)
    for name, (loss, accuracy) in newest_reports(status.history).items():
        labels = (("board", name),) if name else ()
        yield "board_loss" if name else "fleet_loss", loss, labels
        yield "board_accuracy" if name else "fleet_accuracy", accuracy, labels
    yield "convergence_rate", status.metrics.convergence_rate, ()
    yield "model_divergence", status.metrics.model_divergence, ()
    yield "communication_overhead", status.metrics.communication_overhead, ()
    yield "byzantine_detections", status.metrics.byzantine_detections, ()
    if (seat := status.agreement) is not None:
        yield "voters_missing", len(seat.missing), ()
        yield "consensus_latency_seconds", seat.decision_mean_s, (("of", "mean"),)
        yield "consensus_latency_seconds", seat.decision_p95_s, (("of", "p95"),)
    for board in status.nodes:
        yield from _board(board)
    reasons = Counter(board.reason for board in status.nodes if board.reason)
    for reason, count in reasons.items():
        yield "boards_doubted", count, (("reason", reason),)


def _board(board: HostedBoard) -> Iterator[Value]:
    own = ("board", board.name)
    yield "board_samples", board.samples, (own,)
    yield "board_weight", board.weight, (own,)
    yield "board_heard_seconds", board.heard_s_ago, (own,)
    yield "board_rounds", board.rounds_counted, (own, ("result", "counted"))
    yield "board_rounds", board.rounds_missed, (own, ("result", "missed"))
    yield "board_bytes", board.bytes_up, (own, ("direction", "up"))
    yield "board_bytes", board.bytes_down, (own, ("direction", "down"))


def _own(status: BoardStatus) -> Iterator[Value]:
    yield "samples", status.samples, ()
    yield "score", status.metric, (("metric", status.metric_name),)
    if status.source is not None and (words := status.source.words) is not None:
        yield "words_recall", words.recall, ()
        yield "words_false_per_hour", words.false_per_hour, ()
    yield "bytes", status.bytes_up, (("direction", "up"),)
    yield "bytes", status.bytes_down, (("direction", "down"),)
    for entry in status.history[-1:]:
        yield "loss", entry.loss, ()
    yield "memory_bytes", None if status.rss_mib is None else status.rss_mib * 2**20, ()
