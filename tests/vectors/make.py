"""Writes the golden vectors: `python tests/vectors/make.py` from the repository's root.

New entries are added; an entry that exists is never changed. Where this code no longer gives what
a vector says, the script ends with 1: then the wire format was broken, which needs a new version.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from ternmesh import generator, plan
from ternmesh.codec import encoder, permutation, scale, trits
from ternmesh.codec.entropy_coder import CODEBOOK, Coded, decode_trits, encode_trits
from ternmesh.errors import WireError
from ternmesh.link import erasure_code, messages
from ternmesh.security import (
    enrolment,
    host_keys,
    identity,
    keyed_sealing,
    membership,
    notices,
    session,
    signatures,
)
from ternmesh.security.key_derivation import group_secret
from ternmesh.security.primitives import hkdf
from ternmesh.wire import activation, control, fragments, global_update, knowledge, release, update
from ternmesh.wire.frame import BROADCAST, DOWN, UNASSIGNED, Header, seal_open

FOLDER = Path(__file__).parent
FIRST_NAMES = {"address": "context", "chunks": "shares", "global_hash": "reference"}
MODEL = bytes(range(32))
RUN = bytes.fromhex("a1a2a3a4a5a6a7a8")
PLAN = plan.make_plan(
    3000, rounds=20, local_steps=8, learning_rate=0.002, frame_mtu=184, up_zeros=0.9
)
Entries = dict[str, dict[str, Any]]


def counter_words(key: tuple[int, int], start: int, count: int) -> list[str]:
    """Words of a stream as hex, to be read by eye."""
    return [f"{word:08x}" for word in generator.words(key, count, start)]


def philox() -> Entries:
    """The published known answers of Random123, and where a stream begins and crosses 2**32."""
    known = {
        "zeros": ("00000000 00000000", "00000000 00000000 00000000 00000000"),
        "ones": ("ffffffff ffffffff", "ffffffff ffffffff ffffffff ffffffff"),
        "pi": ("a4093822 299f31d0", "243f6a88 85a308d3 13198a2e 03707344"),
    }
    entries: Entries = {}
    for name, (key_text, counter_text) in known.items():
        key = [int(word, 16) for word in key_text.split()]
        lanes = tuple(np.array([int(word, 16)], np.uint64) for word in counter_text.split())
        out = generator.philox((key[0], key[1]), lanes)  # type: ignore[arg-type]
        words = [f"{int(lane[0]):08x}" for lane in out]
        entries[f"random123 {name}"] = {
            "key": key_text.split(),
            "counter": counter_text.split(),
            "words": words,
        }
    key_words = (0x01234567, 0x89ABCDEF)
    for name, start, count in (("first", 0, 9), ("unaligned", 6, 5), ("far", 4 * 2**32 - 2, 4)):
        words = counter_words(key_words, start, count)
        entries[f"stream {name}"] = {"key": list(key_words), "start": start, "words": words}
    return entries


def keys() -> Entries:
    """Key derivation."""
    cases: dict[str, Any] = {
        "order 0": ("order", MODEL, bytes(4)),
        "label only": ("x",),
        "empty": ("order", b""),
    }
    return {
        name: {
            "label": label,
            "parts": [part.hex() for part in parts],
            "key": [f"{word:08x}" for word in generator.derive_key(label, *parts)],
        }
        for name, (label, *parts) in cases.items()
    }


def orders() -> Entries:
    """Permutations: the first places, and a hash over all as little-endian u32."""
    entries: Entries = {}
    for dimension in (1, 2, 3, 4, 5, 17, 1000, 16934, 65536, 65537):
        for round_number in (0, 1, 70000):
            places = permutation.order(MODEL, round_number, dimension)
            entries[f"{dimension} of round {round_number}"] = {
                "dimension": dimension,
                "round": round_number,
                "first": places[:16].tolist(),
                "sha256": _sha(places.astype("<u4").tobytes()),
            }
    return entries


def scales() -> Entries:
    """Scales: the code of a number, and what a code is worth in units of 2**-24."""
    values = [0.0, 2.0**-25, 2.0**-24, 1e-6, 2047 * 2.0**-24, 2048 * 2.0**-24, 0.001, 0.0123]
    values += [0.5, 1.0, 3.14159, 63.96, 63.97, 64.0, 1e30]
    return {
        repr(value): {
            "value": value,
            "code": (code := scale.encode_scale(value)),
            "units": scale.decode_scale(code),
        }
        for value in values
    }


def packed_trits() -> Entries:
    """Five trits to a byte."""
    cases = {"none": [], "one": [1], "five": [-1, 0, 1, 1, -1], "all minus": [-1] * 5}
    cases |= {"seven": [0, 1, -1, 1, 0, -1, 1], "zeros": [0] * 11, "all plus": [1] * 10}
    return {
        name: {"trits": values, "bytes": trits.pack_trits(np.array(values, np.int8)).hex()}
        for name, values in cases.items()
    }


def codes() -> Entries:
    """Coded shares of every form."""
    words = generator.words((7, 7), 400)
    cases = {
        "nothing": [0] * 20,
        "first": [1] + [0] * 30,
        "last": [0] * 30 + [-1],
        "sparse": _ternary(words, 40),
        "very sparse": _ternary(words, 400),
        "dense": _ternary(words[:97], 1),
        "half": _ternary(words[:120], 2),
        "votes": [0, 3, 0, 0, -1, 0, 0, 0, 2, -127, 0, 1],
        "one vote of two": [0, 0, 2],
    }
    entries: Entries = {}
    for name, values in cases.items():
        coded = encode_trits(np.array(values, np.int8))
        entries[name] = {
            "values": values,
            "count": coded.count,
            "coding": coded.coding,
            "bytes": coded.data.hex(),
        }
    return entries


def codebooks() -> Entries:
    """Slices in the codebook form: the names, and the signs that they stand for."""
    entries: Entries = {}
    for size, count in ((1, 1), (17, 1), (40, 2), (100, 3), (1000, 7), (2048, 2)):
        names = generator.words((8, size), count).astype("<u2").tobytes()
        values = decode_trits(Coded(size, CODEBOOK, names), size)
        minus = np.packbits(values < 0, bitorder="little").tobytes()
        entries[f"{size} in {count}"] = {"size": size, "bytes": names.hex(), "minus": minus.hex()}
    return entries


def seals() -> Entries:
    """Sealed frames."""
    cases = {
        "enrol": (Header(UNASSIGNED, 0), b"\x01"),
        "to the host": (Header(3, 0x0102030405), b"body"),
        "to a node": (Header(3 | DOWN, 0xFFFFFF), bytes(20)),
        "to all, key phase 1": (Header(BROADCAST, 7, key_phase=1), b"\xff"),
    }
    return {
        name: {
            **_plain(asdict(header)),
            "counter": header.counter & 0xFFFFFF,
            "body": body.hex(),
            "bytes": seal_open(header, body).hex(),
        }
        for name, (header, body) in cases.items()
    }


def packet() -> tuple[list[bytes], update.Manifest]:
    """The shares and the manifest of one update: 3,000 numbers that the generator makes."""
    numbers = generator.words((1, 2), 3000).astype(np.float64)
    vector = ((numbers / 2**32 - 0.5) ** 3).astype(np.float32)
    slices = encoder.encode_vector(
        vector, permutation.order(MODEL, 5, 3000), PLAN.up, 0.9, PLAN.chunk_room
    )[0]
    chunks = [update.write_chunk(5, item) for item in slices]
    digest = update.update_digest(chunks)
    return chunks, update.Manifest(5, MODEL[:8], 120, digest, len(chunks))


def packets() -> Entries:
    """Shares, manifests and the digest of a packet."""
    chunks, head = packet()
    gateway = update.Manifest(
        65535, MODEL[:8], 1 << 20, b"\x01\x02\x03\x04", 1024, (1, 2, 0x7FFE), (), bytes(range(64))
    )
    evaluated = replace(head, evaluation=((1, 325), (2, 9417)))
    return {
        "update": {"round": 5, "shares": [body.hex() for body in chunks]},
        "digest": {
            "shares": [body.hex() for body in chunks],
            "sha256": update.update_hash(chunks).hex(),
            "digest": update.update_digest(chunks).hex(),
        },
        "manifest": _manifest(head),
        "manifest of a gateway": _manifest(gateway),
        "manifest with an evaluation": _manifest(evaluated),
        "bundle": partial_aggregate(),
    }


def partial_aggregate() -> dict[str, Any]:
    """A gateway's bundle of two packets: 100 votes that the generator makes, in two slices."""
    rows = [
        update.Contribution(b"\x01\x02\x03\x04", 120),
        update.Contribution(bytes(4), (1 << 20) - 120),
    ]
    words = generator.words((3, 4), 100).astype(np.int64)
    votes = np.where(words >> 8 & 3 == 0, words % 9 - 4, 0).astype(np.int8)
    slices = [
        encoder.Slice(index, 0x2C00 + index, encode_trits(part))
        for index, part in enumerate((votes[:64], votes[64:]))
    ]
    listed = update.write_contributions(5, rows)
    chunks = [update.write_chunk(5, item, update.VOTE_CHUNK_KIND) for item in slices]
    digest = update.update_digest([listed, *chunks])
    head = update.Manifest(5, MODEL[:8], 1 << 20, digest, 2, (2, 9))
    return {
        "manifest": update.write_manifest(head).hex(),
        "contributions": listed.hex(),
        "shares": [body.hex() for body in chunks],
        "rows": [_plain(asdict(row)) for row in rows],
        "votes": votes.tolist(),
        "scales": [scale.decode_scale(item.scale) for item in slices],
    }


