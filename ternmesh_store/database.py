"""One SQLite file that one process owns: durable once `commit` returns, whatever is killed.

SQLite before 3.51.3 can damage a WAL file where two connections write and checkpoint at the same
time, and Python links whatever the system has. So a file has exactly one connection, and holds an
exclusive lock that turns a second process away. A commit is an fsync (synchronous=FULL). Files hold
users' samples and broadcast keys: only their owner may read them.
"""

import hashlib
import logging
import sqlite3
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from ternmesh.errors import WireError

MEMORY: Final = Path(":memory:")  # SQLite's name for a database that has no file
PRIVATE = 0o600
LOCK_WAIT_S = 1.0  # how long to wait for a process that is just ending
DAMAGED_MAX = 3  # files that are kept aside; then the last is replaced
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
# What readers of values raise on those that nobody wrote: SQLite checks its pages, not their bits.
_UNREADABLE = (
    *(ValueError, TypeError, LookupError, AttributeError),
    *(OverflowError, RecursionError),
)
P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger(__name__)


class StoreError(Exception):
    """State on disk cannot be read or written; the sentence says which file and what to do."""


@dataclass(frozen=True, slots=True)
class Schema:
    """What a file holds. `application` (a positive int32) tells our kinds of file apart.

    `statements` make a new file; besides, each file has the table of `Database.put`.
    """

    application: int
    version: int
    statements: tuple[str, ...]


