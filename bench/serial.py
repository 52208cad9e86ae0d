"""Hours of traffic over emulated radio modems with everything that goes wrong with a serial line.

Host and two nodes, the whole stack: `make_transport` (serial dialect, link, SQLite, the airtime
ledger of EU868 at 10 %), pseudo-terminals, emulated modems that share a channel. Nothing is real
but the software: no radio, no UART. Radio time runs faster than the wall clock.
"""

import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.result import Figure, Result
from ternmesh.link.airtime import LoraSetting
from ternmesh.wire.frame import Header, seal_open
from ternmesh_store.state_file import StateFile
from transports.base import ALL, HOST, StatusTransport
from transports.factory import make_transport
from transports.link_config import LinkConfig
from transports.serial_lora.emulator.radios import EmulatedRadios, new_modem

HOURS = {"reyax": 8.0, "ebyte": 2.0, "meshtastic": 2.0, "rnode": 2.0, "meshcore": 2.0}
HOURS_QUICK = {"reyax": 0.3, "rnode": 0.3}
SPEED, LOSS = 100.0, 0.1
MEMORY = Path("/dev/shm")  # a disk's fsync would take seconds of radio time
NODES = ("ada", "bo")
PACKET_EVERY_S, FAULT_EVERY_S = 90.0, 60.0  # of radio time, on average
SHARES, SHARE_BYTES = 4, 280  # a packet of four frames: it travels as an object of 1.2 kB
SETTLE_S = 3 * 3600.0  # of radio time, at most, for what is under way in the end
DOWN_S = 20.0  # of radio time: how long a modem is away
STUCK_S = 300.0  # and how long it reads nothing: longer than a write may take on the wall clock
RADIO = LoraSetting(7, 125, 1, 12)
NOTES = (
    "emulated modems on pseudo-terminals and an emulated channel: no hardware, no UART; stores are "
    "in memory (/dev/shm) where there is such a place",
    f"radio time {SPEED:g} times faster than the wall clock; each receiver loses {LOSS:.0%} of all "
    "frames; the link is as patient as real radios need, divided by that",
    "faults, about one in a radio minute: a modem unplugged and plugged in again, garbage between "
    "messages, lines split or glued, a modem that reads nothing, error codes",
    "objects of 1.2 kB both ways and to all nodes; each carries its number; lost or doubled ones "
    "are counted at the end, when everything under way has settled",
)


