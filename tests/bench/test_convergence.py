"""What the benchmark of convergence rests on: texts apart, bytes, gaps, and times to a loss."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import corpus
from bench.convergence import (
    ADAMW,
    AIMED,
    ARMS,
    EXTENTS,
    HALF,
    MUON,
    NONE,
    TWO_LAYERS,
    Extent,
    Run,
    hours_to,
    part_of,
    start,
    summary,
    tokens_to,
    train,
)
from bench.corpus import Corpus
from models.bottleneck.config import Shape

TINY = Shape(vocabulary=16, width=16, layers=8, heads=2, length=8)


@pytest.mark.parametrize("arm", [name for name in ARMS if name != TWO_LAYERS])
def test_an_arm_sends_its_share_of_the_width_in_its_bits(arm: str) -> None:
    extent = EXTENTS["w128"]
    boundary, shape = start(Run(arm, MUON, 1e-3), 0, extent).stages[0].exit, extent.shape
    sizes = boundary.sizes(extent.batch, shape.length)
    ids = 1 if ARMS[arm].method == "subspace" else 0
    latent = max(1, round(shape.width * ARMS[arm].share))
    both = ARMS[arm].bits, ARMS[arm].back_bits
    for size, bits, extra in zip(sizes, both, (ids, 0), strict=True):
        scale = 2 if bits <= 8 else 0
        assert size == extent.batch * shape.length * (math.ceil(latent * bits / 8) + scale + extra)


def test_two_layers_alone_have_no_boundary() -> None:
    made = start(Run(TWO_LAYERS, MUON, 1e-3), 0, EXTENTS["w128"])
    assert [stage.exit for stage in made.stages] == [None]
    assert len(made.stages[0].layers) == 2 + 2


def test_a_training_learns_and_keeps_its_curve() -> None:
    text = np.tile(np.arange(16, dtype=np.int32), 40)
    extent = Extent(TINY, 40, 4, "cpu", ())
    made = train(Run(NONE, MUON, 1e-2), 0, extent, Corpus(text, text, text, 16))
    assert len(made["curve"]) == 20
    assert made["curve"][-1][0] == 40 * 4 * 8
    assert made["judged"] < made["curve"][0][1] - 1
    assert made["judged"] == pytest.approx(made["chosen"])


def test_a_training_that_diverges_ends_at_infinity() -> None:
    text = np.tile(np.arange(16, dtype=np.int32), 40)
    extent = Extent(TINY, 40, 4, "cpu", ())
    made = train(Run(AIMED, ADAMW, 1e30), 0, extent, Corpus(text, text, text, 16))
    assert made["judged"] == math.inf
    assert len(made["curve"]) < 20


def row(chosen: float, judged: float, at: float = 100.0, size: float = 0.0) -> dict[str, Any]:
    """A finished run whose curve falls from 4 to `chosen` at the tokens `at`."""
    curve = [[0.0, 4.0, 4.0], [at, chosen, chosen]]
    return {"chosen": chosen, "judged": judged, "curve": curve, "bytes_per_token": [size, size]}


RUNS = (
    Run(NONE, MUON, 3e-3),
    Run(HALF, MUON, 3e-3),
    Run(NONE, ADAMW, 1e-3),
    Run(TWO_LAYERS, MUON, 3e-3),
    Run(AIMED, MUON, 3e-3),
    Run(AIMED, MUON, 1e-3),
)


def finished(**changed: dict[str, Any]) -> Mapping[str, Any]:
    """The parts of RUNS: each the same for both seeds."""
    rows = [
        row(2.0, 2.5, size=1000.0),
        row(2.1, 2.2, size=1000.0),
        row(2.6, 2.6, size=1000.0),
        row(2.5, 2.55),
        row(2.2, 2.7, at=200.0, size=100.0),
        row(2.3, 2.4, at=200.0, size=100.0),
    ]
    parts = {part_of("w512", run, s): r for run, r in zip(RUNS, rows, strict=True) for s in (0, 1)}
    speed = {NONE: 10.0, HALF: 10.0, TWO_LAYERS: 40.0, AIMED: 10.0}
    return parts | {"w512/speed": {"tokens_per_s": speed}} | changed


def test_gaps_are_to_the_best_uncompressed_run_and_nothing_is_chosen_on_judged_text() -> None:
    figures, details = summary(Extent(TINY, 1, 1, "cpu", RUNS), finished(), "w512")
    assert details["uncompressed"] == "none/muon/0.003"  # the other is better on judged text only
    assert details["chosen_rates"][f"{AIMED}/{MUON}"] == 3e-3
    assert "gap_none_muon" not in figures
    assert figures["gap_none_half_rate_muon"].value == pytest.approx(-0.3)
    assert figures["gap_none_adamw"].value == pytest.approx(0.1)
    assert figures["gap_two_layers_muon"].value == pytest.approx(0.05)
    aimed = figures["gap_resbm_8x_8bit_muon"]
    assert aimed.value == pytest.approx(0.2)
    assert aimed.holds is False


def test_below_the_break_point_the_compressed_arm_is_there_first() -> None:
    figures, details = summary(Extent(TINY, 1, 1, "cpu", RUNS), finished(), "w512")
    assert details["hours_to_loss"]["loss"] == 2.5
    limit = figures["break_mbit_resbm_8x_8bit"].value
    needs = {
        NONE: (tokens_to([[0, 4], [100, 2.0]], 2.5), 40.0, 1000.0),
        AIMED: (tokens_to([[0, 4], [200, 2.2]], 2.5), 40.0, 100.0),
    }
    for mbits, first in ((limit * 0.99, AIMED), (limit * 1.01, NONE)):
        assert min(needs, key=lambda arm: hours_to(needs[arm], mbits)) == first


def test_a_loss_that_is_never_reached_takes_for_ever() -> None:
    curve = [[10, 4.0, 0.0], [20, 3.0, 0.0], [30, 2.0, 0.0]]
    assert tokens_to(curve, 2.5) == 25
    assert tokens_to(curve, 5.0) == 10
    assert tokens_to(curve, 1.0) == math.inf
    assert hours_to((3600.0, 1.0, 0.0), 10) == 1  # no bytes, no link
    assert hours_to((3600.0, 1.0, 1.25e6), 5) == 2


def test_sets_of_books_do_not_overlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").mkdir()
    for number in range(2):
        book = np.random.default_rng(number).bytes(20_000)
        (tmp_path / "text" / f"{number}.txt").write_bytes(book)
    monkeypatch.setenv("TERNMESH_DATA", str(tmp_path))
    made = corpus.books(64)
    assert (len(made.train), len(made.chosen), len(made.judged)) == (38_000, 1000, 1000)
    whole = [s.astype(np.uint8).tobytes() for s in (made.train, made.chosen, made.judged)]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        starts = range(0, 990, 10)
        assert all(whole[other][at : at + 8] not in whole[one] for at in starts)


def test_folders_of_sources_are_held_out_whole_and_a_file_counts_once(tmp_path: Path) -> None:
    for folder in range(200):
        place = tmp_path / "package" / f"part{folder}"
        place.mkdir(parents=True)
        for name in "ab":
            (place / f"{name}.py").write_text(f"# file {name} of {folder}\n")
        (place / "copy.py").write_text("# the same everywhere\n")
    (tmp_path / "package" / "table.py").write_text("x" * 1000)
    sets = corpus._documents(tmp_path)
    texts = [text for rows in sets.values() for text in rows]
    assert len(texts) == len(set(texts)) == 2 * 200 + 1
    for rows in sets.values():
        folders = [text.split()[-1] for text in rows if "file" in text]
        assert rows
        assert all(folders.count(folder) == 2 for folder in folders)
