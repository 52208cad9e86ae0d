from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge.data.buffer import ReplayBuffer
from edge.data.feed import Rehearsal
from edge.data.sources import Label, Sample, sample_bytes
from edge.errors import DataError
from edge.onnx.session import LoadedModel
from tests.edge.data.conftest import NewBuffer


def sample(number: int) -> Sample:
    return Sample(str(number), {"x": np.full(6, number, np.float32)})


def label(number: int) -> Label:
    return Label(str(number), {"t": np.full(3, -number, np.float32)})


@pytest.fixture
def buffer(tiny: LoadedModel, new_buffer: NewBuffer) -> ReplayBuffer:
    return new_buffer(tiny.package)


def numbers(buffer: ReplayBuffer) -> list[int]:
    """The labelled samples, oldest first, each checked against its label."""
    if not len(buffer):
        return []
    batch = buffer.batch(np.arange(len(buffer)))
    assert buffer.batch(np.array([len(buffer) - 1, 0, 0]))["x"].shape == (3, 6)
    np.testing.assert_array_equal(batch["t"][:, 0], -batch["x"][:, 0])
    return batch["x"][:, 0].astype(int).tolist()


def test_what_cannot_be_joined_is_counted(buffer) -> None:
    buffer.add([sample(1), sample(1), label(2), label(1), label(1), sample(1)])
    counters = buffer.counters
    assert (counters.repeated, counters.unmatched, counters.labels) == (2, 2, 1)
    assert numbers(buffer) == [1]


@pytest.mark.parametrize(
    ("item", "sentence"),
    [
        (Sample("a", {}), "a has : it must have x"),
        (Sample("a", {"x": np.zeros(6), "t": np.zeros(3)}), "a has x, t: it must have x"),
        (Sample("a", {"x": np.zeros(5)}), r"x has shape \(5,\), not \(6,\)"),
        (Sample("a", {"x": np.full(6, np.nan)}), "x holds NaN or infinity"),
        (Sample("a", cast(Any, {"x": ["one"] * 6})), "must be float32"),
        (Sample("", {"x": np.zeros(6)}), "a key is a text of 1 to 128 characters"),
        (Sample("k" * 129, {"x": np.zeros(6)}), "a key is a text of 1 to 128 characters"),
        (Sample("\ud800", {"x": np.zeros(6)}), r"of UTF-8, not '\\ud800'"),
        (Label("\udcff", {"t": np.zeros(3)}), r"of UTF-8, not '\\udcff'"),
        (Sample(cast(Any, 7), {"x": np.zeros(6)}), "1 to 128 characters of UTF-8, not 7"),
        (Label("a", {"t": np.full(3, np.inf)}), "t holds NaN or infinity"),
        (Sample("a", cast(Any, {"x": [[0.0], [0.0, 1.0]]})), "inhomogeneous"),
        (Sample("a", cast(Any, None)), "NoneType"),
        ("nonsense", "a source yields Sample and Label"),
    ],
)
def test_items_that_do_not_fit_are_counted_and_left_out(buffer, item, sentence) -> None:
    buffer.add([sample(1), item, label(1)])
    assert numbers(buffer) == [1]
    assert buffer.counters.refused == 1
    with pytest.raises(DataError, match=sentence):
        raise DataError(buffer.last_refusal)


def test_a_label_outside_the_classes_is_left_out(classes, new_buffer) -> None:
    buffer = new_buffer(classes)
    for number, target in enumerate((-1, 3, 2)):
        buffer.add([sample(number), Label(str(number), {"t": np.array(target)})])
    assert (len(buffer), buffer.counters.refused) == (1, 2)
    assert buffer.last_refusal == "1: t holds 3: t of this model is 0 to 2"


def test_the_oldest_make_room(tiny, new_buffer) -> None:
    buffer = new_buffer(tiny.package, 3)
    for number in range(5):
        buffer.add([sample(number), label(number)])
    buffer.add([sample(number) for number in range(10, 15)])
    assert (numbers(buffer), buffer.waiting) == ([2, 3, 4], 3)
    assert (buffer.counters.evicted, buffer.counters.expired) == (2, 2)
    # The label of an old sample: it is labelled and makes room at once, as it is the oldest.
    assert buffer.add([label(11), label(12)]).tolist() == [2]


