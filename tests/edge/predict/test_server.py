"""The socket of predictions: batches, limits, clients that misbehave, and figures."""

import json
import socket
import stat
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.data.sources import Sample
from edge.errors import ModelError
from edge.predict import server as module
from edge.predict.server import BATCH_MAX, PredictionServer
from ternmesh_service.control_socket import ControlError
from ternmesh_service.status import to_json
from tests.edge.predict.conftest import Client

GOOD = {"x": [0.5, -1, 0, 1, 2, 3]}


class Gate:
    """Holds the model back until it is opened, and notes the sizes of batches."""

    def __init__(self, server: PredictionServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened, self.reached = threading.Event(), threading.Event()
        self.sizes: list[int] = []
        self.predict = server.predictor.predict
        monkeypatch.setattr(server.predictor, "predict", self)

    def __call__(self, inputs: dict[str, np.ndarray]) -> Any:
        self.sizes.append(len(inputs["x"]))
        self.reached.set()
        if threading.current_thread() is not threading.main_thread():  # which is the source's
            assert self.opened.wait(20.0)
        return self.predict(inputs)


@pytest.fixture
def gate(server: PredictionServer, monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(server, monkeypatch)


def test_a_request_gets_its_answer(client: Client, server: PredictionServer, tmp_path) -> None:
    found = client.ask({"id": "a", "inputs": GOOD})
    assert (found["id"], found["version"], found["uncertain"]) == ("a", 1, False)
    assert found["top"][0][0] == found["label"]
    assert sum(p for _, p in found["top"]) == pytest.approx(1.0, abs=1e-3)
    status = server.status()
    assert (status.count, status.failed, status.refused) == (1, 0, 0)
    assert status.clients == 1
    assert 0 < (status.p50_ms or 0) <= (status.p99_ms or 0) <= (status.max_ms or 0)
    json.dumps(to_json(status))
    assert stat.S_IMODE((tmp_path / "predict.sock").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({"id": 7, "inputs": {"x": [1, 2]}}, "shape"),
        ({"id": 7, "inputs": {"x": [1, 2, 3, 4, 5, float("nan")]}}, "NaN"),
        ({"id": 7, "inputs": {"x": [3e38] * 6}}, "not finite"),
        ({"id": 7, "inputs": {}}, "has the inputs x"),
        ("hello", "no request"),
    ],
)
def test_a_bad_request_gets_a_sentence_and_all_goes_on(content, why, client) -> None:
    found = client.ask(content)
    assert why in found["error"]
    assert found["id"] == (7 if isinstance(content, dict) else None)
    assert client.ask({"inputs": GOOD})["label"]


def test_requests_that_wait_together_are_one_batch(client: Client, gate: Gate) -> None:
    client.send({"id": 0, "inputs": GOOD})
    assert gate.reached.wait(20.0)
    client.send(*({"id": n, "inputs": GOOD} for n in range(1, 20)))
    gate.opened.set()
    assert [client.answer()["id"] for _ in range(20)] == list(range(20))
    assert gate.sizes[:3] == [1, BATCH_MAX, 3]


def test_one_sample_that_the_model_cannot_take_does_not_fail_the_others(
    client: Client, server: PredictionServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict = server.predictor.predict

    def picky(inputs: dict[str, np.ndarray]) -> Any:
        if (inputs["x"] == 9).any():
            raise ModelError("an index is out of range")
        if (inputs["x"] == 8).any():
            raise ZeroDivisionError
        return predict(inputs)

    monkeypatch.setattr(server.predictor, "predict", picky)
    client.send(*({"id": n, "inputs": {"x": [n] * 6}} for n in range(6, 12)))
    found = [client.answer() for _ in range(6)]
    assert ["error" in one for one in found] == [False, False, True, True, False, False]
    assert found[3]["error"] == "an index is out of range"


def test_beyond_the_queue_the_answer_is_busy(client, server, gate, tmp_path) -> None:
    share = module.QUEUE_MAX // module.SHARE
    client.send({"id": -1, "inputs": GOOD})
    assert gate.reached.wait(20.0)
    client.send(*({"id": n, "inputs": GOOD} for n in range(share + 5)))
    with Client(tmp_path / "predict.sock") as other:  # has its own share
        other.send({"id": "other", "inputs": GOOD})
        gate.opened.set()
        assert "label" in other.answer()
    found = [client.answer() for _ in range(share + 6)]
    busy = [one["id"] for one in found if one.get("busy")]
    assert busy == list(range(share, share + 5))
    assert {one["id"] for one in found} == set(range(-1, share + 5))
    assert server.status().refused == len(busy)


def test_a_client_that_does_not_read_is_disconnected_and_read_no_more(
    client: Client, server: PredictionServer, monkeypatch: pytest.MonkeyPatch, eventually, tmp_path
) -> None:
    monkeypatch.setattr(module, "OUT_MAX", 1000)
    with Client(tmp_path / "predict.sock") as lazy:
        lazy.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        with suppress(OSError):  # it is disconnected
            lazy.socket.sendall(b"\n" * 150_000)
        eventually(lambda: server.status().clients_dropped == 1)
        assert client.ask({"inputs": GOOD})["label"]
    assert server.status().refused < 20_000


def test_a_line_without_end_is_refused_and_the_last_needs_none(client, server, tmp_path) -> None:
    client.socket.sendall(b"x" * (server.line_max + 1))
    assert "more than" in client.answer()["error"]
    assert client.lines.readline() == b""
    with Client(tmp_path / "predict.sock") as other:
        other.send({"id": 1, "inputs": GOOD})
        other.socket.sendall(json.dumps({"id": 2, "inputs": GOOD}).encode())
        other.socket.shutdown(socket.SHUT_WR)
        assert [json.loads(line)["id"] for line in other.lines] == [1, 2]


def test_a_client_that_goes_away_costs_nobody_an_answer(
    client: Client, server: PredictionServer, gate: Gate, tmp_path: Path, eventually
) -> None:
    with Client(tmp_path / "predict.sock") as hasty:
        hasty.send({"id": 1, "inputs": GOOD})
        assert gate.reached.wait(20.0)
    client.send({"id": 2, "inputs": GOOD})
    gate.opened.set()
    assert client.answer()["label"]
    eventually(lambda: server.status().clients == 1)


def test_there_is_a_most_of_clients(client: Client, server: PredictionServer, tmp_path) -> None:
    path = tmp_path / "predict.sock"
    others = [Client(path) for _ in range(module.CLIENTS_MAX)]
    last = others.pop()
    assert last.lines.read() == b""
    for other in others:
        assert other.ask({"inputs": GOOD})["label"]
        other.close()
    assert server.status().clients_refused == 1


def test_followers_get_live_predictions(client: Client, server: PredictionServer) -> None:
    published: list[Any] = []
    server.on_live = published.append
    assert client.ask({"id": 1, "follow": True}) == {"id": 1, "follow": True}
    sample = Sample("k1", {"x": np.array(GOOD["x"], np.float32)})
    certainties = server.predict_live([sample, Sample("k2", {"x": np.full(6, np.nan)})])
    odd: Any = [Sample("k3", 5), Sample("k4", {"x": object()})]  # type: ignore[arg-type, dict-item]
    server.predict_live(odd)
    by_key = {one["id"]: one for one in (client.answer() for _ in range(4))}
    assert all("error" in by_key[key] for key in ("k3", "k4"))
    assert by_key["k1"]["live"] is True
    assert certainties == {"k1": pytest.approx(by_key["k1"]["top"][0][1], abs=1e-4)}
    assert "NaN" in by_key["k2"]["error"]
    assert {one["id"] for one in published} == set(by_key)
    assert (server.status().live or {})["id"] in by_key
    assert client.ask({"follow": False})["follow"] is False
    server.predict_live([sample])
    assert client.ask({"id": "next", "inputs": GOOD})["id"] == "next"


def test_a_socket_has_one_server_and_close_disconnects_and_removes_it(
    server: PredictionServer, client: Client, tmp_path: Path
) -> None:
    with pytest.raises(ControlError, match="another process answers"):
        PredictionServer(tmp_path / "predict.sock", server.predictor).start()
    server.close()
    assert client.lines.readline() == b""
    assert not (tmp_path / "predict.sock").exists()
