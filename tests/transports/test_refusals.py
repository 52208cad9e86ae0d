"""Links that cannot be: each is refused with one sentence, before anything is opened."""

from typing import Any

import pytest

from ternmesh.config import ConfigError, read_table
from transports.base import ALL, HOST
from transports.ble.config import BleSettings
from transports.factory import check_link
from transports.link_config import LinkConfig

RADIO: dict[str, Any] = {
    "port": "/dev/ttyUSB0",
    "dialect": "rnode",
    "frequency_hz": 869_525_000,
    "spreading_factor": 7,
    "addresses": {"theo": 1, "nora": 2},
}
BROKER: dict[str, Any] = {"url": "mqtt://b"}
SERIAL = {"region": "EU868", "serial": RADIO}
HCI = {"hci": "usb:0"}
BRIDGE: dict[str, Any] = {"ble": {"ada": {"hci": "tcp-client:127.0.0.1:9"}}}
SF9 = {"spreading_factor": 9}


def serial(region: str = "EU868", **changes: Any) -> dict[str, Any]:
    return {"region": region, "serial": {**RADIO, **changes}}


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("theo", {}, "no url"),
    ("theo", {"url": "tcp://b"}, "mqtt"),
    ("theo", {**BROKER, **SERIAL}, "keep one"),
    ("theo", {**BROKER, "region": "EU868"}, "link.region has no effect without link.serial"),
    ("theo", {**BROKER, "region": "EU"}, "it must be one of EU868, US915, unregulated$"),
    ("theo", {"serial": RADIO}, "link.region is missing"),
    ("theo", serial(dialect="meshtastic", frequency_hz=0), "link.serial.frequency_hz is missing"),
    ("theo", serial(frequency_hz=869_300_000), "alarm"),
    ("theo", serial("US915", frequency_hz=915_000_000), "47 CFR 15.247"),
    ("theo", serial(frequency_hz=868_100_000, power_dbm=20), "too strong"),
    (HOST, {**SERIAL, "gateway": "shed"}, r"link\.gateway is for boards"),
    ("theo", {**BROKER, "gateway": "shed"}, r"link\.gateway is for boards"),
    (HOST, {**BRIDGE, "relay": {"spreading_factor": 13}}, "link.relay.*factor 13"),
    (HOST, {**BROKER, "relay": SF9}, "whose BLE bridges serve relays"),
    ("ada", {"ble": {"adapter": "bleak"}, "relay": SF9}, "whose BLE bridges serve"),
    (HOST, {**BRIDGE, "relay": SF9, "service": "unreliable"}, "with whole updates"),
    ("ada", {**BROKER, "service": "unreliable"}, "that is for radios"),
    ("ada", {**BROKER, "also": {"x": 3}}, "link.also.x is 3: it must be a table"),
    ("ada", {**BROKER, "also": {"link": SERIAL}}, "link.also.link: call it something else"),
    ("ada", {**BROKER, "also": {"a/b": SERIAL}}, "link.also.a/b: call it something else"),
    ("ada", {**BROKER, "also": {"x": {"urls": ""}}}, "link.also.x.urls is not a setting"),
    ("ada", {**BROKER, "also": {"x": {"also": {}}}}, "link.also.x.also is not a setting"),
    ("ada", {**BROKER, "also": {"x": {}}}, r"in \[link.also.x\]: \[link\] has no url"),
    ("ada", {"ble": {"adaptor": "bleak"}}, r"link.ble.adaptor is not a setting: "),
    ("ada", {"ble": {"adapter": "blue"}}, "link.ble.adapter is 'blue': it must be one of"),
    ("ada", {"ble": {"adapter": "bumble"}}, "link.ble.hci is missing: bumble needs a controller"),
    ("ada", {"ble": {"adapter": "bleak", **HCI}}, "bleak uses the system's"),
    ("ada", {"ble": {"bridge": "b1", **HCI}}, "link.ble.bridge is 'b1': with hci it must be an"),
    ("ada", {"ble": {"hci": "us:0"}}, "link.ble.hci is 'us:0': it must begin with one of usb"),
    ("ada", {"ble": {"address": "00:F1:F2:F3:F4:05", **HCI}}, "must be a static random one"),
    (HOST, {"ble": HCI}, r"here each board has a table, \[link.ble.hci\]"),
    (HOST, {"ble": {"ada": {}}}, "link.ble.ada.hci is missing"),
    (HOST, {"ble": {"all": HCI}}, r"\[link.ble\]: a node may not be called 'all'"),
    (HOST, {"ble": {"ada": HCI, "bo": HCI}}, "two bridges have the same hci"),
    (HOST, {"ble": {"ada": {**HCI, "address": "x"}}}, "link.ble.ada.address is 'x'"),
]


@pytest.mark.parametrize(("role", "table", "sentence"), REFUSED, ids=str)
def test_a_link_that_cannot_be_is_one_sentence(role: str, table: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_link(read_table(LinkConfig, table, "link"), role)


@pytest.mark.parametrize(
    ("role", "table"),
    [
        (HOST, {**BROKER, "also": {"radio": SERIAL}}),
        ("theo", {**BROKER, "also": {"radio": SERIAL}}),
        ("theo", {**SERIAL, "gateway": "shed"}),
        (HOST, {**BRIDGE, "relay": SF9}),
    ],
)
def test_what_is_close_to_a_refusal_is_taken(role: str, table: dict[str, Any]) -> None:
    check_link(read_table(LinkConfig, table, "link"), role)


@pytest.mark.parametrize(
    ("role", "peer", "sentence"),
    [
        (HOST, HOST, "joins host and node"),
        ("ada", "bob", "joins host and node"),
        (HOST, ALL, "may not be called"),
        ("a/b", HOST, "node name 'a/b'"),
    ],
)
def test_ends_of_ble_that_cannot_be_are_named(role: str, peer: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        BleSettings(role, peer)
