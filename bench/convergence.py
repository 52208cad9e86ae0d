"""What compressed boundaries cost in loss, and what they bring: ten arms, two optimisers.

Eight layers in four stages, in one process: the same payloads as between ranks, without links. On a
GPU the model has width 512 and 1024, without one 128. `python -m bench.convergence RUN SEED EXTENT
TEXT` trains one arm and prints one JSON line. A rate is chosen on held-out text that is not judged.
The time to a loss is arithmetic: tokens until then, measured speed, and bytes over the link's rate.
"""

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from bench.corpus import VOCABULARY, Corpus, books, load, sources
from bench.jobs import AT_ONCE, Finished, Job, finish
from bench.one_process import assemble, run_stages
from bench.result import Figure, Result, mean_figure
from models.bottleneck.assemble import StageLayout
from models.bottleneck.config import BottleneckConfig, OptimizerConfig, Shape
from models.bottleneck.training import StageOptimizer
from models.errors import BottleneckError
from models.transformer import OUTPUTS, TOKENS, transformer

STAGES, MUON, ADAMW = 4, "muon", "adamw"
MBITS = (10, 50, 80, 200)
NONE, HALF, TWO_LAYERS = "none", "none_half_rate", "two_layers"
UNCOMPRESSED = (NONE, HALF)
LOOKS, LOOK_PARTS, JUDGED_PARTS = 20, 2, 12  # looks at held-out text, and batches of each
SPEED_STEPS, AT_ONCE_GPU = 30, 7
TABLE_STD, GAP_MAX = 0.02, "<=0.10"
AIMED = "resbm_8x_8bit"

NOTES = (
    f"eight layers in {STAGES} stages, in one process; 8x: an eighth of the width; bytes of books "
    "at width 128; at 512 and 1024 Python sources of installed packages",
    "gap: nats of judged loss above the best uncompressed run of any optimiser, paired by seed",
    "rates and the best uncompressed run are chosen on held-out text that is not judged",
    "two_layers: two of the eight layers, uncompressed: what one machine of four trains alone",
    "hours_to_loss: to the loss at which two layers end, by arithmetic: four stages at once, "
    "a link without pauses; break_mbit: below it the arm is there before none (bfloat16)",
)


@dataclass(frozen=True, slots=True)
class Arm:
    """A boundary: `share` of the width crosses it, in `bits` forward and `back_bits` back."""

    method: str = NONE
    share: float = 1.0
    bits: int = 16
    back_bits: int = 16
    layers: int | None = None
    rate: float = 1.0  # times the rate of the others

    def boundary(self, width: int, optimizer: str) -> BottleneckConfig:
        """The product's settings of it; with AdamW a subspace has its own optimiser of rows."""
        return BottleneckConfig(
            method=self.method,
            latent=max(1, round(width * self.share)),
            bits=self.bits,
            back_bits=self.back_bits,
            form="factors" if optimizer == MUON else "rows",
            basis_steps=0,
            table_std=TABLE_STD,
        )


ARMS = {
    NONE: Arm(),
    HALF: Arm(rate=0.5),
    TWO_LAYERS: Arm(layers=2),  # what one machine of four can train alone
    AIMED: Arm("resbm", 1 / 8, 8, 8),
    "resbm_8x_8bit_4back": Arm("resbm", 1 / 8, 8, 4),
    "resbm_32x_8bit": Arm("resbm", 1 / 32, 8, 8),
    "resbm_128x": Arm("resbm", 1 / 128, 32, 32),
    "resbm_128x_4bit": Arm("resbm", 1 / 128, 4, 4),
    "subspace_8x": Arm("subspace", 1 / 8, 32, 32),
    "subspace_100x": Arm("subspace", 1 / 100, 32, 32),
}


@dataclass(frozen=True, slots=True)
class Run:
    """An arm with an optimiser and its rate, for some seeds."""

    arm: str
    optimizer: str
    rate: float
    seeds: int = 2

    @property
    def name(self) -> str:
        return f"{self.arm}/{self.optimizer}/{self.rate:g}"


@dataclass(frozen=True, slots=True)
class Extent:
    """A model, its training, and the runs in the order of their weight."""

    shape: Shape
    steps: int
    batch: int
    device: str
    runs: tuple[Run, ...]


