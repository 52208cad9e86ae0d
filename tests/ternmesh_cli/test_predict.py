"""`ternmesh predict` asks the socket of a board."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge.data.sources import Sample
from edge.onnx.session import load_model, write_adapter
from edge.predict.predictor import Predictor
from edge.predict.server import PredictionServer
from models.zoo import fsdd_path, package_path
from ternmesh_cli.main import main
from ternmesh_cli.predict import figures_text
from tests.statuses import predict_status

CONFIG = """
name = "theo"
state_dir = "."
model = "keyword"
[link]
url = "mqtt://127.0.0.1:1"
[data]
path = "unused"
arrays = { features = "x", target = "y" }
where = { speaker = "theo" }
divide_by = 255
"""
CLIPS = 12


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    loaded = load_model(package_path("keyword"))
    write_adapter(tmp_path / "a.onnx_adapter", loaded.package, loaded.initial, 5)
    (tmp_path / "node.toml").write_text(CONFIG + "[predict]\nenabled = true\n")
    np.savez(tmp_path / "clips.npz", x=np.load(fsdd_path("dev"))["x"][:CLIPS])
    return tmp_path


@pytest.fixture
def server(folder: Path) -> Iterator[PredictionServer]:
    loaded = load_model(package_path("keyword"))
    made = PredictionServer(folder / "predict.sock", Predictor(loaded, folder / "a.onnx_adapter"))
    made.start()
    yield made
    made.close()


def test_a_board_says_what_it_thinks_of_each_sample_in_a_file(folder: Path, server, capsys) -> None:
    ask = ["predict", "--config", str(folder / "node.toml"), str(folder / "clips.npz")]
    assert main([*ask, "--json"]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["id"] for answer in answers] == [f"clips.npz:{at}" for at in range(CLIPS)]
    assert (answers[0]["label"], answers[0]["version"], answers[0]["ms"] > 0) == ("zero", 5, True)
    assert main(ask) == 0
    assert capsys.readouterr().out.startswith("clips.npz:0: zero 100.0%, ")
    for name, sentence in (("a.mp3", "it may be .wav, .npy"), ("a.npz", "check that it exists")):
        assert main([*ask[:3], name]) == 1
        assert sentence in capsys.readouterr().err


def test_follow_shows_live_predictions_until_the_node_ends(
    folder: Path, server, capsys: pytest.CaptureFixture[str], eventually
) -> None:
    found: list[str] = []
    arguments = ("--config", str(folder / "node.toml"), "--follow")
    thread = threading.Thread(target=lambda: found.append(str(main(["predict", *arguments]))))
    thread.start()
    eventually(lambda: any(client.asker.follows for client in server.clients))
    server.predict_live([Sample("k1", {"features": np.zeros((50, 32))})])
    eventually(lambda: server.status().live)
    server.close()
    thread.join()
    shown = capsys.readouterr()
    assert shown.out.startswith("k1: ")
    assert "has closed the connection" in shown.err
    assert found == ["1"]


def test_the_text_of_the_figures(server: PredictionServer) -> None:
    assert next(figures_text(server.status())).startswith("0 predictions, by global adapter ")
    status = predict_status(
        count=7, p50_ms=1.25, p99_ms=3.0, max_ms=9.0, version=2, failed=1, refused=2, clients=3,
        clients_dropped=4, live_skipped=5, bad_adapters=6, last_error="it is bad",
        live={"id": "k1", "label": None, "uncertain": True, "top": [["one", 0.4]]},
    )  # fmt: skip
    assert list(figures_text(status)) == [
        "7 predictions, in 1.25 ms (p99 3, longest 9), by global adapter 2; 1 failed, 2 refused; "
        "3 clients",
        "4 clients disconnected: they do not read their answers",
        "5 live samples skipped: they come too fast",
        "6 bad adapters: it is bad",
        "live: k1: uncertain: one 40.0%",
    ]
    wrong = replace(status, live={"id": "k1", "error": "NaN"})
    assert list(figures_text(wrong))[-1] == "live: k1: NaN"
