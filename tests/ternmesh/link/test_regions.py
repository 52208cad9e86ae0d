from itertools import pairwise
from typing import Any

import pytest

from ternmesh.config import ConfigError
from ternmesh.link import regions
from ternmesh.link.airtime import LoraSetting, airtime_us


def channel(mhz: float, factor: int = 7, khz: int = 125, **rest: Any) -> regions.RadioChannel:
    return regions.RadioChannel(round(mhz * 1e6), LoraSetting(factor, khz), **rest)


@pytest.mark.parametrize(
    ("mhz", "khz", "budget_s", "power"),
    [
        (864.0, 125, 3.6, 14),
        (863.0625, 125, 3.6, 14),
        (866.0, 500, 36, 14),
        (867.9375, 125, 36, 14),
        (868.1, 125, 36, 14),
        (868.3, 250, 36, 14),
        (868.95, 500, 3.6, 14),
        (869.525, 250, 360, 27),
        (869.85, 250, 36, 14),
    ],
)
def test_sub_bands_of_eu868(mhz: float, khz: int, budget_s: float, power: float) -> None:
    band = regions.check(regions.EU868, channel(mhz, khz=khz))
    assert band.budget_us == round(budget_s * 1e6)
    assert band.power_max_dbm == power


@pytest.mark.parametrize(
    ("mhz", "khz", "what"),
    [
        (868.65, 125, "reaches into 868.6-868.7 MHz, which EU868 keeps for alarms"),
        (868.55, 125, "868.6-868.7 MHz"),
        (869.3, 125, "869.2-869.4 MHz"),
        (869.525, 500, "alarms"),
        (869.68, 125, "869.65-869.7 MHz"),
        (868.0, 125, "867.9375-868.0625 MHz is not inside one sub-band"),
        (863.0, 125, "not inside one sub-band of EU868"),
        (869.95, 125, "869.8875-870.0125 MHz is not inside"),
        (915.0, 125, "not inside one sub-band of EU868"),
    ],
)
def test_refused_in_eu868(mhz: float, khz: int, what: str) -> None:  # R8.3-1, R8.3-2
    with pytest.raises(regions.ChannelError, match=what) as caught:
        regions.check(regions.EU868, channel(mhz, khz=khz))
    assert "choose a frequency" in str(caught.value)
    assert isinstance(caught.value, ConfigError), "a wrong configuration: exit code 2"


def test_power_is_checked() -> None:  # R8.3-1
    assert regions.check(regions.EU868, channel(869.525, power_dbm=27)).duty_cycle == 0.1
    with pytest.raises(
        regions.ChannelError, match=r"20 dBm is too strong for 868-868\.6 MHz in EU868"
    ):
        regions.check(regions.EU868, channel(868.1, power_dbm=20))
    with pytest.raises(regions.ChannelError, match="at most 30 dBm"):
        regions.check(regions.US915, channel(915, khz=500, power_dbm=30.5))


@pytest.mark.parametrize("khz", [125, 250])
def test_a_fixed_narrow_channel_is_refused_in_us915(khz: int) -> None:  # R8.3-3
    with pytest.raises(
        regions.ChannelError, match=f"fixed channel of {khz} kHz is not allowed in US915"
    ):
        regions.check(regions.US915, channel(915, khz=khz))


def test_500_khz_has_no_dwell_in_us915() -> None:  # R8.3-3
    band = regions.check(regions.US915, channel(915, factor=12, khz=500))
    assert band.budget_us is None
    assert airtime_us(LoraSetting(12, 500), 255) > 400_000
    assert regions.longest_frame(band, LoraSetting(12, 500)) == 255


def test_a_frame_must_fit_in_the_hour() -> None:  # R8.3-4
    setting = LoraSetting(12)
    longest = regions.longest_frame(regions.check(regions.EU868, channel(864, 12)), setting)
    assert airtime_us(setting, longest) <= 3_600_000 < airtime_us(setting, longest + 1)


def test_wires_have_no_law() -> None:
    band = regions.check(regions.UNREGULATED, channel(1, 12, power_dbm=60))
    assert band.budget_us is None
    assert regions.longest_frame(band, LoraSetting(12)) == 255
    assert set(regions.REGIONS) == {"EU868", "US915", "unregulated"}


@pytest.mark.parametrize("region", regions.REGIONS.values(), ids=lambda region: region.name)
def test_sub_bands_do_not_overlap(region) -> None:
    ranges = sorted([(band.low_hz, band.high_hz) for band in region.sub_bands] + [*region.alarms])
    for (_, end), (start, _) in pairwise(ranges):
        assert end <= start
