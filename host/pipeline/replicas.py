"""Data parallelism of whole pipelines: replicas exchange ternary updates in place of all-reduce.

All replicas of a stage hold the same global weights. Each trains alone for some steps (Douillard
et al., "DiLoCo", 2023), sends its weights minus the global weights as a ternary update, and adds
the mean of all updates to the global weights. Error feedback needs no extra vector: weights minus
global weights are always what no update has carried yet. Updates have the format that boards send.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from host.pipeline.config import PipelineConfig, PipelineError, ReplicasConfig
from host.pipeline.links import RankLink, floats_in
from host.pipeline.wire import Kind
from models.bottleneck.shared_subspace import SharedSubspace
from models.bottleneck.subspace import confined
from ternmesh.codec.scale import SCALE_MAX, to_vector
from ternmesh.errors import WireError
from ternmesh.federated.aggregation import update_delta_q24
from ternmesh.federated.local_update import make_update
from ternmesh.plan import FRAME_MTU_MAX, Plan, make_plan
from ternmesh.types import DeltaQ24, Vector
from ternmesh.wire.update import MODEL_SIZE, read_manifest, update_digest
from transports import batch

PART_MAX = 1 << 22  # numbers in one update; a longer vector is divided


class Packets:
    """Writes and reads the messages of one stage; `name` seeds the permutations."""

    def __init__(self, dimension: int, config: ReplicasConfig, name: str) -> None:
        parts = -(-dimension // PART_MAX)
        self._ends = [dimension * (part + 1) // parts for part in range(parts)]
        self._starts = [0, *self._ends[:-1]]
        self._plans = [
            make_part_plan(end - start, config)
            for start, end in zip(self._starts, self._ends, strict=True)
        ]
        self._keys = [hashlib.sha256(f"{name}/{part}".encode()).digest() for part in range(parts)]

    def write(self, vector: Vector, number: int) -> bytes:
        """The message for `vector` (float32 [D]), quantised as the plan says; CodecError."""
        bodies: list[bytes] = []
        for start, end, plan, key in self._parts():
            bodies += make_update(vector[start:end], key, number, 1, plan).bodies
        return batch.join(bodies)

    def read(self, message: bytes, number: int) -> DeltaQ24:
        """The vector in a message, in units of 2**-24 (int64 [D]); WireError."""
        bodies = list(batch.split(message))
        rows = []
        if len(bodies) != sum(1 + plan.up.count for plan in self._plans):
            raise WireError(
                "length", "a replica's message has another count of parts than the plan"
            )
        for _, _, plan, key in self._parts():
            count = 1 + plan.up.count
            manifest, *chunks = bodies[:count]
            del bodies[:count]
            check_manifest(manifest, chunks, key, number, plan)
            rows.append(update_delta_q24(chunks, key, number, plan))
        return np.concatenate(rows)

    def _parts(self) -> "zip[tuple[int, int, Plan, bytes]]":
        return zip(self._starts, self._ends, self._plans, self._keys, strict=True)


def make_part_plan(dimension: int, config: ReplicasConfig) -> Plan:
    """The plan for the updates of a part."""
    plan = make_plan(
        dimension,
        rounds=1,
        local_steps=config.every_steps,
        learning_rate=1.0,
        frame_mtu=FRAME_MTU_MAX,
        up_zeros=config.zeros,
    )
    return replace(plan, scale_max=SCALE_MAX)


def check_manifest(
    body: bytes, chunks: Sequence[bytes], key: bytes, number: int, plan: Plan
) -> None:
    """WireError unless an update is complete and of exchange `number`."""
    manifest = read_manifest(body)
    if manifest.model != key[:MODEL_SIZE] or manifest.round_low != number & 0xFFFF:
        raise WireError("round", "a replica's update is for another exchange")
    if len(chunks) != plan.up.count or manifest.digest != update_digest(chunks):
        raise WireError("digest", "a replica's update is not complete")


class StageVector:
    """The trained numbers of a stage in the order of its parameters, float32 on the CPU.

    U is the orthonormal basis of the shared subspace, [width, k]. A weight W whose columns (or
    rows) lie in span(U) is read as the coordinates U^T W (or W U). The coordinates are fewer
    numbers than W, and no change of the coordinates can move W out of the subspace.
    """

    def __init__(self, stage: nn.Module, subspace: SharedSubspace | None) -> None:
        self._stage = stage
        self._subspace = subspace
        self._axes = {id(c.weight): c.axis for c in confined(stage) if not c.is_factor}

    @property
    def dimension(self) -> int:
        """The number of trained numbers, D."""
        return sum(part.numel() for _, part in self._parts())

    @torch.no_grad()
    def read(self) -> Tensor:
        """Return the trained numbers, float32 [D]."""
        return torch.cat([part.detach().float().cpu().flatten() for _, part in self._parts()])

    @torch.no_grad()
    def write(self, vector: Tensor) -> None:
        """Set the weights of the stage from `vector`, float32 [D]."""
        at = 0
        for weight, part in self._parts():
            new = vector[at : at + part.numel()].view(part.shape).to(weight.device, weight.dtype)
            at += part.numel()
            axis = self._axes.get(id(weight))
            if axis is not None:
                assert self._subspace is not None
                basis = self._subspace.basis
                new = basis @ new if axis == 0 else new @ basis.T
            weight.copy_(new)

    @torch.no_grad()
    def in_basis(self, vector: Tensor, basis: Tensor) -> Tensor:
        """Return `vector` [D] in the coordinates of a new `basis` instead of the present one."""
        assert self._subspace is not None
        change = (basis.T @ self._subspace.basis).cpu()
        rows, at = [], 0
        axes = {id(item.weight): item.axis for item in confined(self._stage)}
        for weight, part in self._parts():
            old = vector[at : at + part.numel()].view(part.shape)
            at += part.numel()
            axis = axes.get(id(weight))
            new = old if axis is None else change @ old if axis == 0 else old @ change.T
            rows.append(new.flatten())
        return torch.cat(rows)

    def _parts(self) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Yield each weight with the numbers that stand for it in the vector."""
        for weight in self._stage.parameters():
            axis = self._axes.get(id(weight))
            if axis is None:
                yield weight, weight.detach()
            else:
                assert self._subspace is not None
                basis, whole = self._subspace.basis, weight.detach()
                yield weight, basis.T @ whole if axis == 0 else whole @ basis


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
