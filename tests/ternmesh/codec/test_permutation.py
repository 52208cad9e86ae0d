import numpy as np

from ternmesh.codec.permutation import order


def test_model_and_round_decide_and_nothing_else() -> None:
    base = order(b"m" * 32, 1, 1000)
    assert np.array_equal(base, order(b"m" * 32, 1, 1000))
    for other in (order(b"n" * 32, 1, 1000), order(b"m" * 32, 2, 1000)):
        assert np.count_nonzero(other == base) < 20  # one in a thousand stays by chance


def test_neighbours_are_spread_over_all_frames() -> None:
    places = np.argsort(order(b"m" * 32, 7, 10_000))
    frames = places[:1000] // 1000  # one tensor of 1,000 numbers, ten frames
    assert (np.bincount(frames, minlength=10) > 60).all()
