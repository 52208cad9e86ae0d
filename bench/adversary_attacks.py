"""The attacks of one who may say anything on the broker, on a fleet whose round is held open.

The fleet is at rest, so that every frame of an attack can be accounted for: each end that hears it
must count a refusal, and nothing else may change.
"""

import io
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field

import numpy as np

from bench import adversary_wire as wire
from bench.adversary_wire import Shot, Wiretap
from bench.processes import (
    CONFIG,
    LOOK_S,
    MODEL,
    ProcessFleet,
    Status,
    delivered,
    end,
    kill9,
    wait,
)
from host.config import load_bundle
from ternmesh_cli.demo.fleet import HOST
from ternmesh_cli.main import main
from ternmesh_cli.workers import Worker
from transports.base import ALL

FRAMES_MIN = 3  # that a process says, and the host hears, before it is ended
# Without another refusal: after which one that is missing never comes, and what the host tells
# nodes of refusals has been told.
MISSING_S, TOLD_S = 20.0, 0.5
MALFORMED = "malformed"  # what the transport counts beside the refusals
Reasons = Counter[str]


@dataclass(frozen=True, slots=True)
class Attack:
    """What became of it. `heard`: frames times the ends that were sent them."""

    name: str
    heard: int
    refused: int
    reasons: Mapping[str, int] = field(default_factory=dict)
    note: str = ""

    @property
    def accepted(self) -> int:
        """Frames that nobody refused."""
        return max(0, self.heard - self.refused)


def refusals(status: Status) -> Reasons:
    """By reason, what an end and the link of its radio have refused since it began."""
    transport = status["transport"]
    found = Counter({MALFORMED: int(transport.get(MALFORMED, 0))})
    for reasons in (status["refused"], *transport.get("link", {}).get("refused", {}).values()):
        found.update(reasons)
    return +found


class Quiet:
    """A fleet with one board stopped in the middle of a round, and a wiretap."""

    def __init__(self, fleet: ProcessFleet, tap: Wiretap, stopped: str) -> None:
        self.fleet, self.tap, self.stopped = fleet, tap, stopped
        self.awake = {n: w for n, w in fleet.everyone.items() if n != stopped}
        self.names = [name for name in self.awake if name != HOST]

    def refused(self) -> dict[str, Reasons]:
        """What each end that is awake has refused."""
        return {n: refusals(wait(w, lambda _: True, "an answer")) for n, w in self.awake.items()}

    def attack(self, name: str, shots: Sequence[Shot]) -> Attack:
        """Say it all and account for it: first to the host, then to nodes, in one's own name each.

        The host tells the node in whose name it was spoken to; nodes tell nobody.
        """
        heard = refused = 0
        reasons: Reasons = Counter()
        for is_host in (True, False):
            mine = [s for s in shots if (s.to == HOST) == is_host and s.to != self.stopped]
            ends = [HOST] if is_host else self.names
            before = self.refused()
            self.tap.say(mine)
            wanted = sum(len(s.frames) * (len(ends) if s.to == ALL else 1) for s in mine)
            more = self._more(ends, before, wanted, MISSING_S)
            heard, refused, reasons = heard + wanted, refused + more.total(), reasons + more
            if is_host:
                self._more(self.names, self.refused(), 1 << 30, TOLD_S)
        return Attack(name, heard, min(refused, heard), dict(reasons))

    def _more(
        self, ends: Sequence[str], before: dict[str, Reasons], wanted: int, quiet_s: float
    ) -> Reasons:
        """What `ends` have refused since: all that is wanted, or no more for `quiet_s`."""
        last, changed_at = Counter[str](), time.monotonic()
        while time.monotonic() < changed_at + quiet_s:
            now = self.refused()
            found = sum((now[e] - before[e] for e in ends), Counter[str]())
            if found.total() >= wanted:
                return found
            if found != last:
                last, changed_at = found, time.monotonic()
            time.sleep(LOOK_S)
        return last

    def standing(self) -> tuple[object, ...]:
        """What no attack may change."""
        host = wait(self.fleet.host, lambda _: True, "an answer")
        nodes = [
            wait(w, lambda _: True, "an answer") for n, w in self.awake.items() if n in self.names
        ]
        people = tuple((n["name"], n["context"], n["samples"]) for n in host["nodes"])
        about = (host["version"], host["phase"], host["reference"], people, delivered(host))
        return (*about, *((n["run"], n["version"], n["joined"], n["phase"]) for n in nodes))


