import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def emulate(*options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ternmesh_cli.main", "radio", "emulate", *options]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_modems_are_there_until_told_to_stop(tmp_path) -> None:
    folder = tmp_path / "radios"
    process = emulate("--modems", "2", "--dialect", "reyax", "--json", "--folder", str(folder))
    answer = json.loads(process.stdout.readline())
    paths = [str(folder / f"modem-{index}") for index in range(2)]
    assert answer == {"simulated": True, "dialect": "reyax", "speed": 1.0, "ports": paths}
    device = os.open(paths[1], os.O_RDWR | os.O_NOCTTY)
    os.write(device, b"AT\r\n")
    text = b""
    while b"+OK\r\n" not in text and select.select([device], [], [], 10.0)[0]:
        text += os.read(device, 1000)
    os.close(device)
    assert text.endswith(b"+OK\r\n")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "simulated" in errors
    assert list(folder.iterdir()) == []
