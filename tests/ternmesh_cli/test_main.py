import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ternmesh_cli import main, process
from ternmesh_service.control_socket import ControlServer
from ternmesh_store.database import StoreError
from transports.base import NameTaken

HOST_CONFIG = """
state_dir = "."
model = "keyword"
[link]
url = "mqtt://127.0.0.1:1"
"""


@pytest.fixture
def config(tmp_path) -> Path:
    path = tmp_path / "host.toml"
    path.write_text(HOST_CONFIG)
    return path


def ternmesh(*arguments: object) -> int:
    return main.main([str(argument) for argument in arguments])


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (StoreError("another process uses it: stop it"), 1, "another process uses it: stop it"),
        (NameTaken("another process is host on b: stop it"), 3, "another process is host on b"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (
            PermissionError(13, "Permission denied", "/root/model"),
            1,
            "cannot use /root/model (Permission denied): check the path\n",
        ),
        (ZeroDivisionError("by zero"), 1, "ZeroDivisionError: by zero\n"),
    ],
)
def test_an_error_is_a_sentence_and_a_code(
    capsys, caplog, config, monkeypatch, error, code, sentence
):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("host.service.run_host", fail)
    monkeypatch.setattr(process, "set_up_logging", lambda *_: None)
    assert ternmesh("host", "--config", config) == code
    shown = capsys.readouterr().err
    assert shown.startswith(f"ternmesh: {sentence}")
    assert shown.count("\n") == 1
    traced = [record.exc_info[0] for record in caplog.records]
    assert traced == [ZeroDivisionError][: isinstance(error, ZeroDivisionError)]


def test_an_interrupt_while_modules_are_imported_is_silent(tmp_path):
    """A module that is imported early interrupts the process as Ctrl-C would."""
    (tmp_path / "argparse.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    folders = f"{tmp_path}{os.pathsep}{Path(main.__file__).parents[1]}"
    command = [sys.executable, "-m", "ternmesh_cli", "status", "--help"]
    ended = subprocess.run(
        command, capture_output=True, check=False, env={**os.environ, "PYTHONPATH": folders}
    )
    assert (ended.returncode, ended.stderr) == (130, b"")


def test_status_finds_the_socket_and_prints_json(capsys, config, tmp_path):
    answer = {"role": "host", "anything": [1, None]}
    with ControlServer(tmp_path / "control.sock", lambda request: answer | request):
        assert ternmesh("status", "--config", config, "--json") == 0
        assert json.loads(capsys.readouterr().out) == answer | {"command": "status"}
    config.write_text('control_socket = "other.sock"\n' + HOST_CONFIG)
    with ControlServer(tmp_path / "other.sock", lambda request: answer):
        assert ternmesh("status", "--config", config, "--json") == 0


def test_a_host_without_its_broker_waits_and_stops_in_peace(config, tmp_path, eventually):
    command = [sys.executable, "-m", "ternmesh_cli", "host", "--insecure", "--config", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            eventually(lambda: (tmp_path / "control.sock").exists())
            second = subprocess.run(command, capture_output=True, text=True, check=False)
            process.send_signal(signal.SIGINT)
            _, log = process.communicate(timeout=20)
        finally:
            process.kill()
    assert second.returncode == 1
    [_, sentence] = second.stderr.splitlines()  # the first one warns that it is insecure
    assert "another process uses" in sentence
    assert process.returncode == 0
    assert not (tmp_path / "control.sock").exists()
    words = [line.split() for line in log.splitlines()]
    assert (words[0][2], words[0][3]) == ("WARNING", "ternmesh_service.keyring:")
    assert (words[1][2], words[1][3]) == ("INFO", "host.runs:")


@pytest.mark.parametrize("command", ["host", "status", "demo"])
def test_the_command_line_loads_only_what_is_called(command):
    script = (
        f"import sys; from ternmesh_cli import main; main.make_parser(['{command}']);"
        "print(*(m for m in sys.modules if m.split('.')[0] in "
        "('edge', 'host', 'onnxruntime', 'torch', 'paho', 'amqtt', 'rich', 'ternmesh_cli')))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(main.__file__).parents[1])}
    shown = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
    )
    modules = {f"ternmesh_cli.{module}" for _, module, _ in main.COMMANDS.values()}
    called = f"ternmesh_cli.{main.COMMANDS[command][1]}"
    loaded = set(shown.stdout.split())
    assert {name for name in loaded if not name.startswith("ternmesh_cli")} == set()
    assert called in loaded
    if called.endswith(".programs"):  # those that run for months
        assert loaded & modules == {called}
