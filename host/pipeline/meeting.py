"""How ranks connect: each listens on its own address, and calls the ranks below it.

So only machines with lower ranks must be reachable. A port is open until all have met. What calls
it must say a hello first, over TLS with a known identity where an address is not loopback.
"""

import logging
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from host.pipeline import tls, wire
from host.pipeline.config import PipelineConfig, PipelineError, host_and_port
from ternmesh.security.identity import PublicIdentity, parse_identity
from ternmesh_service.identity_file import read_identity_file

CALL_S = 10.0  # for a connection, its TLS and its hello
RETRY_S = 0.2
PENDING_MAX = 64  # callers that have not said hello yet; further ones are sent away
SAID_MAX = 10  # refused callers that are logged
TCP_CONGESTION, TCP_USER_TIMEOUT = 13, 18  # linux/tcp.h
DEAD_MS = 60_000  # a peer whose machine is gone

Way = tuple[int, str, str]  # the calling rank, what for, and "up" or "down" from it

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """A rank, and how it reaches all: their addresses, keys (None: no TLS), and a shared secret.

    `listening` is the descriptor of a socket that the parent process has bound for the rank.
    """

    rank: int
    addresses: Sequence[str]
    peers: Sequence[PublicIdentity] | None
    token: str = ""
    listening: int | None = None

    @property
    def own(self) -> tuple[str, int]:
        """The host and port of this rank."""
        return host_and_port(self.addresses[self.rank])

    @property
    def is_local(self) -> bool:
        """Whether no link leaves this machine."""
        return all(tls.is_loopback(host_and_port(each)[0]) for each in self.addresses)


@dataclass(frozen=True, slots=True)
class Wires:
    """The connections between two ranks: what comes in, what goes out, and the round trip."""

    incoming: socket.socket
    outgoing: socket.socket
    rtt_s: float  # 0 on the side that was called


def place_of(
    config: PipelineConfig, rank: int, addresses: Sequence[str], token: str, is_insecure: bool
) -> Place:
    """The place of a rank; PipelineError where its links would be open to strangers."""
    hosts = [host_and_port(each)[0] for each in addresses]
    away = [host for host in hosts if not tls.is_loopback(host)]
    if is_insecure or not away:
        return Place(rank, addresses, None, token)
    if not config.identities:
        raise PipelineError(
            f"{away[0]} is another machine, and identities are missing: name those of all hosts "
            "(`ternmesh pipeline identity` makes them), or start with --insecure"
        )
    by_host = dict(zip(config.hosts, map(parse_identity, config.identities), strict=True))
    own = read_identity_file(config.identity_path).public
    if own.fingerprint != by_host[hosts[rank]].fingerprint:
        raise PipelineError(
            f"identities names another key for {hosts[rank]} than {config.identity_path} has: "
            "copy the line of `ternmesh pipeline identity` into the files of all machines"
        )
    return Place(rank, addresses, [by_host[host] for host in hosts], token)


