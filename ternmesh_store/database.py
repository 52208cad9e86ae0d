"""One SQLite file that one process owns. What `commit` has returned for survives any kill.

SQLite before 3.51.3 can damage a WAL file when two connections write and checkpoint at the same
time, and Python links the SQLite of the system. So a file has exactly one connection, with an
exclusive lock that refuses a second process. A commit is an fsync (synchronous=FULL). Files hold
users' samples and keys of the fleet: only their owner may read them.
"""

import errno
import fcntl
import logging
import os
import shutil
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ternmesh_store import checksums
from ternmesh_store.files import PRIVATE, make_private_folder, sync_folder

MEMORY: Final = Path(":memory:")  # SQLite's name for a database without a file
LOCK_WAIT_S = 1.0  # how long to wait for a process that is about to end
WAL_HEADER, WAL_FRAME = 32, 24  # bytes before all frames, and before the page of each
FREE_MIN = 1 << 16  # bytes that a disk has, unless it is full
ASIDE_MAX = 3  # damaged or replaced files that are kept; a further one replaces the last
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_TABLE_DAMAGE = (*_DAMAGE, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT)  # ERROR: no such table
_ERRORS = (sqlite3.Error, UnicodeDecodeError)  # the latter: a message that quotes damaged text
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)

_log = logging.getLogger(__name__)


# What to do about a state file that cannot be read: it also holds the members of the fleet
WITHOUT = (
    "bring back a copy of it (`ternmesh restore`). Only where there is none, rename it, and enrol "
    "again: the identity stays, but what was learned and enrolled is lost"
)


class StoreError(Exception):
    """State on disk cannot be read or written. The sentence names the file and says what to do."""


class DamagedError(StoreError):
    """The file is no sound database. The arguments are its path and what was found."""

    def __str__(self) -> str:
        path, reason = self.args
        return f"{path} is damaged ({reason}): {WITHOUT}"


class FormatError(StoreError):
    """Another version of ternmesh wrote the file, which stays as it is."""


@dataclass(frozen=True, slots=True)
class Schema:
    """What a file holds. `statements` create the tables of a new file.

    The first word of a table's name is its group: `node_run` is in the group `node`. A group is
    copied or lost as a whole when a damaged file is replaced.
    """

    application: int  # SQLite's application_id, a positive int32: the kind of file
    version: int  # the format: a change of any table takes the next number
    statements: tuple[str, ...]
    advice: str = "rename that file"  # what else helps where another version wrote the file


