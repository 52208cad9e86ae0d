"""Split training's claim: boards without torch and a host against one process with everything."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from bench.demo import clips_of
from bench.result import Figure, Result, items_figure, mean_figure
from bench.simulated_fleet import Clips
from bench.split_run import Arm, Outcome, export, run
from edge.split.node import drawn
from host.split.config import SplitRunConfig
from models.keyword import FRAMES, FRAMES_PER_TOKEN, add_keyword_lora
from models.split.keyword import WIDTH, shipped_keyword
from ternmesh_cli.demo.fleet import BOARDS

MICRO_BATCHES, MICRO_BATCHES_QUICK = 160, 30
SEEDS, SEEDS_OTHERS, SEEDS_QUICK = 8, 3, 1
BATCH = 16
RUN = SplitRunConfig()  # its rate, its fall and its limit serve the run in one piece as well
FLOAT_BYTES = 2 * 4 * FRAMES // FRAMES_PER_TOKEN * WIDTH  # of a sample, up and down
WHOLE, SMALL = Arm("whole", "none", WIDTH, 32), Arm("small")
LOSSY = Arm("lossy", drop=0.05, wait_s=0.5, answer_s=2.0)
STAY = Arm("stay", labels="stay")
KILLED = Arm("killed", wait_s=0.5, answer_s=2.0, is_killed=True)
ARMS = (SMALL, LOSSY, STAY, KILLED, WHOLE)
NOTES = (
    "the shipped keyword model, cut after the first of its two layers; LoRA of rank 8 and the "
    "boundary's basis are trained; three board processes in which importing torch fails, a "
    "host with torch, a mosquitto with its defaults, keys and seals (suite 1) on",
    f"{MICRO_BATCHES} micro-batches of {BATCH} clips a board; accuracy on the 150 dev clips "
    "of the three unseen speakers, asked over the same link after training; one clip is 0.67 "
    "points",
    "points lost: the interval covers seeds and clips; boards report how many clips are right and "
    "not which, so clips are not paired, and it is wider than a paired one",
    "unsplit: one process, one model for all boards, the same clips in each step, the same "
    "Adam and limit on a micro-batch's gradient; a split board has a first layer of its own "
    "for its speaker, which the unsplit run has not: 'whole' (split, float32) separates that from "
    "what compression does",
    "activation_ratio: float32 activations and their gradients (2 x 25 x 112 x 4 bytes) over "
    "whole MQTT payloads of both directions while training: heads, labels, seals, hellos",
    "lossy: each frame is lost with 5 % each way; a micro-batch is one frame up and one down",
    "killed: one seed; a board at a third and the host at two thirds of the way, by SIGKILL",
)


def measure(*, quick: bool) -> Result:
    """All arms over seeds, one after the other; `quick` takes one arm, one seed, 30 steps."""
    seeds = range(SEEDS_QUICK if quick else SEEDS)
    micro_batches = MICRO_BATCHES_QUICK if quick else MICRO_BATCHES
    unsplit = [train_unsplit(seed, micro_batches) for seed in seeds]
    print(f"in one piece: {', '.join(f'{value:.1%}' for value in unsplit)}", flush=True)
    outcomes: dict[str, list[Outcome]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for arm in (SMALL,) if quick else ARMS:
            export(arm, Path(folder), micro_batches)
            count = 1 if arm.is_killed else len(seeds) if arm is SMALL else SEEDS_OTHERS
            chosen = seeds[:count]
            outcomes[arm.name] = [_run(arm, Path(folder), micro_batches, seed) for seed in chosen]
    peers = {"float32_bytes_per_sample": float(FLOAT_BYTES)}
    details = {
        "accuracy_unsplit": unsplit,
        "accuracy": {name: [o.accuracy for o in found] for name, found in outcomes.items()},
        "seconds": {name: [o.seconds for o in found] for name, found in outcomes.items()},
        "board_rss_mib": [b["rss_mib"] for found in outcomes.values() for b in found[0].boards],
    }
    return Result("split", _figures(unsplit, outcomes), peers, NOTES, details, quick=quick)


def _run(arm: Arm, folder: Path, micro_batches: int, seed: int) -> Outcome:
    outcome = run(arm, folder, micro_batches, seed)
    print(
        f"{arm.name}, seed {seed}: {outcome.accuracy:.1%}, {outcome.bytes_up:.1f} bytes up and "
        f"{outcome.bytes_down:.1f} down a sample, {outcome.total('lost')} of "
        f"{len(BOARDS) * micro_batches} micro-batches lost, {outcome.seconds:.0f} s",
        flush=True,
    )
    return outcome


def _figures(
    unsplit: Sequence[float], outcomes: Mapping[str, Sequence[Outcome]]
) -> dict[str, Figure]:
    small = outcomes[SMALL.name]
    ratios = [FLOAT_BYTES / (outcome.bytes_up + outcome.bytes_down) for outcome in small]
    figures = {
        "points_lost": _points_lost(unsplit, small, "<=1"),
        "activation_ratio": mean_figure(ratios, ">=16"),
        "payload_bytes_per_sample_up": mean_figure([o.bytes_up for o in small]),
        "payload_bytes_per_sample_down": mean_figure([o.bytes_down for o in small]),
        "accuracy_unsplit": mean_figure(unsplit),
    }
    for name, found in outcomes.items():
        sent = [o.bytes_up + o.bytes_down for o in found]
        figures[f"accuracy_{name}"] = mean_figure([o.accuracy for o in found])
        figures[f"payload_bytes_per_sample_{name}"] = mean_figure(sent)
    if LOSSY.name in outcomes:
        found = outcomes[LOSSY.name]
        shares = [o.total("lost") / (o.total("samples") / BATCH) for o in found]
        figures["lossy_points_lost"] = _points_lost(unsplit, found)
        figures["lossy_micro_batches_lost_share"] = mean_figure(shares)
    if KILLED.name in outcomes:
        [killed] = outcomes[KILLED.name]
        figures["kills"] = Figure(killed.kills)
        figures["killed_points_lost"] = _points_lost(unsplit, [killed])
        figures["killed_micro_batches_lost"] = Figure(killed.total("lost"))
    return figures


def _points_lost(
    unsplit: Sequence[float], outcomes: Sequence[Outcome], limit: str | None = None
) -> Figure:
    """Which clips are right is not known: they are drawn, the same ones over all seeds."""
    rng = np.random.default_rng(0)
    items = outcomes[0].asked
    before, after = rng.random((2, items)).argsort().argsort()
    pairs = zip(unsplit, outcomes, strict=False)
    rows = [
        100.0 * (before < round(share * items)) - 100.0 * (after < outcome.right)
        for share, outcome in pairs
    ]
    return items_figure(rows, limit)


def train_unsplit(seed: int, micro_batches: int) -> float:
    """Accuracy of the whole model in one process: the same samples in each step, the same Adam."""
    torch.set_num_threads(1)
    model = shipped_keyword()
    add_keyword_lora(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained)
    clips = {board: _tensors(clips_of("train", board)) for board in BOARDS}
    for number in range(micro_batches):
        for group in optimizer.param_groups:
            fall = 1 - RUN.learning_rate_drop * number / micro_batches
            group["lr"] = RUN.learning_rate * max(0.0, fall)
        gathered = [torch.zeros_like(parameter) for parameter in trained]
        for board, (features, labels) in clips.items():
            chosen = torch.from_numpy(drawn(seed, board, number, BATCH, len(labels)))
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(features[chosen]), labels[chosen])
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(trained, RUN.clip_norm)
            for total, parameter in zip(gathered, trained, strict=True):
                assert parameter.grad is not None
                total += parameter.grad / len(BOARDS)
        for total, parameter in zip(gathered, trained, strict=True):
            parameter.grad = total
        optimizer.step()
    right = []
    with torch.no_grad():
        for board in BOARDS:
            features, labels = _tensors(clips_of("dev", board))
            right.append((model(features).argmax(1) == labels).float())
    return float(torch.cat(right).mean())


def _tensors(clips: Clips) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(clips.arrays["features"]), torch.from_numpy(clips.arrays["target"])