@dataclass(slots=True)
class Run:
    """One fleet on one dialect. Times are radio time in seconds."""

    dialect: str
    hours: float
    rng: random.Random
    air: EmulatedRadios
    ends: dict[str, StatusTransport]
    sent: Counter[tuple[str, int]] = field(default_factory=Counter)
    got: Counter[tuple[str, int]] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    number: int = 0
    repairs: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    begun_s: float = field(default_factory=time.monotonic)

    @property
    def now_s(self) -> float:
        """Radio time since the beginning."""
        return (time.monotonic() - self.begun_s) * SPEED

    def go(self) -> None:
        """Traffic and faults for `hours`, then quiet until all has settled."""
        next_packet = next_fault = 0.0
        end_s = self.hours * 3600
        while self.now_s < end_s:
            now = self.now_s
            if now >= next_packet:
                self._send()
                next_packet = now + self.rng.expovariate(1 / PACKET_EVERY_S)
            if now >= next_fault:
                self._fault(now)
                next_fault = now + self.rng.expovariate(1 / FAULT_EVERY_S)
            self._turn(now)
        for _, repair in self.repairs:
            repair()
        self.repairs.clear()
        while self.missing and self.now_s < end_s + SETTLE_S:
            self._turn(self.now_s)

    def _turn(self, now: float) -> None:
        for at, repair in [item for item in self.repairs if now >= item[0]]:
            repair()
            self.repairs.remove((at, repair))
        for name, end in self.ends.items():
            while (arrival := end.receive(0.001)) is not None:
                if len(arrival.frames) == SHARES:
                    number = int.from_bytes(arrival.frames[0][7:11], "little")
                    self.got[name, number] += 1

    def _send(self) -> None:
        sender = self.rng.choice((HOST, *NODES))
        peer = HOST if sender in NODES else self.rng.choice((ALL, *NODES))
        self.number += 1
        head = b"\x02" + self.number.to_bytes(4, "little")
        frames = [
            seal_open(Header(1, index), head + self.rng.randbytes(SHARE_BYTES))
            for index in range(SHARES)
        ]
        self.ends[sender].send(peer, frames)
        for name in NODES if peer == ALL else (peer,):
            self.sent[name, self.number] += 1

    def _fault(self, now: float) -> None:
        modem = self.rng.randrange(len(self.ends))
        kind = self.rng.choice(("unplug", "garbage", "split", "glued", "stuck", "error"))
        self.faults[kind] += 1
        match kind:
            case "unplug":
                self.air.unplug(modem)
                self.repairs.append((now + DOWN_S, lambda: self.air.replug(modem)))
            case "garbage":
                self.air.garble(modem, self.rng.randbytes(self.rng.randint(1, 60)))
            case "split" | "glued":
                self.air.shape(modem, kind)
                self.repairs.append((now + DOWN_S, lambda: self.air.shape(modem, "whole")))
            case "stuck":
                self.air.set_reading(modem, False)
                self.repairs.append((now + STUCK_S, lambda: self.air.set_reading(modem, True)))
            case "error":
                self.air.fail_next(modem, 12)

    @property
    def missing(self) -> int:
        """Objects that were sent and have not arrived."""
        return (self.sent - self.got).total()


def measure(*, quick: bool) -> Result:
    """All dialects, one after the other; `quick` takes two and twenty minutes of each."""
    figures: dict[str, Figure] = {}
    details = {}
    sent, got = Counter[tuple[str, str, int]](), Counter[tuple[str, str, int]]()
    for dialect, hours in (HOURS_QUICK if quick else HOURS).items():
        run = play(dialect, hours)
        sent += Counter({(dialect, *item): count for item, count in run.sent.items()})
        got += Counter({(dialect, *item): count for item, count in run.got.items()})
        details[dialect] = {"deliveries": run.sent.total(), "faults": dict(run.faults)}
        print(f"{dialect}: {details[dialect]}, {run.missing} lost", flush=True)
        figures[f"hours_{dialect}"] = Figure(hours)
    figures["deliveries"] = Figure(sent.total())
    figures["lost"] = Figure((sent - got).total(), "<=0")
    figures["doubled"] = Figure((got - sent).total(), "<=0")
    return Result("serial", figures, {}, NOTES, details, quick)


def play(dialect: str, hours: float, seed: int = 0) -> Run:
    """One dialect's hours."""
    roles = (HOST, *NODES)
    modems = [new_modem(dialect, index, radio=RADIO) for index in range(len(roles))]
    air = EmulatedRadios(modems, speed=SPEED, loss=LOSS, seed=seed)
    memory = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as scratch, air:
        ends = {}
        for role, path in zip(roles, air.paths, strict=True):
            state = StateFile(Path(scratch) / role)
            state.open()
            ends[role] = make_transport(_link(dialect, path), role, state)
        for end in ends.values():
            end.open()
        run = Run(dialect, hours, random.Random(f"{dialect} {seed}"), air, ends)
        try:
            run.go()
        finally:
            for end in ends.values():
                end.close()
    return run


def _link(dialect: str, port: str) -> LinkConfig:
    serial = {
        "port": port,
        "dialect": dialect,
        "addresses": {name: address for address, name in enumerate(NODES, 1)},
        "frequency_hz": 869_525_000,
        "spreading_factor": RADIO.spreading_factor,
        "preamble_symbols": RADIO.preamble_symbols,
        "speed": SPEED,
    }
    return LinkConfig(region="EU868", serial=serial)
