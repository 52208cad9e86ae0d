"""The open round on the host: collects the updates and partial aggregates of a round.

Bodies arrive in any order, repeated or damaged. `round_of` checks a body before its content is
read. A reassembler collects the bodies of one update, and `OpenRound` holds those of all
nodes.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import chain
from typing import ClassVar

import numpy as np

from ternmesh.codec.encoder import Hypervector, decode_slice, gather
from ternmesh.codec.scale import decode_scale
from ternmesh.errors import WireError
from ternmesh.federated.evaluation import Evaluation, of_fleet, read_values
from ternmesh.federated.robust import Update
from ternmesh.plan import Plan
from ternmesh.wire import control
from ternmesh.wire import update as wire
from ternmesh.wire.control import Receipt, Silent
from ternmesh.wire.global_update import Counted

PARTIAL_AGGREGATE = 0x10000  # flag of a place, above all addresses


def round_of(body: bytes, version: int, plan: Plan, takes_partial_aggregates: bool) -> int:
    """Return the round of a node's body. Raises WireError if the host does not accept it."""
    of_aggregate = (
        (wire.CONTRIBUTIONS_KIND, wire.VOTE_CHUNK_KIND) if takes_partial_aggregates else ()
    )
    if body[0] in (wire.MANIFEST_KIND, wire.CHUNK_KIND, *of_aggregate):
        if len(body) < wire.CHUNK_HEAD_SIZE:
            raise WireError("length", "a body of an update is shorter than its header")
        return wire.whole_round(int.from_bytes(body[1:3], "little"), version)
    message = control.read_control(body) if body[0] == control.KIND else None
    may_be_silent = plan.rounds == 0 or plan.silence_rounds > 0
    if not isinstance(message, Silent) or not may_be_silent:
        raise WireError("kind", f"the host does not accept a body of kind {body[0]} here")
    return message.round


def check_round(round_number: int, version: int, *, is_open: bool) -> None:
    """Raise WireError unless the body of a round is for the open one, which is `version`."""
    if not is_open or round_number < version:
        raise WireError("old round", f"an update for round {round_number}, which is over")
    if round_number > version:
        raise WireError("future round", f"an update for round {round_number}, not yet open")


def is_of_partial_aggregate(body: bytes) -> bool:
    """Whether a body belongs to a partial aggregate, not to the node's own update."""
    names_contributors = body[0] == wire.MANIFEST_KIND and wire.has_contributors(body)
    return names_contributors or body[0] in (wire.CONTRIBUTIONS_KIND, wire.VOTE_CHUNK_KIND)


