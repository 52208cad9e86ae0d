"""A board's side of a split training, sans-I/O: join, send a micro-batch, wait for its answer.

`federated.session` says how a program drives it and how it joins. The program also calls `send`
while the board is `ready`, and `finish` when all micro-batches are done. One micro-batch is under
way at a time. What is lost is skipped, never repeated, so nothing is kept for it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ternmesh.errors import WireError
from ternmesh.federated.session import NodeSession
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
from ternmesh.timers import NETWORK_TIMERS, TimerSettings, earliest
from ternmesh.wire import activation, control
from ternmesh.wire.activation import Activation
from ternmesh.wire.control import Refusal, Welcome
from ternmesh.wire.frame import FRAME_MAX
from ternmesh.wire.global_update import NO_GLOBAL_HASH

LOST_MAX = 3  # in a row; then a board says hello before it sends another


@dataclass(frozen=True, slots=True)
class _Wanted:
    number: int
    leg: int
    shape: tuple[int, int]  # samples, numbers of a sample
    give_up_at: float


class SplitBoard(NodeSession[BoardEvent, SplitPlan]):
    """One board. `number` is its next micro-batch; the host's welcome may move it on.

    `fits` says whether a plan is for the board's part and data. The other arguments are those of
    `NodeSession`.
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
        security: SecurityLayer = OPEN,
        pace: TimerSettings = NETWORK_TIMERS,
        fits: Callable[[SplitPlan], bool] = lambda plan: True,  # noqa: ARG005
        frame_max: Callable[[], int] = lambda: FRAME_MAX,
    ) -> None:
        super().__init__(
            name, model_hash, samples, instance, rng, run, counter, security, pace, frame_max
        )
        self.number = number
        self._fits = fits
        self._reassembler: ActivationReassembler | None = None
        self._wanted: _Wanted | None = None
        self._lost = 0  # micro-batches in a row

    @property
    def ready(self) -> bool:
        """Whether a micro-batch may be sent: the host takes them, and none is under way."""
        return self.joined and self._wanted is None and self.phase != control.GATHERING

    # What the program calls

    def send(self, item: Activation, wanted: int, now: float) -> None:
        """Send what the leg `wanted` answers; CodecError for NaN, then nothing is sent."""
        plan = self._known_plan
        bits = plan.bits_gradient if item.leg == activation.GRADIENT_UP else plan.bits_up
        parts = cut_activation(item, bits, plan)
        self._outgoing.discard(self.address)  # the board waits for no older answer
        self._outgoing.push(HOST, self.address, parts)
        if item.leg == activation.LEARN:
            self.number = item.number + 1
        width = plan.width if wanted == activation.GRADIENT_DOWN else plan.width_down
        give_up_at = now + plan.answer_ms / 1000
        self._wanted = _Wanted(item.number, wanted, (len(item.values), width), give_up_at)

    def finish(self, now: float) -> None:
        """Tell the host that all micro-batches are done, until it says that the run is over."""
        if self._hello_timer.at is None and self.phase != control.FINISHED:
            self._say_hello(now)

    # Timers

    def next_timeout(self) -> float | None:
        """When `handle_timeout` is due, if ever."""
        give_up_at = None if self._wanted is None else self._wanted.give_up_at
        return earliest(self._hello_timer.at, give_up_at)

    def handle_timeout(self, now: float) -> None:
        """Do what is due: give a micro-batch up, say hello again."""
        if self._wanted is not None and now >= self._wanted.give_up_at:
            self._lose(now)
        if self._hello_timer.due(now):
            self._say_hello(now)
        self._ask(now)

    # Joining

    def _held(self) -> tuple[int, bytes]:
        return self.number, NO_GLOBAL_HASH

    def _read_plan(self, numbers: tuple[int, ...]) -> SplitPlan:
        plan = from_numbers(numbers)
        if not self._fits(plan):
            raise WireError("plan", "the host's plan is for another cut, or for other labels")
        return plan

    def _take_run(self, run: bytes, plan: SplitPlan) -> None:
        if run != self.run:  # else the host goes on with another plan
            self._change_run(run)
            self.number = 0
            self._wanted = None
        self.plan = plan
        self._reassembler = ActivationReassembler(plan)

    def _welcomed(self, message: Welcome, plan: SplitPlan, now: float) -> None:
        undone = max(0, message.version - self.number)
        self.number += undone
        is_end_news = message.phase == control.FINISHED and self.phase != control.FINISHED
        self.phase = message.phase
        self._lost = 0
        is_done = self.phase == control.OPEN and self.number >= plan.micro_batches
        if not (self.phase == control.GATHERING or is_done):
            self._hello_timer.stop()
        elif self._hello_timer.at is None:  # it waits for the run to open or to end
            self._hello_timer.again(now)
        if is_end_news:
            self._push_hello()  # the host may leave once all boards know of the end
        self._events.append(Welcomed(self.run, self.number, self.phase, plan, undone))

    def _receive_refusal(self, message: Refusal, now: float) -> None:
        super()._receive_refusal(message, now)
        if self._wanted is not None:
            self._lose(now)

    # Answers

    def _receive_body(self, address: int, body: bytes, now: float) -> None:  # noqa: ARG002
        if self._reassembler is None or address != self._own_address:
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
        self._refused_timer.stop()
        self._events.append(Answered(item))

    def _lose(self, now: float) -> None:
        assert self._wanted is not None
        self._events.append(Lost(self._wanted.number))
        self._wanted = None
        self._lost += 1
        if self._lost >= LOST_MAX:
            self.joined = False  # until the host is there again
            self._hello_timer.by(now)
