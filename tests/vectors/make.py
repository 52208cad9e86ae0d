"""Writes the golden vectors: `python tests/vectors/make.py` from the repository's root.

A new row needs its inputs alone; the script writes what this code makes of them. A row that is
whole is never changed: where this code gives something else, the script ends with 1. Then the wire
format was broken, which needs a new version.
"""

import hashlib
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, astuple, replace
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from ternmesh import generator, plan
from ternmesh.codec import encoder, entropy_coder, permutation, scale
from ternmesh.codec.entropy_coder import CODEBOOK, Coded, decode_trits, encode_trits
from ternmesh.errors import WireError
from ternmesh.federated.agreement import messages as agreement
from ternmesh.federated.agreement.voters import make_voters
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
from ternmesh.wire import (
    activation,
    control,
    fragments,
    global_update,
    knowledge,
    proof,
    release,
    update,
)
from ternmesh.wire.frame import BROADCAST, DOWN, Header, seal_open

FOLDER = Path(__file__).parent
FIRST_NAMES = {"address": "context", "chunks": "shares", "global_hash": "reference"}
MODEL = bytes(range(32))
RUN = bytes.fromhex("a1a2a3a4a5a6a7a8")
PLAN = plan.make_plan(
    3000, rounds=20, local_steps=8, learning_rate=0.002, frame_mtu=184, up_zeros=0.9
)
Row = dict[str, Any]
Entries = dict[str, Row]


def philox(row: Row) -> Row:
    """Random123's known answers, and words of a stream where it begins and crosses 2**32."""
    if "counter" in row:
        (k0, k1), counter = (_words(row[name]) for name in ("key", "counter"))
        lanes: Any = tuple(np.array([word], np.uint64) for word in counter)
        words = [int(lane[0]) for lane in generator.philox((k0, k1), lanes)]
    else:
        words = generator.words(tuple(row["key"]), len(row["words"]), row["start"]).tolist()
    return {"words": [f"{word:08x}" for word in words]}


def keys(row: Row) -> Row:
    """Key derivation."""
    key = generator.derive_key(row["label"], *map(bytes.fromhex, row["parts"]))
    return {"key": [f"{word:08x}" for word in key]}


def orders(row: Row) -> Row:
    """Permutations: the first places, and a hash over all as little-endian u32."""
    places = permutation.order(MODEL, row["round"], row["dimension"])
    return {"first": places[:16].tolist(), "sha256": _sha(places.astype("<u4").tobytes())}


def scales(row: Row) -> Row:
    """Scales: the code of a number, and what a code is worth in units of 2**-24."""
    code = scale.encode_scale(row["value"])
    return {"code": code, "units": scale.decode_scale(code)}


def packed_trits(row: Row) -> Row:
    """Five trits to a byte."""
    return {"bytes": entropy_coder.pack_trits(np.array(row["trits"], np.int8)).hex()}


def codes(row: Row) -> Row:
    """Coded shares of every form."""
    coded = encode_trits(np.array(row["values"], np.int8))
    return {"count": coded.count, "coding": coded.coding, "bytes": coded.data.hex()}


def codebooks(row: Row) -> Row:
    """Slices in the codebook form: the names, and the signs that they stand for."""
    values = decode_trits(Coded(row["size"], CODEBOOK, bytes.fromhex(row["bytes"])), row["size"])
    return {"minus": np.packbits(values < 0, bitorder="little").tobytes().hex()}


def seals(row: Row) -> Row:
    """Sealed frames."""
    header = Header(row["context"], row["counter"], row["suite"], row["key_phase"])
    return {"bytes": seal_open(header, bytes.fromhex(row["body"])).hex()}


def pieces(row: Row) -> Row:
    """Objects cut into pieces."""
    bodies = fragments.split(bytes.fromhex(row["object"]), row["frame_mtu"])
    return {"pieces": [body.hex() for body in bodies]}


def objects(row: Row) -> Row:
    """References, snapshots and what a board gives a host, with certificate and hash."""
    content = bytes.fromhex(row["content"])
    name = global_update.hash_global_update(content)
    return {"hash": name.hex(), "certified": global_update.certify(content).hex()}


def plans(row: Row) -> Row:
    """Plans as they travel, and the hash that stands before their first reference."""
    model, run = bytes.fromhex(row["model_hash"]), bytes.fromhex(row["run"])
    return {"genesis": plan.genesis(model, run, plan.Plan(**row["fields"])).hex()}