@dataclass(slots=True)
class UpdateReassembler:
    """Collects one update of one round, at most the plan's number of chunks."""

    chunk_kind: ClassVar = wire.CHUNK_KIND
    plan: Plan
    model: bytes  # the first 8 bytes of the model hash
    round: int
    manifest: wire.Manifest | None = None
    bodies: dict[int, bytes] = field(default_factory=dict)  # of the chunks, by index
    hash: bytes = b""  # of the complete update (`update_hash`)
    vector: Hypervector | None = None  # of the chunks; their only copy, as nodes are many

    @property
    def described(self) -> bool:
        """Whether the bodies that say what the chunks are have arrived."""
        return self.manifest is not None

    @property
    def usable(self) -> bool:
        """Whether a global update can count this: it is described, and at least one chunk came."""
        return self.described and bool(self.bodies)

    @property
    def complete(self) -> bool:
        head = self.manifest
        return self.described and head is not None and len(self.bodies) == head.chunks

    @property
    def have(self) -> bytes:
        """The bitmap of the chunks that have arrived."""
        return wire.write_bitmap(self.bodies, self.plan.up.count)

    def add(self, body: bytes) -> bool:
        """Add one body. Return False for a duplicate. Raises WireError if it does not fit."""
        if body[0] == wire.MANIFEST_KIND:
            return self._add_manifest(wire.read_manifest(body))
        return self._add_chunk(wire.read_chunk(body, self.chunk_kind), body)

    def counted(self, address: int) -> Counted:
        """Return the entry of this node in a global update, for the chunks that have arrived."""
        assert self.manifest is not None
        return Counted(address, self.round, self.manifest.digest, self.have)

    def hypervector(self) -> Hypervector:
        """Return the hypervector of the chunks that have arrived; it changes with the next."""
        if self.vector is None:
            self.vector = gather([], self.plan.up)
        return self.vector

    def update(self, address: int) -> Update:
        """Return what this node, or the gateway in its name, adds to the round."""
        assert self.manifest is not None
        members = len(self.manifest.contributors) or 1
        evaluation = read_values(self.manifest.evaluation)
        bodies = tuple(body for _, body in sorted(self.bodies.items()))
        samples = self.manifest.samples
        return Update(address, samples, self.hypervector(), members, evaluation, bodies)

    def _add_manifest(self, item: wire.Manifest) -> bool:
        if item.model != self.model:
            raise WireError("wrong model", "an update for another model")
        if item.chunks != self.plan.up.count:
            raise WireError("vector length", f"an update here has {self.plan.up.count} chunks")
        self._check_contributors(item)
        if self.manifest == item:
            return False
        if self.manifest is not None:
            raise WireError("conflict", "a second, different update for the same round")
        self.manifest = item
        self._check_digest()
        return True

    def _add_chunk(self, item: wire.Chunk, body: bytes) -> bool:
        index = item.slice.index
        if index >= self.plan.up.count:
            raise WireError("vector length", f"an update here has {self.plan.up.count} chunks")
        if index in self.bodies:
            if self.bodies[index] != body:
                raise WireError("conflict", "a second, different chunk with the same index")
            return False
        if decode_scale(item.slice.scale) > self.plan.scale_max:
            raise WireError("scale", "a chunk's scale is larger than the plan allows")
        trits, scale = decode_slice(item.slice, self.plan.up)
        self._check_votes(int(np.abs(trits).max()) if item.slice.coded.has_votes else 1, scale)
        self.bodies[index] = body
        self.hypervector().put(index, trits, scale)
        self._check_digest()
        return True

    def _check_contributors(self, item: wire.Manifest) -> None:
        if item.contributors:
            raise WireError("bundle", "partial aggregates are not accepted from this node")

    def _check_votes(self, largest: int, _scale: int) -> None:
        if largest > 1:
            raise WireError("bundle", "votes are not accepted from this node")

    def whole(self) -> list[bytes]:
        """The bodies that the digest covers."""
        return [self.bodies[index] for index in range(self.plan.up.count)]

    def _check_digest(self) -> None:
        """Raise WireError for a complete update with another digest; the caller then drops it."""
        if self.manifest is None or not self.complete:
            return
        self.hash = wire.update_hash(self.whole())
        if self.hash[: wire.DIGEST_SIZE] != self.manifest.digest:
            raise WireError("digest", "the chunks are not those that the manifest names")


@dataclass(slots=True)
class PartialAggregateReassembler(UpdateReassembler):
    """Collects one partial aggregate of one round."""

    chunk_kind: ClassVar = wire.VOTE_CHUNK_KIND
    lead: int = 0  # the first contributor, in whose name it is sent
    nodes: Collection[int] = ()  # the possible contributors
    # Once manifest and list are here
    rows: dict[int, wire.Contribution] = field(default_factory=dict)
    listed: bytes = b""  # the body of contributions

    @property
    def described(self) -> bool:
        """Whether the manifest and the list of contributions have arrived."""
        return bool(self.rows)

    def add(self, body: bytes) -> bool:
        """Add one body. Return False for a duplicate. Raises WireError if it does not fit."""
        if body[0] == wire.CONTRIBUTIONS_KIND:
            return self._add_contributions(body)
        return UpdateReassembler.add(self, body)

    def counted(self, address: int) -> Counted:
        """Return the entry of a contributor in a global update."""
        return Counted(address, self.round, self.rows[address].digest, self.have)

    def _add_contributions(self, body: bytes) -> bool:
        wire.read_contributions(body)
        if self.listed:
            if self.listed != body:
                raise WireError("conflict", "a second, different list of contributions")
            return False
        self.listed = body
        self._check_digest()
        return True

    def _check_contributors(self, item: wire.Manifest) -> None:
        if len(item.contributors) < 2 or item.contributors[0] != self.lead:
            raise WireError(
                "manifest", "a partial aggregate must be sent in the name of its first contributor"
            )
        if not all(address in self.nodes for address in item.contributors):
            raise WireError("unknown node", "a partial aggregate names an address that no node has")

    def _check_votes(self, largest: int, scale: int) -> None:
        if largest * scale > self.plan.scale_max:
            raise WireError("scale", "a partial aggregate's votes are larger than the plan allows")

    def whole(self) -> list[bytes]:
        """The bodies that the digest covers: the list, then the chunks."""
        return [self.listed, *UpdateReassembler.whole(self)]

    def _check_digest(self) -> None:
        """Also compare the list with the manifest; after a WireError the caller drops all."""
        if self.manifest is not None and self.listed and not self.rows:
            rows = wire.read_contributions(self.listed)
            named = self.manifest.contributors
            if len(rows) != len(named) or sum(r.samples for r in rows) != self.manifest.samples:
                raise WireError("digest", "the contributions are not those of the manifest")
            self.rows = dict(zip(named, rows, strict=True))
        UpdateReassembler._check_digest(self)


