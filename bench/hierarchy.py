"""Aggregators: what nine boards behind one save on its uplink, and what they lose by it.

Each fleet is a process of its own with the real hosts, boards and packets, in memory:

    python -m bench.hierarchy star|aggregator|LIE SEED ROUNDS

LIE is how an aggregator lies, in each round (`LIES`).
"""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from bench.jobs import Finished, Job, finish
from bench.keyword import RUN
from bench.loopback import LoopbackHub, LoopbackTransport
from bench.result import Figure, Result, mean_figure
from bench.robust import boards_of
from bench.simulated_fleet import DEADLINE_S, Board, Clock, Judge, make_host, make_trainer
from edge.onnx.session import load_model
from host.config import RunConfig, plan_of
from host.upstream import Upstream, settings_below
from models.zoo import package_path
from ternmesh.codec.scale import to_float
from ternmesh.federated import audit
from ternmesh.federated.audit import FIRST, is_drawn
from ternmesh.federated.events import AddedUp, HostEvent, LiarCaught
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.joining import NodeSettings
from ternmesh.federated.node import NodeProtocol
from ternmesh.federated.state import HostSettings, new_host_state, new_node_state
from ternmesh.timers import earliest
from ternmesh.wire import fragments
from ternmesh.wire.frame import FRAME_OVERHEAD
from ternmesh_service.keyring import NoKeyring
from transports.driver import Driver

MEMBERS, REGIONS, REGIONS_QUICK = 1000, 100, 5
BOARDS, SEEDS, SEEDS_QUICK = 9, 5, 1
ROUNDS, ROUNDS_QUICK, ROUNDS_BYTES = 20, 5, 50
SHED, ADDRESS = "shed", 1
LENGTH = 2  # bytes of a frame's length in a message
Lie = Callable[[AddedUp, HostProtocol], AddedUp]
LIES: dict[str, Lie] = {
    "scaled": lambda made, _: replace(made, vector=-3 * made.vector),
    "dropped": lambda made, host: replace(made, vector=_without_first(host)),
    "invented": lambda made, _: replace(made, members=9 * made.members, samples=9 * made.samples),
}
NOTES = (
    f"keyword spotter, {BOARDS} boards of three voices behind one aggregator, or below the host "
    "itself; judged on clips that no board reports on; in memory, without loss and keys",
    "uplink: bytes of MQTT payloads to the host a round; audits: those of the rounds that the hash "
    f"of the next global update draws in a run of {ROUNDS_BYTES} rounds, at the bytes of a shown "
    "round here",
    "places: 60 boards in four places, seed 0 (`bench.places`); an aggregator dies at half time",
    f"100,000 boards: {REGIONS} regions of {MEMBERS:,}, run in turn: a region is a star of so many "
    "(its own step to the host above is not in it), and the host above gets an update of each "
    "(`bench.fleet`); bytes down: the global update of the latter, and the rest of the former",
    "liars lie in each round; with the only aggregator muted nothing is learned any more, so the "
    "points that a liar costs are those below the untrained model",
)


