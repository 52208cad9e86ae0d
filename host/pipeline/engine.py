"""One rank's stage: the schedule of its micro-batches, and what it tells its neighbours.

A stage computes the gradient of the oldest micro-batch as soon as it arrives, and otherwise the
next activation. Where nothing has arrived, it computes gradients of weights that it has left for
then, and waits only where there are none. Gradients are added in the order of micro-batches,
whatever arrives first: a run that is repeated gives the same numbers.
"""

import math
import time
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn import functional

from host.pipeline.config import PipelineConfig, PipelineError
from host.pipeline.links import LinkEvents, RankLink, floats_in
from host.pipeline.wire import Kind, read_json, write_json
from models.bottleneck.codes import WORD
from models.later import LaterGradients
from models.stages import Stage

# Of each stage, to the one before it: the round trip and what a payload's bytes take, in seconds
Hops = Sequence[Sequence[float]]


class Engine:
    """The training steps of the stage `number`, between the links to its neighbours."""

    def __init__(
        self,
        stage: Stage,
        number: int,
        config: PipelineConfig,
        device: torch.device,
        events: LinkEvents,
        before: RankLink | None,
        after: RankLink | None,
        hops_s: Hops,
    ) -> None:
        self.stage = stage
        self.events = events
        self.micro_batch_s = 0.0  # of computing, in the last step
        self.payload_bytes = 0  # of `sent_bytes`, what is activations and gradients, coded
        self._number = number
        self._config = config
        self._device = device
        self._before = before
        self._after = after
        self._hops_s = hops_s
        self._later = LaterGradients()
        # Of what comes from the stage before, and goes back
        self._wire_bytes = self._back_bytes = 0
        if stage.entry is not None:
            self._wire_bytes = stage.entry.words(stage.batch, stage.length) * WORD
            self._back_bytes = stage.entry.sizes(stage.batch, stage.length)[1]
        events.before_wait = self._synchronise

    def train_step(self, batch: Tensor) -> float | None:
        """Compute gradients of a batch [rows, length + 1]; the mean loss on the last stage."""
        count = self._config.micro_batches
        parts = torch.split(batch, self._config.micro_batch)
        limit, limit_left = self._limit(self._number), self._limit(0)
        kept: deque[tuple[Tensor | None, Tensor]] = deque()
        losses: list[Tensor] = []
        began, waited_s = time.perf_counter(), self.events.waited_s
        done = started = 0

        def can_go_back() -> bool:
            may = bool(kept) and (self._config.schedule == "1f1b" or started == count)
            return may and (self._after is None or self._after.reader.is_ready)

        def can_start() -> bool:
            may = started < count and len(kept) < limit
            may = may and len(kept) + self._later.batches < limit_left
            return may and (self._before is None or self._before.reader.is_ready)

        def can_go_on() -> bool:
            return can_go_back() or can_start()

        while done < count or self._later.batches:
            if self._later.batches and not can_go_on():
                self._synchronise()  # else a GPU had them all queued ahead of what arrives next
                self._later.run_one()
                continue
            self.events.wait(can_go_on, f"what stage {self._number} needs next")
            if can_go_back():
                self._backward(done, *kept.popleft())
                done += 1
                continue
            wire, out = self._forward(started, parts[started])
            if self._after is None:
                losses.append(out.detach())
                out = out / count
            kept.append((wire, out))
            started += 1
        busy_s = time.perf_counter() - began - (self.events.waited_s - waited_s)
        self.micro_batch_s = busy_s / count
        return float(torch.stack(losses).mean()) if losses else None

    @torch.no_grad()
    def evaluate(self, batch: Tensor) -> float | None:
        """The mean loss of a batch [rows, length + 1] without gradients, on the last stage."""
        parts = torch.split(batch, self._config.micro_batch)
        outs = [self._forward(number, part)[1] for number, part in enumerate(parts)]
        return float(torch.stack(outs).mean()) if self._after is None else None

    def norm(self, square: float) -> float:
        """The norm of the whole model's gradients; `square` is the part of this stage.

        Squares travel to the first stage behind the last gradients of weights, and the sum ahead of
        the next activation. PipelineError where it is not finite.
        """
        before, after = self._before, self._after
        if after is not None:
            square += read_json(after.reader.take(Kind.NOTE).data)
        if before is not None:
            before.writer.send(Kind.NOTE, write_json(square))
            square = read_json(before.reader.take(Kind.NOTE).data)
        if after is not None:
            after.writer.send(Kind.NOTE, write_json(square))
        if not math.isfinite(square):
            raise PipelineError(
                "the gradients are not finite: the training has diverged, or a rank is broken; "
                "lower the learning rate, or continue from an older checkpoint"
            )
        return math.sqrt(square)

    def tensor_to_first(self, tensor: Tensor) -> Tensor:
        """The sum of all stages' float32 tensors, on the first one; elsewhere of those behind."""
        if self._after is not None:
            tensor = tensor + floats_in(self._after.reader.take(Kind.NUMBERS).body, tensor)
        if self._before is not None:
            self._send_tensor(self._before, tensor)
        return tensor

    def tensor_from_first(self, tensor: Tensor) -> Tensor:
        """The float32 tensor of the first stage, on all stages."""
        if self._before is not None:
            tensor = floats_in(self._before.reader.take(Kind.NUMBERS).body, tensor)
        if self._after is not None:
            self._send_tensor(self._after, tensor)
        return tensor

    def rows_to_last(self, row: dict[str, object]) -> list[dict[str, object]]:
        """What each stage tells, in order, on the last stage; elsewhere of those up to it."""
        rows: list[dict[str, object]] = []
        if self._before is not None:
            rows = read_json(self._before.reader.take(Kind.NOTE).data)
        rows.append(row)
        if self._after is not None:
            self._after.writer.send(Kind.NOTE, write_json(rows))
        return rows

    def sent_bytes(self) -> int:
        """What this stage has sent to its neighbours, with headers."""
        return sum(link.writer.sent_bytes for link in (self._before, self._after) if link)

    def _limit(self, stage: int) -> int:
        """How many micro-batches may be in flight behind a stage, so that it need not wait.

        With what is left of weights, all stages may keep as many as the first.
        """
        count = self._config.micro_batches
        if self._config.schedule == "gpipe":
            return count
        under_way = self._config.stages  # in the first step
        if self.micro_batch_s:
            under_way = travelling(self._hops_s[stage + 1 :], self.micro_batch_s)
        return min(count, self._config.stages - stage + under_way)

    def _forward(self, number: int, batch: Tensor) -> tuple[Tensor | None, Tensor]:
        """The input that wants a gradient, and the output that gives it: wire or loss."""
        wire: Tensor | None = None
        inputs: tuple[Tensor, ...] = (batch[:, :-1].to(self._device),)
        entry = self.stage.entry
        if self._before is not None and entry is not None:
            body = self._before.reader.take(Kind.FORWARD, number).body
            data = body.to(self._device, non_blocking=True)
            wire = data[: self._wire_bytes].view(torch.float32).requires_grad_()
            inputs = (wire, data[self._wire_bytes :]) if entry.sends_ids else (wire,)
        # Layers that are computed again must leave the same: they do so outside of this context.
        with nullcontext() if self.stage.recompute else self._later:
            outputs = self.stage(*inputs)
        if self._after is None:
            return wire, next_token_loss(outputs, batch[:, 1:].to(self._device))
        data = torch.cat([part.detach().view(torch.uint8) for part in outputs])
        self._send(self._after, Kind.FORWARD, number, data)
        return wire, outputs[0]

    def _backward(self, number: int, wire: Tensor | None, out: Tensor) -> None:
        gradient = None
        if self._after is not None:
            body = self._after.reader.take(Kind.BACK, number).body
            # Autograd wants it as long as the payload forward.
            padded = functional.pad(
                body.to(self._device, non_blocking=True), (0, out.numel() * WORD - len(body))
            )
            gradient = padded.view(torch.float32)
        out.backward(gradient)  # type: ignore[no-untyped-call]
        if self._before is not None and wire is not None and wire.grad is not None:
            data = wire.grad.view(torch.uint8)[: self._back_bytes]
            self._send(self._before, Kind.BACK, number, data)

    def _send(self, link: RankLink, kind: Kind, number: int, data: Tensor) -> None:
        self.payload_bytes += len(data)
        if not data.is_cuda:
            link.writer.send(kind, data, number)
            return
        body = torch.empty(len(data), dtype=torch.uint8, pin_memory=True)
        body.copy_(data, non_blocking=True)
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record()
        link.writer.send(kind, body, number, copied.synchronize)

    def _send_tensor(self, link: RankLink, tensor: Tensor) -> None:
        # A copy: the caller may change the tensor before it is sent.
        data = tensor.detach().to("cpu", copy=True).contiguous().view(torch.uint8).flatten()
        link.writer.send(Kind.NUMBERS, data)

    def _synchronise(self) -> None:
        """Before it waits: else a GPU that computes would count as waiting."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()


def travelling(hops_s: Hops, micro_batch_s: float) -> int:
    """How many micro-batches pass the slowest place while one travels there and back, twice over.

    >>> travelling([(0.04, 0.0)] * 3, 0.1), travelling([(0.0, 1.0)] * 3, 0.1)
    (3, 12)
    """
    # A place is a stage, or a link: one that a payload fills for a second passes one a second.
    # Twice: they also take turns.
    slowest_s = max(micro_batch_s, *(payload_s for _, payload_s in hops_s), 0.0)
    return math.ceil(2 * sum(rtt_s + 2 * payload_s for rtt_s, payload_s in hops_s) / slowest_s)


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats: logits [batch, length, vocabulary], targets [batch, length]."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
