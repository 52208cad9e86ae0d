import errno
import logging
import os
import resource
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ternmesh_store import database as database_module
from ternmesh_store.database import ASIDE_MAX, DamagedError, Database, Schema, StoreError, trouble
from ternmesh_store.files import GITIGNORE
from ternmesh_store.store import StoredValues

SCHEMA = Schema(
    0x54455354,
    1,
    (
        "CREATE TABLE item (name TEXT PRIMARY KEY, amount INTEGER)",
        "CREATE TABLE other_value (key TEXT PRIMARY KEY, value BLOB NOT NULL)",
    ),
)


def opened(path: Path, schema: Schema = SCHEMA, keep: tuple[str, ...] | None = None) -> Database:
    database = Database(path, schema)
    database.open(keep)
    return database


def coded(code: int) -> sqlite3.Error:
    """An error with this code of SQLite."""
    error = sqlite3.OperationalError("raw text")
    error.sqlite_errorcode = code
    return error


def values(database: Database) -> StoredValues:
    return StoredValues(database, "other_value")


def filled(path: Path) -> Database:
    """A file of many pages in both groups."""
    database = opened(path)
    for number in range(200):
        database.write("INSERT INTO item VALUES (?, 1)", f"{number:0100}")
    for number in range(200):
        values(database).put(f"{number:0100}", bytes([number]) * 100)
    database.commit()
    database.close()
    return database


def overwritten(at: int, content: bytes) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(at)
            file.write(content)

    return damage


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "test.sqlite"


def items(database: Database) -> list[tuple[str, int]]:
    return database.rows("SELECT name, amount FROM item ORDER BY name")


def test_the_file_is_durable_and_has_one_owner(path):
    database = opened(path)
    for name, value in (("journal_mode", "wal"), ("synchronous", 2), ("locking_mode", "exclusive")):
        assert database.rows(f"PRAGMA {name}") == [(value,)]
    assert path.parent.stat().st_mode & 0o777 == 0o700
    database.close()


def test_what_was_committed_survives_a_kill_and_what_was_not_does_not(path, in_killed_process):
    def work() -> None:
        database = opened(path)
        database.write("INSERT INTO item VALUES ('committed', 1)")
        values(database).put("key", b"committed")
        database.commit()
        database.write("INSERT INTO item VALUES ('lost', 2)")
        values(database).put("key", b"lost")

    in_killed_process(work)
    database = opened(path)
    assert items(database) == [("committed", 1)]
    stored = values(database)
    assert stored.get("key") == b"committed"
    stored.put("key", b"lost")
    assert database.changed, "the value of the lost transaction is not taken for written"
    database.close()


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"this is no database, but it is long enough to look like one" * 100,
        lambda content: content[:4096] + b"\xff" * (len(content) - 4096),
        lambda content: content[: len(content) // 2],
    ],
    ids=["not a database", "pages overwritten", "cut off"],
)
def test_a_damaged_file_is_replaced_only_where_it_may_be(path, damage, caplog):
    filled(path)
    damaged = damage(path.read_bytes())
    path.write_bytes(damaged)
    for keep in (None, ("item",)):  # also when the program is started again and again
        with pytest.raises(DamagedError, match="bring back a copy"):
            opened(path, keep=keep)
        assert path.read_bytes() == damaged
        assert {file.name for file in path.parent.iterdir()} == {path.name, GITIGNORE}
    with caplog.at_level(logging.ERROR):
        database = opened(path, keep=())
    assert items(database) == []
    aside = path.with_name("test.sqlite.damaged-1")
    assert aside.read_bytes() == damaged
    assert f"{path} is damaged" in caplog.text
    assert str(aside) in caplog.text
    assert "lost: item, other" in caplog.text
    database.close()


def overwrite_a_page(path: Path) -> None:
    database = opened(path)
    [(page,)] = database.rows("SELECT rootpage FROM sqlite_master WHERE name = 'other_value'")
    database.close()
    overwritten(4096 * (page - 1), b"\xff" * 4096)(path)


def change_a_bit_of_a_value(path: Path) -> None:
    overwritten(path.read_bytes().index(bytes([77]) * 100), bytes([76]))(path)


@pytest.mark.parametrize("damage", [overwrite_a_page, change_a_bit_of_a_value])
def test_what_is_whole_in_a_damaged_file_is_kept(path, caplog, damage):
    filled(path)
    damage(path)
    for keep in (None, ("other",)):
        with pytest.raises(DamagedError):
            opened(path, keep=keep)
    with caplog.at_level(logging.ERROR):
        database = opened(path, keep=("item",))
    assert len(items(database)) == 200
    assert values(database).get(f"{7:0100}") is None
    assert caplog.text.strip().endswith("lost: other")
    database.close()


