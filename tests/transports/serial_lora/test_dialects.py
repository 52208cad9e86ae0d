"""The dialects without any port: what they write, and what they make of answers."""

import random
import re
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ternmesh import protobuf
from ternmesh.link.airtime import LoraSetting, airtime_us
from transports.serial_lora import meshcore, meshtastic
from transports.serial_lora.dialect import (
    Broken,
    Dialect,
    Noise,
    PayloadRefused,
    Received,
    Sent,
    Write,
)
from transports.serial_lora.ebyte import Ebyte
from transports.serial_lora.emulator.meshcore import MeshcoreModem
from transports.serial_lora.emulator.modem import Output, Transmit
from transports.serial_lora.emulator.radios import new_modem
from transports.serial_lora.framing import KissUnframer, kiss_frame
from transports.serial_lora.meshcore import Meshcore
from transports.serial_lora.meshtastic import Meshtastic
from transports.serial_lora.rnode import Rnode, RnodeCommand
from transports.serial_lora.settings import DIALECTS, SerialLoraSettings
from transports.serial_lora.transport import new_dialect

SF9 = LoraSetting(9)
EVERY_BYTE = bytes(range(256))


def settings_for(dialect: str, **options: Any) -> SerialLoraSettings:
    fixed: dict[str, Any] = {"radio": SF9, "frequency_hz": 868_500_000, "addresses": {"ada": 1}}
    return SerialLoraSettings("/dev/null", dialect, "ada", **(fixed | options))


def test_ebyte_waits_until_the_frame_must_have_left() -> None:  # R7.3-7
    modem = Ebyte(settings_for("ebyte", air_rate_bps=2400, speed=10.0))
    assert (modem.start(0.0), modem.ready, modem.idle) == ([], True, True)
    (write,) = modem.send(b"x" * modem.payload_max, 5.0)
    assert len(write.data) == 240
    airtime_us_ = modem.airtime_us(modem.payload_max)
    assert 240 * 8 / 2400 * 1e6 < airtime_us_ < 2 * 240 * 8 / 2400 * 1e6
    assert modem.deadline == pytest.approx(5.0 + airtime_us_ / 1e7)
    assert not modem.idle
    heard = modem.receive_bytes(write.data + b"\0x!\0", 5.1)
    assert heard == [Received(b"x" * modem.payload_max), Noise()]
    assert modem.handle_timeout(6.0) == [Sent()]
    assert (modem.idle, modem.deadline) == (True, None)
    quick = Ebyte(settings_for("ebyte", air_rate_bps=62_500))
    quick.start(0.0)
    (write,) = quick.send(b"x" * 230, 5.0)
    assert quick.deadline == pytest.approx(5.0 + len(write.data) * 10 / 9600)  # the slower line


def rnode_up(**options: Any) -> Rnode:
    modem = Rnode(settings_for("rnode", **options))
    assert modem.start(0.0) == [Write(kiss_frame(8, b"\x73"))]
    (write,) = modem.receive_bytes(kiss_frame(8, b"\x46"), 0.1)
    assert KissUnframer().feed(write.data) == [
        (1, (868_500_000).to_bytes(4, "big")),
        (2, (125_000).to_bytes(4, "big")),
        (3, b"\x0e"),
        (4, b"\x09"),
        (5, b"\x05"),
        (6, b"\x01"),
    ]
    assert not modem.ready
    assert modem.receive_bytes(write.data, 0.2) == []  # An RNode repeats what it has set.
    assert (modem.ready, modem.idle, modem.deadline) == (True, True, None)
    return modem


def test_rnode_takes_a_frame_after_the_airtime_of_the_last_one() -> None:
    modem = rnode_up()
    assert modem.send(EVERY_BYTE[:254], 1.0) == [Write(kiss_frame(0, EVERY_BYTE[:254]))]
    left_at = 1.0 + modem.airtime_us(254) / 1e6
    assert modem.deadline == pytest.approx(left_at)
    ready = kiss_frame(RnodeCommand.READY, b"\x01")
    assert modem.receive_bytes(ready, 1.1) == []  # It has room, but the air is not free yet.
    assert modem.handle_timeout(left_at) == [Write(kiss_frame(RnodeCommand.READY, b"\0"))]
    assert modem.receive_bytes(kiss_frame(RnodeCommand.READY, b"\0"), left_at) == []
    assert modem.receive_bytes(ready, left_at + 0.1) == [Sent()]
    assert modem.idle


