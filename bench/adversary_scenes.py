"""The scenes of `bench adversary`: each is a run of a fleet from its beginning to its end."""

import io
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from bench import adversary_attacks as attacks
from bench.adversary_attacks import Attack, Quiet, refusals
from bench.adversary_proxy import CROSS, DROP, FLIP, SWAP, TWICE, Meddler
from bench.adversary_wire import DOWN, EVERYONE, UP, Wiretap
from bench.mosquitto import Mosquitto
from bench.processes import (
    FLEET,
    PATIENCE_S,
    ProcessFleet,
    Status,
    end,
    kill9,
    send_signal,
    shown_status,
    started,
    until,
    wait,
)
from ternmesh_cli.demo.fleet import BOARDS, HOST
from ternmesh_cli.main import main
from ternmesh_cli.mosquitto import free_port, listens
from transports import batch
from transports.credentials import read_credentials

# Frames wait for a stopped board: a broker with its defaults would drop what is beyond 1,000.
PATIENT = "max_queued_messages 100000"
STOPPED, MALLORY, EVE = BOARDS[0], "mallory", "eve"
COPIES_ROUNDS = 15
BY_BROKER = "another's topic, with access rules"
# What is refused of frames that were bent or came twice; honest ends refuse other things, too, of
# each other: a first contact, or what came too late in good faith.
FORGED = ("seal", "replay", "clone", "suite", "version", "role", "length")
CHANCES = {FLIP: 0.08, DROP: 0.05, SWAP: 0.05, TWICE: 0.08, CROSS: 0.06}


@dataclass(frozen=True, slots=True)
class Scene:
    """A run and what was done to it. `adapter` is the SHA-256 of all that the fleet learned."""

    attacks: tuple[Attack, ...]
    rounds: int
    lost: int  # rounds without one of the honest boards, or that never came
    adapter: str
    accuracy: float
    seen: Mapping[str, Status]  # what `ternmesh status --json` says at the end, by end
    seconds: float


@dataclass(frozen=True, slots=True)
class Stage:
    """Where scenes are played: a folder for each, and how long a run is."""

    folder: Path
    program: str  # mosquitto
    rounds: int
    messages: int  # at most so many of those heard are used in one attack
    seed: int = 0

    @property
    def run(self) -> Mapping[str, Any]:
        """The host's `[run]`."""
        return {"rounds": self.rounds, "local_steps": 4}

    @contextmanager
    def broker(self, name: str) -> Iterator[tuple[Path, Mosquitto]]:
        """A folder, and a broker that lets everybody do everything."""
        folder = self.folder / name
        folder.mkdir()
        with Mosquitto(self.program, folder, PATIENT) as broker:
            yield folder, broker


def peace(stage: Stage) -> Scene:
    """The undisturbed run."""
    with stage.broker("peace") as (folder, broker):
        fleet = ProcessFleet(folder, lambda _role: {"url": broker.url}, stage.run)
        with started(fleet):
            return finish(stage, fleet, (), time.monotonic())


