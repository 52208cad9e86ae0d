"""The sanity experiments of Protocol Models, and the moving basis."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from bench.one_process import assemble, run_stages
from models.bottleneck.assemble import StageLayout
from models.bottleneck.codes import Float
from models.bottleneck.config import BottleneckConfig, OptimizerConfig, Shape
from models.bottleneck.learned import LearnedBasis
from models.bottleneck.payload import BoundaryContext
from models.bottleneck.shared_subspace import (
    SharedSubspace,
    grassmann_step,
    make_basis,
    make_table,
    project,
)
from models.bottleneck.subspace import SubspaceLinear, confine, confined
from models.bottleneck.training import Muon, RowAdamW, StageOptimizer, StiefelDescent
from models.stages import Stage
from models.transformer import OUTPUTS, TOKENS, transformer


def outside(x: torch.Tensor, basis: torch.Tensor, axis: int) -> float:
    """The norm of x outside span(basis), relative to that of x, in float64."""
    exact = torch.linalg.qr(basis.double())[0]  # float32 columns are orthonormal to 1e-8 only
    wide = x.detach().double()
    return float((wide - project(wide, exact, axis)).norm() / wide.norm())


def captured(basis: torch.Tensor, gram: torch.Tensor) -> float:
    """The part of the gradients' energy that lies in the subspace."""
    return float((basis.T @ gram @ basis).trace() / gram.trace())


SHAPE = Shape(vocabulary=30, width=32, layers=4, heads=2, length=16)


def frame(width: int = 48, rank: int = 4) -> SharedSubspace:
    return SharedSubspace(make_basis(width, rank, 0), make_table(30, width, 1.0, 0))


def stages_of(config: BottleneckConfig) -> tuple[list[Stage], SharedSubspace]:
    layers = transformer(SHAPE, seed=0)
    layout = StageLayout(32, 30, OUTPUTS, TOKENS, layers[0].get_buffer("positions"))
    stages, made = assemble(layers, layout, config, 3, 2, SHAPE.length)
    assert made is not None
    return stages, made


def tokens(seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 30, (2, 16), generator=torch.Generator().manual_seed(seed))


