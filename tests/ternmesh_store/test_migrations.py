"""A file of an older format becomes one of ours, whole or not at all; a newer one stays."""

import logging
import os
import signal
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from ternmesh.link.ledger import Moment
from ternmesh.link.regions import EU868
from ternmesh_store import airtime_store, state_file
from ternmesh_store.airtime_store import AirtimeStore
from ternmesh_store.database import DamagedError, Database, NewerError, Schema, StoreError
from ternmesh_store.state_file import SCHEMA, STATE, StateFile

ITEM = "CREATE TABLE item (name TEXT PRIMARY KEY, amount INTEGER)"
WIDER = "CREATE TABLE item (name TEXT PRIMARY KEY, amount INTEGER, unit TEXT NOT NULL)"
OTHER = "CREATE TABLE other_value (key TEXT PRIMARY KEY, value BLOB NOT NULL)"
MORE = "CREATE TABLE more_value (key TEXT PRIMARY KEY, value BLOB NOT NULL)"
OLD = Schema(0x54455354, 3, (ITEM, OTHER))


def name_them(database: Database) -> None:
    """A step that computes: the unit of each row comes from its name."""
    for name, amount in database.rows("SELECT name, amount FROM kept"):
        database.insert("item", name, amount, name[:1])


NEW = replace(
    OLD,
    version=5,
    statements=(WIDER, OTHER, MORE),
    migrations={
        4: (),  # a table more
        5: (
            "CREATE TABLE kept AS SELECT * FROM item",
            "DROP TABLE item",
            WIDER,
            name_them,
            "DROP TABLE kept",
        ),
    },
)
OLDER = f"{STATE}.format-3"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed file of format 3 with a row in each table."""
    path = tmp_path / STATE
    with closing(Database(path, OLD)) as database:
        database.open()
        database.insert("item", "volt", 230)
        database.insert("other_value", "key", b"value")
        database.commit()
    return path


def items(path: Path, schema: Schema) -> list[tuple[object, ...]]:
    with closing(Database(path, schema)) as database:
        database.open()
        return database.rows("SELECT * FROM item")


def test_an_older_file_is_migrated_and_its_checksums_with_it(path: Path) -> None:
    assert items(path, NEW) == [("volt", 230, "v")]
    with closing(Database(path, NEW)) as database:
        database.open()  # which compares all checksums
        assert database.rows("SELECT value FROM other_value") == [(b"value",)]
        database.insert("more_value", "key", b"more")
        database.insert("item", "ampere", 16, "a")
        database.commit()
    assert len(items(path, NEW)) == 2
    content = path.read_bytes()
    path.write_bytes(content.replace(b"ampere", b"ampera"))
    with pytest.raises(DamagedError, match="the checksum of item"):
        items(path, NEW)


def test_one_copy_of_the_older_file_stays(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        items(path, NEW)
    assert f"{path} has format 5 now, and had 3" in caplog.text
    assert items(path.with_name(OLDER), OLD) == [("volt", 230)]
    assert path.with_name(OLDER).stat().st_mode & 0o777 == 0o600
    items(path, NEW)
    newest = replace(NEW, version=6, migrations={6: ()})
    items(path, newest)
    assert sorted(file.name for file in path.parent.iterdir()) == [STATE, f"{STATE}.format-5"]


def test_a_kill_at_any_statement_leaves_the_old_or_the_new_format(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round kills one statement later, until a whole migration is done."""
    content = path.read_bytes()
    execute, back_up = Database._execute, Database.back_up
    found = []
    for last in range(1, 200):
        for file in path.parent.glob("*"):
            file.unlink()
        path.write_bytes(content)
        child = os.fork()
        if child == 0:
            left = [last]

            def count(*arguments: object, left: list[int] = left) -> object:
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return (execute if len(arguments) > 2 else back_up)(*arguments)  # type: ignore[arg-type]

            def each(database: Database, sql: str, values: tuple[object, ...] = ()) -> object:
                return count(database, sql, values)

            monkeypatch.setattr(Database, "_execute", each)
            monkeypatch.setattr(Database, "back_up", lambda database, to: count(database, to))
            try:
                items(path, NEW)
                os._exit(0)
            finally:
                os._exit(1)
        killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
        try:
            assert items(path, OLD) == [("volt", 230)]
            found.append(3)
        except NewerError:
            assert path.with_name(OLDER).exists()
            found.append(5)
        assert items(path, NEW) == [("volt", 230, "v")], "the next start finishes it"
        if not killed:
            break
    assert not killed
    assert found == sorted(found)
    assert (found.count(3) > 20, 5 in found) == (True, True)


def fails(_: Database) -> None:
    raise StoreError("this step fails")


@pytest.mark.parametrize(
    ("steps", "sentence"),
    [
        (("CREATE TABLE more_value (key)",), "already exists"),
        (("INSERT INTO nowhere VALUES (1)",), "no such table"),
        ((fails,), "this step fails"),
        (("CREATE VIEW v AS SELECT 1",), "its tables"),
    ],
)
def test_a_migration_that_fails_changes_nothing(path: Path, steps: tuple, sentence: str) -> None:
    content = path.read_bytes()
    schema = replace(OLD, version=4, statements=(ITEM, OTHER, MORE), migrations={4: steps})
    for _ in range(2):
        with pytest.raises(StoreError, match=sentence):
            items(path, schema)
        assert path.read_bytes() == content
        assert {file.name for file in path.parent.iterdir()} == {STATE, OLDER}
    assert items(path, OLD) == [("volt", 230)]


