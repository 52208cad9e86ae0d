"""The link's claims: useful bytes over all bytes on the air, completion, broadcast; peer models.

Real links exchange real objects over a simulated channel: one end sends at a time, and each frame
is lost with the same chance, independently, or in bursts. All frames of both directions count
whole: seals, offers, statuses, receipts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bench.keys import hop_seals
from bench.link_peers import PEERS
from bench.result import Figure, Result
from ternmesh.link.airtime import LoraSetting, airtime_us
from ternmesh.link.events import Delivered, LinkState, ObjectArrived
from ternmesh.link.link import Link
from ternmesh.link.settings import LinkSettings
from ternmesh.wire.frame import BROADCAST, HEAD_SIZE
from tests.faulty import Bursts

LIMITS = {
    300_000: {0.0: 0.92, 0.1: 0.83, 0.2: 0.74, 0.3: 0.65, 0.5: 0.46},
    10_000: {0.0: 0.92, 0.1: 0.81, 0.2: 0.71, 0.3: 0.62},
    1_000: {0.0: 0.88, 0.1: 0.76},
}
SEEDS = {300_000: 100, 10_000: 300, 1_000: 1_000}
COMPLETION_SEEDS = {300_000: 100, 10_000: 1_000, 1_000: 1_000}
HEAVY_LOSS, BURSTS = 0.6, Bursts(0.05, 0.25, 0.02, 0.9)
RECEIVERS, BROADCAST_SYMBOLS, SYMBOL_BYTES, BROADCAST_SEEDS = 10, 200, 238, 100
QUICK = 20  # times fewer seeds
SENDER, ALL = "host", "all"
SETTING = LoraSetting(7, 125)
MEET_S = 100.0  # within which ends with keys have met
TIME_MAX_S = 30 * 86_400.0
SETTINGS = LinkSettings(
    mtu=255,
    idle_s=2.0,
    addresses={ALL: BROADCAST},
    give_up_s=TIME_MAX_S,
    incoming_bytes_max=1 << 24,
)
NOTES = (
    "a simulated channel: one sender at a time, iid losses unless bursts are named, SF7/125 kHz "
    "frames of at most 255 bytes; no collisions, no turnaround, no duty cycle",
    "efficiency: useful bytes of all seeds over the bytes of all frames in both directions; a "
    "transfer ends when its sender holds the receipt",
    "with keys: both ends have met before; meeting for the first time takes 271 bytes on the air",
    "completion: 1 and 10 kB 1,000 times, 300 kB 100 times, each at 60 % loss and in bursts "
    "(Gilbert-Elliott .05/.25, loss .02/.9); real_bytes_equal: of all transfers of this bench",
    "peers are closed forms written from their specifications, not runs of their code (bench/"
    "link_peers.py names every constant); a peer's efficiency counts completed transfers only",
    "unicast: erasure coding cannot beat selective repeat's capacity of 1 - p; what it buys is "
    "feedback of 20 bytes a burst, resumption, several bearers at once, and broadcast",
)
SYMBOL_KIND = 0x50  # the first byte of a symbol without keys, and of nothing below it
Loss = Callable[[str, str], bool]  # whether a frame is lost between a sender and a receiver


@dataclass(slots=True)
class Outcome:
    """One transfer. Bytes are those of frames on the air, of all ends."""

    size: int
    completed: bool = False
    bytes_sent: int = 0
    symbols: int = 0
    arrived: dict[str, list[bytes]] = field(default_factory=dict)
    is_equal: bool = False  # every receiver has the object, once


class Channel:
    """Links that share one channel in simulated time; ends with an answer come first in `ends`."""

    def __init__(self, ends: Mapping[str, Link], size: int) -> None:
        self._ends = ends
        self._now = 0.0
        self.loss: Loss = lambda _sender, _receiver: False
        self.outcome = Outcome(size)

    def run(self, until_s: float) -> None:
        """Carry frames until the object is delivered, or nothing is due before `until_s`."""
        while self._now < until_s:
            self._take_events()
            if self.outcome.completed:
                return
            ready = [name for name, end in self._ends.items() if end.has_frames]
            if ready:
                self._transmit(ready[0])
                continue
            times = [end.next_timeout() for end in self._ends.values()]
            self._now = min((time for time in times if time is not None), default=until_s)
            for end in self._ends.values():
                end.handle_timeout(self._now)

    def _transmit(self, name: str) -> None:
        for peer, frame in self._ends[name].frames_to_send(self._now, 1):
            self._now += airtime_us(SETTING, len(frame)) / 1e6
            self.outcome.bytes_sent += len(frame)
            self.outcome.symbols += frame[HEAD_SIZE] >= SYMBOL_KIND
            for receiver in [end for end in self._ends if end != name and peer in (end, ALL)]:
                if not self.loss(name, receiver):
                    self._ends[receiver].receive_frame(name, frame, self._now)

    def _take_events(self) -> None:
        for name, end in self._ends.items():
            while (event := end.next_event()) is not None:
                if isinstance(event, Delivered):
                    self.outcome.completed = True
                elif isinstance(event, ObjectArrived):
                    self.outcome.arrived.setdefault(name, []).append(event.payload)


def transfer(
    size: int,
    loss: Loss,
    rng: np.random.Generator,
    receivers: Sequence[str] = ("node",),
    key_seed: int | None = None,
) -> Outcome:
    """One object from `SENDER` to the receivers (several: as a broadcast).

    With `key_seed` every frame is under keys made from it, of ends that have met before.
    """
    payload = rng.bytes(size)
    seals = hop_seals(receivers, key_seed) if key_seed is not None else lambda _name: None
    ends = {n: Link(SETTINGS, LinkState(), rng, seals(n)) for n in (*receivers, SENDER)}
    for end in ends.values():
        end.start(0.0)
    channel = Channel(ends, size)
    channel.run(MEET_S)
    channel.loss, channel.outcome = loss, Outcome(size)
    ends[SENDER].send(receivers[0] if len(receivers) == 1 else ALL, payload, receivers=receivers)
    channel.run(TIME_MAX_S)
    outcome = channel.outcome
    outcome.is_equal = outcome.arrived == {name: [payload] for name in receivers}
    return outcome


def iid(rng: np.random.Generator, loss: float) -> Loss:
    """Frames that are lost independently."""
    return lambda _sender, _receiver: bool(rng.random() < loss)


def bursts(rng: np.random.Generator) -> Loss:
    """Each direction has good and bad times of its own."""
    is_bad: dict[tuple[str, str], bool] = {}

    def is_lost(sender: str, receiver: str) -> bool:
        bad = is_bad.get((sender, receiver), False)
        lost = rng.random() < (BURSTS.loss_bad if bad else BURSTS.loss_good)
        moves = rng.random() < (BURSTS.bad_to_good if bad else BURSTS.good_to_bad)
        is_bad[sender, receiver] = bad ^ bool(moves)
        return bool(lost)

    return is_lost


def transfers(size: int, loss: float, seeds: int, *, keys: bool = False) -> list[Outcome]:
    """Transfers to one receiver, one for each seed."""
    found = []
    for seed in range(seeds):
        rng = np.random.default_rng((seed, size))
        key_seed = seed if keys else None
        found.append(transfer(size, iid(rng, loss), rng, key_seed=key_seed))
    return found


def measure(*, quick: bool) -> Result:
    """All cells; `quick` takes a twentieth of the seeds."""

    def seeds(count: int) -> int:
        return max(2, count // QUICK) if quick else count

    figures: dict[str, Figure] = {}
    everything: list[Outcome] = []
    for size, row in LIMITS.items():
        for loss, limit in row.items():
            for suffix in ("", "_keys"):
                made = transfers(size, loss, seeds(SEEDS[size]), keys=bool(suffix))
                name = f"efficiency_{size // 1000}kb_loss{round(100 * loss)}{suffix}"
                figures[name] = efficiency(made, f">={limit}")
                everything += made
                print(f"{name}: {figures[name].value:.4f}", flush=True)
    hard = []
    for size, count in COMPLETION_SEEDS.items():
        for seed in range(seeds(count)):
            rng = np.random.default_rng((seed, size, 1))
            hard.append(transfer(size, iid(rng, HEAVY_LOSS), rng))
            hard.append(transfer(size, bursts(rng), rng))
    broadcasts = []
    names = [f"node-{index}" for index in range(RECEIVERS)]
    for seed in range(seeds(BROADCAST_SEEDS)):
        rng = np.random.default_rng((seed, 3))
        broadcasts.append(transfer(BROADCAST_SYMBOLS * SYMBOL_BYTES, iid(rng, 0.1), rng, names))
    everything += [*hard, *broadcasts]
    figures["completion"] = Figure(float(np.mean([o.completed for o in hard])), ">=1.0")
    figures["multicast_per_symbol"] = _per_symbol(broadcasts)
    figures["real_bytes_equal"] = Figure(float(np.mean([o.is_equal for o in everything])), ">=1.0")
    return Result("link", figures, _peers(), NOTES, quick=quick)


def efficiency(outcomes: Sequence[Outcome], limit: str) -> Figure:
    """Useful bytes over the bytes of all frames."""
    sent = np.array([outcome.bytes_sent for outcome in outcomes], np.float64)
    size, mean, half = outcomes[0].size, sent.mean(), 1.96 * sent.std(ddof=1) / len(sent) ** 0.5
    return Figure(float(size / mean), limit, (size / (mean + half), size / (mean - half)))


def _per_symbol(broadcasts: Sequence[Outcome]) -> Figure:
    """Symbols on the air for each source symbol."""
    found = [outcome.symbols / BROADCAST_SYMBOLS for outcome in broadcasts]
    mean, half = float(np.mean(found)), 1.96 * float(np.std(found, ddof=1)) / len(found) ** 0.5
    return Figure(mean, "<=1.2", (mean - half, mean + half))


def _peers() -> dict[str, float]:
    """Efficiency and share of completed transfers of each peer in each cell."""
    found = {}
    for name, peer in PEERS.items():
        for size, row in LIMITS.items():
            for loss in row:
                cell = f"{name}_{size // 1000}kb_loss{round(100 * loss)}"
                expected = peer(size, loss)
                found[cell] = size / expected.air_bytes
                found[f"{cell}_completed"] = expected.completed
    return found
