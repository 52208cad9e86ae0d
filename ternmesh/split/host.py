"""The host's side of a split training, sans-I/O: which board may say what, and when.

The program around it computes; here is decided what is worth computing. Boards are taken in as
they come; a run is open from `min_boards` on and finished when all of them are done or silent.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from ternmesh.errors import WireError
from ternmesh.split import bodies
from ternmesh.split.events import Arrived, BoardJoined, HostEvent
from ternmesh.split.plan import SplitPlan, to_numbers
from ternmesh.swarm.backoff import earliest
from ternmesh.swarm.events import REFUSED_SHOWN_MAX, Refused
from ternmesh.swarm.outgoing import Outgoing
from ternmesh.swarm.pace import NETWORK, Pace
from ternmesh.swarm.seldom import Seldom
from ternmesh.trust.notary import OPEN, Trust
from ternmesh.wire import activation, control, seal
from ternmesh.wire.activation import Activation
from ternmesh.wire.control import FINISHED, GATHERING, Hello, Refusal, Welcome
from ternmesh.wire.control import OPEN as RUNNING
from ternmesh.wire.manifest import MODEL_SIZE

ANSWER_MIN_S = 1.0
LEAVE_S = 5.0  # beyond the time in which a board would have asked again
BOARDS_MAX = 1024
EVENTS_MAX = 2 * BOARDS_MAX  # that nobody has taken yet


@dataclass(frozen=True, slots=True)
class Settings:
    """What is no board's business: how many it takes, at most, and when one counts as gone."""

    min_boards: int = 1
    boards_max: int = BOARDS_MAX
    silence_s: float = 300.0


@dataclass(slots=True)
class Board:
    """What the host knows of one board; `number` is the next micro-batch that it takes.

    `open` is the one that waits for a gradient from the board's head, `held` the one that the host
    has yet to answer with a gradient. `moved_at` is when the last one was taken, or the board.
    `instance` is what it expects in a welcome that it has not asked for. `knows_end`: it has said
    hello since it was told that the run is finished.
    """

    context: int
    name: str
    number: int
    intake: bodies.Intake
    heard_at: float | None = None
    moved_at: float | None = None
    open: int | None = None
    held: int | None = None
    learned: int = 0
    skipped: int = 0
    is_done: bool = False
    knows_end: bool = False
    instance: bytes | None = None
    refused: Counter[str] = field(default_factory=Counter)


