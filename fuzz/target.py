"""What a fuzz target is, and how its bytes become lengths, choices and parts."""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from ternmesh.errors import WireError
from ternmesh.federated.events import CountersReserved, Refused
from ternmesh.wire.frame import Header, seal_open

STEPS_MAX = 64  # steps of one input on a state machine


@dataclass(frozen=True, slots=True)
class Target:
    """A decoder: `call` returns for any bytes, or raises one of `errors`."""

    name: str
    seeds: Callable[[], Iterable[bytes]]  # valid inputs; the fuzzer starts from them
    call: Callable[[bytes], object]
    errors: tuple[type[Exception], ...] = (WireError,)

    def run(self, data: bytes) -> None:
        """Try one input; what is raised is a bug."""
        with suppress(*self.errors):
            self.call(data)


def same(found: object, expected: object, what: str) -> None:
    """AssertionError unless both are equal."""
    if found != expected:
        raise AssertionError(f"{what}: {found!r:.200} is not {expected!r:.200}")


def parts(data: bytes) -> Iterator[bytes]:
    """The byte strings behind lengths of one byte; the last is cut where the input ends."""
    at = 0
    while at < len(data):
        end = at + 1 + data[at]
        yield data[at + 1 : end]
        at = end


def joined(items: Iterable[bytes]) -> bytes:
    """The input of which `parts` gives `items`, each cut to 255 bytes."""
    return b"".join(bytes([len(item[:255])]) + item[:255] for item in items)


def number(data: bytes, at: int, size: int) -> int:
    """A little-endian number; missing bytes are zero."""
    return int.from_bytes(data[at : at + size], "little")


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an input for a state machine."""

    index: int
    choice: int  # the first byte: the target decides what its bits mean
    body: bytes
    now: float  # seconds

    def frame(self, address: int, *, is_raw: bool) -> bytes:
        """The body as a frame: as it is, or in a valid open seal."""
        body = self.body or b"\0"
        return body if is_raw else seal_open(Header(address, self.index), body)


def steps(data: bytes, *, time_bits: int = 4, unit_s: float = 0.5) -> Iterator[Step]:
    """The steps of an input: a choice byte and a body each.

    The upper `time_bits` of the choice say how much time passes before the step.
    """
    now = 0.0
    for index, item in enumerate(islice(parts(data), STEPS_MAX)):
        choice = number(item, 0, 1)
        now += (choice >> 8 - time_bits) * unit_s
        yield Step(index, choice, item[1:], now)


def settle(machine: Any, now: float) -> list[object]:
    """Let a state machine do what is due, and return its events; then its frames may leave."""
    if (due := machine.next_timeout()) is not None and due <= now:
        machine.handle_timeout(now)
    return list(iter(machine.next_event, None))


def is_refusal(found: Sequence[object], peer: str) -> bool:
    """Whether the events of a frame say that the frame of `peer` was refused, and nothing else."""
    rest = [event for event in found if not isinstance(event, CountersReserved)]
    return bool(rest) and all(isinstance(e, Refused) and e.peer == peer for e in rest)


@cache
def scratch_folder() -> Path:
    """A temporary folder of this process, for decoders that read files."""
    return Path(tempfile.mkdtemp(prefix="ternmesh-fuzz-"))
