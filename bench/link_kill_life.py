"""One life of a scripted transfer: two links with their files, a radio channel, and a log.

The clock is simulated; files, processes and kills are real. What happens goes to a log at once, so
that it outlives the process.
"""

import os
import signal
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np

from ternmesh.link.airtime import LoraSetting, airtime_us
from ternmesh.link.frames import Offer, Symbol, is_link, read
from ternmesh.link.ledger import Moment
from ternmesh.link.link import Link, LinkSettings
from ternmesh.link.records import Delivered, GaveUp, LinkEvent, ObjectArrived, Queued, SymbolHeld
from ternmesh.link.regions import EU868
from ternmesh.wire import seal
from ternmesh_store.airtime_store import AirtimeStore
from ternmesh_store.link_store import LinkStore

ENDS = ("host", "node")
ALL = "all"
MTU = 51
SETTING = LoraSetting(7, 125)
BAND = EU868.sub_bands[3]  # 0.1 %: 3.6 s an hour
LOSS = 0.2
SETTINGS = LinkSettings(
    mtu=MTU, idle_s=2.0, spread_s=5.0, give_up_s=1e9, contexts={ALL: seal.BROADCAST}
)
TIME_MAX_S = 30 * 86_400.0
FRAME_US = airtime_us(SETTING, MTU)  # of the longest frame


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
    Item(0, 0, 5000, priority=2),  # two generations
    Item(0, 0, 600),
    Item(0, 1, 2100),
    Item(0, 1, 900, priority=0),
    Item(3600, 0, 1500, is_broadcast=True),
    *(Item(5000, 0, 20 + 60 * n, priority=n % 3) for n in range(10)),  # more than are under way
    *(Item(9000, 1, 35 + 50 * n, priority=2 - n % 3) for n in range(10)),
    Item(20_000, 1, 33, priority=0),
    Item(30_000, 0, 1, priority=0),
)


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL at the event with this index, over both ends: as it is taken, or once it is on disk.

    `boot` is what the next life knows of the machine's boot; it is "one" before.
    """

    event: int
    is_committed: bool = False
    boot: str = "one"


EVENT, SENT, HELD, ARRIVED = range(4)
_ENTRY = struct.Struct("<BBdIi4sI")


class Entry(NamedTuple):
    """What happened to `end`: an event was taken, a frame left, a symbol or object is on disk.

    `index` is that of a symbol, -1 for none; `counter` is that of a frame's seal.
    """

    kind: int
    end: int
    time_s: float
    airtime_us: int = 0
    index: int = -1
    name: bytes = bytes(4)
    counter: int = 0


def read_log(path: Path) -> list[Entry]:
    """All entries."""
    return [Entry(*fields) for fields in _ENTRY.iter_unpack(path.read_bytes())]


def die() -> NoReturn:
    """As by `kill -9`."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


