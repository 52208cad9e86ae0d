"""BLE as a bearer that a `[link]` table asks for, over simulated controllers behind HCI."""

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("bumble", reason="bumble is not installed: pip install -e '.[dev]'")

from ternmesh_store.state_file import StateFile
from transports.base import ALL, HOST, NotConnected, StatusTransport
from transports.ble.config import board_end, bridge_name, static_address
from transports.ble.simulated import VirtualControllers
from transports.factory import boards_of, make_transport
from transports.link_config import LinkConfig

HCI = {"hci": "usb:0"}
BOARDS = ("ada", "bo")


def test_what_nobody_says_follows_from_the_board() -> None:  # R7.4-2
    assert static_address("x") == static_address("x") != static_address("y")
    assert int(static_address("x")[:2], 16) >= 0xC0
    assert len(bridge_name("b" * 32)) <= 29
    board_end({"adapter": "bleak"}, "ada").close()
    bridges = LinkConfig(ble={"ada": HCI, "bo": {"hci": "usb:1"}})
    assert boards_of(bridges, HOST) == BOARDS
    assert boards_of(LinkConfig(ble=HCI), "ada") == ()


def test_who_does_not_use_ble_does_not_pay_for_it() -> None:
    code = "import sys, transports.factory; sys.exit('asyncio' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])


class Neighbourhood:
    """A host with a bridge for each of two boards; controllers 0 and 1 are the bridges'."""

    def __init__(self, air: VirtualControllers, folder: Path) -> None:
        self.air, stores, hci = air, StateFile(folder), [{"hci": name} for name in air.names]

        def opened(role: str, table: dict[str, Any]) -> StatusTransport:
            transport = make_transport(LinkConfig(ble=table), role, stores)
            transport.open()
            return transport

        self.host = opened(HOST, dict(zip(BOARDS, hci, strict=False)))
        self.boards = {b: opened(b, table) for b, table in zip(BOARDS, hci[2:], strict=True)}

    def has_path(self, board: str) -> bool:
        return self.host.status().bearers[board].connected and self.boards[board].connected

    def close(self) -> None:
        for end in (*self.boards.values(), self.host):
            end.close()


@pytest.fixture
def near(tmp_path: Path, eventually) -> Iterator[Neighbourhood]:
    with VirtualControllers(4, loss=0.05, rng=random.Random(1)) as air:
        made = Neighbourhood(air, tmp_path)
        eventually(lambda: all(map(made.has_path, BOARDS)))
        yield made
        made.close()


def collect(end: StatusTransport, count: int) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    while len(found) < count:
        arrival = end.receive(20.0)
        assert arrival is not None, f"only {len(found)} of {count} frames came"
        found += [(arrival.peer, frame) for frame in arrival.frames]
    return found


def test_boards_reach_their_bridges_through_losses(near) -> None:
    frames = {board: [bytes([i]) * 900 for i in range(10)] for board in BOARDS}
    for board, end in near.boards.items():
        end.send(HOST, frames[board])
    near.host.send(ALL, [b"everybody" * 100])
    near.host.send("bo", [b"you"])
    heard = collect(near.host, 20)
    for board in BOARDS:
        assert [frame for peer, frame in heard if peer == board] == frames[board]
    assert collect(near.boards["ada"], 1) == [(HOST, b"everybody" * 100)]
    assert collect(near.boards["bo"], 2) == [(HOST, b"everybody" * 100), (HOST, b"you")]
    near.close()
    with pytest.raises(NotConnected, match=r"ada: .*bo: "):
        near.host.send(ALL, [b"x"])


@pytest.mark.parametrize("index", [0, 2], ids=["bridge", "board"])
def test_a_controller_that_is_pulled_out_and_in_again(near, eventually, index: int) -> None:
    [end] = [end for end in near.air._sockets if end.index == index]
    near.air._loop.call(end.close)
    eventually(lambda: not near.has_path("ada"))
    eventually(lambda: near.has_path("ada"))
    near.boards["ada"].send(HOST, [b"up"])
    assert ("ada", b"up") in collect(near.host, 1)
