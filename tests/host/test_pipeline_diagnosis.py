"""The two published signs that a subspace fails, and what a diagnosis says of them."""

from typing import cast

import pytest
import torch
from torch import nn

from bench.one_process import assemble, run_stages
from host.pipeline.report import alarm
from host.pipeline.train import Diagnosis
from models.bottleneck.assemble import StageLayout
from models.bottleneck.config import BottleneckConfig, OptimizerConfig, Shape
from models.bottleneck.shared_subspace import SharedSubspace
from models.bottleneck.subspace import SubspaceBottleneck
from models.bottleneck.training import StageOptimizer
from models.stages import Stage
from models.transformer import OUTPUTS, TOKENS, sines, transformer

SHAPE = Shape(vocabulary=30, width=32, layers=4, heads=2, length=16)
ROWS = BottleneckConfig("subspace", latent=4, bits=32, back_bits=32, form="rows", table_std=1.0)


def made() -> tuple[list[Stage], SharedSubspace]:
    layout = StageLayout(32, 30, OUTPUTS, TOKENS, sines(16, 32))
    stages, subspace = assemble(transformer(SHAPE, 0), layout, ROWS, 2, 2, SHAPE.length)
    assert subspace is not None
    return stages, subspace


def trained(stages: list[Stage], subspace: SharedSubspace, *, is_plain: bool) -> dict[str, object]:
    """A report after some steps, as the last rank writes it."""
    watching = [Diagnosis(stage, subspace) for stage in stages]
    settings = OptimizerConfig("adamw", 1e-2, warmup_steps=0)
    ours = [StageOptimizer(stage, subspace, ROWS, settings) for stage in stages]
    plain = torch.optim.AdamW([p for stage in stages for p in stage.parameters()], lr=1e-2)
    for step in range(8):
        tokens = torch.randint(0, 30, (2, 16), generator=torch.Generator().manual_seed(step))
        for stage in stages:
            stage.zero_grad()
        nn.functional.cross_entropy(run_stages(stages, tokens).mT, tokens).backward()
        if is_plain:
            plain.step()
        else:
            for optimizer in ours:
                optimizer.step(step, 100)
    rows = [each.row() for each in watching]
    return {
        name: [row[name] for row in rows if name in row] for name in ("drift", "error", "captured")
    }


def test_what_stays_in_the_subspace_gives_no_alarm() -> None:
    report = trained(*made(), is_plain=False)
    assert [len(cast(list[float], report[name])) for name in report] == [1, 1, 1]
    assert alarm(report) == ""
    assert 0.0 < cast(list[float], report["captured"])[0] <= 1.0


def test_plain_adamw_leaves_the_subspace_and_the_alarm_says_so() -> None:
    """Published: weights drift out, and what crosses is no longer what was computed."""
    report = trained(*made(), is_plain=True)
    assert cast(list[float], report["drift"])[0] > 0.1
    assert cast(list[float], report["error"])[0] > 0.01
    assert alarm(report).startswith("ALARM: what crosses is not what was computed (drift 0.")


def test_a_fixed_table_that_is_not_subtracted_is_lost() -> None:
    """Published: T_fixed does not lie in S. The weights do not drift here."""
    stages, subspace = made()
    bare = SharedSubspace(subspace.basis, torch.zeros_like(subspace.table))
    cast(SubspaceBottleneck, stages[0].exit).subspace = bare
    report = trained(stages, subspace, is_plain=False)
    assert cast(list[float], report["drift"])[0] < 1e-3
    assert cast(list[float], report["error"])[0] > 0.1
    assert "ALARM" in alarm(report)


@pytest.mark.parametrize("std", [1.0, 0.02])
def test_ranks_that_draw_other_tables_are_known_by_their_hash(std: float) -> None:
    """T_fixed is never sent: a rank whose library draws other numbers would train another model."""
    subspace = made()[1]
    digest = subspace.digest()
    assert digest == made()[1].digest()
    subspace.table[3, 5] += std
    assert subspace.digest() != digest