class End:
    """One node: a link, its file, its airtime."""

    def __init__(self, life: "Life", number: int) -> None:
        self.life, self.number = life, number
        self.store = LinkStore(life.folder / f"{ENDS[number]}.sqlite")
        self.airtime = AirtimeStore(life.folder / f"{ENDS[number]}-airtime.sqlite")
        self.spoke_s = 0.0
        self.names: dict[int, bytes] = {}

    def open(self) -> None:
        self.store.open()
        self.airtime.open(self.life.moment)
        state = self.store.load()
        self.waiting = {record.queued.number for record in state.outgoing}
        script = [item for item in SCRIPT if item.end == self.number]
        self.script = script[state.number :]
        self.link = Link(SETTINGS, state, self.life.rng)
        self.link.start(self.life.now)

    def close(self) -> None:
        self.airtime.settle(self.life.moment)
        self.airtime.close()
        self.store.close()

    @property
    def is_done(self) -> bool:
        return not (self.script or self.waiting or self.link.has_frames)

    @property
    def free_s(self) -> float:
        """From when on the hour has room for any frame."""
        now_s = self.life.moment.now_s
        ledger = self.airtime.ledger(BAND, self.life.moment)
        return self.life.now + max(0.0, ledger.next_free_s(now_s, FRAME_US) - now_s)

    def times(self) -> Iterator[float]:
        """When there is something to do."""
        timeout = self.link.next_timeout()
        if timeout is not None:
            yield timeout
        if self.script:
            yield self.script[0].time_s
        if self.link.has_frames:
            yield self.free_s

    def settle(self) -> None:
        """What is due, then events, commit."""
        self.link.handle_timeout(self.life.now)
        peer = ENDS[1 - self.number]
        while self.script and self.script[0].time_s <= self.life.now:
            item = self.script.pop(0)
            to = ALL if item.is_broadcast else peer
            self.link.send(to, item.payload, receivers=(peer,), priority=item.priority)
        events = []
        while (event := self.link.next_event()) is not None:
            self.life.taken(self.number)
            self.store.record(event)
            events.append(event)
        self.store.commit()
        for event in events:
            self._committed(event)
        self.life.committed()

    def _committed(self, event: LinkEvent) -> None:
        match event:
            case Queued():
                self.waiting.add(event.number)
            case Delivered():
                self.waiting.remove(event.number)
            case SymbolHeld():
                self.life.log(HELD, self.number, index=event.index, name=event.offer.name)
            case ObjectArrived():
                self.life.log(ARRIVED, self.number, name=event.name)
            case GaveUp():
                raise AssertionError(event)

    def frame(self) -> tuple[bytes, int]:
        """The next frame and its airtime: reserved on disk, and logged as sent."""
        [(_, frame)] = self.link.frames_to_send(self.life.now, 1)
        air_us = airtime_us(SETTING, len(frame))
        assert self.airtime.reserve(BAND, self.life.moment, air_us)
        header, body = seal.open_seal(frame)
        message = read(body) if is_link(body) else None
        index, name = -1, bytes(4)
        if isinstance(message, Offer):
            self.names[message.slot] = message.name
        elif isinstance(message, Symbol):
            index, name = message.index, self.names[message.slot]
        self.life.log(SENT, self.number, air_us, index, name, header.counter)
        return frame, air_us


class Life:
    """Both ends, from `begun_s` until all is delivered or the kill."""

    def __init__(self, folder: Path, log: int, begun_s: float, kill: Kill | None, lives: int):
        self.folder, self._log, self._kill = folder, log, kill
        self.now = self._begun_s = begun_s
        self.boot = "one"
        self._events = 0
        self.rng = np.random.default_rng(lives)
        self._losses = np.random.default_rng([lives, 1])
        self.ends = [End(self, number) for number in range(len(ENDS))]

    @property
    def moment(self) -> Moment:
        """Now, as the machine knows it. A boot begins its clock anew, and no wall clock is right."""
        return Moment(self.boot, self.now if self.boot == "one" else self.now - self._begun_s + 5.0)

    def log(
        self,
        kind: int,
        end: int,
        airtime_us: int = 0,
        index: int = -1,
        name: bytes = bytes(4),
        counter: int = 0,
    ) -> None:
        """One write to a file that is open for appending: it is there whoever dies after it."""
        os.write(self._log, _ENTRY.pack(kind, end, self.now, airtime_us, index, name, counter))

    def taken(self, end: int) -> None:
        """An event was taken and not written yet."""
        self.log(EVENT, end)
        self._events += 1
        if self._kill and not self._kill.is_committed and self._events == self._kill.event:
            die()

    def committed(self) -> None:
        """All events taken are on disk, and nothing has left since."""
        if self._kill and self._kill.is_committed and self._events >= self._kill.event:
            die()

    def run(self) -> None:
        """Until both ends have delivered everything; AssertionError after `TIME_MAX_S`."""
        for end in self.ends:
            end.open()
        while True:
            for end in self.ends:
                end.settle()
            if all(end.is_done for end in self.ends):
                break
            ready = [e for e in self.ends if e.link.has_frames and e.free_s <= self.now]
            if ready:
                self._transmit(min(ready, key=lambda end: end.spoke_s))
            else:
                self.now = max(self.now, min(time for end in self.ends for time in end.times()))
            assert self.now < TIME_MAX_S, "the transfer does not end"
        for end in self.ends:
            end.close()

    def _transmit(self, end: End) -> None:
        frame, air_us = end.frame()
        self.now += air_us / 1e6
        end.spoke_s = self.now
        if self._losses.random() >= LOSS:
            other = self.ends[1 - end.number]
            other.link.receive_frame(ENDS[end.number], frame, self.now)
