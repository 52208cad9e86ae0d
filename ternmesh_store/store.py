"""What the stores have in common: one database, vectors as values, checks of what is read.

A store reads and writes one group of tables. All stores of a process share one database, so that
one commit makes everything durable that belongs together.
"""

import hashlib
import json
import struct
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from ternmesh.errors import WireError
from ternmesh.federated.state import ChainLink
from ternmesh.wire.control import INTEGER_MAX, Numbers
from ternmesh_store.database import WITHOUT, Database, StoreError

END, HOP = "end", "hop"  # layers of seals: from end to end, and from one neighbour to the next

# What readers raise for values that no program wrote: SQLite checks its pages, not their bits.
_UNREADABLE: Final = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    OverflowError,
    RecursionError,
    struct.error,
    WireError,
)
P = ParamSpec("P")
T = TypeVar("T")


class Store:
    """A group of tables in `database`, which is open while the store is used."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def path(self) -> Path:
        """The file."""
        return self._database.path

    @property
    def changed(self) -> bool:
        """Whether `commit` has something to do."""
        return self._database.changed

    def commit(self) -> None:
        """Make everything durable that any store of the database has recorded."""
        self._database.commit()

    def _read_counter(self, layer: str) -> int:
        """The first seal counter of a layer that was never reserved."""
        rows = self._database.rows("SELECT reserved FROM security_counter WHERE layer = ?", layer)
        counter: int = rows[0][0] if rows else 0
        if not isinstance(counter, int):
            raise ValueError("its seal counter")
        return counter

    def _chain(self, table: str) -> tuple[ChainLink, ...]:
        """The global updates in a table, oldest first."""
        sql = f"SELECT version, global_hash, content FROM {table} ORDER BY version"
        return tuple(ChainLink(*row) for row in self._database.rows(sql))

    def _reserve_counters(self, layer: str, limit: int) -> None:
        """Record that counters below `limit` may be used. They are never used again."""
        self._database.insert("security_counter", layer, limit, replace=True)


S = TypeVar("S", bound=Store)


def checked(load: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """A method that reads state. It raises StoreError for values that no program has written."""

    @wraps(load)
    def read(store: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return load(store, *args, **kwargs)
        except _UNREADABLE as error:
            raise StoreError(
                f"{store.path} holds something that was never written ({error}): {WITHOUT}"
            ) from error

    return read


class StoredValues:
    """Bytes and vectors by key, in a table of `database`, while that is open.

    Vectors are raw little-endian numbers without a header. Reading raises ValueError for a vector
    that is missing or damaged.
    """

    def __init__(self, database: Database, table: str) -> None:
        self._database = database
        self._table = table
        self._written: dict[str, bytes] = {}  # digest of each value in the table, by key

    def get(self, key: str) -> bytes | None:
        """The bytes under a key."""
        rows = self._database.rows(f"SELECT value FROM {self._table} WHERE key = ?", key)
        if not rows:
            return None
        value = bytes(rows[0][0])
        self._written[key] = hashlib.sha256(value).digest()
        return value

    def put(self, key: str, value: bytes) -> None:
        """Store bytes. The same bytes as before are not written again."""
        digest = hashlib.sha256(value).digest()
        if self._written.get(key) != digest:
            self._database.insert(self._table, key, value, replace=True)
            self._written[key] = digest

    def forget(self) -> None:
        """Delete everything."""
        self._database.clear(self._table)
        self._written.clear()

    def floats(self, key: str) -> NDArray[np.float32]:
        """A float32 vector."""
        return read_floats(self._vector(key))

    def put_floats(self, key: str, vector: NDArray[np.float32]) -> None:
        """Store a float32 vector."""
        self.put(key, write_floats(vector))

    def integers(self, key: str) -> NDArray[np.int32]:
        """An int32 vector."""
        return np.frombuffer(self._vector(key), dtype="<i4").astype(np.int32)

    def put_integers(self, key: str, vector: NDArray[np.int32]) -> None:
        """Store an int32 vector."""
        self.put(key, vector.astype("<i4").tobytes())

    def _vector(self, key: str) -> bytes:
        value = self.get(key)
        if value is None:
            raise ValueError(f"{key} is missing")
        return value


def read_numbers(text: str) -> Numbers:
    """The integers of a JSON list. Raises ValueError for anything else."""
    numbers = tuple(json.loads(text))
    if not all(type(number) is int and 0 <= number <= INTEGER_MAX for number in numbers):
        raise ValueError("settings of a board")
    return numbers


def write_floats(vector: NDArray[np.float32]) -> bytes:
    """The bytes of a float32 vector."""
    return vector.astype("<f4").tobytes()


def read_floats(data: bytes) -> NDArray[np.float32]:
    """The vector of `write_floats`. Raises ValueError for another length, NaN or infinity."""
    vector = np.frombuffer(data, dtype="<f4").astype(np.float32)
    if not np.isfinite(vector).all():
        raise ValueError("a vector has NaN or infinity")
    return vector
