"""A stage's change as ternary updates, in the format that boards send: one message an exchange."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from host.pipeline.config import PipelineError, ReplicasConfig
from ternmesh.codec.scale import SCALE_MAX
from ternmesh.errors import WireError
from ternmesh.federated.aggregation import update_delta_q24
from ternmesh.federated.local_update import make_update
from ternmesh.plan import FRAME_MTU_MAX, Plan, make_plan
from ternmesh.wire.update import MODEL_SIZE, read_manifest, update_digest
from transports import batch

Vector = NDArray[np.float32]
DeltaQ24 = NDArray[np.int64]
PART_MAX = 1 << 22  # numbers in one update; a longer vector is divided


class Packets:
    """Writes and reads the messages of one stage; `name` seeds the permutations."""

    def __init__(self, dimension: int, config: ReplicasConfig, name: str) -> None:
        parts = -(-dimension // PART_MAX)
        self._ends = [dimension * (part + 1) // parts for part in range(parts)]
        self._starts = [0, *self._ends[:-1]]
        self._plans = [
            make_part_plan(end - start, config, parts)
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


def make_part_plan(dimension: int, config: ReplicasConfig, parts: int) -> Plan:
    """The plan for the updates of a part; PipelineError where `up_bytes` are too few."""
    try:
        plan = make_plan(
            dimension,
            rounds=1,
            local_steps=config.every_steps,
            learning_rate=1.0,
            frame_mtu=FRAME_MTU_MAX,
            up_zeros=config.zeros,
            up_bytes=config.up_bytes // parts,
        )
    except WireError as error:
        raise PipelineError(f"replicas.up_bytes is {config.up_bytes}: {error}") from error
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
