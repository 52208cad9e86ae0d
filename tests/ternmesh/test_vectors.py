"""The golden bytes: `make.py` writes them, SPEC.md gives the same, and what is written reads back.

The end of this file is the generator and the permutation written from SPEC.md alone, one word at a
time as a microcontroller would do it; the C library decodes scales, trits and codes likewise.
"""

import hashlib
import json
import runpy
import struct
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import cbor2
import numpy as np
import pytest

from ternmesh import generator, plan
from ternmesh.codec import entropy_coder, permutation
from ternmesh.codec.entropy_coder import CODEBOOK, Coded, decode_trits
from ternmesh.link.messages import read_message, write_message
from ternmesh.wire import global_update
from ternmesh.wire.frame import Header, open_seal
from ternmesh.wire.proof import proved_rows, read_proof, write_proof

FOLDER = Path(__file__).parents[1] / "vectors"


def cases(family: str) -> pytest.MarkDecorator:
    entries = json.loads((FOLDER / f"{family}.json").read_text())
    return pytest.mark.parametrize("case", entries.values(), ids=list(entries))


def vector(family: str, name: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{family}.json").read_text())[name]


def test_the_script_finds_nothing_to_change() -> None:
    before = {path: path.read_bytes() for path in FOLDER.glob("*.json")}
    assert runpy.run_path(str(FOLDER / "make.py"))["main"]() == 0
    assert {path: path.read_bytes() for path in FOLDER.glob("*.json")} == before


def test_the_script_refuses_to_change_a_vector(tmp_path, capsys) -> None:  # R1-5
    script = tmp_path / "make.py"
    script.write_text((FOLDER / "make.py").read_text())
    other = '{"order 0": {"label": "order", "parts": [], "key": ["other"]}}'
    (tmp_path / "keys.json").write_text(other)
    assert runpy.run_path(str(script))["main"]() == 1
    assert "keys: order 0" in capsys.readouterr().out
    assert (tmp_path / "keys.json").read_text() == other
    (tmp_path / "keys.json").write_text('{"label only": {"label": "x", "parts": []}}')
    assert runpy.run_path(str(script))["main"]() == 0
    assert json.loads((tmp_path / "keys.json").read_text())["label only"]["key"][0] == "1d6b02a3"


@cases("philox")
def test_philox(case: dict[str, Any]) -> None:
    if "start" in case:
        words = list(spec_words(tuple(case["key"]), case["start"], len(case["words"])))
    else:
        key, counter = ([int(word, 16) for word in case[name]] for name in ("key", "counter"))
        words = spec_philox(key, counter)
    assert [f"{word:08x}" for word in words] == case["words"]


@cases("keys")
def test_keys(case: dict[str, Any]) -> None:
    key = spec_key(case["label"].encode(), *map(bytes.fromhex, case["parts"]))
    assert [f"{word:08x}" for word in key] == case["key"]


@cases("orders")
def test_orders(case: dict[str, Any]) -> None:
    dimension, round_number = case["dimension"], case["round"]
    places = permutation.order(bytes(range(32)), round_number, dimension)
    assert np.array_equal(np.sort(places), np.arange(dimension))
    key = spec_key(b"order", bytes(range(32)), struct.pack("<I", round_number))
    alone = [spec_place(key, index, dimension) for index in range(min(16, dimension))]
    assert alone == case["first"]


@cases("trits")
def test_trits(case: dict[str, Any]) -> None:
    data = bytes.fromhex(case["bytes"])
    assert entropy_coder.unpack_trits(data, len(case["trits"])).tolist() == case["trits"]


@cases("codes")
def test_codes(case: dict[str, Any]) -> None:
    coded = Coded(case["count"], case["coding"], bytes.fromhex(case["bytes"]))
    assert decode_trits(coded, len(case["values"])).tolist() == case["values"]


@cases("codebooks")
def test_codebooks(case: dict[str, Any]) -> None:
    """The signs as SPEC.md 2.6 writes them down, one value at a time."""
    size, data, minus = case["size"], bytes.fromhex(case["bytes"]), bytes.fromhex(case["minus"])
    names = struct.unpack(f"<{len(data) // 2}H", data)
    span = -(-size // len(names))
    row_bits = max(1, (span - 1).bit_length())
    stream = generator.words(generator.derive_key("codebook"), 1 << 10)
    values = decode_trits(Coded(size, CODEBOOK, data), size)
    for at in range(size):
        name, j = names[at // span], at % span
        row, diagonal = (name >> 1) % 2**row_bits, (name >> 1) >> row_bits
        b = diagonal * 2**row_bits + j
        odd = (name & 1) + (row & j).bit_count() + (int(stream[b // 32]) >> b % 32 & 1)
        assert values[at] == (-1 if odd % 2 else 1)
        assert (minus[at // 8] >> at % 8 & 1) == odd % 2


@cases("seals")
def test_seals(case: dict[str, Any]) -> None:
    frame, body = bytes.fromhex(case["bytes"]), bytes.fromhex(case["body"])
    header = Header(case["context"], case["counter"], case["suite"], case["key_phase"])
    assert open_seal(frame) == (header, body)
    assert frame[0] == 0x20 | case["key_phase"] << 1
    assert frame[1:6] == struct.pack("<H", case["context"]) + struct.pack("<I", header.counter)[:3]
    assert frame[-8:] == hashlib.sha256(frame[:-8]).digest()[:8]


@cases("objects")
def test_objects(case: dict[str, Any]) -> None:
    certified = bytes.fromhex(case["certified"])
    content, certificate = global_update.split_certificate(certified)
    assert content.hex() == case["content"]
    assert global_update.certify(content, certificate) == certified
    assert certified[len(content) :] == bytes(65) + b"\x01"
    (head_size,) = struct.unpack_from("<I", content, 1)
    if content[0] == global_update.GIVEN:
        update, adapter = global_update.read_given(content, 3)
        assert global_update.write_given(update, adapter) == content
        assert adapter.tolist() == [0, 1, 2]
        origin = bytes.fromhex(vector("plans", "plan")["genesis"])
        told = b"ternmesh adapter" + origin + struct.pack("<I3i", 6, 0, 1, 2)
        assert hashlib.sha256(told).digest()[:16] in update
        return
    step = global_update.read_object(content, dimension=(len(content) - 5 - head_size) // 4)
    write: Callable[[Any], bytes] = (
        global_update.write_global_snapshot
        if isinstance(step, global_update.GlobalSnapshot)
        else global_update.write_global_update
    )
    assert write(step) == content


@cases("proofs")
def test_proofs(case: dict[str, Any]) -> None:
    rows = [[r[0], r[1], *map(bytes.fromhex, r[2:])] for r in case["rows"]]
    plain = [row if row[-1] else row[:-1] for row in rows]
    leaves = [[row for row in plain if row[0] // 8 == i] for i in range(plain[-1][0] // 8 + 1)]
    hashes = [
        hashlib.sha256(b"\0" + cbor2.dumps([i, *leaf])).digest()[:16]
        for i, leaf in enumerate(leaves)
    ]
    while len(hashes) > 1:
        pairs = [hashes[at : at + 2] for at in range(0, len(hashes), 2)]
        hashes = [
            hashlib.sha256(b"\1" + b"".join(pair)).digest()[:16] if pair[1:] else pair[0]
            for pair in pairs
        ]
    assert hashes[0].hex() == case["root"]
    proof, address = read_proof(bytes.fromhex(case["bytes"])), case["address"]
    assert write_proof(proof).hex() == case["bytes"]
    step = global_update.GlobalUpdate(6, bytes(16), b"", False, 0, (), (), root=hashes[0])
    wanted = tuple(global_update.Counted(*row) for row in rows if row[0] == address)
    assert proved_rows(step, proof, address) == wanted


@cases("plans")
def test_plan_and_genesis(case: dict[str, Any]) -> None:
    made = plan.Plan(**case["fields"])
    assert plan.from_numbers(plan.to_numbers(made)) == made
    model, run = bytes.fromhex(case["model_hash"]), bytes.fromhex(case["run"])
    numbers = struct.pack(f"<{len(case['fields'])}I", *case["fields"].values())
    spec = hashlib.sha256(b"ternmesh genesis" + model + run + numbers).digest()[:16]
    assert spec.hex() == case["genesis"]


@cases("link")
def test_link(case: dict[str, Any]) -> None:
    if "number" in case:
        number, payload = case["number"], bytes.fromhex(case["object"])
        head = hashlib.sha256(struct.pack("<H", number % 65536) + payload).digest()
        assert head[:4].hex() == case["name"]
        return
    body = bytes.fromhex(case["bytes"])
    message = read_message(body)
    assert write_message(message) == body
    assert type(message).__name__ == case["type"]
    plain = {k: v.hex() if isinstance(v, bytes) else v for k, v in asdict(message).items()}
    plain |= {"needs": list(plain["needs"])} if "needs" in plain else {}
    assert plain == case["fields"]


# SPEC.md, read by somebody else


LOW = 0xFFFFFFFF


def spec_philox(key: list[int], counter: list[int]) -> list[int]:
    (k0, k1), (c0, c1, c2, c3) = key, counter
    for _ in range(10):
        p, q = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (q >> 32) ^ c1 ^ k0, q & LOW, (p >> 32) ^ c3 ^ k1, p & LOW
        k0, k1 = (k0 + 0x9E3779B9) & LOW, (k1 + 0xBB67AE85) & LOW
    return [c0, c1, c2, c3]


def spec_words(key: tuple[int, int], start: int, count: int) -> Iterator[int]:
    for number in range(start, start + count):
        block = number // 4
        yield spec_philox(list(key), [block & LOW, block >> 32, 0, 0])[number % 4]


def spec_key(*parts: bytes) -> tuple[int, int]:
    head = hashlib.sha256(b"".join(struct.pack("<H", len(p)) + p for p in parts)).digest()
    k0, k1 = struct.unpack_from("<II", head)
    return k0, k1


def spec_place(key: tuple[int, int], index: int, dimension: int) -> int:
    round_keys = list(spec_words(key, 0, 8))
    bits = 2
    while 1 << bits < dimension:
        bits += 1
    low_bits, high_bits = (bits + 1) // 2, bits // 2
    place = index
    while True:
        high, low = place >> low_bits, place % (1 << low_bits)
        for number, round_key in enumerate(round_keys):
            if number % 2 == 0:
                high ^= spec_mix((low + round_key) & LOW) % (1 << high_bits)
            else:
                low ^= spec_mix((high + round_key) & LOW) % (1 << low_bits)
        place = high << low_bits | low
        if place < dimension:
            return place


def spec_mix(x: int) -> int:
    x = (x ^ x >> 16) * 0x85EBCA6B & LOW
    x = (x ^ x >> 13) * 0xC2B2AE35 & LOW
    return x ^ x >> 16
