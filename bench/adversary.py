"""A fleet against an attacker who reads and publishes everything on a real mosquitto.

A host and three boards are processes with keys. One board is stopped in the middle of a round, so
that no other frames are sent. Then each attack is published, and each receiver must count a refusal
for every frame. Rounds are deterministic: the adapter must be that of a run without attacks, to the
last bit. The control is a fleet without keys. Then floods of one-byte frames, on one board's
topic and on that of all, must leave the fleet most of its rounds.
"""

import signal
import struct
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from bench.processes import (
    FLEET,
    MODEL,
    PATIENCE_S,
    POLL_S,
    ProcessFleet,
    Status,
    end,
    send_signal,
    shown_status,
    started,
    status_of,
)
from bench.result import Figure, Result
from ternmesh.wire import control
from ternmesh.wire.frame import BROADCAST, DOWN, UNASSIGNED, Header, seal_open
from ternmesh_cli.demo.fleet import BOARDS, HOST
from ternmesh_service.config_file import load_model_package
from tests.mosquitto import ADDRESS, Mosquitto
from transports import batch
from transports.base import ALL
from transports.mqtt.settings import INBOUND_MESSAGE_MAX

ROUNDS, ROUNDS_QUICK = 12, 2
FRAMES, FRAMES_QUICK = 400, 40  # of those recorded, in each attack
STOPPED = BOARDS[0]
# Frames wait for the stopped board: a broker with its defaults drops what is beyond 1,000.
BROKER = "max_queued_messages 100000"
ROOT = f"ternmesh/{FLEET}"
UP, TO_NODE, EVERYONE = f"{ROOT}/up/", f"{ROOT}/down/", f"{ROOT}/{ALL}"
HEAD = struct.Struct("<BH3s")  # of a frame: version, suite and key phase; address; counter
# Without another refusal for so long: a missing one never comes; the host's answers have arrived.
MISSING_S, SETTLED_S = 5.0, 0.5
FLOOD_RATE = 1.5e6  # bytes a second
FLOOD_S, FLOOD_S_QUICK = 20.0, 5.0
Reasons = Counter[str]
Alter = Callable[[bytearray, int, np.random.Generator], bytes]


@dataclass(frozen=True, slots=True)
class Shot:
    """A message of one frame."""

    topic: str
    frame: bytes

    def receivers(self, boards: Sequence[str]) -> list[str]:
        """The ends among the host and `boards` that are sent it."""
        if self.topic.startswith(UP):
            return [HOST]
        return [name for name in boards if self.topic in (EVERYONE, TO_NODE + name)]


@dataclass(frozen=True, slots=True)
class Attacker:
    """What the attacker has before an attack."""

    recorded: Sequence[Shot]
    boards: Sequence[str]  # that run
    addresses: Mapping[str, int]  # the address of each board
    run: bytes
    model: bytes  # the hash of the model package
    rng: np.random.Generator


def replayed(attacker: Attacker) -> list[Shot]:
    """Every frame again in another order, so that counters go up and down."""
    return [attacker.recorded[index] for index in attacker.rng.permutation(len(attacker.recorded))]


def altered(alter: Alter) -> Callable[[Attacker], list[Shot]]:
    """An attack that publishes each frame with a change."""
    return lambda attacker: [
        Shot(shot.topic, alter(bytearray(shot.frame), index, attacker.rng))
        for index, shot in enumerate(attacker.recorded)
    ]


def flipped(frame: bytearray, _index: int, rng: np.random.Generator) -> bytes:
    """One bit is another one."""
    frame[int(rng.integers(len(frame)))] ^= 1 << int(rng.integers(8))
    return bytes(frame)


def forged(frame: bytearray, _index: int, rng: np.random.Generator) -> bytes:
    """A valid head, a counter that comes next, a guessed tag."""
    first, address, low = HEAD.unpack_from(frame)
    counter = int.from_bytes(low, "little") + int(rng.integers(1, 50))
    return _head(first, address, counter) + rng.bytes(len(frame) - HEAD.size)


