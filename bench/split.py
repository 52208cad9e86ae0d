"""Split training's claim: boards without torch and a host against one process with everything."""

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from bench.keyword import clips_of
from bench.result import Figure, Result, items_figure, mean_figure
from edge.split.node import drawn
from examples.split.keyword import WIDTH, shipped_keyword
from examples.voice.keyword import FRAMES, FRAMES_PER_TOKEN, add_keyword_lora
from experiments.data import Clips
from host.split.config import SplitRunConfig
from models.zoo import fsdd_path
from ternmesh_cli.demo.fleet import BOARDS
from ternmesh_cli.keys import enrol_fleet
from ternmesh_cli.process import write_toml
from ternmesh_cli.workers import Worker, python, running
from tests.mosquitto import Mosquitto

HOST = "host"
PATIENCE_S = 600.0
LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class Arm:
    """What crosses the boundary and how; `drop` is the share of frames lost, each way."""

    name: str
    method: str = "learned"
    latent: int = 8
    bits: int = 4
    drop: float = 0.0
    wait_s: float = 20.0
    answer_s: float = 30.0

    @property
    def boundary(self) -> Mapping[str, Any]:
        """The [boundary] table."""
        bits = {"bits_up": self.bits, "bits_gradient": self.bits}
        return {"method": self.method, "latent": self.latent, **bits}

    @property
    def folder(self) -> str:
        """The folder of its model parts; arms with the same parts share it."""
        return f"{self.method}-{self.latent}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended; `boards` are the last statuses, bytes are of a trained sample.

    Bytes are whole MQTT payloads between a board and the host, hello and seals included.
    """

    boards: Sequence[Mapping[str, Any]]
    seconds: float

    @property
    def right(self) -> int:
        """Held-out clips that the boards got right."""
        return sum(board["right"][0] for board in self.boards)

    @property
    def asked(self) -> int:
        """Held-out clips."""
        return sum(board["right"][1] for board in self.boards)

    @property
    def accuracy(self) -> float:
        """The share of held-out clips that are right."""
        return self.right / self.asked

    @property
    def bytes_up(self) -> float:
        """From the board to the host."""
        return self._traffic("bytes_out")

    @property
    def bytes_down(self) -> float:
        """From the host to the board."""
        return self._traffic("bytes_in")

    def total(self, count: str) -> int:
        """The boards' sum of one of their counts."""
        return sum(board["counts"].get(count, 0) for board in self.boards)

    def _traffic(self, name: str) -> float:
        moved = sum(board["learning_traffic"][name] for board in self.boards)
        return float(moved) / self.total("samples")


MICRO_BATCHES, MICRO_BATCHES_QUICK = 160, 30
SEEDS, SEEDS_OTHERS, SEEDS_QUICK = 8, 3, 1
BATCH = 16
RUN = SplitRunConfig()  # its rate, its fall and its limit serve the run in one piece as well
FLOAT_BYTES = 2 * 4 * FRAMES // FRAMES_PER_TOKEN * WIDTH  # of a sample, up and down
WHOLE, SMALL = Arm("whole", "none", WIDTH, 32), Arm("small")
LOSSY = Arm("lossy", drop=0.05, wait_s=0.5, answer_s=2.0)
ARMS = (SMALL, LOSSY, WHOLE)
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
            chosen = seeds if arm is SMALL else seeds[:SEEDS_OTHERS]
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


def export(arm: Arm, folder: Path, micro_batches: int) -> None:
    """Write the arm's parts below `folder`, if they are not there."""
    if (folder / arm.folder).is_dir():
        return
    path = folder / f"{arm.folder}.toml"
    path.write_text(_host_config(arm, folder, folder / "none", "mqtt://127.0.0.1", micro_batches))
    worker = Worker("export", folder / "log", _command("export", path))
    worker.start()
    worker.wait()


def run(arm: Arm, exported: Path, micro_batches: int, seed: int) -> Outcome:
    """Train once with fresh processes and keys."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        broker = stack.enter_context(Mosquitto(folder))
        folders = {board: folder / board for board in BOARDS}
        enrol_fleet("split", folder / HOST, folders)
        path = folder / HOST / "config.toml"
        path.write_text(_host_config(arm, exported, folder / HOST, broker.url, micro_batches))
        host = stack.enter_context(running(Worker(HOST, folder / HOST, _command("host", path))))
        boards = []
        for board, own in folders.items():
            path = own / "config.toml"
            path.write_text(_board_config(arm, exported, own, broker.url, seed))
            command = python("bench.split_board", str(path), str(arm.drop), str(seed))
            worker = Worker(board, own, command, may_end=True)
            boards.append(stack.enter_context(running(worker)))
        start = time.monotonic()
        _watch(host, boards)
        seconds = time.monotonic() - start
        ended = [json.loads(board.last_line()) for board in boards]
        if any(board["torch"] for board in ended):
            raise AssertionError(f"a board has loaded {ended[0]['torch']}")
        return Outcome(ended, seconds)


def _watch(host: Worker, boards: Sequence[Worker]) -> None:
    """Wait for the boards."""
    deadline = time.monotonic() + PATIENCE_S
    while any(board.process is not None and board.process.poll() != 0 for board in boards):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the boards do not end: {boards[0].last_line()}")
        for worker in (host, *boards):
            worker.keep_alive()
        time.sleep(LOOK_S)


def _command(name: str, path: Path) -> list[str]:
    return python("ternmesh_cli.main", "split", name, "--config", str(path))


def _host_config(arm: Arm, exported: Path, own: Path, url: str, micro_batches: int) -> str:
    return write_toml(
        {
            "": {
                "state_dir": str(own),
                "model": str(exported / arm.folder),
                "builder": "examples.split.keyword:make",
            },
            "link": {"url": url, "fleet": "split"},
            "boundary": arm.boundary,
            "run": {
                "micro_batches": micro_batches,
                "min_boards": len(BOARDS),
                "wait_s": arm.wait_s,
                "answer_s": arm.answer_s,
            },
        }
    )


def _board_config(arm: Arm, exported: Path, own: Path, url: str, seed: int) -> str:
    clips = {
        "arrays": {"features": "x", "label": "y"},
        "where": {"speaker": own.name},
        "divide_by": 255.0,
    }
    return write_toml(
        {
            "": {"name": own.name, "state_dir": str(own), "model": str(exported / arm.folder)},
            "link": {"url": url, "fleet": "split"},
            "data": {"path": str(fsdd_path("train")), **clips},
            "evaluate": {"path": str(fsdd_path("dev")), **clips},
            "training": {"seed": seed},
        }
    )