class Region:
    """An aggregator below the host `top`, with a hub of its own."""

    def __init__(
        self, top: HostProtocol, above: LoopbackHub, clock: Clock, model: bytes, arm: str
    ) -> None:
        self.lie: Lie = LIES.get(arm, lambda made, _: made)
        self.clock = clock
        self.above = LoopbackTransport(above, SHED)
        self.node = NodeProtocol(
            NodeSettings(SHED, model, SHED.encode().ljust(8)),
            new_node_state(top.plan.dimension),
            samples=1,
            rng=np.random.default_rng(0),
        )
        self.shown: list[int] = []  # bytes of each audit
        store: Any = SimpleNamespace(record=lambda _event: None, commit=lambda: None)
        self.upstream = Upstream(
            node=self.node,
            store=store,
            keyring=NoKeyring(),
            members=None,
            transport=cast(Any, self.above),
            clock=clock,
        )
        self._show = self.upstream.show
        self.upstream.show = self._count_shown  # type: ignore[method-assign]
        self.host = HostProtocol(
            plan=top.plan,
            settings=settings_below(HostSettings(BOARDS, DEADLINE_S)),
            model_hash=model,
            run=top.run,
            state=new_host_state(top.plan.dimension),
        )
        self.hub = LoopbackHub()
        self.driver: Driver[HostEvent] = Driver(self.host, self.hub.host(), clock)

    def start(self, serve: Callable[[], bool]) -> None:
        self.above.open()
        self.node.start(self.clock.now)
        while self.node.plan is None:
            self.upstream.poll()
            serve()
        self.host.start(self.clock.now)
        self.driver.transport.open()

    def poll(self) -> bool:
        moved = self.driver.poll(0.0, self._note, lambda: None)
        before = self.host.version, self.node.pending is None
        self.upstream.turn(self.host, self.clock.now)
        return moved or before != (self.host.version, self.node.pending is None)

    def _count_shown(self, data: bytes) -> None:
        parts = fragments.split(data, self.host.plan.frame_mtu)
        self.shown.append(sum(len(part) + FRAME_OVERHEAD + LENGTH for part in parts))
        self._show(data)

    def _note(self, event: HostEvent) -> None:
        if isinstance(event, AddedUp):
            self.upstream.take(self.lie(event, self.host))


def _without_first(host: HostProtocol) -> Any:
    """What comes of the updates of a region without those of one board."""
    return audit.add_up(host.round.count().updates[1:], host._model_hash, host.version, host.plan)


def run(arm: str, seed: int, rounds: int) -> dict[str, Any]:
    """Train one fleet."""
    loaded = load_model(package_path("keyword"))
    plan = plan_of(RunConfig(**{**RUN, "rounds": rounds}), loaded.package.dimension)
    split, claimed = boards_of(BOARDS, seed)
    clock, hub, judge = Clock(), LoopbackHub(), Judge(loaded)
    own = HostSettings(BOARDS if arm == "star" else 1, 4 * DEADLINE_S)
    top = make_host(loaded, plan, seed, own)
    driver: Driver[HostEvent] = Driver(top, hub.host(), clock)
    caught: list[int] = []  # rounds

    def note(event: HostEvent) -> None:
        if isinstance(event, LiarCaught):
            caught.append(top.version)

    def serve() -> bool:
        return driver.poll(0.0, note, lambda: None)

    top.start(clock.now)
    driver.transport.open()
    region = None
    if arm != "star":
        region = Region(top, hub, clock, loaded.package.model_hash(), arm)
        region.start(serve)
    fleet = []
    for index, (clips, held_out) in enumerate(split):
        link = LoopbackTransport(hub if region is None else region.hub, f"board-{index}")
        trainer = make_trainer(loaded, clips)
        board = Board(link, f"board-{index}", loaded, trainer, len(clips), seed, clock)
        board.member.settings = replace(board.member.settings, has_aggregator=region is not None)
        board.judge, board.held_out = judge, held_out
        fleet.append(board)
        link.open()
        board.member.start(clock.now)
    while top.version < rounds:
        moved = serve()
        moved |= region is not None and region.poll()
        for board in fleet:
            moved |= board.poll()
        if not moved:
            due = [] if region is None else [region.host.next_timeout(), region.node.next_timeout()]
            clock.now = earliest(top.next_timeout(), *due) or clock.now
    while serve() or (region is not None and region.poll()):
        pass  # what is on its way counts, too
    shown = [] if region is None else region.shown
    total = sum(one.bytes_in for one in driver.traffic.values())
    return {
        "accuracy": 100 * judge(to_float(top.model_q24), claimed)[1],
        "untrained": 100 * judge(np.zeros(plan.dimension, np.float32), claimed)[1],
        "bytes_up": (total - sum(shown)) / rounds,
        "bytes_shown": float(np.mean(shown)) if shown else 0.0,
        "caught": caught,
    }