def other_version(frame: bytearray, index: int, _rng: np.random.Generator) -> bytes:
    """Another wire version, or another suite (0 included)."""
    other = (0, 2, 3, 7)[index // 2 % 4]
    frame[0] = frame[0] & 0x1F | other << 5 if index % 2 else frame[0] & ~0x1C | other << 2
    return bytes(frame)


def misdirected(attacker: Attacker) -> list[Shot]:
    """What one board sent or received, on the topic of another board."""
    found = []
    for shot in attacker.recorded:
        root, _, name = shot.topic.rpartition("/")
        if name in attacker.boards:
            other = attacker.boards[(attacker.boards.index(name) + 1) % len(attacker.boards)]
            found.append(Shot(f"{root}/{other}", shot.frame))
    return found


def unsealed(attacker: Attacker) -> list[Shot]:
    """What a fleet without keys sends, in the name of every end: suite 0, a right checksum."""
    found = []
    for name, address in attacker.addresses.items():
        hello = control.Hello(name, bytes(8), attacker.model[:8], attacker.run, 0, bytes(16), 100)
        welcome = control.Welcome(bytes(8), address, attacker.run, 1, control.OPEN, 0, (1,))
        messages: list[control.Control] = [
            hello,
            welcome,
            control.Announce(attacker.run, 99, control.FINISHED, 0),
            control.Refusal(1, "unknown node"),
            control.Receipt(1, bytes(4), b"\xff"),
        ]
        places = [(UP + name, UNASSIGNED), (UP + name, address), (TO_NODE + name, UNASSIGNED)]
        places += [(TO_NODE + name, address | DOWN), (EVERYONE, BROADCAST)]
        for number, message in enumerate(messages):
            body = control.write_control(message)
            found += [Shot(topic, seal_open(Header(to, number), body)) for topic, to in places]
    return found


def _head(first: int, address: int, counter: int) -> bytes:
    return HEAD.pack(first, address, (counter & 0xFFFFFF).to_bytes(3, "little"))


DOWNGRADE = "downgrade: no keys"
ATTACKS: Mapping[str, Callable[[Attacker], list[Shot]]] = {
    "replay of every frame": replayed,
    "bits flipped": altered(flipped),
    "forged status and control": altered(forged),
    "another's topic": misdirected,
    DOWNGRADE: unsealed,
    "downgrade: versions and suites": altered(other_version),
}


@dataclass(frozen=True, slots=True)
class Attack:
    """What became of one attack."""

    name: str
    heard: int  # frames times the ends that were sent them
    refused: int
    reasons: Reasons = field(default_factory=Counter)

    @property
    def accepted(self) -> int:
        """Frames that an end did not count as refused."""
        return max(0, self.heard - self.refused)


@dataclass(frozen=True, slots=True)
class Run:
    """What a run came to."""

    attacks: Sequence[Attack]
    shown: Reasons  # refusals of all ends in `ternmesh status --json` at the end
    lost: int  # rounds without one of the boards, or that never came
    adapter: str  # SHA-256


@contextmanager
def wiretap(url: str) -> Iterator[tuple[list[Shot], Callable[[Sequence[Shot]], None]]]:
    """Everything that is published on a broker, and a function that publishes."""
    recorded: list[Shot] = []
    client = Client(CallbackAPIVersion.VERSION2, client_id="wiretap")
    client.max_inflight_messages_set(1000)
    client.on_message = lambda _c, _u, message: recorded.extend(
        Shot(message.topic, frame) for frame in batch.split(bytes(message.payload))
    )
    client.on_connect = lambda client, *_: client.subscribe(f"{ROOT}/#", qos=1)
    address = urlsplit(url)
    client.connect(address.hostname or "", address.port or 0)
    client.loop_start()

    def publish(shots: Sequence[Shot]) -> None:
        sent = [client.publish(s.topic, batch.join([s.frame]), qos=1) for s in shots]
        for item in sent:
            item.wait_for_publish(PATIENCE_S)

    try:
        yield recorded, publish
    finally:
        client.disconnect()
        client.loop_stop()


class Target:
    """A fleet in the middle of a round, with one board stopped."""

    def __init__(
        self,
        fleet: ProcessFleet,
        recorded: Sequence[Shot],
        publish: Callable[[Sequence[Shot]], None],
    ) -> None:
        self._fleet = fleet
        self._publish = publish
        self._boards = [name for name in fleet.boards if name != STOPPED]
        status = status_of(fleet.host)
        self._attacker = Attacker(
            recorded=recorded,
            boards=self._boards,
            addresses={node["name"]: node["address"] for node in status["nodes"]},
            run=bytes.fromhex(status["run"]),
            model=load_model_package(MODEL).model_hash(),
            rng=np.random.default_rng(0),
        )

    def attack(self, name: str) -> Attack:
        """Publish an attack and count what is refused: at the host first, then at the boards.

        The host answers some refusals to the board in whose name the frame came.
        """
        shots = ATTACKS[name](self._attacker)
        heard, reasons = 0, Counter[str]()
        for ends in ([HOST], self._boards):
            mine = [shot for shot in shots if set(shot.receivers(self._boards)) & set(ends)]
            wanted = sum(len(shot.receivers(self._boards)) for shot in mine)
            before = self._refused(ends)
            self._publish(mine)
            heard += wanted
            reasons += self._refused_since(ends, before, wanted, MISSING_S)
            if ends == [HOST]:
                self._refused_since(self._boards, Counter(), 1 << 30, SETTLED_S)
        made = Attack(name, heard, min(reasons.total(), heard), reasons)
        told = ", ".join(f"{reason} {count}" for reason, count in made.reasons.items())
        print(f"{name:32} {heard:5} heard {made.accepted:4} accepted  {told}", flush=True)
        return made

    def _refused(self, ends: Sequence[str]) -> Reasons:
        everyone = self._fleet.everyone
        return sum((refusals(status_of(everyone[name])) for name in ends), Counter[str]())

    def _refused_since(
        self, ends: Sequence[str], before: Reasons, wanted: int, quiet_s: float
    ) -> Reasons:
        """The further refusals: all that are wanted, or those until none comes for `quiet_s`."""
        last, changed_at = Counter[str](), time.monotonic()
        while time.monotonic() < changed_at + quiet_s and last.total() < wanted:
            found = self._refused(ends) - before
            if found != last:
                last, changed_at = found, time.monotonic()
            time.sleep(POLL_S)
        return last


def refusals(status: Status) -> Reasons:
    """By reason, what an end has refused since it started."""
    malformed = status["transport"].get("malformed", 0)
    others = {"sync": status["first_contacts"], "malformed": malformed}
    return +Counter({**status["refused"], **others})


@contextmanager
def attacked(
    folder: Path, rounds: int, frames: int, options: Sequence[str] = ()
) -> Iterator[tuple[ProcessFleet, Target]]:
    """A running fleet with one board stopped in the middle of the run."""
    folder.mkdir()
    run = {"rounds": rounds, "local_steps": 4}
    with (
        Mosquitto(folder, BROKER) as broker,
        wiretap(broker.url) as (recorded, publish),
        started(ProcessFleet(folder, broker.url, run, options=options)) as fleet,
    ):
        fleet.hold_open(STOPPED, rounds // 2)
        yield fleet, Target(fleet, tuple(recorded[:frames]), publish)


def play(folder: Path, rounds: int, frames: int, names: Sequence[str]) -> Run:
    """A run with keys, from its beginning to its end, with these attacks in the middle."""
    with attacked(folder, rounds, frames) as (fleet, target):
        attacks = [target.attack(name) for name in names]
        send_signal(fleet.boards[STOPPED], signal.SIGCONT)
        fleet.wait_version(rounds, [*fleet.everyone.values()])
        seen = {name: shown_status(worker) for name, worker in fleet.everyone.items()}
        for worker in fleet.everyone.values():
            end(worker)
        whole = sum(set(item["counted"]) == set(BOARDS) for item in seen[HOST]["history"])
        shown = sum(map(refusals, seen.values()), Counter[str]())
        return Run(attacks, shown, rounds - whole, fleet.adapter_hash())


@dataclass(frozen=True, slots=True)
class Pace:
    """How a fleet works for some seconds, under a flood or in peace."""

    rounds_s: float  # rounds a second
    status_s: float  # the slowest answer of an end to a status request


def floods(folder: Path, seconds: float) -> list[Pace]:
    """The pace of a fleet in peace, and under a flood on each of two topics."""
    folder.mkdir()
    run = {"rounds": 60_000, "local_steps": 1}
    paces = []
    with Mosquitto(folder, BROKER) as broker, started(ProcessFleet(folder, broker.url, run)) as it:
        for topic in ("", UP + BOARDS[0], EVERYONE):
            it.wait_version(status_of(it.host)["version"] + 2)
            found = pace(it, broker.port, topic, seconds)
            print(f"{topic or 'peace':32} {found.rounds_s:.2f} rounds/s, {found.status_s:.2f} s")
            paces.append(found)
    return paces


def pace(fleet: ProcessFleet, port: int, topic: str, seconds: float) -> Pace:
    """The pace while messages full of frames of one byte arrive on `topic`."""
    message = batch.join([b"x"] * (INBOUND_MESSAGE_MAX // (1 + batch.OVERHEAD)))
    client = Client(CallbackAPIVersion.VERSION2)
    client.connect(ADDRESS, port)
    client.loop_start()
    slowest, sent = 0.0, 0
    began, before = time.monotonic(), status_of(fleet.host)["version"]
    while (now := time.monotonic()) < began + seconds:
        while topic and sent < FLOOD_RATE * (now - began):
            client.publish(topic, message, qos=1)
            sent += len(message)
        for worker in fleet.everyone.values():
            asked = time.monotonic()
            status_of(worker)
            slowest = max(slowest, time.monotonic() - asked)
        time.sleep(POLL_S)
    client.disconnect()
    return Pace((status_of(fleet.host)["version"] - before) / (now - began), slowest)


def measure(*, quick: bool) -> Result:
    """A run in peace, one under attack, and the control."""
    rounds, frames = (ROUNDS_QUICK, FRAMES_QUICK) if quick else (ROUNDS, FRAMES)
    with tempfile.TemporaryDirectory() as folder:
        peace = play(Path(folder, "peace"), rounds, 0, ())
        attack = play(Path(folder, "attack"), rounds, frames, tuple(ATTACKS))
        place, options = Path(folder, "control"), ("--insecure",)
        with attacked(place, rounds, frames, options) as (_, target):
            print("without keys:")
            control = target.attack(DOWNGRADE)
        paces = floods(Path(folder, "floods"), FLOOD_S_QUICK if quick else FLOOD_S)
    return result(attack, peace, control, paces, quick=quick)


def result(run: Run, peace: Run, control: Attack, paces: Sequence[Pace], *, quick: bool) -> Result:
    """The figures of a run under attack, of one in peace, without keys, and under floods."""
    calm, *flooded = paces
    visible = [bool(attack.reasons) and attack.reasons <= run.shown for attack in run.attacks]
    figures = {
        "attacks": Figure(len(run.attacks)),
        "frames_heard": Figure(sum(attack.heard for attack in run.attacks)),
        "frames_refused": Figure(sum(attack.refused for attack in run.attacks)),
        "frames_accepted": Figure(sum(attack.accepted for attack in run.attacks), "<=0"),
        "honest_rounds_lost": Figure(run.lost, "<=0"),
        "attacks_visible": Figure(float(np.mean(visible)), ">=1"),
        "adapter_unchanged": Figure(float(run.adapter == peace.adapter), ">=1"),
        "control_frames_accepted": Figure(control.accepted, ">=1"),
        "flood_rounds_kept": Figure(min(p.rounds_s for p in flooded) / calm.rounds_s, ">=0.67"),
        "flood_status_s": Figure(max(p.status_s for p in flooded), "<=1"),
    }
    notes = (
        "a host and three boards, processes with keys on a real mosquitto, on one machine; frames "
        "heard: frames of an attack times the receivers; accepted: without a counted refusal",
        "attacks happen while a stopped board keeps a round open; visible: in `ternmesh status`",
        "adapter_unchanged: the same SHA-256 as without attacks",
        "control: forged frames that a fleet without keys does not refuse",
        "flood: 1.5 MB/s of one-byte frames on one board's or all boards' topic, worst of both; "
        "kept: of the rounds a second in peace; status: slowest answer of any end",
    )
    details = {attack.name: dict(attack.reasons) for attack in run.attacks}
    return Result("adversary", figures, notes=notes, details=details, quick=quick)
