"""One engine, one model, one process: prints the step times, peak memory and a gradient as JSON.

`python -m bench.train_step_worker torch|onnxruntime|export keyword|encoder THREADS FOLDER`. The
onnxruntime worker imports no torch, so its memory is what a board would need.
"""

import importlib
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

STEPS = {"keyword": 200, "encoder": 25}
WARM_UP = 3
Array = np.ndarray[Any, Any]


def main() -> None:
    """See the module."""
    engine, model, threads, folder = sys.argv[1:]
    if engine == "weights":
        print(importlib.import_module("bench.encoder").weights())
        return
    if engine == "export":
        _export(model, Path(folder))
        return
    prepare = _torch_step if engine == "torch" else _onnxruntime_step
    step = prepare(model, int(threads), Path(folder))
    for _ in range(WARM_UP):
        loss, gradient = step()
    times = []
    for _ in range(STEPS[model]):
        begun = time.perf_counter()
        step()
        times.append(time.perf_counter() - begun)
    np.save(Path(folder) / f"gradient-{engine}.npy", gradient)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"median_s": float(np.median(times)), "peak_mib": peak_mib, "loss": loss}))


def _onnxruntime_step(_model: str, threads: int, folder: Path) -> Callable[[], tuple[float, Array]]:
    from edge.session import TrainStep, load_bundle

    loaded = load_bundle(folder)
    step = TrainStep(folder, loaded.bundle, threads)
    with np.load(folder / "batch.npz") as data:
        batch = {spec.name: data[spec.name] for spec in loaded.bundle.batch_inputs}
    vector = np.load(folder / "vector.npy")
    return lambda: step.run(vector, batch)


def _torch_step(model: str, threads: int, folder: Path) -> Callable[[], tuple[float, Array]]:
    import torch

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
        return float(loss), flat

    return step


def _export(model: str, folder: Path) -> None:
    import torch

    from models.export import export

    module, adapter, (inputs, targets) = _build(model, attention="eager")
    loss = torch.nn.functional.cross_entropy
    bundle = export(module, adapter, loss, (inputs, targets), folder, name=model)
    names = [spec.name for spec in bundle.batch_inputs]
    arrays = {n: t.numpy() for n, t in zip(names, (*inputs, *targets), strict=True)}
    np.savez(folder / "batch.npz", **arrays)
    generator = np.random.default_rng(2)
    vector = adapter.vector() + 0.02 * generator.standard_normal(adapter.dimension)
    np.save(folder / "vector.npy", vector.astype(np.float32))


def _build(model: str, attention: str) -> Any:
    if model == "encoder":
        encoder = importlib.import_module("bench.encoder")
        return (*encoder.build(attention), encoder.example_batch())
    import torch

    keyword = importlib.import_module("models.keyword")
    torch.manual_seed(0)
    module = keyword.KeywordTransformer()
    adapter = keyword.add_keyword_lora(module)
    generator = torch.Generator().manual_seed(1)
    features = torch.rand(32, 50, 32, generator=generator)
    return module, adapter, ((features,), (torch.randint(0, 10, (32,), generator=generator),))


if __name__ == "__main__":
    main()
