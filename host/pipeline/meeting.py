"""How ranks connect: each listens on its own address, and calls the ranks below it.

So only machines with lower ranks must be reachable. A port is open until all have met. What calls
it must say a hello first, over TLS with a known identity where the address is not loopback.
"""

import logging
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from host.pipeline import tls
from host.pipeline.config import PipelineConfig, PipelineError, host_and_port
from host.pipeline.links import receive
from host.pipeline.wire import (
    HEAD_SIZE,
    Kind,
    LinkError,
    read_head,
    read_json,
    write_head,
    write_json,
)
from ternmesh.security.identity import PublicIdentity, parse_identity
from ternmesh_service.identity_file import read_identity_file

CALL_S = 10.0  # for a connection, its TLS and its hello
RETRY_S = 0.2
PENDING_MAX = 64  # callers that have not said hello yet; further ones are sent away
SAID_MAX = 10  # refused callers that are logged
WITHOUT_BBR, PARTS_MAX = 4, 64  # connections
TCP_CONGESTION, TCP_USER_TIMEOUT = 13, 18  # linux/tcp.h; socket has them since 3.13 or never
DEAD_MS = 60_000  # a peer whose machine is gone

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """A rank, and how it reaches all: their addresses, keys (None: no TLS), and a shared secret."""

    rank: int
    addresses: Sequence[str]
    peers: Sequence[PublicIdentity] | None
    identity: Path
    token: str = ""


@dataclass(frozen=True, slots=True)
class Wires:
    """The connections of a link: those that come in, those that go out, and their round trip."""

    incoming: Sequence[socket.socket]
    outgoing: Sequence[socket.socket]
    rtt_s: float


def place_of(
    config: PipelineConfig, rank: int, addresses: Sequence[str], token: str, is_insecure: bool
) -> Place:
    """The place of a rank; PipelineError where its links would be open to strangers."""
    hosts = [host_and_port(each)[0] for each in addresses]
    identity = Path(config.identity or config.folder / "identity")
    if is_insecure or all(map(tls.is_loopback, hosts)):
        return Place(rank, addresses, None, identity, token)
    if not config.identities:
        away = next(host for host in hosts if not tls.is_loopback(host))
        raise PipelineError(
            f"{away} is another machine, and identities are missing: name those of all hosts "
            "(`ternmesh pipeline identity` makes them), or start with --insecure"
        )
    by_host = dict(zip(config.hosts, map(parse_identity, config.identities), strict=True))
    return Place(rank, addresses, [by_host[host] for host in hosts], identity, token)