def wiretap(stage: Stage) -> Scene:
    """All that can be said on a broker that lets everybody do everything."""
    begun, rng = time.monotonic(), np.random.default_rng(stage.seed)
    with stage.broker("wiretap") as (folder, broker), Wiretap(broker.url) as tap:
        link = {"url": broker.url}
        fleet = ProcessFleet(folder, lambda _role: link, stage.run, members=(MALLORY,))
        with started(fleet):
            fleet.hold_open(STOPPED, stage.rounds // 2)
            quiet = Quiet(fleet, tap, STOPPED)
            before = quiet.standing()
            made = list(attacks.say_all(quiet, rng, stage.messages))
            made.append(attacks.insecure(fleet, EVE, broker.url))
            made.append(attacks.thief(fleet, MALLORY, broker.url))
            if quiet.standing() != before:
                raise RuntimeError(f"the fleet has changed: {before} to {quiet.standing()}")
            send_signal(fleet.boards[STOPPED], signal.SIGCONT)
            return finish(stage, fleet, made, begun)


def without_keys(stage: Stage) -> Attack:
    """What the same replay and the same forgeries do to a fleet without keys: the control."""
    with stage.broker("without") as (folder, broker), Wiretap(broker.url) as tap:
        link = {"url": broker.url}
        options = ("--insecure",)
        fleet = ProcessFleet(folder, lambda _role: link, stage.run, options=options)
        with started(fleet):
            fleet.hold_open(STOPPED)
            return attacks.forge(Quiet(fleet, tap, STOPPED))


def middle(stage: Stage) -> Scene:
    """A man in the middle of every board's connection, all the time."""
    begun = time.monotonic()
    with stage.broker("middle") as (folder, broker), ExitStack() as stack:
        proxies = {
            name: stack.enter_context(
                Meddler(
                    broker.port,
                    CHANCES,
                    stage.seed + place,
                    tuple(other for other in BOARDS if other != name),
                )
            )
            for place, name in enumerate(BOARDS)
        }
        urls = {name: proxy.url for name, proxy in proxies.items()}
        fleet = ProcessFleet(folder, lambda r: {"url": urls.get(r, broker.url)}, stage.run)
        with started(fleet):
            fleet.wait_version(stage.rounds, [*fleet.boards.values()])
            done = sum((proxy.done for proxy in proxies.values()), Counter[str]())
            for proxy in proxies.values():
                proxy.chances.clear()
            forged = done[FLIP] + done[TWICE] + done[CROSS]
            found = refused_by_all(fleet, forged)
            note = ", ".join(f"{what} {count}" for what, count in sorted(done.items()))
            name = "man in the middle"
            made = [Attack(name, forged, min(forged, found.total()), dict(found), note)]
            return finish(stage, fleet, made, begun)


def refused_by_all(fleet: ProcessFleet, wanted: int) -> Counter[str]:
    """What all ends have refused as forged; a last frame may still be on its way."""
    found, give_up_at = Counter[str](), time.monotonic() + attacks.MISSING_S
    while found.total() < wanted and time.monotonic() < give_up_at:
        now = [wait(w, lambda _: True, "an answer") for w in fleet.everyone.values()]
        all_reasons = sum(map(refusals, now), Counter[str]())
        found = Counter({r: count for r, count in all_reasons.items() if r in FORGED})
    return found


def copies(stage: Stage) -> Scene:
    """A copied state folder in a second process at the same time; then an old copy put back."""
    begun, stage = time.monotonic(), replace(stage, rounds=COPIES_ROUNDS)
    own = f"ternmesh-{FLEET}-{STOPPED}".encode()
    other = own[:-1] + b"_"  # another client id: else the broker would throw both out by turns
    with stage.broker("copies") as (folder, broker), ExitStack() as stack:
        proxy = stack.enter_context(Meddler(broker.port, {}, 0, rename=(own, other)))
        fleet = ProcessFleet(folder, lambda _role: {"url": broker.url}, stage.run)
        with started(fleet):
            fleet.hold_open(STOPPED)
            board = fleet.boards[STOPPED]
            for place in ("clone", "old"):
                shutil.copytree(board.folder, folder / place, ignore=_sockets)
            clone = fleet.board("clone", STOPPED, {"url": proxy.url})
            stack.callback(end, clone)
            clone.start()
            wait(clone, lambda now: now["joined"], "the copy has joined")
            send_signal(board, signal.SIGCONT)
            until(lambda: clones(fleet) > 0, "the copy is noticed")
            kill9(clone)
            made = [_seen("a copied state folder", clones(fleet))]
            # The next process of the board has counters that the old copy cannot know.
            kill9(board)
            board.start()
            version = wait(board, lambda now: now["joined"], "the board is back")["version"]
            fleet.wait_version(version + 3, [board])
            kill9(board)
            noticed = clones(fleet)
            _put_back(folder / "old", board.folder)
            board.start()
            until(lambda: clones(fleet) > noticed, "the old copy is noticed")
            made.append(_seen("an old copy put back", clones(fleet) - noticed))
            return finish(stage, fleet, made, begun)


def access(stage: Stage) -> Scene:
    """On the broker of `ternmesh broker config`: a member's account speaks in others' places."""
    begun = time.monotonic()
    folder, port = stage.folder / "access", free_port()
    place = folder / "broker"
    names = [part for name in (*BOARDS, MALLORY) for part in ("--node", name)]
    where = ["--name", "localhost", "--port", str(port), "--user", "root", "--fleet", FLEET]
    with redirect_stdout(io.StringIO()):
        if main(["broker", "config", "--dir", str(place), *where, *names]):
            raise RuntimeError("`ternmesh broker config` makes nothing")
    ca_file = str(place / "authority.pem")

    def link(role: str) -> Mapping[str, object]:
        own = str(_credentials(place, role))
        url = f"mqtts://localhost:{port}"
        return {"url": url, "fleet": FLEET, "ca_file": ca_file, "credentials_file": own}

    with _mosquitto(stage.program, place, port):
        fleet = ProcessFleet(folder, link, stage.run)
        with started(fleet):
            fleet.wait_version(1)
            before = refusals(wait(fleet.host, lambda _: True, "an answer"))
            made = _in_others_places(place, port, stage.messages)
            more = refusals(wait(fleet.host, lambda _: True, "an answer")) - before
            if more:
                raise RuntimeError(f"something came through the broker's rules: {more}")
            return finish(stage, fleet, [made], begun)


def _credentials(folder: Path, role: str) -> Path:
    """The file with the password that a role was given."""
    return next((folder / "credentials").glob(f"{role}.*toml"))


@contextmanager
def _mosquitto(program: str, folder: Path, port: int) -> Iterator[None]:
    with (folder / "log").open("ab") as log:
        command = [program, "-c", str(folder / "mosquitto.conf")]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        until(lambda: listens(port), "mosquitto listens")
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def _in_others_places(folder: Path, port: int, count: int) -> Attack:
    """Publish wherever a node may not; what the broker answers."""
    answers: Counter[str] = Counter()
    client = Client(CallbackAPIVersion.VERSION2, "x", protocol=MQTTProtocolVersion.MQTTv5)
    client.tls_set(str(folder / "authority.pem"))
    own = read_credentials(_credentials(folder, MALLORY), MALLORY)
    client.username_pw_set(own.username, own.password)
    client.on_publish = lambda _c, _u, _m, reason, _p: answers.update([str(reason)])
    client.connect("localhost", port)
    client.loop_start()
    try:
        topics = [*(UP + name for name in BOARDS), *(DOWN + name for name in BOARDS), EVERYONE]
        for index in range(count):
            frame = batch.join([b"\x24" + bytes(40)])
            client.publish(topics[index % len(topics)], frame, qos=1)
        until(lambda: answers.total() >= count, "the broker's answers")
    finally:
        client.disconnect()
        client.loop_stop()
    refused = answers["Not authorized"]
    return Attack(BY_BROKER, count, refused, dict(answers), "refused by the broker itself")


def clones(fleet: ProcessFleet) -> int:
    """How often any end says that it has seen a copied or set-back disk."""
    now = [worker.status() for worker in fleet.everyone.values()]
    return sum(copies_told(status) for status in now if status is not None)


def copies_told(status: Status) -> int:
    """The same, of one end."""
    told = status["trust"]["clones"]
    return sum(told.values()) if isinstance(told, Mapping) else int(told)


def _seen(name: str, count: int) -> Attack:
    note = "its key is that of a member: it is seen and told, and its owner revokes it"
    return Attack(name, 0, 0, {"clones": count}, note)


def _sockets(_folder: str, names: Sequence[str]) -> list[str]:
    return [name for name in names if name.endswith((".sock", "log.txt"))]


def _put_back(old: Path, folder: Path) -> None:
    for path in folder.glob("*.sqlite*"):
        path.unlink()
    for path in old.iterdir():
        shutil.copy2(path, folder / path.name)


def finish(stage: Stage, fleet: ProcessFleet, made: Sequence[Attack], begun: float) -> Scene:
    """Let the run come to its end; what it came to."""
    fleet.wait_version(stage.rounds, [*fleet.everyone.values()])
    seen = {name: shown_status(worker) for name, worker in fleet.everyone.items()}
    history = seen[HOST]["history"]
    whole = sum(set(item["counted"]) == set(BOARDS) for item in history)
    accuracy = np.mean([seen[name]["metric"] for name in BOARDS])
    for worker in fleet.everyone.values():
        end(worker)
    adapter = fleet.adapter_hash()
    return Scene(
        tuple(made),
        len(history),
        stage.rounds - whole,
        adapter,
        float(accuracy),
        seen,
        time.monotonic() - begun,
    )
