"""Modems behind a TCP bridge: real transports, pseudo-terminals and connections."""

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest
import serial

from tests.transports.serial_lora.test_transport import SPEED, settings_for
from transports.base import HOST
from transports.serial_lora import port as serial_port
from transports.serial_lora.emulator.radios import EmulatedRadios, new_modem
from transports.serial_lora.port import PortError, SerialPort
from transports.serial_lora.send_queue import Waker
from transports.serial_lora.settings import tcp_address
from transports.serial_lora.transport import SerialLoraTransport

EVERY_BYTE = bytes(range(256))


class Bridge:
    """Carries bytes between a serial device and one TCP client, as ser2net does."""

    def __init__(self, path: str, port: int = 0) -> None:
        self._serial = serial.Serial(path, 115_200, timeout=0)
        self._listening = socket.create_server(("127.0.0.1", port))
        self.port = self._listening.getsockname()[1]
        self._stop = Waker()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.wake()
        self._thread.join()

    def _run(self) -> None:
        with self._serial, self._listening, closing(self._stop):
            while self._stop not in (ready := self._ready(self._listening)):
                if ready:
                    client, _ = self._listening.accept()
                    with client, suppress(OSError):
                        if self._carry(client):
                            return

    def _carry(self, client: socket.socket) -> bool:
        """Whether the bridge is to end; False where the client has gone."""
        while self._stop not in (ready := self._ready(client, self._serial)):
            if client in ready:
                if not (data := client.recv(4096)):
                    return False
                self._serial.write(data)
            if self._serial in ready:
                client.sendall(self._serial.read(4096))
        return True

    def _ready(self, *others) -> list:
        return select.select([self._stop, *others], [], [], 0.2)[0]


@pytest.fixture
def waker() -> Iterator[Waker]:
    with closing(Waker()) as made:
        yield made


@pytest.mark.parametrize("dialect", ["reyax", "rnode"])
def test_a_link_survives_a_bridge_that_is_closed_and_opened(dialect, eventually) -> None:
    def end(port: str, role: str) -> SerialLoraTransport:
        return SerialLoraTransport(settings_for(dialect, port, role, speed=SPEED))

    modems = [new_modem(dialect, index) for index in range(2)]
    with EmulatedRadios(modems, speed=SPEED) as radios:
        bridge = Bridge(radios.paths[1])
        host, ada = end(radios.paths[0], HOST), end(f"socket://127.0.0.1:{bridge.port}", "ada")
        with closing(host), closing(ada):
            host.open()
            ada.open()
            for turn in range(2):
                eventually(lambda: host.connected and ada.connected)
                frames = [EVERY_BYTE[:150], EVERY_BYTE[-150:], bytes([turn])]
                ada.send(HOST, frames)
                assert [host.receive(10.0).frames[0] for _ in frames] == frames
                host.send("ada", [EVERY_BYTE[:150]])
                assert ada.receive(10.0).frames == (EVERY_BYTE[:150],)
                bridge.close()
                eventually(lambda: "nothing has this port open" in str(ada.status().last_error))
                assert not ada.connected
                bridge = Bridge(radios.paths[1], bridge.port)
            assert ada.counters.connects >= 2
        bridge.close()


def test_a_port_is_a_device_or_names_host_and_port() -> None:
    assert tcp_address("/dev/serial/by-id/usb-1") is None
    assert tcp_address("socket://lora-bridge.local:4001") == ("lora-bridge.local", 4001)
    assert tcp_address("socket://[fe80::1%eth0]:23") == ("fe80::1%eth0", 23)
    for wrong in ("rfc2217://a:1", "socket://a", "socket://a:70000", "socket://a:0", "loop://"):
        with pytest.raises(ValueError, match="socket://host:port"):
            tcp_address(wrong)


def test_what_does_not_open_is_a_sentence(monkeypatch, waker) -> None:
    def opened(port: str) -> str:
        with pytest.raises(PortError) as caught:
            SerialPort(port, 9600, 1.0, waker)
        return str(caught.value)

    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        number = full.getsockname()[1]
        monkeypatch.setattr(serial_port, "CONNECT_S", 0.2)
        with suppress(TimeoutError):
            waiting = [socket.create_connection(("127.0.0.1", number), 0.2) for _ in range(9)]
            assert not waiting, "the queue never fills"
        assert "no answer within" in opened(f"socket://127.0.0.1:{number}")
    assert "nothing has this port open" in opened(f"socket://127.0.0.1:{number}")
    assert "no machine of this name" in opened("socket://no-such.invalid:4001")
    assert "socket://host:port" in opened("rfc2217://127.0.0.1:4001")


def test_a_bridge_that_stops_is_a_sentence(waker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = SerialPort(f"socket://127.0.0.1:{server.getsockname()[1]}", 9600, 0.1, waker)
        client, _ = server.accept()
        with closing(port):
            with pytest.raises(PortError, match="takes no more bytes"):
                port.write(bytes(1 << 24))
            client.close()
            with pytest.raises(PortError, match=r"lost socket://.*: is the bridge off\?"):
                port.read(10.0)
