"""A trusted gateway that adds its boards' packets up, sans-I/O. SPEC.md section 6.8.

The program around it hands over all frames that pass (`receive_up`, `receive_down`) and calls
`handle_timeout`; then takes all events with `next_event`, makes them durable, and passes on
`frames_up` and `frames_down`. What it cannot bundle passes as it came. Packets need not be kept on
disk: boards repeat them until the host's receipt. What must be kept is what a bundle of unknown
fate was made from, and what the bundles before it could not carry.

        whole packets of a round                         reference that follows
    ──────────────────────────────> bundle, on its way ─────────────────────────> settled
"""

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np

from ternmesh.errors import WireError
from ternmesh.hypervector import feedback
from ternmesh.plan import Plan, from_numbers
from ternmesh.swarm.backoff import Backoff, earliest
from ternmesh.swarm.barrier import Barrier, Passing
from ternmesh.swarm.bitmap import read_bitmap
from ternmesh.swarm.bundle_records import (
    Bundle,
    BundleMade,
    BundlerEvent,
    BundlerState,
    BundleSettled,
    RunFollowed,
    VersionReached,
)
from ternmesh.swarm.bundling import choose, make_bundle, settle_bundle
from ternmesh.swarm.collecting import Collecting
from ternmesh.swarm.events import TrustChanged
from ternmesh.swarm.outgoing import Outgoing
from ternmesh.swarm.pace import NETWORK
from ternmesh.wire import control, manifest, pieces, seal, share
from ternmesh.wire.control import Announce, Hello, Receipt, Refusal, Silent, Welcome
from ternmesh.wire.reference import Counted, Reference, Snapshot, read_object, split_certificate

TRIES = 4  # without a word about a contributor; then its own packet may pass
REFUSES_BUNDLES = ("bundle", "kind")  # what a host says that takes none

Group = tuple[str, list[bytes]]