def runs(muon: float, adamw: float, *, is_long: bool) -> tuple[Run, ...]:
    """All arms with Muon, and with AdamW those where it matters; what matters most comes first.

    Where `is_long` is set, the aimed arm and its bases have a third seed, and some a second rate.
    """
    seeds = 3 if is_long else 2
    others = [name for name in ARMS if name not in (*UNCOMPRESSED, TWO_LAYERS, AIMED)]
    slower = (AIMED, "subspace_8x", "subspace_100x") if is_long else ()
    with_adamw = (TWO_LAYERS, AIMED, "resbm_128x", "subspace_8x") if is_long else (AIMED,)
    return (
        *(Run(name, MUON, muon, seeds) for name in UNCOMPRESSED),
        Run(NONE, ADAMW, adamw),
        Run(TWO_LAYERS, MUON, muon),
        Run(AIMED, MUON, muon, seeds),
        *(Run(name, MUON, muon) for name in others),
        *(Run(name, MUON, muon / 3) for name in slower),
        *(Run(name, ADAMW, adamw) for name in with_adamw),
    )


def one_seed(rate: float) -> tuple[Run, ...]:
    """The arms that matter most, with Muon."""
    return tuple(Run(name, MUON, rate, 1) for name in (*UNCOMPRESSED, TWO_LAYERS, AIMED))


FOUR_SEEDS = tuple(replace(run, seeds=4) for run in runs(3e-3, 2e-3, is_long=False))
EXTENTS = {
    "quick": Extent(Shape(256, 32, 8, 2, 16), 10, 8, "cpu", one_seed(3e-3)),
    "w128": Extent(Shape(256, 128, 8, 4, 64), 440, 16, "cpu", FOUR_SEEDS),
    "w512": Extent(
        Shape(VOCABULARY, 512, 8, 8, 256), 2000, 32, "cuda", runs(3e-3, 1e-3, is_long=True)
    ),
    "w1024": Extent(Shape(VOCABULARY, 1024, 8, 16, 256), 1600, 32, "cuda", one_seed(2e-3)),
}


