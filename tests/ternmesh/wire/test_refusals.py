"""What each reader of the wire and of the link refuses: bytes, and the reason that is counted."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cbor2
import numpy as np
import pytest

from ternmesh.errors import SealError, WireError
from ternmesh.link.messages import Offer, Status, read_message, write_message
from ternmesh.wire import control, release
from ternmesh.wire.activation import (
    ANSWER,
    GRADIENT,
    LEARN,
    WHOLE,
    Activation,
    read_activation,
    write_activation,
)
from ternmesh.wire.control import read_control
from ternmesh.wire.fragments import Reassembler, fragment_size, object_max
from ternmesh.wire.frame import BODY_MAX, Header, open_seal, seal_open
from ternmesh.wire.global_update import GlobalUpdate, read_object, split_certificate
from ternmesh.wire.knowledge import PROBE_MAX, Part, Topic, read_part, write_part
from ternmesh.wire.proof import read_proof
from ternmesh.wire.update import Manifest, read_bitmap, read_chunk, read_manifest, write_manifest

Rows = dict[str, tuple[bytes, str]]
FRAMES: Rows = {  # R3-1, R3-2
    "nothing": (b"", "length"),
    "no body": (bytes(14), "length"),
    "too long": (bytes(4097), "length"),
    "version 0": (b"\x00" + bytes(20), "version"),
    "version 2": (b"\x40" + bytes(20), "version"),
    "the reserved bit": (b"\x21" + bytes(20), "version"),
    "a keyed suite": (b"\x24" + bytes(20), "suite"),
    "a suite to come": (b"\x3c" + bytes(20), "suite"),
    "a wrong tag": (b"\x20" + bytes(20), "seal"),
}


def array(*items: bytes) -> bytes:
    """A control message with chosen encodings of its items."""
    return b"\x01" + bytes([0x80 + len(items)]) + b"".join(items)


ROUND, WORD, LONG = b"\x07", b"\x65other", b"\x1b" + bytes(7) + b"\x07"
HELLO = control.Hello("theo", b"instance", b"modelmod", b"runrunru", 3, b"referencereferen", 120)
FIELDS: list[dict[str, Any]] = [
    {"name": name} for name in ("", "a" * 33, "a/b", "a\n", "ä", "../up", "+", ".a", "-a", "a\0b")
]
FIELDS += [{"instance": bytes(7)}, {"model": bytes(9)}, {"run": b""}, {"global_hash": bytes(15)}]
FIELDS += [{"version": -1}, {"version": 1 << 32}, {"samples": 1.0}, {"samples": True}]
ADDRESSES = (0, 0x7FFF, 0x8001, 0xFFFF, 0x10000)
CONTROLS: Rows = (
    {  # R4.3-2, R4.3-3
        "nothing": (b"", "kind"),
        "another kind": (b"\x02" + array(b"\x03", ROUND, WORD)[1:], "kind"),
        "1,025 bytes": (array(b"\x03", ROUND, b"\x79\x03\xfa" + b"a" * 1018), "length"),
    }
    | {
        name: (body, "control")
        for name, body in {
            "no item": b"\x01",
            "not an array": b"\x01\x03",
            "an empty array": b"\x01\x80",
            "the type after the last": array(b"\x0a", ROUND, WORD),
            "a huge type": array(b"\x1b" + b"\xff" * 8, ROUND, WORD),
            "a negative type": array(b"\x20", ROUND, WORD),
            "a field too few": array(b"\x03", ROUND),
            "a field too many": array(b"\x03", ROUND, WORD, b"\x00"),
            "a silence of no round": array(b"\x05", WORD),
            "a trailing byte": array(b"\x03", ROUND, WORD) + b"\x00",
            "cut short": array(b"\x03", ROUND, WORD)[:-1],
            "integer in two bytes": array(b"\x03", b"\x18\x07", WORD),
            "integer in nine bytes": array(b"\x03", LONG, WORD),
            "length in two bytes": array(b"\x03", ROUND, b"\x78\x05other"),
            "array length in two bytes": b"\x01\x98\x03\x03" + ROUND + WORD,
            "a negative number": array(b"\x03", b"\x26", WORD),
            "more than 32 bits": array(b"\x03", b"\x1b\x00\x00\x00\x01\x00\x00\x00\x00", WORD),
            "a bignum": array(b"\x03", b"\xc2\x41\x07", WORD),
            "a float": array(b"\x03", b"\xf9\x47\x00", WORD),
            "nan": array(b"\x03", b"\xf9\x7e\x00", WORD),
            "true": array(b"\x03", b"\xf5", WORD),
            "null": array(b"\x03", b"\xf6", WORD),
            "undefined": array(b"\x03", b"\xf7", WORD),
            "a simple value": array(b"\x03", b"\xe0", WORD),
            "a reserved head": array(b"\x03", b"\x1c", WORD),
            "break": array(b"\x03", b"\xff", WORD),
            "a map": b"\x01\xa1\x03\x07",
            "duplicate keys": array(b"\x03", b"\xa2\x01\x01\x01\x02", WORD),
            "an indefinite array": b"\x01\x9f\x03" + ROUND + WORD + b"\xff",
            "an indefinite text": array(b"\x03", ROUND, b"\x7f\x65other\xff"),
            "nested arrays": b"\x01" + b"\x81" * 500 + b"\x03",
            "nested maps": b"\x01" + b"\xa1\x01" * 400 + b"\x03",
            "nested tags": b"\x01" + b"\xc1" * 500 + b"\x03",
            "an array of 2**32": b"\x01\x9a\xff\xff\xff\xff",
            "a bytes bomb": array(b"\x03", b"\x5b\x00\x00\x00\xff" + b"\xff" * 4),
            "a text bomb": array(b"\x03", ROUND, b"\x7a\xff\xff\xff\xff"),
            "a date": array(b"\x03", b"\xc0\x74" + b"2013-03-21T20:04:00Z", WORD),
            "a huge decimal": array(b"\x03", b"\xc4\x82\x1a\x7f\xff\xff\xff\x01", WORD),
            "a regular expression": array(b"\x03", ROUND, b"\xd8\x23\x66(a+)+$"),
            "an address": array(b"\x03", ROUND, b"\xd9\x01\x04\x44\x7f\x00\x00\x01"),
            "a string reference": array(b"\x03", ROUND, b"\xd9\x01\x00\x82\x65other\xd8\x19\x00"),
            "a shared cycle": b"\x01\xd8\x1c\x83\x03\xd8\x1d\x00" + WORD,
            "the self-described tag": b"\x01\xd9\xd9\xf7" + array(b"\x03", ROUND, WORD)[1:],
            "an unknown tag": array(b"\x03", b"\xda\x00\x12\x34\x56\x07", WORD),
            "bad utf-8": array(b"\x03", ROUND, b"\x62\xc3\x28"),
            "a word in capitals": array(b"\x03", ROUND, b"\x65Other"),
            "an empty word": array(b"\x03", ROUND, b"\x60"),
            "a word of 33 letters": array(b"\x03", ROUND, b"\x78\x21" + b"a" * 33),
            "a word with a newline": array(b"\x03", ROUND, b"\x66other\n"),
            "bytes for a word": array(b"\x03", ROUND, b"\x45other"),
            "a digest of 5 bytes": array(b"\x02", ROUND, b"\x45abcde", b"\x41\x01"),
            "an empty bitmap": array(b"\x02", ROUND, b"\x44abcd", b"\x40"),
            "a bitmap of 129 bytes": array(b"\x02", ROUND, b"\x44abcd", b"\x58\x81" + bytes(129)),
            "a phase of 3": array(b"\x04", b"\x48runrunru", ROUND, b"\x03", b"\x00"),
            "a version with a newline": array(b"\x08", b"\x641.0\n", ROUND, b"\x80", b"\x80"),
            "settings in settings": array(b"\x09", ROUND, b"\x81\x81\x01"),
            "33 settings": array(b"\x09", ROUND, b"\x98\x21" + bytes(33)),
            **{str(row): control.write_control(replace(HELLO, **row)) for row in FIELDS},
            **{
                f"address {address:#x}": control.write_control(
                    control.Welcome(bytes(8), address, bytes(8), 0, 0, 0, ())
                )
                for address in ADDRESSES
            },
        }.items()
    }
)
PLAIN = Manifest(1, b"modelmod", 10, b"abcd", 3)
SUMMED = write_manifest(replace(PLAIN, members=3, root=bytes(range(16)), state=bytes(16)))
EVALUATED = write_manifest(replace(PLAIN, evaluation=((1, 325), (2, 9417))))


def with_bytes(body: bytes, at: int, data: bytes) -> bytes:
    return body[:at] + data + body[at + len(data) :]


MANIFESTS: Rows = {  # R4.2-1, R4.2-5
    "nothing": (b"", "length"),
    "another kind": (with_bytes(SUMMED, 0, b"\x02"), "length"),
    "a byte less": (SUMMED[:-1], "length"),
    "a byte more": (SUMMED + b"\x00", "length"),
    "an unknown flag": (with_bytes(SUMMED, 21, b"\x60"), "length"),
    "members without their flag": (with_bytes(SUMMED, 21, b"\x00"), "length"),
    "a state cut short": (SUMMED[:55] + SUMMED[56:], "length"),
    "no samples": (with_bytes(SUMMED, 11, bytes(4)), "manifest"),
    "2**20 + 1 samples": (with_bytes(SUMMED, 11, b"\x01\x00\x10\x00"), "manifest"),
    "no member": (with_bytes(SUMMED, 22, bytes(2)), "manifest"),
    "an evaluation without its flag": (with_bytes(EVALUATED, 21, b"\x00"), "length"),
    "a flag alone": (with_bytes(write_manifest(PLAIN), 21, b"\x80"), "length"),
    "another length of evaluation": (with_bytes(EVALUATED, 22, b"\x05"), "length"),
    "no value": (EVALUATED[:22] + b"\x00" + bytes(64), "length"),
    "a part of a value": (EVALUATED[:22] + b"\x04" + bytes(4 + 64), "length"),
    "six values": (EVALUATED[:22] + b"\x12" + bytes(18 + 64), "length"),
    "a key twice": (with_bytes(EVALUATED, 26, b"\x01"), "manifest"),
}
CHUNKS: Rows = {  # R4.1-1, R4.1-2
    "nothing": (b"", "length"),
    "a byte less": (b"\x02" + bytes(8), "length"),
    "another kind": (b"\x03" + bytes(9), "length"),
    "too long": (b"\x02" + bytes(BODY_MAX), "length"),
    "an exponent of 31": (bytes.fromhex("02 0000 0000 ffff 0100 00"), "scale"),
    "a mantissa that is not normal": (bytes.fromhex("02 0000 0000 0108 0100 00"), "scale"),
    "nonzeros without a scale": (bytes.fromhex("02 0000 0000 0000 0100 00"), "scale"),
    "a scale without nonzeros": (bytes.fromhex("02 0000 0000 0100 0000 00"), "scale"),
}


def activation(change: dict[int, int], bits: int = 4) -> bytes:
    """Two samples of three numbers, with some bytes changed."""
    values = np.array([[1, -2, 7], [0, 0.5, 0.25]], np.float32)
    content = bytearray(write_activation(Activation(LEARN, 5, values, b"\x01\x02"), bits))
    for place, byte in change.items():
        content[place] = byte
    return bytes(content)


ACTIVATIONS: Rows = {  # R10.1-1, R10.1-2
    "nothing": (b"", "length"),
    "a head cut short": (activation({})[:9], "length"),
    "another kind": (activation({0: 0x02}), "length"),
    "a label less": (activation({})[:-1], "length"),
    "a label more": (activation({}) + b"\x00", "length"),
    "labels in an answer": (activation({1: ANSWER}), "length"),
    "no such leg": (activation({1: GRADIENT + 1}), "shape"),
    "one bit a number": (activation({6: 1}), "shape"),
    "no samples": (activation({7: 0}), "shape"),
    "no width": (activation({8: 0}), "shape"),
    "an infinite scale": (activation({10: 0x80, 11: 0x7F}), "payload"),
    "a scale of NaN": (activation({10: 0xC0, 11: 0x7F}), "payload"),
    "a scale of -1": (activation({10: 0x80, 11: 0xBF}), "payload"),
    "a tiny scale": (activation({10: 0x01, 11: 0x00}), "payload"),
    "steps without a scale": (activation({10: 0x00, 11: 0x00}), "payload"),
    "steps that overflow": (activation({10: 0x7F, 11: 0x7F}), "payload"),
    "padding, and a step of 8": (activation({15: 0xF0 | 15}), "payload"),
    "padding": (activation({15: 0x10 | 14}), "payload"),
    "a scale without steps": (activation({14: 0x77, 15: 0x07}), "payload"),
    "NaN": (activation({10: 0, 11: 0, 12: 0xC0, 13: 0x7F}, WHOLE), "payload"),
}
MTU = 64
SIZE = fragment_size(MTU)


def fragment(size: int, index: int, data: bytes) -> bytes:
    return b"\x04name" + size.to_bytes(4, "little") + index.to_bytes(2, "little") + data


FRAGMENTS: Rows = {  # R4.4-2
    "its kind alone": (b"\x04", "length"),
    "a head alone": (fragment(10, 0, b""), "length"),
    "an empty object": (fragment(0, 0, b"x"), "piece"),
    "a large object": (fragment(1001, 0, bytes(SIZE)), "piece"),
    "2**32 - 1 bytes": (fragment(0xFFFFFFFF, 0, bytes(SIZE)), "piece"),
    "65,536 fragments": (fragment(object_max(MTU) + 1, 0, bytes(SIZE)), "piece"),
    "a byte less": (fragment(100, 0, bytes(SIZE - 1)), "piece"),
    "a byte more": (fragment(100, 0, bytes(SIZE + 1)), "piece"),
    "a byte more at the end": (fragment(100, 2, bytes(100 - 2 * SIZE + 1)), "piece"),
    "a place behind the end": (fragment(100, 3, b"x"), "piece"),
    "a place behind a full end": (fragment(SIZE, 1, b"x"), "piece"),
    "another content than it names": (fragment(3, 0, b"abc"), "piece"),
}


def with_head(content: object, tail: bytes = b"\x00\x00") -> bytes:
    encoded = cbor2.dumps(content, canonical=True)
    return b"\x01" + len(encoded).to_bytes(4, "little") + encoded + tail


GOOD = [1, bytes(16), bytes(8), 0, 0, []]
ROW = [1, 0, bytes(4), b"\x01"]
OBJECTS: Rows = {  # R4.5-6
    name: (body, "reference")
    for name, body in {
        "nothing": b"",
        "a head of 2**32 bytes": b"\x01\xff\xff\xff\xff" + bytes(50),
        "a head above its limit": b"\x01\x01\x00\x40\x00" + bytes((1 << 22) + 50),
        "another kind": b"\x03" + with_head(GOOD)[1:],
        "a snapshot that returns": b"\x02" + with_head([7, *GOOD[1:], 1], bytes(40))[1:],
        "a head that is no array": with_head(5),
        "a field too few": with_head(GOOD[:5]),
        "a short hash": with_head([1, bytes(15), bytes(8), 0, 0, []]),
        "a long model": with_head([1, bytes(16), bytes(9), 0, 0, []]),
        "finished is 2": with_head([1, bytes(16), bytes(8), 2, 0, []]),
        "finished is true": with_head([1, bytes(16), bytes(8), True, 0, []]),
        "rows that are no array": with_head([*GOOD[:5], 7]),
        "rows that are bytes": with_head([*GOOD[:5], b"abc"]),
        "a row that is no array": with_head([*GOOD[:5], [7]]),
        "a row too short": with_head([*GOOD[:5], [ROW[:3]]]),
        "a row with a long digest": with_head([*GOOD[:5], [[1, 0, bytes(5), b""]]]),
        "a row within a row": with_head([*GOOD[:5], [[ROW, 0, bytes(4), b""]]]),
        "a row with no root": with_head([*GOOD[:5], [[*ROW, b""]]]),
        "a row with a short root": with_head([*GOOD[:5], [[*ROW, bytes(15)]]]),
        "a row with two roots": with_head([*GOOD[:5], [[*ROW, bytes(16), bytes(16)]]]),
        "an empty root": with_head([*GOOD[:5], b""]),
        "a long root": with_head([*GOOD[:5], bytes(17)]),
        "a snapshot with a root": b"\x02" + with_head([*GOOD[:5], bytes(16)], bytes(40))[1:],
        "16,385 rows": with_head([*GOOD[:5], [ROW] * 16_385]),
        "a return to the version before": with_head([*GOOD, 0]),
        "a return to itself": with_head([*GOOD, 1]),
        "a return to no number": with_head([7, *GOOD[1:], b"1"]),
        "a return below zero": with_head([7, *GOOD[1:], -1]),
        "a return to a truth": with_head([7, *GOOD[1:], True]),
        "a return to nothing": with_head([7, *GOOD[1:], None]),
        "two returns": with_head([7, *GOOD[1:], 1, 2]),
        "a head that ends early": with_head(GOOD)[:10],
        "a head whose CBOR ends early": b"\x01\x05\x00\x00\x00" + with_head(GOOD)[5:10] + bytes(2),
        "a head with a byte more": b"\x01\x20\x00\x00\x00" + cbor2.dumps(GOOD) + bytes(3),
        "no count of shares": with_head(GOOD, b""),
        "1,025 shares": with_head(GOOD, b"\x01\x04" + bytes(2 * 1025)),
        "a share that is not there": with_head(GOOD, b"\x01\x00"),
        "a share cut short": with_head(GOOD, b"\x01\x00\x05\x00abc"),
        "a share of 65,535 bytes": with_head(GOOD, b"\x01\x00\xff\xffabc"),
        "a trailing byte": with_head(GOOD, b"\x00\x00\x00"),
        "a probe without chunks": with_head(GOOD, b"\x00\x00\x00\x00"),
        "a byte after the probe": with_head(GOOD, b"\x00\x00\x01\x00\x01\x00a\x00"),
    }.items()
}


def with_leaf(*fields: object, via: object = ()) -> bytes:
    return b"\x05" + with_head([1, via, fields], b"")[1:]


LEAF_ROW = [8, 1, bytes(4), b"\x01", b""]
PROOFS: Rows = {  # R4.6-6
    name: (body, "reference")
    for name, body in {
        "nothing": b"",
        "another kind": b"\x04" + with_leaf(1, 2, b"", *LEAF_ROW)[1:],
        "a byte more": with_leaf(1, 2, b"", *LEAF_ROW) + b"\x00",
        "a byte less": with_leaf(1, 2, b"", *LEAF_ROW)[:-1],
        "an aggregator without an address": with_leaf(1, 2, b"", via=[0]),
        "four aggregators": with_leaf(1, 2, b"", via=[1, 2, 3, 4]),
        "five leaves": b"\x05" + with_head([1, [], *[[1, 2, b""]] * 5], b"")[1:],
        "a leaf behind the last": with_leaf(2, 2, b""),
        "too many leaves": with_leaf(1, 4097, b""),
        "a part of a hash": with_leaf(1, 2, bytes(15)),
        "13 hashes": with_leaf(1, 2, bytes(13 * 16)),
        "a part of a row": with_leaf(1, 2, b"", *LEAF_ROW[:4]),
        "nine rows": with_leaf(1, 2, b"", *LEAF_ROW * 9),
        "a row of another leaf": with_leaf(0, 2, b"", *LEAF_ROW),
        "a root that is no bytes": with_leaf(1, 2, b"", *LEAF_ROW[:4], 0),
        "a short root": with_leaf(1, 2, b"", *LEAF_ROW[:4], bytes(15)),
        "a leaf that is no array": b"\x05" + with_head([1, [], 7], b"")[1:],
    }.items()
}
CERTIFICATES: Rows = {  # R4.5-6
    str(number): (data, "reference")
    for number, data in enumerate(
        (b"", b"\x00", b"x\x00", bytes(65) + b"\x01", b"x" * 65 + b"\x02", b"x" * 1200 + b"\x11")
    )
}
OFFER = write_message(Offer(1, 2, b"name", 300, 30))
STATUS = b"\x07name"
LINK: Rows = {  # R8.2-3
    name: (body, "link")
    for name, body in {
        "an offer cut short": OFFER[:-1],
        "an offer with a byte more": OFFER + b"\0",
        "an offer in slot 16": OFFER[:1] + b"\x10" + OFFER[2:],
        "an offer of nothing": write_message(Offer(1, 2, b"name", 0, 30)),
        "an offer without symbols": write_message(Offer(1, 2, b"name", 300, 0)),
        "a symbol without data": b"\x50\x00\x00",
        "a symbol cut short": b"\x6f",
        "a question of no slot": b"\x08",
        "a question of two slots": b"\x08\x01\x00",
        "a question of slot 255": b"\x08\xff",
        "a status cut short": b"\x07nam",
        "a zero": STATUS + b"\x00",
        "a zero first": STATUS + b"\x00\x01",
        "a zero at the end": STATUS + b"\x81",
        "zeros at the end": STATUS + b"\x01\x81",
        "two bytes for one": STATUS + b"\x81\x81\x01",
        "a full one last": STATUS + b"\x81\xff\x01",
        "257 needs": STATUS + b"\x01" * 257,
        "many zeros": STATUS + b"\xff" * 4000 + b"\x01",
    }.items()
}
RELEASE = release.ReleaseOffer(
    bytes(range(32)), 400_000, 200, "keyword", 7, 1_800_000_000, 1, 65_536, 2, 40_000
)
OFFERED: list[dict[str, Any]] = [{"digest": b"short"}, {"size": 0}, {"name": "no name"}]
OFFERED += [{"version": 0}, {"stage": 3}, {"tries": 65_537}, {"asked": 3}]
RELEASES: Rows = {
    str(row): (release.write_offer(replace(RELEASE, **row)), "release") for row in OFFERED
}
PARTS: Rows = {
    "rows after the largest probe set": (
        write_part(Part(1, Topic(1, 2), 0, PROBE_MAX - 2, 3, b"x")),
        "knowledge",
    )
}
READERS: list[tuple[str, Callable[[bytes], object], Rows]] = [
    ("frame", open_seal, FRAMES),
    ("control", read_control, CONTROLS),
    ("manifest", read_manifest, MANIFESTS),
    ("chunk", read_chunk, CHUNKS),
    ("activation", read_activation, ACTIVATIONS),
    ("fragment", lambda body: Reassembler(MTU, object_max=1000).add(body), FRAGMENTS),
    ("object", lambda body: read_object(body, 10), OBJECTS),
    ("proof", read_proof, PROOFS),
    ("certificate", split_certificate, CERTIFICATES),
    ("link", read_message, LINK),
    ("offer", release.read_offer, RELEASES),
    ("part", read_part, PARTS),
]


@pytest.mark.parametrize(
    ("read", "body", "reason"),
    [
        pytest.param(read, *row, id=f"{what}: {name}")
        for what, read, rows in READERS
        for name, row in rows.items()
    ],
)
def test_what_is_refused(read: Callable[[bytes], object], body: bytes, reason: str) -> None:
    with pytest.raises(WireError) as caught:
        read(body)
    assert caught.value.reason == reason
    assert isinstance(caught.value, SealError) == (reason == "seal")


@pytest.mark.parametrize(("data", "count"), [(b"", 1), (b"\x01\x00", 8), (b"\x10", 4)])
def test_other_bytes_are_not_a_bitmap(data: bytes, count: int) -> None:
    with pytest.raises(WireError):
        read_bitmap(data, count)


def test_what_the_tables_change_is_good() -> None:
    assert read_control(array(b"\x03", ROUND, WORD)) == control.Refusal(7, "other")
    assert read_control(control.write_control(HELLO)) == HELLO
    step = read_object(with_head([*GOOD[:5], [ROW] * 16_384], b"\x01\x00\x03\x00abc"), 10)
    assert isinstance(step, GlobalUpdate)
    assert step.chunks == (b"abc",)
    assert len(read_proof(with_leaf(1, 2, bytes(12 * 16), *LEAF_ROW * 8)).leaves[0].rows) == 8
    assert read_activation(activation({})).number == 5
    assert read_message(STATUS + b"\x01" * 256) == Status(b"name", (1,) * 256)
    assert release.read_offer(release.write_offer(RELEASE)) == RELEASE
    last = Part(1, Topic(1, 2), 0, PROBE_MAX - 2, 2, b"x")
    assert read_part(write_part(last)) == last
    longest = fragment(object_max(MTU), 0, bytes(SIZE))
    assert Reassembler(MTU, object_max=1 << 30).add(longest) is None
    frame = seal_open(Header(1, (1 << 40) + 5), bytes(BODY_MAX))
    assert open_seal(frame) == (Header(1, 5), bytes(BODY_MAX)), "the counter's low 24 bits travel"


@pytest.mark.parametrize("tag", [2, 4, 30, 55799, 1 << 40])  # 30: a rational
def test_plain_values_have_no_tags(tag: int) -> None:
    value = {"a": [1.5, None, b"x", -7]}
    assert control.read_plain(cbor2.dumps(value)) == value
    with pytest.raises((ValueError, cbor2.CBORError)):
        control.read_plain(cbor2.dumps([1, cbor2.CBORTag(tag, [3, 4])]))