class Database:
    """The file at `path`. A transaction begins with the first write and ends with `commit`.

    Every method may raise StoreError; the file is closed then, and what was not committed is lost.
    """

    def __init__(self, path: Path, schema: Schema) -> None:
        self.path = path
        self._schema = schema
        self._connection: sqlite3.Connection | None = None
        self._written: dict[str, bytes] = {}

    def open(self, *, replace_damaged: bool = True) -> None:
        """Take the file, or make it. One that is damaged is kept under another name, or refused."""
        try:
            self._connect()
        except _Damaged as error:
            if not replace_damaged:
                raise
            aside = _set_aside(self.path)
            _log.error("%s is damaged (%s): it is now %s, and a new one begins", *error.args, aside)
            self._connect()

    def close(self) -> None:
        """Forget what was not committed, and give the file back; may be called twice."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._written.clear()

    @property
    def changed(self) -> bool:
        """Whether something was written since the last commit."""
        return self._connected().in_transaction

    def rows(self, sql: str, *values: object) -> list[Any]:
        """The rows that a query gives."""
        return self._execute(sql, values)

    def write(self, sql: str, *values: object) -> None:
        """Run a statement inside the transaction."""
        self._begin()
        self._execute(sql, values)

    def write_many(self, sql: str, rows: Iterable[Sequence[object]]) -> None:
        """Run a statement for each of `rows`."""
        for values in rows:
            self.write(sql, *values)

    def commit(self) -> None:
        """Make all that was written durable; nothing happens if nothing was."""
        if self.changed:
            self._execute("COMMIT")

    def get(self, key: str) -> bytes | None:
        """What `put` has kept under `key`."""
        found = self.rows("SELECT value FROM value WHERE key = ?", key)
        if not found:
            return None
        value = bytes(found[0][0])
        self._written[key] = hashlib.sha256(value).digest()
        return value

    def put(self, key: str, value: bytes) -> None:
        """Keep bytes under a key; the same bytes as before are not written again."""
        digest = hashlib.sha256(value).digest()
        if self._written.get(key) == digest:
            return
        self.write(
            "INSERT INTO value VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value",
            key,
            value,
        )
        self._written[key] = digest

    def forget(self) -> None:
        """Delete everything that `put` has kept."""
        self.write("DELETE FROM value")
        self._written.clear()

    def _begin(self) -> None:
        if not self.changed:
            self._execute("BEGIN IMMEDIATE")

    def _connected(self) -> sqlite3.Connection:
        assert self._connection is not None, "open the store first"
        return self._connection

    def _execute(self, sql: str, values: Sequence[object] = ()) -> list[Any]:
        connection = self._connected()
        try:
            return connection.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            # Part of a transaction may be gone: nobody may go on as if it were there.
            self.close()
            raise self._explain(error) from error

    def _connect(self) -> None:
        try:
            self.path.parent.mkdir(0o700, parents=True, exist_ok=True)
            if self.path != MEMORY:
                _keep_private(self.path)
            # Timeouts are SQLite's own; transactions are ours (isolation_level).
            self._connection = sqlite3.connect(self.path, timeout=LOCK_WAIT_S, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise StoreError(
                f"cannot open {self.path} ({error}): choose a folder that may be written"
            ) from error
        self._prepare()

    def _prepare(self) -> None:
        # Exclusive before the first access: then WAL needs no shared memory, and the lock stays.
        for pragma in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = FULL"):
            self._execute(f"PRAGMA {pragma}")
        self._begin()
        found = self.rows("PRAGMA quick_check(1)")[0][0]
        if found != "ok":
            self.close()
            raise _Damaged(self.path, found)
        self._check_kind()
        self.commit()

    def _check_kind(self) -> None:
        application = self.rows("PRAGMA application_id")[0][0]
        version = self.rows("PRAGMA user_version")[0][0]
        if application == version == 0 and not self.rows("SELECT 1 FROM sqlite_master"):
            self._create()
        elif application != self._schema.application:
            self.close()
            raise StoreError(f"{self.path} holds something else: choose another state_dir")
        elif version != self._schema.version:
            self.close()
            raise StoreError(
                f"{self.path} was written by another version of ternmesh (format {version}, "
                f"this one reads {self._schema.version}): use that version or another state_dir"
            )

    def _create(self) -> None:
        self._execute("CREATE TABLE value (key TEXT PRIMARY KEY, value BLOB NOT NULL)")
        for statement in self._schema.statements:
            self._execute(statement)
        self._execute(f"PRAGMA application_id = {self._schema.application}")
        self._execute(f"PRAGMA user_version = {self._schema.version}")

    def _explain(self, error: sqlite3.Error) -> Exception:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without the extended part
        if code in _DAMAGE:
            return _Damaged(self.path, error)
        if code in _BUSY:
            return StoreError(f"another process uses {self.path}: stop it, or choose a state_dir")
        return StoreError(
            f"cannot write {self.path} ({error}): check that the disk has room and may be written"
        )


class _Damaged(StoreError):
    """The file is no database any more; args are the path and what was found."""

    def __str__(self) -> str:
        path, found = self.args
        return f"{path} is damaged ({found}): bring back a copy of it, or move it away"


class Stored(Protocol):
    """A store, as far as `checked` needs one."""

    _database: Database


S = TypeVar("S", bound=Stored)


def checked(
    load: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[S, P], T]:
    """A method that reads state, with a StoreError for values that no version of us has written."""

    @wraps(load)
    def read(store: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return load(store, *args, **kwargs)
        except (*_UNREADABLE, struct.error, WireError) as error:
            path = store._database.path
            raise StoreError(
                f"{path} holds something that was never written ({error}): bring back a copy of "
                "it, or move it away"
            ) from error

    return read


def _keep_private(path: Path) -> None:
    """Let nobody but its owner read the file, whatever its folder, the umask or it allowed."""
    path.touch(PRIVATE)  # never opened where it is there: closing it would drop SQLite's locks
    for file in (path, _log_of(path)):  # a new log takes its mode from the file
        if file.exists():
            file.chmod(PRIVATE)


def _log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _set_aside(path: Path) -> Path:
    """Rename a damaged file and its log to the first free name, and say which."""
    for number in range(1, DAMAGED_MAX + 1):
        aside = path.with_name(f"{path.name}.damaged-{number}")
        if not aside.exists():
            break
    path.rename(aside)
    if _log_of(path).exists():
        _log_of(path).rename(_log_of(aside))
    return aside
