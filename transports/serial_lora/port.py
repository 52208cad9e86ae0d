"""A serial port, on pyserial (imported here only), or the TCP port of a bridge to one."""

import contextlib
import errno
import logging
import os
import select
import socket
import termios
import time

from ternmesh.extras import installed
from transports.base import MissingExtra, TransportError
from transports.serial_lora.send_queue import Waker
from transports.serial_lora.settings import tcp_address

with installed("serial", "a serial port needs the package pyserial", MissingExtra):
    import serial

READ_MAX = 4096  # bytes at once
Lines = tuple[bool, bool]  # DTR and RTS
BOTH_ON: Lines = (True, True)
CONNECT_S = 3.0
# A bridge that loses its power ends no connection: after 25 s without an answer it counts as gone.
_OPTIONS = {
    socket.TCP_NODELAY: 1,
    socket.TCP_KEEPIDLE: 10,
    socket.TCP_KEEPINTVL: 5,
    socket.TCP_KEEPCNT: 3,
    socket.TCP_USER_TIMEOUT: 25_000,
}

_log = logging.getLogger(__name__)


class PortError(TransportError):
    """The port cannot be opened, is gone, or takes no more bytes."""


class SerialPort:
    """`path` is a device for exclusive use, or `socket://host:port`.

    `lines`: whether DTR and RTS are on while it is open; as it opens, the system turns both on for
    a moment. A bridge sets these and the baud rate of its modem itself.
    """

    def __init__(
        self, path: str, baud: int, write_timeout_s: float, waker: Waker, lines: Lines = BOTH_ON
    ) -> None:
        """Open the port, or PortError."""
        self._path = path
        self._waker = waker
        self._write_timeout_s = write_timeout_s
        self._device: serial.Serial | socket.socket
        try:
            if (address := tcp_address(path)) is not None:
                self._device = _connected(address)
            else:
                self._device = serial.Serial(None, baud, exclusive=True)
                self._device.dtr, self._device.rts = lines
                self._device.port = path
                self._device.open()
                _keep_modem_up(self._device.fileno())
        except (OSError, ValueError) as error:  # SerialException is an OSError.
            raise PortError(f"cannot open {path}: {_why(error)}") from error
        # Not `select`, which fails where the program has more than 1,024 files open.
        self._data, self._room = select.poll(), select.poll()
        self._data.register(self._device, select.POLLIN)
        self._data.register(waker, select.POLLIN)
        self._room.register(self._device, select.POLLOUT)

    def read(self, timeout_s: float) -> bytes:
        """The bytes that arrived, empty after `timeout_s` or a wake; PortError where it is gone."""
        device = self._device.fileno()
        try:
            ready = [descriptor for descriptor, _ in self._data.poll(timeout_s * 1000)]
            if self._waker.fileno() in ready:
                self._waker.clear()
            data = os.read(device, READ_MAX) if device in ready else None
        except BlockingIOError:  # a wake without bytes
            return b""
        except OSError as error:
            raise self._lost() from error
        if data == b"":
            raise self._lost()
        return data or b""

    def write(self, data: bytes) -> None:
        """Write all of `data`; PortError where the port is gone or does not take them in time."""
        end = time.monotonic() + self._write_timeout_s
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self._device.fileno(), left) :]
            except BlockingIOError as error:
                if not self._room.poll(max(0.0, end - time.monotonic()) * 1000):
                    reason = f"{self._path} takes no more bytes: is the modem stuck?"
                    raise PortError(reason) from error
            except OSError as error:
                raise self._lost() from error

    def close(self) -> None:
        """Close at once, without waiting for bytes that a stuck modem did not take."""
        try:
            if isinstance(self._device, serial.Serial):
                with contextlib.suppress(OSError, termios.error):  # The device is gone.
                    self._device.reset_output_buffer()
            self._device.close()
        except OSError as error:
            _log.debug("closing %s: %s", self._path, error)

    def _lost(self) -> PortError:
        is_bridge = isinstance(self._device, socket.socket)
        why = "is the bridge off?" if is_bridge else "is it unplugged?"
        return PortError(f"lost {self._path}: {why}")


def _connected(address: tuple[str, int]) -> socket.socket:
    """A connection to a bridge that is not waited for; OSError."""
    bridge = socket.create_connection(address, CONNECT_S)
    bridge.setblocking(False)
    bridge.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _OPTIONS.items():
        bridge.setsockopt(socket.IPPROTO_TCP, option, value)
    return bridge


def _why(error: Exception) -> str:
    if isinstance(error, socket.gaierror):
        return "the network knows no machine of this name"
    if isinstance(error, TimeoutError):
        return f"no answer within {CONNECT_S:.0f} s: is the bridge on?"
    match getattr(error, "errno", None):
        case errno.ECONNREFUSED:
            return "nothing has this port open there: is the bridge on, and the port right?"
        case errno.EHOSTUNREACH | errno.ENETUNREACH:
            return "the network does not reach it: is the bridge on?"
        case errno.ENOENT:
            return "there is no such device"
        case errno.EACCES:
            return "you may not use it: on most systems that is for members of the group dialout"
        case errno.EAGAIN:
            return "another program has it"
        case errno.EISDIR:
            return "this is a folder, not a serial port"
    if isinstance(error.__context__, termios.error):  # its text is a number and a system's word
        return "this is not a serial port"
    return str(error)


def _keep_modem_up(descriptor: int) -> None:
    """Clear HUPCL: a fall of DTR when the port closes would reset many modem boards."""
    try:
        attributes = termios.tcgetattr(descriptor)
        attributes[2] &= ~termios.HUPCL
        termios.tcsetattr(descriptor, termios.TCSANOW, attributes)
    except termios.error as error:
        _log.debug("HUPCL cannot be cleared: %s", error)
