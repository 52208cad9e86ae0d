"""The transport that a `[link]` table asks for: a broker, or a radio with the link around it."""

import time
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from ternmesh.config import ConfigError
from ternmesh.link.link import LinkSettings
from ternmesh.link.regions import REGIONS, UNREGULATED, Channel, SubBand, check, longest_frame
from ternmesh.wire import seal
from transports.base import ALL
from transports.link_config import LinkConfig, link_settings
from transports.linked import LinkedTransport, LinkLog, StatusTransport
from transports.mqtt import MqttTransport
from transports.serial_lora.config import serial_settings
from transports.serial_lora.dialect import Budget
from transports.serial_lora.settings import SerialLoraSettings

QUEUE_MAX = 2  # frames that wait for the modem: what waits in the link may still be superseded
IDLE_FRAMES = 6  # a silence of so many frames' airtime ends a burst
IDLE_MIN_S, LONGEST_S, MAKE_WAY_S, GIVE_UP_S = 2.0, 600.0, 7200.0, 7 * 86_400.0
SPREAD_FRAMES = 2  # frames' airtime for each node, over which answers to a broadcast are spread
HOLD_S = 10.0  # for how long a modem may keep a frame that it was given


class Stores(Protocol):
    """What a radio needs on disk: `ternmesh_store.radio_stores.RadioStores`."""

    def log(self) -> LinkLog:
        """The link's state."""

    def budget(self, band: SubBand, hold_s: float, speed: float) -> Budget:
        """The airtime ledger of a sub-band."""


@dataclass(frozen=True, slots=True)
class Radio:
    """A checked `[link.serial]` table and the rule that its channel is under."""

    settings: SerialLoraSettings
    band: SubBand


def check_link(link: LinkConfig, role: str) -> None:
    """ConfigError where the table does not name one bearer that can be used."""
    if link.serial and link.url:
        raise ConfigError("[link] has a url and a serial table: keep one of them")
    if link.serial:
        radio_of(link, role)
    elif link.url:
        link_settings(link, role)
    else:
        raise ConfigError("[link] has no url: name a broker, or a modem in [link.serial]")


def radio_of(link: LinkConfig, role: str) -> Radio:
    """The radio of a `[link.serial]` table; ConfigError, also where the law forbids the channel."""
    settings = serial_settings(link.serial, role)
    settings = replace(
        settings,
        queue_max=QUEUE_MAX,
        reconnect_min_s=settings.reconnect_min_s / settings.speed,
        reconnect_max_s=settings.reconnect_max_s / settings.speed,
    )
    if not link.region:
        raise ConfigError(f"link.region is missing: name one of {', '.join(REGIONS)}")
    region = REGIONS[link.region]
    if settings.frequency_hz == 0 and region is not UNREGULATED:
        raise ConfigError(
            "link.serial.frequency_hz is missing: without it nobody knows how much airtime "
            f"{link.region} allows"
        )
    channel = Channel(settings.frequency_hz, settings.radio, settings.power_dbm)
    return Radio(settings, check(region, channel))


def make_transport(link: LinkConfig, role: str, stores: Stores) -> StatusTransport:
    """The transport of a checked table for `role`, a node's name or HOST, not opened yet."""
    if not link.serial:
        return MqttTransport(link_settings(link, role))
    from transports.serial_lora.transport import SerialLoraTransport  # only where the extra is

    radio = radio_of(link, role)
    settings, speed = radio.settings, radio.settings.speed
    budget = stores.budget(radio.band, HOLD_S, speed)
    raw = SerialLoraTransport(settings, budget)
    frame_max = min(raw.mtu, longest_frame(radio.band, settings.radio))
    timing = link_timing(frame_max, raw.airtime_us(frame_max), len(settings.addresses), speed)
    rng = np.random.default_rng()
    return LinkedTransport(
        raw, timing, stores.log(), time.monotonic, rng, tuple(settings.addresses)
    )


def link_timing(mtu: int, frame_us: int, nodes: int, speed: float) -> LinkSettings:
    """How patient a link is on a radio whose longest frame takes `frame_us`."""
    frame_s = frame_us / 1e6
    return LinkSettings(
        mtu=mtu,
        idle_s=max(IDLE_MIN_S, IDLE_FRAMES * frame_s) / speed,
        longest_s=LONGEST_S / speed,
        give_up_s=GIVE_UP_S / speed,
        make_way_s=MAKE_WAY_S / speed,
        spread_s=SPREAD_FRAMES * frame_s * nodes / speed,
        contexts={ALL: seal.BROADCAST},
    )
