"""Data parallel across whole pipelines: what replicas have learned, in place of all-reduce.

All replicas of a stage hold the same reference. Each trains on by itself for some steps (Douillard
et al., "DiLoCo", 2023), sends its weights minus the reference as a ternary packet, and adds the
mean of all packets to the reference. Error feedback needs no vector of its own: weights minus
reference is at any time what no packet has carried yet.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from host.pipeline.config import PipelineConfig
from host.pipeline.errors import PipelineError
from host.pipeline.packets import Packets, Units
from host.pipeline.peers import Peers
from host.pipeline.vector import StageVector
from models.bottleneck.frame import Frame
from ternmesh.hypervector.scale import to_vector

REFERENCE = "replicas/reference"


class Replica:
    """One stage of one replica."""

    def __init__(
        self,
        config: PipelineConfig,
        number: int,
        stage: nn.Module,
        frame: Frame | None,
        peers: Peers,
    ) -> None:
        self._config, self._stage, self._peers = config.replicas, stage, peers
        self._vector = StageVector(stage, frame)
        self._packets = Packets(
            self._vector.dimension, config.replicas, f"{config.digest}/stage {number}"
        )
        self._reference = self._vector.read()

    def average_gradients(self) -> None:
        """All-reduce, before the optimiser's step, where the method is that."""
        if self._config.method != "gradients":
            return
        weights = [weight for weight in self._stage.parameters() if weight.grad is not None]
        flat = torch.cat([weight.grad.flatten() for weight in weights])  # type: ignore[union-attr]
        mean, at = self._peers.mean(flat), 0
        for weight in weights:
            assert weight.grad is not None
            weight.grad.copy_(mean[at : at + weight.numel()].view_as(weight))
            at += weight.numel()

    def after_step(self, steps: int, is_last: bool) -> None:
        """Exchange, where it is time after `steps` steps; PipelineError, WireError."""
        every = self._config.every_steps
        if self._config.method != "gradients" and (steps % every == 0 or is_last):
            self._exchange(-(-steps // every))

    def turn(self, basis: Tensor) -> None:
        """Turn the reference with the weights, before the frame is given the new basis."""
        self._reference = self._vector.turned(self._reference, basis)

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """The stage as the reference has it, for as long as the context lasts."""
        if self._config.method == "gradients":
            yield
            return
        own = [weight.detach().clone() for weight in self._stage.parameters()]
        self._vector.write(self._reference)
        yield
        with torch.no_grad():
            for weight, kept in zip(self._stage.parameters(), own, strict=True):
                weight.copy_(kept)

    def tensors(self) -> list[tuple[str, Tensor]]:
        """What belongs into a checkpoint."""
        return [(REFERENCE, self._reference)]

    def _exchange(self, number: int) -> None:
        weights = self._vector.read()
        unsent = weights - self._reference
        if not bool(torch.isfinite(unsent).all()):
            raise PipelineError(
                "what a replica has learned is not finite: lower the learning rate, or go on from "
                "an older checkpoint"
            )
        if self._config.method == "deltas":
            mean, counted = self._peers.mean(unsent), unsent
        else:
            mean, counted = self._tell(unsent, number)
        self._reference += mean
        self._vector.write(weights + (mean - counted))

    def _tell(self, unsent: Tensor, number: int) -> tuple[Tensor, Tensor]:
        message = self._packets.write(unsent.numpy(), number)
        units = [self._packets.read(each, number) for each in self._peers.gather(message)]
        return mean_of(units), torch.from_numpy(to_vector(units[self._peers.own]))


def mean_of(units: Sequence[Units]) -> Tensor:
    """The mean of vectors in units of 2**-24, as float32: the same on every machine."""
    total: Units = np.sum(units, axis=0, dtype=np.int64)
    return torch.from_numpy(to_vector(total) / np.float32(len(units)))
