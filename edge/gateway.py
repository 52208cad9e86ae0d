"""A gateway: it hears the boards of a radio neighbourhood and is their end of the network.

It forwards sealed frames as they are and can neither read nor forge them; the link of its radio has
its own seals. On the network it stands in for each of its boards by that board's name. What it has
taken from the radio waits in the link's inbox on disk until the network has it; while the network
is down it takes nothing, and the boards keep their packets. A board whose login alone is refused
holds up nobody else. A trusted gateway may add its boards' packets up (edge/bundler.py).
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from edge.bundler import STORE, BundleConfig, Bundling, read_model
from ternmesh.config import LOG_LEVELS, ConfigError, choices
from ternmesh.errors import TrustError
from ternmesh.trust.keyed import HUBS
from ternmesh.wire import seal
from ternmesh_store.gateway_store import GatewayStore
from ternmesh_store.keyring import Keyring, NoKeyring, TrustConfig, choose_keyring, hop_keys
from ternmesh_store.radio_stores import RadioStores
from transports.base import ALL, HOST, Busy, FrameTooLarge, NotConnected, Transport
from transports.bearer import boards_of, check_link, is_linked, make_transport
from transports.config_file import check_name, control_path, read_config_file
from transports.control_socket import ControlServer, Relay
from transports.link_config import LinkConfig
from transports.linked import StatusTransport

POLL_S = 0.05  # a broker is looked at so often
UP_MAX, UP_BYTES_MAX = 256, 1 << 20  # arrivals and bytes that wait for one board's connection

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """A gateway between `radio` (or BLE), whose tables name its boards, and `network`.

    `name` is that of its identity; over BLE, where no link of its own is to be sealed, it needs
    none.
    """

    state_dir: str
    radio: LinkConfig
    network: LinkConfig
    name: str = "gateway"
    trust: TrustConfig = field(default_factory=TrustConfig)
    bundle: BundleConfig = field(default_factory=BundleConfig)
    control_socket: str | None = None
    log_level: str = field(default="INFO", metadata=choices(*LOG_LEVELS))

    @property
    def boards(self) -> tuple[str, ...]:
        """Those that it stands in for."""
        return boards_of(self.radio, HOST)

    @property
    def control_path(self) -> Path:
        """The socket that `ternmesh status` asks."""
        return control_path(self.state_dir, self.control_socket)


def read_gateway_config(path: Path) -> GatewayConfig:
    """The settings in the file at `path`; ConfigError. Relative paths start from its folder."""
    return read_config_file(GatewayConfig, path, lambda c, folder: _check(_anchor(c, folder)))


def _anchor(config: GatewayConfig, folder: Path) -> GatewayConfig:
    control = config.control_socket
    return replace(
        config,
        state_dir=str(folder / config.state_dir),
        control_socket=str(folder / control) if control else None,
        radio=config.radio.anchored(folder),
        network=config.network.anchored(folder),
        bundle=config.bundle.anchored(folder),
    )


def _check(config: GatewayConfig) -> GatewayConfig:
    check_name(config.name)
    if not config.radio.serial and not config.radio.ble:
        raise ConfigError(
            "[radio] is empty: name the modem in [radio.serial], or a bridge for each board, as "
            "in [radio.ble.NAME]"
        )
    check_link(config.radio, HOST)
    network = config.network
    if network.serial or network.ble or network.also or network.several:
        raise ConfigError("[network] is more than a url: a gateway needs one broker there")
    for board in config.boards:
        check_link(config.network, board)
    if config.bundle.model is not None:
        read_model(config.bundle.model)
    return config


class Gateway:
    """Forwards between `radio`, where it is the host, and `network`, a transport for each board.

    With `bundling` all that passes goes through that.
    """

    def __init__(
        self,
        radio: Transport,
        network: Mapping[str, Transport],
        bundling: Bundling | None = None,
    ) -> None:
        self._radio, self._network, self._bundling = radio, network, bundling
        self._up: dict[str, deque[Sequence[bytes]]] = {board: deque() for board in network}
        self._down: deque[tuple[str, Sequence[bytes]]] = deque()
        self.frames_up = self.frames_down = self.frames_refused = self.frames_lost = 0

    def open(self) -> None:
        """Start everything."""
        if self._bundling is not None:
            self._bundling.open()
        for transport in (self._radio, *self._network.values()):
            transport.open()

    def close(self) -> None:
        """Stop everything."""
        for transport in (self._radio, *self._network.values()):
            transport.close()
        if self._bundling is not None:
            self._bundling.close()

    def turn(self, wait_s: float) -> bool:
        """Forward what there is; waits at most `wait_s` for the radio. True if anything moved."""
        arrival = None
        if self._may_listen():
            arrival = self._radio.receive(wait_s)
            if arrival is not None and arrival.peer in self._network:
                self._take_up(arrival.peer, arrival.frames)
            if self._bundling is not None:
                self._bundling.handle_timeouts()  # only here: nothing may pile up without a network
                self._settle(self._bundling)
        moved = self._forward_up() or arrival is not None
        if not self._down:
            self._take_down()
            if self._bundling is not None:
                self._settle(self._bundling)
        return self._forward_down() or moved

    def _take_up(self, board: str, frames: Sequence[bytes]) -> None:
        if self._bundling is None:
            self._keep_up(board, frames)
        else:
            self._bundling.receive_up(board, frames)

    def _settle(self, bundling: Bundling) -> None:
        up, down = bundling.settle()
        for board, frames in up:
            self._keep_up(board, frames)
        self._down.extend(down)

    def _may_listen(self) -> bool:
        """Whether what the radio brings can go on: nothing waits, but for boards that are cut off
        while others are not.
        """
        waiting = {board for board, arrivals in self._up.items() if arrivals}
        up = self._connected()
        return not waiting or (bool(up) and waiting.isdisjoint(up))

    def _connected(self) -> list[str]:
        return [board for board, transport in self._network.items() if transport.connected]

    def _keep_up(self, board: str, frames: Sequence[bytes]) -> None:
        """Queue frames; what has no room is lost, and its board sends it again."""
        waiting = self._up[board]
        size = sum(len(frame) for arrival in (*waiting, frames) for frame in arrival)
        if len(waiting) >= UP_MAX or (waiting and size > UP_BYTES_MAX):
            self.frames_lost += len(frames)
        else:
            waiting.append(frames)

    def _forward_up(self) -> bool:
        moved = False
        for board, waiting in self._up.items():
            if waiting and self._send(self._network[board], HOST, waiting[0]):
                self.frames_up += len(waiting.popleft())
                moved = True
        return moved

    def _take_down(self) -> None:
        """What the host says to each board; what it says to all is taken once."""
        listener = next(iter(self._connected()), None)
        for board, transport in self._network.items():
            arrival = transport.receive(0.0)
            if arrival is None:
                continue
            for peer, frames in _sorted(board, arrival.frames):
                if not frames or (peer == ALL and board != listener):
                    continue
                if self._bundling is None:
                    self._down.append((peer, frames))
                else:
                    self._bundling.receive_down(peer, frames)

    def _forward_down(self) -> bool:
        moved = False
        while self._down:
            peer, frames = self._down[0]
            if not self._send(self._radio, peer, frames):
                break
            self._down.popleft()
            self.frames_down += len(frames)
            moved = True
        return moved

    def _send(self, transport: Transport, peer: str, frames: Sequence[bytes]) -> bool:
        """Whether the frames are off our hands."""
        try:
            transport.send(peer, frames)
        except (Busy, NotConnected):
            return False
        except FrameTooLarge as error:
            self.frames_refused += len(frames)
            _log.warning("frames for %s are lost: %s", peer, error)
        return True


def _sorted(board: str, frames: Sequence[bytes]) -> list[tuple[str, list[bytes]]]:
    """Frames for the board, and those for all. A seal's head is open to everyone."""
    everybodys = [frame for frame in frames if _context(frame) == seal.BROADCAST]
    mine = [frame for frame in frames if _context(frame) != seal.BROADCAST]
    return [(board, mine), (ALL, everybodys)]


