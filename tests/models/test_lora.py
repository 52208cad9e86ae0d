import numpy as np
import pytest
import torch
from torch import nn

from models.adapters.lora import LoraLinear, add_lora


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 3))


def test_order_shapes_and_values_follow_the_module_and_the_seed() -> None:
    adapter = add_lora(small(), ("*",), rank=2, alpha=4, seed=1)
    assert adapter.names == ("0.lora_A", "0.lora_B", "2.lora_A", "2.lora_B")
    assert adapter.shapes == ((5, 2), (2, 7), (7, 2), (2, 3))
    same = add_lora(small(), ("*",), rank=2, alpha=4, seed=1).vector()
    other = add_lora(small(), ("*",), rank=2, alpha=4, seed=2).vector()
    assert np.array_equal(adapter.vector(), same)
    assert not np.array_equal(adapter.vector(), other)


def test_lora_is_the_low_rank_formula() -> None:
    model, x = small(), torch.randn(4, 5)
    layer = model[0]
    assert isinstance(layer, nn.Linear)
    expected = layer(x)
    add_lora(model, ("0",), rank=2, alpha=6)
    lora = model[0]
    assert isinstance(lora, LoraLinear)
    nn.init.normal_(lora.lora_B)
    torch.testing.assert_close(lora(x), expected + 3.0 * x @ lora.lora_A @ lora.lora_B)
    torch.testing.assert_close(nn.functional.linear(x, lora.weight, lora.bias), lora(x))


def test_only_named_layers_are_adapted() -> None:
    assert add_lora(small(), ("2",), rank=1, alpha=1).names == ("2.lora_A", "2.lora_B")
    with pytest.raises(ValueError, match=r"like head, layers\.\*: the module has"):
        add_lora(small(), ("head", "layers.*"), rank=1, alpha=1)
    with pytest.raises(ValueError, match=r"no linear layer has a name like head: the module has"):
        add_lora(small(), ("2", "head"), rank=1, alpha=1)  # though another pattern matches
    with pytest.raises(ValueError, match=r"name like head: the module has"):
        add_lora(small(), "head", rank=1, alpha=1)  # text is one pattern
    with pytest.raises(ValueError, match=r"rank is 2\.5: it must be a whole number"):
        add_lora(small(), ("*",), rank=2.5, alpha=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rank is 0"):
        add_lora(small(), ("*",), rank=0, alpha=1)
