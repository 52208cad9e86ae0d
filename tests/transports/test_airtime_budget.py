import ctypes
from math import inf
from pathlib import Path

import pytest

from ternmesh.link.ledger import HOUR_S, Moment
from ternmesh.link.regions import EU868
from ternmesh_store.airtime_store import AirtimeStore
from ternmesh_store.database import StoreError
from transports.serial_lora import airtime_budget
from transports.serial_lora.airtime_budget import AirtimeBudget, read_moment

BAND = next(band for band in EU868.sub_bands if band.duty_cycle == 0.001)
FRAME_US = 400_000  # nine of them fill the 3.6 s of a tenth of a per cent


class Clock:
    """A machine that stays up; its wall clock is not trusted."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> Moment:
        return Moment("boot", self.now_s)


def budget(path: Path, clock: Clock, speed: float = 1.0) -> AirtimeBudget:
    return AirtimeBudget(AirtimeStore(path), BAND, hold_s=1.0, speed=speed, clock=clock)


def test_an_hour_has_room_for_so_much_and_says_when_for_more(tmp_path: Path) -> None:
    clock = Clock()
    air = budget(tmp_path / "air.db", clock)
    assert [air.may_send(FRAME_US) for _ in range(9)] == [0.0] * 9
    wait_s = air.may_send(FRAME_US)
    assert HOUR_S < wait_s < HOUR_S + 60
    clock.now_s += wait_s
    assert air.may_send(FRAME_US) == 0.0
    air.close()


def test_a_restart_gives_back_what_was_granted_in_peace_and_nothing_else(tmp_path: Path) -> None:
    clock = Clock()
    first = budget(tmp_path / "air.db", clock)
    for _ in range(5):
        first.may_send(FRAME_US)
    first.close()
    second = budget(tmp_path / "air.db", clock)
    assert [second.may_send(FRAME_US) for _ in range(4)] == [0.0] * 4
    assert second.may_send(FRAME_US) > HOUR_S - 60
    second.close()


def test_an_emulated_radio_has_shorter_hours(tmp_path: Path) -> None:
    clock = Clock()
    air = budget(tmp_path / "air.db", clock, speed=100.0)
    for _ in range(9):
        assert air.may_send(FRAME_US) == 0.0
    wait_s = air.may_send(FRAME_US)
    assert 36 < wait_s < 37
    clock.now_s += wait_s
    assert air.may_send(FRAME_US) == 0.0
    air.close()


def test_a_frame_longer_than_the_hours_budget_never_leaves(tmp_path: Path) -> None:  # R8.3-4
    air = budget(tmp_path / "air.db", Clock())
    assert air.may_send(3_600_001) == inf
    assert air.may_send(FRAME_US) == 0.0
    air.close()


def test_a_disk_that_was_full_is_asked_again(tmp_path: Path, monkeypatch) -> None:
    air = budget(tmp_path / "air.db", Clock())
    assert air.may_send(FRAME_US) == 0.0

    def full(*_: object) -> None:
        air._log.close()
        raise StoreError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(air._log, "reserve", full)
        with pytest.raises(StoreError):
            air.may_send(FRAME_US)
    assert air.may_send(FRAME_US) == 0.0
    air.close()


class Kernel:
    def __init__(self, state: int) -> None:
        self.adjtimex = lambda buffer: state


@pytest.mark.parametrize(("state", "trusted"), [(0, True), (4, True), (5, False), (-1, False)])
def test_the_wall_clock_is_trusted_while_the_kernel_calls_it_synchronised(
    monkeypatch, state, trusted
):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Kernel(state))
    assert (read_moment().wall_s is not None) == trusted


def test_a_machine_without_adjtimex_trusts_nothing(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert read_moment().wall_s is None


def test_one_boot_has_one_name_and_no_linux_has_none(monkeypatch, tmp_path):
    first, second = read_moment(), read_moment()
    assert first.boot == second.boot
    assert first.now_s <= second.now_s
    monkeypatch.setattr(airtime_budget, "BOOT_ID", tmp_path / "none")
    assert read_moment().boot == ""
