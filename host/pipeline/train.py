"""The training loop of one rank."""

import copy
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import Store  # type: ignore[attr-defined]
from torch.profiler import profile, schedule

from host.pipeline.agreement import check_agreement, gather
from host.pipeline.checkpoint import Checkpoints, common_step, copy_into
from host.pipeline.config import PipelineConfig, PipelineError
from host.pipeline.engine import Engine, gather_numbers
from host.pipeline.replicas import Peers, Replica
from host.pipeline.report import Progress
from host.pipeline.texts import read_texts, tokenizer
from models import causal
from models.bottleneck.assemble import StageLayout, assemble
from models.bottleneck.shared_subspace import SharedSubspace
from models.bottleneck.training import StageOptimizer
from models.causal import read_causal
from models.stages import Stage
from models.transformer import OUTPUTS, TOKENS, transformer

VALIDATION_PARTS = 4  # batches
OPTIMIZER = "optimizer/"  # how names of the optimisers' tensors begin in a checkpoint
LOST_MAX = 1e-3  # of the layers' output; layers that lose more are not confined
TRACE_WAIT, TRACE_WARMUP, TRACE_STEPS = 2, 1, 3


@contextmanager
def tracing(folder: Path | None, rank: int) -> Iterator[Callable[[], None]]:
    """A function to call after each step; steps 4 to 6 are traced to folder/trace-RANK.json.

    Nothing is traced where `folder` is None.
    """
    if folder is None:
        yield lambda: None
        return
    path = folder / f"trace-{rank}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with profile(
        schedule=schedule(wait=TRACE_WAIT, warmup=TRACE_WARMUP, active=TRACE_STEPS, repeat=1),
        on_trace_ready=lambda made: made.export_chrome_trace(str(path)),
    ) as profiler:
        yield profiler.step


@dataclass(frozen=True, slots=True)
class RankContext:
    """The place of a rank in the pipeline, and its links apart from the payloads."""

    rank: int
    stage: int
    replica: int
    store: Store  # torchrun's
    device: torch.device
    peers: Peers | None = None  # the other replicas


class Meter:
    """Measures how long steps took, and the part of that time in which this stage waited."""

    def __init__(self, stages: Engine, step: int) -> None:
        self._engine = stages
        self._step = step
        self._began = time.perf_counter()
        self._busy_s = stages.stage.busy_s

    def read(self, step: int) -> tuple[int, float, float]:
        """Steps, seconds and the idle part of the time since the last reading."""
        now = time.perf_counter()
        busy_s = self._engine.stage.busy_s
        done = step - self._step
        wall_s = now - self._began
        idle = 1 - (busy_s - self._busy_s) / wall_s
        self._step = step
        self._began = now
        self._busy_s = busy_s
        return done, wall_s, idle


