"""Few of the cuts of `bench power_cut`, and that it sees what it looks for."""

from bench.power_cut import cut

CUTS = 40


def test_no_cut_makes_a_nonce_repeat_and_the_run_goes_on() -> None:
    repeated, sealed, version = cut(CUTS)
    assert repeated == 0
    assert sealed > 2 * CUTS
    assert version > CUTS / 4


def test_either_guard_is_enough_and_none_is_not() -> None:
    assert cut(CUTS, is_random=False)[0] == 0
    assert cut(CUTS, is_kept=False)[0] == 0
    assert cut(CUTS, is_kept=False, is_random=False)[0] > 0
