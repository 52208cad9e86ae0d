"""Links with keys on one medium."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from math import inf

import numpy as np

from ternmesh.link.events import LinkEvent, LinkRefused, LinkState, ObjectArrived
from ternmesh.link.link import Link
from ternmesh.link.settings import LinkSettings
from ternmesh.security.identity import Identity, Role, make_identity
from ternmesh.security.key_derivation import SUITE_HOP
from ternmesh.security.keyed_sealing import KeyedSealing
from ternmesh.security.membership import MemberList, found_fleet
from ternmesh.security.sealing import CountersReserved, SecurityChanged
from ternmesh.security.session import GroupState, PeerState, SealingState
from ternmesh.wire.frame import BROADCAST, suite_of
from tests.ternmesh.link.wired_air import FRAME_S, run_ends

HOST, NODE, ALL = "host", "theo", "all"
SETTINGS = LinkSettings(mtu=120, idle_s=4.0, addresses={ALL: BROADCAST})


def identity(name: str) -> Identity:
    role = Role.HOST if name == HOST else Role.NODE
    return make_identity(name, role, hashlib.sha512(name.encode()).digest())


class Air:
    """A host and nodes. `open_ends` have no keys; `unknown` are nodes whom the host lacks."""

    def __init__(
        self,
        names: Sequence[str] = (HOST, NODE),
        open_ends: Sequence[str] = (),
        unknown: Sequence[str] = (),
        settings: LinkSettings = SETTINGS,
    ) -> None:
        self.names, self.settings, self.now = tuple(names), settings, 0.0
        self.identities = {name: identity(name) for name in names}
        fleet = found_fleet("sim", self.identities[HOST].public)
        self.rosters = {name: MemberList(fleet) for name in names}
        for name in names[1:]:
            if name not in unknown:
                self.rosters[HOST].enrol(self.identities[name].public)
        self.lives = 0
        self.disks: dict[str, dict[str, PeerState | GroupState]] = {name: {} for name in names}
        self.counters = dict.fromkeys(names, 0)
        self.sealings: dict[str, KeyedSealing] = {}
        self.events: dict[str, list[LinkEvent]] = {name: [] for name in names}
        self.sent: list[tuple[str, str, bytes]] = []
        self.ends = {name: self.boot(name, name not in open_ends) for name in names}

    def boot(self, name: str, is_keyed: bool = True, state: LinkState | None = None) -> Link:
        """A process of an end, with the seals and the counters of its disk."""
        self.lives += 1
        state = replace(state or LinkState(), counter=self.counters[name])
        sealing = self._sealing(name) if is_keyed else None
        if sealing is not None:
            self.sealings[name] = sealing
        rng = np.random.default_rng(self.lives)
        link = Link(self.settings, state, rng, sealing=sealing)
        link.start(self.now)
        return link

    def _sealing(self, name: str) -> KeyedSealing:
        disk = self.disks[name].values()
        peers = tuple(state for state in disk if isinstance(state, PeerState))
        group = next((state for state in disk if isinstance(state, GroupState)), None)
        instance = hashlib.sha256(bytes((self.lives,))).digest()
        return KeyedSealing(
            self.identities[name],
            self.rosters[name],
            SUITE_HOP,
            instance,
            self.counters[name],
            SealingState(peers, group),
            hub=None if name == HOST else HOST,
        )

    # What happens

    def take(self) -> None:
        """All events of all ends, onto disk where they belong there."""
        for name, end in self.ends.items():
            while (event := end.next_event()) is not None:
                self.events[name].append(event)
                if isinstance(event, CountersReserved):
                    self.counters[name] = event.limit
                if isinstance(event, SecurityChanged):
                    for change in event.changes:
                        if isinstance(change, PeerState | GroupState):
                            key = change.name if isinstance(change, PeerState) else ""
                            self.disks[name][key] = change

    def send(self, sender: str) -> None:
        self.take()
        for peer, frame in self.ends[sender].frames_to_send(self.now, 1):
            self.now += FRAME_S
            self.sent.append((sender, peer, frame))
            for name in self.names:
                if name != sender and peer in (name, ALL):
                    self.hear(name, sender, frame)
        self.take()

    def hear(self, name: str, sender: str, frame: bytes) -> None:
        self.ends[name].receive_frame(sender, frame, self.now)
        self.take()

    def run(self, until: float = inf) -> None:
        run_ends(self, until)

    # What one asks

    def refused(self, name: str) -> list[str]:
        return [e.reason for e in self.events[name] if isinstance(e, LinkRefused)]

    def arrived(self, name: str) -> list[bytes]:
        return [e.payload for e in self.events[name] if isinstance(e, ObjectArrived)]

    def frames(self, suite: int | None = None, address: int | None = None) -> list[bytes]:
        """Those on the air so far."""
        return [
            frame
            for _, _, frame in self.sent
            if suite in (None, suite_of(frame))
            and address in (None, int.from_bytes(frame[1:3], "little"))
        ]

    def meet(self) -> None:
        """Let all learn of each other, and forget how."""
        self.run(self.now + 100.0)
        for events in self.events.values():
            events.clear()
        self.sent.clear()
