"""Several hosts keep one fleet: what kills, liars and the agreement itself cost, in real processes.

Hosts (the voters), seven boards with keys and training, and mosquitto are real processes. A lying
voter signs two of everything, proposes what nobody can make again, and gives false signatures,
copies and signs of life; a lying board sends ten times the opposite, and lies in its reports.
"""

import json
import multiprocessing
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import cbor2
import numpy as np

import edge.global_evaluation
import host.council
from bench import promises
from bench.crash import End, opened
from bench.jobs import worker_output
from bench.result import Figure, Result, mean_figure
from bench.robust import boards_of
from bench.simulated_fleet import accuracy
from edge.onnx.session import load_model
from host.council import Council
from host.voter_bus import Matter, VoterBus
from models.zoo import package_path
from ternmesh.codec.scale import to_float
from ternmesh.federated.agreement import events as asked
from ternmesh.federated.agreement import messages
from ternmesh.federated.agreement.messages import Message
from ternmesh.federated.agreement.terms import VoterSettings
from ternmesh.federated.agreement.voter import Voter
from ternmesh.federated.agreement.voters import make_voters
from ternmesh.federated.evaluation import Evaluation, write_values
from ternmesh.federated.node import NodeProtocol
from ternmesh.federated.replica import made_by
from ternmesh.link.airtime import LoraSetting, airtime_us
from ternmesh.security.identity import Role, make_identity
from ternmesh.security.primitives import verify
from ternmesh.types import Vector
from ternmesh_cli.demo.bearer import RADIO_RUN, LinkTable, Radios, on_radio
from ternmesh_cli.demo.voters import COUNTS, HOSTS, seat
from ternmesh_cli.keys import enrol_fleet
from ternmesh_service.config_file import load_model_package
from ternmesh_service.control_socket import ControlError, ask
from ternmesh_store.host_store import HostStore
from ternmesh_store.node_store import NodeStore
from tests.mosquitto import Mosquitto

BOARDS, ROUNDS, SEEDS = 7, 40, 3
MODEL = "keyword"
RUN: Mapping[str, Any] = {"min_peers": 4, "deadline_s": 15.0, "announce_s": 1}
# Of frames on radios; radio seconds in a second. Pauses of the programs are not shortened: at 200
# times the speed they are what one measures.
LOSS, SPEED = 0.2, 50.0
RADIO_ROUNDS = 12
RADIO = {**RADIO_RUN, "announce_s": 2, "deadline_s": 60.0}
TOP = {"state_dir": ".", "model": MODEL}
KILLS, AWAY_S = 3, 30.0
FAILOVERS = 20
PATIENCE_S, POLL_S = 2400.0, 0.02
WORST = 32.0  # the effect that a lying board reports
BEFORE = "728bc13"  # the star before exact aggregation
STAR_BOARDS, STAR_PAIRS = 1000, 5
LORA = {"sf7": LoraSetting(7), "sf9": LoraSetting(9)}
FRAME_MAX, SEAL = 222, 21  # bytes of a radio frame, and of the seal in it
UNCOUNTED = "an acknowledged update was not counted"  # a leader that dies takes receipts with it
NOTES = (
    f"real: hosts, {BOARDS} boards with keys and training, mosquitto, SIGKILL; an end is a fork "
    "with all imports done (a new process takes about a second more); state files in memory",
    f"{ROUNDS} rounds, {SEEDS} seeds: other shares of the clips; points lost against a star "
    "without faults that has the same boards",
    "updates lost: chunks that a board settled and no global update counts, a global update that "
    "was taken back or differs between hosts, boards that differ from the hosts at the end",
    "rounds lost a kill: updates of boards that no global update of their round counts, by the "
    "number of boards and kills",
    f"failover: the leader of three (crash) killed {FAILOVERS} times, and started again 12 s later",
    "bytes_n*: messages of the agreement for a decision without faults, sealed, of all voters; "
    "airtime: the same in radio frames, computed: voters talk over brokers alone",
    f"radio: boards have emulated modems (RNode's dialect, SF7) that lose {LOSS:.0%} of the "
    f"frames, {SPEED:g} times faster than real ones; one seed",
)


# Who lies


