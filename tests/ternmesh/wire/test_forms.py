"""Every body of the wire and of the link: it reads as written, and any other bytes are refused."""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ternmesh.codec.encoder import Slice
from ternmesh.codec.entropy_coder import Coded
from ternmesh.errors import WireError
from ternmesh.link import messages as link
from ternmesh.wire import activation, control, global_update, knowledge, proof, release, update
from ternmesh.wire.frame import NODE_MAX, Header, open_seal, seal_open

DIMENSION = 3  # of a snapshot


def numbers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << bits) - 1)


def exactly(size: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=size, max_size=size)


def some(values: st.SearchStrategy[Any], most: int, least: int = 0) -> st.SearchStrategy[Any]:
    return st.lists(values, min_size=least, max_size=most).map(tuple)


@dataclass(frozen=True, slots=True)
class Form:
    """One kind of body: values of it, its writer and reader, and the bytes it may begin with."""

    values: st.SearchStrategy[Any]
    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]
    kinds: tuple[int, ...]


u8, u16, u32, eight = numbers(8), numbers(16), numbers(32), exactly(8)
names = st.from_regex(control.NAME.pattern.replace(r"\Z", ""), fullmatch=True)
versions = st.from_regex(r"[A-Za-z0-9.+!_-]{1,32}", fullmatch=True)
phases, plans = st.integers(0, 2), some(u32, 32)
controls = st.one_of(
    st.builds(control.Hello, names, eight, eight, eight, u32, exactly(16), u32),
    st.builds(control.Welcome, eight, st.integers(1, NODE_MAX), eight, u32, phases, u32, plans),
    st.builds(control.Receipt, u32, exactly(4), st.binary(min_size=1, max_size=128)),
    st.builds(control.Refusal, u32, st.from_regex(r"[a-z -]{1,32}", fullmatch=True)),
    st.builds(control.Announce, eight, u32, phases, u32, u32),
    st.builds(control.Silent, u32),
    st.builds(control.Wanted, st.integers(1, NODE_MAX), u32),
    st.builds(control.Inquiry),
    st.builds(control.Report, versions, u32, plans, plans),
    st.builds(control.Settings, u32, plans),
)
manifests = st.builds(
    update.Manifest,
    round_low=u16,
    model=eight,
    samples=st.integers(1, update.SAMPLES_MAX),
    digest=exactly(4),
    chunks=u16,
    evaluation=st.dictionaries(u8, u16, max_size=5).map(lambda given: tuple(sorted(given.items()))),
    signature=exactly(64),
)
of_aggregators = st.builds(
    lambda item, members, root, state: replace(item, members=members, root=root, state=state),
    manifests,
    st.integers(1, update.MEMBERS_MAX),
    exactly(update.ROOT_SIZE),
    exactly(update.ROOT_SIZE),
)
coded = st.builds(Coded, st.just(7), st.just(3), st.binary(max_size=50))
chunks = st.builds(update.Chunk, u16, st.builds(Slice, u16, st.just(29696), coded))
roots = st.just(b"") | exactly(update.ROOT_SIZE)
row_fields = u32, exactly(4), st.binary(max_size=128), roots
counted = some(st.builds(global_update.Counted, u32, *row_fields), 4)
head: dict[str, st.SearchStrategy[Any]] = {
    "version": u32,
    "model": st.just(b"") | eight,
    "finished": st.booleans(),
    "deadline_ms": u32,
    "counted": counted,
}
parts = some(st.binary(max_size=40), 5)
steps = st.builds(
    global_update.GlobalUpdate, adapter_hash=exactly(16), chunks=parts, probe=parts, **head
)
returns = st.builds(
    lambda step, older: replace(step, version=step.version | 16, returns_to=older),
    steps,
    st.integers(0, 9),
)
rooted = st.builds(
    lambda step, root: replace(step, counted=(), root=root), steps, exactly(update.ROOT_SIZE)
)
snapshots = st.builds(
    global_update.GlobalSnapshot, global_hash=exactly(16), state=arrays(np.int32, DIMENSION), **head
)
leaves = st.integers(1, NODE_MAX // proof.LEAF + 1).flatmap(
    lambda count: st.integers(0, count - 1).flatmap(
        lambda index: st.builds(
            proof.Leaf,
            st.just(index),
            st.just(count),
            some(
                st.builds(
                    global_update.Counted,
                    st.integers(proof.LEAF * index, proof.LEAF * index + proof.LEAF - 1),
                    *row_fields,
                ),
                proof.LEAF,
            ),
            some(exactly(update.ROOT_SIZE), proof.PATH_MAX),
        )
    )
)
proofs = st.builds(
    proof.Proof,
    u32,
    some(st.integers(1, NODE_MAX), proof.LEVELS_MAX - 1),
    some(leaves, proof.LEVELS_MAX),
)
needs = st.lists(st.integers(0, 128) | st.just(0), max_size=link.GENERATIONS_MAX).map(
    lambda row: tuple(row[: max((i + 1 for i, need in enumerate(row) if need), default=0)])
)
slots = st.integers(0, 15)
link_messages = st.one_of(
    st.builds(
        link.Offer, slots, u16, exactly(4), st.integers(1, link.SIZE_MAX), st.integers(1, 65_535)
    ),
    st.builds(link.Symbol, slots, u16, st.binary(min_size=1, max_size=60), st.booleans()),
    st.builds(link.Question, slots),
    st.builds(link.Status, exactly(4), needs),
)
topics = st.builds(knowledge.Topic, numbers(64), numbers(64))
knowledge_parts = st.builds(
    knowledge.Part,
    u16,
    topics,
    u8,
    st.integers(0, 60_000),
    st.integers(1, 4096),
    st.binary(min_size=1, max_size=60),
)
offers = st.builds(
    release.ReleaseOffer,
    digest=exactly(32),
    size=st.integers(1, 1 << 31),
    symbol_bytes=u16,
    name=names,
    version=st.integers(1, 1 << 31),
    number=u32,
    stage=phases,
    tries=u16,
    asked=phases,
    spread_ms=u32,
)
reasons = st.text(st.characters(codec="ascii", categories=["L", "N"]), max_size=100)
failures = st.sampled_from((release.BAD, release.REFUSED))
statuses = st.one_of(
    st.builds(
        release.ReleaseStatus, exactly(4), st.just(release.RECEIVING), some(u16, 32, least=1)
    ),
    st.builds(release.ReleaseStatus, exactly(4), failures, reason=reasons),
)
symbols = st.builds(release.ReleaseSymbol, exactly(2), u16, st.binary(min_size=1, max_size=99))
rows = arrays(
    np.float32,
    st.tuples(st.integers(1, 6), st.integers(1, 9)),
    elements=st.floats(-(2.0**90), 2.0**90, width=32),
)