def _context(frame: bytes) -> int:
    return int.from_bytes(frame[1:3], "little")


def run_gateway(config: GatewayConfig, stop: threading.Event, *, insecure: bool = False) -> None:
    """Be a gateway until `stop` is set; `insecure`: without keys.

    ConfigError, TrustError, StoreError, TransportError, ControlError.
    """
    stores, keyring = RadioStores(Path(config.state_dir)), _keyring(config, insecure=insecure)
    radio = make_transport(config.radio, HOST, stores, hop_keys(keyring, config.name))
    network = {board: make_transport(config.network, board, stores) for board in config.boards}
    bundling = _bundling(config)
    gateway, relay = Gateway(radio, network, bundling), Relay()

    def answer(_request: Mapping[str, Any]) -> dict[str, Any]:
        bundles = None if bundling is None else bundling.status()
        trust = keyring.status() if is_linked(config.radio) else None
        return {**status(gateway, radio, network), "bundles": bundles, "trust": trust}

    keyring.open()
    try:
        keyring.check_fleet(config.network.fleet)
        _check_members(keyring, config)
        gateway.open()
        with ControlServer(config.control_path, relay.ask):
            _log.info("gateway for %s is ready", ", ".join(config.boards))
            while not stop.is_set():
                gateway.turn(POLL_S)
                relay.serve(answer)
    finally:
        gateway.close()
        keyring.close()


def _keyring(config: GatewayConfig, *, insecure: bool) -> Keyring | NoKeyring:
    """What seals its radio's link; bridges have none, and frames pass them as they are."""
    if not is_linked(config.radio):
        return NoKeyring()
    folder, is_loopback = Path(config.state_dir), config.radio.is_loopback
    return choose_keyring(folder, config.trust, insecure=insecure, is_loopback=is_loopback)


def _check_members(keyring: Keyring | NoKeyring, config: GatewayConfig) -> None:
    """Boards whose keys it lacks cannot speak to it: that must not be a riddle."""
    if not isinstance(keyring, Keyring):
        return
    if keyring.own.public.role not in HUBS:
        role = keyring.own.public.role.name.lower()
        raise TrustError(f"{config.name} has the identity of a {role}: a gateway needs its own")
    known = {member.name for member in keyring.roster.state.members}
    if strangers := [board for board in config.boards if board not in known]:
        _log.warning(
            "no keys of %s are known here, so nothing is heard from them: `ternmesh enrol import` "
            "takes what `ternmesh enrol export` on the host has written",
            ", ".join(strangers),
        )


def _bundling(config: GatewayConfig) -> Bundling | None:
    if config.bundle.model is None:
        return None
    model, store = read_model(config.bundle.model), GatewayStore(Path(config.state_dir) / STORE)
    rng = np.random.default_rng()
    return Bundling(model, config.boards, config.bundle.wait_s, store, time.monotonic, rng)


def status(
    gateway: Gateway, radio: StatusTransport, network: Mapping[str, StatusTransport]
) -> dict[str, Any]:
    """What the gateway tells of itself, ready for JSON."""
    return {
        "role": "gateway",
        "frames_up": gateway.frames_up,
        "frames_down": gateway.frames_down,
        "frames_refused": gateway.frames_refused,
        "frames_lost": gateway.frames_lost,
        "transport": radio.status(),
        "network": {board: transport.status() for board, transport in network.items()},
    }
