"""A fleet of real processes, with keys and files, on emulated radio modems: a host and boards."""

from collections.abc import Iterator, Mapping, Sequence
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
from transports.serial_lora.emulator.radios import LONG_FAST, EmulatedRadios, new_modem

FLEET, GATEWAY, REGION, FREQUENCY_HZ, LOSS = "bench", "shed", "EU868", 869_525_000, 0.2
HOP_OF = {"meshcore": "hops", "meshtastic": "hop_limit"}
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


def emulated(air: Air, boards: int) -> EmulatedRadios:
    """The modems of a host and so many boards."""
    modems = [new_modem(air.dialect, i, radio=SETTINGS[air.dialect]) for i in range(boards + 1)]
    return EmulatedRadios(modems, speed=air.speed, loss=LOSS, hops=air.hops)


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
    if air.dialect in HOP_OF:
        serial[HOP_OF[air.dialect]] = air.hops

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