class Meeting:
    """Connects one rank with others, within `wait_s`."""

    def __init__(self, place: Place, config: PipelineConfig, wait_s: float) -> None:
        self._place = place
        self._config = config
        self._wait_s = wait_s
        self._host, port = host_and_port(place.addresses[place.rank])
        self._bound = (config.listen or self._host, port)
        self._identity = None if place.peers is None else read_identity_file(place.identity)
        self._found: dict[tuple[int, str, str], dict[int, socket.socket]] = {}
        self._parts: dict[tuple[int, str, str], int] = {}
        self._changed = threading.Condition()
        self._pending = threading.BoundedSemaphore(PENDING_MAX)
        self._refused = 0
        self.transport = "loopback"  # what the connections of this rank use

    def connect(self, wanted: Sequence[tuple[int, str]]) -> Mapping[tuple[int, str], Wires]:
        """A link to each rank and purpose in `wanted`; LinkError, PipelineError."""
        deadline = time.monotonic() + self._wait_s
        try:
            family = socket.AF_INET6 if ":" in self._bound[0] else socket.AF_INET
            server = socket.create_server(self._bound, family=family, backlog=PENDING_MAX)
        except OSError as error:
            raise LinkError(f"{':'.join(map(str, self._bound))} cannot be used: {error}") from error
        with server:
            threading.Thread(target=self._accept, args=(server,), daemon=True).start()
            rank = self._place.rank
            made = {
                (other, purpose): self._call(other, purpose, deadline)
                for other, purpose in wanted
                if other < rank
            }
            for other, purpose in wanted:
                if other > rank:
                    made[other, purpose] = self._await(other, purpose, deadline)
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)  # else `accept` would keep the port open
        return made

    def _await(self, other: int, purpose: str, deadline: float) -> Wires:
        ways = [(other, purpose, way) for way in ("up", "down")]

        def is_complete() -> bool:
            return all(len(self._found.get(w, ())) == self._parts.get(w, 1) for w in ways)

        with self._changed:
            if not self._changed.wait_for(is_complete, deadline - time.monotonic()):
                raise LinkError(
                    f"rank {other} did not call within {self._wait_s:.0f} s: is it started, and "
                    f"does it reach {self._place.addresses[self._place.rank]}?"
                )
            up, down = ([self._found[way][p] for p in sorted(self._found[way])] for way in ways)
        return Wires(up, down, 0.0)

    def _call(self, other: int, purpose: str, deadline: float) -> Wires:
        parts, said = 1, False
        while True:
            began = time.monotonic()
            try:
                first, rtt_s = self._dial(other, purpose, "up", 0, None)
                parts = self._choose(first)
                first.close()
                ways = {
                    way: [self._dial(other, purpose, way, part, parts) for part in range(parts)]
                    for way in ("up", "down")
                }
                rtt_s = min(rtt_s, *(rtt for made in ways.values() for _, rtt in made))
                up, down = ([made for made, _ in ways[way]] for way in ("up", "down"))
                return Wires(down, up, rtt_s)
            except ssl.SSLCertVerificationError as error:
                raise PipelineError(
                    f"{self._place.addresses[other]} does not have the identity that `identities` "
                    "names: copy its line again"
                ) from error
            except (OSError, LinkError) as error:
                if time.monotonic() > deadline:
                    raise LinkError(
                        f"rank {other} at {self._place.addresses[other]} does not answer "
                        f"({error}): is it started?"
                    ) from error
                if not said and began > deadline - self._wait_s + CALL_S:
                    _log.warning("waiting for rank %d (%s)", other, error)
                    said = True
                time.sleep(RETRY_S)

    def _choose(self, connection: socket.socket) -> int:
        """How many connections a way has; `transport` then says what they use."""
        if tls.is_loopback(connection.getpeername()[0]):
            return self._config.connections or 1
        wanted = self._config.congestion
        used = connection.getsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, 16).rstrip(b"\0").decode()
        parts = self._config.connections or (1 if used == "bbr" else WITHOUT_BBR)
        missing = "" if used == wanted else f" (this kernel has no {wanted}: modprobe tcp_{wanted})"
        sealed = "TLS" if self._place.peers is not None else "no TLS"
        self.transport = f"{used}{missing}, {parts} connections, {sealed}"
        return parts

    def _dial(
        self, other: int, purpose: str, way: str, part: int, parts: int | None
    ) -> tuple[socket.socket, float]:
        """One connection and its round trip. With `parts` None, it only asks whether it would do."""
        address, place = host_and_port(self._place.addresses[other]), self._place
        connection = socket.create_connection(address, CALL_S)
        try:
            _tune(connection, self._config.congestion)
            if place.peers is not None:
                assert self._identity is not None
                peer = place.peers[other]
                connection = tls.context(self._identity, [peer], is_server=False).wrap_socket(
                    connection, server_hostname=tls.name_of(peer)
                )
            hello = {"rank": place.rank, "to": other, "purpose": purpose, "way": way}
            hello |= {"part": part, "parts": parts, "token": place.token}
            body, began = write_json(hello), time.monotonic()
            connection.sendall(write_head(Kind.HELLO, 0, len(body)) + body)
            answer = _read(connection, Kind.ANSWER).decode("utf-8", "replace")
            if answer:
                raise LinkError(answer)
            rtt_s = time.monotonic() - began
            connection.settimeout(None)
        except BaseException:
            connection.close()
            raise
        return connection, rtt_s

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                connection, address = server.accept()
            except OSError:
                return
            if not self._pending.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(
                target=self._answer, args=(connection, address[0]), daemon=True
            ).start()

    def _answer(self, connection: socket.socket, caller: str) -> None:
        try:
            connection.settimeout(CALL_S)
            _tune(connection, self._config.congestion)
            sealed: ssl.SSLSocket | None = None
            if self._place.peers is not None:
                assert self._identity is not None
                safe = tls.context(self._identity, self._place.peers, is_server=True)
                connection = sealed = safe.wrap_socket(connection, server_side=True)
            hello = read_json(_read(connection, Kind.HELLO))
            refusal = self._refusal(hello, sealed)
            connection.sendall(write_head(Kind.ANSWER, 0, len(refusal.encode())) + refusal.encode())
            if refusal:
                raise LinkError(refusal)
            if hello["parts"] is None:
                return
            connection.settimeout(None)
            with self._changed:
                way = (hello["rank"], hello["purpose"], hello["way"])
                self._parts[way] = hello["parts"]
                self._found.setdefault(way, {})[hello["part"]] = connection
                self._changed.notify_all()
        except (OSError, LinkError, ValueError) as error:
            connection.close()
            self._refused += 1
            if self._refused <= SAID_MAX:
                _log.warning("a caller from %s was sent away: %s", caller, error)
        finally:
            self._pending.release()

    def _refusal(self, hello: object, sealed: ssl.SSLSocket | None) -> str:
        """Why a caller is sent away; "" where it is not."""
        place, ranks = self._place, len(self._place.addresses)
        match hello:
            case {
                "rank": int(rank),
                "to": int(to),
                "purpose": str(),
                "way": "up" | "down",
                "part": int(part),
                "parts": int() | None as parts,
                "token": str(token),
            } if 0 <= rank < ranks and 0 <= part < (parts or 1) <= PARTS_MAX:
                if (to, token) != (place.rank, place.token):
                    return f"this is rank {place.rank} of another run"
                if sealed is not None and place.peers is not None:
                    if tls.peer_name(sealed) != tls.authority_of(place.peers[rank]):
                        return f"this is not the identity of rank {rank}"
                return ""
        return "this is no hello of a rank"


def _read(connection: socket.socket, kind: Kind) -> bytes:
    found, _, size = read_head(bytes(receive(connection, bytearray(HEAD_SIZE))), {})
    if found != kind:
        raise LinkError(f"a {found.name.lower()} where a {kind.name.lower()} is due")
    return bytes(receive(connection, bytearray(size)))


def _tune(connection: socket.socket, congestion: str) -> None:
    """No waiting for full packets, a sign of life, and the congestion control that is asked for."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15)
    connection.setsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT, DEAD_MS)
    with suppress(OSError):  # the report says what it is
        connection.setsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, congestion.encode())
