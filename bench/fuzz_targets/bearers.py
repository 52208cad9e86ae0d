"""Bearers: messages, streams of modems, BLE values, topics, URLs and the control socket."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from bench.fuzz_targets.target import Target, joined, number, parts, same
from ternmesh.errors import WireError
from ternmesh.link.airtime import LoraSetting
from transports import batch
from transports.ble import values
from transports.ble.protocol import BleProtocol
from transports.control_socket import ControlServer
from transports.faults import parse_faults
from transports.mqtt_settings import MqttSettings, parse_url
from transports.serial_lora import cobs, kiss, meshtastic, protobuf
from transports.serial_lora.coding import BINARY, HALVES, PROBE, PrefixCoding, ProvenCoding
from transports.serial_lora.dialect import Dialect
from transports.serial_lora.ebyte import Ebyte
from transports.serial_lora.meshcore import Meshcore
from transports.serial_lora.reyax import Reyax
from transports.serial_lora.reyax_parser import ReyaxParser
from transports.serial_lora.rnode import Rnode
from transports.serial_lora.settings import SerialLoraSettings

_CHUNK = 7  # bytes; what a stream holds may not depend on how it is cut
_MQTT = MqttSettings("mqtt://broker", "attic", "host")
_STEPS_MAX = 64
_LISTS_MAX = 2 << 20  # bytes: what a stream of 64 KiB held, twice


class _Stream(Protocol):
    def feed(self, data: bytes, /) -> Any: ...


def _whole_or_cut(new: Callable[[], _Stream], data: bytes) -> list[Any]:
    """What a stream's reader finds; AssertionError where that depends on how the stream is cut."""
    whole, reader = list(new().feed(data)), new()
    cut = [item for at in range(0, len(data), _CHUNK) for item in reader.feed(data[at : at + 7])]
    same(cut, whole, "a stream read in chunks")
    return whole


def _check_batch(data: bytes) -> None:
    same(batch.join(batch.split(data)), data, "a message of frames")


def _check_cobs(data: bytes) -> None:
    _whole_or_cut(cobs.Unframer, data)
    short = data[:200]
    same(cobs.decode(cobs.encode(data)), data, "COBS")
    if short:
        same(cobs.Unframer().feed(b"noise" + cobs.frame(short)), [short], "a framed payload")
    cobs.decode(data)


def _check_kiss(data: bytes) -> None:
    _whole_or_cut(kiss.Unframer, data)
    short = data[:200]
    same(kiss.Unframer().feed(kiss.frame(5, short)), [(5, short)], "a KISS frame")


def _check_protobuf(data: bytes) -> None:
    whole = protobuf.fields(data)
    same(_written(whole), _written(protobuf.fields(_written(whole))), "protobuf fields")


def _written(found: dict[int, protobuf.Value]) -> bytes:
    return b"".join(
        protobuf.number_field(field, value)
        if isinstance(value, int)
        else protobuf.bytes_field(field, value)
        for field, value in found.items()
    )


def _check_meshtastic_stream(data: bytes) -> None:
    _whole_or_cut(meshtastic.Unframer, data)
    unframer = meshtastic.Unframer()
    unframer.feed(data)
    unframer.flush()


def _check_reyax_stream(data: bytes) -> None:
    _whole_or_cut(ReyaxParser, data)
    parser = ReyaxParser()
    parser.feed(data)
    parser.flush()


def _settings(dialect: str) -> SerialLoraSettings:
    radio = LoraSetting(9, 125, 1, 12)
    return SerialLoraSettings(
        "/dev/null", dialect, "ada", {"ada": 1}, radio=radio, frequency_hz=868_500_000
    )


def _conversation(new: Callable[[], Dialect]) -> Callable[[bytes], None]:
    """A check that plays the modem: it may say anything at any time."""

    def check(data: bytes) -> None:
        modem, now = new(), 0.0
        modem.start(now)
        for _, item in zip(range(_STEPS_MAX), parts(data), strict=False):
            choice, said = number(item, 0, 1), item[1:]
            now += (choice >> 4) * 0.5
            if choice & 1 and modem.idle:
                modem.send(b"payload", now)
            modem.receive_bytes(said, now)
            if choice & 2:
                modem.line_idle(now)
            if modem.deadline is not None and (choice & 4 or modem.deadline <= now):
                modem.handle_timeout(max(now, modem.deadline))

    return check


