"""What a stage has learned as the packets that boards send: one message for an exchange."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from host.pipeline.config import ReplicasConfig
from host.pipeline.errors import PipelineError
from ternmesh.errors import WireError
from ternmesh.hypervector.scale import SCALE_MAX
from ternmesh.plan import FRAME_MTU_MAX, Plan, make_plan
from ternmesh.swarm.packet import make_packet
from ternmesh.swarm.step import update_units
from ternmesh.wire import manifest
from transports import batch

Vector = NDArray[np.float32]
Units = NDArray[np.int64]
PART_MAX = 1 << 22  # numbers of a packet


class Packets:
    """Writes and reads the messages of one stage; `name` seeds the order of the numbers."""

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
        """The message that carries `vector` (float32, D) as far as the plan allows; CodecError."""
        bodies: list[bytes] = []
        for start, end, plan, key in self._parts():
            bodies += make_packet(vector[start:end], key, number, 1, plan).bodies
        return batch.join(bodies)

    def read(self, message: bytes, number: int) -> Units:
        """What a message is worth, in units of 2**-24 (int64, D); WireError."""
        bodies, rows = list(batch.split(message)), []
        if len(bodies) != sum(1 + plan.up.count for plan in self._plans):
            raise WireError("length", "a replica's message is not of as many parts as its plan's")
        for _, _, plan, key in self._parts():
            count = 1 + plan.up.count
            head, *shares = bodies[:count]
            del bodies[:count]
            check_head(head, shares, key, number, plan)
            rows.append(update_units(shares, key, number, plan))
        return np.concatenate(rows)

    def _parts(self) -> "zip[tuple[int, int, Plan, bytes]]":
        return zip(self._starts, self._ends, self._plans, self._keys, strict=True)


def make_part_plan(dimension: int, config: ReplicasConfig, parts: int) -> Plan:
    """The plan for a part's packets; PipelineError where `up_bytes` are too few."""
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


def check_head(head: bytes, shares: Sequence[bytes], key: bytes, number: int, plan: Plan) -> None:
    """WireError unless a packet is whole and of this exchange."""
    said = manifest.read_manifest(head)
    if said.model != key[: manifest.MODEL_SIZE] or said.round_low != number & 0xFFFF:
        raise WireError("round", "a replica's packet is for another exchange")
    if len(shares) != plan.up.count or said.digest != manifest.packet_digest(shares):
        raise WireError("digest", "a replica's packet is not whole")
