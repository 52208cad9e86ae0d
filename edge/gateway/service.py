"""A gateway: it connects boards that it reaches by radio or BLE to a broker.

It forwards sealed frames unchanged and can neither read nor forge them; the link of its radio is
sealed separately. It has one connection to the broker for each board, under that board's name.
Frames from the radio stay in the link's inbox on disk until the broker has them. While the broker
is away the gateway accepts nothing from the radio, and the boards keep their updates. If the broker
refuses the login of one board, the others are still served.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ternmesh.config import LOG_LEVELS, ConfigError, choices
from ternmesh.errors import SecurityError
from ternmesh.security.keyed_sealing import HUBS
from ternmesh.wire.frame import BROADCAST
from ternmesh_service.backup import answer_backup
from ternmesh_service.config_file import PATH, check_name, control_path, read_config_file
from ternmesh_service.control_socket import BACKUP, ControlServer, Relay
from ternmesh_service.keyring import (
    Keyring,
    NoKeyring,
    SecurityConfig,
    choose_keyring,
    hop_keys,
    opened,
)
from ternmesh_service.member_list import MemberListClient
from ternmesh_service.notify import ServiceManager
from ternmesh_service.status import GatewayStatus, to_json
from ternmesh_service.webhook import AlarmsConfig, check_alarms, pushed_alarms
from ternmesh_store.state_file import StateFile
from transports.base import ALL, HOST, Busy, FrameTooLarge, NameTaken, NotConnected, Transport
from transports.factory import boards_of, check_link, is_linked, make_transport
from transports.link_config import LinkConfig

POLL_S = 0.05  # longest wait for the radio before the broker is polled
UP_MAX = 256  # arrivals that wait for one board's connection
UP_BYTES_MAX = 1 << 20  # their bytes

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """A gateway between `radio` (or BLE), whose tables name its boards, and `network`.

    `name` is the name of its identity. Over BLE it needs no identity: that link is not sealed.
    """

    state_dir: str = field(metadata=PATH)
    radio: LinkConfig
    network: LinkConfig
    name: str = "gateway"
    security: SecurityConfig = field(default_factory=SecurityConfig)
    alarms: AlarmsConfig = field(default_factory=AlarmsConfig)
    control_socket: str | None = field(default=None, metadata=PATH)
    log_level: str = field(default="INFO", metadata=choices(*LOG_LEVELS))

    @property
    def boards(self) -> tuple[str, ...]:
        return boards_of(self.radio, HOST)


def read_gateway_config(path: Path) -> GatewayConfig:
    """The configuration at `path`; relative paths start from its folder. ConfigError."""
    return read_config_file(GatewayConfig, path, _check)


def _check(config: GatewayConfig) -> GatewayConfig:
    check_name(config.name)
    check_alarms(config.alarms)
    if not config.radio.serial and not config.radio.ble:
        raise ConfigError(
            "[radio] is empty: name the modem in [radio.serial], or a bridge for each board in "
            "[radio.ble.NAME]"
        )
    check_link(config.radio, HOST)
    network = config.network
    if network.serial or network.ble or network.also or network.multipath:
        raise ConfigError("[network] has other links than a url: a gateway needs one broker there")
    for board in config.boards:
        try:
            check_link(config.network, board)
        except ConfigError as error:  # it speaks of [link], as a host or board has it
            raise ConfigError(f"in [network]: {error}") from error
    return config


class Gateway:
    """Forwards between `radio`, where it is the host, and `network`, a transport for each board."""

    def __init__(
        self,
        radio: Transport,
        network: Mapping[str, Transport],
        member_list: MemberListClient | None = None,
    ) -> None:
        self.frames_up = 0
        self.frames_down = 0
        self.frames_refused = 0  # too large for the next transport
        self.frames_lost = 0  # no room to wait for the network: the board sends them again
        self._radio = radio
        self._network = network
        self._member_list = member_list
        self._up: dict[str, deque[Sequence[bytes]]] = {board: deque() for board in network}
        self._down: deque[tuple[str, Sequence[bytes]]] = deque()  # by peer

    def open(self) -> None:
        for transport in (self._radio, *self._network.values()):
            transport.open()

    def close(self) -> None:
        for transport in (self._radio, *self._network.values()):
            transport.close()

    def turn(self, wait_s: float) -> bool:
        """Forward frames; waits at most `wait_s` for the radio. True if anything moved."""
        arrival = None
        if self._may_listen():
            arrival = self._radio.receive(wait_s)
            if arrival is not None and arrival.peer in self._network:
                self._queue_up(arrival.peer, arrival.frames)
        else:
            time.sleep(wait_s)  # else the loop would spin while the network is down
        moved = self._forward_up() or arrival is not None
        self._ask_for_list()
        if not self._down:
            self._receive_down()
        return self._forward_down() or moved

    def summary(self) -> str:
        """The line of `systemctl status`."""
        return f"{self.frames_up} frames up, {self.frames_down} down, {self.frames_lost} lost"

    def _may_listen(self) -> bool:
        """Whether to receive from the radio: nothing waits, except for boards that are cut off
        while others are connected.
        """
        waiting = {board for board, arrivals in self._up.items() if arrivals}
        connected = self._connected()
        return not waiting or (bool(connected) and waiting.isdisjoint(connected))

    def _connected(self) -> list[str]:
        return [board for board, transport in self._network.items() if transport.connected]

    def _ask_for_list(self) -> None:
        board = next(iter(self._connected()), None)
        if self._member_list is None or board is None:
            return
        request = self._member_list.request(time.monotonic())
        if request is not None:
            self._send(self._network[board], HOST, [request])

    def _queue_up(self, board: str, frames: Sequence[bytes]) -> None:
        """Queue frames for the network; without room they are lost."""
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

    def _receive_down(self) -> None:
        """Receive the host's frames for each board; broadcasts are received once."""
        listener = next(iter(self._connected()), None)
        for board, transport in self._network.items():
            try:
                arrival = transport.receive(0.0)
            except NameTaken:  # the board is on the network itself, as the log says
                continue
            if arrival is None:
                continue
            arrived: Sequence[bytes] = arrival.frames
            if self._member_list is not None:
                arrived = self._member_list.receive(arrived, time.monotonic())
            for peer, frames in _by_peer(board, arrived):
                if not frames or (peer == ALL and board != listener):
                    continue
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
        """Send frames; False if they must wait."""
        try:
            transport.send(peer, frames)
        except (Busy, NotConnected):
            return False
        except FrameTooLarge as error:
            self.frames_refused += len(frames)
            _log.warning("frames for %s are lost: %s", peer, error)
        return True