def test_a_power_cut_while_a_damaged_file_is_replaced_loses_nothing(path, monkeypatch):
    filled(path)
    content = path.read_bytes()
    path.write_bytes(content + b"\xff" * 4096)  # a page that belongs to nothing
    with path.open("r+b") as file:
        file.seek(28)  # the size of the database in pages
        file.write((len(content) // 4096 + 1).to_bytes(4, "big"))
    set_aside = database_module._set_aside

    def cut(damaged: Path, why: str) -> None:
        set_aside(damaged, why)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(database_module, "_set_aside", cut)
        with pytest.raises(KeyboardInterrupt):
            opened(path)
    assert not path.exists()
    database = opened(path)
    assert len(items(database)) == 200
    database.close()


def test_files_kept_aside_do_not_fill_the_disk(path):
    path.parent.mkdir(parents=True)
    for number in range(ASIDE_MAX + 2):
        path.write_bytes(b"damage number %d " % number * 100)
        opened(path, keep=()).close()
    kept = sorted(path.parent.glob("*.damaged-*"))
    assert len(kept) == ASIDE_MAX
    assert b"damage number 4" in kept[-1].read_bytes()


def test_damage_that_shows_later_is_a_sentence(path):
    filled(path)
    database = opened(path)
    database.rows("PRAGMA cache_size = 0")
    content = path.read_bytes()
    with path.open("r+b") as file:  # A failing card, while the process runs.
        file.seek(4096)
        file.write(b"\xff" * (len(content) - 4096))
    with pytest.raises(StoreError, match=r"is damaged .*bring back a copy"):
        items(database)


def test_every_kind_of_write_keeps_the_checksums(path):
    database = filled(path)
    database.open()
    for sql in (
        "UPDATE item SET amount = 2 WHERE name > '1'",
        "INSERT OR REPLACE INTO item SELECT name, NULL FROM item LIMIT 5",
        "INSERT INTO item SELECT name, 1 FROM item WHERE true ON CONFLICT DO UPDATE SET amount = 7",
        "DELETE FROM item WHERE amount = 2",
        "DELETE FROM other_value",
    ):
        database.write(sql)
        database.commit()
        database.close()
        database.open()
    database.close()


@pytest.mark.parametrize("connections", [0, 1], ids=["before it has a page", "before its tables"])
def test_a_kill_at_the_first_start_leaves_no_empty_file(
    path, in_killed_process, connections, monkeypatch
):
    def work() -> None:
        left = iter(range(connections))
        connect = sqlite3.connect

        def connect_or_die(*args: Any, **options: Any) -> sqlite3.Connection:
            if next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return connect(*args, **options)

        monkeypatch.setattr(sqlite3, "connect", connect_or_die)
        opened(path)

    in_killed_process(work)
    database = opened(path)
    assert items(database) == []
    assert not list(path.parent.glob("*.copy*"))
    database.close()


def test_the_wal_of_a_file_that_was_moved_away_is_not_applied_to_a_new_one(path):
    old = opened(path)
    old.write("INSERT INTO item VALUES ('ada', 1)")
    old.commit()
    path.rename(path.with_name("moved"))
    database = opened(path)
    assert items(database) == []
    database.close()
    old.close()


def test_what_is_left_out_of_a_wal_is_said_once(path, in_killed_process, caplog):
    def write(*names: str) -> None:
        database = opened(path)
        for name in names:
            database.write("INSERT INTO item VALUES (?, 1)", name)
            database.commit()

    in_killed_process(lambda: write("first"))
    in_killed_process(lambda: write("second", "third"))
    wal = path.with_name(f"{path.name}-wal")
    content = bytearray(wal.read_bytes())
    content[len(content) * 3 // 4] ^= 1  # in what was committed last
    wal.write_bytes(content)
    in_killed_process(lambda: write("fourth"))
    with caplog.at_level(logging.ERROR):
        wal_after, file_after = wal.read_bytes(), path.read_bytes()
        database = opened(path)
    assert [name for name, _ in items(database)] == ["first", "fourth", "second"]
    assert not database.went_back
    assert caplog.text == ""
    database.close()
    wal.write_bytes(wal_after[: len(wal_after) - 1])
    path.write_bytes(file_after)
    with caplog.at_level(logging.ERROR):
        database = opened(path)
    assert f"{wal} has {len(wal_after) - 1} bytes that are no whole commit" in caplog.text
    assert database.went_back
    assert [name for name, _ in items(database)] == ["first", "second"]
    database.close()


def precious(path: Path) -> None:
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE precious (x)")


def damaged_at(at: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        opened(path).close()
        overwritten(at, b"\x01\x01")(path)

    return make


def damaged_page(path: Path) -> None:
    filled(path)
    overwritten(3 * 4096, bytes(100))(path)


def with_broken_text(path: Path) -> None:
    opened(path).close()
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE item", b"CREATE TA\xebLE item"))


def emptied(path: Path) -> None:
    opened(path).close()
    os.truncate(path, 0)


def of_schema(schema: Schema) -> Callable[[Path], None]:
    return lambda path: opened(path, schema).close()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (precious, "is no state of ternmesh"),
        (of_schema(Schema(7, 1, ())), "is no state of ternmesh"),
        (of_schema(replace(SCHEMA, version=0)), r"another version of ternmesh \(format 0, this"),
        (of_schema(replace(SCHEMA, version=2)), r"another version of ternmesh \(format 2, this"),
        (damaged_at(60), "is damaged .*its header"),
        (damaged_at(68), "is damaged .*its header"),
        (damaged_page, r"is damaged \(its pages\)"),
        (with_broken_text, "is damaged"),  # SQLite quotes text that cannot be decoded
        (emptied, "is damaged .*it is empty"),
    ],
)
def test_a_file_of_another_kind_or_version_or_damaged_is_left_alone(path, make, sentence):
    make(path)
    content = path.read_bytes()
    with pytest.raises(StoreError, match=sentence):
        opened(path)
    assert path.read_bytes() == content


def test_a_full_disk_is_a_sentence_and_keeps_what_was_committed(path):
    database = opened(path)
    values(database).put("key", b"old")
    database.commit()

    def write_on() -> None:
        for number in range(100):
            values(database).put("key", bytes([number]) * 10_000)
            database.commit()

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(StoreError, match=r"cannot write .*check its room"):
            write_on()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    survivor = values(opened(path)).get("key")
    assert survivor is not None
    assert survivor == bytes([survivor[0]]) * 10_000, "a whole value, not a torn one"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "its disk is full: make room there"),
        (coded(sqlite3.SQLITE_FULL), "its disk is full: make room there"),
        (coded(sqlite3.SQLITE_IOERR), "its disk refuses to read or write: check its room"),
        (coded(sqlite3.SQLITE_CORRUPT), "it is not whole: start its program again"),
        (coded(sqlite3.SQLITE_CANTOPEN), "its folder is not there: its folder must be"),
        (PermissionError(errno.EACCES, "Permission denied"), "Permission denied: its folder must"),
    ],
)
def test_what_sqlite_or_the_system_says_becomes_a_sentence(tmp_path, error, sentence) -> None:
    assert trouble(tmp_path / "none" / "x", error).startswith(sentence)


