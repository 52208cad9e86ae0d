"""A serial port, on pyserial (imported here only), or the TCP port of a bridge to one."""

import contextlib
import errno
import logging
import select
import socket
import termios

from transports.base import MissingExtra, TransportError
from transports.serial_lora.send_queue import Waker
from transports.serial_lora.settings import tcp_address

try:
    import serial
except ImportError as error:
    raise MissingExtra(
        "serial radios need the package pyserial: pip install 'ternmesh[serial]'"
    ) from error

READ_MAX = 4096  # bytes at once
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


class _TcpPort:
    """What `serial.Serial` has of reading and writing, on a connection; OSError."""

    def __init__(self, address: tuple[str, int], write_timeout_s: float) -> None:
        self._socket = socket.create_connection(address, CONNECT_S)
        self._socket.settimeout(write_timeout_s)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _OPTIONS.items():
            self._socket.setsockopt(socket.IPPROTO_TCP, option, value)

    def fileno(self) -> int:
        return self._socket.fileno()

    def read(self, size: int) -> bytes:
        """What has arrived; it waits where `select` does not say that there is something."""
        data = self._socket.recv(size)
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "the bridge has ended the connection")
        return data

    def write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def reset_output_buffer(self) -> None:
        """Nothing: what was written is on its way."""

    def close(self) -> None:
        self._socket.close()


class SerialPort:
    def __init__(self, path: str, baud: int, write_timeout_s: float, waker: Waker) -> None:
        """Open `path`, a device for exclusive use or `socket://host:port`, or PortError.

        A bridge sets the baud rate of its modem itself.
        """
        self._path = path
        self._waker = waker
        self._serial: serial.Serial | _TcpPort
        try:
            if (address := tcp_address(path)) is not None:
                self._serial = _TcpPort(address, write_timeout_s)
            else:
                self._serial = serial.Serial(
                    path, baud, timeout=0, write_timeout=write_timeout_s, exclusive=True
                )
                _keep_modem_up(self._serial.fileno())
        except (OSError, ValueError) as error:  # SerialException is an OSError.
            raise PortError(f"cannot open {path}: {_why(error)}") from error

    def read(self, timeout_s: float) -> bytes:
        """The bytes that arrived, empty after `timeout_s` or a wake; PortError where it is gone."""
        try:
            ready, _, _ = select.select([self._serial, self._waker], [], [], timeout_s)
            if self._waker in ready:
                self._waker.clear()
            return bytes(self._serial.read(READ_MAX)) if self._serial in ready else b""
        except OSError as error:
            raise self._lost() from error

    def write(self, data: bytes) -> None:
        """Write all of `data`; PortError where the port is gone or does not take them in time."""
        try:
            self._serial.write(data)
        except (serial.SerialTimeoutException, TimeoutError) as error:
            raise PortError(f"{self._path} takes no more bytes: is the modem stuck?") from error
        except OSError as error:
            raise self._lost() from error

    def close(self) -> None:
        """Close at once, without waiting for bytes that a stuck modem did not take."""
        with contextlib.suppress(OSError, termios.error):  # The device is gone.
            self._serial.reset_output_buffer()
        try:
            self._serial.close()
        except OSError as error:
            _log.debug("closing %s: %s", self._path, error)

    def _lost(self) -> PortError:
        why = "is the bridge off?" if isinstance(self._serial, _TcpPort) else "is it unplugged?"
        return PortError(f"lost {self._path}: {why}")


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
