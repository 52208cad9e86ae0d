"""Every adapter space: its D, its graphs against torch, and its files."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from edge.onnx.session import Inference, TrainStep, load_model, write_adapter
from models.adapters.base import Adapter
from models.adapters.one_vector import OneVectorLinear, groups, signs
from models.adapters.spaces import SPACES, SpaceConfig, add_space
from models.export import export
from ternmesh.config import ConfigError, read_config

RANK, LENGTH, BATCH = 3, 40, 4
LAYERS = ("0", "2")
# The layers are 6 x 8 and 8 x 5, and the head 5 x 4 with its bias.
DIMENSIONS = {"lora": RANK * (6 + 8) + RANK * (8 + 5), "one_vector": LENGTH}
HEAD = 5 * 4 + 4


def config(space: str, whole: tuple[str, ...] = ()) -> SpaceConfig:
    return SpaceConfig(LAYERS, space, rank=RANK, alpha=6.0, length=LENGTH, whole=whole, seed=7)


def base() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 5, bias=False), nn.Tanh(), nn.Linear(5, 4)
    )


def adapted(space: str, whole: tuple[str, ...] = ()) -> tuple[nn.Sequential, Adapter]:
    module = base()
    return module, add_space(module, config(space, whole))


def noisy(adapter: Adapter, seed: int = 1) -> NDArray[np.float32]:
    noise = np.random.default_rng(seed).standard_normal(adapter.dimension)
    return adapter.vector() + 0.3 * noise.astype(np.float32)


def put(module: nn.Module, adapter: Adapter, vector: NDArray[np.float32]) -> None:
    for name, tensor in adapter.split(torch.from_numpy(vector)).items():
        module.get_parameter(name).data.copy_(tensor)


@pytest.mark.parametrize("whole", [(), ("4",)])
@pytest.mark.parametrize("space", SPACES)
def test_a_space_has_the_size_it_states_and_starts_at_the_base_model(space, whole) -> None:
    module, adapter = adapted(space, whole)
    assert adapter.dimension == DIMENSIONS[space] + (HEAD if whole else 0)
    x = torch.randn(BATCH, 6)
    torch.testing.assert_close(module(x), base()(x))
    trained = {name for name, p in module.named_parameters() if p.requires_grad}
    assert trained == set(adapter.names)
    assert np.array_equal(adapter.join(dict(module.named_parameters())), adapter.vector())


@pytest.mark.parametrize("space", ["one_vector", pytest.param("lora", marks=pytest.mark.nightly)])
def test_a_package_of_a_space_does_on_a_board_what_torch_does(space: str, tmp_path: Path) -> None:
    module, adapter = adapted(space, whole=("4",))
    x, targets = torch.randn(BATCH, 6), torch.randint(0, 4, (BATCH,))
    export(module, adapter, nn.functional.cross_entropy, ((x,), (targets,)), tmp_path, name="small")
    loaded = load_model(tmp_path)
    assert loaded.package.dimension == adapter.dimension
    assert np.array_equal(loaded.initial, adapter.vector())
    vector, batch = noisy(adapter), {"input": x.numpy(), "target": targets.numpy()}
    step = TrainStep(tmp_path, loaded.package)
    assert step.run(loaded.initial, batch)[1][:-HEAD].any()  # the space can leave its start
    loss, gradient = step.run(vector, batch)
    inference = Inference(tmp_path, loaded.package)
    (before,) = inference.predict({"input": x.numpy()}).values()
    np.testing.assert_allclose(before, base()(x).detach(), rtol=1e-4, atol=1e-6)
    write_adapter(tmp_path / "new.onnx_adapter", loaded.package, vector, 1)
    inference.use_adapter(tmp_path / "new.onnx_adapter")
    (logits,) = inference.predict({"input": x.numpy()}).values()

    put(module, adapter, vector)
    expected = module(x)
    expected_loss = nn.functional.cross_entropy(expected, targets)
    parameters = [module.get_parameter(name) for name in adapter.names]
    found = torch.autograd.grad(expected_loss, parameters)
    gradients = dict(zip(adapter.names, found, strict=True))
    assert loss == pytest.approx(expected_loss.item(), rel=1e-5)
    np.testing.assert_allclose(gradient, adapter.join(gradients), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(logits, expected.detach(), rtol=1e-4, atol=1e-5)


def test_one_vector_is_mapped_without_stretching_and_by_philox_alone() -> None:
    """The map has orthonormal columns, and its groups and signs are those of the seed."""
    module, adapter = adapted("one_vector")
    vector = noisy(adapter)
    layers = [layer for layer in module.children() if isinstance(layer, OneVectorLinear)]

    def numbers() -> NDArray[np.float32]:
        factors = [(down, up / layer.scale) for layer in layers for down, up in [layer.factors()]]
        return torch.cat([part.detach().reshape(-1) for pair in factors for part in pair]).numpy()

    start = numbers()
    put(module, adapter, vector)
    moved = numbers() - start
    assert np.linalg.norm(moved) == pytest.approx(np.linalg.norm(vector), rel=1e-5)
    group, minus = groups(7, moved.size, LENGTH), signs(7, moved.size)
    sizes = np.bincount(group, minlength=LENGTH)
    assert sizes.max() - sizes.min() <= 1
    assert 0.3 < minus.mean() < 0.7
    expected = np.where(minus, -1, 1) * vector[group] / np.sqrt(sizes[group])
    np.testing.assert_allclose(moved, expected, rtol=1e-4, atol=1e-6)
    assert group[:6].tolist() == [7, 5, 31, 34, 14, 12]
    assert np.packbits(minus)[:2].tolist() == [85, 162]


def test_a_space_that_does_not_fit_is_refused() -> None:
    for change, sentence in (
        ({"space": "vera"}, "space is 'vera': it must be one of lora, one_vector"),
        ({"space": "one_vector", "length": 82}, "length is 82: it must be 1 to 81"),
        ({"layers": ("head",)}, "no linear layer has a name like head"),
        ({"whole": ("2",)}, "2 is changed by another space"),
        ({"whole": ("1",)}, "1 has no parameters to train"),
    ):
        settings = {"layers": LAYERS, "rank": RANK, **change}
        with pytest.raises(ValueError, match=sentence):
            add_space(base(), SpaceConfig(**settings))  # type: ignore[arg-type]
    module, _ = adapted("one_vector")
    with pytest.raises(ValueError, match="the module has a theta already"):
        add_space(module, SpaceConfig(("4",), "one_vector", length=4))


def test_a_space_is_chosen_in_toml() -> None:
    text = 'layers = ["0"]\nspace = "one_vector"\nrank = 3\nwhole = ["4"]'
    assert read_config(SpaceConfig, text) == SpaceConfig(("0",), "one_vector", rank=3, whole=("4",))
    with pytest.raises(ConfigError, match="space is 'loha': it must be one of lora, one_vector"):
        read_config(SpaceConfig, 'layers = ["0"]\nspace = "loha"')