@contextmanager
def lying_board() -> Iterator[None]:
    """It sends ten times the opposite, and reports that all is well, and probes do harm."""
    submit = NodeProtocol.submit

    def lie(node: NodeProtocol, number: int, delta: Vector | None, now: float) -> None:
        submit(node, number, None if delta is None else -10 * delta, now)

    told = write_values(Evaluation(0.0, 1.0, probe=WORST))
    with (
        mock.patch.object(NodeProtocol, "submit", lie),
        mock.patch.object(edge.global_evaluation, "write_values", return_value=told),
    ):
        yield


@contextmanager
def lying_voter() -> Iterator[None]:
    """It says two things of all that it says, and proposes what nobody can make again."""
    rng = random.Random(0)
    send, sign, propose = VoterBus.send, messages.sign_message, Council.propose
    signer: list[Callable[[Message], bytes]] = []

    def note(voters: Any, message: Message, own: messages.Sign) -> Any:
        signer[:] = [lambda said: sign(voters, said, own).data]
        return sign(voters, message, own)

    def lie(bus: VoterBus, matter: Matter, body: bytes) -> None:
        for false in _lies(matter, body, rng):
            with suppress(Exception):
                data = false if isinstance(false, bytes) else signer[0](false)
                send(bus, matter, data)
        if matter is Matter.HERE:
            for other in range(max(COUNTS)):
                send(bus, Matter.HERE, bytes((other,)) + body[1:])
            copy = cbor2.dumps([1 << 20, 1 << 20, b"", b"\xa0"])
            send(bus, Matter.COPY, copy)
        send(bus, matter, body)

    def false_hash(*made: Any) -> bytes:
        return rng.randbytes(32) if rng.random() < 0.5 else made_by(*made)

    def mute(council: Council, made: Any, now: float) -> None:
        assert council.host is not None
        council.host.combiner.mute(("board-1", "board-2"))
        propose(council, made, now)

    with (
        mock.patch.object(messages, "sign_message", note),
        mock.patch.object(VoterBus, "send", lie),
        mock.patch.object(host.council, "made_by", side_effect=false_hash),
        mock.patch.object(Council, "propose", mute),
    ):
        yield


