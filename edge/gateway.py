"""A gateway: it hears the boards of a radio neighbourhood and is their end of the network.

It forwards sealed frames as they are and can neither read nor forge them. On the network it stands
in for each of its boards by that board's name. What it has taken from the radio waits in the
link's inbox on disk until the network has it; while the network is down it takes nothing, and the
boards keep their packets.
"""

import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ternmesh.config import LOG_LEVELS, ConfigError, choices
from ternmesh.wire import seal
from ternmesh_store.radio_stores import RadioStores
from transports.base import ALL, HOST, Busy, FrameTooLarge, NotConnected, Transport
from transports.bearer import check_link, make_transport
from transports.config_file import read_config_file
from transports.control_socket import ControlServer, Relay
from transports.link_config import LinkConfig
from transports.linked import StatusTransport

POLL_S = 0.25
CONTROL = "control.sock"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """A gateway between `radio`, whose table of addresses names its boards, and `network`."""

    state_dir: str
    radio: LinkConfig
    network: LinkConfig
    control_socket: str | None = None
    log_level: str = field(default="INFO", metadata=choices(*LOG_LEVELS))

    @property
    def boards(self) -> tuple[str, ...]:
        """Those that it stands in for."""
        return tuple(self.radio.serial["addresses"])

    @property
    def control_path(self) -> Path:
        """The socket that `ternmesh status` asks."""
        return Path(self.control_socket or Path(self.state_dir) / CONTROL)


def read_gateway_config(path: Path) -> GatewayConfig:
    """The settings in the file at `path`; ConfigError. Relative paths start from its folder."""
    return read_config_file(GatewayConfig, path, lambda c, folder: _check(_anchor(c, folder)))


def _anchor(config: GatewayConfig, folder: Path) -> GatewayConfig:
    control = config.control_socket
    return replace(
        config,
        state_dir=str(folder / config.state_dir),
        control_socket=str(folder / control) if control else None,
        network=config.network.anchored(folder),
    )


def _check(config: GatewayConfig) -> GatewayConfig:
    if not config.radio.serial:
        raise ConfigError("[radio] has no serial table: name the modem in [radio.serial]")
    check_link(config.radio, HOST)
    if config.network.serial:
        raise ConfigError("[network] is a radio: a gateway needs a broker there")
    for board in config.boards:
        check_link(config.network, board)
    return config


class Gateway:
    """Forwards between `radio`, where it is the host, and `network`, a transport for each board."""

    def __init__(self, radio: Transport, network: Mapping[str, Transport]) -> None:
        self._radio, self._network = radio, network
        self._up: deque[tuple[str, Sequence[bytes]]] = deque()
        self._down: deque[tuple[str, Sequence[bytes]]] = deque()
        self.frames_up = self.frames_down = self.frames_refused = 0

    def open(self) -> None:
        """Start everything."""
        for transport in (self._radio, *self._network.values()):
            transport.open()

    def close(self) -> None:
        """Stop everything."""
        for transport in (self._radio, *self._network.values()):
            transport.close()

    def turn(self, wait_s: float) -> bool:
        """Forward what there is; waits at most `wait_s` for the radio. True if anything moved."""
        if not self._up:
            arrival = self._radio.receive(wait_s)
            if arrival is not None and arrival.peer in self._network:
                self._up.append((arrival.peer, arrival.frames))
        moved = self._forward_up()
        if not self._down:
            self._take_down()
        return self._forward_down() or moved

    def _forward_up(self) -> bool:
        if not self._up:
            return False
        board, frames = self._up[0]
        if not self._send(self._network[board], HOST, frames):
            return False
        self._up.popleft()
        self.frames_up += len(frames)
        return True

    def _take_down(self) -> None:
        """What the host says to each board; what it says to all is taken once."""
        for index, (board, transport) in enumerate(self._network.items()):
            arrival = transport.receive(0.0)
            if arrival is None:
                continue
            for peer, frames in _sorted(board, arrival.frames):
                if frames and (peer != ALL or index == 0):
                    self._down.append((peer, frames))

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


def run_gateway(config: GatewayConfig, stop: threading.Event) -> None:
    """Be a gateway until `stop` is set. ConfigError, StoreError, TransportError, ControlError."""
    stores = RadioStores(Path(config.state_dir))
    radio = make_transport(config.radio, HOST, stores)
    network = {board: make_transport(config.network, board, stores) for board in config.boards}
    gateway, relay = Gateway(radio, network), Relay()

    def answer(_request: Mapping[str, Any]) -> dict[str, Any]:
        return status(gateway, radio, network)

    try:
        gateway.open()
        with ControlServer(config.control_path, relay.ask):
            _log.info("gateway for %s is ready", ", ".join(config.boards))
            while not stop.is_set():
                gateway.turn(POLL_S)
                relay.serve(answer)
    finally:
        gateway.close()


def status(
    gateway: Gateway, radio: StatusTransport, network: Mapping[str, StatusTransport]
) -> dict[str, Any]:
    """What the gateway tells of itself, ready for JSON."""
    return {
        "role": "gateway",
        "frames_up": gateway.frames_up,
        "frames_down": gateway.frames_down,
        "frames_refused": gateway.frames_refused,
        "transport": radio.status(),
        "network": {board: transport.status() for board, transport in network.items()},
    }
