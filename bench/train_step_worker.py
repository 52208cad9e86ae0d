"""One way to train, one model, one process: prints step time, memory and loss as JSON.

`python -m bench.train_step_worker ENGINE MODEL THREADS FOLDER`. ENGINE is torch, onnxruntime or
export, which writes what the others read to FOLDER; MODEL is keyword or encoder: BERT of 22 M
parameters with random weights, LoRA of rank 8 and a trained head. Only torch and export import
torch, so the memory of the others is that of a board.
"""

import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

STEPS = {"keyword": 200, "encoder": 25}
WARM_UP = 3
BATCH, TOKENS, CLASSES, VOCABULARY = 8, 48, 3, 30_522
LORA = (
    "*.attention.self.query",
    "*.attention.self.key",
    "*.attention.self.value",
    "*.attention.output.dense",
)
Array = np.ndarray[Any, Any]
Step = Callable[[], tuple[float, Array]]


def main() -> None:
    """Run the command in the module's docstring."""
    engine, model, threads, folder = sys.argv[1:]
    if engine == "export":
        _export(model, Path(folder))
        return
    prepare = _torch_step if engine == "torch" else _onnxruntime_step
    step, before_mib = prepare(engine, model, int(threads), Path(folder))
    for _ in range(WARM_UP):
        loss, gradient = step()
    times = []
    for _ in range(STEPS[model]):
        begun = time.perf_counter()
        step()
        times.append(time.perf_counter() - begun)
    np.save(Path(folder) / f"gradient-{engine}.npy", gradient)
    answer = {"median_s": float(np.median(times)), "peak_mib": _mib("VmHWM"), "loss": loss}
    print(json.dumps({**answer, "own_mib": _mib("VmRSS") - before_mib}))


def _mib(field: str) -> float:
    """A field of this process's status; getrusage would count its parent's peak before exec."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def _onnxruntime_step(_: str, __: str, threads: int, folder: Path) -> tuple[Step, float]:
    from edge.onnx.session import TrainStep, load_model

    package = load_model(folder).package
    with np.load(folder / "batch.npz") as data:
        batch = {spec.name: data[spec.name] for spec in package.batch_inputs}
    vector = np.load(folder / "vector.npy")
    before_mib = _mib("VmRSS")
    run = TrainStep(folder, package, threads).run
    return lambda: run(vector, batch), before_mib


def _torch_step(_: str, model: str, threads: int, folder: Path) -> tuple[Step, float]:
    import torch

    before_mib = _mib("VmRSS")
    torch.set_num_threads(threads)
    module, adapter, (inputs, targets) = _build(model, attention="sdpa")
    parameters = dict(module.named_parameters())
    trained = [parameters[name] for name in adapter.names]
    vector = torch.from_numpy(np.load(folder / "vector.npy"))
    with torch.no_grad():
        for parameter, value in zip(trained, adapter.split(vector).values(), strict=True):
            parameter.copy_(value)

    def step() -> tuple[float, Array]:
        loss = torch.nn.functional.cross_entropy(module(*inputs), *targets)
        gradients = torch.autograd.grad(loss, trained)
        flat: Array = torch.cat([g.reshape(-1) for g in gradients]).numpy()
        return loss.item(), flat

    return step, before_mib


def _export(model: str, folder: Path) -> None:
    import torch

    from models.export import export

    module, adapter, (inputs, targets) = _build(model, attention="eager")
    loss = torch.nn.functional.cross_entropy
    package = export(module, adapter, loss, (inputs, targets), folder, name=model)
    names = [spec.name for spec in package.batch_inputs]
    arrays = {n: t.numpy() for n, t in zip(names, (*inputs, *targets), strict=True)}
    np.savez(folder / "batch.npz", **arrays)
    generator = np.random.default_rng(2)
    vector = adapter.vector() + 0.02 * generator.standard_normal(adapter.dimension)
    np.save(folder / "vector.npy", vector.astype(np.float32))


def _build(model: str, attention: str) -> Any:
    """Module, adapter, and ((inputs), (targets)) of one batch."""
    import torch

    torch.manual_seed(0)
    if model == "encoder":
        return _encoder(attention)
    keyword = importlib.import_module("models.keyword")
    module = keyword.KeywordTransformer()
    adapter = keyword.add_keyword_lora(module)
    generator = torch.Generator().manual_seed(1)
    features = torch.rand(32, 50, 32, generator=generator)
    return module, adapter, ((features,), (torch.randint(0, 10, (32,), generator=generator),))


def _encoder(attention: str) -> Any:
    """The encoder takes token ids [batch, tokens] and an additive mask [batch, 1, 1, tokens]."""
    import torch
    from transformers import BertConfig, BertModel

    from models.adapters.lora import add_lora
    from models.adapters.spaces import train_whole

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            config = BertConfig(
                vocab_size=VOCABULARY,
                hidden_size=384,
                num_hidden_layers=6,
                num_attention_heads=12,
                intermediate_size=1536,
                attn_implementation=attention,
            )
            self.bert = BertModel(config, add_pooling_layer=False)
            self.head = torch.nn.Linear(384, CLASSES)

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> Any:
            hidden = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
            return self.head(hidden[:, 0])

    module = Encoder().eval()
    adapter = add_lora(module, LORA, rank=8, alpha=16) + train_whole(module, ("head",))
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, VOCABULARY, (BATCH, TOKENS), generator=generator)
    mask = torch.zeros(BATCH, 1, 1, TOKENS)
    mask[:, :, :, TOKENS * 3 // 4 :] = torch.finfo(torch.float32).min  # padding
    target = torch.randint(0, CLASSES, (BATCH,), generator=generator)
    return module, adapter, ((ids, mask), (target,))


if __name__ == "__main__":
    main()
