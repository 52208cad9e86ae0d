"""Metrics for Prometheus: the status of a process, on `/metrics` (`prometheus_client` only here).

A scrape asks the control socket as `ternmesh status` does: it never touches the process's state.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ternmesh.config import ConfigError, limits
from ternmesh_service.control_socket import ControlError, ask
from ternmesh_service.observer import newest_reports

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
    "loss": (GAUGE, "mean loss of the steps of this board's newest round"),
    "bytes": (COUNTER, "bytes on the bearer since the start, by direction"),
    "memory_bytes": (GAUGE, "resident memory of the process"),
}
Answer = Mapping[str, Any]
Sample = tuple[str, float, tuple[tuple[str, str], ...]]

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
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError as error:
        raise ConfigError(
            "[metrics] needs the package prometheus-client: pip install 'ternmesh[metrics]'"
        ) from error
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(socket))
    try:
        server, thread = start_http_server(config.port, config.address, registry)
    except OSError as error:
        raise ConfigError(
            f"metrics.port {config.port} on {config.address} cannot be used ({error.strerror}): "
            "choose another one"
        ) from error
    _log.info("metrics are on http://%s:%d/metrics", config.address, config.port)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Collector:
    """What a scrape gets."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    def describe(self) -> list["Metric"]:
        """None in advance: there may be no answer yet."""
        return []

    def collect(self) -> Iterator["Metric"]:
        """The metrics of the status now; none while the process does not answer."""
        from prometheus_client.core import Metric

        try:
            answer = ask(self._socket, {"command": "status"})
        except ControlError as error:
            _log.warning("no metrics for this scrape: %s", error)
            return
        found: dict[str, Metric] = {}
        for name, value, labels in samples(answer):
            kind, unit_help = METRICS[name]
            if name not in found:
                found[name] = Metric(PREFIX + name, unit_help, kind)
            suffix = "_total" if kind == "counter" else ""
            found[name].add_sample(PREFIX + name + suffix, dict(labels), value)
        yield from found.values()


def samples(answer: Answer) -> Iterator[Sample]:
    """The values of a status by name in `METRICS`, with labels; unknown parts are left out."""
    about = ("role", "software", "model", "fleet", "name", "run")
    labels = tuple((key, str(answer[key])) for key in about if answer.get(key))
    yield "info", 1.0, labels
    yield from _values(answer, {"version": "version"})
    transport = answer.get("transport") or {}
    yield from _values(transport, {"connected": "connected"})
    if "airtime_us" in transport:
        yield "airtime_seconds", transport["airtime_us"] / 1e6, ()
    for reason, count in (answer.get("refused") or {}).items():
        yield "refused_frames", float(count), (("reason", str(reason)),)
    yield from {"host": _host, "node": _node}.get(answer.get("role", ""), _nothing)(answer)


def _host(answer: Answer) -> Iterator[Sample]:
    nodes = answer["nodes"]
    yield "boards", float(len(nodes)), ()
    yield "boards_active", float(sum(node["active"] for node in nodes)), ()
    for row in answer["history"][-1:]:
        yield "round_seconds", row["seconds"], ()
        yield "round_bytes", float(sum(row["bytes_up"].values())), (("direction", "up"),)
        yield "round_bytes", float(row["bytes_down"]), (("direction", "down"),)
    for name, values in newest_reports(answer["history"]).items():
        labels = (("board", name),) if name else ()
        for key, value in zip(("loss", "accuracy"), values, strict=True):
            if value is not None:
                yield f"board_{key}" if name else f"fleet_{key}", value, labels
    measured = answer.get("metrics") or {}
    same = "convergence_rate", "model_divergence", "communication_overhead", "byzantine_detections"
    yield from _values(measured, dict(zip(same, same, strict=True)))
    doubted: dict[str, int] = {}
    for node in nodes:
        board = ("board", str(node["name"]))
        standing = node["standing"]
        if standing["reason"]:
            doubted[standing["reason"]] = doubted.get(standing["reason"], 0) + 1
        yield "board_samples", float(node["samples"]), (board,)
        yield "board_weight", standing["weight"], (board,)
        if node["heard_s_ago"] is not None:
            yield "board_heard_seconds", node["heard_s_ago"], (board,)
        for key in ("counted", "missed"):
            yield "board_rounds", float(node[f"rounds_{key}"]), (board, ("result", key))
        for key in ("up", "down"):
            yield "board_bytes", float(node[f"bytes_{key}"]), (board, ("direction", key))
    for reason, count in doubted.items():
        yield "boards_doubted", float(count), (("reason", reason),)


def _node(answer: Answer) -> Iterator[Sample]:
    yield from _values(answer, {"samples": "samples"})
    if answer.get("metric") is not None:
        yield "score", answer["metric"], (("metric", str(answer["metric_name"])),)
    for key in ("up", "down"):
        yield "bytes", float(answer[f"bytes_{key}"]), (("direction", key),)
    for entry in answer["history"][-1:]:
        yield from _values(entry, {"loss": "loss"})
    if answer.get("rss_mib") is not None:
        yield "memory_bytes", answer["rss_mib"] * 2**20, ()


def _nothing(_answer: Answer) -> Iterator[Sample]:
    return iter(())


def _values(found: Answer, names: Mapping[str, str]) -> Iterator[Sample]:
    for key, name in names.items():
        if found.get(key) is not None:
            yield name, float(found[key]), ()
