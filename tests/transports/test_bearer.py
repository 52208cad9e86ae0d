"""The transport that a `[link]` table asks for, and two ends that speak over emulated radios."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from ternmesh.config import ConfigError
from ternmesh.link.airtime import LoraSetting, airtime_us
from ternmesh.link.regions import EU868
from ternmesh_store.state_file import StateFile
from transports.base import HOST, BearerProfile
from transports.factory import (
    HOLD_S,
    MESH_HOLD_S,
    RELAY_MTU,
    check_link,
    frame_max,
    link_timing,
    make_transport,
    profile_of,
    radio_of,
)
from transports.link_config import LinkConfig
from transports.mqtt.transport import MqttTransport
from transports.reliable import ReliableTransport
from transports.serial_lora.transport import SerialLoraTransport

SERIAL = {
    "port": "/dev/ttyUSB0",
    "dialect": "rnode",
    "frequency_hz": 869_525_000,
    "spreading_factor": 7,
    "addresses": {"theo": 1, "nora": 2},
}


def serial(region: str = "EU868", **changes: object) -> LinkConfig:
    return LinkConfig(region=region, serial={**SERIAL, **changes})


def test_a_url_is_a_broker(tmp_path: Path) -> None:
    made = make_transport(LinkConfig("mqtt://127.0.0.1"), "theo", StateFile(tmp_path))
    assert isinstance(made, MqttTransport)
    assert list(tmp_path.iterdir()) == []
    several = make_transport(LinkConfig("mqtt://b", multipath=True), "theo", StateFile(tmp_path))
    assert isinstance(several, ReliableTransport)


def test_the_law_of_a_channel_is_found() -> None:
    assert radio_of(serial(), "theo").band in EU868.sub_bands
    assert radio_of(serial(), "theo").band.duty_cycle == 0.1
    free = serial("unregulated", dialect="ebyte", frequency_hz=0)
    assert radio_of(free, "host").band.budget_us is None


@pytest.mark.parametrize(
    ("changes", "duty"),
    [
        ({"dialect": "meshcore", "hops": 3}, 0.01 / 4),
        ({"dialect": "meshtastic"}, 0.01),  # without hops nobody repeats (mesh.proto)
        ({"dialect": "meshtastic", "hop_limit": 1, "mesh_share": 0.1}, 0.05),
        ({"dialect": "meshcore", "mesh_share": 1.0}, 0.1),  # the channel is its owner's: the law
        ({"dialect": "rnode"}, 0.1),
    ],
)
def test_a_mesh_of_others_is_used_little(tmp_path: Path, changes: Any, duty: float) -> None:
    made = make_transport(serial(**changes), "theo", StateFile(tmp_path))
    assert isinstance(made, ReliableTransport)
    raw = made._inner
    assert isinstance(raw, SerialLoraTransport)
    assert raw._budget.duty == pytest.approx(duty)
    is_mesh = changes["dialect"] != "rnode"
    assert raw._budget._hold_s == (MESH_HOLD_S if is_mesh else HOLD_S), "repeaters keep it busy"


SUB_BAND_1_PERCENT = {"frequency_hz": 868_100_000}


@pytest.mark.parametrize(
    ("changes", "slowness", "announce_s"),
    [
        ({}, 1.0, 3600),
        (SUB_BAND_1_PERCENT, 10.0, 36_000),
        ({"dialect": "meshcore", "mesh_share": 1.0, "hops": 3}, 1.0, 3600),
        ({"dialect": "meshcore", "mesh_share": 0.05, "hops": 1}, 4.0, 14_400),
        ({"dialect": "meshcore", "mesh_share": 0.05, "hops": 1, "speed": 4.0}, 4.0, 3600),
        ({"dialect": "meshtastic", "hop_limit": 2}, 30.0, 86_400),  # at most a day
        ({"dialect": "meshcore", **SUB_BAND_1_PERCENT, "mesh_share": 0.5}, 10.0, 36_000),
    ],
)
def test_all_waits_are_longer_where_less_than_a_tenth_of_the_hour_is_left(
    tmp_path: Path, changes: Any, slowness: float, announce_s: int
) -> None:
    link = serial(**changes)
    assert radio_of(link, "theo").slowness == pytest.approx(slowness)
    assert profile_of(link).announce_s == announce_s
    made = make_transport(link, "theo", StateFile(tmp_path))
    assert isinstance(made, ReliableTransport)
    raw, timing = made._inner, made._settings
    assert isinstance(raw, SerialLoraTransport)
    speed = changes.get("speed", 1.0)
    as_usual = link_timing(timing.mtu, raw.airtime_us(timing.mtu), 2, speed)
    for name in ("idle_s", "longest_s", "make_way_s"):
        assert getattr(timing, name) == pytest.approx(slowness * getattr(as_usual, name)), name
    assert (timing.give_up_s, timing.spread_s) == (as_usual.give_up_s, as_usual.spread_s)


def test_the_slowest_radio_sets_the_waits_of_all() -> None:
    far = {"region": "EU868", "serial": {**SERIAL, **SUB_BAND_1_PERCENT}}
    both = replace(serial(), also={"far": far}, fleet="attic")
    assert both.bearers()["far"].fleet == "attic"
    assert profile_of(both).announce_s == 36_000


def test_a_link_is_as_patient_as_its_radio_is_slow_and_gives_up_after_a_week() -> None:
    quick, slow = link_timing(240, 400_000, 3, 1.0), link_timing(240, 9_000_000, 3, 1.0)
    assert (quick.idle_s, slow.idle_s) == pytest.approx((2.4, 54.0))
    assert slow.spread_s > quick.spread_s > 0
    least = link_timing(240, 400_000, 3, 1.0, 100.0)  # where a thousandth of the hour is left
    assert least.make_way_s <= least.give_up_s, "nothing is kept for longer because others wait"
    emulated = link_timing(240, 400_000, 3, 10.0)
    assert emulated.idle_s == pytest.approx(0.24)
    for speed, settings in ((1.0, quick), (10.0, emulated)):
        times = settings.longest_s, settings.make_way_s, settings.give_up_s
        assert [speed * time for time in times] == [600, 2 * 3600, 7 * 86_400]


def test_a_plan_takes_what_fits_the_bearer() -> None:
    assert profile_of(LinkConfig("mqtt://b")) == BearerProfile(184, 4096, 0, 30)
    small = profile_of(LinkConfig("mqtt://b", message_max=170))
    assert (small.frame_mtu, small.frame_max) == (168, 168)
    for link in (LinkConfig(ble={"theo": {"device": "x"}}), serial()):
        assert profile_of(link) == BearerProfile(1024, 4096, 0, 3600)
    assert profile_of(serial(speed=100.0)).announce_s == 36
    mesh: dict[str, Any] = {"dialect": "meshcore"}
    slow = {**mesh, "spreading_factor": 12, "hops": 7}  # so long is a frame of its part of the hour
    for longest, radio in {252: {}, 163: mesh, 91: slow}.items():
        assert profile_of(replace(serial(**radio), service="unreliable")).frame_mtu == longest
    behind = LinkConfig("mqtt://b", radios=True, service="unreliable")
    assert profile_of(behind) == BearerProfile(184, 4096, 1, 3600)
    with pytest.raises(ConfigError, match="for a host on a broker"):
        check_link(replace(behind, service="complete"), "theo")


def test_an_update_that_does_not_fit_the_unreliable_service_is_too_long(tmp_path: Path) -> None:
    link = replace(serial(dialect="rnode"), service="unreliable")
    node = make_transport(link, "theo", StateFile(tmp_path / "theo"))
    host = make_transport(link, "host", StateFile(tmp_path / "host"))
    assert frame_max(node) == profile_of(link).frame_mtu
    assert frame_max(host) == 4096, "global updates arrive whole"


def test_frames_that_are_too_short_for_keys_are_a_sentence(tmp_path: Path) -> None:
    slow = serial(frequency_hz=863_500_000, spreading_factor=12, dialect="rnode")
    with pytest.raises(ConfigError, match=r"too short for keys, which take 100.*spreading_factor"):
        make_transport(slow, "theo", StateFile(tmp_path), Mock())
    make_transport(slow, "theo", StateFile(tmp_path))
    make_transport(replace(slow, gateway="shed"), "theo", StateFile(tmp_path))
    # A Meshtastic node signs short packets, so that none fits; and of this share no frame does.
    signed = serial(frequency_hz=863_500_000, spreading_factor=12, dialect="meshtastic")
    for link in (signed, serial(mesh_share=1e-4, hop_limit=3, dialect="meshtastic")):
        with pytest.raises(ConfigError, match="frames of 0 bytes are too short for the link"):
            make_transport(link, "theo", StateFile(tmp_path))


@pytest.mark.parametrize("frequency_hz", [863_500_000, 869_000_000])
@pytest.mark.parametrize(
    ("factor", "bandwidth", "rate"), [(10, 125, 4), (11, 125, 1), (12, 250, 1), (7, 125, 1)]
)
@pytest.mark.parametrize("dialect", ["rnode", "meshcore", "meshtastic"])
def test_no_frame_is_made_that_the_law_never_lets_go(
    tmp_path: Path, dialect: str, factor: int, bandwidth: int, rate: int, frequency_hz: int
) -> None:
    """It would wait in front of all others for ever."""
    radio: dict[str, Any] = {"spreading_factor": factor, "bandwidth_khz": bandwidth}
    radio |= {"coding_rate": rate, "dialect": dialect}
    link = serial(frequency_hz=frequency_hz, **radio)
    longest = make_transport(link, "theo", StateFile(tmp_path)).status().numbers["mtu"]
    assert longest is not None
    modem = SerialLoraTransport(radio_of(link, "theo").settings)
    assert max(map(modem.airtime_us, range(1, longest + 1))) <= 3_600_000


BRIDGE: dict[str, Any] = {"ble": {"ada": {"hci": "tcp-client:127.0.0.1:9"}}}
SF9 = {"spreading_factor": 9}


def test_a_host_behind_whose_bridge_is_a_radio_is_as_patient_as_that_and_as_short(
    tmp_path: Path,
) -> None:
    link = LinkConfig(**BRIDGE, relay=SF9)
    check_link(link, HOST)
    transport = make_transport(link, HOST, StateFile(tmp_path))
    assert isinstance(transport, ReliableTransport)
    air_us = airtime_us(LoraSetting(9), 255)
    assert transport.pace.hello_s == link_timing(RELAY_MTU, air_us, 1, 1.0).idle_s
