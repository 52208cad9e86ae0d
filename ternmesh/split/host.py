"""The host's side of a split training, sans-I/O: what each board may send, and when.

A program drives it as `federated.node` says, and boards join as in `federated.joining`. The program
computes; this module decides what is worth computing. A run is open from `min_boards` on. It is
finished when all boards are done or gone, and open again if one of them goes on.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ternmesh.errors import WireError
from ternmesh.federated.channel import Channel
from ternmesh.federated.events import SessionEvent
from ternmesh.federated.fleet_session import FleetSession, Handlers
from ternmesh.federated.registry import NodeRegistry
from ternmesh.security.authenticator import OPEN, SecurityLayer
from ternmesh.split.messages import (
    ActivationReassembler,
    Arrived,
    BoardJoined,
    HostEvent,
    cut_activation,
)
from ternmesh.split.plan import ANSWER_BITS, SplitPlan, to_numbers
from ternmesh.timers import NETWORK_TIMERS, TimerSettings, earliest
from ternmesh.wire import activation, control, fragments
from ternmesh.wire.activation import Activation
from ternmesh.wire.control import FINISHED, GATHERING, Hello, Refusal, Report
from ternmesh.wire.control import OPEN as RUNNING
from ternmesh.wire.frame import DOWN
from ternmesh.wire.update import MODEL_SIZE

LEAVE_S = 5.0  # beyond the time in which a board would have asked again
BOARDS_MAX = 1024
EVENTS_MAX = 2 * BOARDS_MAX  # that the program has not taken yet


@dataclass(frozen=True, slots=True)
class SplitSettings:
    """What boards need not know: how many the host waits for, and when one counts as gone."""

    min_boards: int = 1
    silence_s: float = 300.0


@dataclass(slots=True)
class Board:
    """A board while the host runs."""

    address: int
    name: str
    number: int  # the next micro-batch that the host takes from it
    reassembler: ActivationReassembler
    heard_at: float | None = None
    moved_at: float | None = None  # when a micro-batch was taken, or when the board joined
    held: int | None = None  # the micro-batch that the host has yet to answer with a gradient
    learned: int = 0
    skipped: int = 0
    is_done: bool = False
    knows_end: bool = False  # it has said hello since the welcome that told of the end
    instance: bytes | None = None  # of its last hello, which a later welcome must name
    refused: Counter[str] = field(default_factory=Counter)  # by reason


class SplitHost:
    """One run over its boards: `boards` are those known so far (address, name, next micro-batch).

    `counter` is the first seal counter that was never reserved. `pace` is that of the boards,
    which use the same transport.
    """

    def __init__(
        self,
        *,
        plan: SplitPlan,
        settings: SplitSettings,
        model_hash: bytes,
        run: bytes,
        boards: Sequence[tuple[int, str, int]] = (),
        counter: int = 0,
        security: SecurityLayer = OPEN,
        pace: TimerSettings = NETWORK_TIMERS,
    ) -> None:
        self.plan = plan
        self.settings = settings
        self.run = run
        self.channel = Channel[HostEvent](run=run, counter=counter, security=security)
        self.refused = self.channel.refused  # frames, by reason
        self.nodes = NodeRegistry(
            [self._new_board(plan, *board) for board in boards],
            new=lambda address, name: self._new_board(plan, address, name),
        )
        self.session = FleetSession(
            channel=self.channel,
            nodes=self.nodes,
            model=model_hash[:MODEL_SIZE],
            plan=to_numbers(plan),
            excuse=lambda _board, _now: None,  # no board waits for another one
            answer_s=pace.catch_up_s,
        )
        self.handlers = Handlers(
            of_node={
                activation.KIND: self._receive_activation,
                fragments.KIND: self._receive_activation,  # a part of one
            },
            of_peer={
                Hello: self._receive_hello,
                Report: self.session.receive_report,
                Refusal: self.session.receive_refusal,
            },
        )
        self._hello_longest_s = pace.hello_longest_s
        self._phase_told = GATHERING  # the phase that all boards know of
        self._looked_at = 0.0  # when it was last compared with the phase that there is

    @staticmethod
    def _new_board(plan: SplitPlan, address: int, name: str, number: int = 0) -> Board:
        reassembler = ActivationReassembler(plan)
        return Board(address, name, number, reassembler, is_done=number >= plan.micro_batches)

    def phase(self, now: float) -> int:
        """Gathering, open or finished. It depends on the boards and the time alone."""
        boards = self.nodes.values()
        if len(boards) < self.settings.min_boards:
            return GATHERING
        is_over = all(board.is_done or self._is_gone(board, now) for board in boards)
        return FINISHED if is_over and any(board.is_done for board in boards) else RUNNING

    def waited_for(self, now: float) -> set[int]:
        """The addresses of the boards that have more to send, and are neither done nor gone."""
        last = self.plan.micro_batches
        return {
            board.address
            for board in self.nodes.values()
            if board.number < last and not (board.is_done or self._is_gone(board, now))
        }

    def leave_at(self, now: float) -> float | None:
        """When no board will ask anything more, if nothing arrives; None while the run is on.

        A board that knows of the end asks within `answer_ms`, any other one when it says hello.
        """
        if self.phase(now) != FINISHED:
            return None
        boards = self.nodes.values()
        last = max(board.heard_at or 0.0 for board in boards)
        is_known = all(board.knows_end for board in boards if board.is_done)
        wait_s = LEAVE_S + self.plan.answer_ms / 1000
        return last + wait_s + (0.0 if is_known else 1.5 * self._hello_longest_s)

    # What the program calls

    def start(self, now: float) -> None:
        """Begin, or go on after a restart: known boards count as heard now."""
        for board in self.nodes.values():
            board.heard_at = now
            board.moved_at = now
        self._phase_told = self.phase(now)
        self._looked_at = now
        self.session.send_due(now)

    def receive_frames(self, peer: str, frames: Sequence[bytes], now: float) -> None:
        """Handle frames from a board, then do what follows from them."""
        self.session.receive_frames(peer, frames, self.handlers, 0, now)
        self.handle_timeout(now)

    def next_event(self) -> HostEvent | SessionEvent | None:
        """Return the next event to save or handle; None if there are no more."""
        return self.channel.next_event()

    def frames_to_send(self, now: float) -> list[tuple[str, list[bytes]]]:  # noqa: ARG002
        """Return frames by peer. Call this after the events are on disk."""
        return self.channel.frames_to_send()

    def answer(self, address: int, item: Activation) -> None:
        """Send a board its answer or gradient; CodecError for NaN, then nothing is sent."""
        is_gradient = item.leg == activation.GRADIENT
        if is_gradient:
            self.give_up(address)
        bits = self.plan.bits_gradient if is_gradient else ANSWER_BITS
        parts = cut_activation(item, bits, self.plan)
        outgoing = self.channel.outgoing
        outgoing.discard(address | DOWN)  # the board waits for nothing older any more
        outgoing.push(self.nodes[address].name, address | DOWN, parts)

    def give_up(self, address: int) -> None:
        """The host will send no gradient for what it holds: the board may send the next."""
        self.nodes[address].held = None

    # Timers

    def next_timeout(self) -> float | None:
        """When a board will count as gone, which may end the run."""
        ends = [
            board.moved_at + self.settings.silence_s
            for board in self.nodes.values()
            if not board.is_done and board.moved_at is not None
        ]
        asks_at = self.session.management.next_due()
        return earliest(asks_at, *(end for end in ends if end > self._looked_at))

    def handle_timeout(self, now: float) -> None:
        """Tell boards when the run is over."""
        self._tell_phase(now)
        self.session.send_due(now)

    # Receiving

    def _receive_activation(self, node: Board, body: bytes, now: float) -> None:
        item = node.reassembler.add(body)
        if item is None:
            return
        if len(self.channel.events) >= EVENTS_MAX:
            raise WireError("full", "more activations at once than a host keeps")
        self._take(node, item, now)
        self.channel.events.append(Arrived(node.address, item))

    def _take(self, board: Board, item: Activation, now: float) -> None:
        """Note an activation that this board may send now; WireError for any other."""
        plan = self.plan
        samples, width = item.values.shape
        match item.leg:
            case activation.LEARN:
                _check_shape((samples, width) == (plan.batch, plan.width))
                _check_shape(all(label < plan.classes for label in item.labels))
                _check_time(board.held is None)  # or it would outweigh the others in a step
                _check_time(board.number <= item.number < plan.micro_batches)
                board.skipped += item.number - board.number
                board.number = item.number + 1
                board.held = item.number
                board.moved_at = now
            case activation.ASK:
                _check_shape(samples <= plan.batch and width == plan.width)
            case _:
                raise WireError("kind", "an activation of a leg that no board sends here")

    # Joining

    def _receive_hello(self, peer: str, hello: Hello, now: float) -> None:
        self.session.check_hello(peer, hello)
        board = self.nodes.named(hello.name) or self._take_in(hello.name, now)
        is_new_run = hello.run != self.run
        instance = control.renewed(hello.instance, self.run) if is_new_run else hello.instance
        board.heard_at = now
        board.instance = instance
        board.knows_end = self._phase_told == FINISHED
        if not is_new_run and hello.version >= self.plan.micro_batches:
            board.skipped += self.plan.micro_batches - board.number
            board.number = self.plan.micro_batches
            board.is_done = True
        self._welcome(board, hello.instance, self.phase(now))
        self.session.note_hello(hello, self.run, now)

    def _welcome(self, board: Board, instance: bytes, phase: int) -> None:
        self.session.welcome(board, instance, run=self.run, version=board.number, phase=phase)

    def _take_in(self, name: str, now: float) -> Board:
        board = self.nodes.take_in(name, BOARDS_MAX)
        if len(self.nodes) <= self.settings.min_boards:
            for known in self.nodes.values():
                known.moved_at = now  # no board could send before the run was open
        else:
            board.moved_at = now
        self.channel.events.append(BoardJoined(board.address, name))
        return board

    def _tell_phase(self, now: float) -> None:
        """Welcome all boards again if the phase has changed: those that wait ask seldom."""
        self._looked_at = now
        phase = self.phase(now)
        if phase == self._phase_told:
            return
        self._phase_told = phase
        for board in self.nodes.values():
            if board.instance is not None:  # else it has not said hello since a restart
                self._welcome(board, board.instance, phase)

    def _is_gone(self, board: Board, now: float) -> bool:
        """Whether no micro-batch came for too long: other messages must not hold up a run.

        A board that was revoked is gone at once.
        """
        if board.moved_at is None or not self.channel.authenticator.may_train(board.name):
            return True
        return now >= board.moved_at + self.settings.silence_s


def _check_shape(fits: bool) -> None:
    if not fits:
        raise WireError("shape", "an activation of another shape than the plan's")


def _check_time(fits: bool) -> None:
    if not fits:
        raise WireError("stale", "a micro-batch that was here, was given up, or does not exist")
