"""The messages to systemd, on a real socket with a clock of our own."""

import logging
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from ternmesh_service.notify import STALLED_S, PartManager, PartsState, ServiceManager
from transports.base import TransportStatus

UP = TransportStatus(connected=True, last_error=None, turned_s_ago=0.5)
DOWN = TransportStatus(connected=False, last_error="no\nanswer", turned_s_ago=0.5)


class Systemd:
    """The other end of the socket, and the time."""

    def __init__(self, address: str) -> None:
        self.now = 1000.0
        self.environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "60000000"}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address.replace("@", "\0"))
        self._socket.setblocking(False)

    def heard(self) -> list[str]:
        found = []
        while True:
            try:
                found.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "name"])
def systemd(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Systemd]:
    is_path = request.param == "path"
    made = Systemd(str(tmp_path / "notify") if is_path else f"@ternmesh-test-{os.getpid()}")
    yield made
    made.close()


@pytest.fixture
def manager(systemd: Systemd) -> ServiceManager:
    return ServiceManager(systemd.environment, lambda: systemd.now)


def turn(manager: ServiceManager, *links: TransportStatus, line: str = "training") -> None:
    manager.turn(lambda: line, lambda: links)


def test_a_life(systemd: Systemd, manager: ServiceManager) -> None:
    manager.beat()
    assert systemd.heard() == ["EXTEND_TIMEOUT_USEC=300000000"]
    manager.ready()
    systemd.now += 31.0
    turn(manager, UP)
    manager.stopping()
    assert systemd.heard() == ["READY=1", "STATUS=training; link up", "WATCHDOG=1", "STOPPING=1"]


def test_without_systemd_nothing_is_computed_or_sent() -> None:
    manager = ServiceManager({})
    manager.ready()
    manager.turn(lambda: pytest.fail("asked"), lambda: pytest.fail("asked"))
    manager.stopping()


def test_a_sign_of_life_comes_at_half_of_the_limit(
    systemd: Systemd, manager: ServiceManager
) -> None:
    manager.ready()
    times = []
    for _ in range(1000):
        turn(manager, UP)
        times += [systemd.now] * systemd.heard().count("WATCHDOG=1")
        systemd.now += 0.25
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses
    assert all(30.0 <= pause <= 35.0 for pause in pauses)


@pytest.mark.parametrize(
    "hung",
    [
        replace(UP, turned_s_ago=STALLED_S),
        replace(UP, bearers={"a": UP, "b": replace(UP, turned_s_ago=1e4)}),
    ],
)
def test_a_thread_of_a_transport_that_hangs_is_not_hidden(
    systemd: Systemd,
    manager: ServiceManager,
    caplog: pytest.LogCaptureFixture,
    hung: TransportStatus,
) -> None:
    manager.ready()
    for _ in range(10):
        systemd.now += 31.0
        turn(manager, UP, hung)
        manager.beat()
    assert "WATCHDOG=1" not in systemd.heard()
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    turn(manager, UP)
    systemd.now += 31.0
    turn(manager, UP)
    assert "WATCHDOG=1" in systemd.heard()


def test_the_status_is_one_line_and_sent_where_it_changes(
    systemd: Systemd, manager: ServiceManager
) -> None:
    for links in ((UP, UP), (UP, UP), (UP, DOWN)):
        systemd.now += 6.0
        turn(manager, *links)
    shown = [message for message in systemd.heard() if message.startswith("STATUS")]
    assert shown == ["STATUS=training; link up", "STATUS=training; link down (1 of 2): no answer"]


def test_a_program_of_parts_works_while_all_parts_do(systemd: Systemd) -> None:
    state = PartsState(["a", "b"])
    a, b = (
        PartManager(name, state, environment=systemd.environment, clock=lambda: systemd.now)
        for name in ("a", "b")
    )
    a.beat()
    a.ready()
    assert systemd.heard() == ["EXTEND_TIMEOUT_USEC=300000000"]
    b.ready()
    assert systemd.heard() == ["READY=1"]
    for _ in range(3):
        systemd.now += 31.0
        turn(a, UP, line="round 2")
        turn(b, UP, line="paused")
    heard = systemd.heard()
    assert heard.count("WATCHDOG=1") == 3
    assert heard[1] == "STATUS=a: round 2; link up | b: paused; link up"
    for _ in range(10):  # b hangs
        systemd.now += 31.0
        turn(a, UP, line="round 2")
    assert systemd.heard() == []
    b.stopping()
    systemd.now += 31.0
    turn(a, UP, line="round 2")
    a.stopping()
    assert systemd.heard() == ["WATCHDOG=1", "STOPPING=1"]


def test_a_socket_that_is_gone_is_logged_seldom(tmp_path: Path, caplog) -> None:
    now = [1000.0]
    manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "none")}, lambda: now[0])
    manager.ready()
    assert caplog.text.count("no message reaches systemd") == 1
    for _ in range(3600):
        now[0] += 1.0
        turn(manager, UP, line=f"round {now[0]}")
    assert 2 <= caplog.text.count("no message reaches systemd") <= 7  # it doubles its pauses


@pytest.mark.parametrize("given", ["", "soon", "0", "-5", "nan", "inf", "1e6", "3.5", "9" * 5000])
def test_a_watchdog_time_that_is_none_is_one_warning(systemd: Systemd, caplog, given) -> None:
    environment = systemd.environment | {"WATCHDOG_USEC": given}
    manager = ServiceManager(environment, lambda: systemd.now)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no number of microseconds" in caplog.text
    manager.ready()
    systemd.heard()
    systemd.now += 31.0
    turn(manager, UP)
    assert "WATCHDOG=1" in systemd.heard()


def test_a_line_that_is_no_utf_8_is_sent(systemd: Systemd, manager: ServiceManager) -> None:
    manager.status("cannot read \udcff")
    assert systemd.heard() == ["STATUS=cannot read ?"]
