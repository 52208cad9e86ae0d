"""What has arrived on the host for the open round, of all nodes."""

from collections.abc import Collection
from dataclasses import dataclass

from ternmesh.hypervector.encoder import Hypervector
from ternmesh.plan import Plan
from ternmesh.swarm.bundle_intake import BundleIntake, is_of_bundle
from ternmesh.swarm.intake import Intake
from ternmesh.wire import control
from ternmesh.wire.control import Receipt, Silent
from ternmesh.wire.manifest import Manifest, packet_hash
from ternmesh.wire.reference import Counted

BUNDLE = 0x10000  # beyond all contexts: marks the place of the bundle in a node's name


@dataclass(frozen=True, slots=True)
class Count:
    """What a reference counts: vectors by their weight, the row of each node, and those of bundles.

    `bundles` has for each contributor the row of the bundle that its packet came in.
    """

    packets: list[tuple[int, Hypervector]]
    rows: dict[int, Counted]
    bundles: dict[int, Counted]


class OpenRound:
    """Packets on their way in, and who has said that none is coming; nodes by their context.

    `nodes` are those of which a bundle may be made: None where the run takes no bundles.
    """

    def __init__(
        self, plan: Plan, model: bytes, number: int, nodes: Collection[int] | None = None
    ) -> None:
        self.number = number
        self.intakes: dict[int, Intake] = {}
        self.silent: set[int] = set()
        self.bundles: dict[int, BundleIntake] = {}  # by the node in whose name they come
        self._whole: list[BundleIntake] = []  # in the order in which nothing was missing any more
        self._plan, self._model, self._nodes = plan, model, nodes

    def place(self, context: int, body: bytes) -> int:
        """Where a body in a node's name belongs: to the node itself, or to a bundle."""
        return context | (BUNDLE if self._nodes is not None and is_of_bundle(body) else 0)

    def add(self, place: int, body: bytes) -> bool:
        """Take a share, a manifest or a `Silent`; False if it is here already. WireError."""
        if place & BUNDLE:
            return self._add_to_bundle(place & ~BUNDLE, body)
        if body[0] == control.KIND:
            is_new = place not in self.silent
            self.silent.add(place)
            return is_new
        intake = self.intakes.get(place)
        if intake is None:
            intake = self.intakes[place] = Intake(self._plan, self._model, self.number)
        return intake.add(body)

    def _add_to_bundle(self, lead: int, body: bytes) -> bool:
        bundle = self.bundles.get(lead)
        if bundle is None:
            start = (self._plan, self._model, self.number)
            bundle = self.bundles[lead] = BundleIntake(*start, lead=lead, nodes=self._nodes or ())
        is_new = bundle.add(body)
        if is_new and bundle.complete:
            self._whole.append(bundle)
        return is_new

    def forget(self, place: int) -> None:
        """What is here does not add up: it is as if nothing had been said."""
        if place & BUNDLE:
            self.bundles.pop(place & ~BUNDLE, None)
        else:
            self.intakes.pop(place, None)
            self.silent.discard(place)

    def whole_packet(self, place: int) -> tuple[Manifest, bytes] | None:
        """Manifest and whole hash of a node's own packet, if nothing of it is missing."""
        intake = self.intakes.get(place)
        if intake is None or intake.manifest is None or not intake.complete:
            return None
        return intake.manifest, packet_hash(intake.whole())

    def is_whole(self, place: int) -> bool:
        """Whether nothing is missing of the packet or the bundle at a place."""
        kept = self.bundles if place & BUNDLE else self.intakes
        intake = kept.get(place & ~BUNDLE)
        return intake is not None and intake.complete

    def delivered(self, context: int) -> str:
        """How much of a node's packet is here, be it in a bundle: none, part or whole; or silent.

        Of a node that has said both, the packet is believed: it has lost its disk in between.
        """
        intake = self._bundle_of().get(context, self.intakes.get(context))
        if intake is None or not intake.bodies:
            return "silent" if context in self.silent else "none"
        return "whole" if intake.complete else "part"

    def has_spoken(self, context: int) -> bool:
        """Whether anything of a node is here: its silence, a share or a manifest, also bundled."""
        intake = self.intakes.get(context)
        own = intake is not None and (intake.manifest is not None or bool(intake.bodies))
        bundled = any(context in bundle.rows for bundle in self.bundles.values())
        return own or bundled or context in self.silent

    def present(self) -> set[int]:
        """The nodes of which nothing more is to come."""
        whole = {context for context, intake in self.intakes.items() if intake.complete}
        whole |= {context for context, bundle in self._bundle_of().items() if bundle.complete}
        return whole | {c for c in self.silent if self.delivered(c) == "silent"}

    def count(self) -> Count:
        """What a reference counts that is made now; nodes in the order of their contexts."""
        bundles = self._bundle_of()
        own = {c: i for c, i in self.intakes.items() if i.usable and c not in bundles}
        rows = {c: Counted(c, self.number, _digest(i), i.have) for c, i in own.items()}
        rows |= {context: bundle.counted(context) for context, bundle in bundles.items()}
        counted = [own[c] for c in sorted(own)]
        counted += [bundles[c] for c in sorted(bundles) if bundles[c].lead == c]
        return Count(
            [(i.manifest.samples, i.hypervector()) for i in counted if i.manifest],
            dict(sorted(rows.items())),
            {context: bundle.counted_itself() for context, bundle in bundles.items()},
        )

    def answers(self, context: int) -> list[control.Control]:
        """What tells a node that it need not repeat what is on disk here."""
        answers: list[control.Control] = [Silent(self.number)] if context in self.silent else []
        bundle, intake = self._bundle_of().get(context), self.intakes.get(context)
        if bundle is not None:
            row = bundle.counted(context)
            answers.append(Receipt(self.number, row.digest, row.have))
        elif intake is not None and intake.manifest is not None:
            answers.append(Receipt(self.number, intake.manifest.digest, intake.have))
        return answers

    def contributors(self, place: int) -> list[int]:
        """The nodes that a body at a place is about."""
        if not place & BUNDLE:
            return [place]
        bundle = self.bundles.get(place & ~BUNDLE)
        return [] if bundle is None else list(bundle.rows)

    def _bundle_of(self) -> dict[int, BundleIntake]:
        """By contributor, the bundles that count: no node twice, and the first whole one wins.

        A bundle that is not whole counts only if none of its nodes has anything whole.
        """
        found: dict[int, BundleIntake] = {}
        parts = [bundle for _, bundle in sorted(self.bundles.items()) if not bundle.complete]
        parts = [bundle for bundle in parts if not any(map(self.is_whole, bundle.rows))]
        for bundle in (*self._whole, *parts):
            if bundle.usable and found.keys().isdisjoint(bundle.rows):
                found |= dict.fromkeys(bundle.rows, bundle)
        return found


def _digest(intake: Intake) -> bytes:
    assert intake.manifest is not None
    return intake.manifest.digest
