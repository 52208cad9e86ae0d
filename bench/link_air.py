"""Links that share one channel, simulated: one speaks at a time, and each hears with a chance.

Time is that of LoRa frames on the air. What is not modelled: collisions, turnaround, duty cycle.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf

import numpy as np

from bench.keys import hop_seals
from ternmesh.errors import WireError
from ternmesh.link.airtime import LoraSetting, airtime_us
from ternmesh.link.code import Layout
from ternmesh.link.coder import Coder
from ternmesh.link.link import Link, LinkSettings
from ternmesh.link.records import Delivered, GaveUp, LinkState, ObjectArrived

FRAME_BYTES = 255
SETTING = LoraSetting(7, 125)
SENDER = "host"
MEET_S = 100.0  # ends that know each other have said so long before
TIME_MAX_S = 30 * 86_400.0
Loss = Callable[[str, str], bool]  # whether what a sender says is lost on its way to a receiver


class Ranks:
    """A coder without bytes: a repair symbol is new with the chance that a random one has."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def encode(
        self,
        layout: Layout,
        name: bytes,  # noqa: ARG002
        data: bytes,  # noqa: ARG002
        indexes: Sequence[int],
    ) -> list[bytes]:
        """Symbols of zeros."""
        return [bytes(layout.symbol_bytes)] * len(indexes)

    def decoder(self, layout: Layout, name: bytes) -> "RankDecoder":  # noqa: ARG002
        """An empty decoder."""
        return RankDecoder(layout, self._rng)


class RankDecoder:
    """Counts independent symbols; the object it gives is zeros."""

    def __init__(self, layout: Layout, rng: np.random.Generator) -> None:
        self._layout, self._rng = layout, rng
        self._seen: set[int] = set()
        self._missing = [len(layout.source(g)) for g in range(layout.generations)]

    @property
    def missing(self) -> tuple[int, ...]:
        """Independent symbols that each generation lacks."""
        return tuple(self._missing)

    @property
    def is_complete(self) -> bool:
        """Whether every generation has enough."""
        return not any(self._missing)

    def add(self, index: int, symbol: bytes) -> bool:
        """Whether a symbol is new: it fails with 1/256 for each rank that is not missing."""
        if len(symbol) != self._layout.symbol_bytes:
            raise WireError("symbol", "a symbol of another size")
        generation = self._layout.generation(index)
        missing = self._missing[generation]
        is_repair = index >= self._layout.count
        fails = is_repair and self._rng.random() < 256.0**-missing
        if index in self._seen or missing == 0 or fails:
            return False
        self._seen.add(index)
        self._missing[generation] -= 1
        return True

    def data(self) -> bytes:
        """Zeros."""
        return bytes(self._layout.size)


@dataclass(slots=True)
class Outcome:
    """What one transfer cost. Bytes are those of frames on the air, of all ends."""

    completed: bool = False
    bytes_sent: int = 0
    symbols: int = 0
    source_symbols: int = 0
    seconds: float = 0.0
    arrived: dict[str, bytes] = field(default_factory=dict)
    frames: int = 0


def transfer(
    payload: bytes,
    receivers: Sequence[str],
    loss: Loss,
    rng: np.random.Generator,
    coder: Coder | None = None,
    *,
    keyed: int | None = None,
) -> Outcome:
    """One object from `SENDER` to `receivers` (several: as a broadcast).

    `keyed`: every frame under keys made from this seed, of ends that have met before.
    """
    settings = LinkSettings(
        mtu=FRAME_BYTES,
        idle_s=2.0,
        contexts={"all": 0xFFFF},
        give_up_s=TIME_MAX_S,
        incoming_bytes_max=1 << 24,
    )
    names = (SENDER, *receivers)
    seals = hop_seals(receivers, keyed) if keyed is not None else lambda _name: None
    ends = {n: Link(settings, LinkState(), rng, coder, seals(n)) for n in names}
    for end in ends.values():
        end.start(0.0)
    began = 0.0 if keyed is None else _meet(ends)
    peer = receivers[0] if len(receivers) == 1 else "all"
    ends[SENDER].send(peer, payload, receivers=receivers)
    return _run(ends, receivers, loss, began)


def _meet(ends: Mapping[str, Link]) -> float:
    """Let all ends greet each other on a quiet channel; when that is over."""
    now = 0.0
    while now < MEET_S:
        for name, end in ends.items():
            _take_events(name, end, Outcome())
            for peer, frame in end.frames_to_send(now, 1):
                ends[peer].receive_frame(name, frame, now)
        if not any(end.has_frames for end in ends.values()):
            now = min(
                (t for e in ends.values() if (t := e.next_timeout()) is not None), default=inf
            )
            for end in ends.values():
                end.handle_timeout(now)
    return MEET_S


def _run(ends: Mapping[str, Link], receivers: Sequence[str], loss: Loss, began: float) -> Outcome:
    outcome, now = Outcome(), began
    for _ in count():
        for name, end in ends.items():
            _take_events(name, end, outcome)
        if outcome.completed or now > TIME_MAX_S:
            break
        # Answers first: an end with one of them waits for no burst to end.
        ready = [name for name in (*receivers, SENDER) if ends[name].has_frames]
        if not ready:
            now = min(t for end in ends.values() if (t := end.next_timeout()) is not None)
            for end in ends.values():
                end.handle_timeout(now)
            continue
        name = ready[0]
        for peer, frame in ends[name].frames_to_send(now, 1):
            now += airtime_us(SETTING, len(frame)) / 1e6
            outcome.bytes_sent += len(frame)
            outcome.frames += 1
            outcome.symbols += frame[6] >= 0x50
            for listener in receivers if peer == "all" else (peer,):
                if not loss(name, listener):
                    ends[listener].receive_frame(name, frame, now)
    outcome.seconds = now - began
    return outcome


def _take_events(name: str, end: Link, outcome: Outcome) -> None:
    while (event := end.next_event()) is not None:
        if isinstance(event, Delivered):
            outcome.completed = True
        elif isinstance(event, ObjectArrived):
            assert name not in outcome.arrived, "delivered twice"
            outcome.arrived[name] = event.payload
        else:
            assert not isinstance(event, GaveUp)