class SplitHost:
    """See the module. `counter` is the first seal counter that was never reserved.

    `pace` is that of the boards, behind the same bearer.
    """

    def __init__(
        self,
        plan: SplitPlan,
        settings: Settings,
        model_hash: bytes,
        run: bytes,
        boards: Sequence[tuple[int, str, int]] = (),
        counter: int = 0,
        trust: Trust = OPEN,
        pace: Pace = NETWORK,
    ) -> None:
        self.plan, self.settings, self.run = plan, settings, run
        last = plan.micro_batches
        self.boards = {
            context: Board(context, name, number, bodies.Intake(plan), is_done=number >= last)
            for context, name, number in boards
        }
        self.refused: Counter[str] = Counter()
        self._names = {board.name: board for board in self.boards.values()}
        self._model = model_hash[:MODEL_SIZE]
        self._sealing, self._notary = trust.sealing, trust.notary
        self._sealing.bind(run)
        self._outgoing = Outgoing(counter, trust.sealing)
        self._events: deque[HostEvent] = deque()
        self._refusals = Seldom(ANSWER_MIN_S)
        self._hello_longest_s = pace.hello_longest_s
        self._told = GATHERING  # the phase that all boards know of
        self._looked_at = 0.0  # when it was last compared with the phase that there is

    def phase(self, now: float) -> int:
        """Gathering, open or finished."""
        boards = self.boards.values()
        if len(boards) < self.settings.min_boards:
            return GATHERING
        is_over = all(b.is_done or self._is_gone(b, now) for b in boards)
        return FINISHED if is_over and any(b.is_done for b in boards) else RUNNING

    def waited_for(self, now: float) -> set[int]:
        """The contexts of the boards that have more to send, and are neither done nor gone."""
        last = self.plan.micro_batches
        return {
            board.context
            for board in self.boards.values()
            if not (board.is_done or self._is_gone(board, now))
            and (board.number < last or board.open is not None)
        }

    def leave_at(self, now: float) -> float | None:
        """When nobody will have anything more to ask, if nothing comes; None while the run is on.

        A board that knows of the end asks within `answer_ms`, any other one when it says hello.
        """
        if self.phase(now) != FINISHED:
            return None
        boards = self.boards.values()
        last = max(board.heard_at or 0.0 for board in boards)
        is_known = all(board.knows_end for board in boards if board.is_done)
        wait_s = LEAVE_S + self.plan.answer_ms / 1000
        return last + wait_s + (0.0 if is_known else 1.5 * self._hello_longest_s)

    # The verbs

    def start(self, now: float) -> None:
        """Begin, or go on after a restart: known boards have their time to speak from now on."""
        for board in self.boards.values():
            board.heard_at = board.moved_at = now
        self._told, self._looked_at = self.phase(now), now
        self._outgoing.ask(now)

    def answer(self, context: int, item: Activation) -> None:
        """Send a board its answer or gradient; CodecError for NaN, then nothing is sent."""
        leg, plan = item.leg, self.plan
        if leg == activation.GRADIENT_DOWN:
            self.give_up(context)
        bits = plan.bits_gradient if leg == activation.GRADIENT_DOWN else plan.answer_bits
        parts = bodies.cut(item, bits, plan)
        board = self.boards[context]
        self._outgoing.discard(context | seal.DOWN)  # it waits for nothing older any more
        self._outgoing.push(board.name, context | seal.DOWN, parts)

    def give_up(self, context: int) -> None:
        """No gradient comes of what the board has sent: it may send the next."""
        self.boards[context].held = None

    def receive_frames(self, peer: str, frames: Sequence[bytes], now: float) -> None:
        """Take frames from a peer. What is wrong is counted by its reason and changes nothing."""
        for frame in frames:
            try:
                header, body = self._sealing.open(peer, frame)
            except WireError as error:
                self._refuse(peer, error.reason, now, aloud=not self._sealing.asks)
                continue
            try:
                self._receive(peer, header, body, now)
            except WireError as error:
                self._refuse(peer, error.reason, now)
        self._tell_phase(now)
        self._outgoing.ask(now)

    def next_timeout(self) -> float | None:
        """When a board will count as gone, which may end the run."""
        ends = [
            board.moved_at + self.settings.silence_s
            for board in self.boards.values()
            if not board.is_done and board.moved_at is not None
        ]
        return earliest(*(end for end in ends if end > self._looked_at))

    def handle_timeout(self, now: float) -> None:
        """Tell boards when the run is over."""
        self._tell_phase(now)
        self._outgoing.ask(now)

    def next_event(self) -> HostEvent | None:
        """The next thing to make durable or act on, until None."""
        return self._outgoing.next_event(self._events)

    def frames_to_send(self, now: float) -> list[tuple[str, list[bytes]]]:  # noqa: ARG002
        """Sealed frames by peer; call it after the events are on disk."""
        return self._outgoing.drain()

    # Receiving

    def _receive(self, peer: str, header: seal.Header, body: bytes, now: float) -> None:
        if self._sealing.is_own(header.context, body):
            return
        if header.context == seal.ENROL:
            self._receive_hello(peer, body, now)
            return
        board = self.boards.get(header.context)
        if board is None:
            raise WireError("unknown node", "a frame from a context that nobody was given")
        if peer != board.name:
            raise WireError("wrong peer", "a frame in another board's name")
        item = board.intake.add(body)
        board.heard_at = now
        if item is not None:
            if len(self._events) >= EVENTS_MAX:
                raise WireError("full", "more activations at once than a host keeps")
            self._check(board, item, now)
            self._events.append(Arrived(board.context, item))

    def _check(self, board: Board, item: Activation, now: float) -> None:
        """WireError unless the item is what this board may send now; then it is noted."""
        plan, stays = self.plan, bool(self.plan.labels_stay)
        samples, width = item.values.shape
        match item.leg:
            case activation.LEARN:
                _check_shape((samples, width) == (plan.batch, plan.width))
                _check_shape(len(item.labels) == (0 if stays else plan.batch))
                _check_shape(all(label < plan.classes for label in item.labels))
                _check_time(board.held is None)  # or it would outweigh the others in a step
                _check_time(board.number <= item.number < plan.micro_batches)
                board.skipped += item.number - board.number
                board.number, board.moved_at = item.number + 1, now
                board.open, board.held = (item.number, None) if stays else (None, item.number)
            case activation.ASK:
                _check_shape(samples <= plan.batch and width == plan.width)
            case activation.GRADIENT_UP if stays:
                _check_shape((samples, width) == (plan.batch, plan.width_down))
                _check_time(item.number == board.open)
                board.open, board.held, board.moved_at = None, item.number, now
            case _:
                raise WireError("kind", "an activation of another leg than a board's")

    def _receive_hello(self, peer: str, body: bytes, now: float) -> None:
        hello = control.read_control(body)
        if not isinstance(hello, Hello):
            raise WireError("kind", f"a host takes no {type(hello).__name__} in context 0")
        if hello.name != peer:
            raise WireError("wrong peer", "a hello in another board's name")
        if hello.model != self._model:
            raise WireError("wrong model", "a board with another cut or another model")
        if not self._notary.may_train(peer):
            raise WireError("role", f"{peer} has no role that learns")
        board = self._names.get(peer) or self._take_in(peer, now)
        is_new = hello.run != self.run
        instance = control.renewed(hello.instance, self.run) if is_new else hello.instance
        if instance != board.instance:
            board.open = None  # it begins anew; one that was refused a frame goes on
        board.heard_at, board.instance = now, instance
        board.knows_end = self._told == FINISHED
        if hello.run == self.run and hello.version >= self.plan.micro_batches:
            board.skipped += self.plan.micro_batches - board.number
            board.number, board.is_done = self.plan.micro_batches, True
        self._welcome(board, hello.instance, now)

    def _tell_phase(self, now: float) -> None:
        """Boards that wait ask ever more seldom: what they wait for is told at once."""
        self._looked_at = now
        if self.phase(now) == self._told:
            return
        self._told = self.phase(now)
        for board in self.boards.values():
            if board.instance is not None:  # else it has not been here since a restart
                self._welcome(board, board.instance, now)

    def _welcome(self, board: Board, instance: bytes, now: float) -> None:
        welcome = Welcome(
            instance=instance,
            context=board.context,
            run=self.run,
            version=board.number,
            phase=self.phase(now),
            deadline_ms=0,
            plan=to_numbers(self.plan),
        )
        self._outgoing.push(board.name, seal.ENROL, [control.write_control(welcome)])

    def _take_in(self, name: str, now: float) -> Board:
        if len(self.boards) >= min(self.settings.boards_max, BOARDS_MAX):
            raise WireError("full", f"this host takes {self.settings.boards_max} boards")
        context = max(self.boards, default=0) + 1
        board = Board(context, name, 0, bodies.Intake(self.plan))
        self.boards[context] = self._names[name] = board
        if len(self.boards) <= self.settings.min_boards:
            for known in self.boards.values():
                known.moved_at = now  # nobody could send before the run was open
        else:
            board.moved_at = now
        self._events.append(BoardJoined(context, name))
        return board

    def _is_gone(self, board: Board, now: float) -> bool:
        """By its micro-batches: any other word costs a board nothing, and would hold a run up.

        Who was revoked is gone at once.
        """
        if board.moved_at is None or not self._notary.may_train(board.name):
            return True
        return now >= board.moved_at + self.settings.silence_s

    def _refuse(self, peer: str, reason: str, now: float, *, aloud: bool = True) -> None:
        self.refused[reason] += 1
        board = self._names.get(peer)
        if board is not None:
            board.refused[reason] += 1
        if len(self._events) < REFUSED_SHOWN_MAX:
            self._events.append(Refused(peer, reason))
        if aloud and self._refusals.may(peer, now):
            body = control.write_control(Refusal(0, reason))
            self._outgoing.push(peer, seal.ENROL, [body])


def _check_shape(fits: bool) -> None:
    if not fits:
        raise WireError("shape", "an activation of another shape than the plan's")


def _check_time(fits: bool) -> None:
    if not fits:
        raise WireError("stale", "a micro-batch that was here, was given up, or is none")
