"""The transport that a `[link]` table asks for.

A broker and BLE carry whole frames by themselves. Around a radio, and around several bearers
together, stands the link.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np

from ternmesh.config import ConfigError
from ternmesh.link.link import LinkSettings
from ternmesh.link.regions import REGIONS, UNREGULATED, Channel, SubBand, check, frame_limit_us
from ternmesh.swarm.pace import NETWORK, Pace
from ternmesh.trust.keyed import FRAME_MIN
from ternmesh.wire import seal
from transports.base import ALL, HOST
from transports.ble.config import board_config, board_end, bridge_configs, bridge_ends
from transports.link_config import AS_IS, MAIN, LinkConfig, link_settings
from transports.linked import LinkedTransport, LinkKeys, LinkLog, StatusTransport
from transports.mqtt import MqttTransport
from transports.serial_lora.config import serial_settings
from transports.serial_lora.dialect import Budget
from transports.serial_lora.settings import SerialLoraSettings
from transports.several import Bearer, Several

LINK_MTU_MAX = 1024  # without a radio among them: brokers with a limit take such frames, too
PATIENCE = 3  # idle times without an answer until another bearer is tried
QUEUE_MAX = 2  # frames that wait for the modem: what waits in the link may still be superseded
IDLE_FRAMES = 6  # a silence of so many frames' airtime ends a burst
IDLE_MIN_S = 2.0
SPREAD_FRAMES = 2  # frames' airtime for each node, over which answers to a broadcast are spread
HOLD_S = 10.0  # for how long a modem may keep a frame that it was given


class Stores(Protocol):
    """What a radio needs on disk: `ternmesh_store.radio_stores.RadioStores`."""

    def log(self) -> LinkLog:
        """The link's state."""

    def budget(self, band: SubBand, hold_s: float, speed: float) -> Budget:
        """The airtime ledger of a sub-band."""

    def beside(self, name: str) -> "Stores":
        """Those of a further radio of the device: its airtime is its own."""


@runtime_checkable
class AirtimeTransport(StatusTransport, Protocol):
    """A radio."""

    def airtime_us(self, frame_bytes: int) -> int:
        """The most that a frame costs on the air, in microseconds."""


@dataclass(frozen=True, slots=True)
class Radio:
    """A checked `[link.serial]` table and the rule that its channel is under."""

    settings: SerialLoraSettings
    band: SubBand


def check_link(link: LinkConfig, role: str) -> None:
    """ConfigError where the table does not name bearers that can be used."""
    for name, one in link.bearers().items():
        try:
            _check_bearer(one, role)
        except ConfigError as error:
            if name == MAIN:
                raise
            raise ConfigError(f"in [link.also.{name}]: {error}") from error
    if link.service == AS_IS and not is_linked(link):
        raise ConfigError('link.service is "as-is": that is for radios; drop it here')
    if link.gateway and (role == HOST or not is_linked(link)):
        raise ConfigError("link.gateway is for boards whose radio reaches a gateway; drop it here")


def _check_bearer(link: LinkConfig, role: str) -> None:
    if bool(link.serial) + bool(link.ble) + bool(link.url) > 1:
        raise ConfigError("[link] has more than one of a url, a serial and a ble table: keep one")
    if link.serial:
        radio_of(link, role)
    elif link.ble:
        if role == HOST:
            bridge_configs(link.ble)
        else:
            board_config(link.ble)
    elif link.url:
        link_settings(link, role)
    else:
        raise ConfigError(
            "[link] has no url: name a broker, a modem in [link.serial], or BLE in [link.ble]"
        )


def boards_of(link: LinkConfig, role: str) -> tuple[str, ...]:
    """The nodes that a checked table of `role` names: those of radios, and of a host's bridges."""
    boards: dict[str, None] = {}
    for one in link.bearers().values():
        boards |= dict.fromkeys(one.serial.get("addresses", {}))
        boards |= dict.fromkeys(one.ble if role == HOST else {})
    return tuple(boards)


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


