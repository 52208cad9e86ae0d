"""The demo's fleet: a host and the boards of three rooms, each a process.

A room has heard one voice say seven of ten words, 20 times each; two voices have said each word.

Boards share a broker or a radio channel. Over BLE, a gateway process joins them to the broker.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.zoo import rooms_path
from ternmesh.errors import TernmeshError
from ternmesh_cli.demo.bearer import (
    BLE_RUN,
    RADIO_RUN,
    Ble,
    Links,
    LinkTable,
    Radios,
    on_ble,
    on_radio,
)
from ternmesh_cli.demo.voters import LeaderKill, Tables, begin, seat
from ternmesh_cli.keys import enrol_fleet
from ternmesh_cli.process import write_toml
from ternmesh_cli.workers import Worker, python, running

BOARDS = ("theo", "nicolas", "yweweler")
HOST = "host"
GATEWAY = "gateway"
CONFIG = "config.toml"
# The size of an update and of a global update in bytes, and the learning rate's decay for them.
RUN: Mapping[str, Any] = {"up_bytes": 480, "down_bytes": 1200, "learning_rate_drop": 0.8}
STOP_S = 5.0
MODEL = "words"
# The rows as shipped: whole numbers, those of all rooms in one file.
ROWS: Mapping[str, Any] = {"divide_by": 32.0, "arrays": {"features": "x", "target": "y"}}


class DemoError(TernmeshError):
    """The demo cannot start or continue."""


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """The user's choices."""

    folder: Path
    broker: str | None = None  # a URL; None for a broker of our own
    radios: Radios | None = None
    ble: Ble | None = None
    rounds: int = 20
    seed: int = 0
    name: str = "demo"
    page: int = 0  # the port of its web page; 0: none
    voters: int = 1  # hosts
    kills_leader: bool = False


@dataclass(frozen=True, slots=True)
class Fleet:
    """The running processes; a gateway only over BLE."""

    hosts: dict[str, Worker]  # by name; several are voters
    boards: list[Worker]
    gateway: Worker | None = None
    killed: LeaderKill | None = None

    @property
    def workers(self) -> list[Worker]:
        return [*self.hosts.values(), *self.boards, *([self.gateway] if self.gateway else [])]

    def keep_alive(self) -> None:
        """Restart what a signal killed. WorkerError for what ended with an error."""
        for worker in self.workers:
            if not (self.killed and self.killed.keeps_away(worker, time.monotonic())):
                worker.keep_alive()


@contextmanager
def fleet(settings: DemoSettings) -> Iterator[Fleet]:
    """Run a fleet until the block ends."""
    with ExitStack() as stack:
        links = stack.enter_context(_links(stack, settings))
        folders = {name: settings.folder / name for name in BOARDS}
        enrol_fleet(settings.name, settings.folder / HOST, folders)

        def spawn(command: str, name: str, tables: Tables) -> Worker:
            return stack.enter_context(running(_worker(settings, command, name, tables)))

        own = _host_config(settings, links.table(HOST))
        seats: dict[str, Tables] = {HOST: {}}
        signed: Mapping[str, Any] = {}
        if settings.voters > 1:
            begin(_worker(settings, HOST, HOST, own))
            seats, signed = seat(settings.folder / HOST, settings.voters)
        hosts = {}
        for number, (name, further) in enumerate(seats.items()):
            top = {**own[""], "state_dir": str(settings.folder / name)}
            page = {"port": settings.page and settings.page + number}
            hosts[name] = spawn(HOST, name, {**own, "": top, "page": page, **further})
        gateway = None
        if links.bridges:
            top = {"state_dir": str(settings.folder / GATEWAY)}
            ends = {"radio": {"ble": links.bridges}, "network": links.table(GATEWAY)}
            gateway = spawn(GATEWAY, GATEWAY, {"": top, **ends})
        boards = []
        for name in BOARDS:
            tables = _node_config(settings, links.table(name), name)
            boards.append(spawn("node", name, tables | ({"security": signed} if signed else {})))
        yield Fleet(hosts, boards, gateway, LeaderKill() if settings.kills_leader else None)


def _worker(settings: DemoSettings, command: str, name: str, tables: Tables) -> Worker:
    folder = settings.folder / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(write_toml(tables))
    arguments = python("ternmesh_cli.main", command, "--config", str(folder / CONFIG))
    return Worker(name, folder, arguments, stop_s=STOP_S)


def _links(stack: ExitStack, settings: DemoSettings) -> AbstractContextManager[Links]:
    if settings.radios is not None:
        return on_radio(settings.radios, BOARDS, settings.name)
    broker = settings.broker
    if broker is None:
        from transports.mqtt.embedded_broker import EmbeddedBroker  # needs an optional package

        broker = stack.enter_context(EmbeddedBroker()).url
    if settings.ble is not None:
        return on_ble(settings.ble, BOARDS, broker, settings.name)
    return nullcontext(Links(lambda _role: {"url": broker, "fleet": settings.name}))


def _host_config(settings: DemoSettings, link: LinkTable) -> Tables:
    return {
        "": {"state_dir": str(settings.folder / HOST), "model": MODEL},
        "link": link,
        "run": {
            **RUN,
            "rounds": settings.rounds,
            "min_peers": len(BOARDS),
            "deadline_s": 20.0,
            **(BLE_RUN if settings.ble else {}),
            **(RADIO_RUN if settings.radios else {}),
        },
    }


def _node_config(settings: DemoSettings, link: LinkTable, name: str) -> Tables:
    path = {"path": str(rooms_path())}
    return {
        "": {"name": name, "state_dir": str(settings.folder / name), "model": MODEL},
        "link": link,
        "data": {**path, **ROWS, "where": {"speaker": name, "part": "heard"}},
        "training": {"seed": settings.seed},
        "evaluate": {**path, **ROWS, "where": {"speaker": name, "part": "reported"}},
    }
