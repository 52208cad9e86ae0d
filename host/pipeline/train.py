"""The training loop of one rank."""

import copy
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed import Store  # type: ignore[attr-defined]

from host.pipeline import engine
from host.pipeline.agreement import check_agreement, gather
from host.pipeline.checkpoint import Checkpoints, common_step, copy_into
from host.pipeline.config import PipelineConfig
from host.pipeline.engine import Engine
from host.pipeline.errors import PipelineError
from host.pipeline.peers import Peers
from host.pipeline.replicas import Replica
from host.pipeline.report import Progress
from host.pipeline.texts import read_texts, tokenizer
from host.pipeline.trace import tracing
from models import causal
from models.bottleneck.assemble import Layout, assemble
from models.bottleneck.frame import Frame
from models.bottleneck.training import StageOptimizer
from models.causal import read_causal
from models.stages import Stage
from models.transformer import OUTPUTS, TOKENS, transformer

VALIDATION_PARTS = 4
OPTIMIZER = "optimizer/"
LOST_MAX = 1e-3  # of what layers give, beyond which they are not confined


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank stands; the store is torchrun's, for words beside the payloads."""

    rank: int
    stage: int
    replica: int
    store: Store
    device: torch.device
    peers: Peers | None = None


class Meter:
    """How long steps took, and the share of it in which this stage waited."""

    def __init__(self, stages: Engine, step: int) -> None:
        self._engine, self._step = stages, step
        self._began, self._busy = time.perf_counter(), stages.stage.busy_s

    def read(self, step: int) -> tuple[int, float, float]:
        """Steps, seconds and the idle share since the last reading."""
        now, busy = time.perf_counter(), self._engine.stage.busy_s
        done, wall_s = step - self._step, now - self._began
        idle = 1 - (busy - self._busy) / wall_s
        self._step, self._began, self._busy = step, now, busy
        return done, wall_s, idle


class Trainer:
    """One rank's run: made, brought to where the last checkpoint of all ranks is, and run."""

    def __init__(self, config: PipelineConfig, place: Place) -> None:
        self._config, self._place = config, place
        encode = tokenizer(Path(config.model_folder)) if config.model_folder else None
        self._texts = read_texts(Path(config.data), config.model.length, encode)
        stage, self._frame = own_stage(config, place.stage)
        self._stage = stage.to(place.device)
        self._engine = Engine(self._stage, place.stage, config, place.device)
        self._optimizer = StageOptimizer(
            self._stage, self._frame, config.boundary, config.optimizer
        )
        self._replica = None
        if place.peers is not None:
            self._replica = Replica(config, place.stage, self._stage, self._frame, place.peers)
        self._checkpoints = Checkpoints(config.folder / "checkpoints", place.rank, config.digest)
        self._step = 0

    def prepare(self) -> None:
        """Agree with the other ranks and go to their last common checkpoint; PipelineError."""
        place, config = self._place, self._config
        own = {"texts": self._texts.digest, "steps": self._checkpoints.steps()}
        # Reading texts may take one machine longer than another.
        said = gather(place.store, "ready", place.rank, config.ranks, own, config.timeout_s)
        check_agreement([{"texts": each["texts"]} for each in said])
        self._step = common_step([each["steps"] for each in said])
        if self._step:
            self._load()
        elif self._frame is not None:
            self._from_first(self._frame.basis)  # libraries round QR differently
        self._checkpoints.forget_after(self._step)

    def run(self) -> None:
        """All steps that are left."""
        folder = self._config.folder if self._config.trace else None
        with tracing(folder, self._place.rank) as trace_step:
            self._run(trace_step)

    def _run(self, trace_step: Callable[[], None]) -> None:
        config, peers = self._config, self._place.peers
        began, meter, progress = self._step, Meter(self._engine, self._step), self._progress()
        while self._step < config.steps:
            loss = self._learn()
            self._step += 1
            trace_step()
            if self._is_time(config.report_steps):
                done, wall_s, idle = meter.read(self._step)
                shares = engine.gather_numbers(idle, config.stages, self._place.device)
                sent = 0.0 if peers is None else peers.sent_bytes / (self._step - began)
                said = engine.gather_numbers(sent, config.stages, self._place.device)
                if progress is not None and loss is not None:
                    progress.step(self._step, loss, done, wall_s, shares, sum(said))
            if self._is_time(config.validate_steps) and self._place.replica == 0:
                judged = self._judge()
                if progress is not None:
                    progress.validation(self._step, judged)
                meter = Meter(self._engine, self._step)
            if self._is_time(config.checkpoint_steps):
                self._save()

    def _is_time(self, every: int) -> bool:
        return every > 0 and (self._step % every == 0 or self._step == self._config.steps)

    def _progress(self) -> Progress | None:
        entry, config = self._stage.entry, self._config
        if entry is None or not self._engine.is_last or self._place.replica:
            return None
        empty = entry.empty(config.micro_batch, config.model.length, torch.device("cpu"))
        tokens = config.micro_batch * config.model.length
        back = empty.wire.numel() * empty.wire.element_size()
        return Progress(config, empty.size / tokens, back / tokens)

    def _learn(self) -> float | None:
        config, optimizer = self._config, self._optimizer
        optimizer.zero_grad()
        turns = optimizer.is_basis_step(self._step)
        if self._frame is not None:
            self._frame.collecting = turns
        every = config.rows * config.replicas.count
        batch = self._texts.batch(self._step, config.seed, every, config.model.length)
        first = self._place.replica * config.rows
        loss = self._engine.learn(torch.from_numpy(batch[first : first + config.rows]))
        if self._replica is not None:
            self._replica.average_gradients()
        optimizer.step(self._step, config.steps)
        if turns:
            self._turn()
        if self._replica is not None:
            self._replica.after_step(self._step + 1, self._step + 1 == config.steps)
        return loss

    def _turn(self) -> None:
        """One Grassmann step: gradients are summed, and rank 0's new basis is everyone's."""
        frame, peers = self._frame, self._place.peers
        assert frame is not None
        engine.sum_over_ranks(frame.gram)
        if peers is not None and self._place.stage == 0:
            frame.gram.copy_(peers.mean(frame.gram))
        basis = self._optimizer.next_basis()
        self._from_first(basis)
        if self._replica is not None:
            self._replica.turn(basis)
        self._optimizer.turn(basis)
        frame.basis.copy_(basis)

    def _from_first(self, basis: Tensor) -> None:
        """Replace a basis by that of rank 0, in all replicas."""
        if self._place.peers is not None and self._place.stage == 0:
            basis.copy_(self._place.peers.first(basis))
        engine.from_first(basis)

    def _judge(self) -> float:
        """The loss on held-out text, of what all replicas agree on."""
        config, losses = self._config, []
        with nullcontext() if self._replica is None else self._replica.agreed():
            for part in range(VALIDATION_PARTS):
                batch = self._texts.judged(part, config.rows, config.model.length)
                losses.append(self._engine.judge(torch.from_numpy(batch)) or 0.0)
        return sum(losses) / len(losses)

    def _tensors(self) -> list[tuple[str, Tensor]]:
        frame = [] if self._frame is None else [("basis", self._frame.basis)]
        agreed = [] if self._replica is None else self._replica.tensors()
        return [*self._stage.named_parameters(), *frame, *agreed]

    def _save(self) -> None:
        moments = [(OPTIMIZER + name, tensor) for name, tensor in self._optimizer.tensors()]
        self._checkpoints.save(self._step, [*self._tensors(), *moments])

    def _load(self) -> None:
        tensors = self._checkpoints.load(self._step)
        copy_into(self._tensors(), tensors)
        self._optimizer.load(
            {
                name.removeprefix(OPTIMIZER): tensor
                for name, tensor in tensors.items()
                if name.startswith(OPTIMIZER)
            }
        )