def _lies(matter: Matter, body: bytes, rng: random.Random) -> Iterator[Message | bytes]:
    """What a liar says beside what it would say: messages that it signs, or whole bodies."""
    match matter:
        case Matter.AGREEMENT:
            said: Any = messages.read_message(body).message
            changes = {
                "digest": rng.randbytes(32),
                "decided": 1 << 20,
                "term": rng.randrange(1 << 20),
                "version": rng.randrange(1 << 20),
                "lock": None,
                "previous": rng.randbytes(32),
            }
            for name, value in changes.items():
                if hasattr(said, name):
                    with suppress(Exception):  # a lie that cannot be told
                        yield replace(said, **{name: value})
            yield messages.Suspect(said.voter, getattr(said, "term", 0))
        case Matter.SIGNED:
            version, _ = cbor2.loads(body)
            for index in range(max(COUNTS)):
                yield cbor2.dumps([version, [[index, rng.randbytes(64)]]])
        case Matter.PROPOSAL | Matter.COPY:
            yield body[: len(body) // 2]
            yield bytes(len(body))
        case _:
            yield rng.randbytes(40)


# What voters write down


@contextmanager
def decisions_watched() -> Iterator[None]:
    """Write a line for each decision that a leader has had: its seconds, and bytes sent so far."""
    send, apply, take_copy = VoterBus.send, Council._apply, Council._take_copy
    sent: Counter[str] = Counter()

    def count(bus: VoterBus, matter: Matter, body: bytes) -> None:
        sent[matter.name] += len(body) + SEAL + 13
        send(bus, matter, body)

    def note(council: Council, version: int, digest: bytes, now: float) -> bool:
        before = len(council._took_s)
        done = apply(council, version, digest, now)
        if done:
            took = council._took_s[-1] if len(council._took_s) > before else None
            line = {"decided": version, "took_s": took, "sent": dict(sent)}
            promises.write_line(council.store.path, **line)
        return done

    def note_copy(council: Council, *copy: Any) -> None:
        take_copy(council, *copy)
        promises.write_line(council.store.path, reached=council.version)

    with (
        mock.patch.object(VoterBus, "send", count),
        mock.patch.object(Council, "_apply", note),
        mock.patch.object(Council, "_take_copy", note_copy),
    ):
        yield


@dataclass(frozen=True, slots=True)
class Arm:
    """One fleet: its hosts, who lies, and how often the leader is killed."""

    voters: int = 1
    lies: bool = False  # one voter, and one board
    kills: int = 0
    away_s: float = AWAY_S
    rounds: int = ROUNDS
    radio: bool = False  # boards have emulated modems; voters talk over the broker


ARMS = {
    "star": Arm(),
    "quiet_4": Arm(4),
    "liars_4": Arm(4, lies=True),
    "kills_4": Arm(4, kills=KILLS),
    "both_7": Arm(7, lies=True, kills=KILLS),
}
ARMS |= {
    f"{name}_radio": replace(ARMS[name], radio=True, rounds=RADIO_ROUNDS)
    for name in ("star", "liars_4", "both_7")
}
LOSSES = {  # against which star
    **dict.fromkeys(("liars_4", "kills_4", "both_7"), "star"),
    **dict.fromkeys(("liars_4_radio", "both_7_radio"), "star_radio"),
}
FAILOVER = Arm(3, kills=FAILOVERS, away_s=12.0, rounds=10_000)


class Fleet:
    """Hosts and boards in folders of their own; not started yet."""

    def __init__(
        self, folder: Path, url: str, arm: Arm, seed: int, radios: Mapping[str, LinkTable]
    ) -> None:
        self.arm = arm
        shares, self.claimed = boards_of(BOARDS, seed)
        names = [f"board-{number}" for number in range(BOARDS)]
        self.folders = {name: folder / name for name in names}
        enrol_fleet("ternmesh", folder / "host", self.folders)
        run = {**RUN, **(RADIO if radios else {}), "rounds": arm.rounds}

        def link_of(name: str) -> LinkTable:
            if not radios:
                return {"url": url}
            lan = {"also": {"lan": {"url": url}}} if name in HOSTS else {}
            return {**radios[name], **lan}

        tables = {"": TOP, "link": link_of("host"), "run": run}
        first = End("host", folder / "host", tables)
        signed: Mapping[str, Any] = {}
        self.hosts = {"host": first}
        if arm.voters > 1:
            _begin(first)
            seats, signed = seat(folder / "host", arm.voters)
            self.hosts = {}
            for name, further in seats.items():
                is_liar = arm.lies and not self.hosts
                lie = partial(_all_of, decisions_watched, lying_voter if is_liar else nullcontext)
                self.hosts[name] = End(
                    "host", folder / name, {**tables, "link": link_of(name), **further}, lie
                )
        self.boards = {}
        for number, (name, (train, held_out)) in enumerate(zip(names, shares, strict=True)):
            own: dict[str, Mapping[str, Any]] = {
                "": {"name": name, **TOP},
                "link": link_of(name),
                "data": _clips(folder / name / "train.npz", train.arrays),
                "evaluate": _clips(folder / name / "held_out.npz", held_out.arrays),
                **({"security": signed} if signed else {}),
            }
            changed = lying_board if arm.lies and number == 0 else nullcontext
            self.boards[name] = End(name, folder / name, own, changed)

    @property
    def honest(self) -> list[End]:
        return list(self.hosts.values())[self.arm.lies :]

    @property
    def ends(self) -> list[End]:
        return [*self.hosts.values(), *self.boards.values()]

    @property
    def version(self) -> int:
        """The newest version that an honest host has."""
        return max(promises.version_of(end.folder) for end in self.honest)

    def leader(self) -> End | None:
        """Whom the honest hosts that answer agree on, if it is one of them and runs."""
        said = Counter[str]()
        for end in self.honest:
            with suppress(ControlError):
                found = ask(end.folder / "control.sock", {"command": "status"}, 5.0)
                if found["agreement"]:
                    said[found["agreement"]["leader"]] += 1
        for name, count in said.most_common(1):
            leads = next((e for e in self.honest if e.folder.name == name and e.pid), None)
            return leads if count > self.arm.voters // 2 else None
        return None


@contextmanager
def _all_of(*parts: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    with ExitStack() as stack:
        for part in parts:
            stack.enter_context(part())
        yield


def _clips(path: Path, arrays: Mapping[str, Any]) -> dict[str, Any]:
    path.parent.mkdir(exist_ok=True)
    np.savez(path, **arrays)
    return {"path": str(path)}


def _begin(first: End) -> None:
    """Let a host begin the run that its copies go on with."""
    first.start()
    _until(lambda: first.poll() is None and len(first.starts_s) > 0, "the first host")
    first.end(15)
    first.close()


def _until(condition: Callable[[], object], what: str) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > give_up_at:
            raise RuntimeError(f"not within {PATIENCE_S:.0f} s: {what}")
        time.sleep(POLL_S)


# One run


@contextmanager
def radios_of(arm: Arm, seed: int) -> Iterator[Mapping[str, LinkTable]]:
    """The link of each end; the modems are in a process of their own, as ends are forks."""
    if not arm.radio:
        yield {}
        return
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=emulate, args=(there, seed), daemon=True)
    process.start()
    yield here.recv()
    process.terminate()
    process.join()


def emulate(pipe: Any, seed: int) -> None:
    """Run modems for all boards and hosts, until this process is ended."""
    names = [f"board-{number}" for number in range(BOARDS)]
    with on_radio(Radios("rnode", LOSS, SPEED, seed), [*names, *HOSTS[1:]], "ternmesh") as links:
        pipe.send({name: links.table(name) for name in [*names, *HOSTS]})
        pipe.recv()


def run(arm: Arm, seed: int) -> dict[str, Any]:
    """What one fleet has done, and lost."""
    with ExitStack() as stack:
        memory = Path("/dev/shm")
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=memory)))
        broker = stack.enter_context(Mosquitto(folder))
        radios = stack.enter_context(radios_of(arm, seed))
        fleet = Fleet(folder, broker.url, arm, seed, radios)
        for end in fleet.ends:
            stack.callback(end.close)
            end.start()
        begun = time.monotonic()
        failovers = _kill(fleet)
        _until(lambda: _is_over(fleet), f"the last of {arm.rounds} rounds: {fleet.version}")
        seconds = time.monotonic() - begun
        time.sleep(1.0)  # for the commit that follows
        for end in fleet.ends:
            end.end(15)
        return {**_found(fleet), "failover_s": failovers, "seconds": seconds}