def test_rnode_signal_belongs_to_the_frame_behind_it() -> None:
    modem = rnode_up()
    stream = kiss_frame(RnodeCommand.RSSI, b"\x40") + kiss_frame(RnodeCommand.SNR, b"\xf6")
    stream += kiss_frame(RnodeCommand.DATA, b"one") + kiss_frame(RnodeCommand.DATA, b"two")
    assert modem.receive_bytes(stream, 1.0) == [Received(b"one", -93.0, -2.5), Received(b"two")]


@pytest.mark.parametrize(
    ("command", "content", "sentence"),
    [
        (1, (433_000_000).to_bytes(4, "big"), "tuned to 433000000 Hz, not 868500000: is that in"),
        (1, (868_499_938).to_bytes(4, "big"), None),  # the chip has steps of 61 Hz
        (2, (250_000).to_bytes(4, "big"), "sets bandwidth to 250000, not 125000"),
        (3, b"\x0b", "sends with 11 dBm, not 14: set power_dbm = 11"),
        (6, b"\x00", "keeps its radio off: it is locked"),
    ],
)
def test_an_rnode_that_is_set_otherwise_is_not_used(
    command: int, content: bytes, sentence: str | None
) -> None:
    modem = Rnode(settings_for("rnode"))
    modem.start(0.0)
    modem.receive_bytes(kiss_frame(8, b"\x46"), 0.1)
    events = modem.receive_bytes(kiss_frame(command, content), 0.2)
    if sentence is None:
        assert events == []
    else:
        assert isinstance(events[0], Broken)
        assert sentence in str(events[0])