def fit(linear: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    generator = torch.Generator().manual_seed(0)
    target = torch.randn(48, 48, generator=generator)
    for _ in range(steps):
        x = torch.randn(8, 48, generator=generator)
        optimizer.zero_grad()
        (linear(x) - x @ target).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("form", ["rows", "factors"])
def test_the_projection_reconstructs_to_float_precision(form: str) -> None:
    stages, _ = stages_of(BottleneckConfig("subspace", latent=4, bits=32, form=form))
    x, context = stages[0]._enter((tokens(),))
    for layer in stages[0].layers:
        x = layer(x)
    assert stages[0].exit is not None
    x = x.detach()
    error = (stages[0].exit(x, context) - x).norm() / x.norm()
    assert float(error) <= 1e-6
    random = torch.randn_like(x)
    lost = (stages[0].exit(random, context) - random).norm() / random.norm()
    assert float(lost) > 0.5  # for anything else the boundary is no identity


def test_the_modified_adamw_stays_where_plain_adamw_leaves() -> None:
    made = frame()
    torch.manual_seed(0)
    layer = SubspaceLinear(nn.Linear(48, 48, bias=False), made, "rows")
    # Not a multiple of the steps after which rounding is taken out.
    fit(layer, RowAdamW([*confined(layer)], made, lr=1e-2), 1099)
    assert outside(layer.weight, made.basis, 0) <= 1e-6
    fit(layer, torch.optim.AdamW(layer.parameters(), lr=1e-2), 20)
    assert outside(layer.weight, made.basis, 0) > 0.1


def test_the_row_optimiser_learns_what_s_can_hold() -> None:
    made = frame()
    layer = SubspaceLinear(nn.Linear(48, 48, bias=False), made, "rows")
    generator = torch.Generator().manual_seed(1)
    target = project(torch.randn(48, 48, generator=generator), made.basis, 0)
    optimizer = RowAdamW([*confined(layer)], made, lr=3e-2, weight_decay=0.0)
    for _ in range(400):
        x = torch.randn(32, 48, generator=generator)
        optimizer.zero_grad()
        (layer(x) - x @ target.T).square().mean().backward()
        optimizer.step()
    assert float((layer.weight.detach() - target).norm() / target.norm()) < 0.1


def learn(stages: list[Stage], trainers: list[StageOptimizer], step: int) -> None:
    for trainer in trainers:
        trainer.zero_grad()
    nn.functional.cross_entropy(run_stages(stages, tokens(step)).mT, tokens(step)).backward()
    for trainer in trainers:
        trainer.step(step, 10)


def test_a_training_with_updates_of_the_basis_stays_in_the_subspace() -> None:
    config = BottleneckConfig("subspace", latent=4, form="rows", basis_steps=3, basis_rate=0.5)
    stages, made = stages_of(config)
    before = made.basis.clone()
    trainers = [StageOptimizer(stage, made, config, OptimizerConfig()) for stage in stages]
    for step in range(6):
        made.collecting = trainers[0].is_basis_step(step)
        learn(stages, trainers, step)
        if made.collecting:
            basis = trainers[0].next_basis()
            for trainer in trainers:
                trainer.change_basis(basis)
            made.basis.copy_(basis)
    assert not torch.equal(before, made.basis)
    drifts = [outside(w, made.basis, axis) for s in stages for w, axis, _ in confined(s)]
    assert max(drifts) <= 1e-6


def test_both_forms_compute_the_same_and_turn_alike() -> None:
    rows, _ = stages_of(BottleneckConfig("subspace", latent=4, form="rows"))
    config = BottleneckConfig("subspace", latent=4, form="factors")
    factors, made = stages_of(config)
    assert torch.allclose(run_stages(rows, tokens()), run_stages(factors, tokens()), atol=1e-5)
    basis = make_basis(32, 4, seed=9)
    for stages in (rows, factors):
        trainers = [StageOptimizer(s, made, config, OptimizerConfig()) for s in stages]
        for trainer in trainers:
            trainer.change_basis(basis)
    for stage in (*rows, *factors):
        for part in stage.modules():
            if isinstance(part, SharedSubspace):
                part.basis.copy_(basis)
    assert torch.allclose(run_stages(rows, tokens()), run_stages(factors, tokens()), atol=1e-5)


def test_grassmann_steps_find_the_energy() -> None:
    generator = torch.Generator().manual_seed(0)
    wanted = make_basis(32, 4, seed=5)
    gradients = torch.randn(500, 4, generator=generator) @ wanted.T
    gradients += 0.05 * torch.randn(500, 32, generator=generator)
    gram, basis = gradients.T @ gradients, make_basis(32, 4, seed=0)
    parts = [captured(basis, gram)]
    for _ in range(60):
        basis = grassmann_step(basis, gram, 1.0)
        parts.append(captured(basis, gram))
    assert parts[0] < 0.5
    assert parts[-1] > 0.95
    assert all(later >= earlier - 1e-6 for earlier, later in pairwise(parts))
    assert torch.allclose(basis.T @ basis, torch.eye(4), atol=1e-6)
    assert torch.equal(grassmann_step(basis, gram, 0.3), grassmann_step(basis, 1024 * gram, 0.3))


def test_gradients_are_collected_where_they_are_whole() -> None:
    stages, made = stages_of(BottleneckConfig("subspace", latent=4))
    run_stages(stages, tokens()).sum().backward()
    assert float(made.gram.abs().sum()) == 0.0
    made.collecting = True
    run_stages(stages, tokens()).sum().backward()
    assert captured(made.basis, made.gram) < 0.9  # what lies outside of S is there as well
    assert float(made.gram.trace()) > 0


def test_a_learned_basis_stays_orthonormal_and_finds_the_energy() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 64, 4, generator=generator) @ make_basis(24, 4, seed=3).T
    boundary = LearnedBasis(24, 4, Float(32), 30, seed=0)
    context = BoundaryContext(2, 64, torch.zeros(2, 64, dtype=torch.long))
    optimizer = StiefelDescent(boundary.orthonormal(), lr=0.02, momentum=0.8)
    losses = []
    for _ in range(300):
        optimizer.zero_grad()
        loss = (boundary(x, context) - x).square().sum() / x.square().sum()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[0] > 0.5
    assert losses[-1] < 0.05
    for basis in boundary.orthonormal():
        assert torch.allclose(basis.T @ basis, torch.eye(4), atol=1e-5)


