"""The demo's fleet: a broker, a host and three board processes, each with one speaker's clips.

Over BLE a gateway process stands between boards and broker.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.zoo import fsdd_path
from ternmesh.errors import TernmeshError
from ternmesh_cli.demo.bearer import (
    BLE_RUN,
    Ble,
    Links,
    LinkTable,
    Radios,
    on_ble,
    on_broker,
    on_radio,
)
from ternmesh_cli.keys import enrol_fleet
from ternmesh_cli.toml import write_toml
from ternmesh_cli.workers import Worker, python, running

BOARDS = ("theo", "nicolas", "yweweler")
HOST, GATEWAY = "host", "gateway"
CONFIG = "config.toml"
# What a packet and a reference may take, in bytes, and the falling rate that suits them.
RUN: Mapping[str, Any] = {"up_bytes": 670, "down_bytes": 1200, "learning_rate_drop": 0.8}
STOP_S = 5.0


class DemoError(TernmeshError):
    """The demo cannot start or go on."""


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """What the user may choose."""

    folder: Path
    broker: str | None = None
    radios: Radios | None = None
    ble: Ble | None = None
    rounds: int = 20
    seed: int = 0
    name: str = "demo"


@dataclass(frozen=True, slots=True)
class Fleet:
    """The running processes; a gateway only where the bearer needs one."""

    host: Worker
    boards: list[Worker]
    gateway: Worker | None = None

    @property
    def everyone(self) -> list[Worker]:
        """All of them."""
        return [self.host, *self.boards, *([self.gateway] if self.gateway else [])]


@contextmanager
def fleet(settings: DemoSettings) -> Iterator[Fleet]:
    """The running fleet; everything is stopped when the block ends."""
    with ExitStack() as stack:
        links = stack.enter_context(_bearer(stack, settings))
        folders = {name: settings.folder / name for name in BOARDS}
        enrol_fleet(settings.name, settings.folder / HOST, folders)
        config = _host_config(settings, links.table(HOST))
        host = _spawn(stack, HOST, settings.folder / HOST, config)
        gateway = None
        if links.bridges:
            config = _gateway_config(settings, links)
            gateway = _spawn(stack, GATEWAY, settings.folder / GATEWAY, config)
        boards = [
            _spawn(
                stack,
                "node",
                settings.folder / name,
                _node_config(settings, links.table(name), name),
            )
            for name in BOARDS
        ]
        yield Fleet(host, boards, gateway)


def _bearer(stack: ExitStack, settings: DemoSettings) -> AbstractContextManager[Links]:
    if settings.radios is not None:
        return on_radio(settings.radios, BOARDS, settings.name)
    broker = settings.broker or _own_broker(stack)
    if settings.ble is not None:
        return on_ble(settings.ble, BOARDS, broker, settings.name)
    return on_broker(broker, settings.name)


def _own_broker(stack: ExitStack) -> str:
    from transports.broker import EmbeddedBroker  # only where the extra is needed

    return stack.enter_context(EmbeddedBroker()).url


def _host_config(settings: DemoSettings, link: LinkTable) -> str:
    return write_toml(
        {
            "": {"state_dir": str(settings.folder / "host"), "bundle": "keyword"},
            "link": link,
            "run": {
                **RUN,
                "rounds": settings.rounds,
                "min_peers": len(BOARDS),
                "deadline_s": 20.0,
                **(BLE_RUN if settings.ble else {}),
                **(settings.radios.run if settings.radios else {}),
            },
        }
    )


def _gateway_config(settings: DemoSettings, links: Links) -> str:
    return write_toml(
        {
            "": {"state_dir": str(settings.folder / GATEWAY)},
            "radio": {"ble": links.bridges},
            "network": links.table(GATEWAY),
        }
    )


def _node_config(settings: DemoSettings, link: LinkTable, name: str) -> str:
    # The shipped clips as they are: bytes of 0 to 255, all speakers in one file.
    clips = {"divide_by": 255.0, "arrays": {"features": "x", "target": "y"}}
    mine = {**clips, "where": {"speaker": name}}
    return write_toml(
        {
            "": {
                "name": name,
                "state_dir": str(settings.folder / name),
                "bundle": "keyword",
            },
            "link": link,
            "data": {"path": str(fsdd_path("train")), **mine},
            "training": {"seed": settings.seed},
            "evaluate": {"path": str(fsdd_path("dev")), **mine},
        }
    )


def _spawn(stack: ExitStack, command: str, folder: Path, config: str) -> Worker:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(config)
    arguments = python("ternmesh_cli.main", command, "--config", str(folder / CONFIG))
    return stack.enter_context(running(Worker(folder.name, folder, arguments, stop_s=STOP_S)))
