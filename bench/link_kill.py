"""What a link promises to survive: kill -9 at every event of a transfer, and what comes after it.

Two nodes send each other objects over a lossy channel, in simulated hours and under a small duty
cycle. A process runs both and is killed; another goes on with what is on disk.
"""

import os
import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.link_kill_life import (
    BAND,
    ENDS,
    LOSS,
    MTU,
    SAME_BOOT,
    SCRIPT,
    Entry,
    Kill,
    Kind,
    Life,
    read_log,
)
from bench.result import Figure, Result
from ternmesh.link.code import best_symbol_bytes
from ternmesh.link.frames import SYMBOL_HEAD
from ternmesh.link.ledger import HOUR_S
from ternmesh.link.outbound import object_name
from ternmesh.wire import seal
from ternmesh_store.link_store import LinkStore

QUICK_STEP = 25
BOOT_STEP = 4
RESTART_S = 1.0  # from a kill to the next life
MEMORY = Path("/dev/shm")
HOUR_US = round(HOUR_S * 1e6)
Symbol = tuple[int, bytes, int]  # the end that sends it, the name of its object, its index


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one transfer showed. `faults` counts broken promises by kind."""

    faults: Counter[str]
    worst_hour_us: int


def measure(*, quick: bool) -> Result:
    """All points; a broken promise is printed as it is found."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        folder = Path(name, "files")
        log = unkilled(folder)
        whole = check(folder, log, len(log), SAME_BOOT)
        outcomes: dict[Kill, Outcome] = {}
        for kill in points(log, QUICK_STEP if quick else 1):
            outcomes[kill] = survive(folder, kill, log)
            if outcomes[kill].faults:
                print(f"{kill}: {dict(outcomes[kill].faults)}", flush=True)
    notes = (
        f"{len(SCRIPT)} objects of {sum(item.size for item in SCRIPT):,} bytes both ways; "
        f"{LOSS:.0%} of all frames are lost; {log[-1].time_s / HOUR_S:.1f} simulated hours at a "
        f"duty cycle of {BAND.duty_cycle:.1%}",
        "one process has both ends, and is killed at an event (every index) or after a commit",
        f"files in {MEMORY}" if MEMORY.is_dir() else "files on the disk of temporary files",
    )
    return _result(whole, outcomes, notes, quick=quick)


def points(log: Sequence[Entry], step: int) -> Iterator[Kill]:
    """At every event as it is taken; after every commit; at some events before an unknown boot."""
    taken = list(accumulate(entry.kind == Kind.EVENT for entry in log))
    commits = [events for events, e in zip(taken, log, strict=True) if e.kind == Kind.COMMIT]
    events = range(1, taken[-1] + 1)
    yield from (Kill(event) for event in events[::step])
    yield from (Kill(event, is_committed=True) for event in commits[::step])
    yield from (Kill(event, boot="") for event in events[:: BOOT_STEP * step])


def unkilled(folder: Path) -> list[Entry]:
    """The log of a life that nobody kills; `folder` is made anew, as by `survive`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    status = _live(folder, None, 0.0, SAME_BOOT)
    assert status == 0, "the transfer fails without a kill"
    return read_log(folder / "log")


def survive(folder: Path, kill: Kill, whole: Sequence[Entry]) -> Outcome:
    """A life until the kill, as far that of the log `whole`, and one to the end."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    status = _live(folder, kill, 0.0, SAME_BOOT)
    first = read_log(folder / "log")
    assert os.WIFSIGNALED(status), f"{kill} killed nothing"
    assert first == whole[: len(first)], "lives differ before the kill"
    assert sum(entry.kind == Kind.EVENT for entry in first) == kill.event
    status = _live(folder, None, first[-1].time_s + RESTART_S, kill.boot)
    outcome = check(folder, read_log(folder / "log"), len(first), kill.boot)
    if status != 0:
        outcome.faults["does not go on"] += 1
    return outcome


def _live(folder: Path, kill: Kill | None, begun_s: float, boot: str) -> int:
    """The exit status of a process that runs a life; 0 where it came to its end."""
    child = os.fork()
    if child == 0:
        try:
            log = os.open(folder / "log", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
            Life(folder, log, begun_s, kill, boot).run()
            os._exit(0)
        except Exception:  # noqa: BLE001
            traceback.print_exc()
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1]


