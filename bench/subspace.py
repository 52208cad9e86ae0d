"""The checks that Protocol Models (arXiv 2506.01260) proposes, on small networks.

Ranks of five kinds of network; whether boundaries are exact and weights stay in the subspace;
what turning the basis brings, and how it moves; what the projection and a turn cost.
"""

import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.convergence import Trained
from bench.corpus import books
from bench.result import Figure, Result
from examples.voice.keyword import SPEAKERS, Layer, load_clips
from models.bottleneck.config import BottleneckConfig, OptimizerConfig, Shape
from models.bottleneck.payload import BoundaryContext
from models.bottleneck.shared_subspace import project
from models.bottleneck.subspace import confined
from models.transformer import OUTPUTS, transformer
from models.zoo import fsdd_path

SHAPE, SHAPE_COST = Shape(width=64, layers=4, heads=4, length=64), Shape(width=512, layers=4)
RANK, BATCH, PICTURES, RATE = 8, 8, 64, 1e-3
STEPS, STEPS_QUICK = 1000, 100
LOOK_STEPS = 20  # rounding is taken out every 100 steps: drift is looked at one step before
TURNS = ((0, 0.1), (50, 0.1), (50, 1.0), (500, 0.1), (500, 1.0))  # every so many steps, and by
KINDS = ("transformer", "mlp", "cnn", "vit", "mixer")
WORDS, POSITIONS, WINDOW = 10, 25, 5
WRITERS = (*OUTPUTS, "o", "down")  # the layers that write into the residual stream
NOTES = (
    f"width {SHAPE.width}, {SHAPE.layers} layers, {STEPS} steps, one seed, AdamW; the transformer "
    "reads bytes of books, the other networks log-mel pictures of spoken digits",
    "rank: stable rank at the end of layers that write into the stream, of the centred stream, of "
    "its gradients; details have the start. Source: the ranks collapse",
    "reconstruction_error, drift: relative, the largest on the way. Source: zero",
    f"turn_gain: nats of held-out loss that a basis (k = {RANK}) wins by turning every N steps, by "
    "a rate, against one that stays. Source: turning every 500 steps is critical",
    "turn_overlap: of the bases of turns i and i + 2, the least (1: the same)",
    f"cost: of boundaries and of a turn, to a step of width {SHAPE_COST.width}. Source: about 1 %",
)


