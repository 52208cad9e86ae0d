"""What one end of a split training stores: its run, its boards, and what it has learned."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from ternmesh_store.database import Database
from ternmesh_store.store import END, Store, StoredValues

RUN_SIZE = 8  # bytes
_CHECKPOINT, _LEARNED = "checkpoint", "learned."


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The progress of a run."""

    model: bytes  # the hash of the model; a checkpoint is of no use to another model
    run: bytes
    numbers: Mapping[str, int] = field(default_factory=dict)  # the next micro-batch, by board
    learned: Mapping[str, bytes] = field(default_factory=dict)  # weights and the like, by name
    counts: Mapping[str, int] = field(default_factory=dict)  # what was counted so far, by name


class SplitStore(Store):
    """The tables of one end."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._values = StoredValues(database, "split_value")

    def counter(self) -> int:
        """The first seal counter that was never reserved."""
        return self._read_counter(END)

    def reserve(self, limit: int) -> None:
        """Record that counters below `limit` may be in use: a later process begins at `limit`."""
        self._reserve_counters(END, limit)

    def boards(self) -> tuple[tuple[int, str], ...]:
        """(address, name) of each board that has joined."""
        rows = self._database.rows("SELECT address, name FROM split_board ORDER BY address")
        return tuple((address, name) for address, name in rows)

    def add_board(self, address: int, name: str) -> None:
        self._database.insert("split_board", address, name)

    def load(self, names: tuple[str, ...]) -> Checkpoint | None:
        """The last checkpoint, with what was learned under `names`; None where there is none."""
        content = self._values.get(_CHECKPOINT)
        if content is None:
            return None
        progress = json.loads(content)
        learned = {name: self._values.get(_LEARNED + name) for name in names}
        return Checkpoint(
            model=bytes.fromhex(progress["model"]),
            run=bytes.fromhex(progress["run"]),
            numbers=progress["numbers"],
            learned={name: value for name, value in learned.items() if value is not None},
            counts=progress["counts"],
        )

    def save(self, item: Checkpoint) -> None:
        """Store a checkpoint in place of the last one. `commit` makes it durable."""
        content = {
            "model": item.model.hex(),
            "run": item.run.hex(),
            "numbers": dict(item.numbers),
            "counts": dict(item.counts),
        }
        self._values.put(_CHECKPOINT, json.dumps(content).encode())
        for name, value in item.learned.items():
            self._values.put(_LEARNED + name, value)

    def forget(self) -> None:
        """Delete everything but the seal counter, which must never go back."""
        self._values.forget()
        self._database.clear("split_board")
