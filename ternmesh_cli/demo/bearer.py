"""The links of the demo's fleet: an MQTT broker, emulated radio modems, or simulated BLE."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ternmesh.link.airtime import LoraSetting
from transports.serial_lora.settings import HOP_SETTINGS

MQTT = "mqtt"
LORA = "lora"
BLE = "ble"
REGION = "EU868"
FREQUENCY_HZ = 869_525_000  # 10 % of each hour, 500 mW
RADIO = LoraSetting(7)
# The link cuts objects into frames, so large chunks have the least overhead. Announcements are rare
# because a radio sends one frame at a time: at 20 times the speed, 15 s are 5 min of radio time.
RADIO_RUN: Mapping[str, Any] = {"frame_mtu": 1024, "announce_s": 15, "deadline_s": 3600.0}
# Behind a gateway, an announcement may arrive before the welcome: it is soon repeated.
BLE_RUN: Mapping[str, Any] = {"announce_s": 2}
LinkTable = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Radios:
    """Emulated radio modems."""

    dialect: str = "rnode"
    loss: float = 0.0  # the fraction of frames that each receiver loses
    speed: float = 20.0  # simulated radio seconds per real second
    seed: int = 0
    hops: int = 0  # repeaters in a row between the host and the boards

    @property
    def title(self) -> str:
        """The name in reports."""
        return (
            f"emulated {self.dialect} LoRa modems (SF7, 125 kHz, {REGION}, no hardware), "
            f"{self.loss:.0%} of the frames lost, {self.speed:g} times faster than real radios"
        )


@dataclass(frozen=True, slots=True)
class Ble:
    """Simulated Bluetooth controllers."""

    loss: float = 0.0  # the fraction of values that the medium loses
    seed: int = 0

    @property
    def title(self) -> str:
        """The name in reports."""
        return (
            "BLE on simulated controllers (real host stacks, no hardware, no radio), "
            f"{self.loss:.0%} of the values lost, and a gateway to the demo's MQTT broker"
        )


@dataclass(frozen=True, slots=True)
class Links:
    """The `[link]` table of each role, and the tables of a gateway's bridges, if there is one."""

    table: Callable[[str], LinkTable]
    bridges: Mapping[str, LinkTable] = field(default_factory=dict)


@contextmanager
def on_ble(ble: Ble, nodes: Sequence[str], url: str, fleet: str) -> Iterator[Links]:
    """Boards reach a gateway's bridges over BLE; host and gateway use a broker."""
    from transports.ble.simulated import VirtualControllers

    rng = random.Random(ble.seed)
    with VirtualControllers(2 * len(nodes), loss=ble.loss, rng=rng) as virtual:
        ends = [{"hci": name} for name in virtual.names]
        boards = dict(zip(nodes, ends[: len(nodes)], strict=True))
        bridges = dict(zip(nodes, ends[len(nodes) :], strict=True))

        def table(role: str) -> LinkTable:
            return {"fleet": fleet, **({"ble": boards[role]} if role in boards else {"url": url})}

        yield Links(table, bridges)


@contextmanager
def on_radio(radios: Radios, nodes: Sequence[str], fleet: str) -> Iterator[Links]:
    """Host and boards each use an emulated modem."""
    from transports.serial_lora.emulator.radios import EmulatedRadios, new_modem

    roles = ("host", *nodes)
    modems = [new_modem(radios.dialect, i, radio=RADIO) for i, _ in enumerate(roles)]
    addresses = {name: address for address, name in enumerate(nodes, 1)}
    loss = radios.loss
    speed, seed, hops = radios.speed, radios.seed, radios.hops
    with EmulatedRadios(modems, speed=speed, loss=loss, seed=seed, hops=hops) as emulated:
        ports = dict(zip(roles, emulated.paths, strict=True))

        def table(role: str) -> LinkTable:
            serial = {
                "port": ports[role],
                "dialect": radios.dialect,
                "mesh_share": 1.0,  # it is nobody else's
                "addresses": addresses,
                "frequency_hz": FREQUENCY_HZ,
                "spreading_factor": RADIO.spreading_factor,
                "bandwidth_khz": RADIO.bandwidth_khz,
                HOP_SETTINGS.get(radios.dialect, "hops"): radios.hops,
                "speed": radios.speed,
            }
            return {"region": REGION, "fleet": fleet, "serial": serial}

        yield Links(table)
