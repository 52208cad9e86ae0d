"""Payloads: bytes that are counted, numbers that come back, gradients that go the same way."""

import math
from contextlib import nullcontext
from functools import partial
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bench.one_process import assemble, run_stages
from models.bottleneck import codes
from models.bottleneck.assemble import StageLayout, code_of
from models.bottleneck.codes import Code, Float, Integer
from models.bottleneck.config import BottleneckConfig, Shape
from models.bottleneck.payload import id_bits, pack_ids, unpack_ids
from models.errors import BottleneckError
from models.later import LaterGradients
from models.stages import Stage, cut
from models.transformer import OUTPUTS, TOKENS, transformer

SHAPE = Shape(vocabulary=50, width=32, layers=4, heads=2, length=12)
BATCH = 3
exact = partial(BottleneckConfig, bits=32, back_bits=32)
CONFIGS = {
    "none": exact("none"),
    "none16": BottleneckConfig("none"),
    "int8": exact("int8"),
    "resbm": exact("resbm", latent=4),
    "resbm4": BottleneckConfig("resbm", latent=4, bits=4),
    "resbm8": BottleneckConfig(),  # an eighth of the width, 8 bits forward, 4 back
    "subspace": exact("subspace", latent=4, form="factors"),
    "rows": exact("subspace", latent=4, form="rows"),
    "learned": exact("learned", latent=4),
    "some": BottleneckConfig("learned", latent=4, slow=("1",)),
}
# 36 tokens of 32 channels, 6 bits an id: what each method sends forward, and back without the ids.
BYTES = {
    "none": (36 * 128, 36 * 128),
    "none16": (36 * 64, 36 * 64),
    "some": (36 * 64 + 27, 36 * 64),
    "int8": (36 * 34, 36 * 34),
    "resbm": (36 * 16, 36 * 16),
    "resbm4": (36 * 4, 36 * 4),
    "resbm8": (36 * 6, 36 * 4),
    "subspace": (36 * 16 + 27, 36 * 16),
    "rows": (36 * 16 + 27, 36 * 16),
    "learned": (36 * 16 + 27, 36 * 16),
}


def made(config: BottleneckConfig, stages: int = 3) -> list[Stage]:
    layers = transformer(SHAPE, seed=1)
    layout = StageLayout(
        SHAPE.width, SHAPE.vocabulary, OUTPUTS, TOKENS, layers[0].get_buffer("positions")
    )
    return assemble(layers, layout, config, stages, BATCH, SHAPE.length)[0]


def some_tokens() -> torch.Tensor:
    return torch.randint(0, 50, (BATCH, SHAPE.length), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_payload_has_the_bytes_that_its_method_promises(name: str) -> None:
    stages = made(CONFIGS[name])
    payload = stages[0](some_tokens())
    forward, back = BYTES[name]
    assert sum(t.numel() * t.element_size() for t in payload) == forward
    gradients: list[torch.Tensor] = []
    payload[0].register_hook(gradients.append)
    stages[2](*stages[1](*payload)).square().sum().backward()
    assert stages[0].exit.sizes(BATCH, SHAPE.length) == (forward, back)
    data = gradients[0].view(torch.uint8)
    assert int(data[:back].count_nonzero()) > back / 4
    assert not data[back:].any()  # what is behind is not sent


@pytest.mark.parametrize("name", CONFIGS)
def test_all_parameters_learn(name: str) -> None:
    stages = made(CONFIGS[name])
    nn.functional.cross_entropy(run_stages(stages, some_tokens()).mT, some_tokens()).backward()
    still = [n for s in stages for n, p in s.named_parameters() if p.grad is None]
    assert still == []


@pytest.mark.parametrize("name", ["none", "resbm", "subspace", "rows", "learned"])
def test_cutting_changes_nothing_that_float32_shows(name: str) -> None:
    """Values and gradients over the wire are those of the same layers without codes."""
    stages = made(CONFIGS[name])
    tokens = some_tokens()
    run_stages(stages, tokens).square().sum().backward()
    gradient = next(stages[0].layers[0].parameters()).grad
    x, context = stages[0]._enter((tokens,))
    for stage in stages:
        for layer in stage.layers:
            x = layer(x)
        if stage.exit is not None:
            x = stage.exit.grow(stage.exit.shrink(x, context), context)
    stages[0].zero_grad()
    x.square().sum().backward()
    again = next(stages[0].layers[0].parameters()).grad
    assert gradient is not None
    assert again is not None
    assert torch.allclose(gradient, again, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("code", "worst"), [(Integer(8), 0.5 / 127), (Integer(4), 0.5 / 7)])
def test_integers_are_within_half_a_step(code: Code, worst: float) -> None:  # R11.1-1
    x = torch.randn(40, 33, generator=torch.Generator().manual_seed(0))
    x *= 10.0 ** torch.arange(-20, 20).unsqueeze(1)
    error = (code.decode(code.encode(x), 33) - x).abs().amax(1) / x.abs().amax(1)
    assert float(error.max()) <= worst * 1.02  # bfloat16 rounds the step by up to 1/256


@given(
    rows=st.integers(1, 5),
    width=st.integers(1, 300),
    code=st.sampled_from([Float(32), Float(16), Integer(8), Integer(4)]),
)
@settings(max_examples=60, deadline=None)
def test_words_come_back_as_the_code_made_them(rows: int, width: int, code: Code) -> None:
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(width))
    wire = codes.to_words(code, x)
    assert wire.numel() == codes.words(code, rows, width)
    assert 0 <= wire.numel() * 4 - rows * code.size(width) < 4
    found = codes.from_words(code, wire, (rows, width))
    assert torch.equal(found, code.decode(code.encode(x), width))