def _reyax_says() -> Iterator[bytes]:
    settings = (
        b"NETWORKID=18",
        b"ADDRESS=1",
        b"BAND=868500000",
        b"PARAMETER=9,7,1,12",
        b"CRFOP=14",
    )
    up = [b"\x04", b"\x00+OK\r\n", *(b"\x00+%b\r\n" % line for line in settings)]
    yield joined([*up, b"\x01+OK\r\n", b"\x01+ERR=17\r\n", b"\x03+RCV=0,3,a,b,-99,-7\r\n"])
    yield joined([*up, b"\x01+ERR=2\r\n", b"\x07+READY\r\n", b"\x00+ERR=12\r\n"])


def _meshtastic_says() -> Iterator[bytes]:
    modem = meshtastic.Meshtastic(_settings("meshtastic"), random.Random(0))
    modem.start(0.0)
    modem.handle_timeout(modem.deadline or 0.0)
    heard = protobuf.number_field(meshtastic.DATA_PORT, meshtastic.PRIVATE_APP)
    heard += protobuf.bytes_field(meshtastic.DATA_PAYLOAD, b"payload")
    packet = protobuf.bytes_field(meshtastic.PACKET_DATA, heard)
    packet += protobuf.fixed32_field(meshtastic.PACKET_FROM, 7)  # any node but our own
    messages = [
        protobuf.number_field(meshtastic.FROM_COMPLETE, random.Random(0).randrange(1, 1 << 32)),
        protobuf.bytes_field(meshtastic.FROM_PACKET, packet),
        protobuf.bytes_field(meshtastic.FROM_QUEUE, protobuf.number_field(2, 4)),
        protobuf.number_field(meshtastic.FROM_REBOOTED, 1),
    ]
    yield joined([b"\x04", *(b"\x01" + meshtastic.frame(message) for message in messages)])


def _rnode_says() -> Iterator[bytes]:
    confirmed = [(0x01, (868_500_000).to_bytes(4, "big")), (0x02, (125_000).to_bytes(4, "big"))]
    confirmed += [(0x03, b"\x0e"), (0x04, b"\x09"), (0x05, b"\x05"), (0x06, b"\x01")]
    up = kiss.frame(0x08, b"\x46") + b"".join(kiss.frame(*item) for item in confirmed)
    later = [(0x23, b"\x40"), (0x24, b"\xf0"), (0x00, b"heard"), (0x0F, b"\x01"), (0x90, b"\x04")]
    yield joined([b"\x00" + up, *(b"\xf1" + kiss.frame(*item) for item in later)])


def _meshcore_says() -> Iterator[bytes]:
    up = [kiss.frame(6, b"\xf0"), kiss.frame(6, b"\xf0"), kiss.frame(6, b"\x8f\x00\x02\x00\x00")]
    later = [kiss.frame(6, b"\xf8\x01"), kiss.frame(6, b"\xf1\x07"), kiss.frame(0, b"heard")]
    yield joined([*(b"\x00" + item for item in up), *(b"\x01" + item for item in later)])


def _check_payload(data: bytes) -> None:
    proven = ProvenCoding(1, frozenset({2, 3}), "auto")
    for item in parts(data):
        for coding in (PrefixCoding(1), proven):
            try:
                coding.decode(item, float(len(item)))
            except WireError:
                continue
            coding.to_send()
    frame = data[:100] or b"\0"
    message = proven.decode(proven.encode(2, frame), 0.0)
    if message is not None:
        same((message.to, message.frame), (2, frame), "a frame in a payload")


def _payloads() -> Iterator[bytes]:
    probes = [PROBE + bytes([1, 2, half]) + content for half, content in enumerate(HALVES)]
    yield joined([*probes, BINARY + b"\x01\x02frame", b"\x01\x02frame"])


def _check_value(data: bytes) -> None:
    session = number(data, 0, 2)
    value = values.decode(data[2:], session)
    same(values.encode(value, session), data[2:], "a BLE value")


def _values() -> list[values.Value]:
    hello = values.Hello(False, 7, 1, 2, 0, 32)
    return [
        hello,
        values.Data(0, True, b"\x03\x00abc"),
        values.Ask(),
        values.Status(0, 32, 5),
    ]


