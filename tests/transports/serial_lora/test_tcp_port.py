"""Modems behind a TCP bridge: real transports and connections."""

import socket
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from tests.transports.serial_lora.test_transport import SPEED, settings_for
from transports.base import HOST
from transports.serial_lora import port as serial_port
from transports.serial_lora.framing import CobsUnframer, cobs_frame
from transports.serial_lora.port import PortError, SerialPort
from transports.serial_lora.send_queue import Waker
from transports.serial_lora.settings import tcp_address
from transports.serial_lora.transport import SerialLoraTransport

EVERY_BYTE = bytes(range(256))


@pytest.fixture
def waker() -> Iterator[Waker]:
    with closing(Waker()) as made:
        yield made


def test_a_link_survives_a_bridge_that_is_closed_and_opened(eventually) -> None:
    """An EBYTE modem is asked nothing: the test speaks in its place."""
    bridge = socket.create_server(("127.0.0.1", 0))
    where = bridge.getsockname()
    settings = settings_for("ebyte", f"socket://127.0.0.1:{where[1]}", "ada", speed=SPEED)
    with closing(SerialLoraTransport(settings)) as ada:
        ada.open()
        for turn in range(2):
            with bridge:
                client, _ = bridge.accept()
            with client:
                eventually(lambda: ada.connected)
                ada.send(HOST, [EVERY_BYTE[:150]])
                unframer, sent = CobsUnframer(), list[bytes]()
                while not sent:
                    sent = unframer.feed(client.recv(4096))
                client.sendall(cobs_frame(b"\1\0" + EVERY_BYTE[-150:]))
                arrival = ada.receive(10.0)
            assert (sent, arrival.frames) == ([b"\0\1" + EVERY_BYTE[:150]], (EVERY_BYTE[-150:],))
            eventually(lambda: "nothing has this port open" in str(ada.status().last_error))
            assert (ada.connected, ada.counters.connects) == (False, turn + 1)
            bridge = socket.create_server(where)
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
