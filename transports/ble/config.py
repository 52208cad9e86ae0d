"""The `[link.ble]` table: a board's end of BLE, or the bridges of a host or gateway by board.

What nobody says follows from the board's name, so that board and bridge find each other.
"""

import functools
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ternmesh.config import ConfigError, choices, read_table
from transports.base import HOST, check_node
from transports.ble.gatt import GattEnd
from transports.ble.settings import BleSettings

if TYPE_CHECKING:
    from transports.ble.transport import BleTransport

BLEAK, BUMBLE = "bleak", "bumble"
ADVERTISED_MAX = 29  # bytes of a name in an advertisement
TABLE = "link.ble"
SCHEMES = ("usb", "pyusb", "hci-socket", "serial", "tcp-client")  # of those that bumble knows
_ADDRESS = re.compile(r"[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}")
_STATIC = re.compile(r"[C-Fc-f][0-9A-Fa-f](:[0-9A-Fa-f]{2}){5}")


@dataclass(frozen=True, slots=True)
class BoardConfig:
    """A board's end. With bleak `bridge` is an address or a name, with bumble an address.

    `hci` is a Bluetooth controller as bumble names it, such as "usb:0", "hci-socket:0" or
    "tcp-client:127.0.0.1:9000"; whoever names one means bumble. `address` is our own there.
    """

    adapter: str = field(default="", metadata=choices("", BLEAK, BUMBLE))
    bridge: str = ""
    hci: str = ""
    address: str = ""


@dataclass(frozen=True, slots=True)
class BridgeConfig:
    """The bridge of one board: a Bluetooth controller of its own, and its address there."""

    hci: str
    address: str = ""


def board_config(table: Mapping[str, Any]) -> BoardConfig:
    """The checked table of a board; ConfigError with a sentence."""
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
    from transports.ble.bumble_bridge import BumbleBridge  # only where the extra is
    from transports.ble.bumble_stack import open_device
    from transports.ble.transport import BleTransport

    ends: dict[str, BleTransport] = {}
    for board, config in bridge_configs(table).items():
        address = config.address or static_address(f"bridge of {board}")
        device = functools.partial(open_device, config.hci, address)
        ends[board] = BleTransport(
            BleSettings(HOST, board), BumbleBridge(device, bridge_name(board))
        )
    return ends


def bridge_name(board: str) -> str:
    """What the bridge of a board advertises itself as."""
    return f"ternmesh {board}"[:ADVERTISED_MAX]


def static_address(what: str) -> str:
    """A static random address (its two highest bits are set) that follows from a text."""
    octets = bytearray(hashlib.sha256(what.encode()).digest()[:6])
    octets[0] |= 0xC0
    return ":".join(f"{octet:02X}" for octet in octets)


def _central(config: BoardConfig, board: str) -> GattEnd:
    if not config.hci:
        from transports.ble.bleak_client import BleakEnd  # only where the extra is

        return BleakEnd(config.bridge or bridge_name(board))
    from transports.ble.bumble_client import BumbleClient  # only where the extra is
    from transports.ble.bumble_stack import open_device

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