def _by_peer(board: str, frames: Sequence[bytes]) -> list[tuple[str, list[bytes]]]:
    """Frames for the board, and for all. The address in a frame's header is not encrypted."""
    frames_of: dict[str, list[bytes]] = {board: [], ALL: []}
    for frame in frames:
        address = int.from_bytes(frame[1:3], "little")
        frames_of[ALL if address == BROADCAST else board].append(frame)
    return list(frames_of.items())


def run_gateway(config: GatewayConfig, stop: threading.Event, *, insecure: bool = False) -> None:
    """Run a gateway until `stop` is set; `insecure` runs it without keys.

    Raises ConfigError, SecurityError, StoreError, TransportError or ControlError.
    """
    state = StateFile(Path(config.state_dir))
    keyring: Keyring | NoKeyring = NoKeyring()  # the link of BLE bridges is not sealed
    if is_linked(config.radio):
        keyring = choose_keyring(state, config.security, config.radio, insecure=insecure)
    radio = make_transport(config.radio, HOST, state, hop_keys(keyring, config.name))
    network = {board: make_transport(config.network, board, state) for board in config.boards}
    member_list = MemberListClient(keyring) if isinstance(keyring, Keyring) else None
    relay, manager = Relay(), ServiceManager()
    with opened(state, keyring, config.network.fleet):
        _check_members(keyring, config)
        gateway = Gateway(radio, network, member_list)

        def answer(request: Mapping[str, Any]) -> dict[str, Any]:
            if BACKUP in request:
                return answer_backup(state, config.security.path(state.folder), request)
            return to_json(
                GatewayStatus(
                    frames_up=gateway.frames_up,
                    frames_down=gateway.frames_down,
                    frames_refused=gateway.frames_refused,
                    frames_lost=gateway.frames_lost,
                    transport=radio.status(),
                    network={board: end.status() for board, end in network.items()},
                    security=keyring.status() if is_linked(config.radio) else None,
                )
            )

        path = control_path(config.state_dir, config.control_socket)
        pushed = pushed_alarms(config.alarms, path, {})
        with closing(gateway), ControlServer(path, relay.ask), pushed:
            gateway.open()
            manager.ready()
            _log.info("gateway for %s is ready", ", ".join(config.boards))
            while not stop.is_set():
                gateway.turn(POLL_S)
                relay.serve(answer)
                manager.turn(
                    gateway.summary, lambda: [end.status() for end in (radio, *network.values())]
                )
            manager.stopping()


def _check_members(keyring: Keyring | NoKeyring, config: GatewayConfig) -> None:
    """Refuse an identity of another role, and warn about boards whose keys are missing."""
    if not isinstance(keyring, Keyring):
        return
    if keyring.own.public.role not in HUBS:
        role = keyring.own.public.role.name.lower()
        raise SecurityError(f"{config.name} has the identity of a {role}: a gateway needs its own")
    members = {member.name for member in keyring.member_list.state.members}
    if strangers := [board for board in config.boards if board not in members]:
        _log.warning(
            "no keys of %s are known here yet, so their frames are refused until the host has "
            "sent its list of members: enrol them there",
            ", ".join(strangers),
        )
