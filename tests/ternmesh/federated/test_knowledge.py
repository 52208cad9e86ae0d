"""What arrives of knowledge packets, and what it is worth: wrong, worse and lying teachers."""

from dataclasses import replace

import numpy as np
import pytest

from ternmesh.errors import WireError
from ternmesh.federated.knowledge import KnowledgeReceiver, vote, weigh
from ternmesh.wire.knowledge import Topic, cut_labels, read_part, write_part

TOPIC = Topic(11, 12)
ROWS, CLASSES = 200, 5
TRUTH = np.random.default_rng(0).integers(0, CLASSES, ROWS)


def labels(right: float, seed: int = 1, sure: float = 0.9) -> np.ndarray:
    """Probabilities of a model that is right for this share of the samples."""
    rng = np.random.default_rng(seed)
    wrong = rng.random(ROWS) >= right
    guess = np.where(wrong, (TRUTH + rng.integers(1, CLASSES, ROWS)) % CLASSES, TRUTH)
    return np.where(np.eye(CLASSES)[guess] > 0, sure, (1 - sure) / (CLASSES - 1))


def best(right: float, seed: int = 1) -> np.ndarray:
    """The labels of such a model."""
    return labels(right, seed).argmax(axis=1)


def packet(number: int, said: np.ndarray, quality: int = 200) -> list[bytes]:
    return [write_part(part) for part in cut_labels(TOPIC, number, quality, said, CLASSES, 45)]


def receiver() -> KnowledgeReceiver:
    return KnowledgeReceiver(TOPIC, ROWS, CLASSES)


def test_any_part_teaches_its_samples() -> None:
    said = best(1.0)
    bodies, made = packet(1, said), receiver()
    assert len(bodies) > 3
    assert made.take(bodies[1])
    assert 0 < made.labelled < ROWS
    for body in bodies:
        made.take(body)
    assert (made.labels == said).all()
    assert made.quality == pytest.approx(200 / 255)
    assert not made.take(bodies[0])


def test_an_older_packet_does_not_replace_a_newer_one() -> None:
    old, new, made = best(0.2), best(1.0), receiver()
    for number, said in ((65_535, old), (0, new), (65_535, old)):  # the number wraps around
        for body in packet(number, said):
            made.take(body)
    assert (made.labels == new).all()
    assert made.number == 65_536


def test_another_run_counts_from_the_beginning() -> None:
    made, said = receiver(), best(1.0)
    for body in packet(40, best(0.2)):
        made.take(body)
    made.begin_run()
    for body in packet(2, said):
        made.take(body)
    assert (made.labels == said).all()


@pytest.mark.parametrize(
    ("topic", "reason"), [(Topic(9, 12), "probe set"), (Topic(11, 9), "label space")]
)
def test_a_packet_about_something_else_is_refused_by_name(topic: Topic, reason: str) -> None:
    made = receiver()
    part = replace(read_part(packet(1, best(1.0))[0]), topic=topic)
    with pytest.raises(WireError) as refused:
        made.take(write_part(part))
    assert refused.value.reason == reason
    assert not made.labelled


def test_more_samples_than_the_probe_set_has_are_refused() -> None:
    small = KnowledgeReceiver(TOPIC, 10, CLASSES)
    with pytest.raises(WireError):
        small.take(packet(1, best(1.0))[-1])
    assert not small.labelled


def test_a_better_teacher_counts_in_full() -> None:
    judged = weigh(best(0.95), labels(0.6, seed=2), 0.95, 0.6)
    assert judged.reason == ""
    assert judged.weights.min() == 1


def test_a_worse_teacher_counts_less_and_then_nothing() -> None:
    own = labels(0.9, seed=2)
    weights = [float(weigh(best(q), own, q, 0.9).weights.mean()) for q in (0.8, 0.7, 0.5)]
    assert weights[0] == 1
    assert 0 < weights[1] < 1
    assert weights[2] == 0
    assert "worse" in weigh(best(0.5), own, 0.5, 0.9).reason


@pytest.mark.parametrize("shift", [1, 2])
def test_a_teacher_that_lies_counts_nothing(shift: int) -> None:
    lie = (best(0.95) + shift) % CLASSES
    judged = weigh(lie, labels(0.7, seed=2), 0.99, 0.7)
    assert judged.weights.max() == 0
    assert "contradict" in judged.reason


def test_a_lie_about_one_class_costs_that_class_alone() -> None:
    said = best(0.95)
    said[said == 1] = 3
    own = labels(0.8, seed=2)
    judged = weigh(said, own, 0.99, 0.8)
    assert judged.weights[own.argmax(axis=1) == 1].max() == 0
    assert "class 1" in judged.reason
    assert judged.weights[TRUTH == 1].mean() < 0.1
    assert judged.weights[TRUTH == 2].mean() > 0.8


def test_a_student_that_knows_too_little_trusts_its_teacher() -> None:
    lie = (best(0.95) + 1) % CLASSES
    assert weigh(lie, labels(0.3, seed=2), 0.99, 0.3).weights.min() == 1
    assert weigh(lie, labels(0.3, seed=2), 0.99, None).weights.min() == 1


def test_two_models_that_know_one_class_only_do_not_contradict() -> None:
    one = np.tile(np.array([0.9, 0.1, 0, 0, 0]), (ROWS, 1))
    assert weigh(one.argmax(axis=1), one, 0.9, 0.9).weights.min() == 1


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([], 2),
        ([0.3, 0.3, 0.3], 1),
        ([0.3, 0.0, 0.0], 2),  # the student has what is missing
        ([0.6, 0.0, 0.0], 0),
        ([2.0, 1.0, 0.0], 0),
        ([1.0, 1.0, 0.0], 0),  # of equal classes the lowest
    ],
)
def test_teachers_vote_by_weight(weights: list[float], expected: int) -> None:
    own, *teachers = (np.eye(3)[[one]] for one in (2, 0, 1, 1))
    said = vote(own, teachers[: len(weights)], [np.array([weight]) for weight in weights])
    assert said.tolist() == [expected]


def test_the_surer_teacher_of_a_sample_counts_more() -> None:
    one, two = np.array([[0.9, 0.1], [0.5, 0.5]]), np.array([[0.4, 0.6], [0.1, 0.9]])
    assert vote(np.full((2, 2), 0.5), [one, two], [np.ones(2), np.ones(2)]).tolist() == [0, 1]
