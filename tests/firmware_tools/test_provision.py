"""Radio modems are set up from one file: emulated ones, on real pseudo-terminals."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_tools.errors import FirmwareError, NoAnswer
from firmware_tools.radios.ebyte import EbyteProvisioner
from firmware_tools.radios.ebyte_registers import (
    FAILED,
    MODELS,
    REGISTERS,
    RegisterReader,
    channel_of,
    named,
    packed,
    power_code,
)
from firmware_tools.radios.fleet_file import read_radio_fleet
from firmware_tools.radios.provision import probe, provision
from ternmesh.config import ConfigError
from ternmesh_cli import main
from tests.faulty_radios import FaultyRadios
from tests.transports.serial_lora.test_transport import boots_slowly, restarts_when_opened
from transports.serial_lora.emulator.ebyte import EbyteModem
from transports.serial_lora.emulator.modem import Action, Output


def fleet_text(dialect: str = "ebyte", **radio: object) -> str:
    lines = ['region = "EU868"', 'ebyte_model = "E22-900T22"', "[radio]", f'dialect = "{dialect}"']
    settings = {"frequency_hz": 867_125_000, "spreading_factor": 8, **radio}
    lines += [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    lines += ["[addresses]", *(f"board-{n} = {n}" for n in range(1, 4))]
    return "\n".join(lines)


def fleet(**radio: object):
    return read_radio_fleet(fleet_text("ebyte", **radio))


class EbyteInConfiguration(EbyteModem):
    """An EBYTE modem whose M1 is high: it takes commands."""

    def __init__(self) -> None:
        super().__init__()
        self.baud = 9600
        self.registers = bytearray.fromhex("0000006200120300")[:7]  # as it comes from the factory
        self.fixed_channel = b""

    def receive_bytes(self, data: bytes) -> list[Action]:
        """Read or write registers; a command comes in one piece."""
        first, count = data[1:2], data[2:3]
        if len(data) < 3 or first[0] + count[0] > len(self.registers):
            return [Output(b"\xff\xff\xff")]
        at = slice(first[0], first[0] + count[0])
        if data[0] == 0xC0 and len(data) == 3 + count[0] and not self.fail_next:
            self.registers[at] = data[3:]
            self.registers[5:6] = self.fixed_channel or self.registers[5:6]
            return [Output(b"\xc1" + data[1:])]
        if data[0] != 0xC1 or len(data) != 3:
            return [Output(b"\xff\xff\xff")]
        return [Output(b"\xc1" + first + count + bytes(self.registers[at]))]


def set_up(radios: FaultyRadios, **radio: object):
    return provision(radios.paths[0], "board-1", fleet(**radio), is_dry=False)


@pytest.fixture(autouse=True)
def no_board_restarts(monkeypatch) -> None:
    """Emulated modems are there as soon as their port is opened."""
    monkeypatch.setattr("firmware_tools.radios.provision.BOOT_S", 0.1)


@pytest.fixture
def modem() -> EbyteInConfiguration:
    return EbyteInConfiguration()


@pytest.fixture
def radios(modem):
    with FaultyRadios([modem], speed=50) as found:
        yield found


def test_a_modem_is_found_and_set_up_whatever_rate_it_is_to_have(radios) -> None:
    assert probe(radios.paths[0]).settings["channel"] == "18"
    radios.garble(0, b"\xff\xc0\x94\xc3\x00" * 3)
    outcome = set_up(radios, baud_rate=115_200)
    assert outcome.result == "changed", outcome
    assert outcome.changes["baud_rate"] == ("9600", "115200")
    radios.unplug(0)
    radios.replug(0)  # what it has kept without power
    assert set_up(radios, baud_rate=115_200).result == "unchanged"
    now = probe(radios.paths[0]).settings
    assert now["network_id"] == "18", (
        "all modems of a fleet have it, also those of earlier versions"
    )
    assert now.items() >= fleet(baud_rate=115_200).wanted("board-1").items()


def test_a_modem_that_restarts_when_its_port_is_opened_is_found(monkeypatch, modem, radios) -> None:
    """The port is opened once."""
    monkeypatch.setattr("firmware_tools.radios.provision.BOOT_S", 2.0)
    boots_slowly(modem, 1.5 * radios.speed)
    opened: list[str] = []
    port = restarts_when_opened(radios, opened)
    monkeypatch.setattr("firmware_tools.radios.ebyte.SerialPort", port)
    outcome = set_up(radios)
    assert outcome.result == "changed", outcome
    assert opened == radios.paths


def test_a_modem_that_answers_slowly_is_set_up(radios) -> None:
    radios.lines[0].late_s = 0.8
    assert set_up(radios).result == "changed"


def test_a_modem_that_nobody_knows_ends_with_a_sentence(monkeypatch, modem, radios) -> None:
    monkeypatch.setattr("firmware_tools.radios.ebyte.ANSWER_S", 0.2)
    modem.baud = 1200
    sentence = "no EBYTE modem answers C1 00 07 at 9600 baud.*M1 to high"
    with pytest.raises(NoAnswer, match=sentence):
        probe(radios.paths[0])
    outcome = provision(radios.paths[0], "host", fleet(), is_dry=False)
    assert re.search(sentence, outcome.reason)


def test_a_setting_that_the_modem_does_not_keep_is_named_and_the_others_are_taken_back(
    modem, radios
) -> None:
    before = probe(radios.paths[0]).settings
    modem.fixed_channel = b"\x12"
    outcome = set_up(radios, frequency_hz=866_125_000, air_rate_bps=9600)
    assert outcome.result == "failed"
    assert "has not kept channel" in outcome.reason
    assert "it has again what it had before" in outcome.reason
    assert probe(radios.paths[0]).settings == before


def test_a_modem_that_refuses_is_not_taken_for_set_up(modem, radios) -> None:
    modem.fail_next = [1]
    outcome = set_up(radios)
    assert outcome.result == "failed"
    assert "refuses registers" in outcome.reason


# The file


@pytest.mark.parametrize(
    ("dialect", "old", "new", "sentence"),
    [
        ("ebyte", "867125000", "869125000", "keeps for alarms"),
        ("ebyte", "EU868", "Mars", "region is 'Mars'"),
        ("ebyte", "spreading_factor = 8", "spreading_factor = 13", "spreading factor 13"),
        ("ebyte", '"ebyte"', '"reyax"', "dialect is 'reyax': it must be one of rnode, ebyte, mesh"),
        ("ebyte", '"ebyte"', '"ebyte"\nport = "/dev/x"', "radio.port does not belong"),
        ("ebyte", "867125000", "867125000\npower_dbm = 20", "20 dBm is too strong"),
        ("ebyte", "board-2 = 2", "board-2 = 1", "two nodes have the same address"),
        ("ebyte", "frequency_hz = 867125000", "", "frequency_hz is missing"),
        ("ebyte", 'ebyte_model = "E22-900T22"', "", "ebyte_model is missing"),
        ("meshtastic", "", "", "whose modems need no file"),
        ("ebyte", "867125000", "868125000", "not inside one sub-band"),
        ("ebyte", "E22-900T22", "E22-400T22", "cannot send at"),
        ("ebyte", "E22-900T22", "E220", "ebyte_model is 'E220'"),
        ("ebyte", "spreading_factor = 8", "power_dbm = 5", "10 dBm at least"),
    ],
)
def test_a_wrong_file_is_refused_before_any_port_is_opened(dialect, old, new, sentence) -> None:
    with pytest.raises(ConfigError, match=sentence):
        read_radio_fleet(fleet_text(dialect).replace(old, new))


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda data: data.decode("latin-1")))
def test_any_text_is_a_file_or_refused(text: str) -> None:
    try:
        read_radio_fleet(text)
    except ConfigError:
        return


@given(st.binary(min_size=REGISTERS, max_size=REGISTERS))
def test_registers_and_their_names(data: bytes) -> None:
    assert packed(named(data)) == data


@given(st.binary(max_size=40), st.binary(min_size=REGISTERS, max_size=REGISTERS), st.data())
def test_an_answer_is_found_in_any_stream(noise: bytes, registers: bytes, data) -> None:
    noise = noise.replace(b"\xff", b"\1").replace(b"\xc1", b"\1")
    stream = noise + b"\xc1\0\7" + registers
    cut = data.draw(st.integers(0, len(stream)))
    reader = RegisterReader()
    assert reader.feed(stream[:cut]) + reader.feed(stream[cut:]) == [registers]
    assert RegisterReader().feed(noise + FAILED) == [b""]


def test_channels_and_values_that_there_are_not() -> None:
    high, low = MODELS["E22-900T22"], MODELS["E22-400T30"]
    assert (channel_of(high, 868_125_000), channel_of(low, 433_125_000)) == (18, 23)
    for frequency in (869_525_000, 433_125_000):
        with pytest.raises(FirmwareError, match="cannot send at"):
            channel_of(high, frequency)
    assert (power_code(high, 14), power_code(low, 24)) == (2, 2)
    with pytest.raises(FirmwareError, match="21 dBm at least"):
        power_code(low, 14)
    wrong = named(bytes(7)) | {"air_rate_bps": "777"}
    with pytest.raises(FirmwareError, match="air_rate_bps is 777"):
        packed(wrong)


# The command


def test_the_command_sets_up_a_fleet_and_says_what_is_wrong(radios, tmp_path, capsys) -> None:
    path = tmp_path / "radios.toml"
    path.write_text(fleet_text())
    ours = str(path), "--port", f"board-1={radios.paths[0]}"
    assert main.main(["firmware", "verify", *ours]) == 1
    assert "channel        18 -> 17" in capsys.readouterr().out
    with EbyteProvisioner(radios.paths[0]):
        assert main.main(["firmware", "provision", *ours]) == 1
        assert "another program has it" in capsys.readouterr().out
    assert main.main(["firmware", "provision", *ours, "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert (row["result"], row["name"]) == ("changed", "board-1")
    assert main.main(["firmware", "verify", *ours]) == 0
    assert "1 of 1 modems are right" in capsys.readouterr().out
    assert main.main(["firmware", "probe", radios.paths[0], str(tmp_path / "none"), "--json"]) == 0
    found, missing = json.loads(capsys.readouterr().out)
    assert found["settings"]["channel"] == "17"
    assert "no such device" in missing["reason"]
    assert main.main(["firmware", "probe"]) == 2
    assert main.main(["firmware", "verify", *ours, "--port", f"host={radios.paths[0]}"]) == 2
    assert "each port once" in capsys.readouterr().err
    assert main.main(["firmware", "provision", str(path), "--port", "board-7=/dev/x"]) == 2
    assert "board-7 is not in [addresses]" in capsys.readouterr().err
