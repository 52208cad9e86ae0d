"""`ternmesh setup` as an owner uses it: flags, a terminal, a second call."""

import os
import pty
import pwd
import select
import stat
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.config import read_node_config
from host.config import read_host_config
from host.service import run_host
from ternmesh.config import ConfigError
from ternmesh_cli import setup, setup_text
from ternmesh_cli.main import main, make_parser
from ternmesh_service import commands
from ternmesh_service.control_socket import ControlError, ask

ROOT = Path(__file__).parents[2]
LINK = ("--link", "mqtt://127.0.0.1:1", "--fleet", "attic")
BOARD = ("--name", "ada", "--data", "theo", *LINK)
WAIT_S = 30.0


@pytest.fixture(autouse=True)
def folder(monkeypatch) -> Iterator[Path]:
    """An empty folder that we are in, with a path short enough for a socket; no terminal."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)  # for the user of the service
        yield prepared(Path(name), monkeypatch)


def prepared(folder: Path, monkeypatch) -> Path:
    """The same folder, where we are now, on a machine without systemd."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.stdin", open(os.devnull))  # noqa: SIM115  (closed with the process)
    monkeypatch.setattr(setup, "SYSTEMD", folder / "none")
    monkeypatch.setattr(commands, "SETTINGS", folder / "etc")
    return folder


@pytest.fixture
def run(capsys):
    """Runs `ternmesh setup` and returns its code and what it said."""

    def call(*arguments: object, command: str = "setup") -> tuple[int, str]:
        code = main([*command.split(), *map(str, arguments)])
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    return call


@pytest.fixture
def host(run) -> str:
    """The line of a host whose settings are host.toml."""
    code, said = run("--host", "--config", "host.toml", *LINK)
    assert code == 0
    return next(word for word in said.split() if word.startswith("TM1:"))


RADIO = (
    *("--name", "ada", "--data", "theo", "--link", "/dev/ttyUSB0", "--region", "EU868"),
    *("--frequency", "869.525", "--address", "3"),
)


