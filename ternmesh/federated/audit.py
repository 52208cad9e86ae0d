"""Audits of aggregators: whether what one has sent is what its boards' updates come to. SPEC 6.8.

What an aggregator sends is a pure function of its boards' signed updates and of its residual. Which
rounds are audited follows from the next certified global update, which nobody knows while the
aggregator makes its own: then it shows both, and the host makes the update again.
"""

import hashlib
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import cbor2
import numpy as np

from ternmesh.codec.encoder import add_residual, scatter
from ternmesh.codec.permutation import order
from ternmesh.errors import WireError
from ternmesh.federated import local_update
from ternmesh.federated.evaluation import write_values
from ternmesh.federated.events import AddedUp
from ternmesh.federated.open_round import Count, OpenRound, UpdateReassembler
from ternmesh.federated.robust import Update, Weighted, bound, mean_of, norm_max
from ternmesh.plan import Plan
from ternmesh.types import Vector
from ternmesh.wire.control import NAME, read_plain
from ternmesh.wire.fragments import Reassembler
from ternmesh.wire.frame import NODE_MAX
from ternmesh.wire.global_update import Counted
from ternmesh.wire.proof import Tree
from ternmesh.wire.update import MEMBERS_MAX, MODEL_SIZE, SAMPLES_MAX, Manifest

AUDIT = 6  # the kind of object
FIRST = 3  # rounds of a run that are all audited
ONE_IN = 10  # of the later rounds
MISSED_MAX = 3  # audits in a row that an aggregator may miss: it may have lost its power
BODY_MAX = 4096
SHOWN_MAX = 32 << 20  # bytes: members are what an aggregator says
_START = struct.Struct("<BI")

_MALFORMED = (
    ValueError, TypeError, OverflowError, struct.error, zlib.error, cbor2.CBORDecodeError
)  # fmt: skip

# `MessageAuthenticator.check_board` for one run: name, number, item, update; WireError
CheckUpdate = Callable[..., None]


class AuditFailed(WireError):
    """An aggregator has sent something else than its boards' updates come to."""

    def __init__(self, sentence: str) -> None:
        super().__init__("audit", sentence)


@dataclass(frozen=True, slots=True)
class Shown:
    """What an aggregator shows of a round."""

    round: int
    residual: Vector  # before it (float32, D)
    boards: Mapping[int, tuple[str, tuple[bytes, ...]]]  # names and bodies, by its own addresses


def is_drawn(round_number: int, address: int, certified: bytes) -> bool:
    """Whether the round of an aggregator is audited, by the certified update that ends it.

    The certificate counts, too: what an aggregator sends may be all that the update is made of.
    """
    drawn = hashlib.sha256(b"audit" + certified + address.to_bytes(2, "little")).digest()
    return round_number < FIRST or int.from_bytes(drawn[:4], "little") % ONE_IN == 0


def add_up(updates: Sequence[Update], model_hash: bytes, round_number: int, plan: Plan) -> Vector:
    """What the updates of a region come to (float32, D): their mean, each within bounds.

    The bounds need no history: neither do those who check it.
    """
    weights, _, factors = bound(updates, (), norm_max=norm_max(plan))
    mean = mean_of(Weighted(updates, weights, factors))
    return scatter(mean, order(model_hash, round_number, plan.dimension))


def samples_of(count: Count) -> int:
    """The samples that an aggregator gives for the updates of its boards."""
    return min(SAMPLES_MAX, sum(update.samples for update in count.updates))


def added_up(count: Count, model_hash: bytes, round_number: int, plan: Plan) -> AddedUp:
    """What an aggregator gives the host above, of the updates of its boards."""
    return AddedUp(
        round=round_number,
        vector=add_up(count.updates, model_hash, round_number, plan),
        samples=samples_of(count),
        members=min(MEMBERS_MAX, len(count.rows)),
        root=Tree(count.rows.values()).root,
        evaluation=count.evaluation,
    )


def write_shown(shown: Shown) -> bytes:
    """The bytes of an audit, an object from an aggregator to its host."""
    boards = [[address, name, *bodies] for address, (name, bodies) in sorted(shown.boards.items())]
    exponent, steps = local_update.in_steps(shown.residual)
    residual = zlib.compress(steps.tobytes(), 9)
    encoded = cbor2.dumps([shown.round, exponent, residual, *boards], canonical=True)
    return _START.pack(AUDIT, len(encoded)) + encoded


def read_shown(data: bytes, dimension: int) -> Shown:
    """The inverse of `write_shown`. Raises WireError."""
    try:
        if _START.unpack_from(data) != (AUDIT, len(data) - _START.size):
            raise ValueError("its length")
        number, exponent, residual, *rows = read_plain(data[_START.size :])
        if type(number) is not int or type(exponent) is not int:  # int() of a decimal may not end
            raise ValueError("its numbers")
        boards = {address: (name, tuple(bodies)) for address, name, *bodies in rows}
        steps = zlib.decompressobj().decompress(residual, dimension + 1)
        vector = local_update.of_steps(exponent, np.frombuffer(steps, np.int8))
        fit = vector.shape == (dimension,) and bool(np.isfinite(vector).all())
        fit = fit and len(boards) == len(rows) <= MEMBERS_MAX
        for address, (name, bodies) in boards.items():
            fit = fit and type(address) is int and 0 < address <= NODE_MAX
            fit = fit and bool(NAME.match(name))
            fit = fit and all(type(one) is bytes and 0 < len(one) <= BODY_MAX for one in bodies)
    except _MALFORMED as error:
        raise WireError("audit", f"what an aggregator shows is not well formed: {error}") from error
    if not fit:
        raise WireError("audit", "what an aggregator shows has a field of another form")
    return Shown(number, vector, boards)


