"""Settings of BLE transports, from the `[link.ble]` table.

A board has one end; a host or gateway has one bridge for each board. Addresses that are not set
follow from the name of the board, so that board and bridge find each other.
"""

import functools
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ternmesh.config import ConfigError, choices, read_table
from transports.base import ALL, HOST, check_node, check_peer
from transports.ble.gatt import ADVERTISED_MAX, GattEnd

if TYPE_CHECKING:
    from transports.ble.transport import BleTransport

BLEAK, BUMBLE = "bleak", "bumble"
TABLE = "link.ble"
SCHEMES = ("usb", "pyusb", "hci-socket", "serial", "tcp-client")  # some of those of bumble
_ADDRESS = re.compile(r"[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}")
_STATIC = re.compile(r"[C-Fc-f][0-9A-Fa-f](:[0-9A-Fa-f]{2}){5}")


@dataclass(frozen=True, slots=True)
class BleSettings:
    """One end of a link between a node and the host; ValueError for wrong names.

    `role` is `host` or the node's name, `peer` is the other of the two. The GATT end determines
    which of them is the central.
    """

    role: str
    peer: str = HOST
    queue_max: int = 65_536  # bytes of frames that are not confirmed
    unread_max: int = 512  # unread arrivals; beyond them no credits are granted
    reconnect_min_s: float = 1.0
    reconnect_max_s: float = 30.0

    def __post_init__(self) -> None:
        if (self.role == HOST) == (self.peer == HOST):
            raise ValueError(f"a BLE link joins host and node, not {self.role} and {self.peer}")
        check_node(self.peer if self.role == HOST else self.role)

    def check(self, peer: str) -> None:
        """ValueError unless `peer` is at the other end; for the host, `all` is that node, too."""
        check_peer(self.role, peer)
        if peer not in (self.peer, ALL):
            raise ValueError(f"this BLE link leads to {self.peer!r}, not to {peer!r}")


@dataclass(frozen=True, slots=True)
class BoardConfig:
    """A board's end. With bleak `bridge` is an address or a name, with bumble an address.

    `hci` is a Bluetooth controller as bumble names it, such as "usb:0", "hci-socket:0" or
    "tcp-client:127.0.0.1:9000"; it implies bumble. `address` is our own address there.
    """

    adapter: str = field(default="", metadata=choices("", BLEAK, BUMBLE))
    bridge: str = ""
    hci: str = ""
    address: str = ""


@dataclass(frozen=True, slots=True)
class BridgeConfig:
    """The bridge of one board: its Bluetooth controller, and its address there."""

    hci: str
    address: str = ""


def board_config(table: Mapping[str, Any]) -> BoardConfig:
    """The checked table of a board; ConfigError."""
    config = read_table(BoardConfig, table, TABLE)
    if config.adapter == BUMBLE and not config.hci:
        raise ConfigError(f"{TABLE}.hci is missing: bumble needs a controller, such as usb:0")
    if config.adapter == BLEAK and (config.hci or config.address):
        raise ConfigError(f"{TABLE} has an hci or address: bleak uses the system's, so drop them")
    if config.hci and config.bridge and not _ADDRESS.fullmatch(config.bridge):
        raise ConfigError(f"{TABLE}.bridge is {config.bridge!r}: with hci it must be an address")
    _check_controller(config.hci, config.address, TABLE)
    return config


def bridge_configs(table: Mapping[str, Any]) -> dict[str, BridgeConfig]:
    """The checked tables of a host's or gateway's bridges by board; ConfigError."""
    configs: dict[str, BridgeConfig] = {}
    for board, content in table.items():
        name = f"{TABLE}.{board}"
        if not isinstance(content, dict):
            raise ConfigError(f"{name} is {content!r}: here each board has a table, [{name}]")
        try:
            check_node(board)
        except ValueError as error:
            raise ConfigError(f"[{TABLE}]: {error}") from error
        configs[board] = config = read_table(BridgeConfig, content, name)
        _check_controller(config.hci, config.address, name)
    if len({config.hci for config in configs.values()}) < len(configs):
        raise ConfigError(f"[{TABLE}]: two bridges have the same hci: each needs one of its own")
    return configs


def board_end(table: Mapping[str, Any], board: str) -> "BleTransport":
    """The transport of a checked table for the node called `board`, not opened yet."""
    from transports.ble.transport import BleTransport  # asyncio is large: only where BLE is used

    config = board_config(table)
    return BleTransport(BleSettings(board), _central(config, board))


def bridge_ends(table: Mapping[str, Any]) -> "dict[str, BleTransport]":
    """The transports of a checked table by board, not opened yet."""
    from transports.ble.bumble_ends import BumbleBridge, open_device  # only where the extra is
    from transports.ble.transport import BleTransport

    ends: dict[str, BleTransport] = {}
    for board, config in bridge_configs(table).items():
        address = config.address or static_address(f"bridge of {board}")
        device = functools.partial(open_device, config.hci, address)
        bridge = BumbleBridge(device, bridge_name(board))
        ends[board] = BleTransport(BleSettings(HOST, board), bridge)
    return ends


def bridge_name(board: str) -> str:
    """The name under which the bridge of a board advertises."""
    return f"ternmesh {board}"[:ADVERTISED_MAX]


def static_address(what: str) -> str:
    """The static random address (its two highest bits are set) that follows from a text."""
    octets = bytearray(hashlib.sha256(what.encode()).digest()[:6])
    octets[0] |= 0xC0
    return ":".join(f"{octet:02X}" for octet in octets)


def _central(config: BoardConfig, board: str) -> GattEnd:
    if not config.hci:
        from transports.ble.bleak_client import BleakEnd  # only where the extra is

        return BleakEnd(config.bridge or bridge_name(board))
    from transports.ble.bumble_ends import BumbleClient, open_device  # only where the extra is

    address = config.address or static_address(f"board {board}")
    bridge = config.bridge or static_address(f"bridge of {board}")
    return BumbleClient(functools.partial(open_device, config.hci, address), bridge)


def _check_controller(hci: str, address: str, table: str) -> None:
    if hci and hci.partition(":")[0] not in SCHEMES:
        raise ConfigError(
            f"{table}.hci is {hci!r}: it must begin with one of {', '.join(SCHEMES)} and a colon"
        )
    if address and not _STATIC.fullmatch(address):
        raise ConfigError(
            f"{table}.address is {address!r}: it must be a static random one, such as "
            "F0:F1:F2:F3:F4:05"
        )
