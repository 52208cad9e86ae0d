"""The network and the fleet of the digits benchmark, on made-up digits."""

import csv
import gzip
from pathlib import Path

import numpy as np
import pytest

from bench import robust_digits as bench


@pytest.fixture
def digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,797 noisy copies of ten patterns."""
    rng = np.random.default_rng(0)
    patterns = rng.uniform(0, 16, (bench.CLASSES, bench.PIXELS))
    path = tmp_path / "digits.csv.gz"
    with gzip.open(path, "wt", newline="") as file:
        for number in range(1797):
            noisy = patterns[number % 10] + rng.normal(0, 2, bench.PIXELS)
            csv.writer(file).writerow([*np.clip(noisy, 0, 16).round(2), number % 10])
    monkeypatch.setattr(bench, "digits_file", lambda: path)


def test_gradients_are_the_slopes_of_the_loss() -> None:
    rng = np.random.default_rng(0)
    start = bench.initial(0)
    own = bench.Samples(rng.uniform(0, 1, (8, 64)).astype(np.float32), rng.integers(10, size=8))
    gradient = bench.gradients(start[None], own.x[None], own.y[None])[0].astype(np.float64)
    for place in (3, 2050, 2100, 2405):
        away = np.zeros_like(start)
        away[place] = 1e-2
        ways = [bench.judge(start + w, own)[0].mean(dtype=np.float64) for w in (away, -away)]
        assert (ways[0] - ways[1]) / 2e-2 == pytest.approx(gradient[place], abs=2e-4)


@pytest.mark.usefixtures("digits")
def test_every_sample_is_dealt_once() -> None:
    shares = bench.shares_of(0, 0.1, bench.ROOTS)
    dealt = sum(len(own.y) for own in (*shares.trained, *shares.held_out))
    assert dealt + len(shares.root.y) + len(shares.claimed.y) == 1797
    assert len(shares.root.y) == bench.ROOTS
    assert min(len(own.y) for own in shares.held_out) >= 2


@pytest.mark.usefixtures("digits")
@pytest.mark.parametrize("attack", [bench.NONE, "optimised_alie", "mimic", "lying_labels"])
def test_a_fleet_learns(attack: str) -> None:
    found = bench.run(0, 1.0, attack, bench.ROOTS, 12)
    assert found["accuracy"] > 60
    assert len(found["liars"]) == (0 if attack == bench.NONE else bench.LIARS)
