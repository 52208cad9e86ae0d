"""Objects that pass a gateway on their way down: it reads them before its boards can.

A bundle's fate stands in a reference. Were a board to have that reference and the gateway not, say
after a power cut in between, nobody would tell the gateway again.
"""

from collections import OrderedDict, deque

from ternmesh.errors import WireError
from ternmesh.plan import Plan
from ternmesh.wire import pieces
from ternmesh.wire.reference import object_max

OBJECTS_MAX = 40  # unfinished ones: each of a full neighbourhood may be sent a snapshot of its own
READ_MAX = 64  # names of objects that were read

Passing = list[tuple[str, bytes]]  # frames and whom they are for


class Barrier:
    """Pieces of a run; bounded by `OBJECTS_MAX` objects."""

    def __init__(self, plan: Plan) -> None:
        longest = object_max(plan.dimension, plan.down.count, plan.frame_mtu)
        self._assembly = pieces.Assembly(plan.frame_mtu, longest, OBJECTS_MAX)
        self._waiting: OrderedDict[bytes, dict[tuple[str, bytes], bytes]] = OrderedDict()
        self._read: deque[bytes] = deque(maxlen=READ_MAX)

    def add(
        self, peer: str, frame: bytes, body: bytes, *, is_closed: bool
    ) -> tuple[Passing, bytes | None]:
        """Take a piece: the frames that may pass now, and the object that it completes.

        While the barrier is closed an object's pieces pass together, once all of it is here. A
        piece that fits no object passes only where it is open.
        """
        name = body[1 : 1 + pieces.ID_SIZE]
        if name in self._read:
            return [(peer, frame)], None
        passing: Passing = [] if is_closed else [(peer, frame)]
        try:
            content = self._assembly.add(body)
        except WireError:
            self._waiting.pop(name, None)
            return passing, None
        if is_closed:
            self._hold(name, peer, frame, body)
        if content is not None:
            self._read.append(name)
            passing += [(to, kept) for (to, _), kept in self._waiting.pop(name, {}).items()]
        return passing, content

    def open(self) -> Passing:
        """All frames that wait: there is nothing left to wait for."""
        waiting, self._waiting = self._waiting, OrderedDict()
        return [(to, frame) for held in waiting.values() for (to, _), frame in held.items()]

    def _hold(self, name: bytes, peer: str, frame: bytes, body: bytes) -> None:
        place = peer, body[: pieces.HEAD_SIZE]
        self._waiting.setdefault(name, {})[place] = frame
        self._waiting.move_to_end(name)
        while len(self._waiting) > OBJECTS_MAX:
            self._waiting.popitem(last=False)
