"""For all tests of models/: a user's regression module, exported once."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from models.adapters.base import Adapter
from models.adapters.lora import add_lora
from models.export import export
from ternmesh.model_package import ModelPackage

BATCH = 6


torch.set_num_threads(1)  # threads that wait for a busy core are slower than none


class TwoInputs(nn.Module):
    """A regression on a sequence and a vector, with the operators that transformers use."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(3, 8, bias=False)
        self.norm = nn.LayerNorm(8)
        self.mix = nn.Linear(8, 8, bias=False)
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)
        self.out = nn.Linear(10, 2)

    def forward(self, sequence: torch.Tensor, extra: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.project(sequence))
        head = x[:, None]
        x = x + functional.scaled_dot_product_attention(head, head, self.mix(head))[:, 0]
        x = x + (x @ x.transpose(-1, -2)).softmax(-1) @ x
        x = x + self.down(functional.gelu(self.up(x)))
        return self.out(torch.cat((x.mean(1), extra), -1))


def regression_loss(
    outputs: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    return (functional.huber_loss(outputs, targets, reduction="none").mean(-1) * weights).mean()


class Exported:
    """A module and its model package."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(0)
        self.folder = folder
        self.module = TwoInputs()
        self.adapter: Adapter = add_lora(
            self.module, ("project", "mix", "up", "out"), rank=4, alpha=8
        )
        self.batch = self.sample()
        inputs, targets = self.batch[:2], self.batch[2:]
        self.package: ModelPackage = export(
            self.module, self.adapter, regression_loss, (inputs, targets), folder, name="two-inputs"
        )

    def sample(self, count: int = BATCH) -> tuple[torch.Tensor, ...]:
        return (
            torch.randn(count, 5, 3),
            torch.randn(count, 2),
            torch.randn(count, 2),
            torch.rand(count),
        )

    def random_vector(self, seed: int = 1) -> torch.Tensor:
        noise = torch.randn(self.adapter.dimension, generator=torch.Generator().manual_seed(seed))
        return torch.from_numpy(self.adapter.vector()) + 0.3 * noise


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return Exported(tmp_path_factory.mktemp("package"))
