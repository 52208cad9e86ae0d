"""The guide's installation of a broker by root: the files that the broker's user can change."""

import os
import pwd
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ternmesh_cli import main
from tests.mosquitto import find_mosquitto, free_port, listens, run_as

GUIDE = Path(__file__).parents[2] / "docs" / "broker.md"
PLACE, USER, WAIT_S = "/etc/mosquitto/attic", "nobody", 20.0


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that another user can reach; only root can reach tmp_path."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files to the broker's user")
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not installed: apt install mosquitto")
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def commands(place: Path) -> str:
    """The steps of the guide from the new folder to the start of mosquitto."""
    text = GUIDE.read_text()
    block = text[text.index(f"sudo mkdir -m 755 {PLACE}") : text.index("sudo systemctl edit")]
    for old, new in (("sudo ", ""), (PLACE, str(place)), ("mosquitto: ", f"{USER}: ")):
        block = block.replace(old, new)
    return block


def ternmesh(*arguments: object) -> None:
    assert main.main(["broker", *map(str, arguments)]) == 0


def test_the_brokers_user_cannot_choose_whom_it_becomes(folder: Path, eventually) -> None:
    place, port, user = folder / "attic", free_port(), pwd.getpwnam(USER)
    made = ("--dir", folder / "broker", "--fleet", "attic")
    where = ("--name", "localhost", "--port", port, "--place", place)
    ternmesh("config", *made, *where, "--node", "ada")
    run_as(USER, folder / "broker")
    subprocess.run(["sh", "-ec", commands(place)], cwd=folder, check=True)
    for path in (folder, place, place / "mosquitto.conf"):
        assert (path.stat().st_uid, path.stat().st_mode & 0o022) == (0, 0)
    with (folder / "log").open("wb") as log:
        command = [str(find_mosquitto()), "-v", "-c", str(place / "mosquitto.conf")]
        broker = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        eventually(lambda: listens(port), WAIT_S)
        assert Path(f"/proc/{broker.pid}").stat().st_uid == user.pw_uid
        ternmesh("add", *made, "--node", "bob")
        for name in ("passwords", "access"):
            subprocess.run(["cp", folder / "broker" / name, place / name], check=True)
            owned = (place / name).stat()
            assert (owned.st_uid, owned.st_mode & 0o777) == (user.pw_uid, 0o600)
        broker.send_signal(signal.SIGHUP)
        time.sleep(1.0)
        assert listens(port)
        assert broker.poll() is None
        # The probes of the port above end in TLS errors: only those of files count.
        lines = (folder / "log").read_text().splitlines()
        assert not [line for line in lines if "Error" in line and "OpenSSL" not in line]
    finally:
        broker.terminate()
        broker.wait(WAIT_S)
    assert (place / "data" / "mosquitto.db").exists()
