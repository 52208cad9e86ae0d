"""What `ternmesh host` asks the host that runs."""

from pathlib import Path

import pytest

from ternmesh_cli.main import main
from ternmesh_cli.programs import profiled
from ternmesh_service.control_socket import RETURN, ControlServer


def test_return_to_asks_the_running_host(tmp_path, capsys) -> None:
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


def test_a_profile_says_what_took_how_long_also_after_an_error(tmp_path: Path) -> None:
    path = tmp_path / "profile.txt"
    with pytest.raises(SystemExit), profiled(path):
        main(["radio", "estimate", "--bytes", "none"])
    assert "cumtime" in path.read_text()
    assert "(add_arguments)" in path.read_text()
    with profiled(None):
        pass
