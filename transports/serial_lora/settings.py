"""Settings of a serial radio modem, with the address of each node on the air.

They come from the `[link.serial]` table of a host's or node's configuration.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace

from ternmesh.config import ConfigError, Table, choices, is_whole, limits, needs, read_table
from ternmesh.link.airtime import LoraSetting
from transports.base import ALL, HOST, UnknownPeer, check_node, check_peer

DIALECTS = ("rnode", "ebyte", "meshtastic", "meshcore")
HOST_ADDRESS, ALL_ADDRESS, HOPS_MAX = 0, 255, 7
_BAUD_RATES = {"ebyte": 9600}  # factory settings; all others have 115,200
NEED_FREQUENCY = ("rnode", "meshcore")  # the others hide it, or set it themselves
# Of meshes, whose radios repeat the frames of others: the setting that says how often
HOP_SETTINGS = {"meshtastic": "hop_limit", "meshcore": "hops"}
MESHES = tuple(HOP_SETTINGS)
_MESHTASTIC = needs("dialect", "meshtastic")
_EBYTE, _MESHCORE = needs("dialect", "ebyte"), needs("dialect", "meshcore")
_ABOVE_0 = limits(1e-3, 1e9)
_URL = re.compile(r"socket://(?:\[([^]]+)]|([\w.-]+)):(\d{1,5})")


def tcp_address(port: str) -> tuple[str, int] | None:
    """Host and TCP port of `socket://host:port`; None for a device. ValueError for another URL."""
    if "://" not in port:
        return None
    url = _URL.fullmatch(port)
    if url is None or not 0 < int(url[3]) < 1 << 16:
        raise ValueError(
            f"port is {port!r}: write a device like /dev/ttyUSB0, or socket://host:port"
        )
    return url[1] or url[2], int(url[3])


@dataclass(frozen=True, slots=True)
class SerialLoraSettings:
    """One end of a fleet on a radio modem; a ValueError where its values do not fit together.

    `role` is `host` or the node's name. `addresses` has 1 to 254 for each node; a node needs its
    own only. `radio` gives the time on air of frames; where the modem is not tuned from here
    (Meshtastic), it must match the modem. EBYTE modems hide it: they need `air_rate_bps`, and
    `packet_bytes` of their model (E22 240, E220 200, E32 58).
    """

    port: str
    dialect: str = field(metadata=choices(*DIALECTS))
    role: str
    addresses: Table  # numbers by name
    radio: LoraSetting = field(default=LoraSetting(9))
    frequency_hz: int = 0  # rnode and meshcore need it
    # 25 mW, the most that Europe allows in most of its bands
    power_dbm: int = field(default=14, metadata=limits(0, 22))
    # 0: the factory setting of the dialect
    baud_rate: int = field(default=0, metadata=limits(0, 4_000_000))
    dtr: bool = True  # the control lines of the port: some boards restart, or stay off, by them
    rts: bool = True
    air_rate_bps: int = field(default=2400, metadata=_EBYTE | limits(300, 62_500))
    packet_bytes: int = field(default=240, metadata=_EBYTE | limits(32, 240))
    # How often other radios repeat our frames: the node adds no hops of its own
    hop_limit: int = field(default=0, metadata=_MESHTASTIC | limits(0, HOPS_MAX))
    port_number: int = field(default=256, metadata=_MESHTASTIC | limits(64, 511))  # of our packets
    # Of the hour, what this end may take of a mesh that it shares with others, all repeats counted
    mesh_share: float = field(default=0.01, metadata=limits(1e-4, 1.0))
    # Of MeshCore: where the fleet's channel is kept, with 32 hex digits, else the public #ternmesh
    channel_slot: int = field(default=7, metadata=_MESHCORE | limits(1, 39))
    channel_secret: str = field(default="", metadata=_MESHCORE)
    scope: str = field(default="", metadata=_MESHCORE)  # the region in which repeaters pass it on
    application: int = field(default=0xFF00, metadata=_MESHCORE | limits(0x0100, 0xFFFF))
    datagram_bytes: int = field(default=165, metadata=_MESHCORE | limits(130, 165))
    hops: int = field(default=0, metadata=_MESHCORE | limits(0, HOPS_MAX))  # on the longest way
    # Frames that wait for the modem
    queue_max: int = field(default=64, metadata=limits(1, 10_000))
    # How long a modem may take beyond the airtime to answer
    answer_margin_s: float = field(default=4.0, metadata=_ABOVE_0)
    write_timeout_s: float = field(default=2.0, metadata=_ABOVE_0)
    reconnect_min_s: float = field(default=1.0, metadata=_ABOVE_0)
    reconnect_max_s: float = field(default=30.0, metadata=_ABOVE_0)
    # Of emulated radios, in multiples of real time
    speed: float = field(default=1.0, metadata=_ABOVE_0)

    def __post_init__(self) -> None:
        if not self.port:
            raise ValueError("port is empty: name the modem's device, like /dev/ttyUSB0")
        tcp_address(self.port)
        self._check_addresses()
        self._check_radio()
        if self.reconnect_max_s < self.reconnect_min_s:
            raise ValueError("reconnect_max_s must be at least reconnect_min_s")

    def _check_addresses(self) -> None:
        if self.role != HOST:
            check_node(self.role)
            if self.role not in self.addresses:
                raise ValueError(f"addresses has no entry for {self.role!r}: give it 1 to 254")
        for name, address in self.addresses.items():
            check_node(name)
            if not HOST_ADDRESS < address < ALL_ADDRESS:
                raise ValueError(f"the address {address} of {name!r} must be 1 to 254")
        if len(set(self.addresses.values())) < len(self.addresses):
            raise ValueError("two nodes have the same address: each needs one of its own")

    def _check_radio(self) -> None:
        if self.dialect in NEED_FREQUENCY and not 137_000_000 <= self.frequency_hz <= 1_020_000_000:
            raise ValueError(
                f"frequency_hz {self.frequency_hz} must be 137000000 to 1020000000, "
                "like 869525000 in Europe or 915000000 in the US"
            )
        if not re.fullmatch("([0-9a-fA-F]{32})?", self.channel_secret):
            raise ValueError(
                "channel_secret must be 32 hex digits: `openssl rand -hex 16` makes one"
            )
        preamble = self.radio.preamble_symbols
        if not 6 <= preamble <= 65_535:
            raise ValueError(f"a preamble of {preamble} symbols: it must be 6 to 65535")

    @property
    def baud(self) -> int:
        """The rate of the serial port in bits per second."""
        return self.baud_rate or _BAUD_RATES.get(self.dialect, 115_200)

    @property
    def duty_max(self) -> float:
        """The part of the time for which this end may send, as its mesh is others' too."""
        if self.dialect not in MESHES or self.mesh_share == 1.0:
            return 1.0
        return self.mesh_share / (1 + self.hops + self.hop_limit)

    @property
    def own_address(self) -> int:
        return HOST_ADDRESS if self.role == HOST else self.addresses[self.role]

    @property
    def peers(self) -> Mapping[str, int]:
        """The addresses of all peers of this end, by name."""
        return self.addresses if self.role == HOST else {HOST: HOST_ADDRESS}

    def address(self, peer: str) -> int:
        """The address of `peer`; UnknownPeer where it has none."""
        check_peer(self.role, peer)
        if peer in (HOST, ALL):
            return HOST_ADDRESS if peer == HOST else ALL_ADDRESS
        if peer not in self.addresses:
            raise UnknownPeer(f"addresses has no entry for {peer!r}: give it 1 to 254")
        return self.peers[peer]

    def peer(self, to: int, sender: int) -> str | None:
        """The name of `sender`; None where `to` is another end, or the sender is unknown."""
        ours = (HOST_ADDRESS,) if self.role == HOST else (self.own_address, ALL_ADDRESS)
        if to not in ours:
            return None
        return next((name for name, value in self.peers.items() if value == sender), None)