def _check_ble(data: bytes) -> None:
    """A session begins by itself; values come with the right check sum or as they are."""
    end = BleProtocol(initiator=False, identity=5, session=9)
    now = 0.0
    end.connected(now)
    end.receive_value(values.encode(values.Hello(False, 7, 1, 0, 0, 32), 0), now)
    for _, item in zip(range(_STEPS_MAX), parts(data), strict=False):
        choice, said = number(item, 0, 1), item[1:]
        now += (choice >> 4) * 0.5
        if choice & 1:
            said = values.encode(values.Data(choice >> 1 & 7, bool(choice & 2), said), 7)
        elif choice & 2:
            said = values.encode(values.Status(number(said, 0, 1), 8, number(said, 1, 4)), 7)
        if choice & 4:
            end.sender.offer([b"frame"])
        end.receive_value(said, now)
        end.values_to_send(20, now)
        if (due := end.next_timeout()) is not None and due <= now:
            end.handle_timeout(now)


def _check_topic(data: bytes) -> None:
    peer = _MQTT.peer(data.decode())
    same(_MQTT.topic(peer), f"ternmesh/attic/down/{peer}", "the topic of a peer")


def _check_url(data: bytes) -> None:
    address = parse_url(data.decode())
    if not address.host or not 0 < address.port < 65_536:
        raise AssertionError("an address without host or port")
    str(address)


def _check_faults(data: bytes) -> None:
    parse_faults(data.decode())


def _check_request(data: bytes) -> None:
    server = ControlServer(Path("unused"), lambda request: {"asked": request})
    answer = json.loads(server._respond(data))
    if set(answer) not in ({"asked"}, {"error"}):
        raise AssertionError("an answer that is neither an answer nor an error")


TARGETS = (
    Target("batch", _check_batch, lambda: [batch.join([b"a", b"bcd" * 20])]),
    Target(
        "cobs",
        _check_cobs,
        lambda: [cobs.encode(b"\0a\0"), cobs.frame(b"a")],
        (ValueError,),
        memory_max=_LISTS_MAX,
    ),
    Target("kiss", _check_kiss, lambda: [kiss.frame(0, b"\xc0\xdb")], memory_max=_LISTS_MAX),
    Target("protobuf", _check_protobuf, lambda: [protobuf.bytes_field(2, b"ab") + b"\x0d1234"]),
    Target("meshtastic_stream", _check_meshtastic_stream, _meshtastic_says, memory_max=_LISTS_MAX),
    Target(
        "reyax_stream",
        _check_reyax_stream,
        lambda: [b"x+RCV=0,3,a,b,-9,-7\r\n+OK\r\n+ERR=1"],
        memory_max=_LISTS_MAX,
    ),
    Target("reyax", _conversation(lambda: Reyax(_settings("reyax"))), _reyax_says),
    Target(
        "meshtastic",
        _conversation(lambda: meshtastic.Meshtastic(_settings("meshtastic"), random.Random(0))),
        _meshtastic_says,
    ),
    Target("rnode", _conversation(lambda: Rnode(_settings("rnode"))), _rnode_says),
    Target("meshcore", _conversation(lambda: Meshcore(_settings("meshcore"))), _meshcore_says),
    Target(
        "ebyte",
        _conversation(lambda: Ebyte(_settings("ebyte"))),
        lambda: [joined([b"\x01" + cobs.frame(b"payload"), b"\x14"])],
    ),
    Target("radio_payload", _check_payload, _payloads, memory_max=_LISTS_MAX),
    Target(
        "ble_value",
        _check_value,
        lambda: [b"\x07\x00" + values.encode(value, 7) for value in _values()],
    ),
    Target("ble", _check_ble, lambda: [joined([b"\x01\x03\x00abc", b"\x06\x00", b"\xf4"])]),
    Target(
        "mqtt_topic",
        _check_topic,
        lambda: [b"ternmesh/attic/up/ada", b"ternmesh/attic/up/host"],
        (ValueError,),
        length_max=128,
    ),
    Target("mqtt_url", _check_url, lambda: [b"mqtts://a:b@host:1", b"mqtt://[::1]"], (ValueError,)),
    Target(
        "faults",
        _check_faults,
        lambda: [b"drop=0.2,delay_s=0.5", b"burst=0.1/0.2/0/1,mtu=40"],
        (ValueError,),
        length_max=256,
    ),
    Target(
        "control_socket",
        _check_request,
        lambda: [b'{"command": "status"}\n', b"[1e999]", b"[" * 1024],
    ),
)
