"""Activations on their way: whole in a frame where they fit, else in pieces. SPEC.md 10.1."""

from ternmesh.errors import WireError
from ternmesh.split.plan import SplitPlan
from ternmesh.wire import pieces
from ternmesh.wire.activation import KIND, Activation, read_activation, write_activation
from ternmesh.wire.seal import OVERHEAD

OBJECTS_MAX = 2  # unfinished ones of a peer: the last, and one of which a piece was lost


def cut(item: Activation, bits: int, plan: SplitPlan) -> list[bytes]:
    """The bodies that carry it."""
    body = write_activation(item, bits)
    whole = len(body) + OVERHEAD <= plan.frame_mtu
    return [body] if whole else pieces.cut(body, plan.frame_mtu)


class Intake:
    """What one peer sends, put together; memory is bounded by the plan's longest body."""

    def __init__(self, plan: SplitPlan) -> None:
        self._assembly = pieces.Assembly(plan.frame_mtu, plan.body_max, OBJECTS_MAX)

    def add(self, body: bytes) -> Activation | None:
        """The activation of a body, or that a piece completes, else None; WireError."""
        if body[0] == pieces.KIND:
            whole = self._assembly.add(body)
            return None if whole is None else read_activation(whole)
        if body[0] != KIND:
            raise WireError("kind", f"no body of kind {body[0]} belongs here")
        return read_activation(body)
