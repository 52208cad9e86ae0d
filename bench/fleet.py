"""How many boards one host serves: a round of 10 to 10,000 boards with keys, in one process.

What the host does for a round is timed, from the first frame of an update to the published global
update: open the seals, decode, check the signature, answer with a signed receipt, the default rule
with the memories of all boards. Flower averages float32 arrays of the same length beside it.
`python -m bench.fleet N ROUNDS` measures one fleet; with MEMBERS more, N aggregators of so many.
"""

import json
import subprocess
import sys
import time
import venv
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bench.jobs import environment, worker_output
from bench.result import Figure, Result
from host.config import RunConfig, plan_of
from ternmesh.codec.permutation import order
from ternmesh.errors import WireError
from ternmesh.federated.aggregation import encode_update
from ternmesh.federated.evaluation import Evaluation, write_values
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.state import HostSettings, new_host_state
from ternmesh.plan import Plan
from ternmesh.security.authenticator import KeyedAuthenticator, SecurityLayer, make_security_layer
from ternmesh.security.identity import Role, make_identity
from ternmesh.security.membership import ALL, HOST, MemberList, found_fleet
from ternmesh.security.session import ANSWER, SealingState
from ternmesh.wire.control import Hello, write_control
from ternmesh.wire.frame import UNASSIGNED
from ternmesh.wire.update import MODEL_SIZE, Manifest, update_hash, write_manifest

DIMENSION, VARIANTS = 10_000, 50
MODEL, RUN = bytes(range(32)), bytes(range(1, 9))
PEERS_MAX = 1024  # of `run.min_peers`
Frames = list[bytes]
BOARDS, BOARDS_QUICK = (10, 100, 1_000, 10_000), (10, 100)
ROUNDS, ROUNDS_QUICK = 3, 2
PEER, PEER_CLIENTS, PEER_ROUNDS = "flwr==1.42.*", (10, 100, 1_000), 5
NOTES = (
    f"D = {DIMENSION:,}; {VARIANTS} different updates of a round, each board's manifest, signature "
    "and seals its own; made before the clock starts, and so is joining",
    f"a figure is the slowest of {ROUNDS} rounds (two with --quick), wall time of one process with "
    "one thread; each board's frames are a call of their own, after which events and frames are "
    "taken",
    "no bearer and no disk: events are taken and dropped",
    "peak_mb: the whole process (VmHWM), with the prepared frames of all rounds",
    "bytes down: of one board and round, all frames with seals: the global update, "
    "its list or the proof for this board, and a receipt",
    f"peer: {PEER} FedAvg.aggregate_fit on N results in memory, the fastest of {PEER_ROUNDS}: it "
    "reads float32 arrays, averages them and writes the mean; no network, seals, signatures, "
    "memories or receipts, so it is a floor and not the same work",
)
Row = Mapping[str, float]


def measure(*, quick: bool) -> Result:
    """Each fleet in a process of its own; `quick` takes two small ones and no peer."""
    rows: dict[int, Row] = {}
    for boards in BOARDS_QUICK if quick else BOARDS:
        rounds = ROUNDS_QUICK if quick else ROUNDS
        rows[boards] = json.loads(worker_output("bench.fleet", str(boards), str(rounds)))
        print(f"{boards:,} boards: {rows[boards]}", flush=True)
    details: dict[str, Any] = {str(boards): row for boards, row in rows.items()}
    return Result("fleet", figures(rows), {} if quick else _peer(), NOTES, details, quick)


def figures(rows: Mapping[int, Row]) -> dict[str, Figure]:
    """The figures of some fleets, by their size; aims are for 10,000 boards."""
    found = {}
    for boards, row in rows.items():
        aims = ("<=10", "<=500") if boards == BOARDS[-1] else (None, None)
        found[f"round_{boards}_s"] = Figure(row["round_s"], aims[0])
        found[f"peak_{boards}_mb"] = Figure(row["peak_mb"], aims[1])
        found[f"cpu_us_a_frame_{boards}"] = Figure(row["cpu_us_a_frame"])
        found[f"bytes_down_{boards}"] = Figure(row["bytes_down"])
    if {1_000, 10_000} <= rows.keys():
        growth = rows[10_000]["round_s"] / rows[1_000]["round_s"]
        found["growth_10000"] = Figure(growth, "<=13")
    return found


def _peer() -> dict[str, float]:
    """Flower's seconds, in an environment of its own."""
    with TemporaryDirectory() as name:
        home = Path(name, "environment")
        venv.create(home, with_pip=True)
        python = str(home / "bin" / "python")
        install = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        subprocess.run([*install, PEER], check=True)
        script, found = str(Path(__file__).with_name("fleet_peer.py")), {}
        for clients in PEER_CLIENTS:
            command = [python, script, str(clients), str(PEER_ROUNDS)]
            answer = subprocess.run(
                command, check=True, stdout=subprocess.PIPE, text=True, env=environment(threads=1)
            )
            found[f"flower_{clients}_s"] = float(answer.stdout)
    return found