def _kill(fleet: Fleet) -> list[float]:
    """Kill the leader so often; the seconds until an honest host had the next global update."""
    took: list[float] = []
    while len(took) < fleet.arm.kills:
        _until(partial(_is_past, fleet, 1 + len(took)), "a round between kills")
        _until(fleet.leader, "a leader")
        victim = fleet.leader()
        if victim is None:
            continue
        version, at = fleet.version, time.monotonic()
        victim.end()
        _until(partial(_is_past, fleet, version), "a round after a kill")
        took.append(time.monotonic() - at)
        time.sleep(max(0.0, fleet.arm.away_s - took[-1]))
        victim.start()
        _until(partial(_is_back, fleet, victim), "a voter that is back")
    return took


def _is_past(fleet: Fleet, version: int) -> bool:
    for end in fleet.ends:
        if end.pid:
            end.poll()  # takes what it tells its manager
    return fleet.version > version


def _is_back(fleet: Fleet, end: End) -> bool:
    return _reached(end) >= fleet.version - 1


def _reached(end: End) -> int:
    lines = promises.lines(end.folder, promises.TAIL)
    return max((max(line.get("made", 0), line.get("reached", 0)) for line in lines), default=0)


def _is_over(fleet: Fleet) -> bool:
    """Whether honest hosts and boards have reached the last version."""
    for end in fleet.ends:
        if end.poll() is not None:
            raise RuntimeError(f"{end.folder.name} has ended:\n{end.log.read_text()[-2000:]}")
    last = f'"version": {fleet.arm.rounds},'
    honest = list(fleet.boards.values())[fleet.arm.lies :]
    boards = [end.folder / promises.EVENTS for end in honest]
    are_boards_done = all(path.exists() and last in path.read_text() for path in boards)
    if fleet.arm.kills == FAILOVERS:
        return True
    return are_boards_done and all(_reached(end) >= fleet.arm.rounds for end in fleet.honest)


