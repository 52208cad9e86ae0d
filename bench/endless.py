"""Learning that does not end: voices come and go, and what is learned of those that left stays.

    python -m bench.endless ROW SEED EXTENT

runs one part. A round here is a global update, or a deadline at which a quiet fleet had no news.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.jobs import Finished, Job, finish
from bench.keys import keyed
from bench.keyword import clips_of
from bench.loopback import LoopbackHub, LoopbackTransport
from bench.result import Figure, Result, mean_figure
from bench.simulated_fleet import DEADLINE_S, Board, Clock, accuracy, make_host, make_trainer
from edge.onnx.session import LoadedModel, load_model
from experiments.data import Clips
from host.config import RunConfig, plan_of
from models.zoo import package_path
from ternmesh.codec.scale import to_float
from ternmesh.federated.events import HostEvent
from ternmesh.federated.state import HostSettings
from ternmesh.plan import Plan
from ternmesh.security.membership import HOST
from transports.driver import Driver

KNOWN, UNSEEN = ("george", "jackson", "lucas"), ("theo", "nicolas", "yweweler")
SEEDS, SEEDS_QUICK = 4, 1
FULL, QUICK = "full", "quick"
ROUNDS = {FULL: 140, QUICK: 14}
LEFT, ARRIVED = (40, 80, 120), (20, 60, 100)  # of 140 rounds
STEPS, RATE, DROP = 4, 0.005, 0.8
NEWS_ROUNDS = 20
UP_BYTES, DOWN_BYTES = 670, 1200
JOINT, NO_REMEDY, ENDLESS = "joint", "no_remedy", "endless"
NOTES = (
    "the shipped model was trained on george, jackson and lucas; theo, nicolas and yweweler are "
    "new to it. Each seed draws an order of the six: three begin, one comes at rounds 20, 60 and "
    "100, and the first three leave at rounds 40, 80 and 120",
    "accuracy: of the host's global adapter at round 140, on the 300 dev clips of all six voices; "
    "`left`: on those of the voices that left and that the model did not know before",
    "joint: a run of 140 rounds with all six boards, the same steps a round and the same codec; "
    "its learning rate falls by 80 % over the run. no_remedy: voices come and go, each board "
    "trains in each round at the full rate. endless: news, silence and the mean (SPEC 6.7)",
    "quiet_bytes_up: what a board sends in a round in which it is silent: whole MQTT payloads with "
    "headers, seals and length prefixes; security is on. In `quiet_hour_*` nothing at all is new: "
    "bytes of a board in an hour of announces each 30 s, hellos, keys and answers among them",
    "time and the bearer are simulated; settings were chosen on 80 of the 400 training clips "
    "of each voice, held out for that (seeds 0 and 1)",
)


@dataclass(frozen=True, slots=True)
class Stay:
    """The rounds in which a voice's board is there."""

    voice: str
    first: int = 0
    end: int = sys.maxsize


def stays(row: str, seed: int, extent: str) -> list[Stay]:
    """Who is there when; in the joint run all are, all the time."""
    order = [str(v) for v in np.random.default_rng((77, seed)).permutation(KNOWN + UNSEEN)]
    if row == JOINT:
        return [Stay(voice) for voice in order]
    share = ROUNDS[extent] / ROUNDS[FULL]
    begin = [Stay(v, 0, round(share * end)) for v, end in zip(order, LEFT, strict=False)]
    return begin + [Stay(v, round(share * r)) for v, r in zip(order[3:], ARRIVED, strict=True)]


