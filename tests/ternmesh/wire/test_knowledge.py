"""A knowledge packet: each part is complete in itself, and whatever arrives is read or refused."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh.codec.soft_labels import quantise
from ternmesh.errors import CodecError, WireError
from ternmesh.wire.knowledge import (
    HEAD_SIZE,
    KIND,
    PROBE_MAX,
    PROTOTYPES,
    Part,
    Topic,
    cut_hypervectors,
    cut_labels,
    hypervectors_in,
    labels_in,
    order,
    read_part,
    topic_of,
    write_part,
)

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "knowledge.json").read_text())
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


@pytest.mark.parametrize("classes", [False, True])
def test_hypervectors_travel_too(classes: bool) -> None:
    rows = np.random.default_rng(0).choice([0, 0, 1, -1], (40, 64)).astype(np.int8)
    parts = cut_hypervectors(TOPIC, 1, 0, rows, 150, classes=classes)
    place = np.arange(40) if classes else order(TOPIC, 1, 40)
    read = np.zeros_like(rows)
    for part in map(read_part, map(write_part, parts)):
        assert (part.section == PROTOTYPES) == classes
        read[place[part.start : part.start + part.count]] = hypervectors_in(part)
    assert (read == rows).all()


def test_the_topic_names_the_probe_set_and_the_classes() -> None:
    probe = {"x": np.arange(6, dtype=np.float32)}
    topic = topic_of(probe, ["a", "b"])
    assert topic == topic_of({"y": np.arange(6, dtype=">f4")}, ["a", "b"])
    assert topic.probe != topic_of({"x": np.arange(7, dtype=np.float32)}, ["a", "b"]).probe
    assert topic.labels != topic_of(probe, ["b", "a"]).labels


@given(st.binary(max_size=60), st.integers(1, 12))
def test_any_bytes_are_a_part_or_refused(rest: bytes, classes: int) -> None:
    try:
        part = read_part(bytes([KIND]) + rest)
    except WireError:
        return
    assert write_part(part) == bytes([KIND]) + rest
    for read in (lambda: labels_in(part, classes), lambda: hypervectors_in(part)):
        try:
            read()
        except WireError:
            continue


def test_rows_end_with_the_largest_probe_set() -> None:
    last = Part(1, TOPIC, 0, 0, PROBE_MAX - 2, 2, b"x")
    assert read_part(write_part(last)) == last
    with pytest.raises(WireError, match="range"):
        read_part(write_part(replace(last, count=3)))


def test_what_does_not_fit_is_not_cut() -> None:
    with pytest.raises(CodecError):
        cut_labels(TOPIC, 1, 0, soft_labels(), HEAD_SIZE)
    with pytest.raises(CodecError):
        cut_hypervectors(TOPIC, 1, 0, np.ones((2, 4000), np.int8), 100)
    with pytest.raises(CodecError):
        cut_labels(TOPIC, 1, 0, soft_labels()[:0], 100)


@pytest.mark.parametrize("name", VECTORS)
def test_golden_parts(name: str) -> None:
    vector = VECTORS[name]
    part = read_part(bytes.fromhex(vector["bytes"]))
    assert write_part(part).hex() == vector["bytes"]
    expected = np.array(vector["rows"])
    found = labels_in(part, expected.shape[1]) if part.section == 0 else hypervectors_in(part)
    place = order(part.topic, part.number, len(expected))
    places = range(part.start, part.start + part.count)
    where = list(places) if part.section == PROTOTYPES else place[list(places)]
    assert (found == expected[where]).all()


def test_a_part_says_nothing_before_it_is_decoded() -> None:
    part = Part(1, TOPIC, 255, 0, 0, 3, b"\x00")
    with pytest.raises(WireError):
        labels_in(read_part(write_part(part)), 4)
