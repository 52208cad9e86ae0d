"""`ternmesh data` and `ternmesh label`, with a node that runs and one that does not."""

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.config import DataConfig, read_node_config
from edge.data.buffer import ReplayBuffer
from edge.data.gate import aside_status
from edge.data.labels import answer_data
from edge.data.node_data import NodeData, open_files
from edge.data.sources import Label, Sample
from edge.errors import DataError
from ternmesh_cli.main import main
from ternmesh_service.config_file import load_model_package
from ternmesh_service.control_socket import ControlServer
from ternmesh_store.state_file import StateFile

CONFIG = """
name = "ada"
state_dir = "state"
model = "keyword"
[link]
url = "mqtt://127.0.0.1:1"
[data]
source = "sensors:Sensor"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Of a stopped node with three waiting samples and a labelled one."""
    path = tmp_path / "node.toml"
    path.write_text(CONFIG)
    with opened(path) as buffer:
        clips = [Sample(key, {"features": np.eye(50, 32)}) for key in ("a", "b", "c", "d")]
        buffer.add([*clips, Label("a", {"target": np.array(3)})])
    return path


@contextmanager
def opened(config: Path) -> Iterator[ReplayBuffer]:
    state = StateFile(config.parent / "state")
    state.open()
    buffer = ReplayBuffer(state, load_model_package("keyword"), 100, 1 << 20)
    buffer.load()
    yield buffer
    state.close()


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def listed(config: Path, capsys: Any) -> dict[str | None, int]:
    capsys.readouterr()
    assert run("data", "list", "--config", config, "--json") == 0
    return {group["label"]: group["samples"] for group in json.loads(capsys.readouterr().out)}


def test_a_list_of_what_is_stored(config, capsys) -> None:
    assert run("data", "list", "--config", config) == 0
    head, waiting, three = capsys.readouterr().out.splitlines()
    assert " ".join(head.split()) == "label samples bytes newest its age age of the oldest"
    assert waiting.split()[:4] == ["(none)", "3", "19200", "'d'"]
    assert three.split()[:4] == ["three", "1", "6408", "'a'"]


def test_a_running_node_is_asked(config, capsys) -> None:
    with opened(config) as buffer:
        socket = config.parent / "state" / "control.sock"
        answers = [answer_data(buffer, {"data": "list"})]
        with ControlServer(socket, lambda _: answers[0]):
            assert listed(config, capsys) == {None: 3, "three": 1}
            answers[0] = {"error": "the samples of this node are files"}
            assert run("data", "list", "--config", config) == 1
            assert "are files" in capsys.readouterr().err
            answers[0] = {"role": "host"}
            assert run("data", "list", "--config", config) == 1
            assert "no board of this version" in capsys.readouterr().err


def test_labels_of_scripts(config, capsys) -> None:
    assert run("label", "--config", config, "--last", "7") == 0
    assert run("label", "--config", config, "a", "7") == 0
    assert capsys.readouterr().out == "'d' is 7\n'a' is 7\n"
    assert run("label", "--config", config, "gone", "7") == 1
    assert "no sample has this key now: check it" in capsys.readouterr().out
    assert run("label", "--config", config, "\udcff", "7") == 1
    assert r"of UTF-8, not '\udcff'" in capsys.readouterr().err
    assert run("label", "--config", config, "b", "ten") == 1
    assert "'ten' is no label of keyword: it has zero, one" in capsys.readouterr().err
    assert listed(config, capsys) == {None: 2, "seven": 2}


@pytest.mark.parametrize(
    ("arguments", "code", "left"),
    [
        (["--key", "a"], 0, {None: 3}),
        (["--label", "3"], 0, {None: 3}),
        (["--unlabelled"], 0, {"three": 1}),
        (["--older-than", "30d"], 0, {None: 3, "three": 1}),
        (["--unlabelled", "--key", "b"], 0, {None: 2, "three": 1}),
        (["--all", "--yes"], 0, {}),
        (["--key", "\udcff"], 1, {None: 3, "three": 1}),
        (["--key", "gone"], 1, {None: 3, "three": 1}),
        (["--label", "x"], 1, {None: 3, "three": 1}),
    ],
)
def test_forget(config, capsys, arguments, code, left) -> None:
    assert run("data", "forget", "--config", config, *arguments) == code
    assert listed(config, capsys) == left


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 1)])
def test_all_is_asked_for_at_a_terminal(config, capsys, monkeypatch, answer, code) -> None:
    terminal = io.StringIO(f"{answer}\n")
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", terminal)
    assert run("data", "forget", "--config", config, "--all") == code
    assert (listed(config, capsys) == {}) == (code == 0)


def test_a_board_without_data_of_its_own_imports_some(tmp_path, capsys) -> None:
    path = tmp_path / "node.toml"
    path.write_text(CONFIG.partition("[data]")[0])
    config, package = read_node_config(path), load_model_package("keyword")
    with pytest.raises(DataError, match=r"data needs path .* or import samples: `ternmesh import`"):
        open_files(config, package)
    for number in range(4):
        (tmp_path / "clips" / "one").mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / "clips" / "one" / f"{number}.npy", np.full((50, 32), number / 4))
    for share in (0, 1, "nan"):
        with pytest.raises(SystemExit):
            run("import", tmp_path / "clips", "--config", path, "--held-out", share)
    assert "'nan' must be a number of 0.01 to 0.99" in capsys.readouterr().err
    np.save(tmp_path / "clips" / "eleven.npy", np.ones((50, 32)))
    assert run("import", tmp_path / "clips", "--config", path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["first"].keys() == {"without a label"}
    assert run("import", tmp_path / "clips", "--config", path) == 0
    assert "3 samples to train on, 1 held out" in capsys.readouterr().out
    assert [len(part or ()) for part in open_files(config, package)[:2]] == [1, 3]


@pytest.mark.parametrize("content", [b"", b"text", None])
def test_a_damaged_import_is_set_aside_beside_a_source(config, capsys, caplog, content) -> None:
    history, package = config.parent / "state" / "history", load_model_package("keyword")
    history.mkdir()
    for name in ("train.npz", "held_out.npz"):
        np.savez(history / name, features=np.full((2, 50, 32), np.nan), target=[1, 2])
        if content is not None:
            (history / name).write_bytes(content)
    settings = read_node_config(config)
    held_out, files, damaged = open_files(settings, package)
    assert (held_out, files, aside_status(damaged).amount()) == (None, None, "2 files")
    assert caplog.text.count("(`ternmesh import` wrote it: import again, or delete it)") == 2
    with opened(config) as buffer:
        assert NodeData(buffer, damaged=damaged).aside() == aside_status(damaged)
    named = replace(settings, data=replace(settings.data, path=str(history)))
    assert open_files(named, package)[2].files == 2
    np.savez(history / "good.npz", features=np.zeros((2, 50, 32)), target=[1, 2])
    few = r"holds 2 samples, and (2 files|4 samples) are set aside, such as .*train.npz"
    for path, why in ((str(history), few), (None, r"what was imported: .*import again")):
        with pytest.raises(DataError, match=why):
            open_files(replace(settings, data=DataConfig(path=path)), package)
