"""Whole transports on real pseudo-terminals, with emulated modems at the other end."""

import logging
import os
import pty
import random
import socket
import termios
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from serial import serialposix

from ternmesh import protobuf
from ternmesh.link.airtime import LoraSetting
from ternmesh_service.alarms import BAD, alarms
from tests.faulty_radios import FaultyRadios
from tests.open_files import many_open_files
from tests.statuses import board_status
from transports.base import HOST
from transports.serial_lora import meshtastic, transport
from transports.serial_lora.emulator.modem import Action, EmulatedModem, Output, Pause
from transports.serial_lora.emulator.radios import LONG_FAST, new_modem
from transports.serial_lora.framing import kiss_frame
from transports.serial_lora.port import PortError, SerialPort
from transports.serial_lora.send_queue import Waker
from transports.serial_lora.settings import DIALECTS, SerialLoraSettings
from transports.serial_lora.transport import SerialLoraTransport

SPEED = 400.0
WAIT_S = 10.0
ROLES = (HOST, "ada", "bob")
RNODE_DATA, MESHTASTIC_PACKET = b"\xc0\0", b"\x0a"  # the latter behind 4 bytes
Fleet = tuple[FaultyRadios, list[SerialLoraTransport]]
NewFleet = Callable[..., Fleet]


@pytest.fixture
def new_fleet(eventually) -> Iterator[NewFleet]:
    """A function that plugs in modems and opens an end on each: the host, ada, bob."""
    started: list[FaultyRadios] = []
    opened: list[SerialLoraTransport] = []

    def make(dialect: str, ends: int = 2, *, speed: float = SPEED, **options: Any) -> Fleet:
        for_air = {key: options.pop(key) for key in ("loss",) if key in options}
        budget = options.pop("budget", None)
        modems = [new_modem(dialect, index) for index in range(ends)]
        radios = FaultyRadios(modems, speed=speed, seed=7, **for_air)
        started.append(radios)
        radios.start()
        made = [
            SerialLoraTransport(settings_for(dialect, path, role, speed=speed, **options), budget)
            for path, role in zip(radios.paths, ROLES, strict=False)
        ]
        opened.extend(made)
        for end in made:
            end.open()
        eventually(lambda: all(end.connected for end in made))
        return radios, made

    yield make
    for end in opened:
        end.close()
    for radios in started:
        radios.close()


def settings_for(dialect: str, path: str, role: str, **options: Any) -> SerialLoraSettings:
    radio = LONG_FAST if dialect in ("meshtastic", "meshcore") else LoraSetting(7)
    fixed: dict[str, Any] = {
        "radio": radio,
        "frequency_hz": 869_525_000,
        "addresses": {"ada": 1, "bob": 2},
    }
    fast = {"reconnect_min_s": 0.02, "reconnect_max_s": 0.1, "answer_margin_s": 1.0}
    return SerialLoraSettings(path, dialect, role, **(fixed | fast | options))


def frames_from(end: SerialLoraTransport, count: int) -> list[bytes]:
    arrivals = [end.receive(WAIT_S) for _ in range(count)]
    return [arrival.frames[0] for arrival in arrivals if arrival is not None]


