from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from examples.split.keyword import cut_keyword, shipped_keyword
from examples.voice.keyword import KeywordTransformer
from models.adapters.spaces import train_whole
from models.bottleneck.learned import LearnedBasis
from models.bottleneck.payload import BoundaryContext
from models.errors import ExportError
from models.split.cut import (
    HOST,
    BoundaryReceiver,
    BoundarySender,
    Cut,
    fit,
    load_rest,
    make_boundary,
)
from models.split.export import export_cut
from models.zoo import package_path

BATCH, LATENT = 4, 3
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def features() -> torch.Tensor:
    return torch.rand(BATCH, 50, 32, generator=torch.Generator().manual_seed(3))


def run(path: Path, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options).run(None, feed)


def near(actual: np.ndarray, expected: torch.Tensor, error: float = 1e-5) -> bool:
    wanted = expected.detach().numpy()
    return bool(np.linalg.norm(actual - wanted) <= error * np.linalg.norm(wanted))


def test_both_parts_together_are_the_model(features: torch.Tensor) -> None:
    """Where all numbers cross, nothing is lost by the cut."""
    torch.manual_seed(1)
    model = KeywordTransformer().eval()
    expected = model(features)
    cut = cut_keyword(model, "none", 8)
    assert near(cut.rest(cut.first(features)).detach().numpy(), expected, 1e-5)


def test_a_learned_basis_begins_at_the_principal_components() -> None:
    generator = torch.Generator().manual_seed(2)
    spread = torch.randn(40, 5, 2, generator=generator) @ torch.randn(2, 12, generator=generator)
    x = spread + torch.randn(5, 12, generator=generator)
    boundary = make_boundary("learned", 12, 2, 5)
    assert isinstance(boundary, LearnedBasis)
    places = BoundaryContext(1, 5, torch.arange(5))
    before = (boundary.grow(boundary.shrink(x, places), places) - x).detach().norm()
    fit(boundary, x)
    after = (boundary.grow(boundary.shrink(x, places), places) - x).detach().norm()
    assert float(before) > 0.1 * float(x.norm())
    assert float(after) < 1e-5 * float(x.norm())


def test_the_shipped_model_is_read_from_its_graph(features: torch.Tensor) -> None:
    expected = run(package_path("keyword") / "forward.onnx", {"features": features.numpy()})[0]
    assert near(expected, shipped_keyword()(features), 1e-4)


def tiny(latent: int) -> Cut:
    torch.manual_seed(latent)
    sides = [make_boundary("learned", 6, latent, 3) for _ in range(2)]
    first = BoundarySender(torch.nn.Linear(4, 6), sides[0], 3)
    rest = BoundaryReceiver(sides[1], torch.nn.Flatten(), 3)
    return Cut("tiny", (3, 4), 18, first, rest, train_whole(first, ("layers", "boundary")))


def test_an_export_has_the_weights_of_its_host(tmp_path: Path) -> None:
    cut, fresh = tiny(2), tiny(2).rest
    export_cut(cut, BATCH, tmp_path)  # and its graphs were compared with torch's
    x = torch.rand(5, 3, 4)
    [crossed] = run(tmp_path / "first" / "forward.onnx", {"features": x.numpy()})
    assert near(crossed, cut.first(x))
    for parameter in fresh.parameters():
        parameter.data.zero_()
    load_rest(fresh, tmp_path / HOST)
    wanted, loaded = cut.rest.state_dict(), fresh.state_dict()
    assert wanted.keys() == loaded.keys()
    assert all(torch.equal(wanted[name], loaded[name]) for name in wanted)
    (tmp_path / "damaged").write_bytes(b"no tensors")
    for path in (tmp_path / HOST, tmp_path / "nothing", tmp_path / "damaged"):
        with pytest.raises(ExportError, match="export it again"):
            load_rest(tiny(3).rest, path)


@pytest.mark.parametrize(("method", "latent"), [("topk", 3), ("learned", 0), ("learned", 113)])
def test_boundaries_that_cannot_be(method: str, latent: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        make_boundary(method, 112, latent, 25)
