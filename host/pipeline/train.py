"""The training loop of one rank."""

import copy
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import profile, schedule

from host.pipeline.agreement import Control, check_agreement
from host.pipeline.checkpoint import Checkpoints, common_step, copy_into
from host.pipeline.config import PipelineConfig, PipelineError
from host.pipeline.engine import Engine, Hops
from host.pipeline.links import LinkEvents, RankLink
from host.pipeline.replicas import Peers, Replica
from host.pipeline.report import Progress
from host.pipeline.texts import read_texts, tokenizer
from host.pipeline.wire import Kind
from models import causal
from models.bottleneck.assemble import StageLayout, boundary_at, confine_part, subspace_of
from models.bottleneck.shared_subspace import SharedSubspace, project
from models.bottleneck.subspace import SubspaceBottleneck, confined
from models.bottleneck.training import StageOptimizer
from models.causal import read_causal
from models.stages import Stage, cut
from models.transformer import OUTPUTS, TOKENS, sines, transformer


class Diagnosis:
    """Watches the boundaries of a stage in every forward pass; `row` tells the newest values."""

    def __init__(self, stage: Stage, subspace: SharedSubspace) -> None:
        self._stage = stage
        self._subspace = subspace
        self._error: Tensor | None = None
        self._captured: Tensor | None = None
        if isinstance(stage.exit, SubspaceBottleneck):
            stage.exit.seen = self._leaves
        if isinstance(stage.entry, SubspaceBottleneck):
            stage.entry.gradient_seen = self._returns

    @torch.no_grad()
    def row(self) -> dict[str, object]:
        """`drift` of the confined weights and `error` of reconstruction, both relative to the norm.

        `captured` is the share of the boundary gradient's energy that lies in S.
        """
        found: dict[str, object] = {}
        weights = [(w.weight, w.axis) for w in confined(self._stage) if not w.is_factor]
        if weights:
            basis = self._subspace.basis
            drifts = [(w - project(w, basis, axis)).norm() / w.norm() for w, axis in weights]
            found["drift"] = float(torch.stack(drifts).max())
        seen = {"error": self._error, "captured": self._captured}
        return found | {name: float(value) for name, value in seen.items() if value is not None}

    @torch.no_grad()
    def _leaves(self, x: Tensor, unknown: Tensor) -> None:
        lost = unknown - unknown @ self._subspace.basis @ self._subspace.basis.T
        self._error = lost.norm() / x.norm()

    @torch.no_grad()
    def _returns(self, gradient: Tensor) -> None:
        inside = (gradient @ self._subspace.basis).square().sum()
        self._captured = inside / gradient.square().sum()


VALIDATION_PARTS = 4  # batches
OPTIMIZER = "optimizer/"  # how names of the optimisers' tensors begin in a checkpoint
LOST_MAX = 1e-3  # of the layers' output; layers that lose more are not confined
TRACE_WAIT, TRACE_WARMUP, TRACE_STEPS, TRACE_ROWS = 2, 1, 3, 40


@contextmanager
def tracing(folder: Path | None, rank: int) -> Iterator[Callable[[], None]]:
    """A function to call after each step; steps 4 to 6 are traced to folder/trace-RANK.json.

    The table of their operators, by shape, with time and memory, is in trace-RANK.txt. Nothing is
    traced where `folder` is None.
    """
    if folder is None:
        yield lambda: None
        return
    path = folder / f"trace-{rank}.json"
    path.parent.mkdir(parents=True, exist_ok=True)

    def write(made: profile) -> None:
        made.export_chrome_trace(str(path))
        averages = made.key_averages(group_by_input_shape=True)
        table = averages.table(sort_by="self_cpu_time_total", row_limit=TRACE_ROWS)
        path.with_suffix(".txt").write_text(table)

    with profile(
        schedule=schedule(wait=TRACE_WAIT, warmup=TRACE_WARMUP, active=TRACE_STEPS, repeat=1),
        on_trace_ready=write,
        record_shapes=True,
        profile_memory=True,
    ) as profiler:
        yield profiler.step


@dataclass(frozen=True, slots=True)
class RankContext:
    """The place of a rank in the pipeline, and its links apart from the payloads."""

    rank: int
    stage: int
    control: Control
    events: LinkEvents
    device: torch.device
    device_name: str
    transport: str  # what its links use
    peers: Peers | None = None  # the other replicas


