"""Encode and decode updates and global updates. Pure functions.

A global update is decoded in integer arithmetic, so the host and all nodes get the same global
adapter bit for bit.
"""

from collections.abc import Callable, Iterable, Sequence

from ternmesh.codec import encoder
from ternmesh.codec.permutation import order
from ternmesh.codec.scale import SCALE_MAX, add_q24, to_vector
from ternmesh.errors import WireError
from ternmesh.federated.state import ChainLink, Learned
from ternmesh.plan import PERMILLE, Plan
from ternmesh.types import DeltaQ24, ModelQ24, Vector
from ternmesh.wire.global_update import (
    NO_MODEL,
    Certificate,
    GlobalSnapshot,
    GlobalUpdate,
    hash_adapter,
    hash_global_update,
    read_object,
    split_certificate,
)
from ternmesh.wire.update import MODEL_SIZE, ROUND_BITS, Chunk, read_chunk, write_chunk


def encode_update(
    vector: Vector, model_hash: bytes, round_number: int, plan: Plan
) -> tuple[tuple[bytes, ...], encoder.Hypervector]:
    """Return the chunks of a node's update for a round, as frame bodies, and what they carry."""
    zeros = plan.up_zeros_permille
    return _write(vector, model_hash, round_number, plan, plan.up, zeros, plan.scale_max)


def encode_step(
    vector: Vector, model_hash: bytes, version: int, plan: Plan, *, has_probe: bool = False
) -> tuple[tuple[bytes, ...], encoder.Hypervector]:
    """Return the chunks of the global update to `version`, as frame bodies, and what they carry.

    Beside a probe it carries fewer nonzeros, so that both together have as many bytes.
    """
    zeros = plan.zeros_beside_probe_permille if has_probe else plan.down_zeros_permille
    return _write(vector, model_hash, version, plan, plan.down, zeros, SCALE_MAX)


def update_delta_q24(
    chunks: Iterable[bytes], model_hash: bytes, round_number: int, plan: Plan
) -> DeltaQ24:
    """Return the sum of the given chunks of an update, in the order of the adapter vector."""
    return scattered(read_chunks(map(read_chunk, chunks), plan.up), model_hash, round_number)


def global_delta_q24(
    chunks: Sequence[bytes], model_hash: bytes, version: int, plan: Plan
) -> DeltaQ24:
    """Return the step to `version`. Raises WireError if chunks are missing or wrong."""
    read = [read_chunk(body) for body in chunks]
    if any(chunk.round_low != version % (1 << ROUND_BITS) for chunk in read):
        raise WireError("reference", "a chunk of a global update is of another version")
    vector = read_chunks(read, plan.down)
    if len(chunks) != plan.down.count or not vector.present.all():
        raise WireError("reference", f"a global update of this run has {plan.down.count} chunks")
    return scattered(vector, model_hash, version)


def scattered(vector: encoder.Hypervector, model_hash: bytes, number: int) -> DeltaQ24:
    """Return what a hypervector of a round or version carries, in the order of the adapter."""
    return encoder.scatter(vector.delta_q24(), order(model_hash, number, vector.slicing.dimension))


def read_step(
    data: bytes, dimension: int, model_hash: bytes, check: Callable[[bytes, Certificate], None]
) -> tuple[GlobalUpdate | GlobalSnapshot, bytes]:
    """Return the object in received `data` and the hash of its content. Raises WireError.

    `check` raises WireError for a wrong certificate, and is called before the content is read.
    """
    content, certificate = split_certificate(data)
    check(content, certificate)
    step = read_object(content, dimension)
    is_named = isinstance(step, GlobalSnapshot) or step.model != NO_MODEL
    if is_named and step.model != model_hash[:MODEL_SIZE]:
        raise WireError("wrong model", "a global update for another model")
    return step, hash_global_update(content)


def follow(
    step: GlobalUpdate, held: Iterable[Learned | None], model_hash: bytes, origin: bytes, plan: Plan
) -> Learned | None:
    """Return what the global update leads to: from the first of `held` that it follows.

    `origin` is the genesis hash of the run. None if it follows none of them. Raises WireError if
    chunks are missing or wrong.
    """
    delta_q24 = global_delta_q24(step.chunks, model_hash, step.version, plan)
    for before in filter(None, held):
        model_q24 = add_q24(before.model_q24, delta_q24)
        if hash_adapter(origin, step.version, model_q24) == step.adapter_hash:
            return Learned(model_q24, before.residual)
    return None


def older_adapter(
    model_q24: ModelQ24, links: Iterable[ChainLink], version: int, model_hash: bytes, plan: Plan
) -> ModelQ24 | None:
    """Return the global adapter of an older version: the newest one without the steps since.

    `links` are the global updates that led to the newest, newest first. A step that returned leads
    to the version that it returned to. None if the links do not lead to `version`.
    """
    at: int | None = None
    for link in links:
        if at is not None and (at <= version or link.version < at):
            break
        if at is None or link.version == at:
            step = read_object(split_certificate(link.content)[0], plan.dimension)
            if not isinstance(step, GlobalUpdate):
                return None
            delta_q24 = global_delta_q24(step.chunks, model_hash, step.version, plan)
            model_q24 = add_q24(model_q24, -delta_q24)
            at = step.version - 1 if step.returns_to is None else step.returns_to
    return model_q24 if at == version else None


def read_probe(step: GlobalUpdate, model_hash: bytes, plan: Plan) -> Vector | None:
    """Return the probe of a global update (float32 [D]), or None. Raises WireError."""
    if not step.probe:
        return None
    return to_vector(update_delta_q24(step.probe, model_hash, step.version, plan))


def read_chunks(chunks: Iterable[Chunk], slicing: encoder.Slicing) -> encoder.Hypervector:
    """Return the hypervector of the chunks. Raises WireError for a wrong index or code."""
    slices = []
    for chunk in chunks:
        if chunk.slice.index >= slicing.count:
            raise WireError("vector length", f"an update here has {slicing.count} chunks")
        slices.append((chunk.slice.index, *encoder.decode_slice(chunk.slice, slicing)))
    return encoder.gather(slices, slicing)


def make_step(
    combined: Vector,
    residual: Vector,
    model_hash: bytes,
    version: int,
    plan: Plan,
    *,
    has_probe: bool = False,
) -> tuple[tuple[bytes, ...], DeltaQ24, Vector]:
    """Make the global update to `version` from the round's combined step and the host's residual.

    Return its chunks as frame bodies, its step, and the host's new residual.
    """
    corrected = encoder.add_residual(residual, combined)
    chunks, carried = encode_step(corrected, model_hash, version, plan, has_probe=has_probe)
    delta_q24 = scattered(carried, model_hash, version)
    return chunks, delta_q24, encoder.settle_residual(corrected, to_vector(delta_q24))


def _write(
    vector: Vector,
    model_hash: bytes,
    number: int,
    plan: Plan,
    slicing: encoder.Slicing,
    zeros: int,
    scale_max: int,
) -> tuple[tuple[bytes, ...], encoder.Hypervector]:
    places = order(model_hash, number, plan.dimension)
    slices, carried = encoder.encode_vector(
        vector, places, slicing, zeros / PERMILLE, plan.chunk_room, scale_max
    )
    return tuple(write_chunk(number, item) for item in slices), carried
