"""A board's side of a split training, sans-I/O: join, send a micro-batch, wait for its answer.

A program drives it like `federated.node`, and `federated.joining` says how it joins. The program
also calls `send` while the board is `ready`, and `finish` when all micro-batches are done. One
micro-batch is under way at a time. What is lost is skipped, never repeated, so nothing is kept.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ternmesh.errors import WireError
from ternmesh.federated.channel import Channel
from ternmesh.federated.joining import Handlers, Joining, MembershipStep, NodeSettings
from ternmesh.security.authenticator import OPEN, SecurityLayer
from ternmesh.security.membership import HOST
from ternmesh.split.messages import (
    ActivationReassembler,
    Answered,
    BoardEvent,
    Lost,
    Welcomed,
    cut_activation,
)
from ternmesh.split.plan import SplitPlan, from_numbers
from ternmesh.timers import Random, earliest
from ternmesh.wire import activation, control, fragments
from ternmesh.wire.activation import Activation
from ternmesh.wire.control import Inquiry, Refusal, Settings, Welcome
from ternmesh.wire.global_update import NO_GLOBAL_HASH

LOST_MAX = 3  # in a row; then a board says hello before it sends another


@dataclass(frozen=True, slots=True)
class _Wanted:
    number: int
    leg: int
    shape: tuple[int, int]  # samples, numbers of a sample
    give_up_at: float


class SplitBoard:
    """One board. `number` is its next micro-batch; the host's welcome may move it on.

    `run`, `number` and `counter` are what it had on disk. `fits` says whether a plan is for the
    board's part and data. `samples` is how many it trains on; `rng` only jitters timers.
    """

    def __init__(
        self,
        settings: NodeSettings,
        *,
        samples: int,
        rng: Random,
        run: bytes = bytes(8),
        number: int = 0,
        counter: int = 0,
        security: SecurityLayer = OPEN,
        fits: Callable[[SplitPlan], bool] = lambda plan: True,  # noqa: ARG005
    ) -> None:
        self.channel: Channel[BoardEvent] = Channel(run=run, counter=counter, security=security)
        self.refused = self.channel.refused  # frames, by reason
        self.joining = Joining(settings, self.channel, run=run, samples=samples, rng=rng)
        self.handlers: Handlers = {
            Welcome: self._receive_welcome,
            Refusal: self._receive_refusal,
            Inquiry: self.joining.receive_management,
            Settings: self.joining.receive_management,
            activation.KIND: self._receive_answer,
            fragments.KIND: self._receive_answer,
        }
        self.number = number
        self.plan: SplitPlan | None = None
        self.phase = control.GATHERING  # of the run, in the host's last welcome
        self._fits = fits
        self._reassembler: ActivationReassembler | None = None
        self._wanted: _Wanted | None = None
        self._lost = 0  # micro-batches in a row

    @property
    def run(self) -> bytes:
        return self.joining.run

    @property
    def joined(self) -> bool:
        """Whether the host knows this board under its address."""
        return self.joining.joined

    @property
    def ready(self) -> bool:
        """Whether a micro-batch may be sent: the host takes them, and none is under way."""
        return self.joined and self._wanted is None and self.phase != control.GATHERING

    # What the program calls

    def start(self, now: float) -> None:
        """Begin: send a hello at once."""
        self.say_hello(now)
        self.joining.send_handshakes(now)

    def receive_frames(self, peer: str, frames: Sequence[bytes], now: float) -> None:
        """Handle received frames. A wrong frame is counted as refused and changes nothing."""
        self.joining.receive_frames(
            peer, frames, self.handlers, now, restarted=self.joining.hello_timer.soon
        )
        self.joining.send_handshakes(now)

    def next_event(self) -> BoardEvent | None:
        """The next event to save or handle; None if there are no more."""
        return self.channel.next_event()

    def frames_to_send(self, now: float) -> list[tuple[str, list[bytes]]]:  # noqa: ARG002
        """Frames by peer. Call this after the events are on disk."""
        return self.channel.frames_to_send()

    def send(self, item: Activation, now: float) -> None:
        """Send a micro-batch or a question; CodecError for NaN, then nothing is sent."""
        plan = self.plan
        assert plan is not None, "a board that is ready has a plan"
        parts = cut_activation(item, plan.bits_up, plan)
        self.channel.outgoing.discard(self.joining.address)  # the board waits for no older answer
        self.channel.outgoing.push(HOST, self.joining.address, parts)
        if item.leg == activation.LEARN:
            self.number = item.number + 1
            wanted, width = activation.GRADIENT, plan.width
        else:
            wanted, width = activation.ANSWER, plan.classes
        give_up_at = now + plan.answer_ms / 1000
        self._wanted = _Wanted(item.number, wanted, (len(item.values), width), give_up_at)

    def finish(self, now: float) -> None:
        """Tell the host that all micro-batches are done, until it says that the run is over."""
        if self.joining.hello_timer.at is None and self.phase != control.FINISHED:
            self.say_hello(now)

    # Timers

    def next_timeout(self) -> float | None:
        """When `handle_timeout` is due, if ever."""
        give_up_at = None if self._wanted is None else self._wanted.give_up_at
        return earliest(self.joining.hello_timer.at, give_up_at)

    def handle_timeout(self, now: float) -> None:
        """Do what is due: give a micro-batch up, say hello again."""
        if self._wanted is not None and now >= self._wanted.give_up_at:
            self._lose(now)
        if self.joining.hello_timer.due(now):
            self.say_hello(now)
        self.joining.send_handshakes(now)

    # What the board receives

    def _receive_welcome(self, message: Welcome, _address: int, now: float) -> None:
        if message.instance != self.joining.instance:
            return  # an answer to another board on a shared transport
        plan = from_numbers(message.plan)
        if not self._fits(plan):
            raise WireError("plan", "the host's plan is for another cut, or for other labels")
        is_new = (message.run, plan) != (self.run, self.plan)
        if not self.joining.answers(message, plan.frame_mtu, is_new=is_new):
            return
        if is_new:
            self._begin_run(message.run, plan)
        self.joining.welcomed(message.address)
        undone = max(0, message.version - self.number)
        self.number += undone
        is_end_news = message.phase == control.FINISHED and self.phase != control.FINISHED
        self.phase = message.phase
        self._lost = 0
        is_done = self.phase == control.OPEN and self.number >= plan.micro_batches
        hello_timer = self.joining.hello_timer
        if not (self.phase == control.GATHERING or is_done):
            hello_timer.stop()
        elif hello_timer.at is None:  # it waits for the run to open or to end
            hello_timer.again(now)
        if is_end_news:
            # The host may leave once all boards know of the end.
            self.joining.push_hello(self.number, NO_GLOBAL_HASH)
        self.channel.events.append(Welcomed(self.run, self.number, self.phase, plan, undone))

    def _receive_refusal(self, message: Refusal, _address: int, now: float) -> None:
        self.joining.receive_refusal(message, now)
        if self._wanted is not None:
            self._lose(now)

    def _receive_answer(self, body: bytes, address: int, _now: float) -> None:
        if self._reassembler is None or address != self.joining.own_address:
            raise WireError("kind", f"a board takes no body of kind {body[0]} at this address")
        item = self._reassembler.add(body)
        if item is None:
            return
        wanted = self._wanted
        if wanted is None or (item.number, item.leg) != (wanted.number, wanted.leg):
            raise WireError("stale", "an answer that the board does not wait for any more")
        if item.values.shape != wanted.shape:
            raise WireError("shape", "an answer of another shape than the plan's")
        self._wanted = None
        self._lost = 0
        self.joining.refused_timer.stop()
        self.channel.events.append(Answered(item))

    # Inside

    def _begin_run(self, run: bytes, plan: SplitPlan) -> None:
        if run != self.run:  # else the host goes on with another plan
            self.joining.begin_run(run)
            self.number = 0
            self._wanted = None
        self.plan = plan
        self._reassembler = ActivationReassembler(plan)

    def say_hello(self, now: float) -> None:
        self.joining.say_hello(self.number, NO_GLOBAL_HASH, now)

    def _lose(self, now: float) -> None:
        assert self._wanted is not None
        self.channel.events.append(Lost(self._wanted.number))
        self._wanted = None
        self._lost += 1
        if self._lost >= LOST_MAX:
            self.joining.take_step(MembershipStep.FORGOTTEN)  # until the host is there again
            self.joining.hello_timer.by(now)
