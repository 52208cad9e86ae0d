"""The erasure code as the link sees it; simulations of large objects put ranks in its place."""

from collections.abc import Sequence
from typing import Protocol

from ternmesh.link import code
from ternmesh.link.code import Layout


class Decoder(Protocol):
    """Collects symbols of one object."""

    @property
    def missing(self) -> tuple[int, ...]:
        """Independent symbols that each generation lacks."""

    @property
    def is_complete(self) -> bool:
        """Whether the object can be read."""

    def add(self, index: int, symbol: bytes) -> bool:
        """Take a symbol; True where it was new. WireError where it fits nothing."""

    def data(self) -> bytes:
        """The object."""


class Coder(Protocol):
    """Makes symbols and decoders."""

    def encode(
        self, layout: Layout, name: bytes, data: bytes, indexes: Sequence[int]
    ) -> list[bytes]:
        """The symbols of `data` with these indexes."""

    def decoder(self, layout: Layout, name: bytes) -> Decoder:
        """An empty decoder."""


class RandomLinear:
    """The code on the air (`ternmesh.link.code`)."""

    def encode(
        self, layout: Layout, name: bytes, data: bytes, indexes: Sequence[int]
    ) -> list[bytes]:
        """The symbols of `data` with these indexes."""
        return code.encode(layout, name, data, indexes)

    def decoder(self, layout: Layout, name: bytes) -> Decoder:
        """An empty decoder."""
        return code.Decoder(layout, name)