class Bundler:
    """One gateway for `boards`. `rng` only jitters timers."""

    def __init__(
        self,
        model_hash: bytes,
        boards: Iterable[str],
        wait_s: float,
        state: BundlerState,
        rng: np.random.Generator,
    ) -> None:
        self.run, self.plan, self.version = state.run, state.plan, state.version
        self.residual, self.pending = state.residual, state.pending
        self.is_refused = False  # the host takes no bundles
        self._model_hash, self._wait_s = model_hash, wait_s
        self._expected = frozenset(boards)
        self._boards: dict[int, str] = {}  # by context
        self._asked: dict[str, bytes] = {}  # instances of hellos that have passed
        self._in_run = False  # whether the host has said so, since this process began
        self._collecting: Collecting | None = None
        self._barrier: Barrier | None = None
        self._bundles_at: float | None = None
        self._receipts: dict[int, bool] = {}  # by contributor: whether nothing was missing
        self._resend = Backoff(NETWORK.packet_s, NETWORK.packet_longest_s, rng)
        self._sent = 0
        self._events: deque[BundlerEvent] = deque()
        self._outgoing = Outgoing(state.counter)
        self._up: deque[Group] = deque()
        self._down: deque[Group] = deque()
        if state.plan is not None:
            self._follow(state.plan)

    # The verbs

    def start(self, now: float) -> None:
        """Begin, or go on after a restart: a bundle of the open round is sent again."""
        if self.pending is not None and self.pending.round == self.version:
            self._send_bundle(self.pending, now)

    def receive_up(self, board: str, frames: Sequence[bytes], now: float) -> None:
        """Take frames of a board for the host."""
        if self._collecting is not None:
            self._collecting.heard.add(board)
        for frame in frames:
            if not self._keep(board, frame, now):
                _push(self._up, board, [frame])
        self._bundle_if_due(now)

    def receive_down(self, peer: str, frames: Sequence[bytes], now: float) -> None:
        """Take frames of the host for a board, or for all."""
        for frame in frames:
            for to, passing in self._watch(peer, frame):
                _push(self._down, to, [passing])
        self._bundle_if_due(now)

    def next_timeout(self) -> float | None:
        """When `handle_timeout` is due, if ever."""
        return earliest(self._bundles_at, self._resend.at)

    def handle_timeout(self, now: float) -> None:
        """Wait no longer for packets; send the bundle again."""
        self._bundle_if_due(now)
        if self._resend.due(now) and self.pending is not None:
            self._send_bundle(self.pending, now)

    def next_event(self) -> BundlerEvent | None:
        """The next thing to make durable, until None."""
        event = self._outgoing.next_event(self._events)
        assert not isinstance(event, TrustChanged)  # open seals keep nothing
        return event

    def frames_up(self) -> list[Group]:
        """Frames for the host, each with the board in whose name; once the events are on disk."""
        passing, self._up = [*self._up], deque()
        return passing + self._outgoing.drain()

    def frames_down(self) -> list[Group]:
        """Frames for boards; once the events are on disk."""
        passing, self._down = [*self._down], deque()
        return passing

    # Up

    def _keep(self, board: str, frame: bytes, now: float) -> bool:
        """Whether a frame of a board stays here, because a bundle takes its place."""
        try:
            header, body = seal.open_seal(frame)
            if header.context == seal.ENROL:
                self._note_hello(board, body)
                return False
            if self._boards.setdefault(header.context, board) != board:
                return False
            if body[0] == control.KIND:
                self._note_silence(header.context, board, body)
                return False
            return self._is_for_bundle(header.context, body, frame, now)
        except WireError:
            return False  # the host says what is wrong with it

    def _note_hello(self, board: str, body: bytes) -> None:
        hello = control.read_control(body)
        if isinstance(hello, Hello):
            self._asked[board] = hello.instance

    def _note_silence(self, context: int, board: str, body: bytes) -> None:
        word = control.read_control(body)
        if self._collecting is not None and word == Silent(self.version):
            _push(self._up, board, self._collecting.let_pass(context, board))

    def _is_for_bundle(self, context: int, body: bytes, frame: bytes, now: float) -> bool:
        collecting, board = self._collecting, self._boards[context]
        if collecting is None or not self._in_run or self.is_refused or collecting.passes(context):
            return False
        number = share.whole_round(int.from_bytes(body[1:3], "little"), self.version)
        if body[0] not in (manifest.KIND, share.KIND) or number != self.version:
            return False
        if self.pending is not None:
            return self._is_in(self.pending, context, body, now)
        if collecting.is_over:
            return False
        try:
            collecting.hold(context, board, body, frame)
        except WireError:
            _push(self._up, board, collecting.let_pass(context, board))
            return False
        if self._bundles_at is None:
            self._bundles_at = now + self._wait_s
        return True

    def _is_in(self, bundle: Bundle, context: int, body: bytes, now: float) -> bool:
        """Whether a repeated body is in the bundle: then the host is asked for a receipt again."""
        assert self._collecting is not None
        row = bundle.rows.get(context)
        if row is None or bundle.round != self.version:
            return False
        if body[0] == manifest.KIND and manifest.read_manifest(body).digest != row.digest:
            # The board has lost its disk. Nothing is held of its new packet.
            self._collecting.let_pass(context, self._boards[context])
            return False
        if self._resend.at is None:
            self._resend.again(now)
        return True

    def _bundle_if_due(self, now: float) -> None:
        """Bundle what is whole, once nobody else is expected or it has waited long enough."""
        collecting, plan = self._collecting, self.plan
        if collecting is None or plan is None or self._bundles_at is None:
            return
        if now < self._bundles_at and not collecting.is_whole:
            return
        chosen = choose(collecting.whole, plan)
        for board, frames in collecting.end(chosen):
            _push(self._up, board, frames)
        self._bundles_at = None
        if chosen:
            start = chosen, self.residual, self._model_hash, self.version
            self.pending = make_bundle(*start, plan, self._boards[min(chosen)])
            self._events.append(BundleMade(self.pending))
            self._receipts.clear()
            self._sent = 0
            self._resend.stop()
            self._send_bundle(self.pending, now)

    def _send_bundle(self, bundle: Bundle, now: float) -> None:
        """Send all of it; only its head where the host has it and a board has not heard so."""
        assert self.plan is not None
        assert self._collecting is not None
        lead, is_there = min(bundle.rows), self._is_received(bundle)
        head = bundle.bodies[:2] * self.plan.manifest_repeats
        self._outgoing.discard(lead)
        bodies = bundle.bodies[:1] if is_there else (*bundle.bodies, *head)
        self._outgoing.push(bundle.board, lead, bodies)
        self._sent += 1
        if is_there:
            self._resend.stop()
        else:
            self._resend.again(now)
        if self._sent > TRIES:
            for context in bundle.rows.keys() - self._receipts.keys():
                self._collecting.let_pass(context, self._boards.get(context, ""))

    def _is_received(self, bundle: Bundle) -> bool:
        return all(self._receipts.get(context, False) for context in bundle.rows)

    # Down

    def _watch(self, peer: str, frame: bytes) -> Passing:
        """What may pass now that this frame from the host is here."""
        try:
            header, body = seal.open_seal(frame)
            if body[0] == control.KIND:
                self._hear(peer, control.read_control(body))
            elif body[0] == pieces.KIND and self._barrier is not None:
                is_closed = self.pending is not None
                passing, content = self._barrier.add(peer, frame, body, is_closed=is_closed)
                if content is not None:
                    self._read(content, header.context & ~seal.DOWN)
                return passing + (self._barrier.open() if self.pending is None else [])
        except WireError:
            pass  # It is for the board to judge: what it refuses, it counts.
        return [(peer, frame)]

    def _hear(self, peer: str, message: control.Control) -> None:
        match message:
            case Welcome():
                self._welcome(peer, message)
            case Announce():
                self._in_run = message.run == self.run and self.plan is not None
                if self._in_run:
                    self._reach(message.version)
            case Receipt():
                self._receipt(message)
            case Refusal():
                of_bundle = self.pending is not None and self.pending.board == peer
                if of_bundle and not self._receipts and message.reason in REFUSES_BUNDLES:
                    self.is_refused = True
                    self._resend.stop()
            case _:
                pass  # Nothing else concerns a gateway.

    def _welcome(self, peer: str, message: Welcome) -> None:
        plan = from_numbers(message.plan)
        if plan.dimension != self.residual.size:
            return  # Another model's run: nothing is bundled in it.
        is_asked = self._asked.get(peer) == message.instance
        if (message.run, plan) != (self.run, self.plan):
            if not is_asked:
                self._in_run = False  # unless this was late, it is not our run any more
                return
            self._begin_run(message.run, plan)
        if is_asked:
            del self._asked[peer]
        self._boards[message.context] = peer
        self._in_run = True
        self._reach(message.version)

    def _begin_run(self, run: bytes, plan: Plan) -> None:
        self.run, self.plan, self.version = run, plan, 0
        self.residual, self.pending = feedback.init(self.residual.size), None
        self.is_refused = False
        self._boards.clear()
        self._follow(plan)
        self._events.append(RunFollowed(run, plan))

    def _follow(self, plan: Plan) -> None:
        self._barrier = Barrier(plan)
        self._new_round(plan, self._expected)

    def _new_round(self, plan: Plan, expected: Iterable[str]) -> None:
        """What is held of a round that is over is of no use to anybody."""
        self._collecting = Collecting(plan, self._model_hash, self.version, frozenset(expected))
        self._bundles_at = None
        self._resend.stop()

    def _reach(self, version: int) -> None:
        if version > self.version and self.plan is not None and self._collecting is not None:
            self.version = version
            self._new_round(self.plan, self._collecting.next_expected)
            self._events.append(VersionReached(version))

    def _receipt(self, message: Receipt) -> None:
        bundle, plan = self.pending, self.plan
        if bundle is None or plan is None or message.round != bundle.round:
            return
        for context, row in bundle.rows.items():
            if row.digest == message.digest:
                self._receipts[context] = bool(read_bitmap(message.have, plan.up.count).all())
        if self._is_received(bundle):
            self._resend.stop()

    def _read(self, content: bytes, context: int) -> None:
        """Settle from what a reference, or a snapshot for the node of `context`, has counted."""
        step = read_object(split_certificate(content)[0], self.residual.size)
        if step.model != self._model_hash[: manifest.MODEL_SIZE]:
            return
        if self.pending is not None and _tells(step, self.pending, context):
            self._settle(self.pending, step.counted)
        self._reach(step.version)

    def _settle(self, bundle: Bundle, counted: Iterable[Counted]) -> None:
        assert self.plan is not None
        name = bundle.round, bundle.digest
        row = next((row for row in counted if (row.round, row.digest) == name), None)
        if row is not None:
            start = bundle, row.have, self.residual, self._model_hash
            self.residual = settle_bundle(*start, self.plan)
        self.pending = None
        self._resend.stop()
        self._events.append(BundleSettled(self.residual, row is not None))


def _tells(step: Reference | Snapshot, bundle: Bundle, context: int) -> bool:
    """Whether an object says what has become of a bundle.

    The reference that follows does. So does a later snapshot for a contributor: it has what was
    counted last of that node, and no reference has passed since the bundle that counted more.
    """
    if isinstance(step, Reference):
        return step.version == bundle.round + 1
    return step.version > bundle.round and context in bundle.rows


def _push(queue: deque[Group], peer: str, frames: list[bytes]) -> None:
    if frames and queue and queue[-1][0] == peer:
        queue[-1][1].extend(frames)
    elif frames:
        queue.append((peer, [*frames]))
