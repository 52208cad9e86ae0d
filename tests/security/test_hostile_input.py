"""Input from enemies: what it may cost, what it may say, and what of it ends in a log."""

import logging
import tracemalloc

import numpy as np
import pytest

from ternmesh.errors import CodecError, WireError
from ternmesh.hypervector.scale import SCALE_MAX, decode_scale, encode_scale
from ternmesh.plan import make_plan
from ternmesh.swarm.intake import Intake
from ternmesh.swarm.step import encode_update
from ternmesh.wire import control, seal
from transports.base import HOST
from transports.control_socket import ControlServer
from transports.mqtt import MqttTransport
from transports.mqtt_settings import MqttSettings

MEGABYTE = 1 << 20
REFUSING_MAX = 80 << 10  # bytes: the library reads what is long in pieces of 64 KiB
ROUND, WORD = b"\x07", b"\x65other"
# What the library accepts of its own accord, and what it once fell over.
CBOR = {
    "a regular expression": b"\x83\x03\x07\xd8\x23\x66(a+)+$",
    "a MIME message": b"\x83\x03\x07\xd8\x24\x78\x40" + b"a: b\n" * 12 + b"\n\n\n\n",
    "a cycle of shared references": b"\xd8\x1c\x82\xd8\x1d\x00\xd8\x1d\x00",
    "a bignum of a megabyte": b"\x83\x03\xc2\x5a\x00\x10\x00\x00" + b"\xff" * MEGABYTE + WORD,
    "21 megabytes of nesting": b"\x81" * (21 * MEGABYTE),
    "21 megabytes of nested maps": b"\xa1\x01" * (10 * MEGABYTE),
    "an array of 2**64 - 1": b"\x9b" + b"\xff" * 8,
    "bytes of 2**63": b"\x5b\x80" + bytes(7),
    "text of 2**32": b"\x7b\x00\x00\x00\x01" + bytes(4),
    "a map of 2**40": b"\xbb\x00\x00\x01" + bytes(5),
    "read of minus one": b"\x5b" + b"\xff" * 8,
    "trailing junk": b"\x83\x03\x07" + WORD + b"junk",
    "an integer longer than needed": b"\x83\x03\x1b" + bytes(7) + b"\x07" + WORD,
    "an indefinite array": b"\x9f\x03\x07" + WORD + b"\xff",
    "duplicate keys": b"\x83\x03\xa2\x01\x01\x01\x02" + WORD,
    "a set that hashes to one place": b"\xd9\x01\x02\x98\x20"
    + b"".join(b"\x1b" + (i * (2**61 - 1)).to_bytes(8, "big") for i in range(8)),
    "a tag in a tag": b"\xc1" * 5000 + b"\x00",
    "a decimal fraction": b"\x83\x03\xc4\x82\x3a\x7f\xff\xff\xff\x01" + WORD,
    "a date": b"\x83\x03\xc0\x74" + b"2013-03-21T20:04:00Z" + WORD,
    "a string reference": b"\xd9\x01\x00\x83\x03\x07\xd8\x19\x00",
}


@pytest.mark.parametrize("data", CBOR.values(), ids=list(CBOR))
def test_hostile_cbor_costs_nothing(data: bytes) -> None:
    body = b"\x01" + data
    for cut in (body, body[:1024]):  # as it is, and as long as a control message may be
        tracemalloc.start()
        with pytest.raises(WireError):
            control.read_control(cut)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak <= REFUSING_MAX


def test_no_scale_is_nan_infinite_or_huge() -> None:
    """All 65,536 codes: each is a whole number of units within bounds, or an error."""
    worths = []
    for code in range(1 << 16):
        try:
            worths.append(decode_scale(code))
        except WireError:
            continue
    assert all(type(worth) is int for worth in worths)
    assert (min(worths), max(worths)) == (0, SCALE_MAX)
    for value in (float("nan"), -1.0, float("-inf")):
        with pytest.raises(CodecError):
            encode_scale(value)
    assert decode_scale(encode_scale(float("inf"))) == SCALE_MAX  # An infinity never leaves.


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_board_whose_training_diverged_sends_nothing(value: float) -> None:
    plan = make_plan(100, rounds=1, local_steps=1, learning_rate=0.1)
    vector = np.zeros(100, np.float32)
    vector[50] = value
    with pytest.raises(CodecError):
        encode_update(vector, bytes(32), 0, plan)


def test_no_share_outweighs_what_the_plan_allows() -> None:
    loud = make_plan(100, rounds=1, local_steps=1, learning_rate=0.1, scale_max=60.0)
    plan = make_plan(100, rounds=1, local_steps=1, learning_rate=0.1, scale_max=1.0)
    (share,) = encode_update(np.full(100, 50, np.float32), bytes(32), 0, loud)
    with pytest.raises(WireError) as caught:
        Intake(plan, bytes(8), 0).add(share)
    assert caught.value.reason == "scale"


@pytest.mark.parametrize("suite", range(1, 8))
def test_a_frame_of_a_suite_that_is_not_in_use_is_not_taken_for_an_open_one(suite: int) -> None:
    frame = bytearray(seal.seal(seal.Header(1, 1), b"\x05\x07body"))
    frame[0] |= suite << 2
    with pytest.raises(WireError):
        seal.open_seal(bytes(frame))


@pytest.mark.parametrize(
    "name", ["../up", "a/b", "a\\b", "a\0b", "a\nb", "ä", "", "+", "#", "a" * 33]
)
def test_a_name_from_a_peer_is_neither_path_nor_topic(name: str) -> None:
    hello = control.Hello(name, bytes(8), bytes(8), bytes(8), 0, bytes(16), 1)
    with pytest.raises(WireError):
        control.read_control(control.write_control(hello))


def test_logs_hold_no_payload_and_no_password(caplog, tmp_path) -> None:
    caplog.set_level(logging.DEBUG)
    password, payload = "correct-horse", b"\xff\xffprivate-payload"
    settings = MqttSettings(
        f"mqtt://ada:{password}@127.0.0.1:1", "attic", HOST, reconnect_min_s=0.01
    )
    transport = MqttTransport(settings)
    transport._take("ternmesh/attic/up/ada", payload)
    transport._take("ternmesh/attic/up/../x", payload)
    server = ControlServer(tmp_path / "unused", lambda request: 1 / 0)
    server._respond(b'{"private-payload": ')
    server._respond(b'{"private-payload": 1}')
    assert transport.counters.malformed == 2
    shown = caplog.text + str(transport.status()) + repr(settings)
    assert len(caplog.records) >= 3
    assert password not in shown
    assert "private-payload" not in shown
