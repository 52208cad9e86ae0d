"""Radio regulations as data, and the check of a channel against them.

EU868: EN 300 220-2 with ERC Recommendation 70-03, annexes 1 (bands) and 7 (alarms); duty cycles are
per sub-band and device, observed over one hour. US915: 47 CFR 15.247. Both as of 2026; the operator
is responsible, and national rules may be stricter.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ternmesh.config import ConfigError
from ternmesh.link.airtime import FRAME_MAX, LoraSetting, airtime_us

HOUR_US = 3_600_000_000
SHORTEST_FRAME = 27  # bytes: an offer under its seal; without offers the link cannot work


class ChannelError(ConfigError):
    """The region does not allow a channel. The message says why and what is allowed."""


@dataclass(frozen=True, slots=True)
class SubBand:
    """Frequencies under one rule. `duty_cycle` 1.0 is none.

    `power_max_dbm` is radiated (e.r.p.) in EU868 and conducted in US915. A channel narrower than
    `fixed_bandwidth_min_khz` would have to hop, which no radio of ours does.
    """

    name: str
    low_hz: int
    high_hz: int
    duty_cycle: float
    power_max_dbm: float
    fixed_bandwidth_min_khz: int = 0

    @property
    def budget_us(self) -> int | None:
        """The airtime allowed in any window of one hour; None without a limit."""
        return None if self.duty_cycle >= 1 else round(self.duty_cycle * HOUR_US)


@dataclass(frozen=True, slots=True)
class Region:
    """Sub-bands that do not overlap, and slivers between them (Hz) that belong to alarms."""

    name: str
    sub_bands: tuple[SubBand, ...]
    alarms: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class RadioChannel:
    """Where and how a radio sends."""

    frequency_hz: int
    setting: LoraSetting
    power_dbm: float = 14.0


EU868 = Region(
    "EU868",
    (
        SubBand("863-865 MHz", 863_000_000, 865_000_000, 0.001, 14),
        SubBand("865-868 MHz", 865_000_000, 868_000_000, 0.01, 14),
        SubBand("868-868.6 MHz", 868_000_000, 868_600_000, 0.01, 14),
        SubBand("868.7-869.2 MHz", 868_700_000, 869_200_000, 0.001, 14),
        SubBand("869.4-869.65 MHz", 869_400_000, 869_650_000, 0.1, 27),
        SubBand("869.7-870 MHz", 869_700_000, 870_000_000, 0.01, 14),
    ),
    alarms=((868_600_000, 868_700_000), (869_200_000, 869_400_000), (869_650_000, 869_700_000)),
)
US915 = Region("US915", (SubBand("902-928 MHz", 902_000_000, 928_000_000, 1.0, 30, 500),))
UNREGULATED = Region("unregulated", (SubBand("unregulated", -(10**12), 10**12, 1.0, float("inf")),))
REGIONS: Mapping[str, Region] = MappingProxyType(
    {region.name: region for region in (EU868, US915, UNREGULATED)}
)


def check(region: Region, channel: RadioChannel) -> SubBand:
    """Return the sub-band of a channel. Raises ChannelError if the region does not allow it."""
    band = _find(region, channel)
    setting = channel.setting
    if channel.power_dbm > band.power_max_dbm:
        raise ChannelError(
            f"{channel.power_dbm:g} dBm is too strong for {band.name} in {region.name}: "
            f"at most {band.power_max_dbm:g} dBm is allowed"
        )
    if setting.bandwidth_khz < band.fixed_bandwidth_min_khz:
        raise ChannelError(
            f"a fixed channel of {setting.bandwidth_khz:g} kHz is not allowed in {region.name} "
            f"(47 CFR 15.247): use {band.fixed_bandwidth_min_khz} kHz"
        )
    if longest_frame(band, setting) < SHORTEST_FRAME:
        raise ChannelError(
            f"spreading factor {setting.spreading_factor} at {setting.bandwidth_khz:g} kHz takes "
            f"{airtime_us(setting, SHORTEST_FRAME) / 1000:g} ms for the shortest frame, and "
            f"{band.name} in {region.name} allows {frame_limit_us(band) / 1000:g} ms: "
            "use a smaller spreading factor"
        )
    return band


def longest_frame(band: SubBand, setting: LoraSetting) -> int:
    """The bytes of the longest frame within the hourly budget, up to 255; 0 for none."""
    limit = frame_limit_us(band)
    sizes = range(FRAME_MAX, 0, -1)
    return next((size for size in sizes if airtime_us(setting, size) <= limit), 0)


def frame_limit_us(band: SubBand) -> int:
    """Return the longest time on air of a frame, by the hourly budget."""
    return band.budget_us or HOUR_US


def _find(region: Region, channel: RadioChannel) -> SubBand:
    half = int(channel.setting.bandwidth_khz * 500)
    low, high = channel.frequency_hz - half, channel.frequency_hz + half
    for band in region.sub_bands:
        if band.low_hz <= low and high <= band.high_hz:
            return band
    where = f"{_mhz(low)}-{_mhz(high)} MHz"
    for start, end in region.alarms:
        if start < high and low < end:
            raise ChannelError(
                f"{where} reaches into {_mhz(start)}-{_mhz(end)} MHz, which {region.name} keeps "
                f"for alarms: choose a frequency inside {_names(region)}"
            )
    raise ChannelError(
        f"{where} is not inside one sub-band of {region.name}: choose a frequency, with half the "
        f"bandwidth on either side, inside {_names(region)}"
    )


def _names(region: Region) -> str:
    return ", ".join(band.name for band in region.sub_bands)


def _mhz(frequency_hz: int) -> str:
    return f"{frequency_hz / 1e6:.6f}".rstrip("0").rstrip(".")