def test_a_terminal_is_asked_and_enter_takes_the_default(folder):
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "ternmesh_cli", "setup", "--config", "node.toml"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    said = ""

    def wait_for(text: str) -> None:
        nonlocal said
        while text not in said:
            assert select.select([ours], [], [], WAIT_S)[0], said
            said += os.read(ours, 4096).decode()
        said = said.partition(text)[2]

    try:
        for question, answer in (
            ("name of this board", "cleo"),
            ("the fleet", ""),
            ("broker (mqtt://", ""),  # has no default, and is asked for again
            ("broker (mqtt://", "127.0.0.1"),
            ("speakers theo", "nicolas"),
            ("what to learn", ""),
            ("does not begin with mqtt://", None),  # nothing is lost: the answers are the defaults
            ("name of this board, another on each [cleo]", ""),
            ("the fleet", ""),
            ("[127.0.0.1]", "mqtt://127.0.0.1:1"),
            ("[nicolas]", ""),
            ("what to learn", ""),
        ):
            wait_for(question)
            if answer is None:
                continue
            wait_for(": ")  # the end of the prompt
            os.write(ours, f"{answer}\n".encode())
        wait_for("CODE")
        assert process.wait(WAIT_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    config = read_node_config(folder / "node.toml")
    assert (config.name, config.link.fleet, config.model) == ("cleo", "ternmesh", "keyword")
    assert config.data.where == {"speaker": "nicolas"}


def test_a_code_of_the_running_host_enrols_at_once(run, folder, mosquitto, eventually):
    link = ("--link", mosquitto.url, "--fleet", "attic")
    assert run("--host", "--config", "host.toml", *link)[0] == 0
    stop = threading.Event()
    config = read_host_config(folder / "host.toml")
    thread = threading.Thread(target=run_host, args=(config, stop), daemon=True)
    thread.start()
    try:
        socket = folder / "host-state" / "control.sock"
        request = {"enrol": "code", "role": "node", "minutes": 5}

        def code() -> str:
            try:
                return str(ask(socket, request)["code"])
            except ControlError:
                return ""

        eventually(code)
        board = ("--name", "ada", "--data", "theo", *link)
        code_text = code()
        for _ in range(2):  # the same answers again are no error
            done, said = run("--config", "node.toml", *board, "--code", code_text)
            assert done == 0, said
        assert "enrol add" not in said
        members = ask(socket, {"enrol": "list"})["members"]
        assert [row["name"] for row in members] == ["ada"]
        assert "start it     ternmesh node" in said
    finally:
        stop.set()
        thread.join(WAIT_S)


@pytest.fixture
def service(folder, monkeypatch) -> Path:
    """The folders of a .deb below ours, whose programs run as the user nobody; and a systemctl."""
    if os.geteuid() != 0:
        pytest.skip("only root can make keys as the user of the service")
    for name in ("etc", "var", "units", "systemd", "bin"):
        (folder / name).mkdir()
    (folder / "var" / "node").mkdir(0o700)
    folder.chmod(0o755)
    for parent in folder.parents[:-2]:
        parent.chmod(parent.stat().st_mode | 0o011)  # pytest's own folders are root's alone
    os.chown(folder / "var" / "node", *ids())
    for name, value in (("STATE", "var"), ("UNITS", "units"), ("SYSTEMD", "systemd")):
        monkeypatch.setattr(setup, name, folder / value)
    monkeypatch.setattr(setup, "USER", "nobody")
    program = folder / "bin" / "systemctl"
    program.write_text(f'#!/bin/sh\necho "$*" >> {folder}/asked\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")
    return folder


def ids() -> tuple[int, int]:
    found = pwd.getpwnam("nobody")
    return found.pw_uid, found.pw_gid


def test_root_makes_the_keys_as_the_service_and_starts_it_once_enrolled(run, host, service):
    umask = os.umask(0o077)  # of a careful root, whose files the service must read all the same
    code, said = run(*BOARD)
    os.umask(umask)
    assert code == 0, said
    asked = service / "asked"
    assert not asked.exists()
    settings = (service / "etc" / "node.toml").stat()
    assert (settings.st_uid, settings.st_gid) == (0, ids()[1])
    assert stat.S_IMODE(settings.st_mode) == 0o640
    for name in ("identity", "state.sqlite"):
        found = (service / "var" / "node" / name).stat()
        assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (ids()[0], 0o600), name
    assert os.geteuid() == 0
    code, said = run("--trust", host)
    assert code == 0, said
    assert asked.read_text().splitlines() == ["enable --now ternmesh-node"]
    assert "started      ternmesh-node" in said


def test_what_is_done_as_the_service_has_no_group_of_root(service):
    os.setgroups([0, 4])
    with setup.acting_as(pwd.getpwnam("nobody")):
        assert (os.geteuid(), os.getegid(), os.getgroups()) == (*ids(), [])
    assert (os.geteuid(), os.getegid(), os.getgroups()) == (0, 0, [0, 4])


def test_what_root_writes_is_the_users_of_the_service(run, service):
    assert run(*BOARD)[0] == 0
    settings = service / "etc" / "node.toml"
    settings.write_text(f"{settings.read_text()}[page]\nport = 8080\n")
    code, said = run(command="page")
    assert (code, "#token=" in said) == (0, True)
    assert {each.stat().st_uid for each in (service / "var" / "node").iterdir()} == {ids()[0]}


def test_a_unit_is_given_no_file_that_it_cannot_see(run, service):
    code, said = run(*BOARD[:2], "--data", "/home/pi/clips", *LINK)
    assert (code, "a service sees no file in /home" in said) == (2, True)
    assert list((service / "etc").iterdir()) == []


def test_the_unit_of_a_radio_gets_its_drop_in_before_it_starts(run, host, service, monkeypatch):
    code, said = run(*RADIO, "--fleet", "attic", "--trust", host)
    assert code == 0, said
    drop_in = service / "units" / "ternmesh-node.service.d" / "20-serial.conf"
    assert "SupplementaryGroups=dialout" in drop_in.read_text()
    assert setup.drop_ins({"data": {"source": "microphone"}}) == ["20-sound.conf"]
    assert setup.drop_ins({"data": {"source": "serial"}}) == ["20-serial.conf"]
    assert (service / "asked").read_text().splitlines()[0] == "daemon-reload"
    monkeypatch.setattr(setup, "DROP_INS", ())  # it may have been copied by hand
    assert run()[0] == 0


def test_a_service_that_does_not_start_is_said(run, host, service):
    (service / "bin" / "systemctl").write_text("#!/bin/sh\nexit 1\n")
    code, said = run(*BOARD, "--trust", host)
    assert code == 1
    assert "`systemctl enable --now ternmesh-node` failed: run `ternmesh doctor`" in said


ANY = st.text(min_size=1, max_size=40)


def test_a_microphone_is_a_source() -> None:
    answers = {"name": "ada", "fleet": "attic", "link": "mqtt://h:1", "model": "keyword"}
    text = setup_text.write("node", "state", {**answers, "data": "microphone"}, {})
    assert '[data]\nsource = "microphone"\npoll_s = 0.1' in text


@given(name=ANY, link=ANY, data=ANY, model=ANY, fleet=ANY)
def test_any_answers_are_settings_as_given_or_an_error(name, link, data, model, fleet):
    answers = {"name": name, "link": link, "data": data, "model": model, "fleet": fleet}
    radio = {"dialect": "rnode", "region": "EU868", "frequency": "1", "address": "1"}
    try:
        kept = setup.find_answers(setup_text.BOARD, answers | (radio if link[0] == "/" else {}))
    except ConfigError:
        return
    text = setup_text.write("node", "s", kept, {})
    content = tomllib.loads(text)
    assert content["name"] == name.strip()
    assert content["link"]["fleet"] == fleet.strip()
    is_port = link.strip().startswith("/")
    found = content["link"]["serial"]["port"] if is_port else content["link"]["url"]
    assert found == link.strip()


def test_the_first_boot_of_a_card_calls_setup_with_options_that_it_knows():
    text = (ROOT / "packaging/examples/user-data").read_text()
    words = next(
        line for line in text.splitlines() if line.lstrip().startswith("ternmesh ")
    ).split()
    parsed = make_parser(words[1:-1]).parse_args(words[1:-1])
    assert (words[-1], parsed.code, parsed.name, parsed.yes) == ("&&", "CODE", "NAME", True)


def test_a_card_has_the_passphrase_of_its_network_and_no_hash() -> None:
    yaml = pytest.importorskip("yaml")
    text = (ROOT / "packaging/examples/network-config").read_text()
    network = yaml.safe_load(text)["network"]
    assert network["version"] == 2
    wlan = network["wifis"]["wlan0"]
    assert wlan["access-points"] == {"SSID": {"password": "PASSPHRASE"}}
    assert wlan["regulatory-domain"] == "COUNTRY"
