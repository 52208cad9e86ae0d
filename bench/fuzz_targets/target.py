"""What a fuzzing target is, and how its bytes become lengths, choices and parts."""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Protocol

from ternmesh.errors import WireError


class Machine(Protocol):
    """A state machine of the core, as far as all of them are alike."""

    def next_timeout(self) -> float | None:
        """When `handle_timeout` is due, if ever."""

    def handle_timeout(self, now: float) -> None:
        """Do what is due."""

    def next_event(self) -> object | None:
        """The next event, until None."""


@dataclass(frozen=True, slots=True)
class Target:
    """A decoder and what holds of it whatever bytes come.

    `check` returns, or raises one of `refusals`; anything else is a finding. `memory_max` is the
    most bytes that one call may have allocated at once, input excluded.
    """

    name: str
    check: Callable[[bytes], object]
    seeds: Callable[[], Iterable[bytes]] = field(default=lambda: ())
    refusals: tuple[type[Exception], ...] = (WireError,)
    length_max: int = 1024
    memory_max: int = 1 << 20

    def run(self, data: bytes) -> None:
        """Check one input; raises what is a finding."""
        with suppress(*self.refusals):
            self.check(data)


@cache
def scratch_folder() -> Path:
    """The folder of this process for decoders that read files."""
    return Path(tempfile.mkdtemp(prefix="ternmesh-fuzz-"))


def same(ours: object, theirs: object, what: str) -> None:
    """AssertionError unless both are equal."""
    if ours != theirs:
        raise AssertionError(f"{what}: {ours!r:.200} is not {theirs!r:.200}")


def refused(read: Callable[[], object], what: str) -> None:
    """AssertionError unless `read` raises WireError."""
    with suppress(WireError):
        raise AssertionError(f"{what} is taken: {read()!r:.200}")


def parts(data: bytes) -> Iterator[bytes]:
    """What stands behind lengths of one byte, each cut where the input ends."""
    at = 0
    while at < len(data):
        end = at + 1 + data[at]
        yield data[at + 1 : end]
        at = end


def joined(items: Iterable[bytes]) -> bytes:
    """The input of which `parts` gives `items`, each cut to 255 bytes."""
    return b"".join(bytes([len(item[:255])]) + item[:255] for item in items)


def number(data: bytes, at: int, size: int) -> int:
    """A little-endian number; what the input lacks is zero."""
    return int.from_bytes(data[at : at + size], "little")


def settle(machine: Machine, now: float) -> None:
    """Let a machine do what is due, and take its events: then its frames may leave."""
    if (due := machine.next_timeout()) is not None and due <= now:
        machine.handle_timeout(now)
    while machine.next_event() is not None:
        pass
