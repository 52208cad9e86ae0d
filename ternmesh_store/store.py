"""What the stores have in common: one database, and vectors as values.

A store reads and writes one group of tables. All stores of a process share one database, so that
one commit makes everything durable that belongs together. Stores do not check what they read: the
database has compared the checksum of each table when it was opened.
"""

import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ternmesh.federated.state import ChainLink
from ternmesh_store.database import Database

END, HOP = "end", "hop"  # layers of seals: from end to end, and from one neighbour to the next


class Store:
    """A group of tables in `database`, which is open while the store is used."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def path(self) -> Path:
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
        return int(rows[0][0]) if rows else 0

    def _chain(self, table: str) -> tuple[ChainLink, ...]:
        """The global updates in a table, oldest first."""
        sql = f"SELECT version, global_hash, content, rows FROM {table} ORDER BY version"
        return tuple(ChainLink(*row) for row in self._database.rows(sql))

    def _reserve_counters(self, layer: str, limit: int) -> None:
        """Record that counters below `limit` may be used. They are never used again."""
        limit = max(limit, self._read_counter(layer))  # `NodeStore.reserve` may be ahead
        self._database.insert("security_counter", layer, limit, replace=True)


class StoredValues:
    """Bytes and vectors by key, in a table of `database`, while that is open.

    Vectors are raw little-endian numbers without a header.
    """

    def __init__(self, database: Database, table: str) -> None:
        self._database = database
        self._table = table
        self._written: dict[str, bytes] = {}  # digest of each value in the table, by key

    def get(self, key: str) -> bytes | None:
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
        self._database.clear(self._table)
        self._written.clear()

    def floats(self, key: str) -> NDArray[np.float32]:
        return read_floats(self._vector(key))

    def put_floats(self, key: str, vector: NDArray[np.float32]) -> None:
        self.put(key, write_floats(vector))

    def integers(self, key: str) -> NDArray[np.int32]:
        return np.frombuffer(self._vector(key), dtype="<i4").astype(np.int32)

    def put_integers(self, key: str, vector: NDArray[np.int32]) -> None:
        self.put(key, vector.astype("<i4").tobytes())

    def _vector(self, key: str) -> bytes:
        value = self.get(key)
        assert value is not None, f"no {key} was stored"
        return value


def write_floats(vector: NDArray[np.float32]) -> bytes:
    return vector.astype("<f4").tobytes()


def read_floats(data: bytes) -> NDArray[np.float32]:
    return np.frombuffer(data, dtype="<f4").astype(np.float32)
