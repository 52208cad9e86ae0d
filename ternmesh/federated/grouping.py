"""Which of several hosts a node belongs to: the nearest one, by measured round trips.

These are aggregators and the host itself. A node goes to another one that is clearly nearer in
several looks in a row, or where its own is lost: silent, or behind the others. Sans-I/O.
"""

import math
from collections.abc import Mapping

from ternmesh.federated.events import SentTo
from ternmesh.federated.local_update import all_of, settle_update
from ternmesh.federated.node import NodeProtocol
from ternmesh.timers import Random
from ternmesh.types import Vector
from ternmesh.wire.proof import read_proof

# Another one is nearer where its round trip is below this share of the present one's, and so much
# shorter: less than that no round would show.
NEARER, NEARER_S = 0.7, 0.02
STREAK = 3  # looks in a row in which another one must be nearer
STAY = 3  # versions with one, before another one that is nearer
LOOK_SOON_S, LOOK_S = 30.0, 600.0  # to the next look where something has changed, and else
ANNOUNCES_LOST = 4  # announces that do not come, after which the present one is lost
ANNOUNCES_STUCK = 12  # announces, in whose time no update comes that settles one sent elsewhere
ANNOUNCE_S = 30  # between two, where no plan has come yet


def nearest(trips_s: Mapping[str, float], present: str) -> str:
    """The one with the shortest round trip, if it is clearly nearer than `present`; else that.

    >>> nearest({"barn": 0.2, "shed": 0.1, "host": 0.15}, "barn")
    'shed'
    >>> nearest({"barn": 0.2, "shed": 0.15}, "barn")
    'barn'
    """
    here = trips_s.get(present, math.inf)
    best = min(trips_s, key=lambda name: (trips_s[name], name), default=present)
    return best if trips_s.get(best, here) < min(NEARER * here, here - NEARER_S) else present


class Grouping:
    """The choice of a node, which is with `name` now. `rng` jitters: not all move at once."""

    def __init__(self, name: str, rng: Random, now: float) -> None:
        self.trips_s: dict[str, float] = {}  # in the newest look, of those that have answered
        self._rng = rng
        self.begin(name, -STAY, now)

    def begin(self, name: str, since: int, now: float) -> None:
        """The node is with this one; it came there with the version `since`."""
        self.name, self.since = name, since
        self._look_at = self._looked_at = self._served_at = self._began_at = now
        self._behind_at = math.inf
        self._nearer, self._streak = name, 0
        self._patience = 1.0 + 0.5 * self._rng.random()

    def is_due(self, node: NodeProtocol, now: float) -> bool:
        """Whether to look at all again."""
        if node.joined:
            self._served_at = max(self._served_at, node.joining.heard_at)
        lost_at = max(self._lost_at(node), self._looked_at + LOOK_SOON_S)
        return now >= min(self._look_at, lost_at)

    def choose(self, seen: Mapping[str, NodeProtocol], now: float) -> str:
        """With whom the node is from now on. `seen` are its looks at the others, and itself."""
        node, trips_s = seen[self.name], {name: one.joining.trip_s for name, one in seen.items()}
        self.trips_s = {name: trip_s for name, trip_s in trips_s.items() if trip_s < math.inf}
        others = self.trips_s.keys() - {self.name}
        same = {name for name in others if node.plan is None or seen[name].run == node.run}
        is_behind = node.plan is not None and any(seen[n].target > node.target for n in same)
        self._behind_at = min(self._behind_at, now) if is_behind else math.inf
        usable = {name for name in same if seen[name].target >= node.version}
        choice = {n: s for n, s in self.trips_s.items() if n in {*usable, self.name}}
        best = nearest(choice, self.name)
        self._streak = self._streak + 1 if best == self._nearer else 1
        self._nearer = best
        usual_s = LOOK_SOON_S if is_behind or best != self.name else LOOK_S
        self._looked_at, self._look_at = now, now + usual_s * (0.75 + 0.5 * self._rng.random())
        if now >= self._lost_at(node):
            return min(usable or others, key=self.trips_s.__getitem__, default=self.name)
        is_free = node.pending is None and node.version >= self.since + STAY
        may_go = is_free and self._streak >= STREAK and self._rng.random() < 0.5
        return best if may_go else self.name

    def settled(self, node: NodeProtocol, now: float) -> Vector | None:
        """The residual with which the node goes on where no global update settles its own.

        All may wait for what one dead aggregator has got. It is taken for counted.
        """
        pending, plan = node.pending, node.plan
        if pending is None or pending.sent_to is None or plan is None:
            return None
        if now < self._began_at + ANNOUNCES_STUCK * plan.announce_s:
            return None
        rows, model_hash = all_of(pending, node.address, plan), node.settings.model_hash
        return settle_update(pending, rows, node.address, model_hash, plan)

    def _lost_at(self, node: NodeProtocol) -> float:
        """When the present one is to be given up."""
        announce_s = ANNOUNCE_S if node.plan is None else node.plan.announce_s
        return min(self._served_at, self._behind_at) + self._patience * ANNOUNCES_LOST * announce_s

    def stays_at(self, node: NodeProtocol) -> SentTo | None:
        """Who has the update that is not settled, if the node goes now."""
        if node.pending is None or node.pending.sent_to is not None:
            return None if node.pending is None else node.pending.sent_to
        links = (link for link in node.chain.newest_first() if link.version > self.since)
        proofs = (read_proof(link.rows) for link in links if link.rows)
        via = next((proof.via[0] for proof in proofs if proof.via), 0)
        return SentTo(self.name, node.address, via)