class Meeting:
    """Connects one rank with others, within `timeout_s` of the configuration."""

    def __init__(self, place: Place, config: PipelineConfig) -> None:
        self._place = place
        self._config = config
        self._identity = None if place.peers is None else read_identity_file(config.identity_path)
        self._found: dict[Way, socket.socket] = {}
        self._changed = threading.Condition()
        self._pending = threading.BoundedSemaphore(PENDING_MAX)
        self._refused = 0

    def connect(self, wanted: Sequence[tuple[int, str]]) -> Mapping[tuple[int, str], Wires]:
        """The wires to each rank and purpose in `wanted`; LinkError, PipelineError."""
        deadline = time.monotonic() + self._config.timeout_s
        with self._server() as server:
            threading.Thread(target=self._accept, args=(server,), daemon=True).start()
            made = {w: self._call(*w, deadline) for w in wanted if w[0] < self._place.rank}
            made |= {w: self._await(*w, deadline) for w in wanted if w[0] > self._place.rank}
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)  # else `accept` would keep the port open
        return made

    @property
    def transport(self) -> str:
        """What links use, for people."""
        if self._place.is_local:
            return "loopback"
        wanted = self._config.congestion
        with socket.socket() as probe:
            _tune(probe, wanted)
            used = probe.getsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, 16).rstrip(b"\0").decode()
        missing = "" if used == wanted else f" (this kernel has no {wanted}: modprobe tcp_{wanted})"
        sealed = "no TLS" if self._place.peers is None else "TLS"
        return f"{used}{missing}, {sealed}"

    def _server(self) -> socket.socket:
        if self._place.listening is not None:
            return socket.socket(fileno=self._place.listening)
        host, port = self._place.own
        bound = (self._config.listen or host, port)
        family = socket.AF_INET6 if ":" in bound[0] else socket.AF_INET
        try:
            return socket.create_server(bound, family=family, backlog=PENDING_MAX)
        except OSError as error:
            raise wire.LinkError(
                f"{bound[0]}:{port} cannot be used ({error}): is it "
                'this machine\'s? Behind a router, set listen = "0.0.0.0"'
            ) from error

    def _await(self, other: int, purpose: str, deadline: float) -> Wires:
        ways = [(other, purpose, way) for way in ("up", "down")]
        with self._changed:
            left_s = deadline - time.monotonic()
            if not self._changed.wait_for(lambda: self._found.keys() >= {*ways}, left_s):
                raise wire.LinkError(
                    f"rank {other} did not call within {self._config.timeout_s:.0f} s: is it "
                    f"started, and does it reach {self._place.addresses[self._place.rank]}?"
                )
            return Wires(self._found[ways[0]], self._found[ways[1]], 0.0)

    def _call(self, other: int, purpose: str, deadline: float) -> Wires:
        said_s = time.monotonic() + CALL_S
        while True:
            try:
                (up, up_s), (down, down_s) = (
                    self._dial(other, purpose, way) for way in ("up", "down")
                )
                return Wires(down, up, min(up_s, down_s))
            except ssl.SSLCertVerificationError as error:
                raise PipelineError(
                    f"{self._place.addresses[other]} does not have the identity that `identities` "
                    "names: copy its line again"
                ) from error
            except (OSError, wire.LinkError) as error:
                if time.monotonic() > deadline:
                    raise wire.LinkError(
                        f"rank {other} at {self._place.addresses[other]} does not answer "
                        f"({error}): is it started?"
                    ) from error
                if time.monotonic() > said_s:
                    _log.warning("waiting for rank %d (%s)", other, error)
                    said_s = deadline
                time.sleep(RETRY_S)

    def _dial(self, other: int, purpose: str, way: str) -> tuple[socket.socket, float]:
        """One connection, and its round trip in seconds."""
        place = self._place
        host, port = host_and_port(place.addresses[other])
        if host == place.own[0]:  # from inside, a router may not lead back to its own address
            host = self._config.listen or host
        connection = socket.create_connection((host, port), CALL_S)
        try:
            _tune(connection, self._config.congestion)
            if place.peers is not None and self._identity is not None:
                peer = place.peers[other]
                connection = tls.context(self._identity, [peer], is_server=False).wrap_socket(
                    connection, server_hostname=tls.name_of(peer)
                )
            hello = {"rank": place.rank, "to": other, "purpose": purpose, "way": way}
            body = wire.write_json(hello | {"token": place.token})
            began = time.monotonic()
            connection.sendall(wire.write_head(wire.Kind.HELLO, 0, len(body)) + body)
            if answer := _read(connection, wire.Kind.ANSWER).decode("utf-8", "replace"):
                raise wire.LinkError(answer)
            connection.settimeout(None)
        except BaseException:
            connection.close()
            raise
        return connection, time.monotonic() - began

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                connection, (caller, *_) = server.accept()
            except OSError:
                return
            if self._pending.acquire(blocking=False):
                threading.Thread(
                    target=self._answer, args=(connection, caller), daemon=True
                ).start()
            else:
                connection.close()

    def _answer(self, connection: socket.socket, caller: str) -> None:
        try:
            connection.settimeout(CALL_S)
            _tune(connection, self._config.congestion)
            name = ""
            if self._place.peers is not None and self._identity is not None:
                safe = tls.context(self._identity, self._place.peers, is_server=True)
                sealed = safe.wrap_socket(connection, server_side=True)
                connection, name = sealed, tls.peer_name(sealed)
            hello = wire.read_json(_read(connection, wire.Kind.HELLO))
            refusal = self._refusal(hello, name)
            connection.sendall(
                wire.write_head(wire.Kind.ANSWER, 0, len(refusal)) + refusal.encode()
            )
            if refusal:
                raise wire.LinkError(refusal)
            connection.settimeout(None)
            with self._changed:
                self._found[hello["rank"], hello["purpose"], hello["way"]] = connection
                self._changed.notify_all()
        except (OSError, wire.LinkError, ValueError) as error:
            connection.close()
            self._refused += 1
            if self._refused <= SAID_MAX:
                _log.warning("a caller from %s was sent away: %s", caller, error)
        finally:
            self._pending.release()

    def _refusal(self, hello: object, name: str) -> str:
        """Why a caller with this name in its certificate is sent away; "" where it is not."""
        place = self._place
        match hello:
            case {
                "rank": int(rank),
                "to": int(to),
                "purpose": str(),
                "way": "up" | "down",
                "token": str(token),
            } if place.rank < rank < len(place.addresses):
                if (to, token) != (place.rank, place.token):
                    return f"this is rank {place.rank} of another run"
                if place.peers is not None and name != tls.authority_of(place.peers[rank]):
                    return f"this is not the identity of rank {rank}"
                return ""
        return "this is no hello of a rank"


def _read(connection: socket.socket, kind: wire.Kind) -> bytes:
    found, _, size = wire.read_head(wire.receive(connection, bytearray(wire.HEAD_SIZE)), {})
    if found != kind:
        raise wire.LinkError(f"a {found.name.lower()} where a {kind.name.lower()} is due")
    return bytes(wire.receive(connection, bytearray(size)))


def _tune(connection: socket.socket, congestion: str) -> None:
    """No waiting for full packets, a sign of life, and the congestion control that is asked for."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15)
    connection.setsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT, DEAD_MS)
    with suppress(OSError):  # the report says what it is
        connection.setsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, congestion.encode())