class Residual(nn.Module):
    """x + out(gelu(in(norm(x)))): over channels in a window, or over positions (`is_across`)."""

    def __init__(self, size: int, window: int = 1, is_across: bool = False) -> None:
        super().__init__()
        self.window, self.is_across = window, is_across
        self.norm = nn.RMSNorm(SHAPE.width)
        self.feed_in = nn.Linear(window * size, 4 * size, bias=False)
        self.feed_out = nn.Linear(4 * size, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [batch, positions, width] to the same shape."""
        y = self.norm(x).mT if self.is_across else self.norm(x)
        beside = functional.pad(y, (0, 0, self.window // 2, self.window // 2))
        near = beside.unfold(1, self.window, 1).flatten(2)
        out: Tensor = self.feed_out(functional.gelu(self.feed_in(near)))
        return x + (out.mT if self.is_across else out)


def network(kind: str) -> tuple[nn.Sequential, nn.Module]:
    """Layers, whose output is the stream [batch, positions, width], and the head."""
    torch.manual_seed(0)
    if kind == "transformer":
        *most, head = transformer(SHAPE, 0)
        return nn.Sequential(*most), head
    size, width = next(_samples(kind, 1))[0].shape[2], SHAPE.width
    layers: list[nn.Module] = [nn.Linear(size, width)]
    for _ in range(SHAPE.layers):
        if kind == "mixer":
            layers.append(Residual(POSITIONS, is_across=True))
        is_vit, window = kind == "vit", WINDOW if kind == "cnn" else 1
        layers.append(Layer(width, SHAPE.heads) if is_vit else Residual(width, window))
    return nn.Sequential(*layers), nn.Linear(width, WORDS)


def _samples(kind: str, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Bytes and the next ones; or pieces of pictures with their places, and digits."""
    if kind == "transformer":
        for batch in _texts(steps):
            yield batch[:, :-1], batch[:, 1:]
        return
    x, y = load_clips(fsdd_path("train"), SPEAKERS)
    positions = 1 if kind == "mlp" else POSITIONS
    places = torch.eye(positions).expand(len(x), -1, -1)
    pieces = torch.cat((x.reshape(len(x), positions, -1), places), 2)
    for _ in range(steps):
        some = torch.randint(len(x), (PICTURES,))
        yield pieces[some], y[some]


def _texts(steps: int) -> Iterator[Tensor]:
    """Bytes [BATCH, length + 1] for each step."""
    text = books(SHAPE.length)
    for step in range(steps):
        yield torch.from_numpy(text.batch(step, 0, BATCH, SHAPE.length))


def stable_rank(matrix: Tensor) -> float:
    """||W||_F^2 / ||W||_2^2: 1 for one direction, at most the smaller side."""
    wide = matrix.detach().double()
    return float(wide.square().sum() / torch.linalg.matrix_norm(wide, ord=2).square())


def ranks(kind: str, steps: int) -> dict[int, dict[str, float]]:
    """Stable ranks of weights, stream and gradients by step, without any bottleneck."""
    layers, head = network(kind)
    model = nn.ModuleList([layers, head])
    writers = [m for name, m in model.named_modules() if name.rpartition(".")[2] in WRITERS]
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95))
    history = {}
    for step, (x, y) in enumerate(_samples(kind, steps + 1)):
        stream = layers(x)
        stream.retain_grad()
        pooled = functional.rms_norm(stream.mean(1), stream.shape[-1:])
        logits = head(stream if kind == "transformer" else pooled)
        optimizer.zero_grad()
        functional.cross_entropy(logits.flatten(0, -2), y.flatten()).backward()  # type: ignore[no-untyped-call]
        if step % (steps // 5) == 0:
            rows = stream.detach().flatten(0, 1)
            history[step] = {
                "weights": statistics.mean(stable_rank(m.get_parameter("weight")) for m in writers),
                "stream": stable_rank(rows - rows.mean(0)),
                "gradients": stable_rank(stream.grad.flatten(0, 1)),
            }
        optimizer.step()
    return history


def start(shape: Shape, form: str, turns: tuple[int, float] = (0, 0.1), k: int = RANK) -> Trained:
    """A transformer in four stages whose weights are confined to S."""
    every, rate = turns
    boundary = BottleneckConfig(
        "subspace", k, 32, form, back_bits=32, basis_steps=every, basis_rate=rate, table_std=0.02
    )
    settings = OptimizerConfig(name="adamw", learning_rate=2 * RATE, warmup_steps=50)
    return Trained(shape, boundary, settings, 0, BATCH)


def turn(made: Trained) -> None:
    """The Grassmann step for the gradients that were collected, and the weights' change."""
    assert made.frame is not None
    basis = made.trainers[0].next_basis()
    for trainer in made.trainers:
        trainer.change_basis(basis)
    made.frame.basis.copy_(basis)


@torch.no_grad()
def drift_and_error(made: Trained, tokens: Tensor) -> tuple[float, float]:
    """The largest share of a weight outside of S, and of a stream that a boundary loses."""
    assert made.frame is not None
    weights = [(item.weight, item.axis) for stage in made.stages for item in confined(stage)]
    basis = made.frame.basis
    outside = [float((w - project(w, basis, axis)).norm() / w.norm()) for w, axis in weights]
    x, errors, context = tokens, [], BoundaryContext(len(tokens), tokens.shape[1], tokens)
    for stage in made.stages[:-1]:
        for layer in stage.layers:
            x = layer(x)
        assert stage.exit is not None
        errors.append(float((stage.exit(x, context) - x).norm() / x.norm()))
    return max(outside), max(errors)


def confinement(steps: int, *, is_plain: bool) -> tuple[float, float]:
    """The largest drift and error on the way, of the row-wise AdamW or of a plain one."""
    made, worst = start(SHAPE, "rows"), (0.0, 0.0)
    weights = [weight for stage in made.stages for weight in stage.parameters()]
    plain = torch.optim.AdamW(weights, lr=2 * RATE, betas=(0.9, 0.95), weight_decay=0.01)
    for step, batch in enumerate(_texts(steps)):
        if is_plain:
            plain.zero_grad()
            made.loss(batch).backward()  # type: ignore[no-untyped-call]
            plain.step()
        else:
            made.learn(batch, step, steps)
        if (step + 1) % LOOK_STEPS == LOOK_STEPS - 1:
            drift, error = drift_and_error(made, batch[:, :-1])
            worst = max(worst[0], drift), max(worst[1], error)
    return worst


def turning(turns: tuple[int, float], steps: int) -> dict[str, Any]:
    """Held-out loss with a basis that turns, overlaps of its bases, and the gradients' spectrum."""
    made = start(SHAPE, "factors", turns)
    assert made.frame is not None
    bases, spectrum = [made.frame.basis.clone()], []
    for step, batch in enumerate(_texts(steps)):
        made.frame.collecting = is_turn = made.trainers[0].is_basis_step(step)
        made.learn(batch, step, steps)
        if is_turn:
            values = torch.linalg.eigvalsh(made.frame.gram.double()).flip(0)[: 2 * RANK]
            spectrum = [round(float(v / made.frame.gram.trace()), 4) for v in values]
            turn(made)
            bases.append(made.frame.basis.clone())
    judged = books(SHAPE.length).held_out("judged", 16, BATCH, SHAPE.length)
    return {
        "loss": made.judge([torch.from_numpy(part) for part in judged]),
        "overlap_first": _overlap(bases[0], bases[-1]),
        **{f"overlap_{n}": min(map(_overlap, bases, bases[n:]), default=1.0) for n in (1, 2)},
        "spectrum": spectrum,
    }


def _overlap(a: Tensor, b: Tensor) -> float:
    """||A^T B||_F^2 / k: 1 for the same subspace, 0 for orthogonal ones."""
    return float((a.T @ b).square().sum() / a.shape[1])


def costs(times: int) -> tuple[float, float]:
    """Shares of a step's CPU time: of the boundaries, and of a turn with its Gram matrix."""
    made = start(SHAPE_COST, "rows", (1, 0.1), 5)
    assert made.frame is not None
    layers = nn.Sequential(*(layer for stage in made.stages for layer in stage.layers))
    batch = torch.randint(256, (BATCH, SHAPE_COST.length + 1))
    x, y = batch[:, :-1], batch[:, 1:].flatten()
    seconds: dict[str, list[float]] = {"layers": [], "stages": [], "gram": [], "turn": []}
    for _ in range(times):
        for name, row in seconds.items():  # one after the other: a busy machine slows all alike
            made.frame.collecting = name == "gram"
            began = time.process_time()
            if name == "layers":
                functional.cross_entropy(layers(x).flatten(0, 1), y).backward()  # type: ignore[no-untyped-call]
            elif name == "turn":
                turn(made)
            else:
                made.loss(batch).backward()  # type: ignore[no-untyped-call]
            row.append(time.process_time() - began)
    layers_s, stages_s, gram_s, turn_s = map(statistics.median, seconds.values())
    return stages_s / layers_s - 1, (gram_s - stages_s + turn_s) / stages_s


def measure(*, quick: bool) -> Result:
    """All of it; `quick` trains 100 steps, and its figures mean nothing."""
    torch.set_num_threads(1)
    steps = STEPS_QUICK if quick else STEPS
    plain, own = (confinement(steps, is_plain=is_plain) for is_plain in (True, False))
    projection, turned = costs(3 if quick else 15)
    found = {kind: ranks(kind, steps) for kind in KINDS}
    rows = {f"{every}_{rate:g}": turning((every, rate), steps) for every, rate in TURNS}
    figures = {
        "drift_row_adamw": Figure(own[0], "<=1e-6"),
        "drift_plain_adamw": Figure(plain[0]),
        "reconstruction_error": Figure(own[1], "<=1e-6"),
        "reconstruction_error_plain_adamw": Figure(plain[1]),
        "cost_projection": Figure(projection, "<=0.02"),
        "cost_turn": Figure(turned),
    }
    for kind, history in found.items():
        last = history[max(history)]
        figures |= {f"rank_{kind}_{what}": Figure(value) for what, value in last.items()}
    for name, row in rows.items():
        figures[f"turn_gain_{name}"] = Figure(rows["0_0.1"]["loss"] - row["loss"])
        figures[f"turn_overlap_{name}"] = Figure(row["overlap_2"])
    return Result("subspace", figures, {}, NOTES, {"ranks": found, "turning": rows}, quick)