def controls() -> Entries:
    """Each control message."""
    genesis = plan.genesis(MODEL, RUN, PLAN)
    cases: dict[str, control.Control] = {
        "hello of a new node": control.Hello(
            "theo", b"instance", MODEL[:8], bytes(8), 0, bytes(16), 120
        ),
        "hello again": control.Hello("a.b_c-9", b"instance", MODEL[:8], RUN, 4711, genesis, 1),
        "welcome": control.Welcome(b"instance", 3, RUN, 7, 1, 59_999, plan.to_numbers(PLAN)),
        "receipt": control.Receipt(7, b"\xde\xad\xbe\xef", b"\x07"),
        "refusal": control.Refusal(7, "old round"),
        "announce": control.Announce(RUN, 20, 2, 0, 7),
        "longest numbers": control.Announce(RUN, 0xFFFFFFFF, 2, 0xFFFFFFFF, 0xFFFFFFFF),
        "silent": control.Silent(7),
        "inquiry": control.Inquiry(),
        "report": control.Report("0.1.0", 3, (2, 61, 1, 51), (3601, 0, 91, 513, 3, 8, 8, 1, 921)),
        "settings": control.Settings(4, (1, 0, 0, 1001)),
    }
    return _messages(cases, control.write_control)


def cut_fragments() -> Entries:
    """Objects cut into pieces."""
    cases = {"one byte": b"x", "full": bytes(162), "three": bytes(i % 251 for i in range(400))}
    return {
        name: {
            "object": content.hex(),
            "frame_mtu": 184,
            "pieces": [body.hex() for body in fragments.split(content, 184)],
        }
        for name, content in cases.items()
    }


