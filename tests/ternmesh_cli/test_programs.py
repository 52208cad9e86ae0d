"""What `ternmesh host` gives the host of the edge package, and asks the one that runs."""

from pathlib import Path

import numpy as np
import pytest

from host.config import OwnSamplesConfig, RunConfig, plan_of
from models.zoo import fsdd_path, package_path
from ternmesh_cli.main import main
from ternmesh_cli.programs import _open_samples
from ternmesh_service.config_file import load_model_package
from ternmesh_service.control_socket import RETURN, ControlServer


def test_a_host_trains_the_shipped_model_on_its_own_samples() -> None:
    plan = plan_of(RunConfig(local_steps=2), load_model_package("keyword").dimension)
    arrays = {"features": "x", "target": "y"}
    config = OwnSamplesConfig(str(fsdd_path("dev")), arrays, {"speaker": "theo"}, 255.0)
    train = _open_samples(package_path("keyword"), config, plan)
    change = train(0, np.zeros(plan.dimension, np.float32))
    assert change.shape == (plan.dimension,)
    assert 0 < np.abs(change).max() < 3 * 0.005  # two steps of Adam


def test_return_to_asks_the_running_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "host.toml"
    config.write_text(
        f'state_dir = "{tmp_path}"\nmodel = "keyword"\n'
        '[link]\nurl = "mqtt://127.0.0.1:1"\nfleet = "attic"\n'
    )
    command = ["host", "--config", str(config), "--return-to", "12"]
    answers: list[dict[str, object]] = [{"said": "it goes back"}, {"error": "too old"}, {"role": 1}]
    asked = []

    def answer(request: dict[str, object]) -> dict[str, object]:
        asked.append(request)
        return answers[len(asked) - 1]

    with ControlServer(tmp_path / "control.sock", answer):
        assert main(command) == 0
        assert capsys.readouterr().out == "it goes back\n"
        assert main(command) == 1
        assert "too old" in capsys.readouterr().err
        assert main(command) == 1
        assert "older ternmesh" in capsys.readouterr().err
    assert asked == [{RETURN: 12}] * 3
