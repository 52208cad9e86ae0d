"""A trusted gateway that adds up its boards' updates; a sans-I/O machine. SPEC.md section 6.8.

The program around it passes all frames to `receive_up` and `receive_down` and calls
`handle_timeout`. Then it takes all events with `next_event`, stores them, and sends `frames_up` and
`frames_down`. Frames that the gateway cannot aggregate pass unchanged. Updates are not stored: a
board repeats its update until the host's receipt. The partial aggregate that is under way is
stored, and the residual of those before.

    complete updates of a round                        next global update
    ───────────────────────────> partial aggregate sent ─────────────────> settled
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ternmesh.codec.encoder import zero_residual
from ternmesh.errors import WireError
from ternmesh.federated.channel import SealedQueue
from ternmesh.federated.events import SecurityChanged
from ternmesh.federated.gateway.downlink_hold import DownlinkHold, Passing
from ternmesh.federated.gateway.partial_aggregate import (
    GatewayEvent,
    GatewayState,
    PartialAggregate,
    PartialAggregateMade,
    PartialAggregateSettled,
    RunFollowed,
    VersionReached,
    choose,
    make_partial_aggregate,
    settle_partial_aggregate,
)
from ternmesh.federated.open_round import UpdateReassembler
from ternmesh.plan import Plan, from_numbers
from ternmesh.timers import NETWORK_TIMERS, Backoff, earliest
from ternmesh.wire import control, fragments
from ternmesh.wire.control import Announce, Hello, Receipt, Refusal, Silent, Welcome
from ternmesh.wire.frame import DOWN, UNASSIGNED, open_seal
from ternmesh.wire.global_update import Counted, GlobalUpdate, read_object, split_certificate
from ternmesh.wire.update import (
    CHUNK_KIND,
    MANIFEST_KIND,
    MODEL_SIZE,
    read_bitmap,
    read_manifest,
    whole_round,
)

TRIES = 4  # transmissions without a receipt for a contributor; then its own update may pass
REFUSES_PARTIAL_AGGREGATES = ("bundle", "kind")  # the reasons of a host that accepts none

Group = tuple[str, list[bytes]]  # a board and frames


@dataclass(slots=True)
class _HeldUpdate:
    board: str
    reassembler: UpdateReassembler
    frames: list[bytes] = field(default_factory=list)  # in case they must pass unchanged


class CollectedUpdates:
    """The updates of one round. It waits for the `expected` boards, and for those it has heard."""

    def __init__(
        self, plan: Plan, model_hash: bytes, round_number: int, expected: Collection[str]
    ) -> None:
        self.heard: set[str] = set()
        self.is_over = False  # the partial aggregate is made, or there were too few updates
        self._plan = plan
        self._model = model_hash[:MODEL_SIZE]
        self._round = round_number
        self.expected = expected
        self._held: dict[int, _HeldUpdate] = {}  # by address
        self.passed: dict[int, str] = {}  # boards whose update passes unchanged, or is silent

    @property
    def whole(self) -> dict[int, UpdateReassembler]:
        """The complete updates, by address."""
        return {c: held.reassembler for c, held in self._held.items() if held.reassembler.complete}

    @property
    def is_whole(self) -> bool:
        """Whether nothing more is expected of any board."""
        settled = {self._held[address].board for address in self.whole}
        return settled.union(self.passed.values()) >= self.heard.union(self.expected)

    def hold(self, address: int, board: str, body: bytes, frame: bytes) -> None:
        """Keep a frame; after a WireError the update should pass unchanged."""
        reassembler = UpdateReassembler(self._plan, self._model, self._round)
        held = self._held.setdefault(address, _HeldUpdate(board, reassembler))
        if held.reassembler.add(body):
            held.frames.append(frame)

    def let_pass(self, address: int, board: str) -> list[bytes]:
        """Let a node's update pass unchanged from now on; returns the frames held of it."""
        self.passed[address] = board
        held = self._held.pop(address, None)
        return [] if held is None else held.frames

    def end(self, aggregated: Iterable[int]) -> list[tuple[str, list[bytes]]]:
        """End collecting, with these nodes aggregated; returns the held frames of the others."""
        for address in aggregated:
            del self._held[address]
        self.is_over = True
        boards = {address: held.board for address, held in self._held.items()}
        return [(board, self.let_pass(address, board)) for address, board in boards.items()]


