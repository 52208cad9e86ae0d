"""A modem on the network: the raw TCP port of a serial bridge, as ser2net or ESP-Link have one."""

import errno
import re
import socket

CONNECT_S = 3.0
# A bridge that loses its power ends no connection: after 25 s without an answer it counts as gone.
_OPTIONS = {
    socket.TCP_NODELAY: 1,
    socket.TCP_KEEPIDLE: 10,
    socket.TCP_KEEPINTVL: 5,
    socket.TCP_KEEPCNT: 3,
    socket.TCP_USER_TIMEOUT: 25_000,
}
_URL = re.compile(r"socket://(?:\[([^]]+)]|([\w.-]+)):(\d{1,5})")


def tcp_address(port: str) -> tuple[str, int] | None:
    """Host and TCP port of `socket://host:port`; None for a device. ValueError for another URL."""
    if "://" not in port:
        return None
    found = _URL.fullmatch(port)
    if found is None or not 0 < int(found[3]) < 1 << 16:
        raise ValueError(
            f"port is {port!r}: write a device like /dev/ttyUSB0, or socket://host:port"
        )
    return found[1] or found[2], int(found[3])


class TcpPort:
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