@pytest.mark.parametrize(
    ("packet_bytes", "packets"), [(240, 1), (200, 2), (58, 5)]
)  # E22, E220, E32
def test_each_packet_of_an_ebyte_modem_has_a_preamble(packet_bytes: int, packets: int) -> None:
    modem = Ebyte(settings_for("ebyte", air_rate_bps=2400, packet_bytes=packet_bytes))
    bits = 8 * (233 + 7 + packets * 32)
    assert modem.airtime_us(233) == -(-bits * 1_250_000 // 2400)


def answer(code: int, content: bytes = b"") -> bytes:
    return b">" + (1 + len(content)).to_bytes(2, "little") + bytes([code]) + content


def device(version: int = 13, name: bytes = b"v1.16.0") -> bytes:
    return answer(13, bytes([version]) + bytes(58) + name.ljust(20, b"\0") + bytes(2))


def self_info(power: int = 14, khz: int = 869_618, hz: int = 62_500, rate: int = 8) -> bytes:
    radio = khz.to_bytes(4, "little") + hz.to_bytes(4, "little") + bytes([8, rate])
    return answer(5, bytes([1, power]) + bytes(45) + radio + b"owner's node")


def channel(name: bytes, secret: str = "00" * 16) -> bytes:
    return answer(18, b"\7" + name.ljust(32, b"\0") + bytes.fromhex(secret))


def written(name: str) -> Write:
    return Write(bytes.fromhex(COMPANION[name]))


# What meshcore 2.3.17 of PyPI writes for the same commands
COMPANION = {
    "query": "3c02001603",
    "channel": "3c02001f07",
    "set channel": "3c3200200723" + "7465726e6d657368".ljust(62, "0") + "SECRET",
    "message": "3c01000a",
    "send": "3c08003e07ff00ff616263",
    "scope": "3c1200360071e346e3040cb316c99920b25e7fd464",
}
SECRET = "5c262284297ffe50bc107fc94857dbe6"  # of the public channel #ternmesh
COMPANION["set channel"] = COMPANION["set channel"].replace("SECRET", SECRET)
START = Write(b"<\x10\0\1" + bytes(7) + b"ternmesh")
NARROW = {"radio": LoraSetting(8, 62.5, 4), "frequency_hz": 869_618_000}


def meshcore_up(**options: Any) -> Meshcore:
    modem = Meshcore(settings_for("meshcore", **NARROW | options))
    assert modem.start(0.0) == [written("query")]
    assert modem.receive_bytes(b"boot\r\n" + device(), 0.1) == [START]
    assert modem.receive_bytes(answer(0x83) + self_info(), 0.1) == [written("channel")]
    assert modem.receive_bytes(channel(b""), 0.1) == [written("set channel")]
    assert not modem.ready
    assert modem.receive_bytes(answer(0), 0.1) == [written("message")]
    assert modem.receive_bytes(answer(10), 0.1) == []
    assert (modem.ready, modem.idle, modem.deadline) == (True, True, 0.1 + meshcore.POLL_S)
    return modem


def test_a_companion_takes_a_datagram_and_is_left_alone_until_it_has_passed_the_mesh() -> None:
    modem = meshcore_up(hops=2, scope="de-nw")
    assert modem.send(b"abc", 1.0) == [Write(written("scope").data + written("send").data)]
    assert modem.receive_bytes(answer(0), 1.1) == []  # it knows the scope
    assert modem.receive_bytes(answer(0), 1.1) == []
    passed = 1.0 + modem.airtime_us(3) / 1e6 * (1 + 2 * 3.5)
    assert not modem.idle
    assert modem.deadline == pytest.approx(passed)
    assert modem.handle_timeout(passed) == [Sent()]
    assert modem.idle
    modem.send(b"abc", 9.0)
    full = [PayloadRefused("error 3, its queue is full", meshcore.FULL_S)]
    assert modem.receive_bytes(answer(1, b"\3"), 9.1) == full


def test_a_companion_is_asked_until_it_has_no_more_messages() -> None:  # R7.3-9
    modem = meshcore_up()

    def heard(slot: int, application: int, data: bytes, size: int | None = None) -> bytes:
        head = bytes([0xEC, 0, 0, slot, 2]) + application.to_bytes(2, "little")
        return answer(27, head + bytes([len(data) if size is None else size]) + data)

    ask = written("message")
    assert modem.receive_bytes(answer(0x83), 1.0) == [ask]
    for message, event in (
        (heard(7, 0xFF00, EVERY_BYTE[:165]), Received(EVERY_BYTE[:165])),
        (heard(7, 0x0110, b"another application"), Noise(is_foreign=True)),
        (heard(3, 0xFF00, b"another channel"), Noise(is_foreign=True)),
        (answer(17, bytes(9) + b"a person writes"), Noise(is_foreign=True)),
        (heard(7, 0xFF00, b"cut", 4), Noise()),
        (heard(7, 0xFF00, b""), Noise()),
        (answer(27, b"\7"), Noise(is_foreign=True)),
    ):
        assert modem.receive_bytes(message, 1.0) == [event, ask]
    assert modem.receive_bytes(answer(10), 1.0) == []
    assert modem.deadline == 1.0 + meshcore.POLL_S
    assert modem.handle_timeout(31.0) == [ask], "a hint may be lost"


@pytest.mark.parametrize(
    ("options", "answers", "sentence"),
    [
        ({}, [device(10, b"v1.14.1")], "firmware v1.14.1 is too old: install 1.16"),
        ({}, [device(12, b"v1.15.0")], "firmware v1.15.0 is too old: .*datagram_bytes = 163"),
        ({"datagram_bytes": 163}, [device(10)], "too old"),
        ({"datagram_bytes": 163}, [device(12), self_info(), channel(b"", SECRET)], None),
        ({}, [device(), self_info(khz=869_617), channel(b"", SECRET)], None),  # a float's rounding
        ({}, [device(), self_info(khz=869_525)], "869525 kHz, .* have 869618 kHz, .*equal"),
        ({}, [device(), self_info(hz=125_000)], "125000 Hz, SF 8, CR 4/8, 14 dBm, the settings"),
        ({}, [device(), self_info(power=22)], "22 dBm, the settings .*14 dBm: make them equal"),
        ({}, [device(), self_info(power=2), channel(b"", SECRET)], None),
        ({}, [device(), self_info(), channel(b"family", "11" * 16)], "holds the channel 'family'"),
        ({}, [device(), self_info(), answer(1, b"\2")], "refuses command 31: error 2, it has no"),
        ({}, [device(), answer(5, b"short")], "answers are too short"),
    ],
)
def test_a_companion_that_is_set_otherwise_is_not_used(  # R7.3-12
    options: dict[str, Any], answers: list[bytes], sentence: str | None
) -> None:
    modem = Meshcore(settings_for("meshcore", **NARROW | options))
    events = modem.start(0.0)
    for each in answers:
        events += modem.receive_bytes(each, 0.1)
    assert modem.ready == (sentence is None)
    assert sentence is None or re.search(sentence, cast(Broken, events[-1]).reason)


def test_a_channel_of_ones_own_has_the_secret_of_the_settings() -> None:
    modem = Meshcore(settings_for("meshcore", **NARROW, channel_secret="0F" * 16))
    modem.start(0.0)
    (write,) = modem.receive_bytes(device() + self_info() + channel(b""), 0.1)[-1:]
    assert write == Write(b"<2\0\x20\7" + b"ternmesh".ljust(32, b"\0") + b"\x0f" * 16)


@pytest.mark.parametrize("factor", [8, 11])
def test_the_airtime_of_a_datagram_is_that_of_its_packet_with_a_scope(factor) -> None:  # R7.3-10
    radio = LoraSetting(factor, 62.5, 4)
    modem, emulated = Meshcore(settings_for("meshcore", radio=radio)), MeshcoreModem(radio)
    emulated.receive_bytes(bytes.fromhex(COMPANION["set channel"]))
    for size in range(1, 166):
        command = bytes([62, 7, 255, 0, 255]) + b"x" * size
        taken, sent = emulated.receive_bytes(meshcore.frame(command))
        assert taken == Output(answer(0))
        assert sent.airtime_us == modem.airtime_us(size)
        emulated.transmitted()


def number(field: int, value: int) -> bytes:
    return protobuf.number_field(field, value)


def from_radio(field: int, message: bytes) -> bytes:
    return meshtastic.frame(protobuf.bytes_field(field, message))


def queue_status(free: int, packet: int, result: int = 0) -> bytes:
    return from_radio(11, number(1, result) + number(2, free) + number(3, 16) + number(4, packet))


def fields_of(write: Any) -> dict[int, protobuf.Value]:
    """The fields of the one message that a dialect wrote."""
    (message,) = meshtastic.MeshtasticUnframer().feed(write.data)
    return message


def meshtastic_up(now: float = 0.0) -> Meshtastic:
    modem = Meshtastic(settings_for("meshtastic"), random.Random(1))
    assert modem.start(now) == [Write(b"\xc3" * 32)]
    (write,) = modem.handle_timeout(now + 0.1)
    nonce = cast(int, fields_of(write)[3])
    modem.receive_bytes(from_radio(3, number(1, 77)), now + 0.2)
    other_nonce = meshtastic.frame(number(7, nonce ^ 1))
    assert (modem.receive_bytes(other_nonce, now + 0.2), modem.ready) == ([], False)
    assert modem.receive_bytes(b"log\r\n" + meshtastic.frame(number(7, nonce)), now + 0.3) == []
    assert (modem.ready, modem.idle) == (True, True)
    return modem


def test_a_meshtastic_node_that_knows_many_others_is_waited_for() -> None:
    modem = Meshtastic(settings_for("meshtastic"), random.Random(1))
    modem.start(0.0)
    (write,) = modem.handle_timeout(0.1)
    for now in range(1, 60):
        assert modem.receive_bytes(from_radio(4, number(1, now)), float(now)) == []
        assert (modem.deadline or 0.0) > now + 9
    modem.receive_bytes(meshtastic.frame(number(7, cast(int, fields_of(write)[3]))), 60.0)
    assert modem.ready


def test_a_meshtastic_node_that_only_logs_is_asked_again() -> None:
    modem = Meshtastic(settings_for("meshtastic"), random.Random(1))
    modem.start(0.0)
    modem.handle_timeout(0.1)
    for said in (from_radio(6, b""), from_radio(16, b""), queue_status(16, 0)):
        modem.receive_bytes(said, 9.0)
    assert modem.deadline == pytest.approx(0.1 + meshtastic.HANDSHAKE_S)


def send_meshtastic(modem: Meshtastic, payload: bytes, now: float) -> int:
    """The id of the packet that it wrote, after a look at the other fields."""
    (write,) = modem.send(payload, now)
    packet = protobuf.fields(cast(bytes, fields_of(write)[1]))
    assert packet[2] == 0xFFFFFFFF
    assert protobuf.fields(cast(bytes, packet[4])) == {1: 256, 2: payload}
    assert not {9, 10} & set(packet)  # no hops, no acknowledgement
    return cast(int, packet[6])


def test_meshtastic_sends_with_credit() -> None:
    modem = meshtastic_up()
    first = send_meshtastic(modem, EVERY_BYTE[:231], 1.0)
    assert not modem.idle
    assert modem.receive_bytes(queue_status(5, first ^ 1), 1.1) == []  # about another packet
    assert modem.receive_bytes(queue_status(0, first), 1.2) == [Sent()]
    assert not modem.idle  # It has taken that one, and has no room for more.
    (heartbeat,) = modem.handle_timeout(modem.deadline or 0.0)
    assert heartbeat == Write(meshtastic.frame(protobuf.bytes_field(7, b"")))
    assert modem.receive_bytes(queue_status(3, 0), 4.0) == []
    assert modem.idle
    assert send_meshtastic(modem, b"x", 5.0) != first


@pytest.mark.parametrize("by", ["queue status", "routing"])
def test_meshtastic_errors(by: str) -> None:
    modem = meshtastic_up()

    def answer(packet: int, error: int) -> bytes:
        if by == "queue status":
            return queue_status(16, packet, error)
        data = number(1, 5) + protobuf.bytes_field(2, number(3, error))
        data += protobuf.fixed32_field(6, packet)
        return from_radio(2, protobuf.bytes_field(4, data))

    for code, reason, again_in_s in (
        (5, "retransmissions used up", None),
        (9, "its duty cycle is used up", 60.0),
        (33, "it has no radio", None),
        (34, "its transmitter is off, or its region is not set", None),
        (38, "too many messages in a short time", 60.0),
        (99, "which is not documented", None),
    ):
        events = modem.receive_bytes(answer(send_meshtastic(modem, b"x", 1.0), code), 1.1)
        assert events == [PayloadRefused(f"routing error {code}, {reason}", again_in_s)]
    if by == "routing":
        assert modem.receive_bytes(answer(12345, 5), 3.0) == [Noise()]
    assert modem.idle


def lora_config(preset: int | None = None, region: int = 3, **changed: int) -> bytes:
    numbers = {7: region, 9: changed.get("transmits", 1)}
    if preset is None:
        numbers |= {3: changed.get("bandwidth", 125), 4: 9, 5: 5}
    else:
        numbers |= {1: 1, 2: preset, 5: changed.get("rate", 0)}
    content = b"".join(number(*item) for item in numbers.items() if item[1])
    return from_radio(5, protobuf.bytes_field(6, content))


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (lora_config(), None),
        (lora_config(region=0), "has no region: `meshtastic --set lora.region"),
        (lora_config(transmits=0), "transmitter is off: `meshtastic --set lora.tx_enabled true`"),
        (lora_config(bandwidth=250), r"are \(9, 250, 1\), those of the settings \(9, 125, 1\)"),
        (lora_config(preset=0), r"are \(11, 250, 1\), those of"),  # LongFast
        (lora_config(preset=7), r"are \(11, 125, 4\), those of"),  # LongModerate
        (lora_config(preset=0, rate=8), r"are \(11, 250, 4\), those of"),  # the owner's rate holds
        (lora_config(preset=9, rate=5), r"are \(11, 500, 4\), those of"),  # LongTurbo: or its own
        (lora_config(preset=10), None),  # LiteFast
        (lora_config(preset=13), r"are \(8, 62, 2\), those of"),  # NarrowSlow
        (lora_config(preset=2), "preset 2 is not known here"),  # it is out of use
        (lora_config(preset=77), "preset 77 is not known here"),
        (lora_config(preset=0, region=13), None),  # at 2.4 GHz presets mean others
        (from_radio(5, protobuf.bytes_field(1, b"\x08\x01")), None),  # of another part
    ],
)
def test_a_meshtastic_node_with_other_settings_is_not_used(config, sentence) -> None:
    modem = Meshtastic(settings_for("meshtastic"), random.Random(1))
    modem.start(0.0)
    modem.handle_timeout(0.1)
    events = modem.receive_bytes(config, 0.2)
    if sentence is None:
        assert events == []
    else:
        (broken,) = events
        assert isinstance(broken, Broken)
        assert re.search(sentence, broken.reason)


