"""What the demo's fleet talks over: a broker, emulated radio modems in radio time, or BLE."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ternmesh.link.airtime import LoraSetting
from transports.link_config import AS_IS, COMPLETE

MQTT, LORA, BLE = "mqtt", "lora", "ble"
REGION, FREQUENCY_HZ = "EU868", 869_525_000  # 10 % of each hour, 500 mW
RADIO = LoraSetting(7, 125, 1, 12)
# Objects are cut by the link: large shares lose least on heads. Frames go one by one on radio, so
# what only informs is said seldom: at 20 times the speed 15 s are five minutes of radio time.
RADIO_RUN: Mapping[str, Any] = {"frame_mtu": 1024, "announce_s": 15, "deadline_s": 3600.0}
# Frames that travel once each fit the radio, and a round does not wait for those that got lost.
AS_IS_RUN: Mapping[str, Any] = {
    **RADIO_RUN,
    "frame_mtu": 184,
    "manifest_repeats": 1,
    "deadline_s": 5.0,
}
# Behind a gateway the word that a round is open may overtake a welcome: it is soon said again.
BLE_RUN: Mapping[str, Any] = {"announce_s": 2}
LinkTable = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Radios:
    """Emulated modems of a `dialect`; each receiver loses the share `loss` of all frames.

    Radio time runs `speed` times faster than that of a real radio.
    """

    dialect: str = "reyax"
    loss: float = 0.0
    speed: float = 20.0
    seed: int = 0
    service: str = COMPLETE  # of what the boards send

    @property
    def run(self) -> Mapping[str, Any]:
        """What of the host's `[run]` suits them."""
        return AS_IS_RUN if self.service == AS_IS else RADIO_RUN

    @property
    def title(self) -> str:
        """What reports call it."""
        return (
            f"emulated {self.dialect} LoRa modems (SF7, 125 kHz, {REGION}, no hardware), "
            f"{self.loss:.0%} of the frames lost, {self.speed:g} times faster than real radios"
            + (", packets sent once" if self.service == AS_IS else "")
        )


@dataclass(frozen=True, slots=True)
class Ble:
    """Simulated Bluetooth controllers; the medium loses the share `loss` of all values."""

    loss: float = 0.0
    seed: int = 0

    @property
    def title(self) -> str:
        """What reports call it."""
        return (
            "BLE on simulated controllers (real host stacks, no hardware, no radio), "
            f"{self.loss:.0%} of the values lost, and a gateway to the demo's MQTT broker"
        )


@dataclass(frozen=True, slots=True)
class Links:
    """The `[link]` table of each role, and those of a gateway's bridges where there is one."""

    table: Callable[[str], LinkTable]
    bridges: Mapping[str, LinkTable] = field(default_factory=dict)


@contextmanager
def on_ble(ble: Ble, nodes: Sequence[str], url: str, fleet: str) -> Iterator[Links]:
    """Boards over BLE to a gateway's bridges, while there is air; everyone else on a broker."""
    from transports.ble.controllers import VirtualControllers

    rng = random.Random(ble.seed)
    with VirtualControllers(2 * len(nodes), loss=ble.loss, rng=rng) as air:
        ends = [{"hci": name} for name in air.names]
        boards = dict(zip(nodes, ends[: len(nodes)], strict=True))
        bridges = dict(zip(nodes, ends[len(nodes) :], strict=True))

        def table(role: str) -> LinkTable:
            return {"fleet": fleet, **({"ble": boards[role]} if role in boards else {"url": url})}

        yield Links(table, bridges)


@contextmanager
def on_broker(url: str, fleet: str) -> Iterator[Links]:
    """Everyone on a broker."""
    yield Links(lambda _role: {"url": url, "fleet": fleet})


@contextmanager
def on_radio(radios: Radios, nodes: Sequence[str], fleet: str) -> Iterator[Links]:
    """Everyone on a modem, while those are plugged in."""
    from transports.serial_lora.emulator.radios import EmulatedRadios, new_modem

    roles = ("host", *nodes)
    modems = [new_modem(radios.dialect, i, radio=RADIO) for i, _ in enumerate(roles)]
    addresses = {name: address for address, name in enumerate(nodes, 1)}
    with EmulatedRadios(modems, speed=radios.speed, loss=radios.loss, seed=radios.seed) as air:
        ports = dict(zip(roles, air.paths, strict=True))

        def table(role: str) -> LinkTable:
            serial = {
                "port": ports[role],
                "dialect": radios.dialect,
                "addresses": addresses,
                "frequency_hz": FREQUENCY_HZ,
                "spreading_factor": RADIO.spreading_factor,
                "bandwidth_khz": RADIO.bandwidth_khz,
                "preamble_symbols": RADIO.preamble_symbols,
                "speed": radios.speed,
            }
            service = COMPLETE if role == "host" else radios.service
            return {"region": REGION, "fleet": fleet, "service": service, "serial": serial}

        yield Links(table)
