"""The settings that both sides of a link share: frame sizes, timers and limits."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ternmesh.link.erasure_code import SOURCES_MAX
from ternmesh.link.messages import SIZE_MAX, SYMBOL_HEAD
from ternmesh.wire.frame import FRAME_MAX, FRAME_OVERHEAD

MTU_MIN = 32


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """Sizes in bytes, times in seconds."""

    mtu: int  # the longest frame
    idle_s: float = 4.0  # silence that ends a burst: some frames, and longer than a turnaround
    longest_s: float = 600.0  # the longest pause between two repeats
    give_up_s: float = 7 * 86_400.0  # without progress; then an object is given up
    # The same for a broadcast that others wait for, and for an object whose memory others need
    make_way_s: float = 7200.0
    spread_s: float = 0.0  # over which the answers to a broadcast are spread
    object_max: int = 1 << 22
    incoming_bytes_max: int = 1 << 23  # of all objects on their way in
    outgoing_bytes_max: int = 1 << 24  # of all objects on their way out
    outgoing_max: int = 256  # objects on their way out
    addresses: Mapping[str, int] = field(default_factory=dict)  # of peers that are several

    def __post_init__(self) -> None:
        """Raise ValueError for frames too short for the link, or objects too large for an offer."""
        if not MTU_MIN <= self.mtu <= FRAME_MAX:
            raise ValueError(f"mtu {self.mtu}: it is {MTU_MIN} to {FRAME_MAX} bytes")
        if not 0 < self.object_max <= SIZE_MAX:
            raise ValueError(f"object_max {self.object_max}: it is 1 to {SIZE_MAX} bytes")

    @property
    def symbol_room(self) -> int:
        """The largest symbol that fits in a frame."""
        return self.mtu - FRAME_OVERHEAD - SYMBOL_HEAD

    @property
    def size_max(self) -> int:
        """The largest object that can be sent."""
        return min(self.object_max, self.outgoing_bytes_max, SOURCES_MAX * self.symbol_room)
