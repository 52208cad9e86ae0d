"""The hold on a gateway's downlink: the gateway reads an object before its boards get it.

A global update tells the gateway whether its partial aggregate was counted. If a board had the
global update and the gateway had not, for example after a power cut, nobody would send it again.
"""

from collections import OrderedDict, deque

from ternmesh.errors import WireError
from ternmesh.plan import Plan
from ternmesh.wire import fragments

OBJECTS_MAX = 40  # incomplete objects; each board may be sent a global snapshot of its own
READ_MAX = 64  # names of complete objects that are kept

Passing = list[tuple[str, bytes]]  # receiver and frame


class DownlinkHold:
    """Holds the fragments of a run, of at most `OBJECTS_MAX` objects."""

    def __init__(self, plan: Plan) -> None:
        self._reassembler = fragments.Reassembler(plan.frame_mtu, plan.object_max, OBJECTS_MAX)
        # By object, the frames of its fragments by receiver and fragment header.
        self._waiting: OrderedDict[bytes, dict[tuple[str, bytes], bytes]] = OrderedDict()
        self._read: deque[bytes] = deque(maxlen=READ_MAX)

    def add(
        self, peer: str, frame: bytes, body: bytes, *, is_closed: bool
    ) -> tuple[Passing, bytes | None]:
        """Take a fragment; returns the frames to send now, and the object that it completes.

        While the hold is closed, an object's fragments pass together once the object is complete. A
        fragment that fits no object passes only while the hold is open.
        """
        name = body[1 : 1 + fragments.ID_SIZE]
        if name in self._read:
            return [(peer, frame)], None
        passing: Passing = [] if is_closed else [(peer, frame)]
        try:
            content = self._reassembler.add(body)
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
        """All waiting frames, when the gateway waits for nothing any more."""
        waiting, self._waiting = self._waiting, OrderedDict()
        return [(to, frame) for held in waiting.values() for (to, _), frame in held.items()]

    def _hold(self, name: bytes, peer: str, frame: bytes, body: bytes) -> None:
        place = peer, body[: fragments.HEAD_SIZE]
        self._waiting.setdefault(name, {})[place] = frame
        self._waiting.move_to_end(name)
        while len(self._waiting) > OBJECTS_MAX:
            self._waiting.popitem(last=False)
