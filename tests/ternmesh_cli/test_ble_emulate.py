import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("bumble", reason="bumble is not installed: pip install -e '.[dev]'")

ROOT = Path(__file__).parents[2]
RESET = bytes.fromhex("01030c00")  # an HCI command, and its answer
COMPLETE = bytes.fromhex("040e0401030c00")


def test_controllers_are_there_until_told_to_stop() -> None:
    command = [sys.executable, "-m", "ternmesh_cli.main", "ble", "emulate", "--json"]
    process = subprocess.Popen(
        [*command, "--controllers", "3", "--loss", "0.1"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    answer = json.loads(process.stdout.readline())
    assert answer["simulated"]
    assert len(set(answer["hci"])) == 3
    name, address, port = answer["hci"][2].split(":")
    assert name == "tcp-client"
    with socket.create_connection((address, int(port)), timeout=20) as hci:
        hci.sendall(RESET)
        assert hci.recv(100) == COMPLETE
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "simulated" in errors