def test_bytes_are_bounded_too(tiny, state) -> None:
    size = sample_bytes(tiny.package)
    assert size == 4 * 9
    assert ReplayBuffer(state, tiny.package, 100, 2 * size).capacity == 2
    with pytest.raises(DataError, match=r"36 bytes, more than data\.replay_bytes_max"):
        ReplayBuffer(state, tiny.package, 100, size - 1).load()


def test_it_is_all_there_again_but_for_another_model(tiny, new_buffer) -> None:
    buffer = new_buffer(tiny.package)
    buffer.add([sample(n) for n in range(6)] + [label(n) for n in range(4)])
    buffer = new_buffer(tiny.package)
    assert (numbers(buffer), buffer.waiting) == ([0, 1, 2, 3], 2)
    buffer.add([sample(6), sample(0)])
    assert (buffer.waiting, buffer.counters.repeated) == (3, 1)
    buffer = new_buffer(tiny.package, 2)
    assert (numbers(buffer), buffer.waiting) == ([2, 3], 2)
    x, t = tiny.package.batch_inputs
    other = replace(tiny.package, batch_inputs=(replace(x, dtype="float64"), t))
    buffer = new_buffer(other)
    assert (len(buffer), buffer.waiting) == (0, 0)


CAPACITY = 4


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=8), max_size=8))
def test_it_behaves_as_a_list_would(tiny, new_buffer, batches) -> None:
    buffer = new_buffer(tiny.package, CAPACITY)
    buffer.forget([row for rows in buffer.groups().values() for row in rows])
    waiting: list[int] = []
    labelled: list[int] = []
    arrival: dict[int, int] = {}
    for batch in batches:
        done = []
        for is_label, number in batch:
            if not is_label and number not in waiting + labelled:
                waiting.append(number)
                arrival[number] = max(arrival.values(), default=0) + 1
            elif is_label and number in waiting:
                waiting.remove(number)
                labelled = sorted([*labelled, number], key=arrival.__getitem__)
                done.append(number)
        labelled, waiting = labelled[-CAPACITY:], waiting[-CAPACITY:]
        items = [label(number) if is_label else sample(number) for is_label, number in batch]
        fresh = [labelled[index] for index in buffer.add(items)]
        assert sorted(fresh) == sorted(set(done) & set(labelled))
        assert numbers(buffer) == labelled
        assert buffer.waiting == len(waiting)


class Files:
    """Ninety samples of files: their features are from 1000 on."""

    def __len__(self) -> int:
        return 90

    def batch(self, indexes: Any) -> dict[str, Any]:
        x = np.repeat(1000.0 + indexes[:, None], 6, axis=1).astype(np.float32)
        return {"x": x, "t": -x[:, :3]}

    def set_aside(self, reasons: Mapping[int, str]) -> None:
        assert not reasons


def test_samples_of_files_stay_beside_those_of_a_source(buffer) -> None:
    both = Rehearsal(buffer, Files())
    assert len(both) == 90
    buffer.add([sample(1), sample(2), label(1), label(2)])
    assert len(both) == 30 + 90
    batch = both.batch(np.random.default_rng(0).permutation(len(both)))
    np.testing.assert_array_equal(batch["t"], -batch["x"][:, :3])
    found, counts = np.unique(batch["x"][:, 0], return_counts=True)
    assert found.tolist() == [1, 2, *range(1000, 1090)]
    assert counts.tolist() == [15, 15, *[1] * 90]
    assert both.batch(np.array([31, 119]))["x"][:, 0].tolist() == [1001, 1089]
    assert both.batch(np.array([0, 29]))["x"][:, 0].tolist() == [1, 2]
    for number in range(3, 60):
        buffer.add([sample(number), label(number)])
    assert len(both) == 59 + 90
