"""Rounds in event files of TensorBoard and in MLflow, read back with their own libraries."""

import logging
import socket
import struct
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ternmesh.config import ConfigError
from ternmesh_service import experiment_log
from ternmesh_service.control_socket import ControlServer
from ternmesh_service.experiment_log import (
    BOARDS_MAX,
    MLFLOW,
    ExperimentLogConfig,
    rows,
    written_logs,
)
from ternmesh_service.status import HostStatus, to_json
from ternmesh_store.files import replace_file
from tests.statuses import host_status

Points = dict[str, list[tuple[int, float]]]
EVERY_S = 0.01


def status_of(versions: int, run: str = "00ff", boards: int = 2) -> HostStatus:
    names = [f"board-{index:03}" for index in range(boards)]
    shown = host_status(names, versions, run=run)
    return replace(
        shown,
        metrics=replace(
            shown.metrics,
            convergence_rate=0.25,
            model_divergence=None,
            communication_overhead=None,
            round_latency_s=None,
            byzantine_detections=0,
        ),
        history=tuple(
            replace(
                row,
                loss=1 / row.version,
                accuracy=None,
                seconds=2.5,
                bytes_up={"board-000": 3, "board-001": 4},
                bytes_down=9,
                reports=dict.fromkeys(names, (0.5, 0.25)),
            )
            for row in shown.history
        ),
    )


class Host:
    """A control socket with a status that tests change."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.status = status_of(0)
        self.asked = 0  # how often a status was given
        self.taken = 0  # the version up to which the one observer has taken the rounds

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        self.asked += 1
        self.taken = request["since"]
        new = tuple(row for row in self.status.history if row.version > request["since"])
        return to_json(replace(self.status, history=new))


@pytest.fixture
def host(tmp_path) -> Iterator[Host]:
    made = Host(tmp_path / "control.sock")
    with ControlServer(made.socket, made.answer):
        yield made


@pytest.fixture
def tensorboard(tmp_path) -> ExperimentLogConfig:
    pytest.importorskip("tensorboardX", reason="pip install 'ternmesh[tensorboard]'")
    return ExperimentLogConfig(tensorboard=str(tmp_path / "events"))


@pytest.fixture
def mlflow(monkeypatch) -> Callable[[str], ExperimentLogConfig]:
    pytest.importorskip("mlflow", reason="pip install 'ternmesh[mlflow]'")
    forget(monkeypatch)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return lambda uri: ExperimentLogConfig(mlflow=uri)


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take back after the test what `written_logs` sets in the environment."""
    for name in MLFLOW:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def shown(config: ExperimentLogConfig, run: str = "00ff") -> Points:
    """What TensorBoard shows of a run: a start takes back the steps from its own on."""
    from tensorboardX.proto.event_pb2 import Event, SessionLog
    from tensorboardX.record_writer import masked_crc32c

    points: Points = defaultdict(list)
    for path in sorted(Path(config.tensorboard, run).glob("*tfevents*")):
        data = path.read_bytes()
        while data:
            (size,) = struct.unpack("Q", data[:8])
            assert struct.unpack("I", data[12 + size : 16 + size])[0] == masked_crc32c(
                data[12 : 12 + size]
            )
            event, data = Event.FromString(data[12 : 12 + size]), data[16 + size :]
            if event.session_log.status == SessionLog.START:
                for tag, found in points.items():
                    points[tag] = [point for point in found if point[0] < event.step]
            for value in event.summary.value:
                points[value.tag].append((event.step, value.simple_value))
    return points