def test_a_file_that_is_not_there_and_a_disk_without_room_of_its_own(tmp_path: Path) -> None:
    missing = trouble(tmp_path / "x", coded(sqlite3.SQLITE_CANTOPEN))
    assert missing.startswith("it is not there: bring back a copy")
    assert "full" not in trouble(Path("/proc/x/y"), FileNotFoundError(2, "No such file"))


def test_a_copy_never_gets_the_wal_of_a_file_that_was_removed(tmp_path: Path) -> None:
    filled(tmp_path / "copy")
    (tmp_path / "x-wal").write_bytes(b"stale")
    Database(tmp_path / "x", SCHEMA).replace_by(tmp_path / "copy")
    assert not (tmp_path / "x-wal").exists()


def test_a_file_that_was_removed_or_replaced_is_noticed(tmp_path: Path) -> None:
    database = opened(tmp_path / "x")
    assert database.loss == ""
    filled(tmp_path / "y")
    (tmp_path / "y").replace(tmp_path / "x")
    assert "was removed or replaced: what comes now is lost" in database.loss


def test_a_full_disk_is_named_whatever_failed_and_a_folder_stays_one(tmp_path, monkeypatch) -> None:
    (tmp_path / "x").mkdir(mode=0o755)
    with pytest.raises(StoreError, match=r"cannot open .*x: it is a folder: rename that"):
        opened(tmp_path / "x")
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o755
    (tmp_path / "y").touch()
    assert "user may not use it: " in trouble(tmp_path / "y", coded(sqlite3.SQLITE_CANTOPEN))
    monkeypatch.setattr(database_module, "FREE_MIN", 1 << 80)
    assert "disk is full" in trouble(tmp_path / "x", coded(sqlite3.SQLITE_CORRUPT))