def symbols(row: Row) -> Row:
    """Symbols of the erasure code, source and repair."""
    content = bytes.fromhex(row["object"])
    layout = erasure_code.Layout(len(content), row["symbol_bytes"], row.get("generation_max", 128))
    indexes = [int(index) for index in row["symbols"]]
    made = erasure_code.encode_symbols(layout, bytes.fromhex(row["name"]), content, indexes)
    return {"symbols": {str(i): each.hex() for i, each in zip(indexes, made, strict=True)}}


def controls(row: Row) -> Row:
    """Each control message."""
    return {"bytes": control.write_control(_value(getattr(control, row["type"]), row)).hex()}


def link_bodies(row: Row) -> Row:
    """Messages of the link, and names of objects."""
    if "number" in row:
        return {"name": messages.object_name(row["number"], bytes.fromhex(row["object"])).hex()}
    return {"bytes": messages.write_message(_value(getattr(messages, row["type"]), row)).hex()}


def release_bodies(row: Row) -> Row:
    """The bodies of a release, and symbols of its larger generations."""
    if "symbols" in row:
        return symbols(row)
    write: dict[str, Any] = {
        "ReleaseOffer": release.write_offer,
        "ReleaseSymbol": release.write_symbol,
        "ReleaseStatus": release.write_status,
    }
    return {"bytes": write[row["type"]](_value(getattr(release, row["type"]), row)).hex()}


def activations(row: Row) -> Row:
    """What crosses the boundary of a split training; values as float32 in hex, little-endian."""
    values = np.frombuffer(bytes.fromhex("".join(map("".join, row["values"]))), "<f4")
    values = values.reshape(len(row["values"]), -1)
    item = activation.Activation(row["leg"], row["number"], values, bytes.fromhex(row["labels"]))
    body = activation.write_activation(item, row["bits"])
    read = activation.read_activation(body).values.astype("<f4")
    return {"read": [[v.tobytes().hex() for v in each] for each in read], "bytes": body.hex()}


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
    most = update.Manifest(
        65535, MODEL[:8], 1 << 20, b"\x01\x02\x03\x04", 1024, signature=bytes(range(64))
    )
    region = replace(most, members=0x0201, root=bytes(range(16)), state=bytes(range(16, 32)))
    evaluated = replace(head, evaluation=((1, 325), (2, 9417)))
    return {
        "update": {"round": 5, "shares": [body.hex() for body in chunks]},
        "digest": {
            "shares": [body.hex() for body in chunks],
            "sha256": update.update_hash(chunks).hex(),
            "digest": update.update_digest(chunks).hex(),
        },
        "manifest": _manifest(head),
        "manifest with an evaluation": _manifest(evaluated),
        "manifest of an aggregator": _manifest(region),
        "manifest of an aggregator with an evaluation": _manifest(
            replace(region, evaluation=((1, 325),))
        ),
    }


def proofs() -> Entries:
    """The rows of a round, their root, and the proof of what is counted of an address."""
    rows = [
        global_update.Counted(address, 5, bytes((address, 2, 3, 4)), b"\x03")
        for address in (1, 2, 7, 8, 20, 33)
    ]
    region = replace(rows[4], root=bytes(range(16)))
    entries: Entries = {}
    for name, address in (("one leaf", 1), ("three leaves", 20), ("not counted", 9)):
        kept = rows[:3] if address == 1 else [*rows[:4], region, rows[5]]
        [made] = proof.RoundRows(6, (), (), tuple(kept)).proofs([address])
        entries[name] = {
            "rows": [
                [v.hex() if isinstance(v, bytes) else v for v in r] for r in map(astuple, kept)
            ],
            "root": proof.Tree(kept).root.hex(),
            "address": address,
            "bytes": proof.write_proof(made).hex(),
        }
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


def knowledge_parts() -> Entries:
    """One part of a knowledge packet."""
    topic = knowledge.topic_of({"x": np.arange(12, dtype=np.float32)}, ("no", "yes", "maybe"))
    labels = np.array([0, 1, 0, 2, 2])
    [part] = knowledge.cut_labels(topic, 65535, 230, labels, 3, 100)
    return {"labels": {"classes": labels.tolist(), "bytes": knowledge.write_part(part).hex()}}


ROWS: dict[str, Callable[[Row], Row]] = {
    "philox": philox,
    "keys": keys,
    "orders": orders,
    "scales": scales,
    "trits": packed_trits,
    "codes": codes,
    "codebooks": codebooks,
    "seals": seals,
    "controls": controls,
    "pieces": pieces,
    "objects": objects,
    "plans": plans,
    "symbols": symbols,
    "link": link_bodies,
    "release": release_bodies,
    "activations": activations,
}