def _found(fleet: Fleet) -> dict[str, Any]:
    """What became of a fleet whose processes have ended."""
    arm = fleet.arm
    hosts = [end.folder for end in fleet.honest]
    honest = dict(list(fleet.folders.items())[arm.lies :])
    faults = promises.broken(hosts, honest)
    uncounted = faults.pop(UNCOUNTED, 0)
    loaded, package = load_model(package_path(MODEL)), load_model_package(MODEL)
    states, nodes = [], []
    for path in hosts:
        with opened(path) as file:
            stored = HostStore(file).load(package.model_hash())
        assert stored is not None
        states.append(stored.state)
    for path in honest.values():
        with opened(path) as file:
            nodes.append(NodeStore(file).load(package.model_hash(), package.dimension))
    if arm.kills != FAILOVERS:
        for state in states:
            faults += promises.differing(state, nodes, arm.rounds)
    vector = loaded.initial + to_float(states[0].model_q24)
    missed = sum(BOARDS - len(counted) for counted in promises.counted(hosts).values())
    lines = [line for path in hosts for line in promises.lines(path) if "decided" in line]
    took = [line["took_s"] for line in lines if line["took_s"] is not None]
    sent: Counter[str] = Counter()
    for path in hosts:
        of_host = [line["sent"] for line in promises.lines(path) if "decided" in line]
        sent.update(of_host[-1] if of_host else {})
    return {
        "accuracy": accuracy(loaded, vector, [fleet.claimed]),
        "faults": dict(faults),
        "uncounted": uncounted,
        "missed": missed,
        "took_s": took,
        "sent": dict(sent),
    }


# One decision, in memory


def decision_bytes(count: int) -> list[int]:
    """The bytes of each message of a decision of so many voters without faults."""
    rng = np.random.default_rng(count)
    own = [make_identity(f"v{n}", Role.OBSERVER, rng.bytes(64)) for n in range(count)]
    voters = make_voters(bytes(12), [one.public.name for one in own], "bft")
    by_name = {one.public.name: one for one in own}
    keys = [by_name[name] for name in voters.names]

    def is_signed(index: int, message: bytes, signature: bytes) -> bool:
        verify(keys[index].public.verify, signature, message)
        return True

    ends = [
        Voter(
            voters=voters,
            index=index,
            settings=VoterSettings(trusts_disk=True),
            sign=keys[index].sign,
            verify=is_signed,
            rng=rng,
        )
        for index in range(count)
    ]
    sizes: list[int] = []
    todo = [(end, event) for end in ends for event in end.start(0.0)]
    todo += [(end, event) for end in ends for event in end.propose(0, 1, bytes(32), 0.0)]
    while todo:
        end, event = todo.pop(0)
        match event:
            case asked.Judge():
                judged = end.judged(event.version, event.digest, True, 0.0)
                todo += [(end, each) for each in judged]
            case asked.Broadcast():
                sizes.append(len(event.data))
                for other in ends:
                    if other is not end:
                        todo += [(other, each) for each in other.receive(event.data, 0.0)]
    return sizes


def on_air_s(sizes: Sequence[int], setting: LoraSetting) -> float:
    """Seconds on air of messages in sealed radio frames."""
    frames: list[int] = []
    for size in sizes:
        whole, rest = divmod(size, FRAME_MAX - SEAL)
        frames += [FRAME_MAX] * whole + ([rest + SEAL] if rest else [])
    return sum(airtime_us(setting, size) for size in frames) / 1e6