def test_muon_for_all_matrices_of_a_shape_is_torchs_matrix_by_matrix() -> None:
    """torch computes in bfloat16: hence the tolerance."""
    shapes = [(8, 16), (16, 8), (8, 16), (12, 12)]
    ours, theirs = ([nn.Parameter(torch.ones(shape)) for shape in shapes] for _ in range(2))
    optimizer = Muon(ours, lr=0.1, weight_decay=0.1)
    other = torch.optim.Muon(theirs, lr=0.1, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        for one, two in zip(ours, theirs, strict=True):
            one.grad = torch.randn(one.shape, generator=generator)
            two.grad = one.grad.clone()
        optimizer.step()
        other.step()
    for one, two in zip(ours, theirs, strict=True):
        assert torch.allclose(one, two, atol=0.005)
        assert float((one.detach() - 1).abs().mean()) > 0.05


def test_a_basis_lies_row_by_row() -> None:
    """NCCL and numpy take it as it is; Q of a decomposition lies column by column."""
    assert make_basis(32, 4, 0).is_contiguous()
    assert grassmann_step(make_basis(32, 4, 0), torch.eye(32), 0.1).is_contiguous()


def test_the_norm_of_the_whole_model_is_clipped() -> None:
    config = BottleneckConfig("none", bits=32)
    layers = transformer(SHAPE, seed=0)
    layout = StageLayout(32, 30, OUTPUTS, TOKENS)
    stages, _ = assemble(layers, layout, config, 2, 2, SHAPE.length)
    settings = OptimizerConfig("adamw", warmup_steps=0)
    trainers = [StageOptimizer(s, None, config, settings) for s in stages]
    (100 * run_stages(stages, tokens()).square().sum()).backward()
    norm = sum(trainer.square() for trainer in trainers) ** 0.5
    assert norm > 2.0
    for trainer in trainers:
        trainer.step(0, 10, norm)
    assert sum(trainer.square() for trainer in trainers) ** 0.5 == pytest.approx(1.0, rel=1e-4)
    assert all(0.01 < trainer.square() < 0.99 for trainer in trainers)


def test_layers_that_cannot_be_confined_say_so() -> None:
    block = nn.Sequential()
    block.add_module("attention_out", nn.Linear(48, 48))
    with pytest.raises(ValueError, match="attention_out cannot be confined"):
        confine(block, OUTPUTS, frame(), "rows")


@pytest.mark.parametrize("form", ["rows", "factors"])
@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_optimisers_go_on_from_their_tensors(form: str, name: str) -> None:
    config = BottleneckConfig("subspace", latent=4, form=form)

    def new() -> tuple[list[Stage], list[StageOptimizer]]:
        stages, made = stages_of(config)
        optimizer = OptimizerConfig(name, warmup_steps=0)
        return stages, [StageOptimizer(s, made, config, optimizer) for s in stages]

    stages, trainers = new()
    learn(stages, trainers, 0)
    again, others = new()
    for stage, copy, trainer, other in zip(stages, again, trainers, others, strict=True):
        copy.load_state_dict(stage.state_dict())
        other.load({key: value.clone() for key, value in trainer.tensors()})
    learn(stages, trainers, 1)
    learn(again, others, 1)
    assert torch.equal(run_stages(stages, tokens()), run_stages(again, tokens()))
