"""A node as a process of its own, over a real broker, with a host in this process."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edge.config import DataConfig, EvaluateConfig, ReleasesConfig
from edge.data.sources import Sample
from edge.errors import DataError
from edge.onnx.session import LoadedModel, adapter_version
from edge.service import run_node
from models.zoo import fsdd_path, package_path
from ternmesh_service.control_socket import ControlError, ask
from tests.edge.fleet import Host, board_config, new_plan, running
from transports.mqtt.settings import MqttSettings
from transports.mqtt.transport import MqttTransport

ROUNDS = 8
RUN = "import sys; from ternmesh_cli.main import main; sys.exit(main(sys.argv[1:]))"


def write_config(folder: Path, url: str, tiny: LoadedModel) -> Path:
    path = folder / "node.toml"
    path.write_text(
        f'name = "ada"\nstate_dir = "state"\nmodel = "{tiny.folder}"\n'
        f'[link]\nurl = "{url}"\n[data]\npath = "ada.npz"\n[training]\nsamples_min = 8\n'
    )
    return path


@contextmanager
def node_process(config: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", RUN, "node", "--insecure", "--config", str(config)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def status_of(config: Path) -> Any:
    try:
        return ask(config.parent / "state" / "control.sock", {"command": "status"})
    except ControlError:
        return None


@pytest.mark.nightly
def test_kill_9_in_mid_run_and_a_clean_end(mosquitto, tiny, tiny_data, tmp_path, eventually):
    np.savez(tmp_path / "ada.npz", **tiny_data)
    config = write_config(tmp_path, mosquitto.url, tiny)
    end = MqttTransport(MqttSettings(mosquitto.url, "ternmesh", "host"))
    host = Host(tiny, end, time.monotonic, new_plan(ROUNDS, 4, announce_s=1))

    def reached(version: int) -> bool:
        host.turn(0.05)
        return host.protocol.version >= version

    with closing(end), node_process(config) as process:
        eventually(lambda: reached(3))
        process.send_signal(signal.SIGKILL)
        process.wait()
        with node_process(config) as process:
            eventually(lambda: reached(ROUNDS))
            eventually(
                lambda: reached(ROUNDS) and (status_of(config) or {}).get("phase") == "finished"
            )
            answer = status_of(config)
            assert (answer["activity"], answer["version"]) == ("finished", ROUNDS)
            assert answer["transport"]["connected"]
            assert [entry["version"] for entry in answer["history"]][-1] == ROUNDS
            assert host.counted.total() == ROUNDS
            libraries = Path(f"/proc/{process.pid}/maps").read_text()
            assert "onnxruntime" in libraries
            assert "torch" not in libraries
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
    assert adapter_version(tmp_path / "state" / "current.onnx_adapter") == ROUNDS
    assert not (tmp_path / "state" / "control.sock").exists()


class Recordings:
    """A few recordings, once, without labels."""

    def poll(self, now: float) -> list[Sample]:
        with np.load(fsdd_path("train")) as data:
            return [Sample(str(n), {"features": x}) for n, x in enumerate(data["x"][:20] / 255)]


def test_a_page_for_labels_is_answered_while_the_node_runs(
    tiny, tmp_path, eventually, monkeypatch
) -> None:
    monkeypatch.setitem(sys.modules, "sensors", SimpleNamespace(Recordings=Recordings))
    clips: dict[str, Any] = {"arrays": {"features": "x", "target": "y"}, "divide_by": 255}
    config = replace(
        board_config(tmp_path, package_path("keyword")),
        data=DataConfig(source="sensors:Recordings"),
        evaluate=EvaluateConfig(path=str(fsdd_path("dev")), samples_max=250, **clips),
    )
    socket = tmp_path / "state" / "control.sock"

    def asked(what: str, **values: Any) -> Any:
        return ask(socket, {"data": what, **values})["data"]

    with running(config) as thread:
        eventually(lambda: (status_of(tmp_path / "node.toml") or {}).get("source"))
        eventually(lambda: asked("queue")["waiting"] == 20)
        queue = asked("queue", limit=3)
        assert (queue["held_out"], queue["score"], len(queue["rows"])) == (250, None, 3)
        keys = [row["key"] for row in queue["rows"]]
        assert asked("label", keys=keys, label="seven")["labelled"] == 3
        assert {row["label"] for row in asked("labelled")["rows"]} == {"seven"}
        found = asked("worst")
        assert (found["samples"], found["of"]) == (3, 3)
        assert asked("unlabel", keys=keys)["unlabelled"] == 3
        with pytest.raises(ControlError, match="no sample has the key 'x'"):
            asked("unlabel", keys=["x"])
        assert thread.is_alive()


def test_a_releases_folder_that_fails_does_not_end_a_node(
    tiny, tiny_data, tmp_path, eventually, caplog
):
    """A stick that was pulled out: its folder is something else now."""
    np.savez(tmp_path / "ada.npz", **tiny_data)
    folder = tmp_path / "releases"
    chosen = ReleasesConfig(dir=str(folder), insecure=True)
    with running(replace(board_config(tmp_path, tiny.folder), releases=chosen)) as thread:
        eventually(lambda: status_of(tmp_path / "node.toml") is not None)
        answer = status_of(tmp_path / "node.toml")
        assert (answer["activity"], answer["joined"]) == ("joining", False)
        assert answer["transport"]["connected"] is False, "there is no broker"
        folder.rename(tmp_path / "away")
        folder.write_bytes(b"")
        assert ask(tmp_path / "state" / "control.sock", {"installed": "survey"}) == {"waits": False}
        assert "no new release can be seen" in caplog.text
        assert status_of(tmp_path / "node.toml")["releases"]["current"] == 0
        assert thread.is_alive()


def test_too_little_data_is_a_sentence_before_anything_runs(tiny, tiny_data, tmp_path):
    np.savez(tmp_path / "ada.npz", **{name: array[:7] for name, array in tiny_data.items()})
    config, stop = board_config(tmp_path, tiny.folder), threading.Event()
    stop.set()  # where it is not refused, it ends at once
    with pytest.raises(DataError, match=r"holds 7 samples: training\.samples_min is 8"):
        run_node(config, stop, insecure=True)
    with pytest.raises(DataError, match="data needs path"):
        run_node(replace(config, data=DataConfig()), stop, insecure=True)
    assert not (tmp_path / "state" / "control.sock").exists()
