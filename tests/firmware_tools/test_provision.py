"""Radio modems are set up from one file: emulated ones, on real pseudo-terminals."""

import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmware_tools.errors import FirmwareError, NoAnswer
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
from firmware_tools.radios.modems import BY_DIALECT, Line
from firmware_tools.radios.provision import probe, provision
from ternmesh.config import ConfigError
from ternmesh_cli import main
from tests.faulty_radios import FaultyRadios
from tests.transports.serial_lora.test_transport import boots_slowly, restarts_when_opened
from transports.serial_lora.emulator.ebyte import EbyteModem
from transports.serial_lora.emulator.modem import Action, Output
from transports.serial_lora.emulator.radios import new_modem

DIALECTS = tuple(BY_DIALECT)


def fleet_text(dialect: str = "reyax", **radio: object) -> str:
    lines = ['region = "EU868"', 'ebyte_model = "E22-900T22"', "[radio]", f'dialect = "{dialect}"']
    frequency = 867_125_000 if dialect == "ebyte" else 869_525_000
    settings = {"frequency_hz": frequency, "spreading_factor": 8, **radio}
    lines += [f"{name} = {json.dumps(value)}" for name, value in settings.items() if value]
    lines += ["[addresses]", *(f"board-{n} = {n}" for n in range(1, 4))]
    return "\n".join(lines)


def fleet(dialect: str = "reyax", **radio: object):
    return read_radio_fleet(fleet_text(dialect, **radio))


class EbyteInConfiguration(EbyteModem):
    """An EBYTE modem whose M1 is high: it takes commands."""

    def __init__(self) -> None:
        super().__init__()
        self.baud = 9600
        self.registers = bytearray.fromhex("0000006200120300")[:7]  # as it comes from the factory

    def receive_bytes(self, data: bytes) -> list[Action]:
        """Read or write registers; a command comes in one piece."""
        first, count = data[1:2], data[2:3]
        if len(data) < 3 or first[0] + count[0] > len(self.registers):
            return [Output(b"\xff\xff\xff")]
        at = slice(first[0], first[0] + count[0])
        if data[0] == 0xC0 and len(data) == 3 + count[0] and not self.fail_next:
            self.registers[at] = data[3:]
        elif data[0] != 0xC1 or len(data) != 3:
            return [Output(b"\xff\xff\xff")]
        return [Output(b"\xc1" + first + count + bytes(self.registers[at]))]


def new(dialect: str, index: int = 0):
    return EbyteInConfiguration() if dialect == "ebyte" else new_modem(dialect, index)


def set_up(radios: FaultyRadios, index: int, dialect: str = "reyax", **radio: object):
    return provision(radios.paths[index], "board-1", fleet(dialect, **radio), is_dry=False)


@pytest.fixture(autouse=True)
def no_board_restarts(monkeypatch) -> None:
    """Emulated modems are there as soon as their port is opened."""
    monkeypatch.setattr("firmware_tools.radios.provision.BOOT_S", 0.1)


@pytest.fixture
def radios():
    with FaultyRadios([new(dialect) for dialect in DIALECTS], speed=50) as found:
        yield found


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_modem_of_each_dialect_is_found_and_set_up(radios, tmp_path, dialect) -> None:
    index = DIALECTS.index(dialect)
    found = probe(radios.paths[index])
    assert found.dialect == dialect
    radios.garble(index, b"\xff\xc0\x94\xc3\x00+RCV=\r\n" * 3)
    outcome = set_up(radios, index, dialect)
    assert outcome.result == "changed", outcome
    own = fleet(dialect)
    radios.unplug(index)
    radios.replug(index)  # what it has kept without power
    assert set_up(radios, index, dialect).result == "unchanged"
    now = probe(radios.paths[index]).settings
    assert now.items() >= own.wanted("board-1").items()


