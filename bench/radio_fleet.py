"""A fleet of real processes, with keys and files, on emulated radio modems: a host and boards."""

import random
from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.processes import CONFIG, end
from ternmesh.link.airtime import LoraSetting
from ternmesh_cli.demo.fleet import HOST
from ternmesh_cli.keys import enrol_fleet
from ternmesh_cli.process import write_toml
from ternmesh_cli.workers import Worker, python
from transports.serial_lora.emulator.channel import EmulatedChannel, Transmission
from transports.serial_lora.emulator.modem import Transmit
from transports.serial_lora.emulator.radios import LONG_FAST, EmulatedRadios, new_modem
from transports.serial_lora.settings import HOP_SETTINGS

FLEET, GATEWAY, REGION, FREQUENCY_HZ, LOSS = "bench", "shed", "EU868", 869_525_000, 0.2
HOUR_S = 3600.0
SETTINGS = {  # what most people of the region use
    "rnode": LoraSetting(7), "meshcore": LoraSetting(8, 62.5, 4), "meshtastic": LONG_FAST,
}  # fmt: skip
Tables = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Air:
    """What is between host and boards; each receiver loses `LOSS` of all frames."""

    dialect: str
    hops: int
    speed: float  # radio seconds in a second


class WatchedChannel(EmulatedChannel):
    """Notes when which modem sends, and may have repeaters that limit what they pass on."""

    def __init__(self, hops: int, per_minute: int | None) -> None:
        super().__init__(random.Random(f"{hops} air"), LOSS, hops)
        # When, by whom, its airtime in seconds, and its bytes
        self.sent: list[tuple[float, int, float, int]] = []
        self.limited = 0
        self._per_minute = per_minute
        self._passed: dict[int, deque[float]] = {}

    def start(self, sender: int, tuning: Hashable, transmit: Transmit, now: float) -> None:
        super().start(sender, tuning, transmit, now)
        if sender >= 0:
            airtime_s, size = transmit.airtime_us / 1e6, len(transmit.payload)
            self.sent.append((now, sender, airtime_s, size))

    def repeat(self, over: Transmission) -> None:
        if self._per_minute is not None and over.sender >= 0:
            passed = self._passed.setdefault(over.sender, deque(maxlen=self._per_minute))
            if len(passed) == self._per_minute and over.end - passed[0] < 60:
                self.limited += 1
                return
            passed.append(over.end)
        super().repeat(over)

    def share(self, repeats: int, cap: float) -> tuple[float, int]:
        """The largest share of a rolling hour that a modem took, and its frames above `cap`."""
        most, breaches = 0.0, 0
        for sender in {row[1] for row in self.sent}:
            hour, spent_s = deque[tuple[float, float]](), 0.0
            for at, _, airtime_s, _ in sorted(row for row in self.sent if row[1] == sender):
                hour.append((at, airtime_s))
                spent_s += airtime_s
                while hour[0][0] <= at - HOUR_S:
                    spent_s -= hour.popleft()[1]
                share = spent_s * (1 + repeats) / HOUR_S
                most, breaches = max(most, share), breaches + (share > cap)
        return most, breaches


def emulated(
    air: Air, boards: int, per_minute: int | None = None
) -> tuple[EmulatedRadios, WatchedChannel]:
    """The modems of a host and so many boards, and what is between them."""
    modems = [new_modem(air.dialect, i, radio=SETTINGS[air.dialect]) for i in range(boards + 1)]
    radios = EmulatedRadios(modems, speed=air.speed, loss=LOSS, hops=air.hops)
    radios._channel = channel = WatchedChannel(air.hops, per_minute)
    return radios, channel


@contextmanager
def radio_fleet(
    folder: Path,
    air: Air,
    ports: Sequence[str],
    model: str,
    host: Tables,
    boards: Tables,
    url: str = "",
) -> Iterator[list[Worker]]:
    """Host, boards and gateway while they run; `boards` has the tables of each, by its name.

    With a broker's `url` the host is there, and a gateway has the first radio.
    """
    gateways = {GATEWAY: folder / GATEWAY} if url else {}
    enrol_fleet(FLEET, folder / HOST, {name: folder / name for name in boards}, gateways)
    serial: dict[str, Any] = {
        "dialect": air.dialect, "frequency_hz": FREQUENCY_HZ, "speed": air.speed,
        "addresses": {name: number for number, name in enumerate(boards, 1)},
        **asdict(SETTINGS[air.dialect]),
    }  # fmt: skip
    if air.dialect in HOP_SETTINGS:
        serial[HOP_SETTINGS[air.dialect]] = air.hops

    def radio(port: str) -> dict[str, Any]:
        return {"region": REGION, "serial": {**serial, "port": port}}

    network = {"url": url, "fleet": FLEET}
    ends = [
        (HOST, "host", {"": {"model": model}, "link": {"fleet": FLEET, **radio(ports[0])}, **host})
    ]
    if url:
        ends[0][2]["link"] = network
        ends.append((GATEWAY, "gateway", {"radio": radio(ports[0]), "network": network}))
    behind = {"gateway": GATEWAY} if url else {}
    for port, (name, own) in zip(ports[1:], boards.items(), strict=True):
        link = {"fleet": FLEET, **radio(port), **behind}
        ends.append((name, "node", {"": {"model": model}, "link": link, **own}))
    with ExitStack() as stack:
        workers = []
        for name, command, tables in ends:
            top = {"state_dir": str(folder / name), **tables.pop("", {})}
            top |= {} if name == HOST else {"name": name}
            path = folder / name / CONFIG
            path.write_text(write_toml({"": top, **tables}))
            words = python("ternmesh_cli.main", command, "--config", str(path))
            workers.append(worker := Worker(name, path.parent, words))
            stack.callback(end, worker)
            worker.start()
        yield workers
