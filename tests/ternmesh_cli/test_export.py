"""`ternmesh export` of a host and of a board, which run or are stopped."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from edge.onnx.session import LoadedModel, load_model, write_adapter
from models.zoo import package_path
from ternmesh.codec.scale import to_float
from ternmesh.federated.events import GlobalUpdateMade
from ternmesh.plan import make_plan
from ternmesh.wire.global_update import certify, hash_global_update
from ternmesh_cli.main import main
from ternmesh_service.backup import answer_backup
from ternmesh_service.control_socket import ControlServer, Relay
from ternmesh_store.host_store import HostStore
from ternmesh_store.state_file import StateFile

HOST = 'state_dir = "state"\nmodel = "keyword"\n[link]\nurl = "mqtt://127.0.0.1:1883"\n'
NODE = f'name = "ada"\n{HOST}[data]\npath = "clips"\n'


@pytest.fixture(scope="module")
def keyword() -> LoadedModel:
    return load_model(package_path("keyword"))


def learned_state(folder: Path, loaded: LoadedModel) -> np.ndarray:
    """A host's state with a global update; returns its global adapter."""
    file = StateFile(folder)
    file.open()
    size = loaded.package.dimension
    plan = make_plan(size, rounds=3, local_steps=1, learning_rate=0.1)
    store = HostStore(file)
    store.begin(b"run-0001", plan, loaded.package.model_hash())
    model_q24 = np.arange(size, dtype=np.int32)
    residual = np.zeros(size, np.float32)
    made = GlobalUpdateMade(
        1, hash_global_update(b"step"), certify(b"step"), model_q24, residual, (), (), False
    )
    store.record(made)
    store.commit()
    file.close()
    return loaded.initial + to_float(model_q24)


@pytest.mark.parametrize("runs", [False, True], ids=["stopped", "running"])
def test_the_host(runs: bool, keyword: LoadedModel, tmp_path: Path, capsys) -> None:
    (tmp_path / "host.toml").write_text(HOST)
    state = tmp_path / "state"
    arguments = ["export", "--config", str(tmp_path / "host.toml"), "--out"]
    state.mkdir()
    assert main([*arguments, str(tmp_path / "early")]) == 1
    assert "the host has not run yet" in capsys.readouterr().err
    expected = learned_state(state, keyword)
    with ExitStack() as stack:
        if runs:
            file = StateFile(state)
            file.open()
            stack.callback(file.close)
            relay = Relay()
            stack.enter_context(ControlServer(state / "control.sock", relay.ask))
            pool = stack.enter_context(ThreadPoolExecutor(1))
            export = pool.submit(main, [*arguments, str(tmp_path / "out")])
            while not export.done():
                relay.serve(lambda request: answer_backup(file, state / "identity", request))
            assert export.result() == 0
        else:
            assert main([*arguments, str(tmp_path / "out")]) == 0
    assert "global update 1" in capsys.readouterr().out
    assert np.array_equal(load_model(tmp_path / "out" / "keyword").initial, expected)
    assert not list(state.glob("export-*")), "the copy of the state is gone"
    assert main([*arguments, str(tmp_path / "out")]) == 1


def test_a_board(keyword: LoadedModel, tmp_path: Path, capsys) -> None:
    (tmp_path / "node.toml").write_text(NODE)
    (tmp_path / "state").mkdir()
    arguments = ["export", "--config", str(tmp_path / "node.toml"), "--out"]
    assert main([*arguments, str(tmp_path / "out")]) == 1
    assert "ada has not run yet" in capsys.readouterr().err
    rng = np.random.default_rng(0)
    vector = rng.standard_normal(keyword.package.dimension).astype(np.float32)
    write_adapter(tmp_path / "state" / "current.onnx_adapter", keyword.package, vector, 4)
    assert main([*arguments, str(tmp_path / "out")]) == 0
    assert np.array_equal(load_model(tmp_path / "out" / "keyword").initial, vector)


def test_a_lora_goes_out_to_peft_and_comes_back(keyword: LoadedModel, tmp_path, capsys) -> None:
    (tmp_path / "host.toml").write_text(HOST)
    (tmp_path / "state").mkdir()
    expected = learned_state(tmp_path / "state", keyword)
    arguments = ["export", "--config", str(tmp_path / "host.toml"), "--out"]
    assert main([*arguments, str(tmp_path / "out"), "--peft"]) == 0
    files = tmp_path / "out" / "keyword-peft"
    assert f"{files} holds the adapter of global update 1" in capsys.readouterr().out
    assert main([*arguments, str(tmp_path / "new"), "--from-peft", str(files)]) == 0
    assert "name it as `model`" in capsys.readouterr().out
    begun = load_model(tmp_path / "new" / "keyword")
    assert np.allclose(begun.initial, expected, rtol=1e-6)
    assert main([*arguments, str(tmp_path / "no"), "--from-peft", str(tmp_path)]) == 1
    assert "adapter_config.json cannot be read" in capsys.readouterr().err