def measure(*, quick: bool, resume: Path | None = None) -> Result:
    """Accuracy and uplink of nine boards behind an aggregator, against the same in a star."""
    seeds = range(SEEDS_QUICK if quick else SEEDS)
    rounds = ROUNDS_QUICK if quick else ROUNDS
    finished = Finished(resume)
    jobs = [
        Job(f"{arm} {seed}", ("bench.hierarchy", arm, str(seed), str(rounds)))
        for seed in seeds
        for arm in ("star", "aggregator")
    ]
    finish(finished, jobs, lambda value: f"{value['accuracy']:.1f} %")
    star, below = ([finished.values[f"{a} {s}"] for s in seeds] for a in ("star", "aggregator"))
    pairs = list(zip(star, below, strict=True))
    audits = [
        sum(is_drawn(n, ADDRESS, bytes((seed, n))) for n in range(ROUNDS_BYTES)) / ROUNDS_BYTES
        for seed in range(200)
    ]
    share = float(np.mean(audits))
    jobs = [Job(lie, ("bench.hierarchy", lie, "0", str(rounds))) for lie in LIES]
    finish(finished, jobs, lambda value: f"caught after {value['caught']} rounds")
    liars = [finished.values[lie] for lie in LIES]
    untrained = star[0]["untrained"]
    arms = ("star", "drawn", "latency")
    jobs = [Job(f"places {arm}", ("bench.places", arm, "0")) for arm in arms]
    finish(finished, jobs, lambda value: f"p95 of a round {value['p95_s']:.1f} s")
    one, drawn, near = (finished.values[f"places {arm}"] for arm in arms)
    figures = {
        "points_lost": mean_figure([s["accuracy"] - b["accuracy"] for s, b in pairs], "<=1"),
        "uplink_ratio": mean_figure([b["bytes_up"] / s["bytes_up"] for s, b in pairs], "<=0.2"),
        "uplink_ratio_audited": mean_figure(
            [(b["bytes_up"] + share * b["bytes_shown"]) / s["bytes_up"] for s, b in pairs], "<=0.3"
        ),
        "bytes_up": mean_figure([b["bytes_up"] for b in below]),
        "bytes_of_an_audit": mean_figure([b["bytes_shown"] for b in below]),
        "liars_caught": Figure(sum(bool(one["caught"]) for one in liars), f">={len(LIES)}"),
        "rounds_to_exclusion": Figure(
            max(max(one["caught"], default=rounds) for one in liars), "<=10"
        ),
        "liar_points_lost": Figure(max(untrained - one["accuracy"] for one in liars), "<=2"),
        **_scale(finished, REGIONS_QUICK if quick else REGIONS),
        "places_p95_s": Figure(near["p95_s"]),
        "places_p95_ratio": Figure(near["p95_s"] / one["p95_s"]),
        "places_p95_ratio_by_lot": Figure(drawn["p95_s"] / one["p95_s"]),
        "places_p95_ratio_after_death": Figure(near["p95_after_s"] / one["p95_after_s"]),
        "places_back_after_death_s": Figure(near["all_back_s"]),
        "honest_caught": Figure(sum(len(b["caught"]) for b in below), "<=0"),
    }
    notes = (*NOTES, f"the first {FIRST} rounds of a run are audited, {share:.0%} of 50")
    return Result("hierarchy", figures, {}, notes, quick=quick)


def _scale(finished: Finished, regions: int) -> dict[str, Figure]:
    """A region of a fleet of so many, and the host above all of them."""
    scale = {"region": (MEMBERS,), "top": (regions, MEMBERS)}
    jobs = [
        Job(key, ("bench.fleet", str(size), "3", *map(str, more)))
        for key, (size, *more) in scale.items()
    ]
    finish(finished, jobs, lambda value: f"{value['cpu_s']:.2f} s CPU a round")
    region, top = (finished.values[key] for key in scale)
    down = top["bytes_down"] - top["bytes_down_own"] + region["bytes_down_own"]
    return {
        "cpu_ratio_100000": Figure(1 + top["cpu_s"] / regions / region["cpu_s"], "<=1.3"),
        "top_round_100000_s": Figure(top["round_s"], "<=1"),
        "top_mb_100000": Figure(top["peak_mb"], "<=150"),
        "bytes_down_1000": Figure(region["bytes_down"]),
        "bytes_down_100000": Figure(down),
    }


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
