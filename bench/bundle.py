"""What a bundling gateway saves and costs: the demo's boards behind one, against forwarding.

Boards, gateway and host are the real ones, in one process over in-memory hubs; nothing is lost.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.demo import _accuracy, _clips
from bench.fleet import Board, Clips, Clock, gradient_step, run_until_finished
from bench.result import Figure, Result, mean_figure
from edge import adam
from edge.bundler import Bundling
from edge.gateway import Gateway
from edge.session import LoadedBundle, load_bundle
from edge.trainer import Trainer
from host.config import RunConfig, plan_of
from models.zoo import bundle_path
from ternmesh.hypervector.scale import to_float
from ternmesh.plan import Plan
from ternmesh.swarm import records
from ternmesh.swarm.coordinator import Coordinator
from ternmesh.swarm.events import HostEvent
from ternmesh_cli.demo.fleet import BOARDS, RUN
from ternmesh_store.gateway_store import GatewayStore
from transports.driver import Driver
from transports.loopback import LoopbackHub, LoopbackTransport

SEEDS, SEEDS_QUICK = 8, 2
SPLITS = (1, 3)  # boards for each speaker's clips
WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Run:
    """Accuracy at the end; bytes of a round on the gateway's uplink, and of the host's answers."""

    accuracy: float
    bytes_up: float
    bytes_down: float


def measure(*, quick: bool) -> Result:
    """Both ways over the same seeds, with three boards and with each speaker on three of them."""
    loaded = load_bundle(bundle_path("keyword"))
    dev = [_clips("dev", speaker) for speaker in BOARDS]
    figures: dict[str, Figure] = {}
    details: dict[str, list[dict[str, float]]] = {}
    for split in SPLITS:
        data = [part for speaker in BOARDS for part in _split(_clips("train", speaker), split)]
        plan = plan_of(RunConfig(min_peers=len(data), **RUN), loaded.bundle.dimension)
        rows = []
        for seed in range(SEEDS_QUICK if quick else SEEDS):
            plain, bundled = (_run(loaded, data, plan, seed, dev, b) for b in (False, True))
            rows.append(_row(plain, bundled))
            print(f"{len(data)} boards, seed {seed}: {_shown(rows[-1])}", flush=True)
        details[f"{len(data)}_boards"] = rows
        figures |= _figures(rows, "" if split == 1 else f"_{len(data)}")
    notes = (
        f"accuracy on the 150 dev clips of three unseen speakers, a board each, then {SPLITS[-1]} "
        "boards each with a part of the clips; paired by seed, which changes the batches drawn",
        "uplink: all MQTT payloads from the gateway to the broker in a run, hellos included, over "
        "its rounds; MQTT and TCP headers not counted",
        "every board's packet is whole before its round closes, over in-memory bearers; a slow "
        "board costs the others up to [bundle] wait_s",
    )
    return Result("bundle", figures, notes=notes, details=details, quick=quick)


def _figures(rows: Sequence[dict[str, float]], suffix: str) -> dict[str, Figure]:
    def column(name: str) -> list[float]:
        return [row[name] for row in rows]

    lost = [100 * (row["accuracy_plain"] - row["accuracy_bundled"]) for row in rows]
    ratio = [row["up_bundled"] / row["up_plain"] for row in rows]
    return {
        f"points_lost_bundle{suffix}": mean_figure(lost, "<=1"),
        f"uplink_ratio{suffix}": mean_figure(ratio, "<=0.5" if not suffix else "<=0.2"),
        f"accuracy_plain{suffix}": mean_figure(column("accuracy_plain")),
        f"accuracy_bundled{suffix}": mean_figure(column("accuracy_bundled")),
        f"uplink_bytes_plain{suffix}": mean_figure(column("up_plain")),
        f"uplink_bytes_bundled{suffix}": mean_figure(column("up_bundled")),
        f"downlink_ratio{suffix}": mean_figure(
            [row["down_bundled"] / row["down_plain"] for row in rows]
        ),
    }


def _row(plain: Run, bundled: Run) -> dict[str, float]:
    return {
        "accuracy_plain": plain.accuracy,
        "accuracy_bundled": bundled.accuracy,
        "up_plain": plain.bytes_up,
        "up_bundled": bundled.bytes_up,
        "down_plain": plain.bytes_down,
        "down_bundled": bundled.bytes_down,
    }


def _shown(row: dict[str, float]) -> str:
    return (
        f"{row['accuracy_plain']:.1%} forwarded, {row['accuracy_bundled']:.1%} bundled; "
        f"{row['up_plain']:.0f} and {row['up_bundled']:.0f} bytes up a round"
    )


def _split(whole: Clips, parts: int) -> list[Clips]:
    """Every `parts`-th clip, from each start."""
    return [
        Clips({name: array[start::parts] for name, array in whole.arrays.items()})
        for start in range(parts)
    ]


class _Counting(LoopbackTransport):
    """A gateway's end on the network, which counts what it sends."""

    sent = 0

    def send(self, peer: str, frames: Sequence[bytes]) -> int:
        """Deliver, and count."""
        count = super().send(peer, frames)
        self.sent += count
        return count


def _run(
    loaded: LoadedBundle,
    data: Sequence[Clips],
    plan: Plan,
    seed: int,
    dev: list[Clips],
    bundles: bool,
) -> Run:
    clock, air, network = Clock(), LoopbackHub(), LoopbackHub()
    names = [f"board-{index}" for index in range(len(data))]
    model_hash, run = loaded.bundle.model_hash(), (seed + 1).to_bytes(8, "little")
    settings = records.Settings(min_peers=len(data), deadline_s=600.0, bundles=bundles)
    state = records.new_state(plan.dimension)
    host = Coordinator(plan, settings, model_hash, run, state)
    driver: Driver[HostEvent] = Driver(host, network.host(), clock)
    uplinks = {name: _Counting(network, name) for name in names}
    boards = [_board(loaded, air, *pair, seed, clock) for pair in zip(names, data, strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        store, rng = GatewayStore(Path(folder) / "bundle.db"), np.random.default_rng(seed)
        bundling = Bundling(loaded.bundle, names, WAIT_S, store, clock, rng) if bundles else None
        gateway = Gateway(air.host(), uplinks, bundling)
        driver.transport.open()
        gateway.open()
        host.start(clock.now)
        for board in boards:
            board.driver.transport.open()
            board.member.start(clock.now)
        run_until_finished(driver, boards, clock, plan.rounds, lambda: gateway.turn(0.0))
        gateway.close()
    vector = loaded.initial + to_float(host.fixed)
    up = sum(end.sent for end in uplinks.values()) / plan.rounds
    down = sum(traffic.bytes_out for traffic in driver.traffic.values()) / plan.rounds
    return Run(_accuracy(loaded, vector, dev), up, down)


def _board(
    loaded: LoadedBundle, air: LoopbackHub, name: str, mine: Clips, seed: int, clock: Clock
) -> Board:
    step = gradient_step(loaded, name)
    trainer = Trainer(step, mine, loaded.bundle.batch, adam.AdamSettings())
    return Board(air.node(name), name, loaded, trainer, len(mine), seed, clock)