def plan_for(row: str, extent: str, dimension: int) -> Plan:
    """The plan of a row; `no_remedy` is a run of which no round is the last in time."""
    run = RunConfig(
        rounds=ROUNDS[extent],
        local_steps=STEPS,
        learning_rate=RATE,
        min_peers=3,
        up_bytes=UP_BYTES,
        down_bytes=DOWN_BYTES,
    )
    if row == JOINT:
        run = replace(run, learning_rate_drop=DROP)
    if row == ENDLESS:
        learn = max(2, NEWS_ROUNDS * ROUNDS[extent] // ROUNDS[FULL])
        run = replace(run, rounds=0, learning_rate_drop=DROP, news_rounds=learn)
    return plan_of(run, dimension)


class Fleet:
    """A host, and boards that come and go."""

    def __init__(self, loaded: LoadedModel, row: str, seed: int, extent: str) -> None:
        self.loaded, self.seed = loaded, seed
        self.stays = stays(row, seed, extent)
        self.rounds, self.round = ROUNDS[extent], 0
        self.clock, self.hub = Clock(), LoopbackHub()
        plan = plan_for(row, extent, loaded.package.dimension)
        names = [stay.voice for stay in self.stays]
        self.security = keyed(names, loaded.package.model_hash(), seed)
        settings = HostSettings(min_peers=3, deadline_s=DEADLINE_S)
        self.host = make_host(loaded, plan, seed, settings, self.security(HOST))
        self.driver: Driver[HostEvent] = Driver(self.host, self.hub.host(), self.clock)
        self.boards: dict[str, Board] = {}
        self.silent_bytes: list[int] = []  # of a board in a round in which it was silent
        self._marked: dict[str, int] = {}
        self.host.start(0.0)
        self.driver.transport.open()

    def run(self) -> None:
        """Until the last round: a closed one, or a deadline without news."""
        seen = self.host.version, self.host.deadline
        self._come_and_go()
        while self.round < self.rounds:
            self.turn()
            now = self.host.version, self.host.deadline
            if now != seen and self.host.version + self.host.deadline > 0:
                is_over = now[0] > seen[0] or (seen[1] > 0 and self._is_quiet())
                seen = now
                if is_over:
                    self.round += 1
                    self._come_and_go()

    def turn(self) -> None:
        """Serve everybody; if nobody has anything to do, go to the host's next timeout."""
        moved = self.driver.poll(0.0, lambda _: None, lambda: None)
        for name, board in self.boards.items():
            version, was_silent = board.member.version, board.member.silent
            moved |= board.poll()
            if board.member.version > version:
                total = board.driver.traffic[HOST].bytes_out
                if was_silent:
                    self.silent_bytes.append(total - self._marked[name])
                self._marked[name] = total
        if not moved:
            self.clock.now = self.host.next_timeout() or self.clock.now

    def _is_quiet(self) -> bool:
        return all(board.member.silent for board in self.boards.values())

    def _come_and_go(self) -> None:
        for stay in self.stays:
            is_there = stay.first <= self.round < stay.end
            if is_there and stay.voice not in self.boards:
                self.boards[stay.voice] = self._add(stay.voice)
            elif not is_there:
                self.boards.pop(stay.voice, None)

    def _add(self, voice: str) -> Board:
        clips = clips_of("train", voice)
        trainer = make_trainer(self.loaded, clips)
        link = LoopbackTransport(self.hub, voice)
        rest = len(clips), self.seed, self.clock, self.security(voice)
        board = Board(link, voice, self.loaded, trainer, *rest)
        board.driver.transport.open()
        board.member.start(self.clock.now)
        self._marked[voice] = 0
        return board

    def quiet_hour(self) -> tuple[float, float]:
        """Bytes (up, down) of a board in an hour in which nothing is new."""
        hosts, ups = self.driver.traffic, [b.driver.traffic[HOST] for b in self.boards.values()]
        while not self._is_quiet():
            self.turn()
        names = [*self.boards, "all"]
        before = sum(t.bytes_out for t in ups), sum(hosts[n].bytes_out for n in names)
        begun = self.clock.now
        while self.clock.now < begun + 3600:
            self.turn()
        up = sum(t.bytes_out for t in ups) - before[0]
        down = sum(hosts[n].bytes_out for n in names) - before[1]
        return up / len(ups), down / len(ups)


def part(row: str, seed: int, extent: str) -> dict[str, Any]:
    """One row and seed: accuracies, and bytes where boards are silent."""
    loaded = load_model(package_path("keyword"))
    fleet = Fleet(loaded, row, seed, extent)
    fleet.run()
    vector = loaded.initial + to_float(fleet.host.model_q24)
    dev: Mapping[str, Clips] = {s.voice: clips_of("dev", s.voice) for s in fleet.stays}
    gone = [s.voice for s in fleet.stays[:3] if s.voice in UNSEEN]
    value: dict[str, Any] = {
        "accuracy": accuracy(loaded, vector, [*dev.values()]),
        "left": accuracy(loaded, vector, [dev[v] for v in gone]) if gone else None,
        "updates": fleet.host.version,
    }
    if row == ENDLESS:
        value |= {"silent_bytes": fleet.silent_bytes, "quiet_hour": fleet.quiet_hour()}
    return value


def measure(*, quick: bool, resume: Path | None = None) -> Result:
    """All rows over all seeds; `quick` has a tenth of the rounds: its points mean nothing."""
    extent, seeds = (QUICK, SEEDS_QUICK) if quick else (FULL, SEEDS)
    rows = (JOINT, NO_REMEDY, ENDLESS)
    jobs = [
        Job(f"{extent}/{row}/{seed}", ("bench.endless", row, str(seed), extent))
        for seed in range(seeds)
        for row in rows
    ]
    finished = Finished(resume)
    finish(finished, jobs, lambda value: f"{value['accuracy']:.1%}")
    values = {r: [finished.values[f"{extent}/{r}/{s}"] for s in range(seeds)] for r in rows}
    joint = _column(values[JOINT], "accuracy")

    def below(row: str) -> list[float]:
        return [
            100 * (j - own) for j, own in zip(joint, _column(values[row], "accuracy"), strict=True)
        ]

    quiet = [b for v in values[ENDLESS] for b in v["silent_bytes"]]
    up, down = np.mean([v["quiet_hour"] for v in values[ENDLESS]], axis=0)
    figures = {
        "points_below_joint": mean_figure(below(ENDLESS), "<=3"),
        "points_below_no_remedy": mean_figure(below(NO_REMEDY)),
        "quiet_bytes_up": Figure(float(np.mean(quiet)), "<=64"),
        "quiet_hour_bytes_up": Figure(float(up)),
        "quiet_hour_bytes_down": Figure(float(down)),
    }
    for row in rows:
        figures[f"accuracy_{row}"] = mean_figure(_column(values[row], "accuracy"))
        left = [value["left"] for value in values[row] if value["left"] is not None]
        figures |= {f"left_{row}": mean_figure(left)} if left else {}
    figures["updates_endless"] = mean_figure(_column(values[ENDLESS], "updates"))
    return Result("endless", figures, {}, NOTES, quick=quick)


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [float(row[name]) for row in rows]


def main() -> None:
    """Run the command in the module's docstring."""
    print(json.dumps(part(sys.argv[1], int(sys.argv[2]), sys.argv[3])))


if __name__ == "__main__":
    main()