class StageTrainer:
    """The training of one rank: make it, `prepare` it, which loads a checkpoint, and `run` it."""

    def __init__(self, config: PipelineConfig, context: RankContext) -> None:
        self._config = config
        self._context = context
        encode = tokenizer(Path(config.model_folder)) if config.model_folder else None
        self._texts = read_texts(Path(config.data), config.model.length, encode)
        stage, self._subspace = own_stage(config, context.stage)
        self._stage = stage.to(context.device)
        self._engine = Engine(self._stage, context.stage, config, context.device)
        self._optimizer = StageOptimizer(
            self._stage, self._subspace, config.boundary, config.optimizer
        )
        self._replica: Replica | None = None
        if context.peers is not None:
            self._replica = Replica(
                config, context.stage, self._stage, self._subspace, context.peers
            )
        self._checkpoints = Checkpoints(config.folder / "checkpoints", context.rank, config.digest)
        self._step = 0

    def prepare(self) -> None:
        """Agree with the other ranks and go to their last common checkpoint; PipelineError."""
        context, config = self._context, self._config
        own = {"texts": self._texts.digest, "steps": self._checkpoints.steps()}
        # Machines may need different times to read their texts.
        answers = gather(context.store, "ready", context.rank, config.ranks, own, config.timeout_s)
        check_agreement([{"texts": each["texts"]} for each in answers])
        self._step = common_step([each["steps"] for each in answers])
        if self._step:
            self._load()
        elif self._subspace is not None:
            self._broadcast(self._subspace.basis)  # libraries round QR differently
        self._checkpoints.forget_after(self._step)

    def run(self) -> None:
        """Train for all remaining steps."""
        folder = self._config.folder if self._config.trace else None
        with tracing(folder, self._context.rank) as trace_step:
            self._run(trace_step)

    def _run(self, trace_step: Callable[[], None]) -> None:
        config, peers = self._config, self._context.peers
        began, meter, progress = self._step, Meter(self._engine, self._step), self._progress()
        while self._step < config.steps:
            loss = self._train_step()
            self._step += 1
            trace_step()
            if self._is_time(config.report_steps):
                done, wall_s, idle = meter.read(self._step)
                idles = gather_numbers(idle, config.stages, self._context.device)
                sent = 0.0 if peers is None else peers.sent_bytes / (self._step - began)
                sents = gather_numbers(sent, config.stages, self._context.device)
                if progress is not None and loss is not None:
                    progress.step(self._step, loss, done, wall_s, idles, sum(sents))
            if self._is_time(config.validate_steps) and self._context.replica == 0:
                validation_loss = self._evaluate()
                if progress is not None:
                    progress.validation(self._step, validation_loss)
                meter = Meter(self._engine, self._step)
            if self._is_time(config.checkpoint_steps):
                self._save()

    def _is_time(self, every: int) -> bool:
        return every > 0 and (self._step % every == 0 or self._step == self._config.steps)

    def _progress(self) -> Progress | None:
        entry, config = self._stage.entry, self._config
        if entry is None or not self._engine.is_last or self._context.replica:
            return None
        empty = entry.empty(config.micro_batch, config.model.length, torch.device("cpu"))
        tokens = config.micro_batch * config.model.length
        back = empty.wire.numel() * empty.wire.element_size()
        return Progress(config, empty.size / tokens, back / tokens)

    def _train_step(self) -> float | None:
        config, optimizer = self._config, self._optimizer
        optimizer.zero_grad()
        is_basis_step = optimizer.is_basis_step(self._step)
        if self._subspace is not None:
            self._subspace.collecting = is_basis_step
        every = config.rows * config.replicas.count
        batch = self._texts.batch(self._step, config.seed, every, config.model.length)
        first = self._context.replica * config.rows
        loss = self._engine.train_step(torch.from_numpy(batch[first : first + config.rows]))
        optimizer.step(self._step, config.steps)
        if is_basis_step:
            self._move_basis()
        if self._replica is not None:
            self._replica.after_step(self._step + 1, self._step + 1 == config.steps)
        return loss

    def _move_basis(self) -> None:
        """One Grassmann step from the sum of all gradients; all ranks take rank 0's new basis."""
        subspace, peers = self._subspace, self._context.peers
        assert subspace is not None
        dist.all_reduce(subspace.gram)
        if peers is not None and self._context.stage == 0:
            subspace.gram.copy_(peers.mean(subspace.gram))
        basis = self._optimizer.next_basis()
        self._broadcast(basis)
        if self._replica is not None:
            self._replica.change_basis(basis)
        self._optimizer.change_basis(basis)
        subspace.basis.copy_(basis)

    def _broadcast(self, basis: Tensor) -> None:
        """Replace a basis by that of rank 0, in all replicas."""
        if self._context.peers is not None and self._context.stage == 0:
            basis.copy_(self._context.peers.broadcast(basis))
        dist.broadcast(basis, src=0)

    def _evaluate(self) -> float:
        """The loss of the global weights on held-out text."""
        config = self._config
        losses = []
        with nullcontext() if self._replica is None else self._replica.agreed():
            for part in range(VALIDATION_PARTS):
                batch = self._texts.validation_batch(part, config.rows, config.model.length)
                losses.append(self._engine.evaluate(torch.from_numpy(batch)) or 0.0)
        return sum(losses) / len(losses)

    def _tensors(self) -> list[tuple[str, Tensor]]:
        subspace = [] if self._subspace is None else [("basis", self._subspace.basis)]
        agreed = [] if self._replica is None else self._replica.tensors()
        return [*self._stage.named_parameters(), *subspace, *agreed]

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


def model_of(config: PipelineConfig) -> tuple[list[nn.Module], StageLayout]:
    """The whole model as a sequence of layers, and what boundaries need to know of it."""
    model = config.model
    if config.model_folder:
        layers = read_causal(Path(config.model_folder), model.length)
        return layers, StageLayout(model.width, model.vocabulary, causal.OUTPUTS, causal.TOKENS)
    layers = transformer(model, config.seed)
    positions = layers[0].get_buffer("positions")
    return layers, StageLayout(model.width, model.vocabulary, OUTPUTS, TOKENS, positions)


@torch.no_grad()
def check_subspace(layers: Iterable[nn.Module], subspace: SharedSubspace, length: int) -> None:
    """PipelineError where the first stage writes outside the subspace, which the boundary loses.

    Scales and biases are changed at random for the check, because new ones are all equal.
    """
    tokens = torch.arange(length).unsqueeze(0) % len(subspace.table)
    generator = torch.Generator().manual_seed(0)
    x = tokens
    for layer in layers:
        changed = copy.deepcopy(layer)
        for parameter in changed.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
        x = changed(x)
    unknown = x - subspace.known(tokens)
    outside = unknown - unknown @ subspace.basis @ subspace.basis.T
    lost = float(outside.norm() / unknown.norm())
    if not lost <= LOST_MAX:
        raise PipelineError(
            f"the layers of this model write outside the subspace ({lost:.2g} of their output "
            'would be lost): choose another boundary, such as method = "learned"'
        )


def own_stage(config: PipelineConfig, rank: int) -> tuple[Stage, SharedSubspace | None]:
    """Stage number `rank` with its sides of the boundaries, and the subspace or None.

    All ranks make the same model from the configuration.
    """
    layers, layout = model_of(config)
    stages, subspace = assemble(
        layers,
        layout,
        config.boundary,
        config.stages,
        config.micro_batch,
        config.model.length,
        config.recompute,
    )
    if subspace is not None and config.model_folder:
        check_subspace(stages[0].layers, subspace, config.model.length)
    stage = stages[rank]
    if stage.entry is not None:
        stage.entry.keep_receiver()
    if stage.exit is not None:
        stage.exit.keep_sender()
    return stage, subspace