def logged(uri: object, run: str = "00ff") -> tuple[Points, str]:
    """The points of a run on MLflow, and its state."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=str(uri))
    place = client.get_experiment_by_name("ternmesh")
    found = client.search_runs([place.experiment_id], f"tags.`ternmesh.run` = '{run}'")
    assert len(found) <= 1, "a run of the fleet is one run"
    points = {
        key: [(p.step, p.value) for p in client.get_metric_history(one.info.run_id, key)]
        for one in found
        for key in one.data.metrics
    }
    return points, found[0].info.status if found else ""


def steps(points: Points, tag: str = "round/seconds") -> list[int]:
    return [step for step, _ in points.get(tag, [])]


def test_a_round_has_the_values_of_the_fleet_and_of_its_boards() -> None:
    first, (version, values) = rows(status_of(2))
    assert version == 2
    assert values == {
        "fleet/loss": 0.5, "fleet/convergence_rate": 0.25, "round/seconds": 2.5,
        "fleet/byzantine_detections": 0.0,
        "round/bytes_up": 7, "round/bytes_down": 9,
        "board/board-000/loss": 0.5, "board/board-000/accuracy": 0.25,
        "board/board-001/loss": 0.5, "board/board-001/accuracy": 0.25,
    }  # fmt: skip
    assert "fleet/convergence_rate" not in first[1], "it is of the newest round"
    ((_, values),) = rows(status_of(1, boards=BOARDS_MAX + 20))
    assert sum(key.startswith("board/") for key in values) == 2 * BOARDS_MAX


def test_tensorboard_has_each_round_once_also_after_a_restart(host, tensorboard, eventually):
    for versions in (2, 3):
        host.status = status_of(versions)
        with written_logs(tensorboard, host.socket, EVERY_S):
            eventually(lambda n=versions: host.taken == n)
            host.status = status_of(versions + 1)
            eventually(lambda n=versions: host.taken == n + 1)
    assert shown(tensorboard)["round/seconds"] == [(step, 2.5) for step in (1, 2, 3, 4)]
    assert shown(tensorboard)["board/board-001/accuracy"][0] == (1, 0.25)
    with written_logs(tensorboard, host.socket, EVERY_S):
        host.status = status_of(2, run="0a0a")
        eventually(lambda: host.taken == 2)
    assert steps(shown(tensorboard, "0a0a")) == [1, 2], "a new run has a folder, with all of it"


def test_a_full_disk_delays_rounds_and_repeats_none(
    host, tensorboard, eventually, monkeypatch, caplog
) -> None:
    write, failed = replace_file, threading.Event()

    def write_late(path: Path, content: bytes) -> None:
        if content == b"2" and not failed.is_set():
            failed.set()
            raise OSError(28, "no space left")
        write(path, content)

    monkeypatch.setattr(experiment_log, "replace_file", write_late)
    with written_logs(tensorboard, host.socket, EVERY_S):
        for versions in (1, 2, 3):
            host.status = status_of(versions)
            eventually(lambda n=versions: host.taken == n)
    assert failed.is_set()
    assert "no space left" in caplog.text
    assert steps(shown(tensorboard)) == [1, 2, 3]


def test_mlflow_goes_on_with_the_run_that_it_has(host, mlflow, eventually, tmp_path) -> None:
    from mlflow import MlflowClient

    uri = (tmp_path / "runs").as_uri()
    for versions in (2, 3):
        host.status = status_of(versions)
        with written_logs(mlflow(uri), host.socket, EVERY_S):
            eventually(lambda n=versions: host.taken == n)
        client = MlflowClient(tracking_uri=uri)
        place = client.get_experiment_by_name("ternmesh").experiment_id
        client.update_run(client.search_runs([place])[0].info.run_id, name="mine")
    points, state = logged(uri)
    assert points["round/seconds"] == [(step, 2.5) for step in (1, 2, 3)]
    assert points["fleet/convergence_rate"] == [(2, 0.25), (3, 0.25)]
    assert state == "RUNNING"
    host.status = replace(status_of(4), phase="finished")
    with written_logs(mlflow(uri), host.socket, EVERY_S):
        eventually(lambda: host.taken == 4)
        host.status = status_of(5, run="0a0a")
        eventually(lambda: host.taken == 5)
    points, state = logged(uri)
    assert (steps(points), state) == ([1, 2, 3, 4], "FINISHED")
    assert steps(logged(uri, "0a0a")[0]) == [1, 2, 3, 4, 5]


def test_a_server_whose_answers_are_lost_gets_each_round_once(
    host, mlflow, tensorboard, eventually, tmp_path, monkeypatch, caplog
) -> None:
    from mlflow import MlflowClient

    calls: list[str] = []

    def lose_first_answer(name: str) -> None:
        call = getattr(MlflowClient, name)

        def losing(*arguments: Any, **options: Any) -> Any:
            answer = call(*arguments, **options)
            calls.append(name)
            if calls.count(name) == 1:
                raise OSError("connection refused")
            return answer

        monkeypatch.setattr(MlflowClient, name, losing)

    for name in ("get_experiment_by_name", "create_run", "log_batch"):
        lose_first_answer(name)
    uri = (tmp_path / "runs").as_uri()
    both = ExperimentLogConfig(tensorboard=tensorboard.tensorboard, mlflow=uri)
    host.status = status_of(3)
    with caplog.at_level(logging.WARNING), written_logs(both, host.socket, EVERY_S):
        eventually(lambda: calls.count("log_batch") == 3 and host.taken == 3)
    assert calls.count("create_run") == 1
    refused = [text for text in caplog.messages if "MLflow does not take the rounds" in text]
    assert len(refused) == 1, "once for each text"
    assert steps(logged(uri)[0]) == steps(shown(tensorboard)) == [1, 2, 3]


def test_the_end_does_not_wait_for_a_server_that_says_nothing(host, mlflow, eventually) -> None:
    host.status = status_of(1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        config = mlflow(f"http://127.0.0.1:{silent.getsockname()[1]}")
        with written_logs(config, host.socket, EVERY_S):
            client, _ = silent.accept()  # a request waits for its answer
        client.close()
    assert "observer" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"tensorboard": "x"}, r"experiment_log\.tensorboard .*ternmesh\[tensorboard\]"),
        ({"mlflow": "x"}, r"experiment_log\.mlflow .*ternmesh\[mlflow\]"),
        ({"mlflow": "https://ann:secret@example.org/x"}, "MLFLOW_TRACKING_PASSWORD"),
        ({}, None),
    ],
)
def test_without_the_packages_only_no_log_at_all_works(
    monkeypatch, tmp_path, config, sentence
) -> None:
    for package in ("tensorboardX", "mlflow"):
        monkeypatch.setitem(sys.modules, package, None)
    forget(monkeypatch)
    written = written_logs(ExperimentLogConfig(**config), tmp_path / "none.sock")
    if sentence is None:
        with written:
            assert "observer" not in [thread.name for thread in threading.enumerate()]
        return
    with pytest.raises(ConfigError, match=sentence) as caught, written:
        pass
    assert "secret" not in str(caught.value)
