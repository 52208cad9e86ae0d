from collections.abc import Callable
from pathlib import Path

import pytest

from ternmesh_store.database import StoreError
from ternmesh_store.split_store import Checkpoint, SplitStore
from ternmesh_store.state_file import StateFile

MODEL, RUN = bytes(range(32)), b"run-id-8"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state"


def opened(path: Path) -> SplitStore:
    file = StateFile(path)
    file.open()
    return SplitStore(file)


def test_a_new_store_is_empty(path: Path) -> None:
    store = opened(path)
    assert (store.counter(), store.boards(), store.load(("weights",))) == (0, (), None)
    store._database.close()


def test_only_what_was_committed_is_found_again(path: Path) -> None:
    store = opened(path)
    store.reserve(4096)
    store.add_board(2, "theo")
    store.add_board(1, "nicolas")
    first = Checkpoint(MODEL, RUN, {"theo": 20}, {"weights": b"abc"}, {"lost": 2})
    store.save(first)
    store.commit()
    store.save(Checkpoint(MODEL, RUN, {"theo": 40}, {"weights": b"later"}))
    store.reserve(8192)
    store._database.close()
    store = opened(path)
    assert store.counter() == 4096
    assert store.boards() == ((1, "nicolas"), (2, "theo"))
    assert store.load(("weights", "others")) == first
    store._database.close()


def test_a_run_that_is_given_up_leaves_the_counter(path: Path) -> None:
    store = opened(path)
    store.reserve(4096)
    store.add_board(1, "theo")
    store.save(Checkpoint(MODEL, RUN))
    store.forget()
    store.commit()
    assert (store.counter(), store.boards(), store.load(())) == (4096, (), None)
    store._database.close()


@pytest.mark.parametrize(
    ("statement", "read"),
    [
        ("UPDATE split_value SET value = x'7b'", lambda store: store.load(())),
        ('UPDATE split_value SET value = \'{"run": "00"}\'', lambda store: store.load(())),
        (
            'UPDATE split_value SET value = \'{"run": "00", "model": "00", "numbers": {}}\'',
            lambda store: store.load(()),
        ),
        ("UPDATE split_board SET name = 'a b'", lambda store: store.boards()),
        ("UPDATE split_board SET address = 40000", lambda store: store.boards()),
        ("UPDATE security_counter SET reserved = 'x'", lambda store: store.counter()),
    ],
)
def test_what_was_never_written_is_refused(
    path: Path, statement: str, read: Callable[[SplitStore], object]
) -> None:
    store = opened(path)
    store.reserve(4096)
    store.add_board(1, "theo")
    store.save(Checkpoint(MODEL, RUN, {"theo": 3}))
    store._database.write(statement)
    store.commit()
    store._database.close()
    store = opened(path)
    with pytest.raises(StoreError, match="never written"):
        read(store)
    store._database.close()
