"""The emulated modems answer as their manuals and firmware do."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from ternmesh.link.airtime import LoraSetting
from transports.serial_lora.emulator.channel import EmulatedChannel
from transports.serial_lora.emulator.ebyte import BUFFER_MAX, EbyteModem
from transports.serial_lora.emulator.meshcore import MeshcoreModem
from transports.serial_lora.emulator.modem import Output, Pause, Reception, Transmit
from transports.serial_lora.emulator.radios import LONG_FAST, EmulatedRadios, new_modem
from transports.serial_lora.emulator.rnode import RnodeModem
from transports.serial_lora.framing import kiss_frame
from transports.serial_lora.rnode import radio_commands
from transports.serial_lora.settings import SerialLoraSettings

SECOND_US = 1_000_000


def test_a_channel_loses_its_share_with_a_seed() -> None:
    counts = []
    for seed in (1, 1, 2):
        channel = EmulatedChannel(random.Random(seed), loss=0.2)
        channel.start(0, "tuning", Transmit(b"x", SECOND_US), 0.0)
        assert channel.finish(1e9) is not None
        counts.append(sum(channel.arrives() for _ in range(10_000)))
    assert counts[0] == counts[1] != counts[2]
    assert counts[0] == pytest.approx(8000, abs=200)


def answers(actions: Sequence[object]) -> bytes:
    return b"".join(action.data for action in actions if isinstance(action, Output))


def test_ebyte_cuts_and_glues() -> None:
    modem = EbyteModem(2400)
    assert modem.receive_bytes(b"a" * 100) == [Pause(0.1)]
    (first,) = modem.receive_bytes(b"b" * 200)
    assert first.payload == b"a" * 100 + b"b" * 140
    assert first.airtime_us > 240 * 8 * SECOND_US // 2400
    assert modem.receive_bytes(b"c" * 20) == [Pause(0.1)]
    assert modem.paused() == []  # It is still sending.
    (second,) = modem.transmitted()
    assert second.payload == b"b" * 60 + b"c" * 20
    modem.receive_bytes(b"d" * 5000)
    sizes = [len(action.payload) for _ in range(9) for action in modem.transmitted()]
    assert sum(sizes) == BUFFER_MAX


def test_an_rnode_whose_radio_is_on_reads_the_frequency_of_its_chip() -> None:
    modem = RnodeModem(power_max_dbm=17)
    radio = LoraSetting(9, 125, 1)
    commands = radio_commands(
        SerialLoraSettings("/dev/ttyUSB0", "rnode", "host", {}, radio, 869_525_000, power_dbm=20)
    )
    read = [answers(modem.receive_bytes(kiss_frame(*item))) for item in commands.items()]
    assert read[0] == kiss_frame(1, (869_525_000).to_bytes(4, "big"))
    assert kiss_frame(3, b"\x11") in read, "the firmware allows no more"
    again = answers(modem.receive_bytes(kiss_frame(1, (869_525_000).to_bytes(4, "big"))))
    assert again == kiss_frame(1, (869_524_963).to_bytes(4, "big"))
    locked = RnodeModem(is_locked=True)
    assert answers(locked.receive_bytes(kiss_frame(6, b"\1"))) == 2 * kiss_frame(6, b"\0")


def test_an_rnode_refuses_as_its_firmware_does() -> None:
    rnode = RnodeModem()
    assert answers(rnode.receive_bytes(kiss_frame(6, b"\1"))) == 2 * kiss_frame(6, b"\0")
    for number, value in ((1, b"3000"), (2, bytes(4)), (3, b"x"), (4, b"\7"), (5, b"\5")):
        rnode.receive_bytes(kiss_frame(number, value))
    failed = kiss_frame(0x90, b"\1") + kiss_frame(6, b"\0")
    assert answers(rnode.receive_bytes(kiss_frame(6, b"\1"))) == failed
    assert rnode.tuning is None


def to_companion(*commands: bytes) -> bytes:
    return b"".join(b"<" + len(item).to_bytes(2, "little") + item for item in commands)


CHANNEL = b"\x20\7" + b"ours".ljust(32, b"\0") + bytes(range(16))
DATAGRAM = b"\x3e\7\xff\0\xffhello"


@pytest.mark.parametrize(
    ("commands", "answer"),
    [
        ([b"\x1f\x28"], b"\1\6"),  # no such slot
        ([b"\x4d"], b"\1\1"),  # unknown
        ([b"\x3e\7\xff\0\0no application"], b"\1\6"),
        ([b"\x3e\7\xff\0\xff" + bytes(166)], b"\1\6"),
        ([b"\x3e"], b"\1\6"),
        ([b"\x0a"], b"\x0a"),
        ([DATAGRAM + bytes([i]) for i in range(18)], b"\1\3"),  # its queue is full
    ],
)
def test_a_companion_answers_as_its_firmware_does(commands: list[bytes], answer: bytes) -> None:
    said = answers(MeshcoreModem(LONG_FAST).receive_bytes(to_companion(*commands)))
    assert said.endswith(b">" + len(answer).to_bytes(2, "little") + answer)


def test_a_companion_hears_its_channels_and_each_datagram_once() -> None:
    sender, owner, other = (MeshcoreModem(LONG_FAST) for _ in range(3))
    for modem in (sender, owner):
        modem.receive_bytes(to_companion(CHANNEL))
    other.receive_bytes(to_companion(CHANNEL[:-1] + b"!"))
    _, sent = sender.receive_bytes(to_companion(DATAGRAM))
    assert isinstance(sent, Transmit)
    heard = Reception(sent.payload, -80, -5)
    assert answers(owner.hear(heard)) == b">\1\0\x83"
    assert [modem.hear(heard) for modem in (owner, sender, other)] == [[], [], []]
    message = answers(owner.receive_bytes(to_companion(b"\x0a", b"\x0a")))
    # What meshcore 2.3.17 of PyPI reads as SNR -5.0, slot 7, application 65280, "hello"
    assert message == bytes.fromhex("3e0e001bec0000070000ff0568656c6c6f") + b">\1\0\x0a"


@pytest.mark.parametrize(
    ("hops", "loss", "reached"), [(0, 0.0, 1), (1, 0.0, 1), (3, 0.0, 1), (2, 0.3, 0.83)]
)
def test_repeaters_pass_on_everything_once(hops: int, loss: float, reached: float) -> None:
    """Of a pair of repeaters in the first hop one may hear; in the next each may hear both."""
    channel, counts, ends = EmulatedChannel(random.Random(1), loss, hops), [], []
    for number in range(400):
        channel.start(0, "tuning", Transmit(b"%d" % number, SECOND_US), 0.0)
        heard, senders = 0, []
        while (over := channel.finish(1e9)) is not None:
            senders.append(over.sender)
            assert len(senders) == len(set(senders)) <= 1 + 2 * hops
            heard += channel.reaches(over.sender, 1) and channel.arrives()
            channel.repeat(over)
            ends.append(over.end)
        counts.append(heard)
    assert sum(map(bool, counts)) / 400 == pytest.approx(reached, abs=0.07)
    assert max(counts) == (2 if hops else 1), "the last pair is heard, and nobody else"
    assert max(ends) >= 1 + 2 * hops, "they wait before they send on"
    assert loss or max(ends) <= 1 + 3.6 * hops


def test_emulated_radios_clean_up(tmp_path: Path) -> None:
    radios = EmulatedRadios([new_modem("rnode", 0)])
    radios.start()
    path = Path(radios.paths[0])
    assert path.is_symlink()
    radios.close()
    radios.close()
    assert not path.parent.exists()
    with EmulatedRadios([new_modem("rnode", 0)], folder=tmp_path):
        assert [item.name for item in tmp_path.iterdir()] == ["modem-0"]
    assert list(tmp_path.iterdir()) == []
    broken = EmulatedRadios([new_modem("rnode", 0)], folder=tmp_path / "missing")
    with pytest.raises(FileNotFoundError):
        broken.start()
    broken.close()
