"""The sizes of the small transformer: a module of its own, because `host.pipeline.config` reads
configurations where torch is not installed, and `models.transformer` imports torch.
"""

from dataclasses import dataclass, field

from ternmesh.config import limits


@dataclass(frozen=True, slots=True)
class Shape:
    """The transformer's sizes; `length` is the longest sequence in tokens."""

    vocabulary: int = field(default=256, metadata=limits(2, 1 << 20))
    width: int = field(default=128, metadata=limits(2, 65_536))
    layers: int = field(default=4, metadata=limits(1, 1024))
    heads: int = field(default=4, metadata=limits(1, 1024))
    length: int = field(default=128, metadata=limits(2, 65_536))
