"""What the benchmark of subspaces rests on: ranks, and a basis that turns."""

import pytest
import torch

from bench.corpus import Corpus
from bench.subspace import KINDS, RANK, SHAPE, WRITERS, _samples, network, stable_rank, turning


@pytest.fixture(autouse=True)
def text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random bytes in place of books."""
    tokens = torch.randint(256, (5000,), generator=torch.Generator().manual_seed(0)).int().numpy()
    monkeypatch.setattr("bench.subspace.books", lambda _length: Corpus(tokens, tokens, tokens, 256))


def test_the_stable_rank_counts_equal_directions() -> None:
    assert stable_rank(torch.eye(5)) == pytest.approx(5)
    assert stable_rank(torch.ones(4, 7)) == pytest.approx(1)
    assert stable_rank(torch.diag(torch.tensor([2.0, 1.0]))) == pytest.approx(1.25)


@pytest.mark.parametrize("kind", KINDS)
def test_each_network_has_a_stream_and_layers_that_write_into_it(kind: str) -> None:
    layers, head = network(kind)
    x, y = next(_samples(kind, 1))
    stream = layers(x)
    assert stream.shape == (*x.shape[:2], SHAPE.width)
    assert head(stream).shape[-1] > y.max()
    names = [name for name, _ in layers.named_modules() if name.rpartition(".")[2] in WRITERS]
    assert len(names) == SHAPE.layers * (1 if kind in ("mlp", "cnn") else 2)


def test_a_basis_that_turns_is_compared_with_the_one_two_turns_before() -> None:
    still, turned = turning((0, 1.0), 6), turning((2, 1.0), 6)
    assert (still["overlap_first"], still["overlap_2"]) == (1.0, 1.0)
    assert turned["overlap_2"] < turned["overlap_1"] < 1
    assert len(turned["spectrum"]) == 2 * RANK