class Meter:
    """Measures how long steps took, and the part of that time in which this stage waited."""

    def __init__(self, events: LinkEvents, step: int) -> None:
        self._events = events
        self._step = step
        self._began = time.perf_counter()
        self._waited_s = events.waited_s

    def read(self, step: int) -> tuple[int, float, float]:
        """Steps, seconds and the idle part of the time since the last reading."""
        now, waited_s = time.perf_counter(), self._events.waited_s
        done, wall_s = step - self._step, now - self._began
        idle = (waited_s - self._waited_s) / wall_s
        self._step, self._began, self._waited_s = step, now, waited_s
        return done, wall_s, idle


class StageTrainer:
    """The training of one rank.

    Make it, `connect` it to its neighbours, `prepare` it, which loads a checkpoint, and `run` it.
    """

    _engine: Engine

    def __init__(self, config: PipelineConfig, context: RankContext) -> None:
        self._config = config
        self._context = context
        self._is_first_replica = context.rank < config.stages
        encode = tokenizer(Path(config.model_folder)) if config.model_folder else None
        self._texts = read_texts(Path(config.data), config.model.length, encode)
        stage, self._subspace = own_stage(config, context.stage)
        self._stage = stage.to(context.device)
        self._optimizer = StageOptimizer(
            self._stage, self._subspace, config.boundary, config.optimizer
        )
        self._diagnosis: Diagnosis | None = None
        if config.diagnose and self._subspace is not None:
            self._diagnosis = Diagnosis(self._stage, self._subspace)
        self._replica: Replica | None = None
        if context.peers is not None:
            self._replica = Replica(
                config, context.stage, self._stage, self._subspace, context.peers
            )
        self._checkpoints = Checkpoints(config.folder / "checkpoints", context.rank, config.digest)
        self._step = 0

    def exact(self, other: int) -> dict[Kind, int]:
        """The bytes of each payload that comes from a neighbour."""
        boundary = self._stage.entry if other < self._context.rank else self._stage.exit
        assert boundary is not None
        forward, back = boundary.sizes(self._config.micro_batch, self._config.model.length)
        return {Kind.FORWARD: forward} if other < self._context.rank else {Kind.BACK: back}

    def connect(self, before: RankLink | None, after: RankLink | None, hops_s: Hops) -> None:
        """Use these links to the neighbours."""
        self._engine = Engine(
            self._stage,
            self._context.stage,
            self._config,
            self._context.device,
            self._context.events,
            before,
            after,
            hops_s,
        )

    def prepare(self) -> None:
        """Agree with the other ranks and go to their last common checkpoint; PipelineError."""
        own = {"texts": self._texts.digest, "steps": self._checkpoints.steps()}
        if self._subspace is not None:
            # Nothing of it is sent: libraries that draw other numbers would train another model.
            own["the fixed token table"] = self._subspace.digest()
        # Machines may need different times to read their texts.
        self._step = self._context.control.decide("ready", own, _common)
        if self._step:
            self._load()
        elif self._subspace is not None:
            self._broadcast(self._subspace.basis)  # libraries round QR differently
        self._checkpoints.forget_after(self._step)

    def run(self) -> None:
        folder = self._config.folder if self._config.trace else None
        with tracing(folder, self._context.rank) as trace_step:
            self._run(trace_step)

    def _run(self, trace_step: Callable[[], None]) -> None:
        config, events = self._config, self._context.events
        self._began, progress = self._step, self._progress()
        meter = Meter(events, self._step)
        while self._step < config.steps:
            loss = self._train_step()
            self._step += 1
            trace_step()
            if self._is_time(config.report_steps):
                done, wall_s, idle = meter.read(self._step)
                rows = self._engine.rows_to_last(self._row(idle))
                if progress is not None and loss is not None:
                    progress.step(self._step, loss, done, wall_s, rows)
            if self._is_time(config.validate_steps) and self._is_first_replica:
                validation_loss = self._evaluate()
                if progress is not None:
                    progress.validation(self._step, validation_loss)
                meter = Meter(events, self._step)
            if self._is_time(config.checkpoint_steps):
                self._save()

    def _row(self, idle: float) -> dict[str, object]:
        """What this stage tells in a report."""
        engine, context = self._engine, self._context
        done = self._step - self._began
        peers = 0 if context.peers is None else context.peers.sent_bytes
        row: dict[str, object] = {
            "idle": idle,
            "micro_batch_ms": 1000 * engine.micro_batch_s,
            "device": context.device_name,
            "transport": context.transport,
            "sent": (engine.sent_bytes() + peers) / done,  # bytes a step
            "activations": engine.payload_bytes / done,
            "replicas": peers / done,
        }
        return row if self._diagnosis is None else row | self._diagnosis.row()

    def _is_time(self, every: int) -> bool:
        return every > 0 and (self._step % every == 0 or self._step == self._config.steps)

    def _progress(self) -> Progress | None:
        entry, config = self._stage.entry, self._config
        if entry is None or self._stage.exit is not None or not self._is_first_replica:
            return None
        tokens = config.micro_batch * config.model.length
        forward, back = entry.sizes(config.micro_batch, config.model.length)
        return Progress(config, forward / tokens, back / tokens)

    def _train_step(self) -> float | None:
        config, optimizer = self._config, self._optimizer
        optimizer.zero_grad()
        is_basis_step = optimizer.is_basis_step(self._step)
        if self._subspace is not None:
            self._subspace.collecting = is_basis_step
        every = config.rows * config.replicas.count
        batch = self._texts.batch(self._step, config.seed, every, config.model.length)
        first = self._context.rank // config.stages * config.rows
        loss = self._engine.train_step(torch.from_numpy(batch[first : first + config.rows]))
        optimizer.step(self._step, config.steps, self._engine.norm(optimizer.square()))
        if is_basis_step:
            self._move_basis()
        if self._replica is not None:
            self._replica.after_step(self._step + 1, self._step + 1 == config.steps)
        return loss

    def _move_basis(self) -> None:
        """One Grassmann step from the sum of all gradients; all ranks take rank 0's new basis."""
        subspace, peers = self._subspace, self._context.peers
        assert subspace is not None
        subspace.gram.copy_(self._engine.tensor_to_first(subspace.gram))
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
        basis.copy_(self._engine.tensor_from_first(basis))

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
        moments = {name: each for name, each in tensors.items() if name.startswith(OPTIMIZER)}
        self._optimizer.load({name.removeprefix(OPTIMIZER): each for name, each in moments.items()})


