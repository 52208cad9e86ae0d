"""What one end of a split training keeps on disk: its run, its numbers, and what it has learned."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ternmesh.wire.control import NAME
from ternmesh.wire.seal import NODE_MAX
from ternmesh_store.database import Database, Schema, checked

SCHEMA = Schema(
    application=0x544D5350,  # "TMSP"
    version=1,
    statements=(
        "CREATE TABLE counter (reserved INTEGER NOT NULL)",
        "INSERT INTO counter VALUES (0)",
        "CREATE TABLE board (context INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    ),
)
RUN_SIZE = 8
_STANDING, _LEARNED = "split.standing", "split.learned."


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a run stood: `numbers` are the next micro-batches by board, `learned` bytes by name.

    `counts` is what was counted on the way, by whatever names.

    `model` names what was trained: another one has nothing to do with this checkpoint.
    """

    model: bytes
    run: bytes
    numbers: Mapping[str, int] = field(default_factory=dict)
    learned: Mapping[str, bytes] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)


class SplitStore:
    """The file of one end; see `Database` for errors."""

    def __init__(self, path: Path) -> None:
        self._database = Database(path, SCHEMA)

    def open(self) -> None:
        """Take the file, or make it."""
        self._database.open()

    def close(self) -> None:
        """Forget what was not committed, and give the file back."""
        self._database.close()

    def commit(self) -> None:
        """Make all that was recorded durable."""
        self._database.commit()

    @checked
    def counter(self) -> int:
        """The first seal counter that was never reserved."""
        [(counter,)] = self._database.rows("SELECT reserved FROM counter")
        return int(counter)

    def reserve(self, limit: int) -> None:
        """Keep that counters below `limit` are used."""
        self._database.write("UPDATE counter SET reserved = ?", limit)

    @checked
    def boards(self) -> tuple[tuple[int, str], ...]:
        """(context, name) of each board that was taken in."""
        rows = self._database.rows("SELECT context, name FROM board ORDER BY context")
        if not all(0 < context <= NODE_MAX and NAME.match(name) for context, name in rows):
            raise ValueError("a board's context or name")
        return tuple((context, name) for context, name in rows)

    def add_board(self, context: int, name: str) -> None:
        """Keep a board that was taken in."""
        self._database.write("INSERT INTO board VALUES (?, ?)", context, name)

    @checked
    def load(self, names: tuple[str, ...]) -> Checkpoint | None:
        """The last checkpoint, with what was learned under `names`; None where there is none."""
        content = self._database.get(_STANDING)
        if content is None:
            return None
        found = json.loads(content)
        numbers, counts = (
            {str(name): int(number) for name, number in table.items()}
            for table in (found["numbers"], found.get("counts", {}))
        )
        run, model = bytes.fromhex(found["run"]), bytes.fromhex(found["model"])
        if len(run) != RUN_SIZE or min((*numbers.values(), *counts.values()), default=0) < 0:
            raise ValueError("its run, its numbers or its counts")
        learned = {name: self._database.get(_LEARNED + name) for name in names}
        there = {name: value for name, value in learned.items() if value is not None}
        return Checkpoint(model, run, numbers, there, counts)

    def save(self, item: Checkpoint) -> None:
        """Keep a checkpoint in the place of the last; `commit` makes it durable."""
        standing = {
            "model": item.model.hex(),
            "run": item.run.hex(),
            "numbers": dict(item.numbers),
            "counts": dict(item.counts),
        }
        self._database.put(_STANDING, json.dumps(standing).encode())
        for name, content in item.learned.items():
            self._database.put(_LEARNED + name, content)

    def forget(self) -> None:
        """Begin with nothing but the counter, which must never run backwards."""
        self._database.forget()
        self._database.write("DELETE FROM board")
