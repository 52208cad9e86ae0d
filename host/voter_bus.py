"""What the voters of a fleet tell each other: sealed messages on one topic of their brokers.

All hold the fleet's host identity, and their messages are sealed with a key made of it. Long ones
travel in parts. Messages may be lost and late: who needs one asks for it again. Each goes over all
brokers, and is taken once, so that one broker that dies costs nothing.
"""

import os
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import chain

from ternmesh.errors import SealError
from ternmesh.security.identity import Identity
from ternmesh.security.primitives import Ccm, hkdf
from transports.base import TransportStatus
from transports.mqtt.topics import TopicClient

NAME_SIZE, NONCE_SIZE, KEY_SIZE = 8, 13, 16
PART_MAX = 60 << 10  # bytes; this seal is for less than 64 KiB
PARTS_MAX = 1024  # of a message; a copy of a run has 9 bytes for each number of the adapter
PARTIAL_MAX = 4  # messages of which parts are missing, that are kept
PARTIAL_BYTES_MAX = 64 << 20  # of all their parts
NAMES_KEPT = 1024  # of messages that came, so that each is taken once
_HEAD = struct.Struct("<8sHHB")  # a random name, the part, the number of parts, the matter


class Matter(IntEnum):
    """What a message of a voter is about."""

    AGREEMENT = 0  # a signed message of `ternmesh.federated.agreement`
    PROPOSAL_WANTED = 1  # a hash
    PROPOSAL = 2  # the bytes with that hash
    COPY_WANTED = 3  # the version of the asker's run
    COPY = 4  # of a run that is further (`HostStore.copied`)
    SIGNED = 5  # rows of a certificate
    HERE = 6  # the index of a voter, and the number of its list of members
    REQUEST = 7  # a name and an owner's request, for the host that leads
    ANSWER = 8  # that name, and the answer


class VoterBus:
    """One voter's end; `clients`, one for each broker, subscribe to `topic` alone."""

    def __init__(self, clients: Sequence[TopicClient], topic: str, host: Identity) -> None:
        self.strange = 0  # messages of others than voters
        self._clients = clients
        self._topic = topic
        self._cipher = Ccm(hkdf(host.seeds, b"", b"ternmesh voters", KEY_SIZE))
        self._partial: dict[bytes, dict[int, bytes]] = {}  # parts, by name, the oldest first
        self._taken: deque[bytes] = deque(maxlen=NAMES_KEPT)  # names of messages

    def status(self) -> TransportStatus:
        """Of a connection to a broker, if there is one."""
        found = [client.status() for client in self._clients]
        return max(found, key=lambda status: status.connected)

    def send(self, matter: Matter, body: bytes) -> None:
        """Tell all voters; nothing where all brokers are away."""
        name = os.urandom(NAME_SIZE)
        parts = [body[at : at + PART_MAX] for at in range(0, len(body), PART_MAX)] or [b""]
        for number, part in enumerate(parts):
            nonce = os.urandom(NONCE_SIZE)
            head = _HEAD.pack(name, number, len(parts), matter)
            sealed = self._cipher.seal(nonce, self._topic.encode(), head + part)
            for client in self._clients:
                client.publish(self._topic, nonce + sealed)

    def receive(self) -> Iterator[tuple[Matter, bytes]]:
        """The messages that are whole now; our own, too."""
        arrivals = chain.from_iterable(client.drain() for client in self._clients)
        for _, payload in arrivals:
            nonce, sealed = payload[:NONCE_SIZE], payload[NONCE_SIZE:]
            try:
                opened = self._cipher.open(nonce, self._topic.encode(), sealed)
                name, number, count, matter = _HEAD.unpack_from(opened)
                found = Matter(matter)
            except (SealError, ValueError, struct.error):
                self.strange += 1
                continue
            if name in self._taken:
                continue
            parts = self._partial.setdefault(name, {})
            parts[number] = opened[_HEAD.size :]
            if len(parts) == count <= PARTS_MAX:
                yield found, b"".join(part for _, part in sorted(parts.items()))
            if len(parts) >= min(count, PARTS_MAX):
                del self._partial[name]
                self._taken.append(name)
            while len(self._partial) > PARTIAL_MAX or self._partial_bytes() > PARTIAL_BYTES_MAX:
                del self._partial[next(iter(self._partial))]

    def _partial_bytes(self) -> int:
        return sum(len(part) for parts in self._partial.values() for part in parts.values())
