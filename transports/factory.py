"""The transport that a `[link]` table asks for, and what of a run's plan fits its bearers.

A broker and BLE carry whole frames by themselves. A radio, and several bearers together, get the
link around them (`transports.reliable`).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np

from ternmesh.config import ConfigError, Table, read_table
from ternmesh.link.airtime import FRAME_MAX as LORA_MAX
from ternmesh.link.airtime import LoraSetting, airtime_us
from ternmesh.link.regions import REGIONS, UNREGULATED, RadioChannel, SubBand, check, frame_limit_us
from ternmesh.link.settings import MTU_MIN, LinkSettings
from ternmesh.security.keyed_sealing import FRAME_MIN
from ternmesh.timers import NETWORK_TIMERS, TimerSettings
from ternmesh.wire.frame import BROADCAST, FRAME_MAX
from transports.base import ALL, HOST, BearerProfile, StatusTransport, Transport
from transports.ble.config import board_config, board_end, bridge_configs, bridge_ends
from transports.link_config import MAIN, UNRELIABLE, LinkConfig, link_settings
from transports.mqtt.settings import BrokerLimits, mtu
from transports.mqtt.transport import MqttTransport
from transports.multipath import Bearer, MultipathTransport
from transports.reliable import LinkKeys, LinkLog, ReliableTransport
from transports.serial_lora.airtime_budget import AirtimeBudget, AirtimeLog
from transports.serial_lora.settings import MESHES, SerialLoraSettings, serial_settings

LINK_MTU_MAX = 1024  # without a radio among them: brokers with a limit take such frames, too
RELAY_MTU = 252  # of a relay's modem, behind two radio addresses
LINK_FRAME_MTU = 1024  # of an update whose object the link cuts: long frames lose least on heads
LINK_ANNOUNCE_S = 3600.0  # every announce costs airtime
NETWORK_PROFILE = BearerProfile()
PATIENCE = 3  # idle times without an answer before another bearer is tried
QUEUE_MAX = 2  # frames that wait for the modem; in the link they can still be superseded
IDLE_FRAMES = 6  # a silence of so many frames' airtime ends a burst
IDLE_MIN_S = 2.0
PACE_DUTY = 0.1  # with less airtime than this part of the hour all waits are longer
ANNOUNCE_MAX_S = 86_400.0
SPREAD_FRAMES = 2  # frames' airtime for each node, over which answers to a broadcast are spread
HOLD_S = 10.0  # for how long a modem may keep a frame that it was given
MESH_HOLD_S = 300.0  # the same where many repeaters keep the channel busy


class Stores(Protocol):
    """The state on disk that radios need: `ternmesh_store.state_file.StateFile`."""

    def link(self) -> LinkLog:
        """The state of the link."""

    def airtime(self, bearer: str = "") -> AirtimeLog:
        """The airtime ledger of the main radio, or of a further one by its bearer's name."""


@runtime_checkable
class AirtimeTransport(StatusTransport, Protocol):
    """A transport whose frames cost airtime."""

    def airtime_us(self, frame_bytes: int) -> int:
        """The most that a frame costs on the air, in microseconds."""


@dataclass(frozen=True, slots=True)
class Radio:
    """A checked `[link.serial]` table and the rule that governs its channel."""

    settings: SerialLoraSettings
    band: SubBand

    @property
    def duty(self) -> float:
        """The part of an hour that it may send, by law and by the manners of its mesh."""
        return min(self.band.duty_cycle, self.settings.duty_max)

    @property
    def slowness(self) -> float:
        """How much longer than on a channel of 10 % its peers wait: repeats cost airtime, too."""
        return max(1.0, PACE_DUTY / self.duty)

    @property
    def own_band(self) -> SubBand:
        """The rule with what is left of the hour for this end's own frames."""
        return replace(self.band, duty_cycle=self.duty)

    @property
    def hold_s(self) -> float:
        """For how long a modem may keep a frame that it was given: its hour ends as much later."""
        return MESH_HOLD_S if self.settings.dialect in MESHES else HOLD_S


