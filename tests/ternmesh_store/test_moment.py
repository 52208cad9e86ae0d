import ctypes

import pytest

from ternmesh_store import moment


class Kernel:
    def __init__(self, state: int) -> None:
        self.adjtimex = lambda buffer: state


@pytest.mark.parametrize(("state", "trusted"), [(0, True), (4, True), (5, False), (-1, False)])
def test_the_wall_clock_is_trusted_while_the_kernel_calls_it_synchronised(
    monkeypatch, state, trusted
):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Kernel(state))
    assert (moment.read_moment().wall_s is not None) == trusted


def test_a_machine_without_adjtimex_trusts_nothing(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert moment.read_moment().wall_s is None


def test_one_boot_has_one_name_and_no_linux_has_none(monkeypatch, tmp_path):
    first, second = moment.read_moment(), moment.read_moment()
    assert first.boot == second.boot
    assert first.now_s <= second.now_s
    monkeypatch.setattr(moment, "BOOT_ID", tmp_path / "none")
    assert moment.read_moment().boot == ""
