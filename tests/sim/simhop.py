"""Keys for simulated links, the disk of their seals, and who sits between two ends and lies."""

import random
from collections import deque

from ternmesh.security.identity import Role, make_identity
from ternmesh.security.key_derivation import SUITE_HOP
from ternmesh.security.keyed_sealing import KeyedSealing
from ternmesh.security.membership import HOST, MemberList, found_fleet
from ternmesh.security.sealing import Change
from ternmesh.security.session import CloneCount, GroupState, PeerState, SealingState
from ternmesh.wire.frame import Header, seal_open
from tests.sim.simkeys import RecordingSealing

HEARD_MAX, FRESH = 200, 6  # frames that somebody in the middle remembers, and likes best


class HopKeys:
    """The identities of a host and its nodes."""

    def __init__(self, rng: random.Random, names: list[str]) -> None:
        self._rng = rng
        self._own = {
            name: make_identity(name, Role.HOST if name == HOST else Role.NODE, rng.randbytes(64))
            for name in names
        }
        self._member_list = MemberList(found_fleet("sim", self._own[HOST].public))
        for name in names:
            if name != HOST:
                self._member_list.enrol(self._own[name].public)

    def sealing(self, name: str, counter: int, kept: dict[str, Change]) -> RecordingSealing:
        """What seals the link of a new process."""
        state = SealingState(
            tuple(c for c in kept.values() if isinstance(c, PeerState)),
            next((c for c in kept.values() if isinstance(c, GroupState)), None),
        )
        hub = None if name == HOST else HOST
        instance = self._rng.randbytes(32)
        own = self._own[name]
        return RecordingSealing(
            KeyedSealing(own, self._member_list, SUITE_HOP, instance, counter, state, hub=hub)
        )


def key_of(change: Change) -> str:
    """What a change takes the place of on disk."""
    match change:
        case PeerState():
            return f"peer {change.name}"
        case CloneCount():
            return f"clones {change.name}"
        case _:
            return "group"


class Middle:
    """Knows all frames and even what is in them, and no key: so nothing that it says may count."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._heard: deque[tuple[str, str, bytes, bytes]] = deque(maxlen=HEARD_MAX)

    def hear(self, sender: str, receiver: str, frame: bytes, body: bytes) -> None:
        """A frame passes."""
        self._heard.append((sender, receiver, frame, body))

    def lie(self) -> tuple[str, str, bytes] | None:
        """A sender, a receiver and what that hears in the other's name."""
        if not self._heard:
            return None
        rng = self._rng
        youngest = rng.choice((1, FRESH, HEARD_MAX))
        sender, receiver, frame, body = rng.choice(list(self._heard)[-youngest:])
        address = int.from_bytes(frame[1:3], "little")
        match rng.randrange(7):
            case 0:
                lie = frame  # said again
            case 1:
                at = rng.randrange(len(frame))
                lie = frame[:at] + bytes((frame[at] ^ 1 << rng.randrange(8),)) + frame[at + 1 :]
            case 2:  # weaker
                lie = seal_open(Header(address, rng.getrandbits(24)), body)
            case 3:  # poisoned: a symbol of the same transfer with other bytes
                end = body[:1] + rng.randbytes(2) + rng.randbytes(max(1, len(body) - 3))
                lie = seal_open(Header(address, rng.getrandbits(24), rng.choice((0, 2))), end)
            case 4:  # a receipt for what is under way, if this was an offer
                receipt = b"\x07" + body[4:8].ljust(4, b"?")
                sender, receiver = receiver, sender
                lie = seal_open(Header(1, rng.getrandbits(24), rng.choice((0, 2))), receipt)
            case 5:
                lie = frame[: rng.randrange(len(frame))]
            case _:  # said back
                sender, receiver, lie = receiver, sender, frame
        return sender, receiver, lie