def test_meshtastic_hears_only_our_port_and_not_itself() -> None:
    modem = meshtastic_up()

    def packet(sender: int, port: int) -> bytes:
        data = number(1, port) + protobuf.bytes_field(2, b"hi")
        rssi = number(12, (-93) & (1 << 64) - 1) + protobuf.fixed32_field(8, 0x40B00000)
        head = protobuf.fixed32_field(1, sender)
        return from_radio(2, head + protobuf.bytes_field(4, data) + rssi)

    stream = packet(5, 256) + packet(5, 1) + packet(77, 256)
    assert modem.receive_bytes(stream, 1.0) == [Received(b"hi", -93.0, 5.5)]


UP: dict[str, Callable[[], Dialect[Any]]] = {
    "rnode": rnode_up,
    "meshcore": meshcore_up,
    "meshtastic": meshtastic_up,
}


@pytest.mark.parametrize(
    ("dialect", "notice", "reason", "first"),
    [
        ("rnode", kiss_frame(0x55, b"\xf8"), "the modem has restarted", kiss_frame(8, b"\x73")),
        ("meshtastic", meshtastic.frame(number(8, 1)), "the node has restarted", b"\xc3" * 32),
    ],
)
def test_a_modem_that_restarts_is_set_up_again(dialect, notice, reason, first) -> None:
    modem = UP[dialect]()
    modem.send(b"x", 3.0)
    assert modem.receive_bytes(notice, 3.1) == [PayloadRefused(reason), Write(first)]
    assert not modem.ready