@pytest.mark.parametrize("shape", ["split", "glued"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_lines_that_are_split_glued_and_noisy_cost_nothing(new_fleet, dialect, shape) -> None:
    radios, (host, ada) = new_fleet(dialect)
    rng = random.Random(3)
    for index in range(2):
        radios.shape(index, shape)
    for i in range(10):
        radios.garble(0, rng.randbytes(50) + b"\r\n\0\xc0")
        up, down = bytes([i]) + rng.randbytes(100), bytes([i])
        ada.send(HOST, [up])
        host.send("ada", [down])
        assert (frames_from(host, 1), frames_from(ada, 1)) == ([up], [down])
    numbers = host.status().numbers
    assert (host.connected, numbers["reconnects"]) == (True, 0)
    assert numbers["malformed"] > 0 or dialect in ("meshtastic", "meshcore")  # where it is log text
    assert ("ada" in host.status().signal) is (dialect in ("meshtastic", "rnode"))


def test_the_beginning_of_a_message_that_never_comes_holds_up_nothing_for_long(
    new_fleet, monkeypatch
) -> None:
    monkeypatch.setattr(transport, "STALLED_S", 0.3)
    radios, (host, ada) = new_fleet("meshtastic")
    radios.garble(0, b"\x94\xc3\x01\xf0")
    ada.send(HOST, [b"kept"])
    assert frames_from(host, 1) == [b"kept"]


def test_datagrams_of_another_application_are_foreign_and_no_damage(new_fleet, eventually) -> None:
    radios, (host, _) = new_fleet("meshcore")
    radios.garble(0, b">\x0e\0\x1b\xec\0\0\7\0\x10\1\5hello")
    eventually(lambda: host.status().numbers["foreign"] == 1)
    assert host.status().numbers["malformed"] == 0


def test_what_waits_when_the_modem_goes_is_counted_as_lost(new_fleet, eventually) -> None:
    radios, (_, ada) = new_fleet("rnode", speed=1.0)
    ada.send(HOST, [b"x" * 100] * 5)
    eventually(lambda: ada.status().numbers["queued"] == 4)
    radios.unplug(1)
    eventually(lambda: ada.status().numbers["lost"] == 5)
    assert (ada.status().numbers["queued"], ada.status().numbers["frames_out"]) == (0, 0)


def test_writes_that_get_stuck_end_and_the_modem_is_used_again(new_fleet, eventually) -> None:
    """An EBYTE modem says nothing, so only the full line tells that it no longer reads."""
    radios, (host, ada) = new_fleet("ebyte", write_timeout_s=0.1, queue_max=1000, speed=1000.0)
    radios.set_reading(1, False)
    ada.send(HOST, [b"x" * ada.mtu] * 300)
    eventually(lambda: "takes no more bytes" in str(ada.status().last_error))
    radios.set_reading(1, True)
    eventually(lambda: ada.connected)
    while host.receive(0.2):  # what was in the line
        pass
    ada.send(HOST, [b"again"])
    assert frames_from(host, 1) == [b"again"]
    radios.set_reading(1, False)
    ada.send(HOST, [b"x" * ada.mtu] * 300)
    ada.close()  # it does not wait for a modem that is stuck
    assert not ada.connected


@pytest.mark.parametrize(
    ("dialect", "codes", "is_refused"),
    [
        ("rnode", [4, 4], False),
        ("meshcore", [3, 3], False),
        ("meshtastic", [9], False),  # its duty cycle is used up: after a pause
        ("rnode", [2], True),
        ("rnode", [4, 4, 4], True),
        ("meshtastic", [5], True),
        ("meshcore", [6], True),
    ],
)
def test_what_the_modem_could_not_take_is_offered_again_unless_that_is_useless(
    new_fleet, eventually, dialect: str, codes: list[int], is_refused: bool
) -> None:
    radios, (host, ada) = new_fleet(dialect)
    radios.fail_next(1, *codes)
    ada.send(HOST, [b"first", b"second"])
    left = [b"second"] if is_refused else [b"first", b"second"]
    assert frames_from(host, len(left)) == left
    eventually(lambda: ada.status().numbers["frames_out"] == len(left))
    assert ada.status().numbers["refused"] == is_refused
    assert sum(ada.status().refusals.values()) == is_refused  # frames, not tries


def answers_no_send(modem: EmulatedModem, answer: bytes) -> None:
    """Let a modem be set up, and say `answer` to each frame instead of sending it."""
    receive_bytes = modem.receive_bytes

    def receive(data: bytes) -> list[Action]:
        if data.startswith(RNODE_DATA) or data[4:].startswith(MESHTASTIC_PACKET):
            return [Output(answer)] if answer else []
        return receive_bytes(data)

    modem.__dict__["receive_bytes"] = receive


@pytest.mark.parametrize(
    ("dialect", "answer", "reason"),
    [
        ("meshtastic", b"", "the node did not answer"),
        ("rnode", kiss_frame(0x90, b"\2"), "error 2, sending failed"),
    ],
)
def test_a_modem_that_sends_no_frame_is_spoken_of(
    eventually, caplog, dialect: str, answer: bytes, reason: str
) -> None:
    caplog.set_level(logging.INFO)
    modem = new_modem(dialect, 0)
    answers_no_send(modem, answer)
    with FaultyRadios([modem], speed=SPEED) as radios:
        settings = settings_for(dialect, radios.paths[0], "ada", answer_margin_s=0.01)
        with closing(SerialLoraTransport(settings)) as ada:
            ada.open()
            eventually(lambda: ada.connected)
            ada.send(HOST, [b"one", b"two"])
            eventually(lambda: ada.status().numbers["refused"] == 2 and ada.connected)
            status = ada.status()
    (alarm,) = alarms(replace(board_status(), transport=status))
    assert (alarm.level, alarm.text.partition(": ")[2][:24]) == (BAD, "2 frames were not sent: ")
    assert alarm.text.endswith("; not one was sent")
    assert f"{radios.paths[0]} has not sent a frame: {reason}" in caplog.text
    assert f"{radios.paths[0]}: the {dialect} modem is connected" in caplog.text


@pytest.mark.parametrize("dialect", ["meshtastic", "rnode"])
def test_a_port_that_is_open_is_not_called_closed(eventually, dialect: str) -> None:
    """While its modem is set up, which takes half a minute where it is none."""
    modem = new_modem(dialect, 0)
    modem.__dict__["receive_bytes"] = lambda data: []
    radios = FaultyRadios([modem], speed=SPEED)
    ada = SerialLoraTransport(settings_for(dialect, radios.paths[0], "ada"))
    with radios, closing(ada):
        assert ada.status().last_error == "not opened yet"
        ada.open()
        open_ = f"{radios.paths[0]} is open, its modem has not answered yet"
        eventually(lambda: ada.status().last_error == open_)
        radios.unplug(0)
        eventually(lambda: "is it unplugged?" in str(ada.status().last_error))
        radios.replug(0)
        eventually(lambda: str(ada.status().last_error).startswith(f"{open_}; before: "))


class Purse:
    """A budget that grants so many frames, and then none for an hour."""

    left_us = None

    def __init__(self, frames: int) -> None:
        self.frames = frames
        self.granted: list[int] = []
        self.closed = 0

    def may_send(self, airtime_us: int) -> float:
        if len(self.granted) >= self.frames:
            return 3600.0
        self.granted.append(airtime_us)
        return 0.0

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("dialect", DIALECTS)
def test_no_frame_leaves_without_its_airtime(new_fleet, eventually, dialect) -> None:
    purse = Purse(2)
    _, (host, ada) = new_fleet(dialect, budget=purse)
    ada.send(HOST, [b"x" * 100, b"x" * 150, b"never"])
    assert frames_from(host, 2) == [b"x" * 100, b"x" * 150]
    eventually(lambda: ada.status().numbers["frames_out"] == 2)
    assert purse.granted == [ada.airtime_us(100), ada.airtime_us(150)]
    assert ada.status().airtime_us == sum(purse.granted)
    assert (ada.status().numbers["queued"], host.receive(0)) == (1, None)
    ada.close()
    eventually(lambda: purse.closed >= 1)


def test_a_port_is_opened_once_only(new_fleet, eventually) -> None:
    _, (host, _) = new_fleet("rnode")
    rival = SerialLoraTransport(host.settings)
    rival.open()
    try:
        eventually(lambda: "another program has it" in str(rival.status().last_error))
    finally:
        rival.close()
    assert host.connected


def test_closing_a_port_does_not_reset_the_modem(tmp_path) -> None:
    with FaultyRadios([new_modem("rnode", 0)], folder=tmp_path) as radios, closing(Waker()) as w:
        # Not as our terminal: with it would go whoever leads the session, when it is unplugged.
        handle = os.open(radios.paths[0], os.O_RDONLY | os.O_NOCTTY)
        with open(handle, "rb", buffering=0) as device:
            attributes = termios.tcgetattr(device)
            attributes[2] |= termios.HUPCL
            termios.tcsetattr(device, termios.TCSANOW, attributes)
            with closing(SerialPort(radios.paths[0], 115_200, 1.0, w)):
                assert not termios.tcgetattr(device)[2] & termios.HUPCL


QUICK = {  # how soon a dialect asks again, and gives up
    "rnode": {"rnode.ANSWER_S": 0.05},
    "meshcore": {"meshcore.ANSWER_S": 0.05},
    "meshtastic": {"meshtastic.HANDSHAKE_S": 0.05, "meshtastic.WAKE_S": 0.02},
}
BOOT_TEXT = (
    b"rst:0x1 (POWERON_RESET),boot:0x13\r\nload:0x3fff0030,len:1184 +x=\r\nentry 0x400\xc0\r\n"
)


def boots_slowly(modem: EmulatedModem, pause_s: float) -> None:
    """Let a modem be deaf after each start, and say what an ESP32 says."""
    power_up, receive_bytes = modem.power_up, modem.receive_bytes
    deaf = [False]

    def slow_power_up() -> list[Action]:
        deaf[0] = True
        return [Output(BOOT_TEXT), Pause(pause_s)]

    def paused() -> list[Action]:
        deaf[0] = False
        return power_up()

    modem.__dict__.update(
        power_up=slow_power_up,
        paused=paused,
        receive_bytes=lambda data: [] if deaf[0] else receive_bytes(data),
    )


def restarts_when_opened(radios: FaultyRadios, opened: list[str]) -> type[SerialPort]:
    """A port whose modem restarts each time that it is opened, as DTR makes many boards do."""

    class Restarting(SerialPort):
        def __init__(self, path: str, *options: Any) -> None:
            super().__init__(path, *options)
            opened.append(path)
            index = radios.paths.index(path)
            radios._do(lambda: radios._act(index, radios.modems[index].power_up()))

    return Restarting


@pytest.mark.parametrize("dialect", QUICK)
def test_a_modem_that_restarts_when_its_port_is_opened_is_opened_once(
    monkeypatch, eventually, dialect
) -> None:
    for name, seconds in QUICK[dialect].items():
        monkeypatch.setattr(f"transports.serial_lora.{name}", seconds)
    modem = new_modem(dialect, 0)
    boots_slowly(modem, 3 * SPEED)  # three seconds: much longer than the dialect's patience
    with FaultyRadios([modem], speed=SPEED) as radios:
        opened: list[str] = []
        port = restarts_when_opened(radios, opened)
        monkeypatch.setattr("transports.serial_lora.transport.SerialPort", port)
        with closing(SerialLoraTransport(settings_for(dialect, radios.paths[0], HOST))) as host:
            host.open()
            eventually(lambda: "answer" in str(host.status().last_error))
            eventually(lambda: host.connected)
        assert opened == radios.paths


@pytest.mark.parametrize("dialect", QUICK)
def test_a_modem_that_answers_later_than_it_should_is_set_up(
    monkeypatch, eventually, dialect
) -> None:
    for name in QUICK[dialect]:
        wait_s = 0.03 if name.endswith("WAKE_S") else 0.3
        monkeypatch.setattr(f"transports.serial_lora.{name}", wait_s)
    with FaultyRadios([new_modem(dialect, 0)], speed=SPEED) as radios:
        radios.lines[0].late_s = 0.36
        with closing(SerialLoraTransport(settings_for(dialect, radios.paths[0], HOST))) as host:
            host.open()
            eventually(lambda: host.connected)


@pytest.mark.parametrize(("dtr", "rts"), [(True, True), (False, True), (False, False)])
def test_the_control_lines_of_the_port_are_set(monkeypatch, eventually, dtr, rts) -> None:
    """A pseudo-terminal has none: what pyserial asks of the system is looked at."""
    asked = {}
    real = serialposix.fcntl.ioctl

    def ioctl(descriptor: int, request: int, content: Any = 0) -> Any:
        if request in (serialposix.TIOCMBIS, serialposix.TIOCMBIC):
            asked[content] = request == serialposix.TIOCMBIS
            return 0
        return real(descriptor, request, content)

    monkeypatch.setattr(serialposix.fcntl, "ioctl", ioctl)
    with FaultyRadios([new_modem("ebyte", 0)]) as radios:
        settings = settings_for("ebyte", radios.paths[0], HOST, dtr=dtr, rts=rts)
        with closing(SerialLoraTransport(settings)) as host:
            host.open()
            eventually(lambda: host.connected)
    assert asked == {serialposix.TIOCM_DTR_str: dtr, serialposix.TIOCM_RTS_str: rts}


def test_a_notice_of_a_meshtastic_node_is_shown(new_fleet, eventually, caplog) -> None:
    radios, (_, ada) = new_fleet("meshtastic")
    for minutes in range(20):
        text = f"Duty cycle limit exceeded. You can send again in {minutes} mins\x1b[2J"
        notice = protobuf.bytes_field(4, text.encode())
        radios.garble(1, meshtastic.frame(protobuf.bytes_field(16, notice)))
    shown = "it says: Duty cycle limit exceeded. You can send again in 19 mins[2J"
    eventually(lambda: ada.status().remarks == (shown,))
    assert caplog.text.count("You can send again") == 1


def test_ports_work_beside_many_open_files(new_fleet) -> None:
    """`select` knows 1,024 descriptors only."""
    with (
        many_open_files(),
        closing(Waker()) as waker,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        ours, theirs = pty.openpty()
        assert theirs > 1024
        url = f"socket://127.0.0.1:{server.getsockname()[1]}"
        for path in (os.ttyname(theirs), url):
            with closing(SerialPort(path, 115_200, 1.0, waker)) as port:
                far = server.accept()[0].detach() if path == url else ours
                port.write(b"question\n")
                assert os.read(far, 100).strip() == b"question"
                os.write(far, b"answer\n")
                assert port.read(10.0).strip() == b"answer"
                os.close(far)


def test_a_wait_for_bytes_can_be_ended(tmp_path) -> None:
    with (
        closing(Waker()) as waker,
        FaultyRadios([new_modem("ebyte", 0)], folder=tmp_path) as radios,
        closing(SerialPort(radios.paths[0], 9600, 1.0, waker)) as port,
    ):
        waker.wake()
        waker.wake()
        assert port.read(60.0) == b""
        radios.unplug(0)
        for use in (lambda: port.read(60.0), lambda: port.write(b"x")):
            with pytest.raises(PortError, match="lost"):
                use()
    waker.wake()  # Nothing happens after the end.


@pytest.mark.parametrize(
    ("path", "why"), [("/dev/null", "not a serial port"), ("/dev", "a folder")]
)
def test_what_is_no_serial_port_is_called_so(path: str, why: str) -> None:
    with closing(Waker()) as waker, pytest.raises(PortError, match=f"open {path}: this is {why}"):
        SerialPort(path, 9600, 1.0, waker)


def test_a_node_whose_number_changes_is_the_same_board_and_silence_is_remarked(
    new_fleet, eventually, monkeypatch
) -> None:
    monkeypatch.setattr(transport, "UNHEARD", 3)
    radios, (host, ada) = new_fleet("meshtastic")
    for count in (1, 2):
        ada.send(HOST, [b"frame"])
        eventually(lambda count=count: host.counters.frames_in == count)
        radios.modems[1]._node += 1  # since 2.8 it follows from the node's key
    assert host.receive(0.0).peer == "ada"
    assert host.status().remarks == ada.status().remarks == ()
    ada.send(HOST, [b"frame"])
    eventually(lambda: host.counters.frames_in == 3)
    assert "3 frames have left since one came" in ada.status().remarks[0]
