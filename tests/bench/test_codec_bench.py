import numpy as np
import pytest

from bench.codec import PEERS, WIRE, Codec, captured, share_of_best

SIZE = 20_000


def laplace() -> np.ndarray:
    return (0.01 * np.random.default_rng(1).laplace(size=SIZE)).astype(np.float32)


@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.parametrize("codec", [WIRE, *PEERS], ids=lambda codec: codec.name)
def test_a_codec_keeps_to_its_budget_and_decodes_from_its_bytes(codec: Codec, rate: float) -> None:
    vector = laplace()
    before = vector.copy()
    wire = codec.encode(vector, int(rate * SIZE) + 80)
    assert np.array_equal(vector, before)
    assert 8 * len(wire) <= rate * SIZE + 80
    assert 8 * len(wire) > 0.8 * rate * SIZE, "the budget is used"
    decoded = codec.decode(bytes(wire), SIZE)
    assert decoded.shape == (SIZE,)
    assert captured(vector, decoded) > 0.1 * rate


def test_captured_is_scale_free_and_bounded() -> None:
    vector = laplace()
    assert captured(vector, 7 * vector) == pytest.approx(1)
    assert captured(vector, np.zeros_like(vector)) == 0
    assert captured(np.array([1, 0], np.float32), np.array([1, 1], np.float32)) == 0.5


def test_a_cell_is_best_where_no_peer_is_more_than_half_a_per_cent_better() -> None:
    rows = {"0.1": {"wire": 1.0, "eden": 1.004}, "0.5": {"wire": 1.0, "eden": 0.5, "topk": 1.006}}
    assert share_of_best({"gaussian": rows}) == 0.5
