import sys
from typing import Any

import pytest

from bench.fleet import Fleet, measure_fleet

pytestmark = pytest.mark.nightly  # of the figures of a benchmark


def calls(fleet: Fleet, board: int) -> int:
    """How many function calls the host needs for the frames of one board."""
    count = 0

    def note(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    name, frames = fleet.names[board], fleet.sealed[0][board]
    sys.setprofile(note)
    try:
        fleet.take(name, frames)
    finally:
        sys.setprofile(None)
    return count


def test_the_work_for_one_boards_frames_does_not_depend_on_the_number_of_boards() -> None:
    found = []
    for boards in (5, 25):
        fleet = Fleet(boards, 1)
        calls(fleet, 0)  # the full look at all boards is due once
        found.append(calls(fleet, 1))
    few, many = found
    assert abs(many - few) < 20, "no call for each of the others"


def test_a_round_is_measured_from_signed_frames_to_the_global_update() -> None:
    row = measure_fleet(12, 2)
    assert row["round_s"] > 0 < row["cpu_us_a_frame"]
    assert 800 < row["bytes_up"] < 1000 < row["bytes_down"] < 1500
