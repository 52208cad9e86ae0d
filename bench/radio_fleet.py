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

FLEET, REGION, FREQUENCY_HZ, LOSS = "bench", "EU868", 869_525_000, 0.2
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
    folder: Path, air: Air, ports: Sequence[str], model: str, host: Tables, boards: Tables
) -> Iterator[list[Worker]]:
    """Host and boards while they run; `boards` has the tables of each one, by its name."""
    enrol_fleet(FLEET, folder / HOST, {name: folder / name for name in boards})
    serial: dict[str, Any] = {
        "dialect": air.dialect, "frequency_hz": FREQUENCY_HZ, "speed": air.speed,
        "addresses": {name: number for number, name in enumerate(boards, 1)},
        **asdict(SETTINGS[air.dialect]),
    }  # fmt: skip
    if air.dialect in HOP_OF:
        serial[HOP_OF[air.dialect]] = air.hops
    with ExitStack() as stack:
        workers = []
        for port, (name, own) in zip(ports, {HOST: host, **boards}.items(), strict=True):
            top: dict[str, Any] = {"state_dir": str(folder / name), "model": model}
            top |= {} if name == HOST else {"name": name}
            link = {"region": REGION, "fleet": FLEET, "serial": {**serial, "port": port}}
            path = folder / name / CONFIG
            path.write_text(write_toml({"": top, "link": link, **own}))
            words = ["host" if name == HOST else "node", "--config", str(path)]
            worker = Worker(name, path.parent, python("ternmesh_cli.main", *words))
            workers.append(worker)
            stack.callback(end, worker)
            worker.start()
        yield workers
