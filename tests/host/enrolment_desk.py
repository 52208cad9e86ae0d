"""A host that takes nothing but what comes without a seal: requests to enrol and for new keys."""

from collections.abc import Sequence
from typing import Any

from host.enrolment import EnrolmentService
from ternmesh.federated.channel import Channel
from ternmesh.federated.fleet_session import FleetSession, Handlers
from ternmesh.federated.registry import NodeRegistry
from ternmesh.federated.state import RegisteredNode
from ternmesh.security.authenticator import OPEN
from ternmesh.security.identity import Role
from ternmesh_service.keyring import Keyring


class EnrolmentDesk:
    """What is not for the service is refused, and counted in `refused`."""

    def __init__(self, keyring: Keyring) -> None:
        channel = Channel[Any](run=bytes(8), counter=0, security=OPEN)
        self.refused = channel.refused
        self._channel = channel
        self._handlers = Handlers(of_node={}, of_peer={})
        self._service = EnrolmentService(keyring, channel)
        self._service.register(self._handlers)
        self._session = FleetSession(
            channel=channel,
            nodes=NodeRegistry([], new=RegisteredNode),
            model=bytes(8),
            plan=(),
            excuse=lambda _node, _now: None,
            answer_s=1.0,
        )

    def issue(self, role: Role, lasts_s: float, now: float) -> str:
        return self._service.issue(role, lasts_s, now)

    def receive_frames(self, peer: str, frames: Sequence[bytes], now: float) -> None:
        self._session.receive_frames(peer, frames, self._handlers, 0, now)

    def frames_to_send(self) -> list[tuple[str, list[bytes]]]:
        return self._channel.frames_to_send()
