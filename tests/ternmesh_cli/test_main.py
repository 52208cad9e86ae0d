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


@pytest.mark.parametrize("arguments", [["--help"], ["host", "--help"], ["status", "--help"]])
def test_help_tells_the_exit_codes(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        ternmesh(*arguments)
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert "exit codes:\n  0  done" in shown
    assert "  2  the command line or the configuration is wrong" in shown


def test_a_host_whose_file_another_process_has_is_1(capsys, config, monkeypatch):
    def refuse(*_, **__):
        raise StoreError("another process uses state.sqlite: stop it, or choose a state_dir")

    monkeypatch.setattr("host.service.run_host", refuse)
    monkeypatch.setattr(process, "set_up_logging", lambda *_: None)
    assert ternmesh("host", "--config", config) == 1
    assert capsys.readouterr().err.startswith("ternmesh: another process uses state.sqlite")


def test_an_error_that_should_not_happen_is_1_and_leaves_its_trace(
    capsys, caplog, config, monkeypatch
):
    def fail(*_, **__):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("host.service.run_host", fail)
    monkeypatch.setattr(process, "set_up_logging", lambda *_: None)
    assert ternmesh("host", "--config", config) == 1
    assert capsys.readouterr().err == "ternmesh: ZeroDivisionError: division by zero\n"
    assert caplog.records[0].exc_info[0] is ZeroDivisionError


def test_an_interrupt_is_130_and_no_traceback(capsys, config, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("host.service.run_host", interrupt)
    monkeypatch.setattr(process, "set_up_logging", lambda *_: None)
    assert ternmesh("host", "--config", config) == 130
    assert capsys.readouterr().err == "ternmesh: interrupted\n"


def test_an_interrupt_while_modules_are_imported_is_silent(tmp_path):
    """A module that is imported early interrupts the process as Ctrl-C would."""
    (tmp_path / "argparse.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    folders = f"{tmp_path}{os.pathsep}{Path(main.__file__).parents[1]}"
    command = [sys.executable, "-m", "ternmesh_cli", "status", "--help"]
    ended = subprocess.run(
        command, capture_output=True, check=False, env={**os.environ, "PYTHONPATH": folders}
    )
    assert (ended.returncode, ended.stderr) == (130, b"")


def test_an_error_of_the_system_is_1_and_no_traceback(capsys, caplog, config, monkeypatch):
    def fail(*_, **__):
        raise PermissionError(13, "Permission denied", "/root/model")

    monkeypatch.setattr("host.config.read_host_config", fail)
    assert ternmesh("host", "--config", config) == 1
    sentence = "ternmesh: cannot use /root/model (Permission denied): check the path\n"
    assert (capsys.readouterr().err, caplog.records) == (sentence, [])


def test_status_finds_the_socket_and_prints_json(capsys, config, tmp_path):
    answer = {"role": "host", "anything": [1, None]}
    with ControlServer(tmp_path / "control.sock", lambda request: answer | request):
        assert ternmesh("status", "--config", config, "--json") == 0
        assert json.loads(capsys.readouterr().out) == answer | {"command": "status"}
    config.write_text('control_socket = "other.sock"\n' + HOST_CONFIG)
    with ControlServer(tmp_path / "other.sock", lambda request: answer):
        assert ternmesh("status", "--config", config, "--json") == 0


def test_a_process_that_is_no_ternmesh_of_this_version_is_1(capsys, tmp_path):
    with ControlServer(tmp_path / "control.sock", lambda request: {"role": "satellite"}):
        assert ternmesh("status", "--socket", tmp_path / "control.sock") == 1
    assert "runs another version" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_host_without_its_broker_waits_and_stops_in_peace(config, tmp_path, number, eventually):
    command = [
        sys.executable,
        "-m",
        "ternmesh_cli.main",
        "host",
        "--insecure",
        "--config",
        str(config),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            eventually(lambda: (tmp_path / "control.sock").exists())
            second = subprocess.run(command, capture_output=True, text=True, check=False)
            process.send_signal(number)
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


@pytest.mark.parametrize("command", ["host", "node", "gateway", "status", "setup", "demo"])
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


def test_a_node_gets_its_configuration_and_a_way_to_stop(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr("edge.config.read_node_config", lambda path: _Config(path))
    monkeypatch.setattr(
        "edge.service.run_node", lambda *arguments, insecure: calls.append(arguments)
    )
    monkeypatch.setattr(process, "set_up_logging", lambda *_: None)
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    try:
        assert ternmesh("node", "--config", tmp_path / "node.toml") == 0
        [(config, stop)] = calls
        assert config.path == tmp_path / "node.toml"
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.is_set()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "a second one ends it at once"
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGINT, before[1])


class _Config:
    log_level, log_format = "INFO", "auto"

    def __init__(self, path: Path) -> None:
        self.path = path


def test_a_name_that_another_process_has_is_3(capsys, config, monkeypatch):
    def taken(*_arguments, **_options):
        raise NameTaken("another process is ternmesh-attic-host on b: stop it")

    monkeypatch.setattr("host.service.run_host", taken)
    assert ternmesh("host", "--config", config) == 3
    assert capsys.readouterr().err.startswith("ternmesh: another process is ternmesh-attic-host")
