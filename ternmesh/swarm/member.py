"""A node's side of a run, sans-I/O: join, follow the references, send one packet a round.

The program around it calls `receive_frames`, `handle_timeout`, `submit`; then takes all events with
`next_event`, makes them durable, and sends `frames_to_send`. Time is an argument, in seconds of any
clock that does not jump. The shape is aioquic's.

                 hello (backed off)                 WorkReady -> submit
    joining ───────────────────────> up to date ────────────────────────> packet pending, or silent
        ^                                 ^                                     │
        │ the host knows us not           └── reference: apply, settle ─────────┘
        └── we are behind (announce, gap, silence): hello again
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ternmesh.errors import WireError
from ternmesh.hypervector import feedback
from ternmesh.hypervector.scale import add_fixed
from ternmesh.plan import Plan, from_numbers, genesis
from ternmesh.swarm import packet
from ternmesh.swarm.arriving import Arriving
from ternmesh.swarm.backoff import Backoff, earliest
from ternmesh.swarm.bitmap import read_bitmap
from ternmesh.swarm.events import (
    REFUSED_SHOWN_MAX,
    Advanced,
    FellSilent,
    Fixed,
    Joined,
    NodeEvent,
    PacketMade,
    PacketReceived,
    Refused,
    ResidualChanged,
    Vector,
    WorkReady,
    known_reason,
)
from ternmesh.swarm.outgoing import Outgoing
from ternmesh.swarm.pace import ANNOUNCES_MISSED, NETWORK, Pace
from ternmesh.swarm.records import MemberState
from ternmesh.swarm.seldom import Seldom
from ternmesh.swarm.step import step_units
from ternmesh.trust.notary import OPEN, Trust
from ternmesh.wire import control, manifest, pieces, seal
from ternmesh.wire.control import Announce, Hello, Receipt, Refusal, Silent, Welcome
from ternmesh.wire.reference import Counted, Reference, Snapshot

HOST = "host"
REASONS_MAX = 64
OTHER_RUNS_MAX = 16  # whose announces are known


def new_state(dimension: int) -> MemberState:
    """The state of a node that has never joined (adapter of `dimension` numbers)."""
    return MemberState(np.zeros(dimension, dtype=np.int32), feedback.init(dimension))


class Member:
    """One node. `instance` is 8 random bytes of this process; `rng` only jitters timers.

    `pace` fits the timers to the bearer; `trust` says how frames are sealed, and what is believed.
    """

    def __init__(
        self,
        name: str,
        model_hash: bytes,
        samples: int,
        instance: bytes,
        state: MemberState,
        rng: np.random.Generator,
        pace: Pace = NETWORK,
        trust: Trust = OPEN,
    ) -> None:
        self.name, self.samples = name, samples
        self.run, self.context, self.plan = state.run, state.context, state.plan
        self.version, self.reference, self.fixed = state.version, state.reference, state.fixed
        self.residual, self.pending, self.received = state.residual, state.pending, state.received
        self.silent, self.silences, self.finished = state.silent, state.silences, state.finished
        if self.plan is not None and self.version == 0:
            self.reference = genesis(model_hash, self.run, self.plan)
        self.joined, self.target, self.phase = False, state.version, control.GATHERING
        self.refused: Counter[str] = Counter()
        self._model_hash, self._instance, self._rng = model_hash, instance, rng
        self._sealing, self._notary = trust.sealing, trust.notary
        self._sealing.bind(self.run)
        self._outgoing = Outgoing(state.counter, trust.sealing)
        if self.pending is not None:  # it may have been made under other keys
            self.pending = packet.sign_again(self.pending, self.run, self._notary.sign_packet)
        self._events: deque[NodeEvent] = deque()
        self._arriving = Arriving(self.fixed.size, model_hash)
        self._offered, self._other_runs = -1, Seldom(float("inf"), OTHER_RUNS_MAX)
        self._greeting = Backoff(pace.hello_s, pace.hello_longest_s, rng)
        self._resend = Backoff(pace.packet_s, pace.packet_longest_s, rng)
        self._amends = Backoff(pace.hello_s, pace.hello_longest_s, rng)  # hellos after refusals
        self._catch_up_s, self._heard_at = pace.catch_up_s, 0.0
        self._has_asked = False  # a hello is out that no welcome has answered

    # The verbs

    def start(self, now: float) -> None:
        """Begin: says hello at once."""
        self._heard_at = now
        self._hello(now)
        self._outgoing.ask(now)

    def receive_frames(self, peer: str, frames: Sequence[bytes], now: float) -> None:
        """Take frames that arrived. What is wrong is counted in `refused` and changes nothing."""
        for frame in frames:
            try:
                self._receive(peer, frame, now)
            except WireError as error:
                self._refuse(peer, error.reason)
        self._offer_work()
        self._outgoing.ask(now)

    def next_timeout(self) -> float | None:
        """When `handle_timeout` is due, if ever."""
        return earliest(self._greeting.at, self._resend.at, self._doubts_at())

    def handle_timeout(self, now: float) -> None:
        """Do what is due: say hello again, send the packet or the word of silence again."""
        doubts_at = self._doubts_at()
        if doubts_at is not None and now >= doubts_at:
            self._heard_at = now
            self._hello(now)
        if self._greeting.due(now):
            self._hello(now)
        if self._resend.due(now):
            self._send_work(now)
        self._outgoing.ask(now)

    def next_event(self) -> NodeEvent | None:
        """The next thing to make durable or act on, until None."""
        return self._outgoing.next_event(self._events)

    def frames_to_send(self, now: float) -> list[tuple[str, list[bytes]]]:  # noqa: ARG002
        """Sealed frames for the transport; call it after the events are on disk."""
        return self._outgoing.drain()

    def submit(self, round_number: int, delta: Vector, now: float) -> None:
        """The work for a round is done: `delta` is adapter minus reference (float32, D).

        Work that no packet can take, or that is too little for one, is kept for a later one.
        CodecError for NaN.
        """
        if self.pending is not None:
            corrected = feedback.update(self.pending.corrected, delta)
            self.pending = replace(self.pending, corrected=corrected)
            self._events.append(PacketMade(self.pending))
            return
        corrected = feedback.update(self.residual, delta)
        plan = self.plan
        if plan is None or round_number != self.version or self.silent:
            self.residual = corrected
            self._events.append(ResidualChanged(corrected))
            return
        if packet.is_too_little(corrected, self.fixed, self.silences, plan):
            self.residual, self.silent, self.silences = corrected, True, self.silences + 1
            self._events.append(FellSilent(round_number, corrected, self.silences))
        else:
            sign = partial(self._notary.sign_packet, self.run, round_number)
            self.pending = packet.make_packet(
                corrected, self._model_hash, round_number, self.samples, plan, sign
            )
            self.silences = 0
            self._events.append(PacketMade(self.pending))
        self.received = False
        self._resend.stop()
        self._send_work(now)

    # Receiving

    def _receive(self, peer: str, frame: bytes, now: float) -> None:
        header, body = self._sealing.open(peer, frame)
        if self._sealing.is_own(header.context, body):
            return
        body = self._notary.open_body(self.run, header.context, body)
        own = self.context | seal.DOWN if self.joined else seal.ENROL
        if header.context not in (seal.ENROL, seal.BROADCAST, own):
            raise WireError("context", "a frame for another node")
        if body[0] == pieces.KIND:
            if self.joined:
                self._receive_piece(body, header.context == seal.BROADCAST, now)
            if self._greeting.at is not None and header.context == own:
                # It is under way.
                self._greeting.at = max(self._greeting.at, now + self._catch_up_s)
        elif body[0] == control.KIND:
            self._receive_control(control.read_control(body), now)
        else:
            raise WireError("kind", f"a node takes no body of kind {body[0]}")

    def _receive_control(self, message: control.Control, now: float) -> None:
        match message:
            case Welcome():
                self._welcome(message, now)
            case Announce():
                self._announce(message, now)
            case Receipt():
                self._receipt(message, now)
            case Refusal():
                self._host_refused(message, now)
            case Silent():
                self._silence_known(message, now)
            case _:
                raise WireError("kind", f"a node takes no {type(message).__name__}")

    def _welcome(self, message: Welcome, now: float) -> None:
        if message.instance != self._instance:
            return  # an answer to another node on a shared bearer
        plan = from_numbers(message.plan)
        if plan.dimension != self.fixed.size:
            raise WireError("vector length", "the host's plan is for an adapter of another size")
        if (message.run, plan) != (self.run, self.plan):
            if not self._has_asked:
                return  # of a run that is given up
            self._begin_run(message.run, plan)
        self._arriving.expect(plan)
        self.context, self.joined, self._has_asked = message.context, True, False
        self._heard_at = now
        if message.phase != control.GATHERING:
            self._greeting.stop()  # else the word that the round is open may have passed it
        self._events.append(Joined(self.run, self.context, plan))
        self.target = self.version  # a host that was restored is behind what it once announced
        self._aim(message.version, message.phase, now)
        self._send_work(now)

    def _begin_run(self, run: bytes, plan: Plan) -> None:
        self._outgoing.discard(self.context)  # what waits is of the run before
        self._sealing.bind(run)
        self._instance = control.renewed(self._instance, run)
        self.run, self.plan = run, plan
        self.version, self.reference = 0, genesis(self._model_hash, run, plan)
        self.fixed = np.zeros_like(self.fixed)
        self.residual = feedback.init(self.fixed.size)
        self.pending, self.finished, self._offered = None, False, -1
        self.silent, self.silences = False, 0
        self._arriving.forget()
        self._resend.stop()
        self.phase = control.GATHERING

    def _announce(self, message: Announce, now: float) -> None:
        """Only what is news makes this node speak: anybody can play an old announce again."""
        if not self.joined:
            return
        if message.run != self.run:
            if self._other_runs.may(message.run.hex(), now) or self._greeting.at is None:
                self._greeting.soon(now)
            return
        if message.version < self.target:
            raise WireError("replay", "an announce of a version before one that was announced")
        self._heard_at = now
        if (message.version, message.phase) <= (self.target, self.phase):
            return
        if self.phase == control.GATHERING:
            self._greeting.stop()
        self._aim(message.version, message.phase, now)

    def _aim(self, version: int, phase: int, now: float) -> None:
        self.target, self.phase = max(self.target, version), max(self.phase, phase)
        if self.version < self.target:
            self._greeting.by(now + self._catch_up_s * (0.5 + self._rng.random()))

    def _receipt(self, message: Receipt, now: float) -> None:
        pending, plan = self.pending, self.plan
        if pending is not None and plan is not None and message.round == pending.round:
            if message.digest != pending.digest:
                raise WireError("digest", "a receipt for a packet that this node did not make")
            if read_bitmap(message.have, plan.up.count).all() and not self.received:
                self._work_received()
                self._events.append(PacketReceived(pending.round))
        self._heard_at = now

    def _silence_known(self, message: Silent, now: float) -> None:
        """The host has it on disk, as it has a packet with a receipt: no need to repeat it."""
        self._heard_at = now
        if self.silent and message.round == self.version:
            self._work_received()

    def _work_received(self) -> None:
        self.received = True
        self._resend.stop()
        self._amends.stop()

    def _host_refused(self, message: Refusal, now: float) -> None:
        self._heard_at = now
        self._refuse("", message.reason)
        if message.reason == "unknown node":
            self.joined = False
        self._greeting.by(self._amends.again(now))

    # References

    def _receive_piece(self, body: bytes, is_for_all: bool, now: float) -> None:
        check = partial(self._notary.check_certificate, self.run)
        forged = self._arriving.forged
        found = self._arriving.add(body, is_for_all, check)
        if self._arriving.forged > forged:
            self._refuse(HOST, "piece")
        if found is None:
            return
        (step, name), version = found, self.version
        if isinstance(step, Snapshot):
            self._apply_snapshot(step, now)
        else:
            self._apply_reference(step, name, now)
        if step.version > version:
            self._heard_at = now

    def _apply_reference(self, step: Reference, name: bytes, now: float) -> None:
        if step.version < self.version or name == self.reference:
            return  # a repetition
        if step.version != self.version + 1 or step.parent != self.reference:
            self.target = max(self.target, step.version)
            self._greeting.soon(now)
            return
        assert self.plan is not None
        units = step_units(step.shares, self._model_hash, step.version, self.plan)
        self._advance(step, name, add_fixed(self.fixed, units), now)

    def _apply_snapshot(self, step: Snapshot, now: float) -> None:
        if step.version >= self.version and step.reference != self.reference:
            self._advance(step, step.reference, step.state, now)

    def _advance(self, step: Reference | Snapshot, name: bytes, fixed: Fixed, now: float) -> None:
        self._settle(step.counted)
        self._resend.stop()
        self._outgoing.discard(self.context)
        self.silent = False
        self.version, self.reference, self.fixed = step.version, name, fixed
        self.finished, self._offered = step.finished, -1
        self.target = max(self.target, step.version)
        self._amends.stop()
        self.phase = max(self.phase, control.FINISHED if step.finished else control.OPEN)
        if self.version >= self.target:
            self._greeting.stop()
        else:
            self._greeting.at = now + self._catch_up_s
        state = (self.version, self.reference, self.fixed, self.residual, self.finished)
        self._events.append(Advanced(*state))

    def _settle(self, counted: tuple[Counted, ...]) -> None:
        """Take what was counted of the pending packet out of what it was made from."""
        pending, plan = self.pending, self.plan
        if pending is None or plan is None:
            return
        self.residual = packet.settle_packet(pending, counted, self.context, self._model_hash, plan)
        self.pending = None

    # Sending

    def _offer_work(self) -> None:
        is_open = self.joined and self.phase == control.OPEN and not self.finished
        up_to_date = self.version >= self.target and self.pending is None and not self.silent
        if is_open and up_to_date and self._offered != self.version:
            self._offered = self.version
            self._events.append(WorkReady(self.version))

    def _hello(self, now: float) -> None:
        model, held = self._model_hash[: manifest.MODEL_SIZE], (self.version, self.reference)
        hello = Hello(self.name, self._instance, model, self.run, *held, self.samples)
        self._outgoing.discard(seal.ENROL)
        self._outgoing.push(HOST, seal.ENROL, [control.write_control(hello)])
        self._greeting.again(now)
        self._has_asked = True

    def _send_work(self, now: float) -> None:
        """The packet, or the word that there is none this time: until the host has it on disk.

        A silence is treated as a packet of one body. Were it said once, its loss could keep a
        host waiting for ever where every node must be there (`min_peers`).
        """
        is_done = self.pending is None and not self.silent
        if is_done or self.received or not self.joined:
            self._resend.stop()
            return
        if self.pending is not None and self.plan is not None:
            bodies = packet.packet_bodies(self.pending, self.plan)
        else:
            bodies = (control.write_control(Silent(self.version)),)
        self._outgoing.discard(self.context)
        self._outgoing.push(HOST, self.context, bodies)
        self._resend.again(now)

    def _doubts_at(self) -> float | None:
        if not self.joined or self.plan is None or self._greeting.at is not None:
            return None
        return self._heard_at + ANNOUNCES_MISSED * self.plan.announce_s

    def _refuse(self, peer: str, reason: str) -> None:
        reason = known_reason(reason, self.refused, REASONS_MAX)
        self.refused[reason] += 1
        if len(self._events) < REFUSED_SHOWN_MAX:
            self._events.append(Refused(peer, reason))
