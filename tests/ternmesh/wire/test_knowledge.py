"""A knowledge packet: each part is complete in itself, and whatever arrives is read or refused."""

import numpy as np
import pytest

from ternmesh.errors import CodecError, WireError
from ternmesh.wire.knowledge import (
    CLASSES_MAX,
    HEAD_SIZE,
    Part,
    Topic,
    cut_labels,
    order,
    read_labels,
    read_part,
    topic_of,
    write_part,
)

TOPIC = Topic(1, 2)
ROWS = 300


@pytest.mark.parametrize(
    ("classes", "bits"), [(1, 1), (2, 1), (3, 2), (10, 4), (16, 4), (17, 5), (CLASSES_MAX, 16)]
)
def test_every_part_gives_its_labels_without_the_others(classes: int, bits: int) -> None:
    labels = np.random.default_rng(0).integers(0, classes, ROWS)
    labels[0] = classes - 1
    parts = cut_labels(TOPIC, 7, 200, labels, classes, HEAD_SIZE + 20)
    assert len(parts) == -(-ROWS // (160 // bits))
    place = order(TOPIC, 7, ROWS)
    for body in map(write_part, parts):
        part = read_part(body)
        where = place[part.start : part.start + part.count]
        assert (read_labels(part, classes) == labels[where]).all()
    assert sum(part.count for part in parts) == ROWS


def test_a_part_is_an_even_choice_of_the_probe_set() -> None:
    first = order(TOPIC, 7, ROWS)[:100]
    thirds = np.bincount(first // 100, minlength=3)
    assert thirds.min() > 20
    assert (order(TOPIC, 8, ROWS)[:100] != first).any()


def test_the_topic_names_the_probe_set_and_the_classes() -> None:
    probe = {"x": np.arange(6, dtype=np.float32)}
    topic = topic_of(probe, ["a", "b"])
    assert topic == topic_of({"y": np.arange(6, dtype=">f4")}, ["a", "b"])
    assert topic.probe != topic_of({"x": np.arange(7, dtype=np.float32)}, ["a", "b"]).probe
    assert topic.labels != topic_of(probe, ["b", "a"]).labels


@pytest.mark.parametrize(
    ("rows", "classes", "body_max"),
    [(0, 3, 100), (1 << 16, 3, 100), (9, 0, 100), (9, CLASSES_MAX + 1, 100), (9, 3, HEAD_SIZE)],
)
def test_what_does_not_fit_is_not_cut(rows: int, classes: int, body_max: int) -> None:
    with pytest.raises(CodecError):
        cut_labels(TOPIC, 1, 0, np.zeros(rows, dtype=np.int64), classes, body_max)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x19", id="too short"),
        pytest.param(b"\x19\x00\x00", id="too long"),
        pytest.param(b"\x1b\x00", id="a class out of range"),
        pytest.param(b"\x19\x01", id="bits after the last label"),
    ],
)
def test_labels_that_are_not_written_like_this_are_refused(data: bytes) -> None:
    assert read_labels(Part(1, TOPIC, 255, 0, 5, b"\x19\x00"), 3).tolist() == [0, 1, 2, 1, 0]
    with pytest.raises(WireError) as refused:
        read_labels(Part(1, TOPIC, 255, 0, 5, data), 3)
    assert refused.value.reason == "coding"
