"""What the demo's fleet talks over: a broker, or emulated radio modems in radio time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ternmesh.link.airtime import LoraSetting

MQTT, LORA = "mqtt", "lora"
REGION, FREQUENCY_HZ = "EU868", 869_525_000  # 10 % of each hour, 500 mW
RADIO = LoraSetting(7, 125, 1, 12)
# Objects are cut by the link: large shares lose least on heads. Frames go one by one on radio, so
# what only informs is said seldom.
RADIO_RUN: Mapping[str, Any] = {"frame_mtu": 1024, "announce_s": 3600, "deadline_s": 3600.0}
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

    @property
    def title(self) -> str:
        """What reports call it."""
        return (
            f"emulated {self.dialect} LoRa modems (SF7, 125 kHz, {REGION}, no hardware), "
            f"{self.loss:.0%} of the frames lost, {self.speed:g} times faster than real radios"
        )


@contextmanager
def on_broker(url: str, fleet: str) -> Iterator[Callable[[str], LinkTable]]:
    """The `[link]` table of everyone, by role, for a broker."""
    yield lambda _role: {"url": url, "fleet": fleet}


@contextmanager
def on_radio(radios: Radios, nodes: Sequence[str]) -> Iterator[Callable[[str], LinkTable]]:
    """The `[link]` table of each role, while its modem is plugged in."""
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
            return {"region": REGION, "serial": serial}

        yield table