def test_a_modem_at_another_baud_rate_is_found_and_gets_that_of_the_file(radios, tmp_path) -> None:
    radios.modems[0].baud = 9600
    assert probe(radios.paths[0]).baud == 9600
    radios.modems[0].settings["IPR"] = "9600"
    outcome = set_up(radios, 0)
    assert outcome.changes["IPR"] == ("9600", "115200"), outcome
    assert outcome.is_right
    assert (radios.modems[0].baud, probe(radios.paths[0]).baud) == (115_200, 115_200)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_modem_that_restarts_when_its_port_is_opened_is_found(
    monkeypatch, radios, dialect
) -> None:
    """And one that answers slowly: the port is opened once."""
    monkeypatch.setattr("firmware_tools.radios.provision.BOOT_S", 2.0)
    index = DIALECTS.index(dialect)
    boots_slowly(radios.modems[index], 1.5 * radios.speed)
    opened: list[str] = []
    monkeypatch.setattr(
        "firmware_tools.radios.modems.SerialPort", restarts_when_opened(radios, opened)
    )
    outcome = set_up(radios, index, dialect)
    assert outcome.result == "changed", outcome
    assert opened == [radios.paths[index]]


def test_a_modem_that_answers_slowly_is_found(monkeypatch, radios) -> None:
    monkeypatch.setattr("firmware_tools.radios.provision.BOOT_S", 2.0)
    radios.lines[0].late_s = 0.8
    assert probe(radios.paths[0]).dialect == "reyax"


def test_a_modem_that_nobody_knows_ends_with_a_sentence(radios) -> None:
    radios.modems[0].baud = 1200
    with pytest.raises(NoAnswer, match="no modem of a known dialect answers"):
        probe(radios.paths[0])
    outcome = provision(radios.paths[0], "host", fleet(), is_dry=False)
    assert "does not answer AT at 115200 baud" in outcome.reason


def test_a_setting_that_the_modem_refuses_is_named_and_the_others_are_taken_back(
    radios, tmp_path
) -> None:
    before = probe(radios.paths[0]).settings
    radios.modems[0].refuses = "CRFOP"
    outcome = set_up(radios, 0)
    assert outcome.result == "failed"
    assert "refuses AT+CRFOP=14" in outcome.reason
    assert "it has again what it had before" in outcome.reason
    assert probe(radios.paths[0]).settings == before


# The file


@pytest.mark.parametrize(
    ("dialect", "old", "new", "sentence"),
    [
        ("reyax", "869525000", "869300000", "keeps for alarms"),
        ("reyax", "EU868", "Mars", "region is 'Mars'"),
        ("reyax", "spreading_factor = 8", "spreading_factor = 13", "spreading factor 13"),
        ("reyax", '"reyax"', '"semaphore"', "dialect is 'semaphore': it must be one of"),
        ("reyax", '"reyax"', '"reyax"\nport = "/dev/x"', "radio.port does not belong"),
        ("reyax", "869525000", "868300000\npower_dbm = 20", "20 dBm is too strong"),
        ("reyax", "board-2 = 2", "board-2 = 1", "two nodes have the same address"),
        ("reyax", "frequency_hz = 869525000", "", "frequency_hz"),
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


def test_frames_on_the_air_are_no_answers(radios, tmp_path) -> None:
    done = threading.Event()

    def noise() -> None:
        while not done.wait(0.02):
            radios.garble(0, b"+ERR=12\r\n")
            radios.garble(0, b"+RCV=5,3,abc,-80,7\r\n")

    thread = threading.Thread(target=noise)
    thread.start()
    try:
        assert set_up(radios, 0).is_right
    finally:
        done.set()
        thread.join()


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
    assert "BAND           915000000 -> 869525000" in capsys.readouterr().out
    with Line(radios.paths[0], 115_200):
        assert main.main(["firmware", "provision", *ours]) == 1
        assert "another program has it" in capsys.readouterr().out
    assert main.main(["firmware", "provision", *ours, "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert (row["result"], row["name"]) == ("changed", "board-1")
    assert main.main(["firmware", "verify", *ours]) == 0
    assert "1 of 1 modems are right" in capsys.readouterr().out
    assert main.main(["firmware", "probe", radios.paths[0], str(tmp_path / "none"), "--json"]) == 0
    found, missing = json.loads(capsys.readouterr().out)
    assert found["settings"]["ADDRESS"] == "1"
    assert "no such device" in missing["reason"]
    assert main.main(["firmware", "probe"]) == 2
    assert main.main(["firmware", "verify", *ours, "--port", f"host={radios.paths[0]}"]) == 2
    assert "each port once" in capsys.readouterr().err
    assert main.main(["firmware", "provision", str(path), "--port", "board-7=/dev/x"]) == 2
    assert "board-7 is not in [addresses]" in capsys.readouterr().err
