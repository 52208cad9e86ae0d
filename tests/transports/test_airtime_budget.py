import ctypes
from math import inf
from pathlib import Path
from types import SimpleNamespace

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


@pytest.mark.parametrize("speed", [1.0, 100.0])  # an emulated radio has shorter hours
def test_an_hour_has_room_for_so_much_also_over_a_restart_and_says_when_for_more(
    tmp_path: Path, speed: float
) -> None:
    clock = Clock()
    first = budget(tmp_path / "air.db", clock, speed)
    assert [first.may_send(FRAME_US) for _ in range(5)] == [0.0] * 5
    first.close()  # in peace: what was reserved ahead is given back
    air = budget(tmp_path / "air.db", clock, speed)
    assert [air.may_send(FRAME_US) for _ in range(4)] == [0.0] * 4
    wait_s = air.may_send(FRAME_US)
    assert HOUR_S < wait_s * speed < HOUR_S + 60
    clock.now_s += wait_s
    assert air.may_send(FRAME_US) == 0.0
    air.close()


def test_a_frame_longer_than_the_hours_budget_never_leaves(tmp_path: Path) -> None:  # R8.3-4
    air = budget(tmp_path / "air.db", Clock())
    assert air.may_send(3_600_001) == inf
    assert air.may_send(FRAME_US) == 0.0
    air.close()


def test_a_disk_that_was_full_is_asked_again(tmp_path: Path, monkeypatch) -> None:
    store = AirtimeStore(tmp_path / "air.db")
    air = AirtimeBudget(store, BAND, clock=Clock())

    def full(*_: object) -> None:
        store.close()
        raise StoreError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(store, "reserve", full)
        with pytest.raises(StoreError):
            air.may_send(FRAME_US)
    assert air.may_send(FRAME_US) == 0.0
    air.close()


@pytest.mark.parametrize(
    ("state", "trusted"), [(0, True), (4, True), (5, False), (-1, False), (None, False)]
)
def test_the_wall_clock_is_trusted_while_the_kernel_calls_it_synchronised(
    monkeypatch, state, trusted
):
    calls = {} if state is None else {"adjtimex": lambda buffer: state}
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(**calls))
    assert (read_moment().wall_s is not None) == trusted


def test_one_boot_has_one_name_and_no_linux_has_none(monkeypatch, tmp_path):
    first, second = read_moment(), read_moment()
    assert first.boot == second.boot
    assert first.now_s <= second.now_s
    monkeypatch.setattr(airtime_budget, "BOOT_ID", tmp_path / "none")
    assert read_moment().boot == ""