def check_link(link: LinkConfig, role: str) -> None:
    """ConfigError where the table does not name usable bearers."""
    for name, one in link.bearers().items():
        try:
            _check_bearer(one, role)
        except ConfigError as error:
            if name == MAIN:
                raise
            raise ConfigError(f"in [link.also.{name}]: {error}") from error
    if link.service == UNRELIABLE and not is_linked(link) and not link.radios:
        raise ConfigError('link.service is "unreliable": that is for radios; drop it here')
    if link.relay:
        _relay_radio(link.relay)
        if role != HOST or not link.ble or link.service == UNRELIABLE:
            raise ConfigError(
                "link.relay is for a host or gateway whose BLE bridges serve relays, with whole "
                "updates; drop it here"
            )
    if link.radios and (role != HOST or link.has_radio):
        raise ConfigError("link.radios is for a host on a broker; drop it here")
    for name in link.aggregators:
        if role == HOST or not link.url or is_linked(link) or link.aggregator:
            raise ConfigError("link.aggregators is for boards on brokers alone; drop it here")
        if not isinstance(link.aggregators[name], str):
            raise ConfigError(f'link.aggregators.{name} must be the URL of a broker, or ""')
        link_settings(link.toward(name), role, f"link.aggregators.{name}")
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
    """The nodes that a checked table names: those of radios, and of a host's BLE bridges."""
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
            "link.serial.frequency_hz is missing: the airtime that "
            f"{link.region} allows depends on it"
        )
    channel = RadioChannel(settings.frequency_hz, settings.radio, settings.power_dbm)
    return Radio(settings, check(region, channel))


def _relay_radio(table: Table) -> LoraSetting:
    """The radio behind a relay; ConfigError."""
    try:
        return read_table(LoraSetting, table, "link.relay")
    except ValueError as error:
        raise ConfigError(f"[link.relay]: {error}") from error


def make_transport(
    link: LinkConfig, role: str, stores: Stores, keys: LinkKeys | None = None
) -> StatusTransport:
    """The transport of a checked table for `role`, a node's name or HOST, not opened yet.

    `keys` seal the link, where there is one. ConfigError where its frames are too short for them.
    """
    if not is_linked(link):
        return _bearer(MAIN, link, role, stores).transport
    bearers = [_bearer(name, one, role, stores) for name, one in link.bearers().items()]
    radios = [radio_of(one, role) for one in link.bearers().values() if one.serial]
    nodes = boards_of(link, role)
    longest = min(bearer.transport.mtu for bearer in bearers)
    if longest < (least := MTU_MIN if keys is None else FRAME_MIN):
        who = "the link, which takes" if keys is None else "keys, which take"
        raise ConfigError(
            f"[link]: frames of {longest} bytes are too short for {who} {least}: choose a "
            "smaller spreading_factor, a larger bandwidth_khz, a sub-band with more airtime, or a "
            "dialect with longer frames"
        )
    timing = _timing(bearers, radios, len(nodes), link.relay)
    inner: StatusTransport = bearers[0].transport
    if len(bearers) > 1:
        inner = MultipathTransport(bearers, nodes, PATIENCE * timing.idle_s)
    return ReliableTransport(
        inner,
        timing,
        stores.link(),
        time.monotonic,
        np.random.default_rng(),
        nodes,
        unreliable=link.service == UNRELIABLE and role != HOST,  # global updates arrive whole
        keys=keys,
    )


def pace_of(transport: StatusTransport) -> TimerSettings:
    """The waits of a node or a host over this transport."""
    return transport.pace if isinstance(transport, ReliableTransport) else NETWORK_TIMERS


def frame_max(transport: Transport) -> int:
    """The longest frame of an update, in bytes, that this transport carries now."""
    return transport.update_mtu if isinstance(transport, ReliableTransport) else transport.mtu