def _common(answers: list[dict[str, Any]]) -> int:
    """The step from which all ranks go on; PipelineError."""
    steps = [each.pop("steps") for each in answers]
    check_agreement(answers)
    return common_step(steps)


def model_of(
    config: PipelineConfig, only: range | None = None
) -> tuple[list[nn.Module], StageLayout]:
    """The model as a sequence of layers (`only` these have memory), and what boundaries need."""
    model = config.model
    if config.model_folder:
        layers = read_causal(Path(config.model_folder), model.length)
        return layers, StageLayout(model.width, model.vocabulary, causal.OUTPUTS, causal.TOKENS)
    positions = sines(model.length, model.width)
    layout = StageLayout(model.width, model.vocabulary, OUTPUTS, TOKENS, positions)
    return transformer(model, config.seed, only), layout


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


def own_stage(config: PipelineConfig, number: int) -> tuple[Stage, SharedSubspace | None]:
    """Stage `number` with its sides of the boundaries, and the subspace or None.

    The seed draws each layer, so that ranks need not make those of others.
    """
    places = cut(range(config.model.layers + 2), config.stages)[number]
    layers, layout = model_of(config, range(places[0], places[-1] + 1))
    own = layers[places[0] : places[-1] + 1]
    boundary, subspace = config.boundary, subspace_of(layout, config.boundary)
    is_last = number == config.stages - 1
    if not is_last:
        confine_part(own, layout, boundary, subspace)
    if subspace is not None and config.model_folder and number == 0:
        check_subspace(own, subspace, config.model.length)
    entry = boundary_at(number - 1, layout, boundary, subspace) if number else None
    exit_ = None if is_last else boundary_at(number, layout, boundary, subspace)
    if entry is not None:
        entry.keep_receiver()
    if exit_ is not None:
        exit_.keep_sender()
    is_bf16 = config.precision == "bf16"
    batch, length = config.micro_batch, config.model.length
    return Stage(own, entry, exit_, batch, length, config.recompute, is_bf16), subspace