def check(folder: Path, log: Sequence[Entry], killed_at: int, boot: str) -> Outcome:
    """What was broken, by the files, and by the log of which `killed_at` entries came first."""
    faults: Counter[str] = Counter()
    for end in range(len(ENDS)):
        faults.update(_check_files(folder, end))
    sent = [entry for entry in log if entry.kind == Kind.SENT]
    later = [entry for entry in log[killed_at:] if entry.kind == Kind.SENT]
    sources = _sources()
    repairs = [_symbol(e) for e in sent if e.symbol >= sources.get(e.name, 1 << 16)]
    faults["repair symbol twice"] = _repeated(repairs)
    faults["seal counter twice"] = _repeated([(entry.end, entry.counter) for entry in sent])
    faults["held symbol again"] = _resent(log, sources)
    worst_us = max(worst_hour_us(sent, end) for end in range(len(ENDS)))
    faults["hour exceeded"] = worst_us > (BAND.budget_us or 0)
    if boot != SAME_BOOT:
        free_s = log[killed_at - 1].time_s + RESTART_S + HOUR_S
        senders = {entry.end for entry in log[:killed_at] if entry.kind == Kind.SENT}
        early = [entry for entry in later if entry.end in senders and entry.time_s < free_s]
        faults["hour not spent"] = len(early)
    return Outcome(+faults, worst_us)


def _check_files(folder: Path, end: int) -> Counter[str]:
    """Each object is there once, and nothing else."""
    store = LinkStore(folder / f"{ENDS[end]}.sqlite")
    store.open()
    got = Counter((peer, payload) for _, peer, payload in store.inbox())
    state = store.load()
    store.close()
    wanted = Counter((ENDS[item.end], item.payload) for item in SCRIPT if item.end != end)
    return Counter(
        {
            "object missing": (wanted - got).total(),
            "object twice or damaged": (got - wanted).total(),
            "not forgotten": len(state.outgoing) + len(state.incoming),
        }
    )


def _sources() -> dict[bytes, int]:
    """How many source symbols each object has, by its name."""
    found = {}
    for end in range(len(ENDS)):
        for number, item in enumerate(item for item in SCRIPT if item.end == end):
            size = best_symbol_bytes(item.size, MTU - seal.OVERHEAD - SYMBOL_HEAD)
            found[object_name(number, item.payload)] = -(-item.size // size)
    return found


def _symbol(entry: Entry) -> Symbol:
    return entry.end, entry.name, entry.symbol


def _repeated(items: Sequence[Hashable]) -> int:
    return len(items) - len(set(items))


def _resent(log: Sequence[Entry], sources: Mapping[bytes, int]) -> int:
    """How often a symbol left while its receiver had it on disk; of a whole object, any source."""
    held: set[Symbol] = set()
    resent = 0
    for entry in log:
        sender = 1 - entry.end
        match entry.kind:
            case Kind.HELD:
                held.add((sender, entry.name, entry.symbol))
            case Kind.ARRIVED:
                held |= {(sender, entry.name, symbol) for symbol in range(sources[entry.name])}
            case Kind.SENT:
                resent += _symbol(entry) in held
    return resent


def worst_hour_us(sent: Sequence[Entry], end: int) -> int:
    """The most airtime of an end in any window of one hour."""
    frames = [(e.time_s * 1e6, e.airtime_us) for e in sent if e.end == end]
    starts, lengths = np.array(frames, np.float64).reshape(-1, 2).T.round().astype(np.int64)
    if not len(starts):
        return 0
    edges = np.concatenate([starts, starts + lengths])
    # The sum is linear between windows that begin or end where a frame does.
    begins = np.concatenate([edges, edges - HOUR_US])
    used = _used_us(starts, lengths, begins + HOUR_US) - _used_us(starts, lengths, begins)
    return int(used.max())


Times = NDArray[np.int64]


def _used_us(starts: Times, lengths: Times, at: Times) -> Times:
    """The airtime before each of many points in time, of frames that follow each other."""
    last = np.searchsorted(starts, at) - 1
    before = np.concatenate([[0], np.cumsum(lengths)])[np.maximum(last, 0)]
    used = before + np.clip(at - starts[last], 0, lengths[last])
    return np.where(last < 0, 0, used)


def _result(
    whole: Outcome, outcomes: Mapping[Kill, Outcome], notes: Sequence[str], *, quick: bool
) -> Result:
    faults = sum((outcome.faults for outcome in [whole, *outcomes.values()]), Counter[str]())
    worst_us = max(outcome.worst_hour_us for outcome in [whole, *outcomes.values()])
    figures = {
        "points": Figure(len(outcomes), None if quick else ">=500"),
        "violations": Figure(sum(faults.values()), "<=0"),
        "resent_symbols": Figure(faults["held symbol again"], "<=0"),
        "worst_hour_of_budget": Figure(worst_us / (BAND.budget_us or 1), "<=1"),
    }
    details = {
        "points_at_events": sum(not k.is_committed and k.boot == SAME_BOOT for k in outcomes),
        "points_after_commits": sum(k.is_committed for k in outcomes),
        "points_before_unknown_boot": sum(k.boot != SAME_BOOT for k in outcomes),
        "faults": dict(faults),
        "points_with_faults": sum(bool(outcome.faults) for outcome in outcomes.values()),
    }
    return Result("link_kill", figures, notes=notes, details=details, quick=quick)
