"""Data parallelism of whole pipelines: replicas exchange ternary updates in place of all-reduce.

All replicas of a stage hold the same global weights. Each trains alone for some steps (Douillard
et al., "DiLoCo", 2023), sends its weights minus the global weights as a ternary update, and adds
the mean of all updates to the global weights. Error feedback needs no extra vector: weights minus
global weights are always what no update has carried yet.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from host.pipeline.config import PipelineConfig, PipelineError
from host.pipeline.links import RankLink, floats_in
from host.pipeline.packets import DeltaQ24, Packets
from host.pipeline.vector import StageVector
from host.pipeline.wire import Kind
from models.bottleneck.shared_subspace import SharedSubspace
from ternmesh.codec.scale import to_vector

GLOBAL = "replicas/reference"  # the name of the global weights in a checkpoint


class Peers:
    """The links from this replica of a stage, number `own`, to the others."""

    def __init__(self, links: Mapping[int, RankLink], own: int, count: int) -> None:
        self.own = own
        self.count = count
        self.sent_bytes = 0  # to each of the others
        self._links = links

    def gather(self, message: bytes) -> list[bytes]:
        """The messages of all replicas, in order."""
        self.sent_bytes += len(message)
        for link in self._links.values():
            link.writer.send(Kind.NUMBERS, message)
        found = {r: link.reader.take(Kind.NUMBERS).data for r, link in self._links.items()}
        found[self.own] = message
        return [found[replica] for replica in range(self.count)]

    def mean(self, tensor: Tensor) -> Tensor:
        """The mean of the replicas' float32 tensors, added in their order: equal on all."""
        on_cpu = tensor.detach().cpu()
        rows = [floats_in(_body(data), on_cpu) for data in self.gather(_data(on_cpu))]
        return (torch.stack(rows).sum(0) / self.count).to(tensor.device)

    def broadcast(self, tensor: Tensor) -> Tensor:
        """The float32 tensor of the first replica, on the device of `tensor`."""
        message = b"" if self.own else _data(tensor)
        return floats_in(_body(self.gather(message)[0]), tensor)


def _body(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _data(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().numpy().tobytes()


class Replica:
    """One stage of one replica, and the global weights of that stage."""

    def __init__(
        self,
        config: PipelineConfig,
        number: int,
        stage: nn.Module,
        subspace: SharedSubspace | None,
        peers: Peers,
    ) -> None:
        self._config = config.replicas
        self._stage = stage
        self._peers = peers
        self._vector = StageVector(stage, subspace)
        self._updates = Packets(
            self._vector.dimension, config.replicas, f"{config.digest}/stage {number}"
        )
        self._global = self._vector.read()

    def after_step(self, steps: int, is_last: bool) -> None:
        """Exchange updates if it is time after `steps` steps; PipelineError, WireError."""
        every = self._config.every_steps
        if steps % every == 0 or is_last:
            self._exchange(-(-steps // every))

    def change_basis(self, basis: Tensor) -> None:
        """Express the global weights in `basis`; the caller then sets that of the subspace."""
        self._global = self._vector.in_basis(self._global, basis)

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """A context in which the stage has the global weights."""
        own = [weight.detach().clone() for weight in self._stage.parameters()]
        self._vector.write(self._global)
        yield
        with torch.no_grad():
            for weight, kept in zip(self._stage.parameters(), own, strict=True):
                weight.copy_(kept)

    def tensors(self) -> list[tuple[str, Tensor]]:
        """The tensors for a checkpoint."""
        return [(GLOBAL, self._global)]

    def _exchange(self, number: int) -> None:
        weights = self._vector.read()
        unsent = weights - self._global
        if not bool(torch.isfinite(unsent).all()):
            raise PipelineError(
                "the change of a replica's weights is not finite: lower the learning rate, or "
                "continue from an older checkpoint"
            )
        message = self._updates.write(unsent.numpy(), number)
        deltas = [self._updates.read(each, number) for each in self._peers.gather(message)]
        mean, sent = mean_of(deltas), torch.from_numpy(to_vector(deltas[self._peers.own]))
        self._global += mean
        self._vector.write(weights + (mean - sent))


def mean_of(deltas: Sequence[DeltaQ24]) -> Tensor:
    """The mean of vectors in units of 2**-24, as float32 [D]: equal on all machines."""
    total: DeltaQ24 = np.sum(deltas, axis=0, dtype=np.int64)
    return torch.from_numpy(to_vector(total) / np.float32(len(deltas)))