class Trained:
    """The stages of a transformer with their optimisers, in one process on one device."""

    def __init__(
        self,
        shape: Shape,
        boundary: BottleneckConfig,
        settings: OptimizerConfig,
        seed: int,
        batch: int,
        device: str = "cpu",
    ) -> None:
        layers = transformer(shape, seed)
        positions = layers[0].get_buffer("positions")
        layout = StageLayout(shape.width, shape.vocabulary, OUTPUTS, TOKENS, positions)
        stages = STAGES if shape.layers >= STAGES else 1
        self.stages, self.frame = assemble(layers, layout, boundary, stages, batch, shape.length)
        for stage in self.stages:
            stage.to(device)
            stage.is_bf16 = device == "cuda"
        self.trainers = [StageOptimizer(s, self.frame, boundary, settings) for s in self.stages]

    def learn(self, batch: Tensor, step: int, steps: int) -> Tensor:
        """One step; the loss before it, still on the device."""
        for trainer in self.trainers:
            trainer.zero_grad()
        loss = self.loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = math.sqrt(sum(trainer.square() for trainer in self.trainers))
        for trainer in self.trainers:
            trainer.step(step, steps, norm)
        return loss.detach()

    def loss(self, batch: Tensor) -> Tensor:
        """Mean nats a token of a batch [rows, length + 1]."""
        logits = run_stages(self.stages, batch[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())

    @torch.no_grad()
    def judge(self, batches: Sequence[Tensor]) -> float:
        """The mean loss of batches."""
        return float(np.mean([float(self.loss(batch)) for batch in batches]))


def start(run: Run, seed: int, extent: Extent) -> Trained:
    """A run before its first step."""
    arm, shape = ARMS[run.arm], extent.shape
    settings = OptimizerConfig(
        name=run.optimizer, learning_rate=run.rate * arm.rate, warmup_steps=extent.steps // 15
    )
    boundary = arm.boundary(shape.width, run.optimizer)
    shape = replace(shape, layers=arm.layers or shape.layers)
    return Trained(shape, boundary, settings, seed, extent.batch, extent.device)


def train(run: Run, seed: int, extent: Extent, text: Corpus) -> dict[str, Any]:
    """Train to the end: chosen and judged loss, and the curve of chosen loss over tokens."""
    began, rows, length = time.monotonic(), extent.batch, extent.shape.length

    def held_out(name: str, parts: int) -> float:
        found = text.held_out(name, parts, rows, length)
        return made.judge([torch.from_numpy(part).to(extent.device) for part in found])

    made = start(run, seed, extent)
    exit_, tokens, every = made.stages[0].exit, rows * length, max(1, extent.steps // LOOKS)
    curve, last = [], math.inf
    for step in range(extent.steps):
        batch = torch.from_numpy(text.batch(step, seed, rows, length)).to(extent.device)
        try:
            loss = made.learn(batch, step, extent.steps)
        except BottleneckError:  # the training has diverged
            break
        if (step + 1) % every == 0:
            last = held_out("chosen", LOOK_PARTS)
            if not math.isfinite(last):
                break
            curve.append([(step + 1) * tokens, round(last, 4), round(float(loss), 4)])
    sizes = exit_.sizes(rows, length) if exit_ else (0, 0)
    is_whole = len(curve) == extent.steps // every and math.isfinite(last)
    return {
        "chosen": held_out("chosen", JUDGED_PARTS) if is_whole else math.inf,
        "judged": held_out("judged", JUDGED_PARTS) if is_whole else math.inf,
        "curve": curve,
        "bytes_per_token": [size / tokens for size in sizes],
        "train_s": round(time.monotonic() - began, 1),
    }


def speeds(extent: Extent, text: Corpus) -> dict[str, Any]:
    """Tokens a second of each run in a process that is alone, and what it ran on."""
    made = {}
    for run in {run.arm: run for run in reversed(extent.runs)}.values():
        trained = start(run, 0, extent)
        for step in range(SPEED_STEPS + 3):
            batch = torch.from_numpy(text.batch(step, 0, extent.batch, extent.shape.length))
            loss = trained.learn(batch.to(extent.device), step, extent.steps)
            if step == 2:
                float(loss)
                began = time.perf_counter()
        float(loss)
        tokens = SPEED_STEPS * extent.batch * extent.shape.length
        made[run.arm] = tokens / (time.perf_counter() - began)
    name = torch.cuda.get_device_name() if extent.device == "cuda" else "cpu, one thread"
    return {"tokens_per_s": made, "device": name, "torch": torch.__version__}


def measure(*, quick: bool, resume: Path | None = None) -> Result:
    """All runs of the extents for this machine; `quick` trains ten steps: its gaps mean nothing."""
    finished = Finished(resume)
    has_gpu = torch.cuda.is_available() or "w512/text" in finished.values
    names = ("quick",) if quick else ("w512", "w1024") if has_gpu else ("w128",)
    path = Path(mkdtemp(prefix="ternmesh-bench-"), "text.npz")
    for name in names:
        _finish(finished, name, path)
    figures: dict[str, Figure] = {}
    details: dict[str, Any] = {}
    for name in names:
        found, details[name] = summary(EXTENTS[name], finished.values, name)
        prefix = "" if name == names[0] else f"{name}_"
        figures |= {f"{prefix}{key}": figure for key, figure in found.items()}
    return Result("convergence", figures, {}, NOTES, details, quick)


def _finish(finished: Finished, name: str, path: Path) -> None:
    """Train what is missing of an extent; the text is made only if something is."""
    extent = EXTENTS[name]
    is_gpu = extent.device == "cuda"
    trained = [
        Job(part_of(name, run, seed), ("bench.convergence", run.name, str(seed), name, str(path)))
        for run in extent.runs
        for seed in range(run.seeds)
    ]
    speed = Job(f"{name}/speed", ("bench.convergence", "speed", "0", name, str(path)))
    if all(job.part in finished.values for job in (*trained, speed)):
        return
    if not path.exists():
        text = sources() if is_gpu else books(extent.shape.length)
        text.save(path)
        finished.add(f"{name}/text", text.sizes)
        print(f"text: {text.sizes}", flush=True)

    def describe(value: Mapping[str, Any]) -> str:
        return f"{value['judged']:.4f}, {value['train_s']:.0f} s"

    finish(finished, [speed], lambda value: f"on {value['device']}", at_once=1)
    finish(finished, trained, describe, at_once=AT_ONCE_GPU if is_gpu else AT_ONCE)


def part_of(extent: str, run: Run, seed: int) -> str:
    """The name of a finished part."""
    return f"{extent}/{run.name}/{seed}"


def summary(
    extent: Extent, values: Mapping[str, Any], name: str
) -> tuple[dict[str, Figure], dict[str, Any]]:
    """Figures and details of an extent from its finished parts."""
    rows = {run: [values[part_of(name, run, s)] for s in range(run.seeds)] for run in extent.runs}
    best: dict[tuple[str, str], Run] = {}  # the rate of each arm with an optimiser
    for run in sorted(extent.runs, key=lambda run: _mean(rows[run], "chosen")):
        best.setdefault((run.arm, run.optimizer), run)
    base = next(run for run in best.values() if run.arm in UNCOMPRESSED)
    figures = {}
    for (arm, optimizer), run in best.items():
        pairs = zip(rows[run], rows[base], strict=False)
        gaps = [ours["judged"] - theirs["judged"] for ours, theirs in pairs]
        if run != base:
            is_aim = (name, arm, optimizer) == ("w512", AIMED, MUON)
            figures[f"gap_{arm}_{optimizer}"] = mean_figure(gaps, GAP_MAX if is_aim else None)
    times, breaks = times_to_loss(best, rows, values[f"{name}/speed"]["tokens_per_s"])
    figures |= {f"break_mbit_{arm}": Figure(rate) for arm, rate in breaks.items()}
    return figures, {
        "uncompressed": base.name,
        "chosen_rates": {f"{arm}/{opt}": run.rate for (arm, opt), run in best.items()},
        "hours_to_loss": times,
        "text": values.get(f"{name}/text"),
        "speed": values[f"{name}/speed"],
        "runs": {run.name: made for run, made in rows.items()},
    }


def times_to_loss(
    best: Mapping[tuple[str, str], Run],
    rows: Mapping[Run, Sequence[Mapping[str, Any]]],
    speed: Mapping[str, float],
) -> tuple[dict[str, Any], dict[str, float]]:
    """Hours to the loss that two layers alone end with, by link; and below which link an arm wins.

    Stages compute at once, each a quarter of the model, and the link is full: the best that a
    schedule can reach. Two layers need no link.
    """
    ends = [row["curve"][-1][1] for row in rows[best[TWO_LAYERS, MUON]]]
    target = float(np.mean(ends))
    needs: dict[str, tuple[float, float, float]] = {}
    times: dict[str, Any] = {"loss": target}
    for (arm, optimizer), run in best.items():
        if optimizer == MUON:
            tokens = float(np.mean([tokens_to(row["curve"], target) for row in rows[run]]))
            stages = 1 if arm == TWO_LAYERS else STAGES
            needs[arm] = (tokens, speed[arm] * stages, max(rows[run][0]["bytes_per_token"]))
            hours = [hours_to(needs[arm], mbits) for mbits in MBITS]
            shown = [round(h, 4) if math.isfinite(h) else None for h in hours]
            times[arm] = dict(zip(map(str, MBITS), shown, strict=True))
    whole = needs[NONE]
    # The arm computes all the time, and the uncompressed run waits for its link.
    breaks = {
        arm: whole[2] * 8e-6 * whole[0] / (tokens / rate)
        for arm, (tokens, rate, size) in needs.items()
        if 0 < size < whole[2] and math.isfinite(tokens + whole[0])
    }
    return times, breaks


def hours_to(need: tuple[float, float, float], mbits: float) -> float:
    """Hours for tokens, at a computing rate in tokens a second and bytes a token over a link."""
    tokens, rate, size = need
    return tokens / min(rate, mbits * 1e6 / 8 / size if size else math.inf) / 3600


def tokens_to(curve: Sequence[Sequence[float]], loss: float) -> float:
    """The tokens at which a curve of (tokens, loss, ...) first is at `loss`; inf if never."""
    losses = np.minimum.accumulate([math.inf, *(point[1] for point in curve)])[1:]
    if not curve or losses[-1] > loss:
        return math.inf
    return float(np.interp(-loss, -losses, [point[0] for point in curve]))


def _mean(rows: Sequence[Mapping[str, Any]], key: str) -> float:
    """The mean over the first two seeds, which all of a GPU's runs have."""
    mean = float(np.mean([row[key] for row in rows[:2]]))
    return mean if math.isfinite(mean) else math.inf


def main() -> None:
    """Run the command in the module's docstring."""
    name, seed, extent_name, path = sys.argv[1:5]
    torch.set_num_threads(1)
    extent, text = EXTENTS[extent_name], load(Path(path))
    if name == "speed":
        print(json.dumps(speeds(extent, text)))
        return
    run = next(run for run in extent.runs if run.name == name)
    print(json.dumps(train(run, int(seed), extent, text)))


if __name__ == "__main__":
    main()
