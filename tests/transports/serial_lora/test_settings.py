from typing import Any

import pytest

from ternmesh.config import ConfigError
from ternmesh.link.airtime import LoraSetting
from transports.base import ALL, HOST
from transports.serial_lora.settings import SerialLoraSettings, serial_settings

TABLE = {"ada": 1, "bob": 254}


def make(role: str = HOST, **options: Any) -> SerialLoraSettings:
    fixed: dict[str, Any] = {"port": "/dev/ttyUSB0", "dialect": "rnode", "addresses": TABLE}
    return SerialLoraSettings(role=role, **(fixed | {"frequency_hz": 869_525_000} | options))


def test_addresses_of_host_and_nodes() -> None:
    host, ada = make(), make("ada")
    assert (host.own_address, ada.own_address) == (0, 1)
    assert [host.address(peer) for peer in ("ada", "bob", ALL)] == [1, 254, 255]
    assert ada.address(HOST) == 0
    assert (dict(host.peers), dict(ada.peers)) == (TABLE, {HOST: 0})


def test_who_is_heard() -> None:  # R7.3-2
    host, ada = make(), make("ada")
    assert (host.peer(0, 1), host.peer(0, 254)) == ("ada", "bob")
    assert (ada.peer(1, 0), ada.peer(255, 0)) == (HOST, HOST)
    for to, sender in ((0, 2), (0, 0), (1, 0), (255, 0), (255, 1)):
        assert host.peer(to, sender) is None
    for to, sender in ((254, 0), (0, 254), (1, 254), (1, 1), (255, 255)):
        assert ada.peer(to, sender) is None


def test_peers_that_an_end_has_not() -> None:
    with pytest.raises(ValueError, match="a node sends to 'host' only"):
        make("ada").address("bob")
    with pytest.raises(ValueError, match="addresses has no entry for 'eve'"):
        make().address("eve")


def test_modems_that_are_tuned_elsewhere_need_no_frequency() -> None:
    assert make(dialect="ebyte", frequency_hz=0).baud == 9600
    assert make(dialect="meshtastic", frequency_hz=0).baud == 115_200
    assert make(dialect="ebyte", frequency_hz=0, baud_rate=19_200).baud == 19_200


TOML = {"port": "/dev/ttyS0", "dialect": "rnode", "addresses": {"ada": 1}, "frequency_hz": 10**9}


def test_settings_from_a_table() -> None:
    table = TOML | {"spreading_factor": 7, "bandwidth_khz": 500, "speed": 20, "power_dbm": 10}
    settings = serial_settings(table, "ada")
    radio = LoraSetting(7, 500)
    assert settings == SerialLoraSettings(
        "/dev/ttyS0", "rnode", "ada", {"ada": 1}, radio, 10**9, power_dbm=10, speed=20
    )
    assert serial_settings(TOML, HOST).radio == LoraSetting(9)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"port": ""}, "name the modem's device, like /dev/ttyUSB0"),
        ({"port": "rfc2217://192.0.2.30:4001"}, "socket://host:port"),
        ({"port": 3}, "link.serial.port is 3: it must be text"),
        ({"dialect": "morse"}, "link.serial.dialect is 'morse': it must be one of rnode, ebyte"),
        (
            {"dialect": "reyax"},
            "link.serial.dialect is 'reyax': it must be one of rnode, ebyte, meshtastic, meshcore$",
        ),
        ({"dtr": "auto"}, "dtr is 'auto': it must be true or false"),
        ({"addresses": {"eve": 1}}, "addresses has no entry for 'ada': give it 1 to 254"),
        ({"addresses": {"ada": 0}}, "the address 0 of 'ada' must be 1 to 254"),
        ({"addresses": {"ada": 255}}, "the address 255 of 'ada' must be 1 to 254"),
        ({"addresses": {"ada": 3, "bob": 3}}, "two nodes have the same address"),
        ({"addresses": {"ada": 1, "host": 3}}, "may not be called 'host'"),
        ({"addresses": ["ada"]}, r"addresses is \['ada'\]: it must be a table"),
        ({"addresses": {"ada": "1"}}, "addresses.ada is '1': it must be a whole number"),
        ({"frequency_hz": 0}, "frequency_hz 0 must be 137000000 to 1020000000, like 869525000"),
        ({"frequency_hz": 868.5e6}, "frequency_hz is 868500000.0: it must be a whole number"),
        ({"power_dbm": 23}, "power_dbm is 23: it must be 0 to 22"),
        ({"queue_max": 0}, "queue_max is 0: it must be 1 to 10000"),
        ({"baud_rate": -1}, "baud_rate is -1: it must be 0 to 4000000"),
        ({"speed": 0.0}, "speed is 0.0: it must be 0.001 to 1000000000"),
        ({"speed": int("9" * 400)}, "link.serial.speed is 9+: it must be a number"),
        ({"speed": True}, "link.serial.speed is true: it must be a number"),
        ({"answer_margin_s": float("nan")}, "answer_margin_s is nan: it must be 0.001"),
        ({"write_timeout_s": -1.0}, "write_timeout_s is -1.0: it must be 0.001"),
        ({"reconnect_max_s": 0.5}, "reconnect_max_s must be at least reconnect_min_s"),
        ({"preamble_symbols": 5}, "a preamble of 5 symbols: it must be 6 to 65535"),
        ({"network_id": 18}, "link.serial.network_id is not a setting"),
        ({"spreading_factor": 6}, r"\[link.serial\]: spreading factor 6: it must be 7 to 12"),
        ({"hop_limit": 3}, 'hop_limit has no effect without link.serial.dialect = "meshtastic"'),
        ({"dialect": "meshtastic", "hop_limit": 8}, "hop_limit is 8: it must be 0 to 7"),
        ({"hops": 2}, 'hops has no effect without link.serial.dialect = "meshcore"'),
        ({"dialect": "meshcore", "channel_secret": "xyz"}, "channel_secret must be 32 hex digits"),
        (
            {"dialect": "meshcore", "application": 0xFF},
            "application is 255: it must be 256 to 65535",
        ),
        ({"bandwidth_khz": 41}, "bandwidth 41 kHz: it must be 62.5, 125, 250 or 500"),
        ({"air_rate_bps": 300}, 'no effect without link.serial.dialect = "ebyte"'),
        ({"dialect": "ebyte", "air_rate_bps": 299}, "air_rate_bps is 299: it must be 300 to 62500"),
        ({"baud": 9600}, r"link.serial.baud is not a setting: \[link.serial\] allows addresses,"),
        ({"role": "ada"}, "link.serial.role is not a setting"),
    ],
)
def test_a_wrong_table_is_one_sentence(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        serial_settings(TOML | change, "ada")
    for key in ("port", "dialect", "addresses"):
        with pytest.raises(ConfigError, match=f"link.serial.{key} is missing"):
            serial_settings({name: TOML[name] for name in TOML if name != key}, "ada")