def profile_of(link: LinkConfig) -> BearerProfile:
    """What of a run's plan fits the bearers of a host's checked table.

    With the unreliable service each frame of an update must fit the modem, and the manifest is
    sent twice, because its loss would lose the whole update.
    """
    bearers = link.bearers().values()
    if not link.radios and not any(one.serial or one.ble for one in bearers):
        limits = [mtu(link_settings(one, HOST), BrokerLimits()) for one in bearers]
        longest = min(FRAME_MAX, *limits)
        frame_mtu = min(NETWORK_PROFILE.frame_mtu, longest)
        return replace(NETWORK_PROFILE, frame_mtu=frame_mtu, frame_max=longest)
    radios = [radio_of(one, HOST) for one in bearers if one.serial]
    speed, slowness = _pace(radios)
    announce_s = LINK_ANNOUNCE_S * slowness
    announce_s = max(1, round(min(announce_s, ANNOUNCE_MAX_S) / speed))
    reliable = BearerProfile(LINK_FRAME_MTU, announce_s=announce_s)
    if link.service != UNRELIABLE:
        return reliable
    from transports.serial_lora.transport import SerialLoraTransport

    modems = [
        SerialLoraTransport(r.settings, frame_us_max=frame_limit_us(r.own_band)).mtu for r in radios
    ]
    frame_mtu = min(modems, default=NETWORK_PROFILE.frame_mtu)
    return replace(reliable, frame_mtu=frame_mtu, manifest_repeats=1)


def _timing(
    bearers: Sequence[Bearer], radios: Sequence[Radio], nodes: int, relay: Table
) -> LinkSettings:
    """Settings for the slowest bearer, with frames that all of them carry."""
    sizes = [LINK_MTU_MAX, *(bearer.transport.mtu for bearer in bearers)]
    sizes += [RELAY_MTU] if relay else []
    metered = [b.transport for b in bearers if isinstance(b.transport, AirtimeTransport)]
    frames_us = [raw.airtime_us(min(sizes)) for raw in metered]
    if relay:
        frames_us.append(airtime_us(_relay_radio(relay), LORA_MAX))
    frame_us = max(frames_us, default=0)
    return link_timing(min(sizes), frame_us, nodes, *_pace(radios))


def _pace(radios: Sequence[Radio]) -> tuple[float, float]:
    """Speed and slowness of the slowest of some radios."""
    speed = min((radio.settings.speed for radio in radios), default=1.0)
    return speed, max((radio.slowness for radio in radios), default=1.0)


def is_linked(link: LinkConfig) -> bool:
    """Whether the bearer gets the link around it."""
    return bool(link.serial or link.also or link.multipath or link.relay)


def _bearer(name: str, link: LinkConfig, role: str, stores: Stores) -> Bearer:
    """One bearer without the link; its packages are loaded only where it is used."""
    if link.url:
        return Bearer(name, MqttTransport(link_settings(link, role)))
    if link.ble:
        return _ble(name, link, role)
    from transports.serial_lora.transport import SerialLoraTransport

    radio = radio_of(link, role)
    log = stores.airtime("" if name == MAIN else name)
    band = radio.own_band
    budget = AirtimeBudget(log, band, hold_s=radio.hold_s, speed=radio.settings.speed)
    raw = SerialLoraTransport(radio.settings, budget, frame_us_max=frame_limit_us(band))
    return Bearer(name, raw, frozenset(radio.settings.peers), metered=True)


def _ble(name: str, link: LinkConfig, role: str) -> Bearer:
    if role != HOST:
        return Bearer(name, board_end(link.ble, role))
    ends = bridge_ends(link.ble)
    bridges = [Bearer(board, end, frozenset((board,))) for board, end in ends.items()]
    return Bearer(name, MultipathTransport(bridges, tuple(ends)), frozenset(ends))


def link_timing(
    mtu: int, frame_us: int, nodes: int, speed: float, slowness: float = 1.0
) -> LinkSettings:
    """The waits of a link on a radio whose longest frame takes `frame_us`; see `Radio.slowness`."""
    real = LinkSettings(mtu)
    frame_s = frame_us / 1e6
    return replace(
        real,
        idle_s=max(IDLE_MIN_S, IDLE_FRAMES * frame_s) * slowness / speed,
        longest_s=real.longest_s * slowness / speed,
        give_up_s=real.give_up_s / speed,
        make_way_s=min(real.make_way_s * slowness, real.give_up_s) / speed,
        spread_s=SPREAD_FRAMES * frame_s * nodes / speed,
        addresses={ALL: BROADCAST},
    )
