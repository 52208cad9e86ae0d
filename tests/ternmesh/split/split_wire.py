"""A split training; the test carries the frames between its ends."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ternmesh.federated.events import CountersReserved, SecurityChanged
from ternmesh.federated.joining import NodeSettings
from ternmesh.security.authenticator import OPEN, SecurityLayer
from ternmesh.security.membership import HOST
from ternmesh.split.board import SplitBoard
from ternmesh.split.host import SplitHost, SplitSettings
from ternmesh.split.plan import SplitPlan
from ternmesh.wire.activation import GRADIENT, LEARN, Activation, write_activation
from ternmesh.wire.frame import Header, seal_open
from tests.ternmesh.federated.conftest import Keys

MODEL = bytes(range(32))
RUN = b"run-id-8"
PLAN = SplitPlan(
    width=6,
    bits_up=4,
    bits_gradient=8,
    batch=2,
    micro_batches=5,
    learning_rate_e6=5000,
    learning_rate_drop_permille=800,
    classes=3,
    frame_mtu=512,
    answer_ms=1000,
    clip_norm_e6=1_000_000,
)
Endpoint = SplitBoard | SplitHost


def values(width: int = 6, samples: int = 2, start: float = 0.0) -> np.ndarray:
    return np.linspace(start, start + 1, samples * width, dtype=np.float32).reshape(samples, width)


def micro_batch(number: int, labels: bytes = b"\x00\x02", leg: int = LEARN) -> Activation:
    return Activation(leg, number, values(), labels)


@dataclass
class Wire:
    """`events` has those of each end by name; frames to the ends in `deaf` are lost."""

    plan: SplitPlan
    host: SplitHost
    boards: dict[str, SplitBoard] = field(default_factory=dict)
    events: dict[str, list[object]] = field(default_factory=dict)
    frames: list[tuple[str, str, bytes]] = field(default_factory=list)  # from, to
    deaf: set[str] = field(default_factory=set)
    now: float = 50.0

    def ends(self) -> dict[str, Endpoint]:
        return {HOST: self.host, **self.boards}

    def settle(self) -> None:
        """Carry frames until no end has any."""
        while any([self._serve(name, end) for name, end in self.ends().items()]):
            pass

    def _serve(self, name: str, end: Endpoint) -> bool:
        while (event := end.next_event()) is not None:
            if not isinstance(event, CountersReserved | SecurityChanged):
                self.events.setdefault(name, []).append(event)
        sent = end.frames_to_send(self.now)
        for to, frames in sent:
            self.frames += [(name, to, frame) for frame in frames]
            if to in self.ends() and to not in self.deaf:
                self.ends()[to].receive_frames(name, frames, self.now)
        return bool(sent)

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and handle what is due."""
        self.now += seconds
        for end in self.ends().values():
            due = end.next_timeout()
            if due is not None and due <= self.now:
                end.handle_timeout(self.now)
        self.settle()

    def of(self, name: str, kind: type) -> list[Any]:
        return [event for event in self.events.get(name, []) if isinstance(event, kind)]


def add_board(wire: Wire, name: str, security: SecurityLayer = OPEN, **kept: object) -> SplitBoard:
    board = SplitBoard(
        NodeSettings(name, MODEL, name.encode().ljust(8)[:8]),
        samples=10,
        rng=np.random.default_rng(1),
        security=security,
        **kept,  # type: ignore[arg-type]
    )
    wire.boards[name] = board
    board.start(wire.now)
    wire.settle()
    if security is not OPEN:
        wire.pass_time(2.0)  # until then the host has not seen that the board hears it
    return board


def make_wire(
    *names: str,
    keys: Keys | None = None,
    settings: SplitSettings | None = None,
    boards: tuple[tuple[int, str, int], ...] = (),
    **plan: int,
) -> Wire:
    chosen = replace(PLAN, **plan)
    security = OPEN if keys is None else keys.security(HOST)
    host = SplitHost(
        plan=chosen,
        settings=settings or SplitSettings(),
        model_hash=MODEL,
        run=RUN,
        boards=boards,
        counter=0,
        security=security,
    )
    wire = Wire(chosen, host)
    host.start(wire.now)
    for name in names:
        add_board(wire, name, OPEN if keys is None else keys.security(name))
    return wire


def gradient(number: int, width: int = 6) -> Activation:
    return Activation(GRADIENT, number, values(width))


def send(wire: Wire, body: bytes, address: int = 1, peer: str = "a") -> None:
    """A body of a board that does not follow the rules, under an open seal."""
    frame = seal_open(Header(address, 0), body)
    wire.host.receive_frames(peer, [frame], wire.now)
    wire.settle()


def written(item: Activation) -> bytes:
    return write_activation(item, 4)
