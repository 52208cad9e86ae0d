"""A listening TCP socket whose places no client can take from the others."""

import contextlib
import socket
from collections import Counter


class FairListener(socket.socket):
    """Accepts every client, and holds at most `clients_max` connections.

    Beyond that it ends one: of the network that has the most, the one that was silent the longest.
    Those that are only slow, or in the handshake of TLS, count too. Call `heard` when a client
    says something, and `keep` for one that must not be ended, whose number its server limits.

        listener = FairListener("127.0.0.1", 8080, clients_max=100)
    """

    def __init__(self, address: str, port: int, clients_max: int) -> None:
        """OSError where the address cannot be used. A name is its IPv4 address, if it has one."""
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
        family, *_, place = min(found, key=lambda one: one[0])
        super().__init__(family)
        self._clients_max = clients_max
        self._clients: dict[tuple[str, int], socket.socket] = {}  # the longest silent comes first
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self.bind(place)
            self.listen()
        except OSError:
            self.close()
            raise

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        """The next client, for which another one may end."""
        client, address = super().accept()
        for key in [key for key, other in self._clients.items() if other.fileno() < 0]:
            del self._clients[key]
        if len(self._clients) >= self._clients_max:
            self._end_one()
        self._clients[address[:2]] = client
        return client, address

    def heard(self, client: tuple[str, int]) -> None:
        """The client at this address said something."""
        if (known := self._clients.pop(client, None)) is not None:
            self._clients[client] = known

    def keep(self, client: tuple[str, int]) -> None:
        """The client at this address is ended for no other, and counts no longer."""
        self._clients.pop(client, None)

    def _end_one(self) -> None:
        [(most, _)] = Counter(map(_network, self._clients)).most_common(1)
        key = next(key for key in self._clients if _network(key) == most)
        with contextlib.suppress(OSError):  # it went away itself
            self._clients.pop(key).shutdown(socket.SHUT_RDWR)  # its server reads the end


def _network(client: tuple[str, int]) -> bytes | str:
    """The address, or what all IPv6 addresses of one network have in common."""
    if ":" not in client[0]:
        return client[0]
    return socket.inet_pton(socket.AF_INET6, client[0].partition("%")[0])[:8]
