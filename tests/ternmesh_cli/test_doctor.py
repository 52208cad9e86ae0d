"""`ternmesh doctor` with real brokers, certificates, ports, folders and disks that are wrong.

What settings alone show is in transcripts/doctor.txt.
"""

import os
import pty
import shutil
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from host.config import read_host_config
from host.service import run_host
from ternmesh_cli import doctor, doctor_checks
from ternmesh_cli.doctor_checks import OK, WARNING, WRONG
from ternmesh_cli.main import main
from ternmesh_service import alarms, commands
from ternmesh_service.control_socket import ControlServer
from ternmesh_service.status import UNOPENED, ask_status
from ternmesh_store.security_store import SecurityStore
from ternmesh_store.state_file import StateFile
from tests.mosquitto import find_mosquitto
from tests.statuses import board_status, source_status
from tests.ternmesh_cli.test_broker_access import Deployment

NODE = """
name = "ada"
state_dir = "state"
model = "keyword"
[link]
fleet = "attic"
{link}
[data]
path = "{data}"
arrays = {{ features = "x", target = "y" }}
divide_by = 255
"""
CLIPS = Path(doctor_checks.__file__).parents[1] / "models/zoo/fsdd/fsdd_logmel_dev.npz"
HOST = 'state_dir = "host"\nmodel = "keyword"\n[link]\nfleet = "attic"\nurl = "{url}"\n'
DAY_S = 86_400.0