@pytest.mark.parametrize(
    ("dialect", "refused", "broken"),
    [
        ("rnode", "did not report that it is ready", "no RNode answers"),
        ("meshcore", "did not answer", "no MeshCore companion answers command 22"),
        ("meshtastic", "did not answer", "no Meshtastic node answers on this port"),
    ],
)
def test_a_modem_that_falls_silent_is_asked_some_times_and_given_up(
    dialect: str, refused: str, broken: str
) -> None:
    modem = UP[dialect]()
    events = modem.send(b"x", 3.0)
    while not isinstance(events[-1], Broken):
        assert modem.deadline is not None
        events += modem.handle_timeout(modem.deadline)
    assert events[-1] == Broken(f"{broken}: check wiring, port, dialect and baud_rate")
    (outcome,) = (event for event in events if isinstance(event, PayloadRefused))
    assert outcome.reason.endswith(refused)


@pytest.mark.parametrize(
    ("dialect", "radio", "payload_bytes", "microseconds"),
    [
        ("rnode", SF9, 254, airtime_us(LoraSetting(9, 125, 1, 18), 255)),  # 24 ms of preamble
        # DATA of 231 bytes fills a frame: 16 bytes of header, 6 of protobuf, 2 of flags
        ("meshtastic", LoraSetting(11, 250, 1, 16), 231, 2_156_544),
        # Where a signature of 66 bytes fits, firmware 2.8 adds it; port 64 to 127 saves a byte.
        ("meshtastic", SF9, 22, airtime_us(LoraSetting(9, 125, 1, 16), 112)),
        ("meshtastic", SF9, 166, airtime_us(LoraSetting(9, 125, 1, 16), 255)),
        ("meshtastic", SF9, 167, airtime_us(LoraSetting(9, 125, 1, 16), 191)),
        # 168 bytes in blocks of 16, and 9 around them; the firmware's preamble
        ("meshcore", LoraSetting(8, 62.5, 4), 165, airtime_us(LoraSetting(8, 62.5, 4, 32), 185)),
    ],
)
def test_airtime_counts_what_the_modem_adds(dialect, radio, payload_bytes, microseconds) -> None:
    modem = new_dialect(settings_for(dialect, radio=radio), random.Random(1))
    assert modem.airtime_us(payload_bytes) == microseconds