@dataclass(slots=True)
class Audited:
    """What an aggregator has sent for a round that is over."""

    round: int
    manifest: Manifest
    chunks: tuple[bytes, ...]
    row: Counted  # what counts of it
    is_drawn: bool
    after: bytes = b""  # the hash of its residual after it, once it has shown that


class Audits:
    """What a host keeps of its aggregators, by address, until the next round of each."""

    def __init__(self, plan: Plan, model_hash: bytes) -> None:
        self._plan = plan
        self._model_hash = model_hash
        self._sent: dict[int, Audited] = {}
        self._missed: dict[int, int] = {}  # audits in a row to which no answer came
        self._pieces: dict[int, Reassembler] = {}

    def note(
        self, count: Count, updates: Mapping[int, UpdateReassembler], certified: bytes
    ) -> dict[int, str]:
        """A round has ended with this global update. Return who has lied, and how, by address."""
        self._pieces.clear()
        liars = {}
        for address, before in self._sent.items():
            if before.is_drawn and not before.after:
                before.is_drawn = False
                self._missed[address] = self._missed.get(address, 0) + 1
                if self._missed[address] >= MISSED_MAX:
                    liars[address] = f"it has not shown its boards' updates {MISSED_MAX} times"
        for address, row in count.rows.items():
            sent = updates.get(address)
            if sent is None or sent.manifest is None or not sent.manifest.members:
                continue
            last = self._sent.get(address)
            is_next = last is not None and last.round == sent.round - 1 and last.after
            if last is not None and is_next and last.after != sent.manifest.state:
                liars[address] = "what an update could not carry is not what it added to the next"
            # After one that was missed, all are audited until one was shown.
            drawn = address in self._missed or is_drawn(sent.round, address, certified)
            made = Audited(sent.round, sent.manifest, sent.chunks, row, drawn)
            self._sent[address] = made
        return liars

    def receive(self, address: int, body: bytes, check_update: CheckUpdate) -> dict[int, str]:
        """Take a fragment of what an aggregator shows. Return as `note` does. Raises WireError."""
        sent = self._sent.get(address)
        if sent is None or not sent.is_drawn or sent.after:
            raise WireError("kind", "a fragment that this host did not ask for")
        each = self._plan.up.count * self._plan.frame_mtu + BODY_MAX
        size = min(SHOWN_MAX, 8 * self._plan.dimension + sent.manifest.members * each)
        pieces = self._pieces.setdefault(address, Reassembler(self._plan.frame_mtu, size, 1))
        data = pieces.add(body)
        if data is None:
            return {}
        del self._pieces[address]
        shown = read_shown(data, self._plan.dimension)
        try:
            if shown.round == sent.round:
                sent.after = self._check(shown, sent, check_update)
                self._missed.pop(address, None)
        except AuditFailed as error:
            return {address: str(error)}
        return {}

    def _check(self, shown: Shown, sent: Audited, check_update: CheckUpdate) -> bytes:
        """Make an update again. Return the hash of what it could not carry. Raises AuditFailed."""
        plan, model_hash = self._plan, self._model_hash
        if local_update.state_of(shown.residual) != sent.manifest.state:
            raise AuditFailed("it shows another remainder than its update names")
        count = _counted(shown, plan, model_hash, check_update)
        rows: tuple[Counted, ...] = tuple(count.rows.values())
        manifest = sent.manifest
        told = manifest.members, manifest.samples, manifest.root, manifest.evaluation
        report = write_values(count.evaluation)
        if not rows or told != (len(rows), samples_of(count), Tree(rows).root, report):
            raise AuditFailed("it has counted other updates than it shows")
        vector = add_up(count.updates, model_hash, shown.round, plan)
        corrected = add_residual(shown.residual, vector)
        again = local_update.make_update(corrected, model_hash, shown.round, manifest.samples, plan)
        if again.bodies[1:] != sent.chunks:
            raise AuditFailed("it has sent something else than its boards' updates come to")
        address = sent.row.address
        rest = local_update.settle_update(again, (sent.row,), address, model_hash, plan)
        return local_update.state_of(local_update.kept_remainder(rest))


def _counted(shown: Shown, plan: Plan, model_hash: bytes, check_update: CheckUpdate) -> Count:
    """The boards' updates, with the signature of each. Raises AuditFailed."""
    opened = OpenRound(plan, model_hash[:MODEL_SIZE], shown.round)
    if len({name for name, _ in shown.boards.values()}) < len(shown.boards):
        raise AuditFailed("it counts a board twice")
    try:
        for address, (name, bodies) in shown.boards.items():
            for body in bodies:
                opened.add(address, body)
            whole = opened.whole_update(address)
            if whole is None:
                raise WireError("audit", f"the update of {name} is not whole")
            item, update = whole
            if item.members:
                raise WireError("audit", f"{name} is an aggregator itself")
            check_update(name, number=shown.round, item=item, update=update)
    except WireError as error:
        raise AuditFailed(f"it shows an update that its board never made: {error}") from error
    return opened.count()