def write_activation(item: tuple[activation.Activation, int]) -> bytes:
    return activation.write_activation(*item)


def read_activation(body: bytes) -> tuple[activation.Activation, int]:
    return activation.read_activation(body), body[6]


activations = st.builds(
    lambda number, values, bits: read_activation(
        activation.write_activation(
            activation.Activation(activation.LEARN, number, values, bytes(range(len(values)))), bits
        )
    ),
    u32,
    rows,
    st.sampled_from(activation.BITS),
)


def write_object(item: global_update.GlobalUpdate | global_update.GlobalSnapshot) -> bytes:
    if isinstance(item, global_update.GlobalSnapshot):
        return global_update.write_global_snapshot(item)
    return global_update.write_global_update(item)


signers = some(st.tuples(u8, exactly(64)), 16, least=1)
headers = st.builds(Header, u16, numbers(24), key_phase=st.integers(0, 1))
FORMS = {
    "frame": Form(
        st.tuples(headers, st.binary(min_size=1, max_size=200)),
        lambda item: seal_open(*item),
        open_seal,
        (0x20, 0x22),
    ),
    "control": Form(controls, control.write_control, control.read_control, (1,)),
    "manifest": Form(manifests | of_aggregators, update.write_manifest, update.read_manifest, (3,)),
    "chunk": Form(
        chunks, lambda item: update.write_chunk(item.round_low, item.slice), update.read_chunk, (2,)
    ),
    "object": Form(
        steps | returns | rooted | snapshots,
        write_object,
        lambda body: global_update.read_object(body, DIMENSION),
        (1, 2),
    ),
    "proof": Form(proofs, proof.write_proof, proof.read_proof, (proof.PROOF,)),
    "certificate": Form(
        st.tuples(st.binary(min_size=1, max_size=50), signers),
        lambda item: global_update.certify(*item),
        global_update.split_certificate,
        (0, 1, 16),
    ),
    "activation": Form(activations, write_activation, read_activation, (activation.KIND,)),
    "knowledge": Form(
        knowledge_parts, knowledge.write_part, knowledge.read_part, (knowledge.KIND,)
    ),
    "offer": Form(offers, release.write_offer, release.read_offer, (release.OFFER,)),
    "symbol": Form(symbols, release.write_symbol, release.read_symbol, (release.SYMBOL,)),
    "status": Form(statuses, release.write_status, release.read_status, (release.STATUS,)),
    "link": Form(
        link_messages, link.write_message, link.read_message, (6, 7, 8, *range(0x50, 0x70))
    ),
}


def plain(value: Any) -> Any:
    """A value whose parts can be compared, arrays too."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.tolist()
    if is_dataclass(value):
        return type(value), [plain(getattr(value, field.name)) for field in fields(value)]
    return [plain(part) for part in value] if isinstance(value, tuple) else value


@pytest.mark.parametrize("name", FORMS)
@given(data=st.data())
def test_a_body_reads_as_written(name: str, data: st.DataObject) -> None:
    form = FORMS[name]
    value = data.draw(form.values)
    body = form.write(value)
    assert plain(form.read(body)) == plain(value)


@pytest.mark.parametrize("name", FORMS)
@given(data=st.data())
def test_any_bytes_are_a_body_in_its_one_form_or_a_wire_error(  # R4.3-3, R8.2-3
    name: str, data: st.DataObject
) -> None:
    form = FORMS[name]
    if data.draw(st.booleans()):
        body = bytearray(form.write(data.draw(form.values)))
        for _ in range(data.draw(st.integers(1, 3))):
            body[data.draw(st.integers(1, len(body) - 1))] = data.draw(u8)
        body = body[: data.draw(st.just(len(body)) | st.integers(1, len(body)))]
    else:
        body = bytearray((data.draw(st.sampled_from(form.kinds)),)) + data.draw(st.binary())
    try:
        value = form.read(bytes(body))
    except WireError:
        return
    assert form.write(value) == body
