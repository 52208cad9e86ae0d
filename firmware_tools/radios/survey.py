"""What a channel is like: how busy it is, and how far two modems reach.

Both run the dialects of `transports.serial_lora` on real ports. Only LoRa frames that the modem
itself decodes are heard: those of its own network, spreading factor and bandwidth.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from firmware_tools.errors import FirmwareError
from firmware_tools.radios.line import Line
from ternmesh.link.regions import RadioChannel, Region, check
from ternmesh_store.airtime_store import AirtimeStore
from transports.serial_lora.airtime_budget import AirtimeBudget
from transports.serial_lora.dialect import (
    Broken,
    Dialect,
    Event,
    PayloadRefused,
    Received,
    Sent,
    Write,
)
from transports.serial_lora.settings import SerialLoraSettings
from transports.serial_lora.transport import new_dialect

READY_S = 30.0  # for a modem to be set up
READ_S = 0.02
MARK = b"ternmesh range "
MARGIN_S = 2.0  # for a modem to report a frame that has arrived
LATEST_S = 20.0  # for a modem to report a frame as sent


@dataclass(frozen=True, slots=True)
class ChannelUse:
    """What was heard on a channel."""

    seconds: float
    frames: int
    airtime_s: float  # of the frames
    strongest_dbm: float | None = None

    @property
    def share(self) -> float:
        """The part of the time in which frames were on the air."""
        return self.airtime_s / self.seconds


@dataclass(frozen=True, slots=True)
class Reach:
    """How well frames arrive with one spreading factor, one way."""

    spreading_factor: int
    sender: str
    sent: int
    arrived: int
    rssi_dbm: float | None = None  # means
    snr_db: float | None = None
    reason: str = ""  # why nothing could be measured

    @property
    def ratio(self) -> float:
        """The part of the frames that arrived."""
        return self.arrived / self.sent if self.sent else 0.0


@dataclass(slots=True)
class Station:
    """A modem that is set up and serves its port when it is asked to."""

    line: Line
    dialect: Dialect[Any]
    heard: list[Received] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def start(self) -> None:
        """Set the modem up; FirmwareError where it does not answer or refuses."""
        self._handle(self.dialect.start(time.monotonic()))
        end = time.monotonic() + READY_S
        while not self.dialect.ready:
            self.serve()
            if time.monotonic() > end:
                raise FirmwareError(f"{self.line.path}: the modem was not set up in {READY_S:g} s")

    def serve(self) -> None:
        """Take what came and do what is due; returns soon."""
        data = self.line.read(READ_S)
        now = time.monotonic()
        if data:
            self._handle(self.dialect.receive_bytes(data, now))
        if (due := self.dialect.deadline) is not None and due <= now:
            self._handle(self.dialect.handle_timeout(now))

    def send(self, payload: bytes) -> None:
        """Put a payload in flight."""
        self._handle(self.dialect.send(payload, time.monotonic()))

    def _handle(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case Write(data):
                    self.line.write(data)
                case Received():
                    self.heard.append(event)
                case PayloadRefused(reason):
                    self.refused.append(reason)
                case Broken(reason):
                    raise FirmwareError(f"{self.line.path}: {reason}")
                case Sent():
                    continue


def survey(
    settings: SerialLoraSettings, seconds: float, tell: Callable[[ChannelUse], None]
) -> ChannelUse:
    """Listen on a channel for so long (radio time); `tell` is called about once a second."""
    with Line(settings.port, settings.baud) as line:
        station = Station(line, new_dialect(settings, random.Random()))
        station.start()
        began = told = time.monotonic()
        while (now := time.monotonic()) < began + seconds / settings.speed:
            station.serve()
            if now >= told + 1.0:
                told = now
                tell(_busy(station, (now - began) * settings.speed))
        return _busy(station, (time.monotonic() - began) * settings.speed)


def _busy(station: Station, seconds: float) -> ChannelUse:
    airtime_us = sum(station.dialect.airtime_us(len(item.payload)) for item in station.heard)
    levels = [item.rssi_dbm for item in station.heard if item.rssi_dbm is not None]
    return ChannelUse(seconds, len(station.heard), airtime_us / 1e6, max(levels, default=None))


def measure_range(
    settings: Sequence[SerialLoraSettings],
    region: Region,
    factors: Sequence[int],
    frames: int,
    ledgers: Path,
    waits: Callable[[float], None],
) -> Iterator[Reach]:
    """Frames from each of two modems to the other, for each spreading factor.

    Both obey the region's law: ChannelError before anything is sent, and pauses where the airtime
    of the hour is spent, which is kept in the folder `ledgers`; `waits` is told how long. What else
    these modems have sent is not known here.
    """
    own = settings[0]
    tuned = {factor: replace(own.radio, spreading_factor=factor) for factor in factors}
    for radio in tuned.values():
        band = check(region, RadioChannel(own.frequency_hz, radio, own.power_dbm))
    ledgers.mkdir(parents=True, exist_ok=True)
    files = [ledgers / f"{Path(one.port).name}.airtime" for one in settings]
    budgets = [AirtimeBudget(AirtimeStore(path), band, speed=own.speed) for path in files]
    try:
        for factor, radio in tuned.items():
            with ExitStack() as stack:
                stations = []
                for one in settings:
                    line = stack.enter_context(Line(one.port, one.baud))
                    dialect = new_dialect(replace(one, radio=radio), random.Random())
                    stations.append(Station(line, dialect))
                try:
                    for station in stations:
                        station.start()
                except FirmwareError as error:  # some modems do not have all spreading factors
                    yield Reach(factor, own.port, 0, 0, reason=str(error))
                    continue
                for index, budget in enumerate(budgets):
                    trial = _Trial(stations[index], stations[1 - index], budget, own.speed)
                    yield trial.run(factor, frames, waits)
    finally:
        for budget in budgets:
            budget.close()


@dataclass(slots=True)
class _Trial:
    """Frames one way."""

    sender: Station
    receiver: Station
    budget: AirtimeBudget
    speed: float
    arrived: dict[int, Received] = field(default_factory=dict)

    def run(self, factor: int, frames: int, waits: Callable[[float], None]) -> Reach:
        """Send so many frames, and count."""
        sent, reason = 0, ""
        while sent < frames and not reason:
            reason = self._send(sent, waits)
            sent += not reason
        levels = [item.rssi_dbm for item in self.arrived.values() if item.rssi_dbm is not None]
        ratios = [item.snr_db for item in self.arrived.values() if item.snr_db is not None]
        rssi, snr = (fmean(values) if values else None for values in (levels, ratios))
        return Reach(factor, self.sender.line.path, sent, len(self.arrived), rssi, snr, reason)

    def _send(self, number: int, waits: Callable[[float], None]) -> str:
        """Send one frame, and wait until it has arrived or is lost; why it was not sent, or ""."""
        payload = MARK + f"{self.sender.line.path[-3:]} {number}".encode().ljust(10, b".")
        airtime_us = self.sender.dialect.airtime_us(len(payload))
        told = False
        while wait_s := self.budget.may_send(airtime_us):
            if not told:
                waits(wait_s)
                told = True
            _serve((self.sender, self.receiver))
        self.receiver.heard.clear()
        self.sender.refused.clear()
        self.sender.send(payload)
        air_s = airtime_us / 1e6 / self.speed
        end, latest = (time.monotonic() + 2 * air_s + s for s in (MARGIN_S, LATEST_S))
        while number not in self.arrived or not self.sender.dialect.idle:
            now = time.monotonic()
            if now >= latest or (now >= end and self.sender.dialect.idle):
                break
            _serve((self.sender, self.receiver))
            found = (item for item in self.receiver.heard if item.payload == payload)
            self.arrived.update((number, item) for item in found)
        if not self.sender.dialect.idle:
            return f"the modem did not report the frame as sent in {LATEST_S:g} s"
        return "; ".join(self.sender.refused[:1])


def _serve(stations: Sequence[Station]) -> None:
    for station in stations:
        station.serve()
