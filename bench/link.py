"""The link's claims: useful bytes over all bytes on the air, completion, broadcast; peer models.

Every frame of either direction is lost with the same chance, independently, or in bursts. All
frames count whole: seals, offers, statuses, receipts. Large objects are simulated by the ranks of
their symbols; 30 seeds use real bytes.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from bench.link_air import Outcome, Ranks, transfer
from bench.link_peers import PEERS
from bench.link_plot import draw
from bench.result import RESULTS, Figure, Result
from transports.faults import Bursts

LIMITS = {
    300_000: {0.0: 0.92, 0.1: 0.83, 0.2: 0.74, 0.3: 0.65, 0.5: 0.46},
    10_000: {0.0: 0.92, 0.1: 0.81, 0.2: 0.71, 0.3: 0.62},
    1_000: {0.0: 0.88, 0.1: 0.76},
}
SEEDS = {300_000: 200, 10_000: 300, 1_000: 1_000}
PEER_SEEDS = {300_000: 10, 10_000: 100, 1_000: 300}
PLOT_LOSSES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
HEAVY_LOSS, BURSTS = 0.6, Bursts(0.05, 0.25, 0.02, 0.9)
COMPLETION_SEEDS, REAL_SEEDS = 1_000, 30
RECEIVERS, BROADCAST_SYMBOLS, SYMBOL_BYTES = 10, 200, 238
QUICK = 20  # times fewer seeds
NOTES = (
    "a simulated channel: one sender at a time, iid losses unless bursts are named, SF7/125 kHz "
    "frames of at most 255 bytes; no collisions, no turnaround, no duty cycle",
    "efficiency: useful bytes of all seeds over the bytes of all frames in both directions; a "
    "transfer ends when its sender holds the receipt",
    "with keys: both ends have met before; meeting for the first time takes 271 bytes on the air",
    "300 kB and completion: ranks of the code in place of bytes (a random symbol fails with "
    "1/256 per missing rank); 30 seeds with real bytes at 20 % loss compare the object",
    "completion: 1,000 seeds each of 1, 10 and 300 kB at 60 % loss and in bursts (Gilbert-"
    "Elliott .05/.25, loss .02/.9)",
    "peers are models written from their specifications, not runs of their code (bench/"
    "link_peers.py names every constant); a peer's efficiency counts completed transfers only",
    "unicast: erasure coding cannot beat selective repeat's capacity of 1 - p; what it buys is "
    "feedback of 20 bytes a burst, resumption, several bearers at once, and broadcast",
)


def measure(*, quick: bool) -> Result:
    """All cells; `quick` takes a twentieth of the seeds."""
    part = QUICK if quick else 1
    figures: dict[str, Figure] = {}
    for size, row in LIMITS.items():
        for loss, limit in row.items():
            for keyed in (False, True):
                outcomes = ours(size, loss, max(2, SEEDS[size] // part), keyed=keyed)
                keys = "_keys" if keyed else ""
                name = f"efficiency_{size // 1000}kb_loss{round(100 * loss)}{keys}"
                figures[name] = _efficiency(size, outcomes, f">={limit}")
                print(f"{name}: {figures[name].value:.4f}", flush=True)
    seeds = max(2, COMPLETION_SEEDS // part)
    figures |= {
        "completion": Figure(completion(seeds), ">=1.0"),
        **_broadcast(SEEDS[10_000] // part),
    }
    figures["real_bytes_equal"] = Figure(real_bytes(max(2, REAL_SEEDS // part)), ">=1.0")
    peers, curves = _peers(part)
    if not quick:
        path = RESULTS / "link.png"
        draw(path, curves)
        print(f"plot: {path.name}", flush=True)
    return Result("link", figures, peers, NOTES, {"curves": curves}, quick)


def ours(size: int, loss: float, seeds: int, *, keyed: bool = False) -> list[Outcome]:
    """Transfers of `size` bytes to one receiver, one for each seed."""
    found = []
    for seed in range(seeds):
        rng = np.random.default_rng((seed, size))
        lost = partial(_lost, rng, loss)
        keys = seed if keyed else None
        found.append(transfer(bytes(size), ["node"], lost, rng, Ranks(rng), keyed=keys))
    return found


def completion(seeds: int) -> float:
    """The share of transfers that end with a receipt."""
    done = []
    for size in LIMITS:
        for seed in range(seeds):
            rng = np.random.default_rng((seed, size, 1))
            lost = partial(_lost, rng, HEAVY_LOSS)
            done.append(transfer(bytes(size), ["node"], lost, rng, Ranks(rng)).completed)
            air = _Bursts(rng)
            done.append(transfer(bytes(size), ["node"], air, rng, Ranks(rng)).completed)
        print(f"completion, {size} bytes: {np.mean(done):.4f} so far", flush=True)
    return float(np.mean(done))


def real_bytes(seeds: int) -> float:
    """The share of 300 kB objects that arrive equal, once, through the real code."""
    equal = []
    for seed in range(seeds):
        rng = np.random.default_rng((seed, 2))
        payload = rng.bytes(300_000)
        outcome = transfer(payload, ["node"], partial(_lost, rng, 0.2), rng)
        equal.append(outcome.completed and outcome.arrived == {"node": payload})
    return float(np.mean(equal))


def _broadcast(seeds: int) -> dict[str, Figure]:
    names = [f"node-{index}" for index in range(RECEIVERS)]
    found = []
    for seed in range(max(2, seeds)):
        rng = np.random.default_rng((seed, 3))
        lost, payload = partial(_lost, rng, 0.1), bytes(BROADCAST_SYMBOLS * SYMBOL_BYTES)
        found.append(transfer(payload, names, lost, rng, Ranks(rng)).symbols / BROADCAST_SYMBOLS)
    half = 1.96 * float(np.std(found, ddof=1)) / len(found) ** 0.5
    mean = float(np.mean(found))
    return {"multicast_per_symbol": Figure(mean, "<=1.2", (mean - half, mean + half))}


def _efficiency(size: int, outcomes: Sequence[Outcome], limit: str) -> Figure:
    sent = np.array([outcome.bytes_sent for outcome in outcomes], np.float64)
    mean, half = sent.mean(), 1.96 * sent.std(ddof=1) / len(sent) ** 0.5
    return Figure(float(size / mean), limit, (size / (mean + half), size / (mean - half)))


Curves = dict[str, dict[str, list[tuple[float, float]]]]  # size -> name -> (loss, efficiency)


def _peers(part: int) -> tuple[dict[str, float], Curves]:
    """Efficiencies by name, and those of everybody over the loss for the plot."""
    found: dict[str, float] = {}
    curves: Curves = {}
    for size, seeds in PEER_SEEDS.items():
        rows = curves.setdefault(f"{size // 1000} kB", {"ternmesh": []})
        for loss in PLOT_LOSSES:
            outcomes = ours(size, loss, max(2, seeds // part))
            sent = float(np.mean([outcome.bytes_sent for outcome in outcomes]))
            rows["ternmesh"].append((loss, size / sent))
        for name, peer in PEERS.items():
            rows[name] = []
            for loss in PLOT_LOSSES:
                done = [
                    peer(size, loss, np.random.default_rng((seed, size)))
                    for seed in range(max(2, seeds // part))
                ]
                good = [one.air_bytes for one in done if one.completed]
                share = len(good) / len(done)
                efficiency = size / float(np.mean(good)) if good else 0.0
                rows[name].append((loss, efficiency if share >= 0.5 else 0.0))
                cell = f"{name}_{size // 1000}kb_loss{round(100 * loss)}"
                if loss in LIMITS[size]:
                    found |= {cell: efficiency, f"{cell}_completed": share}
    return found, curves


def _lost(rng: np.random.Generator, loss: float, _sender: str, _receiver: str) -> bool:
    return bool(rng.random() < loss)


class _Bursts:
    """Each direction has its own good and bad times."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._bad: dict[tuple[str, str], bool] = {}

    def __call__(self, sender: str, receiver: str) -> bool:
        """Whether this frame is lost; then the state moves."""
        bad = self._bad.get((sender, receiver), False)
        lost = self._rng.random() < (BURSTS.loss_bad if bad else BURSTS.loss_good)
        move = self._rng.random() < (BURSTS.bad_to_good if bad else BURSTS.good_to_bad)
        self._bad[sender, receiver] = bad ^ bool(move)
        return bool(lost)