SAYS = {
    "a login console": (b"raspberrypi login: ", r"'raspberrypi login: '"),
    "an error to all": (b"+ERR=4\r\n", r"'+ERR=4\r\n'"),
    "a GSM modem": (b"OK\r\n", r"'OK\r\n'"),
    "NUL bytes": (b"\0\0\x1b", r"'\x00\x00\x1b'"),
    "very much": (b"x" * 10_000, "'" + "x" * 32 + "'"),
}


@pytest.mark.parametrize("what", SAYS)
@pytest.mark.parametrize("dialect", UP)
def test_what_answers_instead_of_the_modem_is_shown(dialect: str, what: str) -> None:
    modem: Dialect[Any] = new_dialect(settings_for(dialect), random.Random(1))
    modem.start(0.0)
    modem.receive_bytes(SAYS[what][0], 0.1)
    events = modem.line_idle(0.1)
    while not any(isinstance(event, Broken) for event in events):
        assert modem.deadline is not None
        events = modem.handle_timeout(modem.deadline)
    said = f"; something says {SAYS[what][1]}: check wiring, port, dialect and baud_rate"
    assert cast(Broken, events[0]).reason.endswith(said)


RESTARTS = {
    "rnode": kiss_frame(0x55, b"\xf8"),
    "meshcore": b"",  # it says nothing, and answers no frame
    "meshtastic": meshtastic.frame(number(8, 1)),
}