def model_of(config: PipelineConfig) -> tuple[list[nn.Module], Layout]:
    """The whole model as a sequence of layers, and how boundaries see it."""
    model = config.model
    if config.model_folder:
        layers = read_causal(Path(config.model_folder), model.length)
        return layers, Layout(model.width, model.vocabulary, causal.OUTPUTS, causal.TOKENS)
    layers = transformer(model, config.seed)
    positions = layers[0].get_buffer("positions")
    return layers, Layout(model.width, model.vocabulary, OUTPUTS, TOKENS, positions)


@torch.no_grad()
def check_subspace(layers: Iterable[nn.Module], frame: Frame, length: int) -> None:
    """PipelineError where layers of the first stage write what its boundary would lose.

    Scales and biases are tried as training may change them: new ones are all alike.
    """
    tokens = torch.arange(length).unsqueeze(0) % len(frame.table)
    generator = torch.Generator().manual_seed(0)
    x = tokens
    for layer in layers:
        changed = copy.deepcopy(layer)
        for parameter in changed.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
        x = changed(x)
    rest = x - frame.known(tokens)
    lost = float((rest - rest @ frame.basis @ frame.basis.T).norm() / rest.norm())
    if not lost <= LOST_MAX:
        raise PipelineError(
            f"the layers of this model write outside the subspace ({lost:.2g} of what they give "
            'would be lost): choose another boundary, such as method = "learned"'
        )


def own_stage(config: PipelineConfig, rank: int) -> tuple[Stage, Frame | None]:
    """Stage number `rank` with its halves of the boundaries, as every rank would make it."""
    layers, layout = model_of(config)
    stages, frame = assemble(
        layers,
        layout,
        config.boundary,
        config.stages,
        config.micro_batch,
        config.model.length,
        config.recompute,
    )
    if frame is not None and config.model_folder:
        check_subspace(stages[0].layers, frame, config.model.length)
    stage = stages[rank]
    if stage.entry is not None:
        stage.entry.keep_receiver()
    if stage.exit is not None:
        stage.exit.keep_sender()
    return stage, frame
