"""What the benchmarks of replicas, kills and subspaces rest on."""

from pathlib import Path

import pytest
import torch
from torch import nn

from bench import convergence_plot, pipeline_plot
from bench.pipeline_kill import KILLS
from bench.pipeline_kill import _figures as kill_figures
from bench.pipeline_kill import tables_of as kill_tables
from bench.pipeline_run import ranks_of
from bench.replicas import ALL_REDUCE, ARMS, gaps, tables_of
from bench.subspace_memory import memory
from bench.subspace_nets import networks
from bench.subspace_plot import draw
from bench.subspace_training import confined_stages, drift, reconstruction
from models.transformer_shape import Shape


def test_boundaries_grow_with_the_sequence_and_recomputing_keeps_less() -> None:
    short, long = memory(16, recompute=False), memory(64, recompute=False)
    assert long["boundaries"] == 4 * short["boundaries"] == 4 * 2 * 16 * (8 * 4 + 1)
    assert 3.5 < long["activations"] / short["activations"] < 4.5
    assert memory(64, recompute=True)["activations"] < long["activations"] / 4


@pytest.mark.parametrize("kind", ["transformer", "mlp", "conv"])
def test_no_network_looks_ahead(kind: str) -> None:
    layers = nn.Sequential(*networks(Shape(width=16, layers=2, heads=2, length=24))[kind])
    tokens = torch.randint(0, 256, (2, 24), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[:, 12:] += 1
    before, after = layers(tokens), layers(changed % 256)
    assert torch.allclose(before[:, :12], after[:, :12], atol=1e-5)
    assert not torch.allclose(before[:, 12:], after[:, 12:], atol=1e-5)


def test_a_weight_that_leaves_the_subspace_is_seen() -> None:
    stages, frame, _ = confined_stages("rows", 0)
    tokens = torch.zeros(8, 64, dtype=torch.long)
    assert drift(stages, frame) <= 1e-6
    assert reconstruction(stages, tokens) <= 1e-6
    with torch.no_grad():
        weight = dict(stages[0].named_parameters())["layers.1.feed_out.weight"]
        weight.add_(torch.randn_like(weight))
    assert drift(stages, frame) > 0.1
    assert reconstruction(stages, tokens) > 0.01


def test_plots_are_drawn(tmp_path: Path) -> None:
    row = {"captured": 0.4, "captured_after": 0.5, "best": 0.9}
    row |= {"overlap_first": 0.9, "overlap_before": 0.95}
    turns = [{**row, "step": step, "spectrum": [0.9, 0.1]} for step in (50, 100)]
    ranks = {"transformer": {0: {"1.feed_out": 20.0, "x": 7.0}, 50: {"1.feed_out": 9.0, "x": 2.0}}}
    for name in draw(tmp_path, ranks, turns):
        assert (tmp_path / name).stat().st_size > 1000


def test_speeds_and_gaps_are_drawn(tmp_path: Path) -> None:
    speed = dict.fromkeys(pipeline_plot.LABELS, 100.0)
    pipeline_plot.draw(tmp_path / "a.png", {10.0: speed, 80.0: speed}, speed, (80.0, speed))
    long = {"none": [{"curve": {"150": 2.5, "300": 2.0}}]}
    gaps = {"topk": {8: 50.0}, "learned_8bit": {8: -4.0, 32: -2.0, 100: 5.0}}
    convergence_plot.draw(tmp_path / "b.png", gaps, {"one_layer": 1.0}, long)
    assert all((tmp_path / name).stat().st_size > 10_000 for name in ("a.png", "b.png"))


def test_kills_count_as_resumed_over_all_arms() -> None:
    calm = {"end": {"loss": 2.0, "validation_loss": 2.5}}
    done = {
        "stages/calm": calm,
        "stages/killed": {**calm, "resumed": 10, "killed": 10},
        "replicas/calm": calm,
        "replicas/killed": {
            "end": {"loss": 2.0, "validation_loss": 2.75},
            "resumed": 4,
            "killed": 5,
        },
        "machines/calm": calm,
        "machines/killed": {**calm, "resumed": 5, "killed": 5},
    }
    figures = kill_figures(done, KILLS)
    assert figures["resumed"].value == pytest.approx(0.95)
    assert figures["loss_difference"].value == 0.25
    assert figures["kills"].value == 20 == sum(KILLS.values())


def test_arms_differ_in_what_replicas_say_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("replicas", "pipeline_kill"):
        monkeypatch.setattr(f"bench.{module}.text_folder", lambda: Path("texts"))
    tables = [tables_of(arm, 30) for arm in ARMS]
    assert all({**t, "replicas": {}} == {**tables[0], "replicas": {}} for t in tables)
    assert [ranks_of(t) for t in tables] == [2, *[4] * (len(ARMS) - 1)]
    assert [ranks_of(kill_tables(arm, 10)) for arm in KILLS] == [3, 4, 2]
    rows = {"packets": [{"validation_loss": 2.02}], ALL_REDUCE: [{"validation_loss": 2.0}]}
    assert gaps(rows, "packets") == pytest.approx([1.0])