class Database:
    """The file at `path`. A transaction begins with the first write and ends with `commit`.

    Every method may raise StoreError. The file is then closed, and what was not committed is lost.
    """

    def __init__(self, path: Path, schema: Schema) -> None:
        self.path = path
        self._schema = schema
        self._connection: sqlite3.Connection | None = None
        self.went_back = False  # `open` had to leave out a part of the WAL
        self._leaves_traces = False
        self._inode = 0  # of the open file

    def open(self, keep: Collection[str] | None = None) -> None:
        """Open the file, or create it.

        A damaged file is set aside, and a new one takes its place with all groups that are still
        whole. It is refused and stays as it is where a group in `keep` (all by default) is damaged.
        """
        self.went_back = False
        try:
            self._connect()
        except DamagedError as error:
            self._replace_damaged(error, keep)
            self._connect()

    def close(self) -> None:
        """Close the file. What was not committed is lost. May be called twice."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    @property
    def is_open(self) -> bool:
        """Whether the file is open; an error closes it."""
        return self._connection is not None

    @property
    def loss(self) -> str:
        """Why what is written to the open file is lost when this process ends; else empty."""
        is_safe = self.path == MEMORY or not self.is_open
        if is_safe or (self.path.exists() and self.path.stat().st_ino == self._inode):
            return ""
        return f"{self.path} was removed or replaced: what comes now is lost when the program ends"

    @property
    def changed(self) -> bool:
        """Whether something was written since the last commit."""
        return self._connected().in_transaction

    def rows(self, sql: str, *values: object) -> list[Any]:
        return self._execute(sql, values)

    def write(self, sql: str, *values: object) -> None:
        """Run a statement inside the transaction."""
        self._begin()
        self._execute(sql, values)

    def insert(self, table: str, *values: object, replace: bool = False) -> None:
        """Write a row: a value for each column; with `replace`, also over one with its key."""
        verb = "INSERT OR REPLACE" if replace else "INSERT"
        self.write(f"{verb} INTO {table} VALUES ({', '.join('?' * len(values))})", *values)

    def update(
        self, table: str, changes: Mapping[str, object], where: str = "true", *values: object
    ) -> None:
        """Change columns of the rows for which `where` holds, with `values` in its places."""
        columns = ", ".join(f"{name} = ?" for name in changes)
        self.write(f"UPDATE {table} SET {columns} WHERE {where}", *changes.values(), *values)

    def clear(self, *tables: str) -> None:
        for table in tables:
            self.write(f"DELETE FROM {table}")

    def commit(self) -> None:
        """Make everything that was written durable. Does nothing if nothing was written."""
        if self.changed:
            self._execute("COMMIT")
            if self._leaves_traces:
                self._leaves_traces = False
                self.checkpoint()

    def leave_no_trace(self) -> None:
        """With the next commit, what it deletes leaves the file and its WAL, too."""
        self._leaves_traces = True

    def checkpoint(self) -> None:
        """Commit, and empty the WAL into the file, so that damage to it takes nothing back."""
        self.commit()
        self._execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def compact(self) -> None:
        """Commit, and write the file anew: neither it nor its WAL holds what was deleted.

        For that time it needs as much memory and disk again as the file has bytes. Without it,
        SQLite leaves parts of rows in pages that it has split, whatever secure_delete is.
        """
        self.commit()
        self._execute("VACUUM")
        self.checkpoint()

    def back_up(self, path: Path) -> None:
        """Write a copy of the open file to a new file. Raises StoreError; this file stays open."""
        self.commit()
        try:
            make_private_folder(path.parent)
            path.touch(PRIVATE, exist_ok=False)
        except (OSError, ValueError) as error:  # ValueError: a path that the system does not take
            raise StoreError(
                f"cannot write {path} ({error.args[-1]}): choose another folder"
            ) from error
        try:
            with closing(sqlite3.connect(path)) as copy:
                self._connected().backup(copy)
        except sqlite3.Error as error:
            path.unlink()
            raise StoreError(f"cannot write {path}: {trouble(path, error)}") from error
        sync_folder(path.parent)

    def replace_by(self, copy: Path) -> None:
        """Put a whole, closed file in the place of this one, which is closed, and is renamed."""
        copy.replace(self._replacement)  # from here on a power cut leaves a whole file
        if self.path.exists():
            _set_aside(self.path, "replaced")
        self._finish_replacing()

    def _begin(self) -> None:
        if not self.changed:
            self._execute("BEGIN IMMEDIATE")

    def _connected(self) -> sqlite3.Connection:
        assert self._connection is not None, "open the database first"
        return self._connection

    def _execute(self, sql: str, values: Sequence[object] = ()) -> list[Any]:
        connection = self._connected()
        try:
            return connection.execute(sql, values).fetchall()
        except _ERRORS as error:
            # Part of the transaction may be gone: the program must not go on as if it were there.
            self.close()
            raise self._explain(error) from error

    # Opening

    def _connect(self) -> None:
        try:
            make_private_folder(self.path.parent)
            if self.path != MEMORY:
                self._finish_replacing()
                if self.path.is_dir():
                    raise IsADirectoryError(self.path)
                if not self.path.exists():
                    self._make_file()
                if not self.path.stat().st_size:
                    raise DamagedError(self.path, "it is empty")  # and SQLite would drop its WAL
                _keep_private(self.path)
                self._inode = self.path.stat().st_ino
            # The timeout is SQLite's own. Transactions are ours (isolation_level).
            self._connection = sqlite3.connect(self.path, timeout=LOCK_WAIT_S, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"cannot open {self.path}: {trouble(self.path, error)}") from error
        self._prepare()

    def _make_file(self) -> None:
        """Make the file under another name: a power cut must not leave an empty one."""
        unfinished = self._unfinished()
        unfinished.touch(PRIVATE)
        with closing(sqlite3.connect(unfinished)) as new:
            new.execute("PRAGMA journal_mode = WAL")  # writes the first page
        # SQLite would apply the WAL of a file that was moved away to this one.
        self.path.with_name(f"{self.path.name}-wal").unlink(missing_ok=True)
        unfinished.replace(self.path)
        sync_folder(self.path.parent)

    def _unfinished(self) -> Path:
        """The name of a file that is not whole yet. What a kill has left of one is deleted."""
        for end in ("", "-wal", "-journal"):
            self.path.with_name(f"{self.path.name}.copy{end}").unlink(missing_ok=True)
        return self.path.with_name(f"{self.path.name}.copy")

    def _prepare(self) -> None:
        # Exclusive before the first access: WAL then needs no shared memory, and the lock stays.
        for pragma in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = FULL"):
            self._execute(f"PRAGMA {pragma}")
        self._execute("PRAGMA journal_size_limit = 0")  # the WAL holds its own frames alone
        self._execute("PRAGMA secure_delete = ON")  # not every build does so by itself
        checksums.prepare(self._connected())
        self._check_wal()
        self._begin()
        self._refuse(self.rows("PRAGMA integrity_check(1)")[0][0], "ok", "its pages")
        self._check_kind()
        self._check_rows()
        self._follow_rows()
        self.commit()

    def _refuse(self, actual: object, expected: object, what: str) -> None:
        if actual != expected:
            self.close()
            raise DamagedError(self.path, what)

    def _check_wal(self) -> None:
        """Say what SQLite leaves out without a word: the WAL from its first bad frame on."""
        frames = max(0, self.rows("PRAGMA wal_checkpoint")[0][1])  # that SQLite has read
        whole = WAL_HEADER + frames * (WAL_FRAME + self.rows("PRAGMA page_size")[0][0])
        wal = _wal_of(self.path)
        size = wal.stat().st_size if wal.exists() else 0
        if size not in (0, whole):
            self.went_back = True
            _log.error(
                "%s has %d bytes that are no whole commit, and what was written last is left out. "
                "After a power cut that is normal, and nothing is lost; otherwise check the disk: "
                "see docs/backup.md",
                wal,
                size - whole if frames else size,
            )

    def _check_kind(self) -> None:
        """Refuse a file of another kind or format; a new one gets its tables."""
        application = self.rows("PRAGMA application_id")[0][0]
        version: int = self.rows("PRAGMA user_version")[0][0]
        statements = self._statements()
        if application == version == 0 and not statements:
            self._create()
            return
        if checksums.TABLE in statements:
            [(kind,)] = self.rows(f"SELECT value FROM {checksums.NAME} WHERE name = ''") or [(0,)]
            self._refuse(application << 32 | version, kind, "its header")
        if application != self._schema.application:
            self.close()
            raise StoreError(f"{self.path} is no state of ternmesh: rename that file")
        if version != self._schema.version:
            self.close()
            raise FormatError(
                f"{self.path} was written by another version of ternmesh (format {version}, this "
                f"one reads {self._schema.version}): install that version again, or "
                f"{self._schema.advice}"
            )
        expected = sorted((*self._schema.statements, checksums.TABLE))
        self._refuse(sorted(self._statements()), expected, "its tables")

    def _statements(self) -> list[str]:
        return [sql for (sql,) in self.rows("SELECT sql FROM sqlite_master WHERE sql NOT NULL")]

    def _check_rows(self) -> None:
        stored = dict(self.rows(f"SELECT name, value FROM {checksums.NAME}"))
        for table in self._tables():
            self._refuse(self._total(table), stored.get(table), f"the checksum of {table}")

    def _follow_rows(self) -> None:
        """Keep the checksums up to date from now on."""
        for table in self._tables():
            for statement in checksums.triggers(table, self._columns(table)):
                self._execute(statement)

    def _columns(self, table: str) -> list[checksums.Column]:
        return [row[1:3] for row in self.rows(f"PRAGMA table_info({table})")]

    def _total(self, table: str) -> int:
        return int(self.rows(checksums.total(table, self._columns(table)))[0][0])

    def _tables(self) -> list[str]:
        sql = "SELECT name FROM sqlite_master WHERE type = 'table' AND name != ?"
        return [name for (name,) in self.rows(sql, checksums.NAME)]

    def _create(self) -> None:
        for statement in (*self._schema.statements, checksums.TABLE):
            self._execute(statement)
        kind = self._schema.application << 32 | self._schema.version
        self.insert(checksums.NAME, "", kind)
        for table in self._tables():
            self.insert(checksums.NAME, table, self._total(table))
        self._execute(f"PRAGMA application_id = {self._schema.application}")
        self._execute(f"PRAGMA user_version = {self._schema.version}")

    def _explain(self, error: Exception) -> StoreError:
        code = _code(error)
        if code in _DAMAGE:
            return DamagedError(self.path, "its pages")
        if code in _BUSY:
            return StoreError(f"another process uses {self.path}: stop it, or choose a state_dir")
        return StoreError(f"cannot write {self.path}: {trouble(self.path, error)}")

    # Replacing a damaged file

    @property
    def _replacement(self) -> Path:
        return self.path.with_name(f"{self.path.name}.replacement")

    def _replace_damaged(self, error: DamagedError, keep: Collection[str] | None) -> None:
        unfinished = self._unfinished()
        with closing(Database(unfinished, self._schema)) as new:
            new.open()
            lost = new._copy_whole_groups(self.path)
        if lost if keep is None else lost & set(keep):
            unfinished.unlink()
            raise error
        unfinished.replace(self._replacement)  # from here on a power cut leaves a whole file
        aside = _set_aside(self.path, "damaged")
        self._finish_replacing()
        _log.error(
            "%s is damaged (%s): it is now %s, and a new file begins; lost: %s",
            *error.args,
            aside,
            ", ".join(sorted(lost)) or "nothing",
        )

    def _finish_replacing(self) -> None:
        """The last step, which a power cut may have left to this process."""
        if self._replacement.exists() and not self.path.exists():
            _wal_of(self.path).unlink(missing_ok=True)  # of a file that was removed
            self._replacement.replace(self.path)
            sync_folder(self.path.parent)

    def _copy_whole_groups(self, damaged: Path) -> set[str]:
        """Copy the groups of tables that are whole in `damaged`; returns the others."""
        connection = self._connected()
        groups: dict[str, list[str]] = {}
        for table in self._tables():
            groups.setdefault(table.split("_")[0], []).append(table)
        try:
            connection.execute("ATTACH ? AS damaged", (str(damaged),))
            kind, version = (
                connection.execute(f"PRAGMA damaged.{pragma}").fetchone()[0]
                for pragma in ("application_id", "user_version")
            )
        except _ERRORS as error:
            if _code(error) not in _DAMAGE:
                raise self._explain(error) from error
            return set(groups)
        if (kind, version) != (self._schema.application, self._schema.version):
            return set(groups)
        return {name for name, tables in groups.items() if not self._copy_group(connection, tables)}

    def _copy_group(self, connection: sqlite3.Connection, tables: Sequence[str]) -> bool:
        """Copy tables from the attached file; False, with nothing copied, where one is damaged."""
        name = checksums.NAME
        same = f"SELECT 1 FROM main.{name} NATURAL JOIN damaged.{name} WHERE name = ?"
        try:
            with connection:  # an error rolls back
                connection.execute("BEGIN")
                for table in tables:
                    connection.execute(f"INSERT INTO main.{table} SELECT * FROM damaged.{table}")
                    if not connection.execute(same, (table,)).fetchall():
                        connection.rollback()
                        return False
        except _ERRORS as error:
            if _code(error) not in _TABLE_DAMAGE:
                raise self._explain(error) from error
            return False
        return True


def is_in_use(path: Path) -> bool:
    """Whether another process has a file open; this one must not, for it would lose its lock."""
    try:
        with path.open("rb") as file:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)  # else there is no file that we may read
    return False


def trouble(path: Path, error: Exception) -> str:
    """Why a file cannot be used, and what to do: the words of SQLite do not say it."""
    code, number = _code(error), getattr(error, "errno", None)
    folder = next(filter(os.path.exists, path.absolute().parents), Path("/"))
    is_full = code == sqlite3.SQLITE_FULL or number in (errno.ENOSPC, errno.EDQUOT)
    usage = shutil.disk_usage(folder)
    if is_full or (usage.free < FREE_MIN and usage.total):  # /proc has no room at all
        return "its disk is full: make room there"
    if os.path.isdir(path):
        return "it is a folder: rename that"
    if code == sqlite3.SQLITE_IOERR or number == errno.EIO:
        return "its disk refuses to read or write: check its room, and whether it fails (`dmesg`)"
    if code in _TABLE_DAMAGE:  # also a file whose WAL was not read
        return "it is not whole: start its program again, or see docs/backup.md"
    may_look = os.access(path.parent, os.R_OK | os.X_OK, effective_ids=True)
    if code == sqlite3.SQLITE_CANTOPEN and may_look and not os.path.exists(path):
        return "it is not there: bring back a copy of it (`ternmesh restore`)"
    lacks = "this user may not use it" if os.path.exists(path.parent) else "its folder is not there"
    reason = getattr(error, "strerror", None) or lacks
    return f"{reason}: its folder must be one that may be written, also for what only reads"


def _code(error: Exception) -> int:
    is_text = isinstance(error, UnicodeDecodeError | sqlite3.OperationalError)
    unnamed = sqlite3.SQLITE_CORRUPT if is_text else 0  # text that cannot be decoded has no code
    return getattr(error, "sqlite_errorcode", unnamed) & 0xFF  # the primary one


def _keep_private(path: Path) -> None:
    """Let only the owner read the file, whatever its folder and the umask allow."""
    path.touch(PRIVATE)  # an existing file is not opened: closing it would drop SQLite's locks
    for file in (path, _wal_of(path)):  # a new WAL takes its mode from the file
        if file.exists():
            file.chmod(PRIVATE)


def _wal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _set_aside(path: Path, why: str) -> Path:
    """Rename a file and its WAL to the first free name; returns that name."""
    for number in range(1, ASIDE_MAX + 1):
        aside = path.with_name(f"{path.name}.{why}-{number}")
        if not aside.exists():
            break
    _wal_of(aside).unlink(missing_ok=True)
    if _wal_of(path).exists():  # first: SQLite must never find it beside another file
        _wal_of(path).rename(_wal_of(aside))
    path.rename(aside)
    return aside