def objects() -> Entries:
    """A reference and a snapshot, with certificate and hash."""
    chunks, head = packet()
    counted = global_update.Counted(3, 5, head.digest, update.write_bitmap(range(2), PLAN.up.count))
    step = global_update.GlobalUpdate(
        version=6,
        adapter_hash=global_update.hash_adapter(
            plan.genesis(MODEL, RUN, PLAN), 6, np.arange(3, dtype=np.int32)
        ),
        model=MODEL[:8],
        finished=False,
        deadline_ms=60_000,
        counted=(counted,),
        chunks=(update.write_chunk(6, update.read_chunk(chunks[0]).slice),),
    )
    state = np.array([0, 1, -1, 2**31 - 1, -(2**31 - 1)], np.int32)
    whole = global_update.GlobalSnapshot(6, bytes(16), MODEL[:8], True, 0, (counted,), state)
    last = global_update.GlobalSnapshot(0, bytes(16), MODEL[:8], False, 1, (), state[:0])
    contents = {
        "reference": global_update.write_global_update(step),
        "snapshot": global_update.write_global_snapshot(whole),
        "snapshot of nothing": global_update.write_global_snapshot(last),
        "reference with a probe": global_update.write_global_update(
            replace(step, probe=step.chunks)
        ),
        "reference that returns": global_update.write_global_update(replace(step, returns_to=2)),
        "reference under keys": global_update.write_global_update(replace(step, model=b"")),
        "given adapter": global_update.write_given(
            global_update.certify(global_update.write_global_update(step)),
            np.arange(3, dtype=np.int32),
        ),
    }
    return {
        name: {
            "content": content.hex(),
            "hash": global_update.hash_global_update(content).hex(),
            "certified": global_update.certify(content).hex(),
        }
        for name, content in contents.items()
    }