@dataclass(frozen=True, slots=True)
class Count:
    """The content of a global update: the vectors, and the entries of nodes and gateways."""

    updates: list[Update] = field(default_factory=list)
    rows: dict[int, Counted] = field(default_factory=dict)  # by node
    # By contributor: the entry of its partial aggregate
    partial_aggregates: dict[int, Counted] = field(default_factory=dict)

    @property
    def evaluation(self) -> Evaluation:
        """What the nodes report of the global adapter before this round."""
        return of_fleet([update.evaluation for update in self.updates])

    @property
    def evaluations(self) -> tuple[tuple[int, Evaluation], ...]:
        """The reports of the nodes whose own updates count, by address."""
        alone = [update for update in self.updates if update.members == 1]
        return tuple((item.address, item.evaluation) for item in alone if item.evaluation.nodes)


class OpenRound:
    """The updates of one round while they arrive, and the silent nodes, by address.

    A body's place is the address of its node, with the flag `PARTIAL_AGGREGATE` if the body belongs
    to a partial aggregate that is sent in the node's name. `all_train`: in a run without an end,
    silent nodes send updates, too, as others have news; the round waits for these updates then.
    `only_whole`: updates that lack chunks do not count.
    """

    def __init__(
        self,
        plan: Plan,
        model: bytes,
        number: int,
        nodes: Collection[int] | None = None,
        *,
        all_train: bool = False,
        only_whole: bool = False,
    ) -> None:
        self.number = number
        self.updates: dict[int, UpdateReassembler] = {}
        self.silent: set[int] = set()
        self.partial_aggregates: dict[int, PartialAggregateReassembler] = {}  # by first contributor
        self.unanswered: set[int] = set()  # nodes that sent bodies in the last frames
        self.missing: list[int] = []  # nodes that were missing at the last look at all
        self._complete: list[PartialAggregateReassembler] = []  # in the order of completion
        self._plan = plan
        self._model = model
        self.all_train = all_train
        self._only_whole = only_whole
        self._nodes = nodes  # possible contributors; None if partial aggregates are not accepted

    def place(self, address: int, body: bytes) -> int:
        """Return the place of a body that was sent in a node's name."""
        if self._nodes is not None and is_of_partial_aggregate(body):
            return address | PARTIAL_AGGREGATE
        return address

    def add(self, place: int, body: bytes) -> bool:
        """Add an update's body, or a `Silent`. Return False for a duplicate. Raises WireError."""
        if place & PARTIAL_AGGREGATE:
            return self._add_to_aggregate(place & ~PARTIAL_AGGREGATE, body)
        if body[0] == control.KIND:
            is_new = place not in self.silent
            self.silent.add(place)
            return is_new
        update = self.updates.get(place)
        if update is None:
            update = self.updates[place] = UpdateReassembler(self._plan, self._model, self.number)
        return update.add(body)

    def _add_to_aggregate(self, lead: int, body: bytes) -> bool:
        aggregate = PartialAggregateReassembler(
            self._plan, self._model, self.number, lead=lead, nodes=self._nodes or ()
        )
        aggregate = self.partial_aggregates.setdefault(lead, aggregate)
        is_new = aggregate.add(body)
        if is_new and aggregate.complete:
            self._complete.append(aggregate)
        return is_new

    def forget(self, place: int) -> None:
        """Drop all bodies of a place, because the bodies contradict each other."""
        if place & PARTIAL_AGGREGATE:
            self.partial_aggregates.pop(place & ~PARTIAL_AGGREGATE, None)
        else:
            self.updates.pop(place, None)
            self.silent.discard(place)

    def whole_update(self, place: int) -> tuple[wire.Manifest, bytes] | None:
        """Return manifest and hash of a node's own update; None until the update is complete."""
        update = self.updates.get(place)
        if update is None or update.manifest is None or not update.complete:
            return None
        return update.manifest, update.hash

    def is_whole(self, place: int) -> bool:
        """Whether the update or partial aggregate of a place is complete."""
        kept = self.partial_aggregates if place & PARTIAL_AGGREGATE else self.updates
        update = kept.get(place & ~PARTIAL_AGGREGATE)
        return update is not None and update.complete

    def delivered(self, address: int) -> str:
        """Return how much of a node's update came, also in an aggregate: none, part or whole.

        "silent" if the node has sent a `Silent` and no chunk. A node that has sent both has lost
        its disk in between; then its update counts.
        """
        update = self._aggregate_of().get(address, self.updates.get(address))
        if update is None or not update.bodies:
            return "silent" if address in self.silent else "none"
        return "whole" if update.complete else "part"

    def has_spoken(self, address: int) -> bool:
        """Whether any body of a node came: a `Silent`, manifest, chunk or contribution."""
        update = self.updates.get(address)
        has_update = update is not None and (update.manifest is not None or bool(update.bodies))
        is_aggregated = any(address in item.rows for item in self.partial_aggregates.values())
        return has_update or is_aggregated or address in self.silent

    def present(self) -> set[int]:
        """Return the nodes that are silent or whose update is complete."""
        silent = {address for address in self.silent if self.delivered(address) == "silent"}
        return self._whole() | silent

    def _whole(self) -> set[int]:
        whole = {address for address, update in self.updates.items() if update.complete}
        return whole | {a for a, item in self._aggregate_of().items() if item.complete}

    def ready(self) -> set[int]:
        """Return the nodes that the round does not wait for."""
        if not self.all_train:
            return self.present()
        whole = self._whole()
        return whole if self.has_news(whole) else set(self.silent)

    def is_ready(self, address: int) -> bool:
        """Whether a node is among those of `ready`, found without a look at all nodes."""
        how = self.delivered(address)
        if how == "whole" or not self.all_train:
            return how in ("whole", "silent")
        known = chain(self.updates.items(), self._aggregate_of().items())
        has_news = any(item.complete and a not in self.silent for a, item in known)
        return address in self.silent and not has_news

    def has_news(self, addresses: Collection[int]) -> bool:
        """Whether the update of one of these nodes is for news."""
        return not self.silent.issuperset(addresses) if self.all_train else bool(addresses)

    def count(self) -> Count:
        """Return the content for a global update, in the order of addresses."""
        aggregates = self._aggregate_of()
        own = {
            address: update
            for address, update in sorted(self.updates.items())
            if update.usable
            and address not in aggregates
            and (update.complete or not self._only_whole)
        }
        rows = {address: item.counted(address) for address, item in (own | aggregates).items()}
        leads = {lead: item for lead, item in sorted(aggregates.items()) if item.lead == lead}
        return Count(
            [item.update(address) for address, item in (own | leads).items()],
            dict(sorted(rows.items())),
            {one: UpdateReassembler.counted(item, item.lead) for one, item in aggregates.items()},
        )

    def answers(self, address: int) -> list[control.Control]:
        """Return the messages that tell a node which bodies it need not repeat."""
        answers: list[control.Control] = [Silent(self.number)] if address in self.silent else []
        update = self._aggregate_of().get(address, self.updates.get(address))
        if update is not None and update.manifest is not None:
            row = update.counted(address)
            answers.append(Receipt(self.number, row.digest, row.have))
        return answers

    def contributors(self, place: int) -> list[int]:
        """Return the nodes whose updates a place holds."""
        if not place & PARTIAL_AGGREGATE:
            return [place]
        aggregate = self.partial_aggregates.get(place & ~PARTIAL_AGGREGATE)
        return [] if aggregate is None else list(aggregate.rows)

    def _aggregate_of(self) -> dict[int, PartialAggregateReassembler]:
        """Return the partial aggregates that count, by contributor.

        No node counts twice: the first complete one wins. An incomplete partial aggregate counts
        only if none of its nodes has a complete update.
        """
        incomplete = [
            item
            for _, item in sorted(self.partial_aggregates.items())
            if not item.complete and not any(map(self.is_whole, item.rows))
        ]
        by_contributor: dict[int, PartialAggregateReassembler] = {}
        for aggregate in (*self._complete, *incomplete):
            if aggregate.usable and by_contributor.keys().isdisjoint(aggregate.rows):
                by_contributor |= dict.fromkeys(aggregate.rows, aggregate)
        return by_contributor
