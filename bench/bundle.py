"""What a gateway that sums updates saves and costs: the demo's boards behind one, or forwarded.

Boards, gateway and host are the real ones, in one process over in-memory hubs; nothing is lost.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench.demo import clips_of
from bench.result import Figure, Result, mean_figure
from bench.simulated_fleet import Board, Clips, Clock, accuracy, gradient_step, run_until_finished
from edge.gateway.aggregation import GatewayAggregation
from edge.gateway.service import Gateway
from edge.onnx.session import LoadedModel, load_model
from edge.trainer import AdamSettings, Trainer
from host.config import RunConfig, plan_of
from models.zoo import package_path
from ternmesh.codec.scale import to_float
from ternmesh.federated.events import HostEvent
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.state import HostSettings, new_host_state
from ternmesh.plan import Plan
from ternmesh_cli.demo.fleet import BOARDS, RUN
from ternmesh_store.gateway_store import GatewayStore
from ternmesh_store.state_file import StateFile
from transports.driver import Driver
from transports.loopback import LoopbackHub, LoopbackTransport

SEEDS, SEEDS_QUICK = 8, 2
SPLITS, SPLITS_QUICK = (1, 3), (1,)  # boards for the clips of each speaker
ROUNDS, ROUNDS_QUICK = 20, 1
WAIT_S = 60.0
NOTES = (
    f"accuracy on the 150 dev clips of three unseen speakers, a board each, then {SPLITS[-1]} "
    "boards each with a part of the clips; paired by seed, which changes the batches drawn",
    "uplink: all MQTT payloads from the gateway to the broker in a run, hellos included, over "
    "its rounds; MQTT and TCP headers not counted",
    "every board's update is whole before its round closes, over in-memory bearers; a slow "
    "board costs the others up to [aggregate] wait_s",
    f"quick: {ROUNDS_QUICK} round of the three boards only: accuracy and the share of hellos "
    "are not those of a run",
)
Row = dict[str, float]


def measure(*, quick: bool) -> Result:
    """Both ways over the same seeds, with three boards and with each speaker on three of them."""
    rounds, seeds = (ROUNDS_QUICK, SEEDS_QUICK) if quick else (ROUNDS, SEEDS)
    loaded = load_model(package_path("keyword"))
    dev = [clips_of("dev", speaker) for speaker in BOARDS]
    figures: dict[str, Figure] = {}
    details: dict[str, list[Row]] = {}
    for split in SPLITS_QUICK if quick else SPLITS:
        data = [part for speaker in BOARDS for part in _split(clips_of("train", speaker), split)]
        config = RunConfig(min_peers=len(data), rounds=rounds, **RUN)
        plan = plan_of(config, loaded.package.dimension)
        rows = details[f"{len(data)}_boards"] = []
        for seed in range(seeds):
            rows.append(compare(loaded, data, plan, seed, dev))
            print(f"{len(data)} boards, seed {seed}: {rows[-1]}", flush=True)
        figures |= summarise(rows, "" if split == 1 else f"_{len(data)}")
    return Result("bundle", figures, notes=NOTES, details=details, quick=quick)


def summarise(rows: Sequence[Row], suffix: str) -> dict[str, Figure]:
    """The figures over the seeds."""
    lost = [100 * (row["accuracy_plain"] - row["accuracy_bundled"]) for row in rows]
    ratio = [row["uplink_bytes_bundled"] / row["uplink_bytes_plain"] for row in rows]
    down = [row["downlink_bytes_bundled"] / row["downlink_bytes_plain"] for row in rows]
    figures = {
        f"points_lost_bundle{suffix}": mean_figure(lost, "<=1"),
        f"uplink_ratio{suffix}": mean_figure(ratio, "<=0.2" if suffix else "<=0.5"),
    }
    for name in ("accuracy", "uplink_bytes"):
        for way in ("plain", "bundled"):
            values = [row[f"{name}_{way}"] for row in rows]
            figures[f"{name}_{way}{suffix}"] = mean_figure(values)
    return {**figures, f"downlink_ratio{suffix}": mean_figure(down)}


def compare(
    loaded: LoadedModel, data: Sequence[Clips], plan: Plan, seed: int, dev: list[Clips]
) -> Row:
    """Accuracy at the end, and bytes of a round on the gateway's uplink and downlink, both ways."""
    row: Row = {}
    for way in ("plain", "bundled"):
        vector, up, down = _run(loaded, data, plan, seed, way == "bundled")
        row[f"accuracy_{way}"] = accuracy(loaded, vector, dev)
        row[f"uplink_bytes_{way}"] = up
        row[f"downlink_bytes_{way}"] = down
    return row


def _split(whole: Clips, parts: int) -> list[Clips]:
    """Every `parts`-th clip, from each start."""
    return [
        Clips({name: array[start::parts] for name, array in whole.arrays.items()})
        for start in range(parts)
    ]


class CountingTransport(LoopbackTransport):
    """A gateway's end on the network, which counts the bytes that it sends."""

    sent = 0

    def send(self, peer: str, frames: Sequence[bytes]) -> int:
        """Deliver, and count."""
        count = super().send(peer, frames)
        self.sent += count
        return count


def _run(
    loaded: LoadedModel, data: Sequence[Clips], plan: Plan, seed: int, packages: bool
) -> tuple[np.ndarray, float, float]:
    """The adapter vector at the end, and bytes up and down in a round."""
    clock, air, network = Clock(), LoopbackHub(), LoopbackHub()
    names = [f"board-{index}" for index in range(len(data))]
    model_hash, run = loaded.package.model_hash(), (seed + 1).to_bytes(8, "little")
    settings = HostSettings(min_peers=len(data), deadline_s=600.0, partial_aggregates=packages)
    host = HostProtocol(plan, settings, model_hash, run, new_host_state(plan.dimension))
    driver: Driver[HostEvent] = Driver(host, network.host(), clock)
    uplinks = {name: CountingTransport(network, name) for name in names}
    boards = []
    for name, clips in zip(names, data, strict=True):
        step = gradient_step(loaded, name)
        trainer = Trainer(step, clips, loaded.package.batch, AdamSettings())
        boards.append(Board(air.node(name), name, loaded, trainer, len(clips), seed, clock))
    with tempfile.TemporaryDirectory() as folder:
        state, rng = StateFile(Path(folder)), np.random.default_rng(seed)
        state.open()
        bundling = (
            GatewayAggregation(loaded.package, names, WAIT_S, GatewayStore(state), clock, rng)
            if packages
            else None
        )
        gateway = Gateway(air.host(), uplinks, bundling)
        driver.transport.open()
        gateway.open()
        host.start(clock.now)
        for board in boards:
            board.driver.transport.open()
            board.member.start(clock.now)
        run_until_finished(driver, boards, clock, plan.rounds, lambda: gateway.turn(0.0))
        gateway.close()
        state.close()
    up = sum(end.sent for end in uplinks.values()) / plan.rounds
    down = sum(traffic.bytes_out for traffic in driver.traffic.values()) / plan.rounds
    return loaded.initial + to_float(host.model_q24), up, down
