"""How much a node's updates are trusted, by what they have done so far.

Three things make a reputation, with the weights of ncrsh-Swarm as exponents: they are multiplied,
since a node whose updates harm the others must not make up for it by being online.

- 0.5: loss. A probe is a vector of one node's recent updates. All nodes evaluate the global adapter
  with the probe added, and with it taken away, on their own samples: half of the difference is its
  effect on their error. The median of the reports is what the node's updates do to the others; a
  minority that lies cannot move it beyond what honest nodes report. Honest updates of other data
  raise it a little, a lie raises it a lot: more than is usual in the fleet. A node whose updates
  raise its own error is broken, whatever they do to the others.
- 0.3: agreement, the cosine of its recent updates to the sum of the others'. Honest nodes with
  other data have 0.5 to -0.15. What opposes the fleet more than that is discounted; what agrees
  less than half as much as is usual counts down to 0.6, since it may be honest.
- 0.2: uptime, the share of recent rounds with an update or a silence.

Nodes whose recent updates are nearly the same share one weight and one report, as in FoolsGold
(Fung, Yoon and Beschastnikh, "The limitations of federated learning in Sybil settings", RAID 2020).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256

import cbor2
import numpy as np

from ternmesh.exact import power
from ternmesh.generator import derive_key
from ternmesh.wire.control import read_plain

LOWEST = 0.1  # the least reputation
# Reasons of a low weight that an owner treats otherwise than the rest
PINNED, MUTED = "pinned by the owner", "muted by the owner"
ALIKE = "sends nearly the same as another, as boards in one room do"
ABSENT = "often absent"
# Rounds in which a node opposed a majority that agrees, less those in which it did not: from which
# on it has the least weight, and the most that are counted
OPPOSED_MIN, OPPOSED_MAX = 2, 6
LOW = 0.6  # below it the owner is told
PROVEN = 0.9  # the least weight of a node that is trusted with more than the usual weight
AGREEMENT, UPTIME = (3, 10), (1, 5)  # exponents, as fractions; that of the loss is 1 / 2
HARM_SCALE = 0.07  # the least rise of the error that is a harm of 1
USUAL = 1.5  # that rise, in medians of the other nodes' rises
OWN_MAX = 0.12  # what a node says against its own updates is worth; alone it halves the weight
OWN = 8.0  # how much more a rise counts that a node reports of its own updates, in its first rounds
DISCOUNTED, EXCLUDED = 1.5, 2.0  # harm from which on a node counts less, and not at all
OPPOSED, OPPOSITE = -0.2, -0.5  # the cosines where the discount begins and ends
AGREED_MIN = 0.05  # the usual agreement from which on less than half of it is discounted
UNLIKE = 0.2  # the least agreement of a node that does not oppose the others: its root is 0.6
NEWCOMER = 8  # rounds until a node that comes later counts as much as the first ones
DECAY = 0.9  # of agreement and uptime, by round
MEMORY = 0.9  # of a rise, by probe
EARLY = 16  # rounds with many probes
PROBE_FIRST, PROBE_LAST = 4, 16  # rounds before a node's first probe, and between late ones
FLEET_MIN, DEVIATIONS, MARGIN_MIN = 4, 2.5, 0.15  # of a node that is unlike the others
REPORTS_MIN = 2  # that a probe needs
TRIO = 3  # nodes of which each judges both others
TRUSTED_MIN, TRUSTED_SHARE = 3, 2 / 3  # reports that suffice without those of excluded nodes


@dataclass(frozen=True, slots=True)
class NodeStanding:
    """What is known of a node."""

    rounds: int = 0  # in which its update counted
    rise: float = 0.0  # of the fleet's error by its probes: up at once, down slowly
    agreement: float = 0.0  # mean cosine to the others' updates
    uptime: float = 1.0  # mean share of rounds with an update or a silence
    is_first: bool = True  # whether it was there in the first rounds of the run
    probed: int = 0  # the version with its newest probe
    wait: int = PROBE_FIRST  # rounds until the next
    turned: bool = False  # it sends the opposite of what it sent before (`memory`)
    opposed: int = 0  # see OPPOSED_MIN
    low_since: int = 0  # the version since which its weight is low; 0: it is not
    # The rises that the nodes have reported of its newest probe, by address, where they are few
    told: Mapping[int, float] = field(default_factory=dict)


@dataclass(slots=True)
class Reputations:
    """The standings of a run's nodes, by address."""

    standings: dict[int, NodeStanding] = field(default_factory=dict)
    # The lower quartile of the first reports: who lies must not raise it.
    first_loss: float | None = None
    is_carried: bool = False  # whether the run began with what another one had learned
    cosines: Mapping[int, float] = field(default_factory=dict, compare=False)  # of the newest round
    usual_agreement: float = 0.0  # the median of the nodes'
    fixed: Mapping[int, float] = field(default_factory=dict, compare=False)  # by the owner
    copies: Mapping[int, int] = field(default_factory=dict, compare=False)  # nodes with its updates
    asked: set[int] = field(default_factory=set, compare=False)  # nodes that are to be probed next
    _harms: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.judge()

    def of(self, address: int) -> NodeStanding:
        """What is known of a node; of a new one, nothing."""
        return self.standings.get(address, NodeStanding())

    def harm(self, address: int) -> float:
        """The rise of the error by a node's probes, in rises that are usual.

        At most a minority has any: the nodes with the largest rises.
        """
        return self._harms.get(address, 0.0)

    def is_excluded(self, address: int) -> bool:
        """Whether a node's updates do not count, since they harm the others too much."""
        return self.harm(address) >= EXCLUDED

    def is_doubted(self, address: int) -> bool:
        """Whether a node is excluded, or has the least weight for what it sends."""
        if address in self.fixed:
            return not self.fixed[address]
        known = self.of(address)
        return self.is_excluded(address) or known.turned or known.opposed >= OPPOSED_MIN

    def reputation(self, address: int) -> float:
        """A factor of the node's weight, 0.1 to 1."""
        standing = self.of(address)
        harm = (EXCLUDED - self.harm(address)) / (EXCLUDED - DISCOUNTED)
        loss = min(1.0, max(0.0, harm))  # the root of its square
        opposition = (standing.agreement - OPPOSITE) / (OPPOSED - OPPOSITE)
        agreement = min(1.0, max(0.0, opposition), self._likeness(address))
        product = loss * power(agreement, *AGREEMENT) * power(standing.uptime, *UPTIME)
        known = 1.0 if standing.is_first else min(1.0, (1 + standing.rounds) / NEWCOMER)
        return max(LOWEST, product * known)

    def _likeness(self, address: int) -> float:
        """How much a node agrees with the others, of half of what is usual: 0.2 to 1."""
        if self.usual_agreement < AGREED_MIN:
            return 1.0
        return max(UNLIKE, 2 * self.of(address).agreement / self.usual_agreement)

    def weight(self, address: int) -> float:
        """The factor of a node's weight in the step: its reputation, 0 where it is excluded.

        What the owner has set holds in any case.
        """
        if address in self.fixed:
            return self.fixed[address]
        if self.is_excluded(address):
            return 0.0
        weight = LOWEST if self.is_doubted(address) else self.reputation(address)
        return weight / self.copies.get(address, 1)

    def is_proven(self, address: int) -> bool:
        """Whether a node has counted for some rounds, and nothing speaks against it."""
        known = self.of(address)
        is_known = known.rounds >= NEWCOMER and known.agreement >= 0
        return is_known and self.weight(address) >= PROVEN

    def reason(self, address: int) -> str:
        """Why a node's weight is low, in some words; empty where it is not."""
        standing = self.of(address)
        if address in self.fixed:
            return PINNED if self.fixed[address] else MUTED
        if self.harm(address) > DISCOUNTED:
            return "excluded: raises the error" if self.is_excluded(address) else "raises the error"
        if standing.turned:
            return "sends the opposite of what it sent before"
        if self.copies.get(address, 1) > 1:
            return ALIKE
        if standing.opposed >= OPPOSED_MIN:
            return "opposes the others"
        if standing.agreement < OPPOSED:
            return "opposes the others"
        if self._likeness(address) < 0.5:
            return "is unlike the others"
        if not standing.is_first and standing.rounds < NEWCOMER - 1:
            return "new"
        return ABSENT if standing.uptime < 0.5 else ""

    def counted(
        self,
        cosines: Mapping[int, float],
        silent: Iterable[int],
        version: int,
        *,
        turned: Collection[int] = (),
        opposed: Collection[int] | None = None,
    ) -> None:
        """Note a round that led to `version`: the cosines of the counted nodes, and the silent.

        `turned` and `opposed`: as `memory` has found them.
        """
        self.cosines = cosines
        self.ask(a for a in turned if not self.of(a).turned)
        self.asked &= cosines.keys()  # the others send nothing that could be probed
        here = cosines.keys() | set(silent)
        for address in sorted(self.standings.keys() | here):
            old = self.standings.get(address) or NodeStanding(is_first=version <= NEWCOMER)
            cosine = cosines.get(address, old.agreement)
            before = old.agreement if old.rounds else cosine
            self.standings[address] = replace(
                old,
                agreement=DECAY * before + (1 - DECAY) * cosine,
                uptime=DECAY * old.uptime + (1 - DECAY) * (address in here),
                rounds=0 if address in turned else old.rounds + (address in cosines),
                is_first=old.is_first and address not in turned,
                turned=address in turned,
                opposed=_evidence(old.opposed, address, cosines, opposed),
            )
        known = [item.agreement for item in self.standings.values()]
        self.usual_agreement = float(np.median(known)) if known else 0.0
        for address, old in self.standings.items():
            since = (old.low_since or version) if self.weight(address) < LOW else 0
            if since != old.low_since:
                self.standings[address] = replace(self.standings[address], low_since=since)

    def unlike(self) -> list[int]:
        """The nodes whose updates are less like the others' than the fleet's are to each other.

        They are below the median cosine by 2.5 deviations (1.4826 times the median absolute
        deviation) and by `MARGIN_MIN`: a fixed limit would not work, as all fall in a long run.
        """
        if len(self.cosines) < FLEET_MIN:
            return []
        values = np.array(list(self.cosines.values()))
        deviation = 1.4826 * np.median(np.abs(values - np.median(values)))
        limit = np.median(values) - max(MARGIN_MIN, DEVIATIONS * deviation)
        return [address for address, value in self.cosines.items() if value < limit]

    def due(self, nodes: Iterable[int], version: int, seed: bytes) -> int | None:
        """Which of these nodes the global update to `version` should probe; None for nobody.

        Those first that are asked, then by chance, drawn from `seed`: the more likely, the longer
        ago a node was probed. A node that could know would lie in between.
        """
        if self.first_loss is None:
            return None
        chances = [
            (address in self.asked, (version - standing.probed) / standing.wait - draw, address)
            for address, standing, draw in ((a, self.of(a), _draw(seed, a)) for a in nodes)
        ]
        is_asked, chance, address = max(chances, default=(False, -1.0, 0))
        return address if is_asked or chance >= 0 else None

    def probed(self, address: int, version: int, rises: Mapping[int, float]) -> None:
        """Take what the nodes reported of the probe of `version`; too few reports say nothing.

        Reports of excluded nodes do not count if enough others have reported. The node's own is no
        vote, but what it says against its own updates is believed: no lie is in its favour.
        """
        others = [node for node in rises if node != address]
        trusted = [node for node in others if not self.is_excluded(node)]
        # Where lies have excluded honest nodes, these must be heard.
        is_enough = len(trusted) >= max(TRUSTED_MIN, TRUSTED_SHARE * len(others))
        heard = trusted if is_enough else others
        self.asked.discard(address)
        old = self.of(address)
        rise = old.rise
        if len(heard) >= REPORTS_MIN:
            # Early on an honest node's updates lower its own error; later they may overshoot.
            factor = OWN if old.rounds < EARLY else 1.0
            newest = max(
                weighted_median((rises[a], 1 / self.copies.get(a, 1)) for a in heard),
                min(OWN_MAX, factor * rises.get(address, -np.inf)),
            )
            rise = max(newest, MEMORY * old.rise + (1 - MEMORY) * newest)
        wait = PROBE_FIRST if version < EARLY else min(PROBE_LAST, 2 * old.wait)
        told = dict(sorted(rises.items())) if len(rises) <= TRIO else {}
        self.standings[address] = replace(old, rise=rise, probed=version, wait=wait, told=told)
        self.judge()
        if self.harm(address) > 0.5:
            # An excluded node's probes say less as the fleet goes on without it.
            wait = 2 * PROBE_FIRST if self.is_excluded(address) else PROBE_FIRST
            self.standings[address] = replace(self.standings[address], wait=wait)

    def ask(self, nodes: Iterable[int]) -> None:
        """Probe these nodes next; until all of them have been, nobody else is excluded."""
        self.asked.update(nodes)

    def forget_probes(self) -> None:
        """Judge nobody by the probes so far: no more will come, by which it could improve."""
        for address, known in self.standings.items():
            self.standings[address] = replace(known, rise=0.0, probed=0, wait=PROBE_FIRST, told={})
        self.judge()

    def judge(self) -> None:
        """What the rises are worth: those of a minority at most."""
        if self.asked:
            return
        present = [address for address, item in self.standings.items() if item.uptime > 0.5]
        if len(present) == TRIO:
            self._harms = self._harm_of_three(present)
            return
        known = sorted((item.rise, a) for a, item in self.standings.items() if item.probed)
        worst = known[::-1][: max(0, (len(present) - 1) // 2)]
        # The same for all of a minority, since none of them is the median.
        scale = self._scale(worst[0][1]) if worst else HARM_SCALE
        self._harms = {address: rise / scale for rise, address in worst if rise > 0}

    def _harm_of_three(self, nodes: Sequence[int]) -> dict[int, float]:
        """Of three nodes one at most does harm: as the two others say, if neither says it of both.

        One that lies of both others would else have one of them excluded, by the honest word that
        data are different. A node that is away is judged as in a larger fleet: it may come back.
        """
        harms = {}
        for address, known in self.standings.items():
            scale = self._scale(address)
            if address in nodes:
                (one, first), (other, second) = ((a, self.of(a)) for a in nodes if a != address)
                if not (first.probed and second.probed):
                    continue
                between = max(first.told.get(other, 0.0), second.told.get(one, 0.0))
                scale = max(HARM_SCALE, USUAL * between)
            harms[address] = known.rise / scale
        worst = max(sorted(harms), key=harms.__getitem__, default=None)
        return {worst: harms[worst]} if worst is not None and harms[worst] > 0 else {}

    def _scale(self, address: int) -> float:
        """The rise of the error that is a harm of 1.

        Where nodes have quite different data, most honest updates raise the others' error.
        """
        others = (n for a, n in self.standings.items() if a != address and n.uptime > 0.5)
        rises = sorted(node.rise for node in others)
        return max(HARM_SCALE, USUAL * rises[(len(rises) - 1) // 2]) if rises else HARM_SCALE

    def stored(self) -> bytes:
        """All as bytes, for the disk."""
        rows = [
            [address, *(getattr(item, name) for name in NodeStanding.__slots__)]
            for address, item in self.standings.items()
        ]
        return cbor2.dumps([self.first_loss, self.is_carried, self.usual_agreement, rows])

    def digest(self) -> bytes:
        """A hash of all that the next round depends on."""
        more = [sorted(of.items()) for of in (self._harms, self.copies, self.fixed)]
        return sha256(cbor2.dumps([self.stored(), sorted(self.asked), more])).digest()


def restored(data: bytes) -> Reputations:
    """What `stored` has returned; no bytes, or damaged ones, begin anew."""
    try:
        first_loss, is_carried, usual, rows = read_plain(data)
        standings = {int(row[0]): NodeStanding(*row[1:]) for row in rows}
    except (ValueError, TypeError, IndexError, cbor2.CBORDecodeError):
        return Reputations()
    return Reputations(standings, first_loss, bool(is_carried), usual_agreement=usual)


def _evidence(
    old: int, address: int, counted: Collection[int], opposed: Collection[int] | None
) -> int:
    """The rounds in which a node opposed the others, after one more."""
    if opposed is None or address not in counted:
        return old
    return min(OPPOSED_MAX, max(0, old + (1 if address in opposed else -1)))


def _draw(seed: bytes, address: int) -> float:
    """The part of its wait after which a node is probed, 0.5 to 1.5: unknown before the seed."""
    return 0.5 + derive_key("probe", seed, address.to_bytes(4, "little"))[0] / (1 << 32)


def weighted_median(pairs: Iterable[tuple[float, float]]) -> float:
    """The median of values with weights; of two in the middle the smaller."""
    values, weights = zip(*sorted(pairs), strict=True)
    so_far = np.cumsum(weights)
    return float(values[int(np.searchsorted(so_far, so_far[-1] / 2 - 1e-9))])
