"""One life of a scripted transfer: two links with their files, a radio channel, and a log.

The clock is simulated; files, processes and kills are real. What happens goes to a log at once, so
that it outlives the process.
"""

import os
import signal
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from math import inf
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np

from ternmesh.link.airtime import LoraSetting, airtime_us
from ternmesh.link.frames import Offer, Symbol, is_link, read
from ternmesh.link.ledger import Moment
from ternmesh.link.link import Link, LinkSettings
from ternmesh.link.outbound import object_name
from ternmesh.link.records import Delivered, GaveUp, LinkEvent, ObjectArrived, Queued, SymbolHeld
from ternmesh.link.regions import EU868
from ternmesh.wire import seal
from ternmesh_store.airtime_store import AirtimeStore
from ternmesh_store.link_store import LinkStore

ENDS = ("host", "node")
ALL = "all"
MTU = 51
SETTING = LoraSetting(7, 125)
LONGEST_US = airtime_us(SETTING, MTU)
BAND = EU868.sub_bands[3]  # 0.1 %: 3.6 s an hour
LOSS = 0.2
SETTINGS = LinkSettings(
    mtu=MTU, idle_s=2.0, spread_s=5.0, give_up_s=inf, contexts={ALL: seal.BROADCAST}
)
SAME_BOOT = "one"
TIME_MAX_S = 30 * 86_400.0
TICK_S = 1e-6


@dataclass(frozen=True, slots=True)
class Item:
    """An object of the script: offered by `end` at `time_s`."""

    time_s: float
    end: int
    size: int
    priority: int = 1
    is_broadcast: bool = False

    @property
    def payload(self) -> bytes:
        """Its bytes; no two objects are equal."""
        return np.random.default_rng([self.size, self.end]).bytes(self.size)


