"""The way back of an upgrade that failed or was cut, with Python's own library alone.

`ternmesh upgrade` leaves a copy of this file beside its marker, and ternmesh-upgrade.service runs
that with the system's Python: the packages of ternmesh may be half replaced then. Every part may be
done twice, so where the power fails in the middle, the next start does it all again.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import syslog
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

MARKER, LAST, KEPT, LOCK = "marker.json", "last.json", "kept", "lock"
NEW = "new"  # in KEPT: where the file to install lies
BEGUN, DONE, ROLLED_BACK = "begun", "done", "rolled back"  # the steps of a marker
LOCKED_S, LOCKED_TRIES = 5.0, 60  # apt or another dpkg may hold the lock of dpkg


class Failed(Exception):
    """A sentence that says what failed."""


def run(*command: object) -> str:
    """The output of a program, which no Ctrl-C reaches; Failed with what it says, or OSError."""
    words, environment = [str(word) for word in command], {**os.environ, "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
        env=environment, umask=0o022, start_new_session=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise Failed(f"`{' '.join(words[:2])}` says: {' '.join(done.stderr.split())[-300:]}")
    return done.stdout


def dpkg(*options: object) -> None:
    """Let dpkg work, as soon as nobody else does."""
    for left in reversed(range(LOCKED_TRIES)):
        try:
            run("dpkg", *options)
            return
        except Failed as error:
            if "locked" not in str(error) or not left:
                raise
        time.sleep(LOCKED_S)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One upgrade at a time; Failed while another goes on."""
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Failed("another upgrade goes on: wait for its end") from error
        yield


def write_marker(folder: Path, marker: Mapping[str, Any]) -> None:
    """Make durable how far an upgrade is, and all that came before."""
    new = folder / f"{MARKER}.new"
    new.write_text(json.dumps(marker, indent=1))
    os.sync()
    new.replace(folder / MARKER)
    os.sync()


def finish(folder: Path, marker: Mapping[str, Any], step: str, sentence: str) -> None:
    """The end of an upgrade: say it to the log, and drop what was kept."""
    _make_room(folder)
    marker = {**marker, "step": step, "sentence": sentence}
    write_marker(folder, marker)
    syslog.openlog("ternmesh-upgrade")
    syslog.syslog(syslog.LOG_NOTICE if step == DONE else syslog.LOG_ERR, sentence)
    _drop(folder)


def recover(folder: Path) -> str | None:
    """Bring an upgrade that was cut to its end; what was done, or None where there is none."""
    if not (folder / MARKER).exists():
        return None
    marker = json.loads((folder / MARKER).read_text())
    if marker["step"] == BEGUN:
        return roll_back(folder, "it was interrupted")
    _drop(folder)
    return str(marker["sentence"])


def roll_back(folder: Path, why: str) -> str:
    """Bring the previous version back; what was done."""
    marker = json.loads((folder / MARKER).read_text())
    units = marker["units"]
    sentence = f"the upgrade to {marker['new']} failed ({why}); "
    _make_room(folder)
    try:
        run("systemctl", "stop", *units)
        _bring_program_back(marker)
        sentence += f"{marker['old']} is back"
        run("systemctl", "start", "--no-block", *units)
    except (Failed, OSError) as error:
        with suppress(Failed, OSError):  # what is there may still work, and nobody may be near
            run("systemctl", "start", "--no-block", *units)
        sentence += (
            f"and so did the way back ({error}): `systemctl start ternmesh-upgrade` tries it "
            f"again; {folder / KEPT} holds the previous version"
        )
        syslog.syslog(syslog.LOG_ERR, sentence)
        raise Failed(sentence) from error
    finish(folder, marker, ROLLED_BACK, sentence)
    return sentence


def _bring_program_back(marker: Mapping[str, Any]) -> None:
    try:
        dpkg("--install", marker["previous"])
    except Failed as error:
        syslog.syslog(syslog.LOG_WARNING, str(error))
        dpkg("--configure", "-a")
        dpkg("--install", marker["previous"])


def _make_room(folder: Path) -> None:
    """For a marker, and for the way back, on a full disk."""
    shutil.rmtree(folder / KEPT / NEW, ignore_errors=True)


def _drop(folder: Path) -> None:
    (folder / MARKER).replace(folder / LAST)
    os.sync()
    shutil.rmtree(folder / KEPT, ignore_errors=True)


def main() -> int:
    """Recover beside this file; the exit code."""
    folder = Path(__file__).resolve().parent
    try:
        with locked(folder):
            sentence = recover(folder)
    except (Failed, OSError) as error:
        print(error, file=sys.stderr)  # noqa: T201  (a program of its own)
        return 1
    print(sentence or "no upgrade was cut")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