def test_a_full_disk_leaves_the_older_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise StoreError("cannot write: check the room on its disk")

    with monkeypatch.context() as patch:
        patch.setattr(Database, "back_up", full)
        with pytest.raises(StoreError, match="the room"):
            items(path, NEW)
    assert items(path, OLD) == [("volt", 230)]


def test_a_damaged_older_file_is_not_migrated(path: Path) -> None:
    damaged = path.read_bytes().replace(b"volt", b"volu")
    path.write_bytes(damaged)
    with pytest.raises(DamagedError, match="the checksum of item"):
        items(path, NEW)
    assert path.read_bytes() == damaged
    assert [file.name for file in path.parent.iterdir()] == [STATE]


def test_a_format_without_a_way_to_ours_is_refused(path: Path) -> None:
    schema = replace(NEW, migrations={5: NEW.migrations[5]})
    with pytest.raises(StoreError, match=r"format 3, this one reads 5.*use that version"):
        items(path, schema)
    assert items(path, OLD) == [("volt", 230)]


def test_a_newer_file_is_refused_and_stays(path: Path) -> None:
    items(path, NEW)
    content = path.read_bytes()
    with pytest.raises(NewerError, match="install that version again, or rename that file"):
        items(path, OLD)
    assert path.read_bytes() == content


@pytest.fixture
def next_format(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on this version of ternmesh has one more table in each file."""

    def upgrade() -> None:
        for module in (state_file, airtime_store):
            old = module.SCHEMA
            new = old.version + 1
            schema = replace(
                old,
                version=new,
                statements=(*old.statements, MORE),
                migrations={**old.migrations, new: ()},
            )
            monkeypatch.setattr(module, "SCHEMA", schema)

    return upgrade


def test_the_state_and_the_ledger_are_migrated(
    tmp_path: Path, next_format: Callable[[], None]
) -> None:
    now = Moment("boot", 100.0, None)
    band = next(band for band in EU868.sub_bands if band.budget_us is not None)
    assert band.budget_us is not None
    state, ledger = StateFile(tmp_path), AirtimeStore(tmp_path / "airtime.db")
    state.open()
    state.insert("security_member", "ada", b"identity")
    state.commit()
    ledger.open(now)
    assert ledger.reserve(band, now, 100_000)
    for file in (state, ledger):
        file.close()
    next_format()
    state, ledger = StateFile(tmp_path), AirtimeStore(tmp_path / "airtime.db")
    state.open()
    ledger.open(now)
    assert state.rows("SELECT name FROM security_member") == [("ada",)]
    spent = ledger.ledger(band, now).spent_us(now.now_s)
    assert 100_000 <= spent < band.budget_us
    for file in (state, ledger):
        file.close()
    older = f"{STATE}.format-{SCHEMA.version}"
    assert {file.name for file in tmp_path.iterdir()} == {STATE, older, "airtime.db"}


def test_samples_of_format_4_are_all_there_in_ours(tmp_path: Path) -> None:
    older = """CREATE TABLE replay_sample (
        id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, inputs BLOB NOT NULL, targets BLOB
    )"""
    rounds = """CREATE TABLE host_round (
        version INTEGER PRIMARY KEY, counted TEXT, missing TEXT, seconds REAL
    )"""
    changed = ("replay_sample", "host_round")
    kept = (sql for sql in SCHEMA.statements if not any(name in sql for name in changed))
    tables = (older, rounds, *kept)
    with closing(Database(tmp_path / STATE, replace(SCHEMA, version=4, statements=tables))) as old:
        old.open()
        old.insert("replay_sample", 3, "a", b"inputs", None)
        old.insert("replay_sample", 7, "b", bytes(9000), b"targets")
        old.insert("security_member", "ada", b"identity")
        old.insert("host_round", 1, "[]", "[]", 0.5)
        old.commit()
    state = StateFile(tmp_path)
    for _ in range(2):  # the second one compares all checksums
        state.open()
        columns = "id, key, added_at, certainty, targets, inputs"
        assert state.rows(f"SELECT {columns} FROM replay_sample") == [
            (3, "a", 0, 2.0, None, b"inputs"),
            (7, "b", 0, 2.0, b"targets", bytes(9000)),
        ]
        assert state.rows("SELECT name FROM security_member") == [("ada",)]
        assert state.rows("SELECT loss, accuracy, evaluations FROM host_round") == [(None, None, 0)]
        state.close()


def test_a_newer_ledger_is_refused_and_says_what_an_old_one_would_do(
    tmp_path: Path, next_format: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context():
        ours = airtime_store.SCHEMA
        next_format()
        newer = AirtimeStore(tmp_path / "airtime.db")
        newer.open(Moment("boot", 100.0, None))
        newer.close()
        monkeypatch.setattr(airtime_store, "SCHEMA", ours)
    with pytest.raises(NewerError, match="the present hour counts as spent"):
        AirtimeStore(tmp_path / "airtime.db").open(Moment("boot", 100.0, None))