def exact_ratio() -> list[float]:
    """CPU of a host's round of 1,000 boards, by that of the star before; pairs in turn."""
    root = Path(__file__).parents[1]
    modules = ("bench.fleet", "bench.fleet_worker")  # now, and then
    with tempfile.TemporaryDirectory() as folder:
        git = ["git", "-C", str(root)]
        subprocess.run([*git, "worktree", "add", "--detach", folder, BEFORE], check=True)
        try:
            found = []
            for _ in range(STAR_PAIRS):
                now, before = (
                    json.loads(
                        subprocess.run(
                            [sys.executable, "-m", module, str(STAR_BOARDS), "3"],
                            cwd=tree,
                            check=True,
                            stdout=subprocess.PIPE,
                            env={"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "PATH": ""},
                        ).stdout.splitlines()[-1]
                    )["cpu_us_a_frame"]
                    for tree, module in zip((root, Path(folder)), modules, strict=True)
                )
                found.append(now / before)
            return found
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", folder], check=True)


# The figures


def measure(*, quick: bool, resume: Path | None = None) -> Result:
    """All arms with all seeds; `quick` takes ten rounds of two arms with one seed."""
    arms = {name: ARMS[name] for name in ("star", "liars_4")} if quick else ARMS
    done: dict[str, Any] = {}
    if resume and resume.exists():
        done = dict(json.loads(line) for line in resume.read_text().splitlines())
    plans = {
        f"{name} {seed}": (replace(arm, rounds=10) if quick else arm, seed)
        for seed in range(1 if quick else SEEDS)
        for name, arm in arms.items()
        if not (arm.radio and seed)
    }
    if not quick:
        plans["failover"] = FAILOVER, 0
    for key, (arm, seed) in plans.items():
        if key not in done:
            done[key] = json.loads(
                worker_output("bench.agreement", json.dumps(asdict(arm)), str(seed))
            )
            print(f"{key}: {_line(done[key])}", flush=True)
            if resume:
                with resume.open("a") as file:
                    file.write(json.dumps([key, done[key]]) + "\n")
    ratios = [] if quick else exact_ratio()
    return Result("agreement", figures(done, ratios), {}, NOTES, done, quick)


def _line(found: Mapping[str, Any]) -> str:
    took = sorted(found["took_s"])
    p50 = f", decision {took[len(took) // 2]:.2f} s" if took else ""
    kills = ", ".join(f"{took_s:.1f}" for took_s in found["failover_s"])
    faults = f", FAULTS {found['faults']}" if found["faults"] else ""
    away = f", {found['missed']} updates missed, after kills {kills} s" if kills else ""
    return f"{found['accuracy']:.1%}, {found['seconds']:.0f} s{p50}{away}{faults}"


def figures(done: Mapping[str, Any], ratios: Sequence[float]) -> dict[str, Figure]:
    """Of all arms that have run."""
    by_arm: dict[str, list[Any]] = defaultdict(list)
    for key, found in done.items():
        by_arm[key.split()[0]].append(found)
    shown: dict[str, Figure] = {}
    for arm in sorted(by_arm.keys() & LOSSES.keys()):
        lost = [
            100 * (star["accuracy"] - found["accuracy"])
            for star, found in zip(by_arm[LOSSES[arm]], by_arm[arm], strict=True)
        ]
        shown[f"points_lost_{arm}"] = mean_figure(lost, "<=2")
    every = [found for founds in by_arm.values() for found in founds]
    lost_updates = sum(sum(found["faults"].values()) for found in every)
    shown["updates_lost"] = Figure(lost_updates, "<=0")
    killed = by_arm.get("kills_4", [])
    if killed:
        per_kill = [found["missed"] / BOARDS / KILLS for found in killed]
        shown["rounds_lost_per_kill"] = mean_figure(per_kill, "<=2")
    for arm in ("quiet_4", "liars_4", "both_7", "liars_4_radio", "both_7_radio"):
        took = [took_s for found in by_arm.get(arm, []) for took_s in found["took_s"]]
        if took:
            shown[f"decision_p50_s_{arm}"] = Figure(float(np.percentile(took, 50)))
            shown[f"decision_p95_s_{arm}"] = Figure(float(np.percentile(took, 95)))
    if "failover" in by_arm:
        took = by_arm["failover"][0]["failover_s"]
        shown["failover_s"] = Figure(float(np.mean(took)))
        shown["failover_s_max"] = Figure(float(np.max(took)))
    for count in (1, 4, 7, 16):
        sizes = decision_bytes(count)
        shown[f"bytes_n{count}"] = Figure(sum(sizes) + (SEAL + 13) * len(sizes))
        for name, setting in LORA.items():
            shown[f"airtime_s_n{count}_{name}"] = Figure(on_air_s(sizes, setting))
    if ratios:
        shown["exact_time_ratio"] = mean_figure(ratios, "<=1.3")
    return shown


if __name__ == "__main__":
    print(json.dumps(run(Arm(**json.loads(sys.argv[1])), int(sys.argv[2]))))