Node = Callable[..., Path]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Writes node.toml with a link, and returns its path."""

    def write(link: str = 'url = "mqtt://127.0.0.1:1"') -> Path:
        path = tmp_path / "node.toml"
        path.write_text(NODE.format(link=link, data=CLIPS))
        return path

    return write


def found(path: Path, check: str, now: float | None = None) -> tuple[str, str]:
    """The one result of a check."""
    subject = doctor.look(path, time.time() if now is None else now)
    [(_, result, sentence)] = doctor.diagnose(subject, [getattr(doctor_checks, check)])
    return result, sentence


@pytest.fixture
def enrolled(node, tmp_path, capsys) -> Path:
    path: Path = node()
    host = tmp_path / "host.toml"
    host.write_text(HOST.format(url="mqtt://127.0.0.1:1"))
    assert main(["setup", "--host", "--config", str(host)]) == 0
    line = next(word for word in capsys.readouterr().out.split() if word.startswith("TM1:"))
    assert main(["setup", "--config", str(path), "--trust", line]) == 0
    capsys.readouterr()
    return path


def test_all_fine_is_0(enrolled, mosquitto, capsys):
    enrolled.write_text(enrolled.read_text().replace("mqtt://127.0.0.1:1", mosquitto.url))
    assert main(["doctor", "--config", str(enrolled)]) == 0
    assert "with MQTT 5" in capsys.readouterr().out


def test_a_port_that_is_there(node: Node) -> None:
    ours, theirs = pty.openpty()
    port = os.ttyname(theirs)
    table = f'port = "{port}"\ndialect = "rnode"\naddresses = {{ ada = 1 }}\n'
    settings = node(f'region = "EU868"\n[link.serial]\n{table}frequency_hz = 869525000')
    assert found(settings, "port") == (OK, f"{port} is there")
    os.close(ours)
    os.close(theirs)


def test_a_full_disk_and_the_time_until_then(enrolled, monkeypatch):
    assert found(enrolled, "disk")[0] == OK
    identity = enrolled.parent / "state" / "identity"
    long_ago = time.time() - 10 * DAY_S
    os.utime(identity, (long_ago, long_ago))
    (enrolled.parent / "state" / "large").write_bytes(bytes(100 << 20))
    fields = list(os.statvfs(enrolled.parent))
    fields[0:2] = [1, 1]  # block sizes
    for mib, flags, result, sentence in (
        (1, 0, WRONG, "make room"),
        (200, 0, WARNING, "200 MiB free, full in 20 days at the rate so far: make room"),
        (4000, 0, OK, "4000 MiB free"),
        (4000, os.ST_RDONLY, WRONG, "is read-only"),
    ):
        fields[4], fields[8] = mib << 20, flags
        monkeypatch.setattr("os.statvfs", lambda _: os.statvfs_result(fields))
        shown, text = found(enrolled, "disk")
        assert (shown, sentence in text) == (result, True), text


def test_rights_and_owners_of_the_state(enrolled):
    folder = enrolled.parent / "state"
    assert found(enrolled, "state")[0] == OK
    folder.chmod(0o755)
    result, sentence = found(enrolled, "state")
    assert (result, f"chmod 700 {folder}" in sentence) == (WRONG, True)
    folder.chmod(0o700)
    if os.geteuid() != 0:
        folder.chmod(0o500)
        assert "may not write" in found(enrolled, "state")[1]
        return
    os.chown(folder / "identity", 65534, 65534)
    result, sentence = found(enrolled, "state")
    assert (result, "another user than its folder" in sentence) == (WRONG, True)


def test_a_broker_with_tls(tmp_path: Path, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, "BROKER_S", 2.0)
    program = find_mosquitto()
    if program is None:
        pytest.skip("mosquitto is not installed: apt install mosquitto")
    made = Deployment(program, tmp_path / "broker")
    made.start()
    login = made.credentials("ada")
    link = f'url = "mqtts://localhost:{made.port}"\nca_file = "{made.folder / "authority.pem"}"\n'
    path = node(f'{link}credentials_file = "{login}"')
    try:
        taken = found(path, "broker")
        login.write_text(login.read_text().replace('password = "', 'password = "x'))
        refused = found(path, "broker")
    finally:
        made.stop()
    assert (taken[0], "takes the login" in taken[1]) == (OK, True), taken
    assert (refused[0], "check credentials_file" in refused[1]) == (WRONG, True), refused


@pytest.mark.parametrize(
    ("shown", "result", "sentence"),
    [
        ("LoadState=not-found\nActiveState=inactive", WARNING, "is not installed"),
        (
            "LoadState=loaded\nActiveState=failed\nSubState=failed",
            WRONG,
            "is failed: `journalctl -p warning",
        ),
        ("LoadState=loaded\nActiveState=activating\nSubState=auto-restart", WRONG, "auto-restart"),
        ("LoadState=loaded\nActiveState=inactive", WARNING, "systemctl enable --now"),
        ("LoadState=loaded\nActiveState=active\nUnitFileState=disabled", WARNING, "enable --now"),
        ("LoadState=loaded\nActiveState=active\nUnitFileState=enabled\nStatusText=x=y", OK, "x=y"),
    ],
)
def test_the_unit(node, tmp_path, monkeypatch, shown, result, sentence):
    path = node()
    assert doctor.diagnose(doctor.look(path, 0.0), [doctor_checks.unit]) == []
    (tmp_path / "systemctl").write_text(f"#!/bin/sh\ncat <<'END'\n{shown}\nEND\n")
    (tmp_path / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(doctor_checks, "SYSTEMD", tmp_path)
    monkeypatch.setattr(commands, "SETTINGS", tmp_path)
    shown, text = found(path, "unit")
    assert (shown, sentence in text) == (result, True), text


def test_a_check_that_hangs_or_breaks_hides_no_other(node):
    def hang(_subject):
        threading.Event().wait()
        yield OK, ""

    def fail(_subject):
        yield OK, "first"
        raise ZeroDivisionError("x")

    def lack(_subject):
        raise ImportError("install it")

    checks = [hang, fail, doctor_checks.clock, lack]
    rows = doctor.diagnose(doctor.look(node(), time.time()), checks, limit_s=0.5)
    assert [row[:2] for row in rows[:2]] == [("hang", WRONG), ("fail", WARNING)]
    assert "no result within" in rows[0][2]
    assert "ZeroDivisionError" in rows[1][2]
    assert [rows[2][0], rows[3]] == ["clock", ("lack", WRONG, "install it")]


@pytest.mark.parametrize("is_file", [True, False], ids=["a file in the way", "another kind"])
def test_a_socket_that_cannot_be_asked_hides_no_other_check(enrolled, is_file) -> None:
    folder = enrolled.parent / "state"
    if is_file:
        shutil.rmtree(folder)
        folder.write_text("")
        subject = doctor.look(enrolled, time.time())
    else:
        with ControlServer(folder / "control.sock", lambda _: {"role": "x"}):
            subject = doctor.look(enrolled, time.time())
    assert subject.silence
    rows = doctor.diagnose(subject, [doctor_checks.settings, doctor_checks.program])
    assert [row[:2] for row in rows] == [("settings", OK), ("program", WRONG)]


def test_a_running_host_is_asked_about_itself_and_a_board(
    enrolled, mosquitto, eventually, monkeypatch, capsys
):
    """Unknown, known, of another host, revoked: over the link, while the board does not run."""
    monkeypatch.setattr(alarms, "LINK_S", 0.0)
    path = enrolled.with_name("host.toml")
    for file in (path, enrolled):
        file.write_text(file.read_text().replace("mqtt://127.0.0.1:1", mosquitto.url))
    assert found(enrolled, "host") == (
        WARNING, "the host was asked whether it knows this board, and did not answer",
    )  # fmt: skip
    stop, socket = threading.Event(), path.parent / "host" / "control.sock"
    thread = threading.Thread(target=run_host, args=(read_host_config(path), stop), daemon=True)
    thread.start()

    def asked(*words: str) -> None:
        assert main(["enrol", words[0], "--config", str(path), *words[1:]]) == 0

    try:
        eventually(lambda: ask_status(socket).transport.connected if socket.exists() else False)
        rows = doctor.diagnose(doctor.look(path, time.time()))
        assert ("program", OK) in {row[:2] for row in rows}
        assert WRONG not in {result for _, result, _ in rows}, rows
        assert ask_status(socket).transport.numbers["reconnects"] == 0, "it keeps its connection"
        result, sentence = found(enrolled, "host")
        assert (result, "does not know this key" in sentence) == (WRONG, True)
        assert ask_status(socket).knocking == {"ada": "unknown key"}
        capsys.readouterr()
        assert main(["enrol", "identity", "--config", str(enrolled)]) == 0
        line = next(word for word in capsys.readouterr().out.split() if word.startswith("TM1:"))
        asked("add", line)
        assert found(enrolled, "host")[0] == OK
        with closing(StateFile(enrolled.parent / "state")) as state:
            state.open()
            store = SecurityStore(state)
            store.keep_member_list(replace(store.member_list().state, fleet=bytes(16)))
            state.checkpoint()
        result, sentence = found(enrolled, "host")
        assert (result, "trusts another host" in sentence) == (WRONG, True)
        asked("revoke", "ada")
        result, sentence = found(enrolled, "host")
        assert (result, "has revoked this board's key" in sentence) == (WRONG, True)
        mosquitto.stop()
        eventually(lambda: not ask_status(socket).transport.connected)
        rows = doctor.diagnose(doctor.look(path, time.time()), [doctor_checks.program])
        assert (WRONG, "the link is down: ") in {(row[1], row[2][:18]) for row in rows}, rows
        (path.parent / "host" / "state.sqlite").unlink()
        capsys.readouterr()
        assert main(["enrol", "add", "--config", str(path), line]) == 1, "it would be lost"
        assert "was removed or replaced: what comes now is lost" in capsys.readouterr().err
        rows = doctor.diagnose(doctor.look(path, time.time()))
        assert any("`ternmesh backup`, stop it, and" in sentence for _, _, sentence in rows)
        assert any("state.sqlite: it is not there: bring back" in row[2] for row in rows)
    finally:
        stop.set()
        thread.join(30)


def test_a_program_whose_socket_is_gone_is_not_called_stopped(enrolled: Path) -> None:
    says = "from pathlib import Path; from ternmesh_store.state_file import StateFile as S\n"
    says += "import sys; s = S(Path(sys.argv[1])); s.open(); print(); input()"
    command = [sys.executable, "-c", says, str(enrolled.parent / "state")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        result, sentence = found(enrolled, "program")
        process.kill()
    assert (result, "it runs, but nothing answers on" in sentence) == (WRONG, True)
    assert found(enrolled, "program") == (OK, "it does not run")


def test_ports_that_are_taken(node: Node) -> None:
    path = node()
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as taken:
        port = taken.server_address[1]
        path.write_text(f"{path.read_text()}[page]\nport = {port}\n")
        result, sentence = found(path, "ports")
        why = "Address already in use"
        assert sentence == f"[page] cannot have port {port} ({why}): choose another"
        assert result == WRONG
    assert found(path, "ports") == (OK, f"port {port} is free for the page")


def test_both_programs_of_a_machine_are_looked_at(enrolled, monkeypatch, capsys):
    monkeypatch.chdir(enrolled.parent)
    assert main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "node.toml: node ada" in shown
    assert "host.toml: host host" in shown


def test_a_running_board_is_not_sent_to_doctor_by_doctor(node: Node) -> None:
    """Its data check says what is wrong with the source."""
    down = replace(UNOPENED, last_error="no route")
    source = source_status(last_failure="FileNotFoundError: nothing.csv")
    status = board_status(source=source, transport=down)
    radio = 'region = "EU868"\n[link.serial]\nport = "/dev/nope"\ndialect = "rnode"\n'
    path = node(f"{radio}addresses = {{ ada = 1 }}\nfrequency_hz = 869525000")
    subject = replace(doctor.look(path, time.time()), status=status)
    found = doctor.diagnose(subject, (doctor_checks.program,))
    assert any("no route: see docs/troubleshooting.md" in sentence for *_, sentence in found)
    subject = replace(doctor.look(node(), time.time()), status=status)
    found = doctor.diagnose(subject, (doctor_checks.program, doctor_checks.data))
    sentences = [sentence for _, _, sentence in found]
    assert not any("doctor" in sentence for sentence in sentences)
    assert any(sentence.endswith("no route: see what follows") for sentence in sentences)
    assert found[-1][:2] == ("data", WRONG)
    assert "FileNotFoundError: nothing.csv: mend [data]" in sentences[-1]
