"""`ternmesh doctor` with real brokers, certificates, ports and folders that are wrong."""

import json
import os
import pty
import re
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from edge.resources import Readings
from host.config import read_host_config
from host.service import run_host
from ternmesh_cli import doctor, doctor_checks
from ternmesh_cli.broker import folder as disk
from ternmesh_cli.doctor_checks import OK, WARNING, WRONG
from ternmesh_cli.main import main
from ternmesh_service.control_socket import ControlError
from ternmesh_service.status import UNOPENED, ask_status
from tests.mosquitto import find_mosquitto
from tests.ternmesh_cli.test_broker_access import Deployment
from transports.base import TransportStatus

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
SERIAL = """region = "{region}"
[link.serial]
port = "{port}"
dialect = "reyax"
frequency_hz = 869525000
addresses = {{ ada = 1 }}
"""
DAY_S = 86_400.0


@pytest.fixture
def node(tmp_path):
    """Writes node.toml with a link, and returns its path."""

    def write(link: str = 'url = "mqtt://127.0.0.1:1"', data: object = CLIPS) -> Path:
        path = tmp_path / "node.toml"
        path.write_text(NODE.format(link=link, data=data))
        return path

    return write


def results(path: Path, check: str, now: float | None = None) -> list[tuple[str, str]]:
    """What one check finds."""
    subject = doctor.look(path, time.time() if now is None else now)
    found = doctor.diagnose(subject, [getattr(doctor_checks, check)])
    return [(result, sentence) for _, result, sentence in found]


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


