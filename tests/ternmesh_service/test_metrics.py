"""Metrics: what a scrape gets of a status, over HTTP, and what a wrong setting says."""

import http.client
import socket
import threading
import urllib.request
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ternmesh_service import metrics
from ternmesh_service.control_socket import ControlServer
from ternmesh_service.metrics import METRICS, PREFIX, MetricsConfig, samples, served_metrics
from ternmesh_service.status import HistoryEntry, WordsStatus, to_json
from tests.mosquitto import free_port
from tests.statuses import (
    DOWN,
    UP,
    VOTERS,
    board,
    board_status,
    gateway_status,
    host_status,
    made_round,
    source_status,
)

BOARD = board(
    'a"da\n<b>', weight=0.25, reason="raises the error", samples=40, bytes_up=900, bytes_down=1000
)
ROUND = replace(
    made_round(7, ["a", "b"]),
    seconds=3.5,
    bytes_up={"a": 3, "b": 4},
    loss=0.5,
    accuracy=0.75,
    reports={"ada": (0.25, None), "bob": (0.75, 0.875)},
)
HOST = host_status(
    [],
    nodes=(BOARD,),
    history=(ROUND, replace(ROUND, loss=None, accuracy=None, seconds=4.5, reports={})),
    refused={"seal": 3},
    transport=replace(UP, airtime_us=1_500_000),
    agreement=VOTERS,
)
ENTRY = HistoryEntry(version=7, metric=0.5, loss=0.25, bytes_up=1, bytes_down=1, seconds=1.0)
WORDS = WordsStatus(hours=2.0, heard=9, right=3, false=1, missed=1)
OWN = board_status(
    source=source_status(words=WORDS), samples=12, metric=0.5, history=(ENTRY,), transport=DOWN
)


def scraped(port: int) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    return {
        (sample.name.removeprefix(PREFIX), tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def serve(tmp_path):
    config, path = MetricsConfig(free_port()), tmp_path / "control.sock"

    def start(answer):
        with ControlServer(path, lambda _request: to_json(answer)), served_metrics(config, path):
            return scraped(config.port)

    return start


def test_a_host_tells_of_its_fleet(serve) -> None:
    found = serve(HOST)
    assert found["voters_missing", ()] == 1
    assert found["consensus_latency_seconds", (("of", "p95"),)] == 0.75
    board = ("board", BOARD.name)
    assert found["fleet_accuracy", ()] == 0.75, "of the newest round with reports"
    assert found["board_loss", (("board", "ada"),)] == 0.25
    assert found["board_accuracy", (("board", "bob"),)] == 0.875
    assert ("board_accuracy", (("board", "ada"),)) not in found, "ada has not reported it"
    assert found["model_divergence", ()] == 0.3
    assert found["round_seconds", ()] == 4.5
    assert found["round_bytes", (("direction", "up"),)] == 7
    assert found["board_weight", (board,)] == 0.25, "also of a hostile name"
    assert found["board_bytes_total", (board, ("direction", "up"))] == 900
    assert found["board_rounds_total", (board, ("result", "missed"))] == 1
    assert found["boards_doubted", (("reason", "raises the error"),)] == 1
    assert found["refused_frames_total", (("reason", "seal"),)] == 3
    assert found["airtime_seconds_total", ()] == 1.5
    about = {"role": "host", "software": "0.1.0", "model": "keyword", "fleet": "demo"}
    assert found["info", tuple(sorted({**about, "run": "00ff00ff"}.items()))] == 1


def test_a_node_tells_of_itself(serve) -> None:
    found = serve(OWN)
    assert found["score", (("metric", "accuracy"),)] == 0.5
    assert found["loss", ()] == 0.25
    assert (found["words_recall", ()], found["words_false_per_hour", ()]) == (0.75, 0.5)
    assert found["memory_bytes", ()] == 100 * 2**20
    assert found["connected", ()] == 0
    assert found["bytes_total", (("direction", "down"),)] == 678


def test_all_metrics_are_known_and_described(serve) -> None:
    names = {name for answer in (HOST, OWN) for name, *_ in samples(answer)}
    assert names == set(METRICS)


def test_a_gateway_tells_what_all_have() -> None:
    assert [name for name, *_ in samples(gateway_status())] == ["info", "connected"]


def test_a_process_that_does_not_answer_has_no_metrics(tmp_path, serve) -> None:
    config = MetricsConfig(free_port())
    with served_metrics(config, tmp_path / "none.sock"):
        assert scraped(config.port) == {}
    with pytest.raises((ConnectionError, OSError, http.client.HTTPException)):
        scraped(config.port)


def test_clients_that_hang_keep_no_scrape_away(tmp_path, caplog, capfd) -> None:
    config, path, asked = MetricsConfig(free_port()), tmp_path / "control.sock", []
    before = threading.active_count()  # of other tests in this process

    def answer(request: Any) -> Any:
        asked.append(request)
        return to_json(HOST)

    with ControlServer(path, answer), served_metrics(config, path), ExitStack() as stack:
        for _ in range(3 * metrics.CLIENTS_MAX):
            client = stack.enter_context(socket.create_connection((config.address, config.port)))
            client.sendall(b"GET /metrics HT")
        answers = [scraped(config.port) for _ in range(3)]
        assert all(answers)
        assert threading.active_count() - before < 3 * metrics.CLIENTS_MAX
    assert len(asked) == 1, "scrapes that come together cost one status"
    assert capfd.readouterr().err == ""
    assert not caplog.records


def test_a_client_that_stops_in_a_request_is_left(serve, tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.setattr(metrics, "CLIENT_S", 0.2)
    config = MetricsConfig(free_port())
    with (
        served_metrics(config, tmp_path / "none.sock"),
        socket.create_connection((config.address, config.port), 10) as client,
    ):
        client.sendall(b"GET /metrics HT")
        assert client.recv(1) == b""
    assert capfd.readouterr().err == ""
