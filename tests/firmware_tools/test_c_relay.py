"""The relay in C, as a process: a LoRa modem (emulated) on one side, a BLE link on the other."""

import shutil
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager

import pytest

from ternmesh.link.airtime import LoraSetting, airtime_us
from ternmesh.wire.frame import BROADCAST, Header, seal_open
from tests.firmware_tools.c_library import make
from transports.ble.protocol import BleProtocol
from transports.serial_lora.dialect import Received, Write
from transports.serial_lora.emulator.radios import EmulatedRadios, new_modem
from transports.serial_lora.port import SerialPort
from transports.serial_lora.rnode import Rnode
from transports.serial_lora.send_queue import Waker
from transports.serial_lora.settings import SerialLoraSettings

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="cc is not installed")
SPEED, FREQUENCY, BOARD = 20, 869_525_000, 7
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return make(tmp_path_factory.mktemp("c"), "relay")


class Bridge:
    """The host's end of the BLE link, on a socket in place of a Bluetooth stack."""

    def __init__(self, path) -> None:
        self.link = BleProtocol(initiator=False, identity=99, session=0)
        self.frames: list[bytes] = []
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._server.bind(str(path))
        self._server.listen(1)
        self._server.setblocking(False)
        self._peer: socket.socket | None = None

    def serve(self) -> None:
        now = time.monotonic() * SPEED
        try:
            self._peer, _ = self._server.accept()
            self._peer.setblocking(False)
            self.link.connected(now)
        except BlockingIOError:
            pass  # nobody new
        while self._peer is not None:
            try:
                value = self._peer.recv(600)
            except BlockingIOError:
                break
            except ConnectionError:
                value = b""
            if not value:
                self._peer.close()
                self._peer = None
                self.link.disconnected()
                break
            self.frames += self.link.receive_value(value, now)
        self.link.handle_timeout(now)
        for value in self.link.values_to_send(244, now) if self._peer is not None else ():
            self._peer.send(value)

    def close(self) -> None:
        self._server.close()
        if self._peer is not None:
            self._peer.close()


class BoardModem:
    """A board's modem that sends and hears payloads as they are."""

    def __init__(self, port: SerialPort, dialect: Rnode) -> None:
        self.dialect = dialect
        self.heard: list[Received] = []
        self._port = port
        self._handle(dialect.start(time.monotonic()))

    def serve(self) -> None:
        data = self._port.read(0.02)
        now = time.monotonic()
        self._handle(self.dialect.receive_bytes(data, now) if data else [])
        if (due := self.dialect.deadline) is not None and due <= now:
            self._handle(self.dialect.handle_timeout(now))

    def send(self, payload: bytes) -> None:
        self._handle(self.dialect.send(payload, time.monotonic()))

    def _handle(self, events) -> None:
        for event in events:
            if isinstance(event, Write):
                self._port.write(event.data)
            elif isinstance(event, Received):
                self.heard.append(event)


class Rig:
    """A board's modem, the relay with its own, and the bridge."""

    def __init__(self, stack: ExitStack, program, tmp_path, duty_permille: int = 1000) -> None:
        modems = [new_modem("rnode", 0), new_modem("rnode", 1)]
        self.radios = stack.enter_context(EmulatedRadios(modems, speed=SPEED))
        self.bridge = Bridge(tmp_path / "bridge")
        stack.callback(self.bridge.close)
        radio = LoraSetting(7, 125, 1, 24)
        settings = SerialLoraSettings(
            self.radios.paths[0], "rnode", "board", {"board": BOARD}, radio, FREQUENCY, speed=SPEED
        )
        port = SerialPort(settings.port, settings.baud, settings.write_timeout_s, Waker())
        stack.callback(port.close)
        self.board = BoardModem(port, Rnode(settings))
        numbers = FREQUENCY, 7, 125, 1, 14, duty_permille, BOARD, SPEED
        where = self.radios.paths[1], tmp_path / "bridge"
        self.relay = subprocess.Popen([str(part) for part in (program, *where, *numbers)])
        stack.callback(self.end)
        self.until(lambda: self.board.dialect.ready)

    def end(self) -> None:
        self.relay.kill()
        self.relay.wait()

    def until(self, done) -> None:
        end = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < end, "the relay passes nothing on"
            assert self.relay.poll() is None, "the relay has ended"
            self.board.serve()
            self.bridge.serve()

    def send_up(self, frame: bytes) -> None:
        self.until(lambda: self.board.dialect.idle)
        self.board.send(bytes([0, BOARD]) + frame)
        self.until(lambda: self.board.dialect.idle)


@contextmanager
def rig(program, tmp_path, **options):
    with ExitStack() as stack:
        yield Rig(stack, program, tmp_path, **options)


def frame(number: int, address: int = 1) -> bytes:
    return seal_open(Header(address, number), b"body %d" % number)


def test_frames_pass_in_both_directions_as_they_are(program, tmp_path) -> None:
    with rig(program, tmp_path) as found:
        found.until(lambda: found.bridge.link.established)
        for number in range(5):
            found.send_up(frame(number))
        found.until(lambda: len(found.bridge.frames) == 5)
        assert found.bridge.frames == [frame(number) for number in range(5)]
        down = [frame(number, 0x8001) for number in range(12)] + [frame(20, BROADCAST)]
        found.bridge.link.sender.offer(down)
        found.until(lambda: len(found.board.heard) == 13)
        payloads = [item.payload for item in found.board.heard]
        assert payloads == [bytes([BOARD, 0]) + f for f in down[:-1]] + [bytes([255, 0]) + down[-1]]
        found.until(lambda: not len(found.bridge.link.sender))


def test_what_is_not_for_it_and_what_is_no_frame_stays_away(program, tmp_path) -> None:
    with rig(program, tmp_path) as found:
        found.until(lambda: found.bridge.link.established)
        for payload in (
            bytes([0, BOARD + 1]) + frame(1),
            bytes([BOARD, 0]) + frame(2),
            bytes([0, BOARD]) + b"short",
            bytes([0, BOARD]),
        ):
            found.until(lambda: found.board.dialect.idle)
            found.board.send(payload)
        found.send_up(frame(3))
        found.until(lambda: found.bridge.frames)
        assert found.bridge.frames == [frame(3)]
        found.bridge.link.sender.offer([seal_open(Header(1, 1), bytes(400)), frame(4, 0x8001)])
        found.until(lambda: found.board.heard)
        assert found.board.heard[0].payload[2:] == frame(4, 0x8001), "the long one has no room"


def test_it_keeps_the_duty_cycle(program, tmp_path) -> None:
    """At a tenth, frames begin at least ten airtimes apart."""
    with rig(program, tmp_path, duty_permille=100) as found:
        found.until(lambda: found.bridge.link.established)
        found.bridge.link.sender.offer([frame(number, 0x8001) for number in range(4)])
        times: list[float] = []
        while len(times) < 4:
            found.until(lambda: len(found.board.heard) > len(times))
            times.append(time.monotonic() * SPEED)
        air_s = airtime_us(LoraSetting(7, 125, 1, 24), len(frame(0)) + 2) / 1e6
        assert times[-1] - times[0] > 2.5 * 10 * air_s
