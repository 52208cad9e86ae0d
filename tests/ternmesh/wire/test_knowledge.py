"""A knowledge packet: each part is complete in itself, and whatever arrives is read or refused."""

import numpy as np
import pytest

from ternmesh.codec.soft_labels import quantise
from ternmesh.errors import CodecError, WireError
from ternmesh.wire.knowledge import (
    HEAD_SIZE,
    Part,
    Topic,
    cut_labels,
    labels_in,
    order,
    read_part,
    topic_of,
    write_part,
)

TOPIC = Topic(1, 2)
CLASSES, ROWS = 10, 300


def soft_labels() -> np.ndarray:
    return quantise(np.random.default_rng(0).dirichlet([0.1] * CLASSES, ROWS))


def test_every_part_gives_its_rows_without_the_others() -> None:
    units = soft_labels()
    parts = cut_labels(TOPIC, 7, 200, units, 100)
    assert len(parts) > 3
    place = order(TOPIC, 7, ROWS)
    for body in map(write_part, parts):
        assert len(body) <= 100
        part = read_part(body)
        where = place[part.start : part.start + part.count]
        assert (labels_in(part, CLASSES) == units[where]).all()
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


def test_what_does_not_fit_is_not_cut() -> None:
    with pytest.raises(CodecError):
        cut_labels(TOPIC, 1, 0, soft_labels(), HEAD_SIZE)
    with pytest.raises(CodecError):
        cut_labels(TOPIC, 1, 0, soft_labels()[:0], 100)


def test_a_part_says_nothing_before_it_is_decoded() -> None:
    part = Part(1, TOPIC, 255, 0, 3, b"\x00")
    with pytest.raises(WireError):
        labels_in(read_part(write_part(part)), 4)
