"""The open round on the host: collects the updates of a round.

Bodies arrive in any order, repeated or damaged. `round_of` checks a body before its content is
read. A reassembler collects the bodies of one update, and `OpenRound` holds those of all
nodes.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

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


def round_of(body: bytes, version: int, plan: Plan) -> int:
    """Return the round of a node's body. Raises WireError if the host does not accept it."""
    if body[0] in (wire.MANIFEST_KIND, wire.CHUNK_KIND):
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


@dataclass(slots=True)
class UpdateReassembler:
    """Collects one update of one round, at most the plan's number of chunks."""

    plan: Plan
    model: bytes  # the first 8 bytes of the model hash
    round: int
    manifest: wire.Manifest | None = None
    bodies: dict[int, bytes] = field(default_factory=dict)  # of the chunks, by index
    hash: bytes = b""  # of the complete update (`update_hash`)
    vector: Hypervector | None = None  # of the chunks; their only copy, as nodes are many

    @property
    def usable(self) -> bool:
        """Whether a global update can count this: the manifest is here, and at least one chunk."""
        return self.manifest is not None and bool(self.bodies)

    @property
    def complete(self) -> bool:
        return self.manifest is not None and len(self.bodies) == self.manifest.chunks

    @property
    def chunks(self) -> tuple[bytes, ...]:
        """The bodies of the chunks that have arrived, by index."""
        return tuple(body for _, body in sorted(self.bodies.items()))

    @property
    def members(self) -> int:
        """Of how many boards an aggregator has added up the updates; 0 on a board."""
        return 0 if self.manifest is None else self.manifest.members

    @property
    def have(self) -> bytes:
        """The bitmap of the chunks that have arrived."""
        return wire.write_bitmap(self.bodies, self.plan.up.count)

    def add(self, body: bytes) -> bool:
        """Add one body. Return False for a duplicate. Raises WireError if it does not fit."""
        if body[0] == wire.MANIFEST_KIND:
            return self._add_manifest(wire.read_manifest(body))
        return self._add_chunk(wire.read_chunk(body), body)

    def counted(self, address: int) -> Counted:
        """Return the entry of this node in a global update, for the chunks that have arrived."""
        assert self.manifest is not None
        root = self.manifest.root
        return Counted(address, self.round, self.manifest.digest, self.have, root)

    def hypervector(self) -> Hypervector:
        """Return the hypervector of the chunks that have arrived; it changes with the next."""
        if self.vector is None:
            self.vector = gather([], self.plan.up)
        return self.vector

    def update(self, address: int) -> Update:
        """Return what this node, or an aggregator, adds to the round."""
        assert self.manifest is not None
        members = self.manifest.members or 1
        evaluation = read_values(self.manifest.evaluation)
        samples = self.manifest.samples
        return Update(address, samples, self.hypervector(), members, evaluation, self.chunks)

    def _add_manifest(self, item: wire.Manifest) -> bool:
        if item.model != self.model:
            raise WireError("wrong model", "an update for another model")
        if item.chunks != self.plan.up.count:
            raise WireError("vector length", f"an update here has {self.plan.up.count} chunks")
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
        self.bodies[index] = body
        self.hypervector().put(index, trits, scale)
        self._check_digest()
        return True

    def _check_digest(self) -> None:
        """Raise WireError for a complete update with another digest; the caller then drops it."""
        if self.manifest is None or not self.complete:
            return
        chunks = [self.bodies[index] for index in range(self.plan.up.count)]
        self.hash = wire.update_hash(chunks)
        if self.hash[: wire.DIGEST_SIZE] != self.manifest.digest:
            raise WireError("digest", "the chunks are not those that the manifest names")


@dataclass(frozen=True, slots=True)
class Count:
    """The content of a global update: the vectors, and the entries of nodes."""

    updates: list[Update] = field(default_factory=list)
    rows: dict[int, Counted] = field(default_factory=dict)  # by node

    def without(self, addresses: Collection[int]) -> "Count":
        """The same without these nodes."""
        rows = {address: row for address, row in self.rows.items() if address not in addresses}
        return Count([one for one in self.updates if one.address not in addresses], rows)

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

    `all_train`: in a run without an end, silent nodes send updates, too, as others have news; the
    round waits for these updates then. `only_whole`: updates that lack chunks do not count.
    """

    def __init__(
        self,
        plan: Plan,
        model: bytes,
        number: int,
        *,
        all_train: bool = False,
        only_whole: bool = False,
    ) -> None:
        self.number = number
        self.updates: dict[int, UpdateReassembler] = {}
        self.silent: set[int] = set()
        self.unanswered: set[int] = set()  # nodes that sent bodies in the last frames
        self.missing: list[int] = []  # nodes that were missing at the last look at all
        self.all_train = all_train
        self._plan = plan
        self._model = model
        self._only_whole = only_whole

    def add(self, address: int, body: bytes) -> bool:
        """Add an update's body, or a `Silent`. Return False for a duplicate. Raises WireError."""
        if body[0] == control.KIND:
            is_new = address not in self.silent
            self.silent.add(address)
            return is_new
        new = UpdateReassembler(self._plan, self._model, self.number)
        return self.updates.setdefault(address, new).add(body)

    def forget(self, address: int) -> None:
        """Drop all bodies of a node, because the bodies contradict each other."""
        self.updates.pop(address, None)
        self.silent.discard(address)

    def whole_update(self, address: int) -> tuple[wire.Manifest, bytes] | None:
        """Return manifest and hash of a node's update; None until the update is complete."""
        update = self.updates.get(address)
        if update is None or update.manifest is None or not update.complete:
            return None
        return update.manifest, update.hash

    def delivered(self, address: int) -> str:
        """Return how much of a node's update came: none, part or whole.

        "silent" if the node has sent a `Silent` and no chunk. A node that has sent both has lost
        its disk in between; then its update counts.
        """
        update = self.updates.get(address)
        if update is None or not update.bodies:
            return "silent" if address in self.silent else "none"
        return "whole" if update.complete else "part"

    def has_spoken(self, address: int) -> bool:
        """Whether any body of a node came: a `Silent`, manifest or chunk."""
        update = self.updates.get(address)
        has_update = update is not None and (update.manifest is not None or bool(update.bodies))
        return has_update or address in self.silent

    def present(self) -> set[int]:
        """Return the nodes that are silent or whose update is complete."""
        silent = {address for address in self.silent if self.delivered(address) == "silent"}
        return self._whole() | silent

    def _whole(self) -> set[int]:
        return {address for address, update in self.updates.items() if update.complete}

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
        known = self.updates.items()
        has_news = any(item.complete and a not in self.silent for a, item in known)
        return address in self.silent and not has_news

    def has_news(self, addresses: Collection[int]) -> bool:
        """Whether the update of one of these nodes is for news."""
        return not self.silent.issuperset(addresses) if self.all_train else bool(addresses)

    def count(self) -> Count:
        """Return the content for a global update, in the order of addresses."""
        counted = {
            address: update
            for address, update in sorted(self.updates.items())
            if update.usable and (update.complete or not (self._only_whole or update.members))
        }
        return Count(
            [item.update(address) for address, item in counted.items()],
            {address: item.counted(address) for address, item in counted.items()},
        )

    def answers(self, address: int) -> list[control.Control]:
        """Return the messages that tell a node which bodies it need not repeat."""
        answers: list[control.Control] = [Silent(self.number)] if address in self.silent else []
        update = self.updates.get(address)
        if update is not None and update.manifest is not None:
            row = update.counted(address)
            answers.append(Receipt(self.number, row.digest, row.have))
        return answers