def plans() -> Entries:
    """Plans as they travel, and the hash that stands before their first reference."""
    falling = replace(PLAN, learning_rate_drop_permille=900)
    silent = replace(PLAN, silence_permille=20, silence_rounds=4)
    again = replace(PLAN, manifest_repeats=1)
    endless = replace(falling, rounds=0, news_rounds=40)
    cases = {"plan": PLAN, "falling rate": falling, "with silence": silent, "manifest again": again}
    cases |= {"without end": endless}
    return {
        name: {
            "fields": dict(zip(asdict(case), plan.to_numbers(case), strict=False)),
            "model_hash": MODEL.hex(),
            "run": RUN.hex(),
            "genesis": plan.genesis(MODEL, RUN, case).hex(),
        }
        for name, case in cases.items()
    }


def coded_symbols() -> Entries:
    """Symbols of the erasure code, source and repair."""
    cases = {
        "one byte": (1, 1, (0, 1, 2, 65535)),
        "one symbol": (5, 20, (0, 1, 300)),
        "a short end": (100, 16, (0, 6, 7, 8, 65535)),
        "a full generation": (256, 2, (127, 128, 129, 1000)),
        "two generations": (257, 2, (0, 1, 128, 129, 130, 131, 65534, 65535)),
    }
    entries: Entries = {}
    for name, (size, symbol_bytes, indexes) in cases.items():
        content = generator.words((9, size), -(-size // 4)).astype("<u4").tobytes()[:size]
        layout = erasure_code.Layout(size, symbol_bytes)
        entries[name] = _symbols(content, layout, indexes)
    return entries


def link_bodies() -> Entries:
    """Messages of the link, and names of objects."""
    name = MODEL[:4]
    cases: dict[str, messages.Message] = {
        "offer": messages.Offer(15, 65534, name, 300_000, 238),
        "offer of the largest": messages.Offer(0, 0, name, 2**24 - 1, 65535),
        "symbol": messages.Symbol(0, 1, b"a symbol", is_last=False),
        "last symbol": messages.Symbol(15, 65535, b"z", is_last=True),
        "question": messages.Question(7),
        "receipt": messages.Status(name, ()),
        "status": messages.Status(name, (1, 128, 0, 7, 0, 0, 3)),
        "status of the last generation": messages.Status(name, (*[0] * 255, 128)),
        "status of all generations": messages.Status(name, (128,) * 256),
        "status of one in 128": messages.Status(name, (*[0] * 127, 1, *[0] * 127, 2)),
    }
    entries = _messages(cases, messages.write_message)
    for number in (0, 1, 0x1FFFF):
        entries[f"name of object {number}"] = {
            "number": number,
            "object": RUN.hex(),
            "name": messages.object_name(number, RUN).hex(),
        }
    return entries


def release_bodies() -> Entries:
    """The bodies of a release, and symbols of its larger generations."""
    digest = hashlib.sha256(RUN).digest()
    messages: dict[str, Any] = {
        "offer": release.ReleaseOffer(
            digest, 400_000, 233, "keyword", 7, 1_800_000_000, 0, 6554, 2, 40
        ),
        "symbol": release.ReleaseSymbol(digest[:2], 65535, b"a symbol"),
        "status of needs": release.ReleaseStatus(digest[:4], release.RECEIVING, (0, 767, 65535)),
        "status held": release.ReleaseStatus(digest[:4], release.HELD),
        "status bad": release.ReleaseStatus(digest[:4], release.BAD, (), "its loss is 3"),
    }
    writers: dict[type, Any] = {
        release.ReleaseOffer: release.write_offer,
        release.ReleaseSymbol: release.write_symbol,
        release.ReleaseStatus: release.write_status,
    }
    entries = _messages(messages, lambda message: writers[type(message)](message))
    content = generator.words((9, 1), 300).astype("<u4").tobytes()
    layout = erasure_code.Layout(len(content), 1, 1024)
    symbols = _symbols(content, layout, (0, 1199, 1200, 65535))
    del symbols["size"]
    entries["symbols"] = {**symbols, "generation_max": 1024}
    return entries


def trusted() -> tuple[identity.Identity, identity.Identity, membership.MemberList]:
    """A host, a node and their fleet, made of fixed bytes instead of random ones."""
    host = identity.make_identity("greenhouse", identity.Role.HOST, bytes(range(64)))
    node = identity.make_identity("theo", identity.Role.NODE, bytes(range(100, 164)))
    fleet = membership.MemberList(membership.found_fleet("tomatoes", host.public))
    fleet.enrol(node.public)
    return host, node, fleet


EPHEMERALS = {"theo": bytes(range(32)), "host": bytes(range(32, 64))}  # private keys


def keyed_seals() -> Entries:
    """Frames of the keyed suites in the order in which two new ends exchange them."""
    entries: Entries = {}
    for suite, layer in ((1, "end to end"), (2, "hop")):
        host, node, fleet = trusted()
        nothing = session.SealingState()
        sealing = keyed_sealing.KeyedSealing
        ends = {
            "theo": sealing(node, fleet, suite, EPHEMERALS["theo"], 7, nothing, hub="host"),
            "host": sealing(host, fleet, suite, EPHEMERALS["host"], 1 << 25, nothing, hub=None),
        }
        up, down = (3, 3 | DOWN) if suite == 1 else (1, 1)
        steps = [
            ("theo", 0, b"\x01hello"),  # becomes an opening
            ("host", 0, session.QUESTION),
            ("theo", 0, b"\x01hello"),
            ("host", 0, session.write_keys(1, group(), 1 << 25)),
            ("theo", up, b"body"),
            ("host", down, bytes(20)),
            ("host", BROADCAST, b"\xff"),
            ("theo", up, b"x" * 200),
        ]
        if suite == 1:
            steps += [("theo", up, b"of a run"), ("host", down, b"of a run")]
        counters = {"theo": 7, "host": 1 << 25}
        for number, (sender, address, body) in enumerate(steps):
            run = RUN if body == b"of a run" else b""
            for end in ends.values():
                end.bind(run)
            receiver = "host" if sender == "theo" else "theo"
            ends[sender].due(1e6 * number)  # it chooses the ephemeral key to answer to
            frame = ends[sender].seal(receiver, address, counters[sender], body)
            is_opening = len(frame) == keyed_sealing.OPENING_SIZE
            entries[f"{layer} {number}"] = {
                "suite": suite,
                "sender": sender,
                "context": address,
                "counter": counters[sender],
                "run": run.hex(),
                "body": "" if is_opening else body.hex(),
                "bytes": frame.hex(),
                "opens": not is_opening,
            }
            with suppress(WireError):
                ends[receiver].open(sender, frame)
            counters[sender] += 1
    return entries


def group() -> bytes:
    """A broadcast key as the host makes it from its random bytes."""
    fleet = trusted()[2].fleet
    seed = hkdf(EPHEMERALS["host"], fleet, b"ternmesh broadcasts", 32)
    return group_secret(seed)[0]


def trust_objects() -> Entries:
    """Identities, codes, and everything that is signed."""
    host, node, fleet = trusted()
    new = identity.make_identity("theo", identity.Role.NODE, bytes(range(64, 128)))
    place = signatures.SigningContext(fleet.fleet, RUN, MODEL)
    chunks, head = packet()
    text = enrolment.make_code(bytes(range(12)))
    code, enrolments = enrolment.read_code(text), enrolment.EnrolmentCodes()
    enrolments.issue(text, identity.Role.NODE, 1.0, 0.0)
    request = enrolment.write_request(node.public, code)
    signed = signatures.sign_update(node, place, 5, head, update.update_hash(chunks))
    receipt = control.write_control(control.Receipt(5, head.digest, b"\x07"))
    row = signatures.sign_content(host, 0, place, b"content")
    announce = control.write_control(control.Announce(RUN, 5, control.OPEN, 0, 3))
    no_run = signatures.SigningContext(fleet.fleet, bytes(8), MODEL)
    contents = {
        "identity of the host": identity.write_identity(host.public),
        "identity of a node": identity.write_identity(node.public),
        "fingerprint": node.public.fingerprint,
        "fleet": fleet.fleet,
        "rotation": membership.write_rotation(node, new, fleet.fleet),
        "membership list": membership.write_fleet(host, fleet.state),
        "list request": enrolment.write_list_request(node, fleet.fleet, 2),
        "enrolment request": request,
        "enrolment answer": enrolments.accept(request, fleet, 0.0)[1],
        "signed manifest": update.write_manifest(signed),
        "signed receipt": signatures.sign_body(host, place, node.public.fingerprint, receipt),
        "certificate": global_update.certify(b"content", (row,)),
        "signed announce": signatures.sign_body(
            host, no_run, session.group_name(group()), announce
        ),
        **host_rotation(host, node, fleet),
    }
    entries: Entries = {name: {"bytes": content.hex()} for name, content in contents.items()}
    entries["text of an identity"] = {"text": identity.identity_text(node.public)}
    entries["code"] = {"text": text}
    return entries


def host_rotation(
    host: identity.Identity, node: identity.Identity, fleet: membership.MemberList
) -> dict[str, bytes]:
    """A host's rotation to a key of fixed bytes, and the notices of the host."""
    new = identity.make_identity("greenhouse", identity.Role.HOST, bytes(range(150, 214)))
    alone = signatures.Signers((host.public,))
    rotation = host_keys.write_host_rotation(host.public, new, fleet.fleet, alone, (host,))
    hosts = fleet.hosts.follow(rotation, fleet.fleet, alone)
    frames = notices.rotation_frames((rotation,))
    own = node.public.fingerprint
    return {
        "host rotation": rotation,
        "host keys": host_keys.write_host_keys(hosts),
        **{f"host rotation, frame {number}": frame for number, frame in enumerate(frames)},
        "revoked": notices.write_notice(host, fleet.fleet, own),
    }


def activations() -> Entries:
    """What crosses the boundary of a split training; values as float32 in hex, little-endian."""
    values = np.array(
        [[0.5, -1.25, 0.75, 0.1, -0.6], [0, 0, 0, 0, 0], [3e-5, 2e-5, 0, -1e-5, 1e-6]]
    )
    cases = {
        "learn, 4 bits": (activation.LEARN, 4, bytes([3, 0, 9])),
        "learn without labels, 3 bits": (activation.LEARN, 3, b""),
        "ask, 8 bits": (activation.ASK, 8, b""),
        "answer, float32": (activation.ANSWER, 32, b""),
        "gradient up, 5 bits": (activation.GRADIENT_UP, 5, b""),
        "gradient down, 2 bits": (activation.GRADIENT_DOWN, 2, b""),
    }
    entries: Entries = {}
    for number, (name, (leg, bits, labels)) in enumerate(cases.items()):
        item = activation.Activation(leg, 70_000 + number, values.astype(np.float32), labels)
        body = activation.write_activation(item, bits)
        read = activation.read_activation(body).values
        entries[name] = {
            "leg": leg,
            "number": item.number,
            "bits": bits,
            "labels": labels.hex(),
            "values": [[value.tobytes().hex() for value in row] for row in values.astype("<f4")],
            "read": [[value.tobytes().hex() for value in row] for row in read.astype("<f4")],
            "bytes": body.hex(),
        }
    return entries


def knowledge_parts() -> Entries:
    """One part of a knowledge packet."""
    topic = knowledge.topic_of({"x": np.arange(12, dtype=np.float32)}, ("no", "yes", "maybe"))
    units = np.array([[8, 0, 0], [0, 7, 1], [4, 0, 4], [2, 2, 4], [0, 0, 8]], dtype=np.uint8)
    [part] = knowledge.cut_labels(topic, 65535, 230, units, 100)
    return {"soft labels": {"rows": units.tolist(), "bytes": knowledge.write_part(part).hex()}}


FAMILIES = {
    "philox": philox,
    "keys": keys,
    "orders": orders,
    "scales": scales,
    "trits": packed_trits,
    "codes": codes,
    "codebooks": codebooks,
    "seals": seals,
    "packets": packets,
    "controls": controls,
    "pieces": cut_fragments,
    "objects": objects,
    "plans": plans,
    "symbols": coded_symbols,
    "link": link_bodies,
    "release": release_bodies,
    "keyed": keyed_seals,
    "trust": trust_objects,
    "activations": activations,
    "knowledge": knowledge_parts,
}


def main() -> int:
    """Add what is new; refuse what differs."""
    broken = [name for family, make in FAMILIES.items() for name in _merge(family, make())]
    for name in broken:
        print(f"{name}: this code no longer gives the vector; vectors are never changed")  # noqa: T201
    return 1 if broken else 0


def _merge(family: str, made: Entries) -> list[str]:
    path = FOLDER / f"{family}.json"
    made = json.loads(json.dumps(made))  # tuples become lists, as they are in the file
    kept: Entries = json.loads(path.read_text()) if path.exists() else {}
    broken = [f"{family}: {name}" for name in kept if kept[name] != made.get(name)]
    if not broken and kept.keys() != made.keys():
        rows = [f" {json.dumps(name)}: {json.dumps(row)}" for name, row in made.items()]
        path.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    return broken


def _messages(messages: Mapping[str, Any], write: Callable[[Any], bytes]) -> Entries:
    return {
        name: {
            "type": type(message).__name__,
            "fields": _plain(asdict(message)),
            "bytes": write(message).hex(),
        }
        for name, message in messages.items()
    }


def _symbols(
    content: bytes, layout: erasure_code.Layout, indexes: tuple[int, ...]
) -> dict[str, Any]:
    symbols = erasure_code.encode_symbols(layout, MODEL[:4], content, indexes)
    return {
        "size": len(content),
        "symbol_bytes": layout.symbol_bytes,
        "name": MODEL[:4].hex(),
        "object": content.hex(),
        "symbols": {str(i): symbol.hex() for i, symbol in zip(indexes, symbols, strict=True)},
    }


def _ternary(words: Any, one_in: int) -> list[int]:
    return [(1 if word & 1 else -1) if (word >> 8) % one_in == 0 else 0 for word in words.tolist()]


def _manifest(item: update.Manifest) -> dict[str, Any]:
    fields = _plain(asdict(item))
    if not item.evaluation:
        del fields["evaluation"]  # a field that came later
    return {"fields": fields, "bytes": update.write_manifest(item).hex()}


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields under the names that they had when the vectors were made."""
    return {
        FIRST_NAMES.get(k, k): v.hex() if isinstance(v, bytes) else v for k, v in fields.items()
    }


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