_RADIO = frozenset(item.name for item in fields(LoraSetting))  # they stand beside the others
_OTHERS = frozenset(item.name for item in fields(SerialLoraSettings)) - {"role", "radio"}


def serial_settings(table: Table, role: str) -> SerialLoraSettings:
    """The settings of the end for `role`, a node's name or HOST; ConfigError."""
    for key in table:
        if key not in _OTHERS | _RADIO:
            allowed = ", ".join(sorted(_OTHERS | _RADIO))
            raise ConfigError(f"link.serial.{key} is not a setting: [link.serial] allows {allowed}")
    addresses = table.get("addresses")
    for name, address in addresses.items() if isinstance(addresses, dict) else ():
        if not is_whole(address):
            where = f"link.serial.addresses.{name}"
            raise ConfigError(f"{where} is {address!r}: it must be a whole number")
    others = {key: value for key, value in table.items() if key in _OTHERS}
    radio = {key: value for key, value in table.items() if key in _RADIO}
    try:
        settings = read_table(SerialLoraSettings, {**others, "role": role}, "link.serial")
        radio = asdict(settings.radio) | radio
        return replace(settings, radio=read_table(LoraSetting, radio, "link.serial"))
    except ValueError as error:
        raise ConfigError(f"[link.serial]: {error}") from error
