"""A small service manager: it starts a program, hears what it says, and ends one that hangs.

It does what systemd does with Type=notify and WatchdogSec=, so that this is tested on every
machine. A hang of the main thread alone is made with SIGUSR1, clocks with `clock`.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATIENCE_S = 60.0
# Python runs it at its start, and runs signal handlers in the main thread.
SITE = """
import os, signal, time
signal.signal(signal.SIGUSR1, lambda *_: time.sleep(3600))
if clock := os.environ.get("TEST_CLOCK"):
    begun = time.monotonic()
    time.time = lambda: float(clock) + time.monotonic() - begun
    time.time_ns = lambda: int(1e9 * time.time())
"""


class Supervisor:
    """Runs `ternmesh ARGUMENTS`; its files, and what it writes on stderr, are in `folder`."""

    def __init__(
        self,
        folder: Path,
        *arguments: object,
        watchdog_s: float = 20.0,
        clock: float | None = None,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        self.log_path = folder / "log.txt"
        self.messages: list[str] = []
        self.watchdog_s = watchdog_s
        self._prepare = prepare
        self._command = [sys.executable, "-m", "ternmesh_cli", *map(str, arguments)]
        (folder / "site").mkdir(parents=True, exist_ok=True)
        (folder / "site" / "sitecustomize.py").write_text(SITE)
        self._path = folder / "notify"
        self._environment = {
            **os.environ,
            "PYTHONPATH": f"{folder / 'site'}{os.pathsep}{ROOT}",
            "NOTIFY_SOCKET": str(self._path),
            "WATCHDOG_USEC": f"{watchdog_s * 1e6:.0f}",
            **({} if clock is None else {"TEST_CLOCK": str(clock)}),
        }
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(0.1)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Supervisor":
        self._path.unlink(missing_ok=True)
        self._socket.bind(str(self._path))
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._socket.close()

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def start(self) -> None:
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdout=log,
                stderr=log,
                preexec_fn=self._prepare,
            )

    def listen(self, wanted: str) -> str:
        """The next message that contains `wanted`."""
        give_up_at = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up_at:
            with contextlib.suppress(TimeoutError):
                message = self._socket.recv(65_536).decode()
                self.messages.append(message)
                if wanted in message:
                    return message
        raise AssertionError(f"no {wanted!r} in {self.messages}\n{self.log}")

    def end_a_hang(self) -> None:
        """Wait for the watchdog's time without a sign of life, and end it as systemd does."""
        heard_at = time.monotonic()
        while time.monotonic() < heard_at + self.watchdog_s:
            with contextlib.suppress(TimeoutError):
                message = self._socket.recv(65_536).decode()
                assert not message.startswith("WATCHDOG"), "the hang is hidden"
        self.process.send_signal(signal.SIGABRT)
        try:
            self.process.wait(1.0)
        except subprocess.TimeoutExpired:  # it was stopped
            self.process.kill()
            self.process.wait()

    def stop(self) -> int:
        """End it with SIGTERM; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)
