import subprocess

import numpy as np
import pytest

from bench import result
from bench.m3 import lost
from bench.result import Figure, items_figure


def test_a_kept_result_does_not_change_what_is_measured(tmp_path, monkeypatch) -> None:
    def git(*ask: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *ask], check=True, capture_output=True)

    monkeypatch.setattr(result, "__file__", str(tmp_path / "bench" / "result.py"))
    assert result.commit() == "unknown"
    kept, code = tmp_path / "docs" / "results" / "link.json", tmp_path / "code.py"
    kept.parent.mkdir(parents=True)
    for path in (kept, code):
        path.write_text("1")
    git("init")
    git("add", ".")
    git("commit", "-m", "one")
    head = result.commit()
    assert len(head) == 12
    kept.write_text("2")
    assert result.commit() == head
    assert result.is_clean(head)
    code.write_text("2")
    assert result.commit() == f"{head}+"
    assert not result.is_clean(f"{head}+")
    assert not result.is_clean("0123456789ab")


def test_an_aim_within_the_interval_is_not_shown() -> None:
    assert [Figure(2.0, aim).holds for aim in (None, ">=2", "<=1")] == [None, True, False]
    aims = (">=0.5", ">=2", ">=4", "<=0.5", "<=2", "<=3")
    verdicts = [Figure(2.0, aim, (1.0, 3.0)).holds for aim in aims]
    assert verdicts == [True, "not shown", False, False, "not shown", True]


def test_an_interval_covers_the_items_as_well_as_the_seeds() -> None:
    rng = np.random.default_rng(1)
    by_item = 100.0 * (rng.random(400) < 0.1)
    figure = items_figure(np.tile(by_item, (5, 1)), "<=20")
    assert figure.value == pytest.approx(by_item.mean())
    assert figure.ci95 is not None
    width = figure.ci95[1] - figure.ci95[0]
    assert width == pytest.approx(2 * 1.96 * by_item.std() / 400**0.5, rel=0.1)
    by_seed = np.tile(by_item.mean() + 10 * rng.standard_normal((8, 1)), (1, 400))
    figure = items_figure(by_seed)
    assert figure.ci95 is not None
    width = figure.ci95[1] - figure.ci95[0]
    assert width == pytest.approx(2 * 1.96 * by_seed[:, 0].std() / 8**0.5, rel=0.1)
    assert items_figure(by_seed) == figure, "it is drawn from a seed"


def test_points_lost_are_paired_by_seed_and_item() -> None:
    base = [{"right": "1110"}, {"right": "1111"}]
    figure = lost(base, [{"right": "1100"}, {"right": "0111"}], "<=30")
    assert figure.value == 25.0
    assert figure.holds == "not shown"
    assert lost(base, base, "<=0").ci95 == (0.0, 0.0)
