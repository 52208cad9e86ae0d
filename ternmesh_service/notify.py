"""What a running program tells systemd: it serves, what it does, and that it makes progress.

This is the protocol of sd_notify(3). All calls come from the main loop's thread, so one that hangs
sends nothing, and systemd restarts the program (WatchdogSec=). A thread of a transport that hangs
withholds the message too. Without NOTIFY_SOCKET nothing is sent.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ternmesh.timers import RateLimiter
from transports.base import TransportStatus

REPORT_S = 5.0  # between two looks at the status
BEAT_S = 30.0  # between two signs of life where systemd sets no limit
START_S = 300  # so long the start may take after each sign of life
# No thread of a transport is silent for so long: its longest pause is 30 s, its longest wait for an
# answer 10 s.
STALLED_S = 300.0
SEND_S = 1.0  # the longest wait for a full queue of systemd
READY, BEAT, STOPPING, STATUS = "READY=1", "WATCHDOG=1", "STOPPING=1", "STATUS="

Statuses = Sequence[TransportStatus]

_log = logging.getLogger(__name__)


class ServiceManager:
    """The connection to systemd that `environment` names, or none."""

    def __init__(
        self,
        environment: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._clock = clock
        self._beat_s, given = BEAT_S, environment.get("WATCHDOG_USEC")
        if given is not None and len(given) < 20 and given.isdecimal() and int(given):
            self._beat_s = int(given) / 2e6
        elif given is not None:
            what = "WATCHDOG_USEC is %r, no number of microseconds: a sign of life every %d s"
            _log.warning(what, given, BEAT_S)
        self._failures = RateLimiter(60.0, 3600.0)
        self._beat_at = self._report_at = clock()
        self._is_ready = self._is_stalled = False
        self._line = ""

    def ready(self) -> None:
        """The program serves: its model and state are open, and its transport was opened."""
        self._is_ready = True
        self.send(READY)

    def stopping(self) -> None:
        self.send(STOPPING)

    def beat(self) -> None:
        """The main thread has done one more part of a long start or of a long call."""
        now = self._clock()
        if now >= self._beat_at and not self._is_stalled:
            self._beat_at = now + self._beat_s
            self.send(BEAT if self._is_ready else f"EXTEND_TIMEOUT_USEC={START_S * 10**6}")

    def turn(self, describe: Callable[[], str], links: Callable[[], Statuses]) -> None:
        """The main loop has turned once more. `links` returns the statuses of all transports."""
        now = self._clock()
        if not self._address or now < self._report_at:
            return
        self._report_at = now + min(REPORT_S, self._beat_s)
        statuses = links()
        self.status(f"{describe()}; {_describe(statuses)}")
        silent_s = max(map(_silent_s, statuses), default=0.0)
        was_stalled, self._is_stalled = self._is_stalled, silent_s >= STALLED_S
        self.beat()
        if self._is_stalled and not was_stalled:
            _log.error(
                "a thread of the transport has not turned for %d s: the watchdog is not told that "
                "this program works",
                silent_s,
            )

    def status(self, line: str) -> None:
        if line != self._line:
            self._line = line
            self.send(STATUS + " ".join(line.split()))

    def send(self, message: str) -> None:
        """Send a message to systemd, if there is one. A failure is logged."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(SEND_S)
                sender.sendto(message.encode(errors="replace"), self._address)
        except OSError as error:
            if self._failures.allow("", self._clock()):
                what = "no message reaches systemd (%s): check NotifyAccess= in the unit"
                _log.warning(what, error)


class PartManager(ServiceManager):
    """The connection of one part of a program, which has a main loop in a thread of its own.

    All parts share `state`. The program is ready, alive or stopping once all its parts are; a part
    that stops is waited for no more.
    """

    def __init__(self, name: str, state: "PartsState", **options: Any) -> None:
        super().__init__(**options)
        self._name = name
        self._state = state

    def send(self, message: str) -> None:
        """Send what the program has to say now that this part sends `message`."""
        with self._state.lock:
            if (of_all := self._state.merged(self._name, message)) is not None:
                super().send(of_all)


class PartsState:
    """What each part of a program has sent; use it under `lock`."""

    def __init__(self, names: Sequence[str]) -> None:
        self.lock = threading.Lock()
        self._lines = dict.fromkeys(names, "")
        self._sent: dict[str, set[str]] = {READY: set(), BEAT: set(), STOPPING: set()}

    def merged(self, name: str, message: str) -> str | None:
        """The message of the whole program, or None if other parts must send theirs first."""
        if message.startswith(STATUS):
            self._lines[name] = message.removeprefix(STATUS)
            shown = [f"{part}: {line}" for part, line in self._lines.items() if line]
            return STATUS + " | ".join(shown)
        if (sent := self._sent.get(message)) is None:
            return message
        sent.add(name)
        if not sent | self._sent[STOPPING] >= self._lines.keys():
            return None
        if message != STOPPING:
            sent.clear()
        return message


def no_beat() -> None:
    """In place of `ServiceManager.beat`."""


def _describe(statuses: Statuses) -> str:
    down = [status for status in statuses if not status.connected]
    if not down:
        return "link up"
    return f"link down ({len(down)} of {len(statuses)}): {down[0].last_error}"


def _silent_s(status: TransportStatus) -> float:
    """The longest time since a thread of this transport has turned."""
    return max(status.turned_s_ago, *map(_silent_s, status.bearers.values()), 0.0)