def say_all(quiet: Quiet, rng: np.random.Generator, most: int) -> Iterator[Attack]:
    """Every attack by messages; of what was heard, at most `most` messages are used in each."""
    status = wait(quiet.fleet.host, lambda _: True, "an answer")
    run, model = bytes.fromhex(status["run"]), load_bundle(MODEL).model_hash()
    contexts = {node["name"]: node["context"] for node in status["nodes"]}
    heard = quiet.tap.heard[:most]
    insider = wire.steal(quiet.fleet.boards[quiet.names[0]].folder)
    yield quiet.attack("replay of every frame", wire.singly(heard))
    yield quiet.attack("reordered counters", wire.shuffled(heard, rng))
    yield quiet.attack("bits flipped", wire.bent(heard, rng))
    yield quiet.attack("forged status and control", wire.forged(heard, rng))
    yield quiet.attack("another's topic", wire.crossed(heard, quiet.names))
    yield quiet.attack("downgrade: no keys", wire.unsealed(run, contexts, model))
    yield quiet.attack("downgrade: versions and suites", wire.other_versions(heard))
    yield quiet.attack("rubbish", wire.rubbish(quiet.names, 60, rng))
    yield quiet.attack(
        "a member speaks for the host", wire.as_hub(insider, run, model, quiet.tap.heard)
    )


def forge(quiet: Quiet) -> Attack:
    """Frames without a seal alone."""
    status = wait(quiet.fleet.host, lambda _: True, "an answer")
    run, model = bytes.fromhex(status["run"]), load_bundle(MODEL).model_hash()
    contexts = {node["name"]: node["context"] for node in status["nodes"]}
    return quiet.attack("without keys", wire.unsealed(run, contexts, model))


def thief(fleet: ProcessFleet, name: str, url: str) -> Attack:
    """A node process with a key that was stolen, and then revoked."""
    config = str(fleet.host.folder / CONFIG)
    with redirect_stdout(io.StringIO()):
        if main(["enrol", "revoke", "--config", config, name, "--json"]):
            raise RuntimeError("the host does not revoke")
    return _process(fleet, fleet.board(name, name, {"url": url}), "a stolen key after revocation")


def insecure(fleet: ProcessFleet, name: str, url: str) -> Attack:
    """A node process that was started without keys."""
    worker = fleet.board(f"{name}-insecure", name, {"url": url}, "--insecure")
    return _process(fleet, worker, "downgrade: --insecure")


def _process(fleet: ProcessFleet, worker: Worker, attack: str) -> Attack:
    before = refusals(wait(fleet.host, lambda _: True, "an answer"))
    worker.start()
    try:
        now = wait(worker, lambda now: sent(now) >= FRAMES_MIN, "frames")
        heard, found = sent(now), Counter[str]()
        give_up_at = time.monotonic() + MISSING_S
        while found.total() < heard and time.monotonic() < give_up_at:
            found = refusals(wait(fleet.host, lambda _: True, "an answer")) - before
        kill9(worker)  # not before: what is still in its queue would never arrive
    finally:
        end(worker)
    refused = 0 if now["joined"] else min(found.total(), heard)
    return Attack(attack, heard, refused, dict(found))


def sent(status: Status) -> int:
    """The frames that a node has sent to its host."""
    return int(status["traffic"].get(HOST, {}).get("frames_out", 0))
