"""Activations on their way: whole in a frame where they fit, else in pieces. SPEC.md 10.1."""

import numpy as np

from ternmesh.errors import CodecError, WireError
from ternmesh.split.plan import SplitPlan
from ternmesh.wire import pieces
from ternmesh.wire.activation import KIND, Activation, read_activation, write_activation
from ternmesh.wire.seal import OVERHEAD

ROUNDING = 2.0**-8  # more than what a scale may grow by as it becomes a bfloat16
OBJECTS_MAX = 2  # unfinished ones of a peer: the last, and one of which a piece was lost


def cut(item: Activation, bits: int, plan: SplitPlan) -> list[bytes]:
    """The bodies that carry it; CodecError for numbers that the other end would refuse."""
    if np.abs(item.values).max() > plan.value_max * (1 - ROUNDING):
        raise CodecError(f"a number is larger than {plan.value_max}: the training has diverged")
    body = write_activation(item, bits)
    whole = len(body) + OVERHEAD <= plan.frame_mtu
    return [body] if whole else pieces.cut(body, plan.frame_mtu)


class Intake:
    """What one peer sends, put together; memory is bounded by the plan's longest body."""

    def __init__(self, plan: SplitPlan) -> None:
        self._value_max = plan.value_max
        self._assembly = pieces.Assembly(plan.frame_mtu, plan.body_max, OBJECTS_MAX)

    def add(self, body: bytes) -> Activation | None:
        """The activation of a body, or that a piece completes, else None; WireError."""
        if body[0] == pieces.KIND:
            whole = self._assembly.add(body)
            return None if whole is None else self._read(whole)
        if body[0] != KIND:
            raise WireError("kind", f"no body of kind {body[0]} belongs here")
        return self._read(body)

    def _read(self, body: bytes) -> Activation:
        item = read_activation(body)
        if np.abs(item.values).max() > self._value_max:
            raise WireError("scale", "an activation or gradient larger than the plan allows")
        return item
