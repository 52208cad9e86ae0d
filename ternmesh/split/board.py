"""A board's side of a split training, sans-I/O: join, send a micro-batch, wait for its answer.

The shape is that of `ternmesh.swarm.member`. One micro-batch is under way at a time; what is lost
is skipped, never repeated, so nothing is kept for its sake.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence

import numpy as np

from ternmesh.errors import WireError
from ternmesh.split import bodies
from ternmesh.split.events import Answered, BoardEvent, Lost, Welcomed
from ternmesh.split.plan import SplitPlan, from_numbers
from ternmesh.swarm.backoff import Backoff, earliest
from ternmesh.swarm.events import REFUSED_SHOWN_MAX, Refused, known_reason
from ternmesh.swarm.outgoing import Outgoing
from ternmesh.swarm.pace import NETWORK, Pace
from ternmesh.trust.notary import OPEN, Trust
from ternmesh.wire import activation, control, seal
from ternmesh.wire.activation import Activation
from ternmesh.wire.control import Hello, Refusal, Welcome
from ternmesh.wire.manifest import MODEL_SIZE

HOST = "host"
LOST_MAX = 3  # in a row, before a board doubts that the host is there and knows it
REASONS_MAX = 64
NO_REFERENCE = bytes(16)


class SplitBoard:
    """One board. `instance` is 8 random bytes of this process; `rng` only jitters timers.

    `number` is the next micro-batch, `counter` the first seal counter that was never reserved;
    `fits` says whether a plan is for the board's part and data, `pace` is that of hellos.
    """

    def __init__(
        self,
        name: str,
        model_hash: bytes,
        samples: int,
        instance: bytes,
        rng: np.random.Generator,
        *,
        run: bytes = bytes(8),
        number: int = 0,
        counter: int = 0,
        trust: Trust = OPEN,
        pace: Pace = NETWORK,
        fits: Callable[[SplitPlan], bool] = lambda plan: True,  # noqa: ARG005
    ) -> None:
        self.name, self.samples, self.run, self.number = name, samples, run, number
        self.plan: SplitPlan | None = None
        self.joined, self.phase = False, control.GATHERING
        self.refused: Counter[str] = Counter()
        self._model, self._instance, self._context = model_hash[:MODEL_SIZE], instance, 0
        self._fits, self._sealing = fits, trust.sealing
        self._sealing.bind(run)
        self._outgoing = Outgoing(counter, trust.sealing)
        self._events: deque[BoardEvent] = deque()
        self._intake: bodies.Intake | None = None
        self._greeting = Backoff(pace.hello_s, pace.hello_longest_s, rng)
        self._amends = Backoff(pace.hello_s, pace.hello_longest_s, rng)  # hellos after refusals
        self._has_asked = False  # a hello is out that no welcome has answered
        self._wanted: tuple[int, int, int] | None = None  # number, leg and samples of the answer
        self._give_up_at: float | None = None
        self._lost = 0

    @property
    def ready(self) -> bool:
        """Whether a micro-batch may be sent: the host takes them, and none is under way."""
        return self.joined and self._wanted is None and self.phase != control.GATHERING

    # The verbs

    def start(self, now: float) -> None:
        """Begin: says hello at once."""
        self._hello(now)
        self._outgoing.ask(now)

    def finish(self, now: float) -> None:
        """Say that all micro-batches are done, until the host says that the run is."""
        if self._greeting.at is None and self.phase != control.FINISHED:
            self._hello(now)

    def send(self, item: Activation, wanted: int, now: float) -> None:
        """Send what is to be answered by the leg `wanted`; CodecError for NaN, then nothing is."""
        plan = self.plan
        assert plan is not None
        bits = plan.bits_gradient if item.leg == activation.GRADIENT_UP else plan.bits_up
        parts = bodies.cut(item, bits, plan)
        self._outgoing.discard(self._context)  # of what is older nobody waits for an answer
        self._outgoing.push(HOST, self._context, parts)
        if item.leg == activation.LEARN:
            self.number = item.number + 1
        self._wanted = item.number, wanted, len(item.values)
        self._give_up_at = now + plan.answer_ms / 1000

    def receive_frames(self, peer: str, frames: Sequence[bytes], now: float) -> None:
        """Take frames that arrived. What is wrong is counted in `refused` and changes nothing."""
        for frame in frames:
            try:
                self._receive(peer, frame, now)
            except WireError as error:
                self._refuse(peer, error.reason)
        self._outgoing.ask(now)

    def next_timeout(self) -> float | None:
        """When `handle_timeout` is due, if ever."""
        return earliest(self._greeting.at, self._give_up_at)

    def handle_timeout(self, now: float) -> None:
        """Do what is due: give a micro-batch up, say hello again."""
        if self._give_up_at is not None and now >= self._give_up_at:
            self._lose(now)
        if self._greeting.due(now):
            self._hello(now)
        self._outgoing.ask(now)

    def next_event(self) -> BoardEvent | None:
        """The next thing to make durable or act on, until None."""
        return self._outgoing.next_event(self._events)

    def frames_to_send(self, now: float) -> list[tuple[str, list[bytes]]]:  # noqa: ARG002
        """Sealed frames for the transport; call it after the events are on disk."""
        return self._outgoing.drain()

    # Receiving

    def _receive(self, peer: str, frame: bytes, now: float) -> None:
        header, body = self._sealing.open(peer, frame)
        if self._sealing.is_own(header.context, body):
            return
        if header.context == seal.ENROL:
            self._receive_control(control.read_control(body), now)
        elif self._intake is None or header.context != self._context | seal.DOWN:
            raise WireError("context", "a frame for another board")
        elif (item := self._intake.add(body)) is not None:
            self._receive_answer(item)

    def _receive_control(self, message: control.Control, now: float) -> None:
        match message:
            case Welcome():
                if message.instance == self._instance:
                    self._welcome(message, now)
            case Refusal():
                self._host_refused(message, now)
            case _:
                raise WireError("kind", f"a board takes no {type(message).__name__}")

    def _welcome(self, message: Welcome, now: float) -> None:
        plan = from_numbers(message.plan)
        if not self._fits(plan):
            raise WireError("plan", "the host's plan is for another cut, or for other labels")
        if (message.run, plan) != (self.run, self.plan) and not self._has_asked:
            return  # of a run that is given up, or of a host before a restart
        self._has_asked = False
        if message.run != self.run:
            self._begin_run(message.run)
        if plan != self.plan:
            self.plan, self._intake = plan, bodies.Intake(plan)
        undone = max(0, message.version - self.number)
        self.number += undone
        is_news = message.phase == control.FINISHED and self.phase != control.FINISHED
        self._context, self.joined, self.phase = message.context, True, message.phase
        self._lost = 0
        is_waiting = self.phase == control.GATHERING or (
            self.phase == control.OPEN and self.number >= plan.micro_batches
        )
        if not is_waiting:
            self._greeting.stop()
        elif self._greeting.at is None:
            self._greeting.again(now)
        if is_news:
            self._say_hello()  # the host may leave once all know
        self._events.append(Welcomed(self.run, self.number, self.phase, plan, undone))

    def _begin_run(self, run: bytes) -> None:
        self._outgoing.discard(self._context)  # what waits is of the run before
        self._sealing.bind(run)
        self._instance = control.renewed(self._instance, run)
        self.run, self.number, self.plan = run, 0, None
        self._wanted = self._give_up_at = None

    def _host_refused(self, message: Refusal, now: float) -> None:
        self._refuse("", message.reason)
        if self._wanted is not None:
            self._lose(now)
        self._greeting.by(self._amends.again(now))

    def _receive_answer(self, item: Activation) -> None:
        plan = self.plan
        assert plan is not None
        if self._wanted is None or (item.number, item.leg) != self._wanted[:2]:
            raise WireError("stale", "an answer that nobody waits for any more")
        width = plan.width if item.leg == activation.GRADIENT_DOWN else plan.width_down
        if item.values.shape != (self._wanted[2], width):
            raise WireError("shape", "an answer of another shape than the plan's")
        self._wanted = self._give_up_at = None
        self._lost = 0
        self._amends.stop()
        self._events.append(Answered(item))

    def _lose(self, now: float) -> None:
        assert self._wanted is not None
        self._events.append(Lost(self._wanted[0]))
        self._wanted = self._give_up_at = None
        self._lost += 1
        if self._lost >= LOST_MAX:
            self.joined = False  # until the host is there again
            self._greeting.by(now)

    # Sending

    def _hello(self, now: float) -> None:
        self._say_hello()
        self._greeting.again(now)

    def _say_hello(self) -> None:
        hello = Hello(
            name=self.name,
            instance=self._instance,
            model=self._model,
            run=self.run,
            version=self.number,
            reference=NO_REFERENCE,
            samples=self.samples,
        )
        self._has_asked = True
        self._outgoing.discard(seal.ENROL, control.KIND)
        self._outgoing.push(HOST, seal.ENROL, [control.write_control(hello)])

    def _refuse(self, peer: str, reason: str) -> None:
        reason = known_reason(reason, self.refused, REASONS_MAX)
        self.refused[reason] += 1
        if len(self._events) < REFUSED_SHOWN_MAX:
            self._events.append(Refused(peer, reason))