def agreement_messages() -> Entries:
    """Each message of the voters, signed by keys made of fixed bytes; certificates of three."""
    voters = make_voters(RUN, ("ada", "bob", "cy", "dee"), "bft")
    keys = [
        identity.make_identity(n, identity.Role.HOST, bytes(range(i, i + 64)))
        for i, n in enumerate(voters.names)
    ]
    digest, previous, nonce = (
        bytes(range(32)),
        bytes(range(32, 64)),
        b"\x08\x07\x06\x05\x04\x03\x02\x01",
    )

    def signed(message: Any) -> Any:
        return agreement.sign_message(voters, message, keys[message.voter].sign)

    def certificate(kind: Any, term: int, version: int) -> agreement.QuorumCertificate:
        rows = b"".join(signed(kind(n, term, version, digest)).signature for n in (0, 1, 3))
        return agreement.QuorumCertificate(term, version, digest, (0, 1, 3), rows)

    lock, proof = certificate(agreement.Prepare, 4, 9), certificate(agreement.Commit, 3, 8)
    vote = 2, 5, 9, digest
    messages = {
        "propose": agreement.Propose(1, 5, 9, digest, previous, None),
        "propose with a proof": agreement.Propose(1, 5, 9, digest, previous, lock),
        "prepare": agreement.Prepare(*vote),
        "commit": agreement.Commit(*vote),
        "suspect": agreement.Suspect(3, 4),
        "new term": agreement.NewTerm(3, 5, 8, None),
        "new term with a lock": agreement.NewTerm(3, 5, 8, lock),
        "ask": agreement.DecisionWanted(0, 8),
        "decision": agreement.Decision(1, proof),
        "alive": agreement.Alive(1, 5, 8),
        "question": agreement.StartQuestion(2, nonce),
        "answer": agreement.StartAnswer(
            0, 2, nonce, 5, 9, proof, lock, signed(agreement.Commit(*vote)).data
        ),
        "answer that knows nothing": agreement.StartAnswer(0, 2, nonce, 0, 0, None, None, b""),
    }
    return {
        "voters": {"names": voters.names, "statement": voters.statement_start.hex()},
        **{
            name: {"type": type(message).__name__, "bytes": signed(message).data.hex()}
            for name, message in messages.items()
        },
    }


FAMILIES: dict[str, Callable[[], Entries]] = {
    "packets": packets,
    "proofs": proofs,
    "keyed": keyed_seals,
    "trust": trust_objects,
    "knowledge": knowledge_parts,
    "agreement": agreement_messages,
}


def main() -> int:
    """Add what is new; refuse what differs."""
    broken = [name for family in (*ROWS, *FAMILIES) for name in _merge(family)]
    for name in broken:
        print(f"{name}: this code no longer gives the vector; vectors are never changed")  # noqa: T201
    return 1 if broken else 0


def _merge(family: str) -> list[str]:
    path = FOLDER / f"{family}.json"
    kept: Entries = json.loads(path.read_text()) if path.exists() else {}
    if family in ROWS:
        made = {name: row | ROWS[family](row) for name, row in kept.items()}
    else:
        made = json.loads(json.dumps(FAMILIES[family]()))  # tuples become lists, as in the file
    broken = [f"{family}: {name}" for name in kept if not _agrees(kept[name], made.get(name))]
    if not broken and kept != made:
        rows = [f" {json.dumps(name)}: {json.dumps(row)}" for name, row in made.items()]
        path.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    return broken


def _agrees(kept: Any, made: Any) -> bool:
    """Whether all that a row already says is so; what is null or absent is not known yet."""
    if isinstance(kept, dict) and isinstance(made, dict):
        return all(_agrees(value, made.get(name)) for name, value in kept.items())
    if isinstance(kept, list) and isinstance(made, list) and len(kept) == len(made):
        return all(map(_agrees, kept, made))
    return kept is None or bool(kept == made)


def _value(kind: Any, row: Row) -> Any:
    """The message of a row: its fields have their first names, and bytes are in hex there."""
    hints, names = get_type_hints(kind), {first: name for name, first in FIRST_NAMES.items()}
    fields = {names.get(first, first): value for first, value in row["fields"].items()}
    fields = {n: bytes.fromhex(v) if hints[n] is bytes else v for n, v in fields.items()}
    return kind(**{n: tuple(v) if isinstance(v, list) else v for n, v in fields.items()})


def _words(texts: list[str]) -> list[int]:
    return [int(text, 16) for text in texts]


def _manifest(item: update.Manifest) -> dict[str, Any]:
    fields = _plain(asdict(item))
    for name in ("evaluation", "members", "root", "state"):  # fields that came later
        if not fields[name]:
            del fields[name]
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