SCRIPT = (
    Item(0, 0, 4420, priority=2),  # two generations
    Item(0, 0, 600),
    Item(0, 1, 1700),
    Item(0, 1, 900, priority=0),
    Item(3600, 0, 1200, is_broadcast=True),
    *(Item(5000, 0, 20 + 60 * n, priority=n % 3) for n in range(10)),  # more than are under way
    *(Item(9000, 1, 35 + 50 * n, priority=2 - n % 3) for n in range(10)),
    Item(20_000, 1, 33, priority=0),
    Item(30_000, 0, 1, priority=0),
)


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL at the event with this number, of both ends: as it is taken, or once it is on disk.

    `boot` is what the next life knows of the machine's boot.
    """

    event: int
    is_committed: bool = False
    boot: str = SAME_BOOT


class Kind(IntEnum):
    """What happened: an event was taken; events are on disk, a symbol, an object; a frame left."""

    EVENT, COMMIT, HELD, ARRIVED, SENT = range(5)


_ENTRY = struct.Struct("<BBdIi4sI")


class Entry(NamedTuple):
    """What happened to `end`. `symbol` is an index, -1 for none; `counter` is that of a seal."""

    kind: int
    end: int
    time_s: float
    airtime_us: int = 0
    symbol: int = -1
    name: bytes = bytes(4)
    counter: int = 0


def read_log(path: Path) -> list[Entry]:
    """All entries."""
    return [Entry(*fields) for fields in _ENTRY.iter_unpack(path.read_bytes())]


class Life:
    """Both ends from `begun_s` on, until all is delivered or the kill."""

    def __init__(
        self, folder: Path, log: int, begun_s: float, kill: Kill | None, boot: str
    ) -> None:
        self.folder, self._log, self._kill, self._boot = folder, log, kill, boot
        self.now = self._begun_s = begun_s
        self._events = 0
        self.rng = np.random.default_rng(round(begun_s))
        self._losses = np.random.default_rng([round(begun_s), 1])
        self._ends = [_End(self, number) for number in range(len(ENDS))]

    @property
    def moment(self) -> Moment:
        """Now, as the machine knows it: a boot begins its clock anew, and has no wall clock."""
        begun_s = 0.0 if self._boot == SAME_BOOT else self._begun_s
        return Moment(self._boot, self.now - begun_s)

    def log(self, entry: Entry) -> None:
        """One write to a file that is open for appending: it is there, whoever dies after it."""
        os.write(self._log, _ENTRY.pack(*entry))

    def taken(self, end: int) -> None:
        """An event was taken and not written yet."""
        self.log(Entry(Kind.EVENT, end, self.now))
        self._events += 1
        if self._kill and not self._kill.is_committed and self._events == self._kill.event:
            _die()

    def committed(self, end: int) -> None:
        """All events taken are on disk, and nothing has left since."""
        self.log(Entry(Kind.COMMIT, end, self.now))
        if self._kill and self._kill.is_committed and self._events >= self._kill.event:
            _die()

    def run(self) -> None:
        """Until both ends have delivered everything; AssertionError where that takes a month."""
        for end in self._ends:
            end.open()
        while True:
            for end in self._ends:
                end.settle()
            if all(end.is_done for end in self._ends):
                break
            ready = [end for end in self._ends if end.link.has_frames and end.wait_s <= 0]
            if ready:
                self._transmit(min(ready, key=lambda end: end.spoke_s))
            else:
                self.now = max(self.now, min(time for end in self._ends for time in end.times()))
            assert self.now < TIME_MAX_S, "the transfer does not end"
        for end in self._ends:
            end.close()

    def _transmit(self, end: "_End") -> None:
        frame, air_us = end.frame()
        self.now += air_us / 1e6
        end.spoke_s = self.now
        if self._losses.random() >= LOSS:
            other = self._ends[1 - end.number]
            other.link.receive_frame(ENDS[end.number], frame, self.now)


class _End:
    """A link, its file, its airtime, and what of the script it has not offered."""

    def __init__(self, life: Life, number: int) -> None:
        self._life, self.number = life, number
        self._store = LinkStore(life.folder / f"{ENDS[number]}.sqlite")
        self._airtime = AirtimeStore(life.folder / f"{ENDS[number]}-airtime.sqlite")
        self._slots: dict[int, bytes] = {}
        self.spoke_s = 0.0

    def open(self) -> None:
        self._store.open()
        self._airtime.open(self._life.moment)
        state = self._store.load()
        self._undelivered = {record.queued.number for record in state.outgoing}
        for record in state.outgoing:
            if record.slot is not None:
                queued = record.queued
                self._slots[record.slot] = object_name(queued.number, queued.payload)
        self._script = [item for item in SCRIPT if item.end == self.number][state.number :]
        self.link = Link(SETTINGS, state, self._life.rng)
        self.link.start(self._life.now)

    def close(self) -> None:
        self._airtime.settle(self._life.moment)
        self._airtime.close()
        self._store.close()

    @property
    def is_done(self) -> bool:
        return not (self._script or self._undelivered or self.link.has_frames)

    @property
    def wait_s(self) -> float:
        """Until the hour has room for any frame."""
        moment = self._life.moment
        free_s = self._airtime.ledger(BAND, moment).next_free_s(moment.now_s, LONGEST_US)
        return free_s - moment.now_s

    def times(self) -> Iterator[float]:
        """When there is something to do."""
        timeout = self.link.next_timeout()
        if timeout is not None:
            yield timeout
        if self._script:
            yield self._script[0].time_s
        if self.link.has_frames:
            yield self._life.now + self.wait_s + TICK_S

    def settle(self) -> None:
        """What is due, then all events, one commit."""
        self.link.handle_timeout(self._life.now)
        peer = ENDS[1 - self.number]
        while self._script and self._script[0].time_s <= self._life.now:
            item = self._script.pop(0)
            to = ALL if item.is_broadcast else peer
            self.link.send(to, item.payload, receivers=(peer,), priority=item.priority)
        events = []
        while (event := self.link.next_event()) is not None:
            self._life.taken(self.number)
            self._store.record(event)
            events.append(event)
        self._store.commit()
        for event in events:
            self._note(event)
        if events:
            self._life.committed(self.number)

    def _note(self, event: LinkEvent) -> None:
        now = self._life.now
        match event:
            case Queued():
                self._undelivered.add(event.number)
            case Delivered():
                self._undelivered.remove(event.number)
            case SymbolHeld():
                name = event.offer.name
                self._life.log(Entry(Kind.HELD, self.number, now, symbol=event.index, name=name))
            case ObjectArrived():
                self._life.log(Entry(Kind.ARRIVED, self.number, now, name=event.name))
            case GaveUp():
                raise AssertionError(event)

    def frame(self) -> tuple[bytes, int]:
        """The next frame and its airtime, which is on disk."""
        [(_, frame)] = self.link.frames_to_send(self._life.now, 1)
        air_us = airtime_us(SETTING, len(frame))
        assert self._airtime.reserve(BAND, self._life.moment, air_us)
        header, body = seal.open_seal(frame)
        message = read(body) if is_link(body) else None
        symbol, name = -1, bytes(4)
        if isinstance(message, Offer):
            self._slots[message.slot] = message.name
        elif isinstance(message, Symbol):
            symbol, name = message.index, self._slots[message.slot]
        now = self._life.now
        self._life.log(Entry(Kind.SENT, self.number, now, air_us, symbol, name, header.counter))
        return frame, air_us


def _die() -> NoReturn:
    """As by `kill -9`."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")
