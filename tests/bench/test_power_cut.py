"""Few of the cuts of `bench power_cut`, and that it sees what it looks for."""

from bench.power_cut import Fuse, PowerCut, cut

CUTS = 40


def test_no_cut_makes_a_nonce_repeat_and_the_run_goes_on() -> None:
    count = cut(CUTS)
    assert (count.cuts, count.repeated) == (CUTS, 0)
    assert count.sealed > 2 * CUTS
    assert count.version > CUTS / 4


def test_either_guard_is_enough_and_none_is_not() -> None:
    assert cut(CUTS, is_random=False).repeated == 0
    assert cut(CUTS, is_kept=False).repeated == 0
    assert cut(CUTS, is_kept=False, is_random=False).repeated > 0


def test_a_fuse_blows_once() -> None:
    fuse, blown = Fuse(3), 0
    for _ in range(9):
        try:
            fuse.point()
        except PowerCut:
            blown += 1
    assert blown == 1
