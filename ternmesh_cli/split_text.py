"""The answers of both ends of a split training as text for people."""

from collections.abc import Iterator, Mapping
from typing import Any

Answer = Mapping[str, Any]


def host_lines(answer: Answer) -> Iterator[str]:
    """What the host says of its own part and of each board."""
    yield (
        f"split training in fleet {answer['fleet']}, run {answer['run']}, {answer['phase']}: "
        f"{answer['steps']} steps{_learned(answer)}{_refused(answer)}"
    )
    for board in answer["boards"]:
        heard = board["heard_s_ago"]
        yield (
            f"{board['name']}: {board['number']} of {answer['micro_batches']} micro-batches, "
            f"{board['skipped']} skipped, "
            f"{'never heard' if heard is None else f'heard {heard:.0f} s ago'}{_refused(board)}"
        )


def board_lines(answer: Answer) -> Iterator[str]:
    """What a board says of its part."""
    total, counts = answer["micro_batches"], answer["counts"]
    where = f" of {total} micro-batches" if total else ", not joined yet"
    yield (
        f"board {answer['name']} of fleet {answer['fleet']}, model {answer['model']}, run "
        f"{answer['run']}"
    )
    yield (
        f"{answer['number']}{where}, {answer['phase']}: {counts.get('lost', 0)} lost, "
        f"{counts.get('diverged', 0)} diverged{_learned(answer)}"
    )
    moved = answer["traffic"].get("host", {"bytes_out": 0, "bytes_in": 0})
    yield (
        f"{answer['samples']} samples; up {moved['bytes_out']:,} B, down {moved['bytes_in']:,} B "
        f"since it started{_refused(answer)}"
    )


def _learned(answer: Answer) -> str:
    loss, accuracy = answer["loss"], answer["accuracy"]
    shown = "" if loss is None else f"; loss {loss:.3f}"
    return shown if accuracy is None else f"{shown}; accuracy {accuracy:.1%}"


def _refused(answer: Answer) -> str:
    reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(answer["refused"].items()))
    return f"; refused: {reasons}" if reasons else ""