def test_each_check_has_a_line_and_one_wrong_one_makes_the_code_1(enrolled, capsys):
    assert main(["doctor", "--config", str(enrolled)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines} <= {OK, WARNING, WRONG}
    assert [line for line in lines if line.startswith(WRONG)] == [
        line for line in lines if " broker " in line
    ]
    whole = ("settings", "clock", "disk", "state", "keys", "program", "model", "data", "sensors")
    for check in whole:
        assert any(line.split()[1] == check for line in lines), check
    assert main(["doctor", "--config", str(enrolled), "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == len(lines)
    assert set(rows[0]) == {"check", "result", "sentence"}


def test_all_fine_is_0(enrolled, mosquitto, capsys):
    enrolled.write_text(enrolled.read_text().replace("mqtt://127.0.0.1:1", mosquitto.url))
    assert main(["doctor", "--config", str(enrolled)]) == 0
    assert "with MQTT 5" in capsys.readouterr().out


@pytest.mark.parametrize("text", [None, "name = ", 'name = "ada"\nstate_dir = "s"\n'])
def test_wrong_settings_hide_no_other_check(tmp_path, capsys, text):
    path = tmp_path / "node.toml"
    if text is not None:
        path.write_text(text)
    assert main(["doctor", "--config", str(path)]) == 1
    out = capsys.readouterr().out
    assert f"settings  {path}" in out
    assert " clock " in out


@pytest.mark.parametrize("now", [0.0, 4_102_444_800.0 - DAY_S])  # 1970 and 2099
def test_a_wrong_clock(enrolled, now):
    ((result, sentence),) = results(enrolled, "clock", now)
    assert result == WRONG
    assert ("1970-01-01" if now == 0.0 else "2099-12-31") in sentence
    assert "timedatectl set-ntp" in sentence


def test_a_full_disk_and_the_time_until_then(enrolled, monkeypatch):
    assert results(enrolled, "disk")[0][0] == OK
    identity = enrolled.parent / "state" / "identity"
    long_ago = time.time() - 10 * DAY_S
    os.utime(identity, (long_ago, long_ago))
    (enrolled.parent / "state" / "large").write_bytes(bytes(100 << 20))
    real = os.statvfs(enrolled.parent)
    fields = list(real)
    fields[0:2] = [1, 1]  # block sizes

    def left(mib: int, flags: int = 0) -> list[tuple[str, str]]:
        fields[4], fields[8] = mib << 20, flags
        monkeypatch.setattr("os.statvfs", lambda _: os.statvfs_result(fields))
        return results(enrolled, "disk")

    assert left(1)[0][0] == WRONG
    assert left(200) == [(WARNING, "200 MiB free, full in 20 days at the rate so far: make room")]
    assert left(4000)[0][0] == OK
    ((result, sentence),) = left(4000, os.ST_RDONLY)
    assert (result, "is read-only" in sentence) == (WRONG, True)


def test_rights_and_owners_of_the_state(enrolled):
    folder = enrolled.parent / "state"
    assert results(enrolled, "state")[0][0] == OK
    folder.chmod(0o755)
    ((result, sentence),) = results(enrolled, "state")
    assert (result, f"chmod 700 {folder}" in sentence) == (WRONG, True)
    folder.chmod(0o700)
    if os.geteuid() != 0:
        folder.chmod(0o500)
        assert "may not write" in results(enrolled, "state")[0][1]
        return
    os.chown(folder / "identity", 65534, 65534)
    ((result, sentence),) = results(enrolled, "state")
    assert (result, "another user than its folder" in sentence) == (WRONG, True)


def test_keys_that_are_missing_of_another_fleet_or_of_nobody(node, enrolled):
    assert results(enrolled, "keys")[0][0] == OK
    enrolled.write_text(enrolled.read_text().replace('"attic"', '"other"'))
    assert "are not of fleet 'other'" in results(enrolled, "keys")[0][1]
    state = enrolled.parent / "state" / "state.sqlite"
    state.unlink()
    assert results(enrolled, "keys")[0][0] == WRONG
    assert not state.exists()  # an empty file would count as damaged
    (enrolled.parent / "state" / "identity").unlink()
    assert "no identity at" in results(enrolled, "keys")[0][1]


@pytest.fixture
def deployed(tmp_path, node):
    """A broker with TLS of `ternmesh broker`, and a node's settings for it."""
    program = find_mosquitto()
    if program is None:
        pytest.skip("mosquitto is not installed: apt install mosquitto")
    made = Deployment(program, tmp_path / "broker")

    def start(name: str = "localhost", authority: Path | None = None) -> Path:
        made.start()
        authority = authority or made.folder / "authority.pem"
        return node(
            f'url = "mqtts://{name}:{made.port}"\nca_file = "{authority}"\n'
            f'credentials_file = "{made.credentials("ada")}"'
        )

    yield made, start
    made.stop()


def test_a_broker_with_tls_takes_the_login(deployed):
    _, start = deployed
    ((result, sentence),) = results(start(), "broker")
    assert (result, "takes the login" in sentence) == (OK, True), sentence


def test_an_expired_certificate(deployed):
    made, start = deployed
    disk.certify(made.folder, ["localhost"], datetime.now(UTC) - timedelta(days=900))
    ((result, sentence),) = results(start(), "broker")
    assert result == WRONG
    assert re.search("is not valid now.*renew it", sentence), sentence


def test_a_certificate_for_another_name(deployed):
    _, start = deployed
    ((result, sentence),) = results(start("127.0.0.1"), "broker")
    assert (result, "is for another name" in sentence) == (WRONG, True)


def test_a_refused_login(deployed):
    made, start = deployed
    path = start()
    login = made.credentials("ada")
    login.write_text(login.read_text().replace('password = "', 'password = "x'))
    ((result, sentence),) = results(path, "broker")
    assert (result, "check credentials_file" in sentence) == (WRONG, True)


def test_a_port_that_is_there_missing_or_no_port(node, tmp_path):
    ours, theirs = pty.openpty()
    try:
        port = os.ttyname(theirs)
        serial = SERIAL.format(region="EU868", port=port)
        assert results(node(serial), "port") == [(OK, f"{port} is there")]
        assert "spreading_factor" not in results(node(serial), "airtime")[0][1]
    finally:
        os.close(ours)
        os.close(theirs)
    ((result, sentence),) = results(node(serial.replace(port, "/dev/ttyNONE")), "port")
    assert (result, "is the modem plugged in?" in sentence) == (WRONG, True)
    (tmp_path / "file").touch()
    ((result, sentence),) = results(node(serial.replace(port, str(tmp_path / "file"))), "port")
    assert (result, "is no serial port" in sentence) == (WRONG, True)
    far = serial.replace(port, "socket://192.0.2.30:4001")
    assert results(node(far), "port")[0][0] == OK


def test_the_airtime_of_an_update_against_the_law(node):
    serial = SERIAL.format(region="EU868", port="/dev/x")
    ((result, sentence),) = results(node(serial), "airtime")
    assert (result, "EU868 869.4-869.65 MHz allows 360 s an hour" in sentence) == (OK, True)
    slow = serial.replace("frequency_hz", "spreading_factor = 12\nfrequency_hz")
    ((result, sentence),) = results(node(slow.replace("869525000", "868300000")), "airtime")
    assert (result, "less than a round an hour" in sentence) == (WARNING, True)
    free = serial.replace("EU868", "unregulated")
    assert "has no duty cycle" in results(node(free), "airtime")[0][1]
    alarms = node(serial.replace("869525000", "868650000"))
    assert "for alarms" in results(alarms, "settings")[0][1]


def test_a_changed_model_and_data_that_is_missing_or_too_little(node, tmp_path):
    package = tmp_path / "package"
    shipped = CLIPS.parents[1] / "keyword"
    package.mkdir()
    for file in shipped.iterdir():
        (package / file.name).write_bytes(file.read_bytes())
    path = node()
    path.write_text(path.read_text().replace('"keyword"', '"package"'))
    assert results(path, "model")[0][0] == OK
    with (package / "adapter.f32").open("ab") as file:
        file.write(b"x")
    ((result, sentence),) = results(path, "model")
    assert (result, "copy the package again" in sentence) == (WRONG, True)
    assert results(node(), "data")[0][0] == OK
    ((result, sentence),) = results(node(data="/nothing.npz"), "data")
    assert (result, "check that it exists" in sentence) == (WRONG, True)
    path = node()
    path.write_text(f"{path.read_text()}[training]\nsamples_min = 100000\n")
    assert "training.samples_min is 100000" in results(path, "data")[0][1]


def test_a_running_program_keeps_its_connection_and_is_asked(enrolled, mosquitto, eventually):
    path = enrolled.with_name("host.toml")
    path.write_text(path.read_text().replace("mqtt://127.0.0.1:1", mosquitto.url))
    stop, socket = threading.Event(), path.parent / "host" / "control.sock"
    config = read_host_config(path)
    thread = threading.Thread(target=run_host, args=(config, stop), daemon=True)
    thread.start()

    def transport() -> TransportStatus:
        try:
            return ask_status(socket).transport
        except ControlError:
            return UNOPENED

    eventually(lambda: transport().connected)
    found = doctor.diagnose(doctor.look(path, time.time()))
    assert ("program", OK) in {row[:2] for row in found}
    assert WRONG not in {result for _, result, _ in found}, found
    assert (transport().connected, transport().numbers["reconnects"]) == (True, 0)
    mosquitto.stop()
    eventually(lambda: not transport().connected)
    told = results(path, "program")
    assert (told[0][0], told[1][0]) == (OK, WRONG)
    assert told[1][1].startswith("the link is down: ")
    stop.set()
    thread.join(30)


@pytest.mark.parametrize(
    ("shown", "result", "sentence"),
    [
        ("LoadState=not-found\nActiveState=inactive", WARNING, "is not installed"),
        (
            "LoadState=loaded\nActiveState=failed\nSubState=failed",
            WRONG,
            "is failed: `ternmesh logs",
        ),
        ("LoadState=loaded\nActiveState=activating\nSubState=auto-restart", WRONG, "auto-restart"),
        ("LoadState=loaded\nActiveState=inactive", WARNING, "systemctl enable --now"),
        ("LoadState=loaded\nActiveState=active\nUnitFileState=disabled", WARNING, "enable --now"),
        ("LoadState=loaded\nActiveState=active\nUnitFileState=enabled\nStatusText=x=y", OK, "x=y"),
    ],
)
def test_the_unit(node, tmp_path, monkeypatch, shown, result, sentence):
    path = node()
    assert results(path, "unit") == []
    (tmp_path / "systemctl").write_text(f"#!/bin/sh\ncat <<'END'\n{shown}\nEND\n")
    (tmp_path / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(doctor_checks, "SYSTEMD", tmp_path)
    monkeypatch.setattr(doctor_checks, "SETTINGS", tmp_path)
    ((found, said),) = results(path, "unit")
    assert (found, sentence in said) == (result, True), said


def test_a_check_that_hangs_or_breaks_hides_no_other(node):
    def hang(_subject):
        threading.Event().wait()
        yield OK, ""

    def fail(_subject):
        yield OK, "first"
        raise ZeroDivisionError("x")

    checks = [hang, fail, doctor_checks.clock]
    found = doctor.diagnose(doctor.look(node(), time.time()), checks, limit_s=0.5)
    assert [row[:2] for row in found[:2]] == [("hang", WRONG), ("fail", WARNING)]
    assert "no result within" in found[0][2]
    assert "ZeroDivisionError" in found[1][2]
    assert found[2][0] == "clock"


def test_what_limits_training_is_measured(node, monkeypatch) -> None:
    for readings, result, sentence in (
        (Readings(51.2, 2.0), OK, "51 C, memory pressure 2 %"),
        (Readings(None, 0.0), OK, "no thermal zone, memory pressure 0 %"),
        (Readings(51.2, None), WARNING, "51 C, no memory pressure: try psi=1"),
    ):
        monkeypatch.setattr("edge.resources.measure", lambda found=readings: found)
        [(shown, text)] = results(node(), "sensors")
        assert (shown, text[: len(sentence)]) == (result, sentence)