class Fleet:
    """A host with keys, and the frames that its boards have sealed for it."""

    def __init__(self, boards: int, rounds: int, members: int = 0) -> None:
        self.members = members
        self.plan = plan_of(RunConfig(rounds=rounds), DIMENSION)
        self.now, self.bytes_down = 0.0, Counter[str]()
        rng = np.random.default_rng(0)
        host = make_identity(HOST, Role.HOST, rng.bytes(64))
        role = Role.GATEWAY if members else Role.NODE
        own = [make_identity(f"board-{n}", role, rng.bytes(64)) for n in range(boards)]
        state = replace(found_fleet("bench", host.public), members=tuple(o.public for o in own))
        at_host = make_security_layer(host, MemberList(state), MODEL, rng.bytes(32), 0, _NEW)
        settings = HostSettings(min(boards, PEERS_MAX), nodes_max=boards)
        begin = new_host_state(DIMENSION)
        self.host = HostProtocol(
            plan=self.plan,
            settings=settings,
            model_hash=MODEL,
            run=RUN,
            state=begin,
            security=at_host,
        )
        self.host.start(self.now)
        bodies = [_variants(number, self.plan, rng) for number in range(rounds)]
        shared = MemberList(state)
        self.sealed: list[list[Frames]] = [[] for _ in range(rounds)]  # by round, by board
        self.names = [one.public.name for one in own]
        for index, one in enumerate(own):
            ends = make_security_layer(one, shared, MODEL, rng.bytes(32), 0, _NEW)
            for number, frames in enumerate(self._board(ends, self.names[index], index, bodies)):
                self.sealed[number].append(frames)

    def _board(
        self, ends: SecurityLayer, name: str, index: int, bodies: Sequence[list[Frames]]
    ) -> Iterator[Frames]:
        """Let a board join; its frames for each round."""
        seal = ends.sealing.seal
        answers = self.take(name, [seal(HOST, UNASSIGNED, 0, ANSWER)])
        for frame in answers:
            with suppress(WireError):
                ends.sealing.open(HOST, frame)
        hello = Hello(name, bytes(8), MODEL[:MODEL_SIZE], bytes(8), 0, bytes(16), 100 + index % 50)
        self.take(name, [seal(HOST, UNASSIGNED, 1, write_control(hello))])
        node = self.host.nodes.named(name)
        assert node is not None
        ends.sealing.bind(RUN)
        values = write_values(Evaluation(1.0 + index % 7 / 10, 0.5))
        counter = 2
        for number, variants in enumerate(bodies):
            chunks = variants[index % VARIANTS]
            whole = update_hash(chunks)
            head = Manifest(
                number, MODEL[:MODEL_SIZE], node.samples, whole[:4], len(chunks), values
            )
            if self.members:
                head = replace(head, members=self.members, root=bytes(16), state=bytes(16))
            signed = ends.authenticator.sign_update(RUN, number, head, whole)
            frames = []
            for body in (write_manifest(signed), *chunks):
                frames.append(seal(HOST, node.address, counter, body))
                counter += 1
            yield frames

    def take(self, name: str, frames: Frames) -> Frames:
        """A poll of the host that one board's frames begin; what that board is sent."""
        self.host.receive_frames(name, frames, self.now)
        due = self.host.next_timeout()
        assert due is None or due > self.now
        return self.settle(name)

    def settle(self, name: str) -> Frames:
        """Take all events and frames; those to one board."""
        while self.host.next_event() is not None:
            pass
        groups = self.host.frames_to_send(self.now)
        for peer, frames in groups:
            self.bytes_down[peer] += sum(map(len, frames))
        return [frame for peer, frames in groups if peer == name for frame in frames]

    def round(self, number: int) -> tuple[float, float]:
        """Wall and CPU seconds from the first frame of a round to the published global update."""
        self.now += 1.0
        self.bytes_down.clear()
        began, cpu = time.perf_counter(), time.process_time()
        for name, frames in zip(self.names, self.sealed[number], strict=True):
            self.take(name, frames)
        assert self.host.version == number + 1, self.host.refused
        return time.perf_counter() - began, time.process_time() - cpu


_NEW = SealingState()


def _variants(number: int, plan: Plan, rng: np.random.Generator) -> list[Frames]:
    """The chunks of some different updates of a round: a common part and one of their own."""
    order(MODEL, number, DIMENSION)
    common = rng.laplace(size=DIMENSION)
    vectors = [0.01 * (common + rng.laplace(size=DIMENSION)) for _ in range(VARIANTS)]
    return [list(encode_update(v.astype(np.float32), MODEL, number, plan)[0]) for v in vectors]


def peak_mb() -> float:
    """The largest resident set of this process so far, in 10**6 bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024 / 1e6


def measure_fleet(boards: int, rounds: int, members: int = 0) -> dict[str, float]:
    """The slowest round, the bytes, and the memory of the whole process."""
    # Their boards are enrolled, too, but not here.
    KeyedAuthenticator.boards_max = boards * max(1, members)  # type: ignore[assignment,method-assign]
    fleet = Fleet(boards, rounds, members)
    prepared_mb = peak_mb()
    timed = [fleet.round(number) for number in range(rounds)]
    wall, cpu = max(timed)
    frames = sum(len(frames) for frames in fleet.sealed[-1])
    own = sum(size for peer, size in fleet.bytes_down.items() if peer != ALL) / boards
    return {
        "round_s": wall,
        "cpu_us_a_frame": 1e6 * cpu / frames,
        "peak_mb": peak_mb(),
        "prepared_mb": prepared_mb,
        "bytes_up": sum(sum(map(len, frames)) for frames in fleet.sealed[-1]) / boards,
        "bytes_down": fleet.bytes_down[ALL] + own,
        "bytes_down_own": own,
        "cpu_s": cpu,
    }


if __name__ == "__main__":
    print(json.dumps(measure_fleet(*map(int, sys.argv[1:]))))