@given(
    data=st.binary(min_size=24, max_size=24),
    code=st.sampled_from([Float(32), Float(16), Integer(8), Integer(4)]),
)
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_numbers_or_an_error(data: bytes, code: Code) -> None:
    rows = 24 // code.size(4)
    wire = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(torch.float32)
    wire = wire[: codes.words(code, rows, 4)]
    try:
        x = codes.from_words(code, wire, (rows, 4))
    except BottleneckError:
        return
    assert bool(torch.isfinite(x).all())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["none", "int8", "resbm4", "subspace"])
def test_what_is_not_finite_is_refused_in_both_directions(name: str, bad: float) -> None:  # R11.1-3
    stages = made(CONFIGS[name], stages=2)
    boundary = stages[0].exit
    assert boundary is not None
    x = torch.zeros(BATCH, SHAPE.length, SHAPE.width, requires_grad=True)
    _, context = stages[0]._enter((some_tokens(),))
    y = boundary(x, context)
    broken = torch.full_like(y, bad)
    with pytest.raises(BottleneckError, match="not finite"):
        y.backward(broken)
    with pytest.raises(BottleneckError, match="not finite"):
        boundary(broken, context)


def test_a_payload_of_another_size_is_refused() -> None:  # R11.1-3
    stages = made(CONFIGS["int8"], stages=2)
    with pytest.raises(BottleneckError, match="same configuration"):
        stages[1](torch.zeros(7))


def test_no_token_is_read_from_a_later_one() -> None:
    """A loss over the next token would be a lie where a code shared numbers between tokens."""
    tokens, other = some_tokens(), some_tokens()
    other[:, -1] = (other[:, -1] + 1) % 50
    for config in CONFIGS.values():
        stages = made(config)
        early = run_stages(stages, tokens)[:, :-1], run_stages(stages, other)[:, :-1]
        assert torch.allclose(*early, atol=1e-5)


@given(vocabulary=st.integers(2, 70_000), length=st.integers(1, 20))
@settings(max_examples=60, deadline=None)
def test_ids_come_back(vocabulary: int, length: int) -> None:  # R11.1-2
    tokens = torch.randint(0, vocabulary, (2, length))
    data = pack_ids(tokens, vocabulary)
    assert data.numel() == -(-2 * length * id_bits(vocabulary) // 8)
    assert torch.equal(unpack_ids(data, 2, length, vocabulary), tokens)
    assert int(unpack_ids(torch.full_like(data, 255), 2, length, vocabulary).max()) < vocabulary


def test_each_side_keeps_its_half() -> None:
    for name in ("resbm", "learned"):
        whole, sender, receiver = (cast(Any, made(CONFIGS[name])[0].exit) for _ in range(3))
        both = sum(p.numel() for p in whole.parameters())
        sender.keep_sender()
        receiver.keep_receiver()
        halves = [sum(p.numel() for p in half.parameters()) for half in (sender, receiver)]
        assert sum(halves) == both
        assert all(halves)


def test_layers_are_cut_evenly() -> None:
    layers = [nn.Identity() for _ in range(10)]
    assert [len(part) for part in cut(layers, 3)] == [3, 3, 4]
    with pytest.raises(ValueError, match="8 layers cannot make 9 stages"):
        cut(layers, 9)


def test_settings_that_no_code_has_are_refused() -> None:
    with pytest.raises(ValueError, match="bits is 5"):
        code_of(BottleneckConfig("resbm", bits=5))
    with pytest.raises(ValueError, match="latent is 64"):
        made(BottleneckConfig("resbm", latent=64))


def test_a_rank_draws_its_own_layers_as_all_do() -> None:
    whole, own = transformer(SHAPE, 7), transformer(SHAPE, 7, range(2, 4))
    for place, (one, other) in enumerate(zip(whole, own, strict=True)):
        for a, b in zip(one.parameters(), other.parameters(), strict=True):
            assert torch.equal(a, b) if place in (2, 3) else b.is_meta


@pytest.mark.parametrize("is_bf16", [False, True])
def test_gradients_that_are_left_for_later_are_those_of_autograd(is_bf16: bool) -> None:
    found, dtype = [], torch.bfloat16 if is_bf16 else torch.float32
    exact_logits = run_stages(made(CONFIGS["resbm"]), some_tokens()).detach()
    for later in (None, LaterGradients()):
        stages = made(CONFIGS["resbm"])
        for stage in stages:
            stage.is_bf16 = is_bf16
        for _ in range(3):
            with later or nullcontext():
                logits = run_stages(stages, some_tokens())
            error = float((logits.detach() - exact_logits).norm() / exact_logits.norm())
            assert (logits.dtype, 0 < error < 0.02) == (dtype, is_bf16)
            logits.float().square().sum().backward()
        assert later is None or later.batches == 3
        while later is not None and later.batches:
            later.run_one()
        found.append([parameter.grad for stage in stages for parameter in stage.parameters()])
    assert {each.dtype for each in found[1] if each is not None} == {torch.float32}
    assert all(map(torch.equal, *found))