class GatewayAggregator:
    """One gateway for `boards`. `rng` only adds jitter to timers."""

    def __init__(
        self,
        model_hash: bytes,
        boards: Iterable[str],
        wait_s: float,
        state: GatewayState,
        rng: np.random.Generator,
    ) -> None:
        self.run = state.run
        self.plan = state.plan
        self.version = state.version
        self.residual = state.residual  # times samples
        self.pending = state.pending  # the partial aggregate that is not settled
        self.is_refused = False  # the host accepts no partial aggregates
        self._model_hash = model_hash
        self._wait_s = wait_s  # for the boards' updates, after the first one
        self._expected = frozenset(boards)
        self._boards: dict[int, str] = {}  # by address
        self._asked: dict[str, bytes] = {}  # by board, the instance of its latest hello
        self._in_run = False  # whether the host has confirmed the run to this process
        self._collected: CollectedUpdates | None = None
        self._downlink: DownlinkHold | None = None
        self._aggregate_at: float | None = None
        self._receipts: dict[int, bool] = {}  # by contributor: whether all chunks are there
        self._resend = Backoff(NETWORK_TIMERS.update_s, NETWORK_TIMERS.update_longest_s, rng)
        self._sent = 0  # transmissions of the partial aggregate
        self._events: deque[GatewayEvent] = deque()
        self._outgoing = SealedQueue(state.counter)
        self._up: deque[Group] = deque()
        self._down: deque[Group] = deque()
        if state.plan is not None:
            self._follow(state.plan)

    def start(self, now: float) -> None:
        """Begin; after a restart, send the partial aggregate of the open round again."""
        if self.pending is not None and self.pending.round == self.version:
            self._send_aggregate(self.pending, now)

    def receive_up(self, board: str, frames: Sequence[bytes], now: float) -> None:
        """Take frames from a board to the host."""
        if self._collected is not None:
            self._collected.heard.add(board)
        for frame in frames:
            if not self._keep(board, frame, now):
                _push(self._up, board, [frame])
        self._aggregate_if_due(now)

    def receive_down(self, peer: str, frames: Sequence[bytes], now: float) -> None:
        """Take frames from the host to a board, or to all."""
        for frame in frames:
            for to, passing in self._inspect(peer, frame):
                _push(self._down, to, [passing])
        self._aggregate_if_due(now)

    def next_timeout(self) -> float | None:
        """When `handle_timeout` is due, if ever."""
        return earliest(self._aggregate_at, self._resend.at)

    def handle_timeout(self, now: float) -> None:
        """Stop waiting for updates; send the partial aggregate again."""
        self._aggregate_if_due(now)
        if self._resend.due(now) and self.pending is not None:
            self._send_aggregate(self.pending, now)

    def next_event(self) -> GatewayEvent | None:
        """The next event to store, until None."""
        event = self._outgoing.next_event(self._events)
        assert not isinstance(event, SecurityChanged)  # an open sealing has no state
        return event

    def frames_up(self) -> list[Group]:
        """Frames for the host, with the board in whose name; call it when all events are stored."""
        passing, self._up = [*self._up], deque()
        return passing + self._outgoing.drain()

    def frames_down(self) -> list[Group]:
        """Frames for boards; call it when all events are stored."""
        passing, self._down = [*self._down], deque()
        return passing

    # From boards to the host

    def _keep(self, board: str, frame: bytes, now: float) -> bool:
        """Whether a board's frame stays here, because a partial aggregate replaces it."""
        try:
            header, body = open_seal(frame)
            if header.address == UNASSIGNED:
                hello = control.read_control(body)
                if isinstance(hello, Hello):
                    self._asked[board] = hello.instance
                return False
            if self._boards.setdefault(header.address, board) != board:
                return False
            if body[0] == control.KIND:
                is_silent = control.read_control(body) == Silent(self.version)
                if is_silent and self._collected is not None:
                    _push(self._up, board, self._collected.let_pass(header.address, board))
                return False
            return self._is_for_aggregate(header.address, body, frame, now)
        except WireError:
            return False  # the host answers with the reason

    def _is_for_aggregate(self, address: int, body: bytes, frame: bytes, now: float) -> bool:
        collected = self._collected
        board = self._boards[address]
        if collected is None or not self._in_run or self.is_refused or address in collected.passed:
            return False
        number = whole_round(int.from_bytes(body[1:3], "little"), self.version)
        if body[0] not in (MANIFEST_KIND, CHUNK_KIND) or number != self.version:
            return False
        if self.pending is not None:
            return self._is_aggregated(self.pending, address, body, now)
        if collected.is_over:
            return False
        try:
            collected.hold(address, board, body, frame)
        except WireError:
            _push(self._up, board, collected.let_pass(address, board))
            return False
        if self._aggregate_at is None:
            self._aggregate_at = now + self._wait_s
        return True

    def _is_aggregated(
        self, partial_aggregate: PartialAggregate, address: int, body: bytes, now: float
    ) -> bool:
        """Whether a repeated body is aggregated; then the host is asked for a receipt again."""
        assert self._collected is not None
        row = partial_aggregate.rows.get(address)
        if row is None or partial_aggregate.round != self.version:
            return False
        if body[0] == MANIFEST_KIND and read_manifest(body).digest != row.digest:
            # The board has lost its disk, and its new update is not held.
            self._collected.let_pass(address, self._boards[address])
            return False
        if self._resend.at is None:
            self._resend.again(now)
        return True

    def _aggregate_if_due(self, now: float) -> None:
        """Make the partial aggregate if all boards are done, or the wait is over."""
        collected, plan = self._collected, self.plan
        if collected is None or plan is None or self._aggregate_at is None:
            return
        if now < self._aggregate_at and not collected.is_whole:
            return
        chosen = choose(collected.whole, plan)
        for board, frames in collected.end(chosen):
            _push(self._up, board, frames)
        self._aggregate_at = None
        if chosen:
            self.pending = make_partial_aggregate(
                chosen,
                self.residual,
                self._model_hash,
                self.version,
                plan,
                self._boards[min(chosen)],
            )
            self._events.append(PartialAggregateMade(self.pending))
            self._receipts.clear()
            self._sent = 0
            self._resend.stop()
            self._send_aggregate(self.pending, now)

    def _send_aggregate(self, partial_aggregate: PartialAggregate, now: float) -> None:
        """Send all of it, or only the manifest if only boards still lack the host's receipt."""
        assert self.plan is not None
        assert self._collected is not None
        lead = min(partial_aggregate.rows)
        is_there = self._is_received(partial_aggregate)
        repeats = partial_aggregate.bodies[:2] * self.plan.manifest_repeats
        bodies = partial_aggregate.bodies[:1] if is_there else partial_aggregate.bodies + repeats
        self._outgoing.discard(lead)
        self._outgoing.push(partial_aggregate.board, lead, bodies)
        self._sent += 1
        if is_there:
            self._resend.stop()
        else:
            self._resend.again(now)
        if self._sent > TRIES:
            for address in partial_aggregate.rows.keys() - self._receipts.keys():
                self._collected.let_pass(address, self._boards.get(address, ""))

    def _is_received(self, partial_aggregate: PartialAggregate) -> bool:
        return all(self._receipts.get(address, False) for address in partial_aggregate.rows)

    # From the host to boards

    def _inspect(self, peer: str, frame: bytes) -> Passing:
        try:
            header, body = open_seal(frame)
            if body[0] == control.KIND:
                self._read_control(peer, control.read_control(body))
            elif body[0] == fragments.KIND and self._downlink is not None:
                is_closed = self.pending is not None
                passing, content = self._downlink.add(peer, frame, body, is_closed=is_closed)
                if content is not None:
                    self._read_object(content, header.address & ~DOWN)
                return passing + (self._downlink.open() if self.pending is None else [])
        except WireError:
            pass  # the board checks the frame itself, and counts it if it refuses it
        return [(peer, frame)]

    def _read_control(self, peer: str, message: control.Control) -> None:
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
                of_aggregate = self.pending is not None and self.pending.board == peer
                if (
                    of_aggregate
                    and not self._receipts
                    and message.reason in REFUSES_PARTIAL_AGGREGATES
                ):
                    self.is_refused = True
                    self._resend.stop()
            case _:
                pass  # no other message concerns a gateway

    def _welcome(self, peer: str, message: Welcome) -> None:
        plan = from_numbers(message.plan)
        if plan.dimension != self.residual.size:
            return  # a run of another model: nothing of it is aggregated
        is_asked = self._asked.get(peer) == message.instance
        if (message.run, plan) != (self.run, self.plan):
            if not is_asked:
                self._in_run = False  # the board has probably joined another run
                return
            self._begin_run(message.run, plan)
        if is_asked:
            del self._asked[peer]
        self._boards[message.address] = peer
        self._in_run = True
        self._reach(message.version)

    def _begin_run(self, run: bytes, plan: Plan) -> None:
        self.run = run
        self.plan = plan
        self.version = 0
        self.residual = zero_residual(self.residual.size)
        self.pending = None
        self.is_refused = False
        self._boards.clear()
        self._follow(plan)
        self._events.append(RunFollowed(run, plan))

    def _follow(self, plan: Plan) -> None:
        self._downlink = DownlinkHold(plan)
        self._new_round(plan, self._expected)

    def _new_round(self, plan: Plan, expected: Iterable[str]) -> None:
        """Begin a round; frames that are held of the last one are dropped."""
        self._collected = CollectedUpdates(
            plan, self._model_hash, self.version, frozenset(expected)
        )
        self._aggregate_at = None
        self._resend.stop()

    def _reach(self, version: int) -> None:
        if version > self.version and self.plan is not None and self._collected is not None:
            self.version = version
            # Where this round heard nobody, the next one waits for the same boards.
            self._new_round(self.plan, self._collected.heard or self._collected.expected)
            self._events.append(VersionReached(version))

    def _receipt(self, message: Receipt) -> None:
        partial_aggregate, plan = self.pending, self.plan
        if partial_aggregate is None or plan is None or message.round != partial_aggregate.round:
            return
        for address, row in partial_aggregate.rows.items():
            if row.digest == message.digest:
                self._receipts[address] = bool(read_bitmap(message.have, plan.up.count).all())
        if self._is_received(partial_aggregate):
            self._resend.stop()

    def _read_object(self, content: bytes, address: int) -> None:
        """Settle by the next global update, or by a global snapshot for the node of `address`.

        A later snapshot for a contributor has the last counted entry of that node, and no newer
        global update has passed since the partial aggregate.
        """
        step = read_object(split_certificate(content)[0], self.residual.size)
        if step.model != self._model_hash[:MODEL_SIZE]:
            return
        if self.pending is not None:
            rounds = step.version - self.pending.round
            is_for_contributor = rounds > 0 and address in self.pending.rows
            if rounds == 1 if isinstance(step, GlobalUpdate) else is_for_contributor:
                self._settle(self.pending, step.counted)
        self._reach(step.version)

    def _settle(self, partial_aggregate: PartialAggregate, counted: Iterable[Counted]) -> None:
        assert self.plan is not None
        name = partial_aggregate.round, partial_aggregate.digest
        row = next((row for row in counted if (row.round, row.digest) == name), None)
        if row is not None:
            self.residual = settle_partial_aggregate(
                partial_aggregate, row.have, self.residual, self._model_hash, self.plan
            )
        self.pending = None
        self._resend.stop()
        self._events.append(PartialAggregateSettled(self.residual, row is not None))


def _push(queue: deque[Group], peer: str, frames: list[bytes]) -> None:
    if frames and queue and queue[-1][0] == peer:
        queue[-1][1].extend(frames)
    elif frames:
        queue.append((peer, [*frames]))
