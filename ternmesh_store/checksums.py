"""A checksum for each table: SQLite checks the form of its pages, not the bits of a value.

The checksum of a table is the sum of those of its rows, so a write changes it by its own rows alone
and in the same transaction. Triggers of the connection do that; the file holds only the sums.
"""

import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence

NAME = "checksum"  # of the table that holds the sums
TABLE = f"CREATE TABLE {NAME} (name TEXT PRIMARY KEY, value INTEGER NOT NULL)"
FUNCTION = "row_checksum"  # in SQL

Column = tuple[str, str]  # name and declared type


def prepare(connection: sqlite3.Connection) -> None:
    """Let a connection compute and follow checksums."""
    connection.create_function(FUNCTION, -1, _row_checksum, deterministic=True)
    connection.execute("PRAGMA recursive_triggers = ON")  # also for rows that a REPLACE deletes
    connection.execute("PRAGMA temp_store = MEMORY")  # where the triggers are


def total(table: str, columns: Iterable[Column]) -> str:
    """The query for the sum of the rows in a table."""
    return f"SELECT coalesce(sum({_call('', columns)}), 0) FROM {table}"


def triggers(table: str, columns: Sequence[Column]) -> Iterator[str]:
    """The statements after which all writes to a table also change its checksum."""
    old, new = (_call(f"{row}.", columns) for row in ("old", "new"))
    for action, change in (
        ("INSERT", f"+ {new}"),
        ("DELETE", f"- {old}"),
        ("UPDATE", f"- {old} + {new}"),
    ):
        yield (
            f"CREATE TEMP TRIGGER {table}_{action} AFTER {action} ON main.{table} BEGIN "
            f"UPDATE {NAME} SET value = value {change} WHERE name = '{table}'; END"
        )


def _call(row: str, columns: Iterable[Column]) -> str:
    """Text goes as bytes, since damaged text may be no text, and its type goes beside it."""
    values = (
        f"typeof({row}{name}), CAST({row}{name} AS BLOB)" if kind == "TEXT" else f"{row}{name}"
        for name, kind in columns
    )
    return f"{FUNCTION}({', '.join(values)})"


def _row_checksum(*values: object) -> int:
    """The CRC-32 of a row. 2^31 of them add up to an integer of SQLite."""
    checksum = 0
    for value in values:
        checksum = zlib.crc32(value if isinstance(value, bytes) else repr(value).encode(), checksum)
    return checksum
