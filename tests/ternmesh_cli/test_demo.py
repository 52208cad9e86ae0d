import contextlib
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from dataclasses import replace

import pytest

from ternmesh_cli.demo.command import merged, progress
from ternmesh_cli.demo.voters import LeaderKill
from ternmesh_cli.main import main
from ternmesh_cli.workers import Worker
from ternmesh_service.control_socket import ControlError, ask
from ternmesh_store.host_store import StoredRound
from tests.statuses import DOWN, host_status

MEMBERS = ("host", "theo", "nicolas", "yweweler")
NOWHERE = "mqtt://127.0.0.1:1"


DEMO = [sys.executable, "-m", "ternmesh_cli.main", "demo"]


def run_demo(tmp_path, *options: str):
    """What it says on its way, and its answer."""
    command = [*DEMO, "--json", "--out", str(tmp_path / "out"), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr, json.loads(done.stdout)


def answers(path) -> bool:
    try:
        return bool(ask(path, {"command": "status"}, timeout_s=2.0))
    except ControlError:
        return False


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_whoever_ends_the_demo_ends_its_fleet(tmp_path, number, eventually):
    out = tmp_path / "out"
    sockets = [out / member / "control.sock" for member in MEMBERS]
    demo = subprocess.Popen(
        [*DEMO, "--broker", NOWHERE, "--out", str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        eventually(lambda: all(answers(path) for path in sockets))
        demo.send_signal(number)
        assert demo.communicate(timeout=60)[1].endswith("ternmesh: interrupted\n")
        assert demo.returncode == 130
        assert not any(answers(path) for path in sockets)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(demo.pid, signal.SIGKILL)


@pytest.mark.parametrize("more", [[], ["--dialect", "meshcore", "--hops", "2"]])
def test_the_demo_over_emulated_radios(tmp_path, more):
    options = ["--bearer", "lora", "--loss", "0.2", "--rounds", "3", "--speed", "100", *more]
    _, answer = run_demo(tmp_path, *options)
    assert answer["rounds"] == 3
    assert answer["accuracy_fleet"] > 0.2, "an untrained head guesses one of ten"
    assert set(answer["airtime_s"]) == set(MEMBERS)
    assert all(airtime_s > 1 for airtime_s in answer["airtime_s"].values())
    assert "no hardware" in answer["bearer"]
    assert answer["accuracy_alone"] <= 0.7, "a room has heard seven of the ten words"
    assert answer["accuracy_float"] > 0.7


@pytest.mark.nightly
def test_the_demo_outlives_the_voter_that_leads(tmp_path):
    said, answer = run_demo(tmp_path, "--voters", "3", "--kill-leader", "--rounds", "9")
    assert "led, and was killed" in said
    assert answer["rounds"] == 9
    assert answer["bytes_per_round"] > 400  # of all that have led


def test_the_bytes_of_all_that_have_led_count():
    first, second = (
        replace(host_status(()), version=version, history=(round_(1, up), round_(2, 10 - up)))
        for version, up in ((1, 10), (2, 0))
    )
    both = merged([first, second])
    assert both.version == 2
    assert [(row.bytes_up, row.bytes_down) for row in both.history] == [({"theo": 10}, 4)] * 2


def round_(version: int, up: int) -> StoredRound:
    return StoredRound(version, ("theo",), (), {"theo": up}, bytes_down=2, seconds=1.0)


def test_the_leader_is_killed_once_and_stays_away(tmp_path):
    host = Worker("host-2", tmp_path, [sys.executable, "-c", "import time; time.sleep(600)"])
    host.start()
    kill = LeaderKill()
    try:
        assert kill.turn({"host-2": host}, 5, "host-2", 100.0) == ""
        assert kill.turn({"host-2": host}, 6, "nobody", 100.0) == ""
        assert "host-2 led" in kill.turn({"host-2": host}, 6, "host-2", 100.0)
        assert host.process.wait(30) == -signal.SIGKILL
        assert kill.turn({"host-2": host}, 7, "host-2", 101.0) == ""
        assert kill.keeps_away(host, 129.0)
        assert not kill.keeps_away(host, 131.0)
    finally:
        host.process.kill()


@pytest.mark.nightly
def test_the_demo_over_simulated_ble(tmp_path):
    pytest.importorskip("bumble", reason="bumble is not installed: pip install -e '.[dev]'")
    _, answer = run_demo(tmp_path, "--bearer", "ble", "--loss", "0.05", "--rounds", "3")
    assert answer["rounds"] >= 1
    # On a loaded machine one round of one board may be all, and it need not move the accuracy.
    assert answer["bytes_per_round"] > 0
    assert "simulated" in answer["bearer"]


@pytest.mark.parametrize("connected", [True, False])
def test_the_progress_says_why_nothing_moves(connected):
    waiting = host_status(["theo"], 0, phase="gathering", min_peers=3)
    assert progress(waiting, {"theo": None}, 20) == "starting: 1 of 3 boards are here"
    host = host_status([], transport=replace(DOWN, connected=connected))
    assert progress(None, {"theo": None}, 20) == "starting"
    shown = progress(host, {"theo": None}, 20)
    assert shown.startswith("round  8 of 20: theo")
    assert ("the link is down: no route" in shown) is not connected


def test_to_stay_without_a_page_is_refused(capsys):
    assert main(["demo", "--json", "--stay"]) == 2
    assert "leave one of them out" in capsys.readouterr().err


@pytest.mark.nightly
def test_at_a_terminal_the_page_stays_and_the_end_says_what_is_next(tmp_path):
    command = [*DEMO, "--rounds", "1", "--out", str(tmp_path / "out")]
    terminal, end = pty.openpty()
    with subprocess.Popen(command, stdin=end, stdout=end, stderr=end) as demo:
        os.close(end)
        said = ""
        while "the page stays for 4:5" not in said:
            said += os.read(terminal, 4096).decode()
        assert said.startswith("starting a host")
        assert "boards that a round needs" not in said, "to wait at the start is no alarm"
        page = re.search(r"(http://\S+/)#token", said)
        assert page
        assert urllib.request.urlopen(page[1]).status == 200
        demo.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # the end of a terminal
            while part := os.read(terminal, 4096):
                said += part.decode()
        assert demo.wait(30) == 0
    printed = re.search(r"ternmesh export .*", said)
    assert printed
    assert main([*shlex.split(printed[0])[1:-1], str(tmp_path / "learned")]) == 0
    assert (tmp_path / "learned").is_dir()
    os.close(terminal)