@pytest.mark.parametrize("patience", [3, 999])  # answers before a restart; 999: it sends first
@pytest.mark.parametrize("dialect", RESTARTS)
def test_a_modem_that_restarts_again_and_again_is_given_up(dialect: str, patience: int) -> None:
    """The transport then waits ever longer before it begins anew."""
    tuned = settings_for(dialect, radio=LoraSetting(11, 250, 1, 16), frequency_hz=869_525_000)
    modem: Dialect[Any] = new_dialect(tuned, random.Random(1))
    emulated = new_modem(dialect, 0)
    now, answered = 0.0, 0
    waiting = deque(modem.start(now))
    for _ in range(1000):
        if not waiting:
            now = max(now + 0.01, modem.deadline or 0.0)
            waiting += modem.send(b"x", now) if modem.idle else modem.handle_timeout(now)
        match waiting.popleft() if waiting else None:
            case Broken(reason):
                break
            case Write(data):
                actions = emulated.receive_bytes(data)
                answered += 1
                if answered % patience == 0 or any(isinstance(act, Transmit) for act in actions):
                    emulated.power_up()
                    waiting += modem.receive_bytes(RESTARTS[dialect], now)
                    continue
                said = b"".join(act.data for act in actions if isinstance(act, Output))
                waiting += modem.receive_bytes(said, now)
    else:
        pytest.fail("it is set up without an end")
    expected = r"(restarted|answer|is ready) \d times, and nothing was sent: check its power"
    assert re.search(expected, reason) or (patience == 3 and "answers" in reason)


CHUNKS = st.lists(
    st.binary(max_size=40)
    # what the readers take for beginnings
    | st.sampled_from([b"\0", b"\xc0", b"\xdb", b"\x94\xc3", b"\x94\xc3\1\xff"])
    | st.builds(kiss_frame, st.sampled_from(list(RnodeCommand)), st.binary(max_size=5))
    | st.builds(answer, st.sampled_from([0, 1, 5, 10, 13, 18, 27, 0x83]), st.binary(max_size=99))
    | st.builds(from_radio, st.sampled_from([2, 3, 5, 8, 11, 16]), st.binary(max_size=12))
    | st.builds(
        lambda field, value: meshtastic.frame(number(field, value)),
        st.sampled_from([2, 3, 7, 8, 11]),
        st.integers(0, 2**64 - 1),
    ),
    max_size=30,
)


@pytest.mark.parametrize("name", DIALECTS)
@settings(max_examples=60)
@given(chunks=CHUNKS, acts=st.lists(st.integers(0, 3), min_size=1, max_size=30))
def test_no_dialect_raises_whatever_the_modem_says(name: str, chunks, acts) -> None:
    modem: Dialect = new_dialect(settings_for(name), random.Random(1))
    now = 0.0
    events = modem.start(now)
    for index, chunk in enumerate(chunks):
        act = acts[index % len(acts)]
        now += 0.01
        if modem.idle and act == 1:
            events += modem.send(b"payload", now)
        if act == 2 and modem.deadline is not None:
            now = max(now, modem.deadline)
            events += modem.handle_timeout(now)
        if act == 3:
            events += modem.line_idle(now)
        events += modem.receive_bytes(chunk, now)
        if any(isinstance(event, Broken) for event in events):
            return
    settled = sum(isinstance(event, Sent | PayloadRefused) for event in events)
    tried = sum(isinstance(e, Write) and b"payload" in e.data for e in events)
    assert tried - settled in (0, 1)  # Every payload is answered for once, or is in flight.
    assert tried == settled or not modem.idle
