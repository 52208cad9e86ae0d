"""`ternmesh adapt` beside torch: gradients, time and memory of a step, and what a front saves.

A transformer encoder, a CNN and an MLP are exported by torch as plain .onnx files. LoRA in the
same layers is trained by the gradient of onnx-ad (models.adapt), and by our own trace of torch.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from bench.result import Figure, Result
from edge.onnx.session import TrainStep, load_model
from models.adapt import Classifier, cut_at_last, front_of, layers_of, read_classifier, write_lora
from models.adapters.base import Adapter
from models.adapters.lora import add_lora
from models.export import export
from models.tails import write_tail
from ternmesh.model_package import ModelPackage

BATCH, RANK = 16, 8
BLOCKS, BLOCKS_QUICK, STEPS = 20, 5, 10  # of steps that take turns
ERROR_MAX = 1e-5  # relative to the largest number of the gradient
NOTES = (
    "gradient_error: the largest difference to torch autograd over all three models, relative to "
    "the gradient's largest number, at random A and B",
    "step_time_ratio, memory_ratio: the encoder's step, onnx-ad's gradient to our torch trace of "
    "the same layers; the processor's time on one thread, blocks of steps that take turns; memory "
    "is what a fresh process adds at its peak while it loads and runs the step",
    "frozen_front_speedup: a step of the encoder's last layer through the whole model, to one of "
    "the same layer on kept rows",
    f"batch {BATCH}, rank {RANK}; x86-64, no board",
)
# What a process adds for a step; run with the folder of a package
MEMORY = """
import sys
from pathlib import Path
import numpy as np
from edge.onnx.session import TrainStep, load_model
loaded = load_model(Path(sys.argv[1]))
batch = {s.name: np.zeros(s.shape, s.dtype) for s in loaded.package.batch_inputs}
def read(what):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what))
before = read("VmRSS")
step = TrainStep(loaded.folder, loaded.package)
for _ in range(10):
    step.run(loaded.initial, batch)
print(read("VmHWM") - before)
"""


class Encoder(nn.Module):
    """Two transformer blocks over 50 rows of 32 numbers, as large as the keyword model."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Linear(32, 64)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(64, 4, 128, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.out = nn.Linear(64, 10)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        x = self.rows(features)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.out(x.mean(1))
        return logits


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 64), nn.ReLU(),
        nn.Linear(64, 5),
    )  # fmt: skip


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4)
    )


# By name: the module, the shape of a sample, the layers for torch, their pattern for us
MODELS = {
    "encoder": (Encoder, (50, 32), ("*.linear1", "*.linear2"), "*linear?.bias"),
    "cnn": (_cnn, (3, 32, 32), ("7", "9"), "*"),
    "mlp": (_mlp, (16,), ("0", "2", "4"), "*"),
}


def measure(*, quick: bool) -> Result:
    """Seconds: three exports, three gradients, blocks of steps."""
    torch.set_num_threads(1)
    blocks = BLOCKS_QUICK if quick else BLOCKS
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        errors = {name: _error(name, folder / name) for name in MODELS}
        ratios = {
            name: _time_ratio(folder / name / "ours", folder / name / "traced", blocks)
            for name in MODELS
        }
        kib = [_memory_kib(folder / "encoder" / which) for which in ("ours", "traced")]
        speedup = _speedup(folder / "encoder", blocks)
    figures = {
        "gradient_error": Figure(max(errors.values()), f"<={ERROR_MAX:g}"),
        "step_time_ratio": Figure(ratios["encoder"], "<=1.25"),
        "memory_ratio": Figure(kib[0] / kib[1]),
        "frozen_front_speedup": Figure(speedup, ">=10"),
    }
    details = {"gradient_error": errors, "step_time_ratio": ratios, "memory_kib": kib}
    return Result("adapt", figures, {}, NOTES, details, quick)


def _error(name: str, folder: Path) -> float:
    """Write both packages of a model, and compare our gradient with torch autograd."""
    make, shape, layers, pattern = MODELS[name]
    torch.manual_seed(0)
    module = make().eval()
    classifier = _exported(module, shape, folder)
    package = write_lora(
        folder / "ours", classifier, layers_of(classifier, pattern), name=name, rank=RANK
    )
    adapter = add_lora(module, layers, rank=RANK, alpha=RANK)
    x, target = torch.randn(BATCH, *shape), torch.randint(classifier.classes, (BATCH,))
    batch = ((x,), (target,))
    export(module, adapter, functional.cross_entropy, batch, folder / "traced", name=name)
    loaded = load_model(folder / "ours")
    vector = loaded.initial + (0.05 * torch.randn(loaded.initial.size)).numpy()
    ours = {classifier.input: x.numpy(), "target": target.numpy()}
    _, gradient = TrainStep(loaded.folder, package).run(vector, ours)
    wanted = _autograd(module, adapter, vector, x, target)
    return float(np.abs(gradient - wanted).max() / np.abs(wanted).max())


def _exported(module: nn.Module, shape: tuple[int, ...], folder: Path) -> Classifier:
    folder.mkdir()
    free = ({0: torch.export.Dim.DYNAMIC},)
    path = folder / "plain.onnx"
    torch.onnx.export(
        module, (torch.randn(2, *shape),), path, dynamo=True, dynamic_shapes=free,
        input_names=["features"], external_data=False, verbose=False,
    )  # fmt: skip
    return read_classifier(path, {})


def _autograd(
    module: nn.Module, adapter: Adapter, vector: np.ndarray, x: torch.Tensor, target: torch.Tensor
) -> np.ndarray:
    numbers = torch.from_numpy(vector).requires_grad_()
    logits = torch.func.functional_call(module, adapter.split(numbers), (x,))
    functional.cross_entropy(logits, target).backward()  # type: ignore[no-untyped-call]
    assert numbers.grad is not None
    return numbers.grad.numpy()


def _time_ratio(folder: Path, other: Path, blocks: int) -> float:
    """The median time of a step of one package to that of another."""
    steps = []
    for place in (folder, other):
        loaded = load_model(place)
        batch = {spec.name: np.ones(spec.shape, spec.dtype) for spec in loaded.package.batch_inputs}
        steps.append((TrainStep(place, loaded.package), loaded.initial, batch))
    times: list[list[float]] = [[], []]
    for block in range(blocks + 1):
        for found, (step, vector, batch) in zip(times, steps, strict=True):
            for _ in range(STEPS):
                begun = time.process_time()
                step.run(vector, batch)
                if block:  # the first one warms up
                    found.append(time.process_time() - begun)
    return statistics.median(times[0]) / statistics.median(times[1])


def _memory_kib(folder: Path) -> float:
    command = [sys.executable, "-c", MEMORY, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


def _speedup(folder: Path, blocks: int) -> float:
    """How much faster a step of the last layer is on kept rows."""
    classifier = read_classifier(folder / "plain.onnx", {})
    last = layers_of(classifier, "out.*")
    write_lora(folder / "whole", classifier, last, name="whole", rank=RANK)
    _, rest = front_of(classifier, cut_at_last(classifier)[0])
    rows: ModelPackage = write_tail(
        folder / "rows", rows=1, width=rest.shape[0], classes=classifier.classes, name="rows",
        batch=BATCH,
    )  # fmt: skip
    assert rows.batch == BATCH
    return _time_ratio(folder / "whole", folder / "rows", blocks)
