"""Labels of people: who waits, who makes room, what is deleted, what a request is answered."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edge.data.buffer import CLOCK_SET, DAY_S, EXPIRE_S, RATED_MAX, ReplayBuffer
from edge.data.feed import ITEMS_MAX, Feed
from edge.data.sources import Label, Sample
from edge.errors import ModelError
from ternmesh.model_package import ModelPackage
from ternmesh_store.state_file import STATE
from tests.edge.data.conftest import NewBuffer, ask


class Clock:
    """The wall clock of the buffer."""

    def __init__(self) -> None:
        self.now = float(CLOCK_SET)

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def buffer(classes: ModelPackage, clock: Clock, new_buffer: NewBuffer) -> ReplayBuffer:
    return new_buffer(classes, 4, clock, clock)


def sample(name: str, value: float = 0.0) -> Sample:
    return Sample(name, {"x": np.full(6, value, np.float32)})


def label(name: str, number: int) -> Label:
    return Label(name, {"t": np.array(number)})


def keys(buffer: ReplayBuffer, *, labelled: bool) -> set[str]:
    groups = buffer.groups().items()
    return {
        buffer.key(row) for kind, rows in groups if (kind is not None) == labelled for row in rows
    }


def ages(buffer: ReplayBuffer) -> list[float | None]:
    """The newest sample first."""
    rows = sorted(row for rows in buffer.groups().values() for row in rows)
    return [buffer.age_s(row) for row in reversed(rows)]


def test_the_most_certain_sample_makes_room(buffer, classes, new_buffer) -> None:
    certainties = {str(n): n / 10 for n in range(10)}
    buffer.add([sample(key) for key in "1928"], certainties)
    buffer.add([sample("7"), sample("3")], certainties)
    assert [buffer.key(row) for row in buffer.least_certain()] == ["1", "2", "3", "7"]
    buffer = new_buffer(classes, 4)
    buffer.add([sample("u")])  # without a certainty: it would go first, and it is the only one
    assert keys(buffer, labelled=False) == {"1", "2", "3", "7"}
    assert buffer.counters.expired == 1


@pytest.mark.parametrize("values", [[np.nan, 2.0, -1.0], ModelError("no model")])
def test_without_a_certainty_the_oldest_go(buffer, values, caplog) -> None:
    def certainty(inputs: Any) -> Any:
        if isinstance(values, ModelError):
            raise values
        return np.resize(values, len(inputs["x"]))

    buffer.certainty = certainty
    buffer.add([sample(str(n)) for n in range(4)])
    buffer.rate()
    buffer.add([sample("4"), sample("5")])
    assert keys(buffer, labelled=False) == {"2", "3", "4", "5"}
    assert ("no model" in caplog.text) == isinstance(values, ModelError)


def test_a_new_model_rates_a_bounded_number_of_the_newest(state, classes, new_buffer) -> None:
    buffer = new_buffer(classes, 1000)
    buffer.add([sample(str(n)) for n in range(300)])
    asked: list[int] = []

    def certainty(inputs: Any) -> Any:
        asked.append(len(inputs["x"]))
        return np.linspace(0.0, 1.0, len(inputs["x"]))

    buffer.certainty = certainty
    buffer.rate()
    assert asked == [RATED_MAX]
    order = [buffer.key(row) for row in buffer.least_certain()]
    assert (order[0], order[RATED_MAX - 1], order[RATED_MAX]) == ("172", "299", "171")
    assert not state.changed  # a write for each in each round would wear a disk out


def test_a_class_does_not_crowd_out_the_others(buffer) -> None:
    for n, number in enumerate([0, 1, 2, 2, 2, 2, 2]):
        buffer.add([sample(f"{n}-{number}"), label(f"{n}-{number}", number)])
    assert keys(buffer, labelled=True) == {"0-0", "1-1", "5-2", "6-2"}
    assert buffer.counters.evicted == 3
    batch = buffer.batch(np.arange(len(buffer)))
    assert batch["t"].tolist() == [0, 1, 2, 2]


def test_a_person_corrects_a_label_and_a_source_does_not(buffer) -> None:
    assert buffer.add([sample("a"), label("a", 1), label("a", 2)]).tolist() == [0]
    assert (buffer.counters.unmatched, buffer.last_label) == (1, ("a", 1))
    assert buffer.label(label("a", 2))
    assert not buffer.label(label("gone", 2))
    assert buffer.batch(np.array([0]))["t"].tolist() == [2]
    counters = buffer.counters
    assert (counters.labels, counters.corrected, counters.unmatched) == (1, 1, 2)
    assert buffer.add([]).size == 0  # it was trained on before: it is no news for evaluation
    buffer.add([sample("b")])
    buffer.label(label("b", 0))
    assert buffer.add([]).tolist() == [1]


def test_old_samples_are_deleted_and_an_unset_clock_goes_by_order(buffer, clock) -> None:
    buffer.keep_s = 30 * DAY_S
    clock.now = 1000.0  # after a start without a network
    buffer.add([sample("early"), label("early", 1)])
    assert ages(buffer) == [None]
    clock.now = CLOCK_SET + DAY_S
    buffer.add([sample("first")])
    clock.now += 20 * DAY_S
    buffer.add([sample("second"), label("second", 0)])
    assert ages(buffer) == [0.0, 20 * DAY_S, 20 * DAY_S]
    clock.now = 2000.0 + EXPIRE_S
    assert set(ages(buffer)) == {None}
    buffer.add([sample("late")])
    assert buffer.counters.outdated == 0
    clock.now = CLOCK_SET + 32 * DAY_S
    buffer.add([])
    assert keys(buffer, labelled=True) | keys(buffer, labelled=False) == {"second", "late"}
    assert (buffer.counters.outdated, len(buffer), buffer.waiting) == (2, 1, 1)


def test_what_came_just_before_the_clock_was_set_is_not_old(classes, new_buffer, clock) -> None:
    clock.now = CLOCK_SET + DAY_S
    new_buffer(classes, 4, clock, clock).add([sample("before the start")])
    clock.now += 1.0
    buffer = new_buffer(classes, 4, clock, lambda: 0.0)  # it is set where it goes on
    buffer.keep_s = 30 * DAY_S
    buffer.add([sample("fresh")])
    clock.now += 40 * DAY_S
    buffer.add([])
    assert keys(buffer, labelled=False) == {"fresh"}


def test_a_flood_is_cut_and_counted(classes, new_buffer) -> None:
    buffer = new_buffer(classes, 100_000)
    flood = [sample(str(n)) for n in range(ITEMS_MAX + 1)]
    feed = Feed(SimpleNamespace(poll=lambda _: flood), buffer, 1.0)
    feed.poll(0.0)
    assert (buffer.waiting, feed.floods) == (ITEMS_MAX, 1)


def test_a_model_without_classes_is_not_labelled_by_hand(tiny, new_buffer) -> None:
    buffer = new_buffer(tiny.package)
    buffer.add([sample("a"), Label("a", {"t": np.zeros(3)}), sample("b")])
    assert "is no label of tiny" in ask(buffer, "label", key="b", label="0")
    assert [group["label"] for group in ask(buffer, "list")] == [None, "labelled"]
    assert "files" in ask(None, "list")


SECRET = np.frombuffer(b"a voice nobody may hear.", np.float32)


@pytest.mark.parametrize(
    ("which", "left"),
    [
        ({"key": "secret"}, {"old", "one", "new"}),
        ({"label": "1"}, {"old", "new"}),
        ({"unlabelled": True}, {"one", "secret"}),
        ({"older_s": 3600, "label": "1"}, {"old", "one", "secret", "new"}),
        ({}, set()),
    ],
)
def test_forget_deletes_what_fits_all_that_is_given(buffer, clock, which, left) -> None:
    buffer.add([sample("old")])
    clock.now += 7200
    buffer.add([Sample("secret", {"x": SECRET}), sample("one"), sample("new")])
    buffer.add([label("one", 1), label("secret", 1)])
    assert ask(buffer, "forget", which=which) == 4 - len(left)
    assert keys(buffer, labelled=True) | keys(buffer, labelled=False) == left
    assert len(buffer) == len(left & {"one", "secret"})


def content(folder: Path) -> bytes:
    """All bytes of the state file and its WAL."""
    return b"".join(file.read_bytes() for file in folder.glob(f"{STATE}*"))


@pytest.mark.parametrize("size", [6, 5000])
def test_what_was_deleted_is_in_no_file(state, classes, tmp_path, size, new_buffer) -> None:
    """Small samples leave copies in pages that were split, large ones in pages that are free."""
    x = classes.batch_inputs[0]
    wide = (replace(x, shape=(8, size)), classes.batch_inputs[1])
    buffer = new_buffer(replace(classes, batch_inputs=wide), 1000)
    secret = np.resize(SECRET, size)
    state.rows("PRAGMA secure_delete = OFF")  # which leaves more, and sooner
    for n in range(200):
        other = np.full(size, n, np.float32)
        arrived = Sample(f"key-of-{n}", {x.name: secret if n % 2 else other})
        buffer.add([arrived, label(arrived.key, n % 3)] if n % 5 else [arrived])
    buffer.label(label("key-of-7", 0))
    assert SECRET.tobytes() in content(tmp_path)
    rows = [row for group in buffer.groups().values() for row in group]
    rows = [row for row in rows if int(buffer.key(row)[7:]) % 2]
    assert buffer.forget(rows) == 100
    assert SECRET.tobytes() not in content(tmp_path)
    assert b"key-of-77" not in content(tmp_path)
    assert len(buffer) + buffer.waiting == 100
    state.close()
    state.open()  # which compares all checksums