def make_transport(
    link: LinkConfig, role: str, stores: Stores, keys: LinkKeys | None = None
) -> StatusTransport:
    """The transport of a checked table for `role`, a node's name or HOST, not opened yet.

    `keys` seal the link, where there is one. ConfigError where its frames are too short for them.
    """
    if not is_linked(link):
        return _bearer(MAIN, link, role, stores).transport
    bearers = [
        _bearer(name, one, role, stores if name == MAIN else stores.beside(name))
        for name, one in link.bearers().items()
    ]
    radios = [radio_of(one, role) for one in link.bearers().values() if one.serial]
    nodes = boards_of(link, role)
    timing = _timing(bearers, radios, len(nodes))
    if keys is not None and timing.mtu < FRAME_MIN:
        raise ConfigError(
            f"[link]: frames of {timing.mtu} bytes are too short for keys, which take {FRAME_MIN}: "
            "choose a smaller spreading_factor, a larger bandwidth_khz, a sub-band with more "
            "airtime, or a dialect with longer frames"
        )
    inner: StatusTransport = bearers[0].transport
    if len(bearers) > 1:
        inner = Several(bearers, nodes, PATIENCE * timing.idle_s)
    rng, log, as_is = np.random.default_rng(), stores.log(), link.service == AS_IS
    return LinkedTransport(inner, timing, log, time.monotonic, rng, nodes, as_is=as_is, keys=keys)


def pace_of(transport: StatusTransport) -> Pace:
    """How patient a node is with it."""
    return transport.pace if isinstance(transport, LinkedTransport) else NETWORK


def _timing(bearers: Sequence[Bearer], radios: Sequence[Radio], nodes: int) -> LinkSettings:
    """That of the slowest, with frames that all carry."""
    sizes = [LINK_MTU_MAX, *(bearer.transport.mtu for bearer in bearers)]
    metered = [b.transport for b in bearers if isinstance(b.transport, AirtimeTransport)]
    frame_us = max((raw.airtime_us(min(sizes)) for raw in metered), default=0)
    speed = min((radio.settings.speed for radio in radios), default=1.0)
    return link_timing(min(sizes), frame_us, nodes, speed)


def is_linked(link: LinkConfig) -> bool:
    """Whether the link stands around the bearer."""
    return bool(link.serial or link.also or link.several)


def _bearer(name: str, link: LinkConfig, role: str, stores: Stores) -> Bearer:
    """One bearer without the link; what it needs is loaded only where it is used."""
    if link.url:
        return Bearer(name, MqttTransport(link_settings(link, role)))
    if link.ble:
        return _ble(name, link, role)
    from transports.serial_lora.transport import SerialLoraTransport

    radio = radio_of(link, role)
    budget = stores.budget(radio.band, HOLD_S, radio.settings.speed)
    frame_us_max = frame_limit_us(radio.band, radio.settings.radio)
    raw = SerialLoraTransport(radio.settings, budget, frame_us_max=frame_us_max)
    return Bearer(name, raw, frozenset(radio.settings.peers), metered=True)


def _ble(name: str, link: LinkConfig, role: str) -> Bearer:
    if role != HOST:
        return Bearer(name, board_end(link.ble, role))
    ends = bridge_ends(link.ble)
    bridges = [Bearer(board, end, frozenset((board,))) for board, end in ends.items()]
    return Bearer(name, Several(bridges, tuple(ends)), frozenset(ends))


def link_timing(mtu: int, frame_us: int, nodes: int, speed: float) -> LinkSettings:
    """How patient a link is on a radio whose longest frame takes `frame_us`."""
    real, frame_s = LinkSettings(mtu), frame_us / 1e6
    return replace(
        real,
        idle_s=max(IDLE_MIN_S, IDLE_FRAMES * frame_s) / speed,
        longest_s=real.longest_s / speed,
        give_up_s=real.give_up_s / speed,
        make_way_s=real.make_way_s / speed,
        spread_s=SPREAD_FRAMES * frame_s * nodes / speed,
        contexts={ALL: seal.BROADCAST},
    )
