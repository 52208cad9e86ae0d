"""Activations in frames (whole if they fit, else in fragments), and the events of both ends.

SPEC.md section 10.1.
"""

from dataclasses import dataclass

from ternmesh.errors import WireError
from ternmesh.federated.events import SessionEvent
from ternmesh.split.plan import SplitPlan
from ternmesh.wire import fragments
from ternmesh.wire.activation import KIND, Activation, read_activation, write_activation
from ternmesh.wire.frame import FRAME_OVERHEAD

OBJECTS_MAX = 2  # unfinished ones of a peer: the last, and one of which a fragment was lost


def cut_activation(item: Activation, bits: int, plan: SplitPlan) -> list[bytes]:
    """The bodies that carry an activation; CodecError for numbers that are not finite."""
    body = write_activation(item, bits)
    whole = len(body) + FRAME_OVERHEAD <= plan.frame_mtu
    return [body] if whole else fragments.split(body, plan.frame_mtu)


class ActivationReassembler:
    """It puts the activations of one peer together; the plan's longest body bounds the memory."""

    def __init__(self, plan: SplitPlan) -> None:
        self._assembly = fragments.Reassembler(plan.frame_mtu, plan.body_max, OBJECTS_MAX)

    def add(self, body: bytes) -> Activation | None:
        """The activation that a body holds or completes, else None; WireError."""
        if body[0] == fragments.KIND:
            whole = self._assembly.add(body)
            return None if whole is None else read_activation(whole)
        if body[0] != KIND:
            raise WireError("kind", f"no body of kind {body[0]} belongs here")
        return read_activation(body)


@dataclass(frozen=True, slots=True)
class Welcomed:
    """The host has taken this board in, or has told it again where the run stands.

    If the run is another than before, start from nothing.
    """

    run: bytes
    number: int  # the next micro-batch
    phase: int
    plan: SplitPlan
    undone: int = 0  # micro-batches whose gradients were lost again, by a restart of the board


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to what was sent last."""

    item: Activation


@dataclass(frozen=True, slots=True)
class Lost:
    """Micro-batch `number` was refused, or had no answer in time: it is skipped."""

    number: int


@dataclass(frozen=True, slots=True)
class BoardJoined:
    """A board was taken in. Keep its address."""

    address: int
    name: str


@dataclass(frozen=True, slots=True)
class Arrived:
    """What a board sent; its shape and its time are checked."""

    address: int
    item: Activation


BoardEvent = SessionEvent | Welcomed | Answered | Lost
HostEvent = SessionEvent | BoardJoined | Arrived
