"""What groups teach each other on their host, and which settings make no groups."""

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from host import groups
from host.config import HostConfig, read_host_config
from host.groups import read_groups, run_groups
from host.knowledge import GroupKnowledge, KnowledgeExchange, Teaching, judge
from ternmesh.config import ConfigError
from ternmesh.federated.knowledge import KnowledgeReceiver
from ternmesh.wire.control import FINISHED, OPEN
from ternmesh.wire.knowledge import Topic
from ternmesh_store.state_file import StateFile
from tests.host.test_service import Bench

TOPIC = Topic(1, 2)
ROWS, CLASSES = 120, 4
TRUTH = np.random.default_rng(0).integers(0, CLASSES, ROWS)


def labels(right: float, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    guess = np.where(rng.random(ROWS) < right, TRUTH, rng.integers(0, CLASSES, ROWS))
    return np.where(np.eye(CLASSES)[guess] > 0, 0.94, 0.02)


def known(
    right: float, *, topic: Topic = TOPIC, quality: float | None = 0.9, trust: float = 1.0
) -> GroupKnowledge:
    return GroupKnowledge(topic, labels(right), quality, trust)


def coordinator(version: int, weight: float = 1.0, **more: Any) -> Any:
    reputations = SimpleNamespace(weight=lambda address: weight if address < 3 else 0.0)
    return SimpleNamespace(
        version=version,
        phase=more.get("phase", OPEN),
        model_q24=np.zeros(5, np.int32),
        boards=[SimpleNamespace(name=str(n), address=n) for n in more.get("boards", (1, 2, 3))],
        combiner=SimpleNamespace(muted={"3"}, aggregation=SimpleNamespace(reputations=reputations)),
        plan=SimpleNamespace(frame_mtu=184, rounds=more.get("rounds", 20)),
    )


def _labels(exchange: KnowledgeExchange) -> Any:
    return exchange.taught("own").labels


class Says:
    """Predictions that do not depend on the adapter."""

    def __init__(self, right: float, topic: Topic = TOPIC) -> None:
        self.topic, self.found = topic, labels(right, seed=int(100 * right))

    def __call__(self, adapter: np.ndarray, beat: Callable[[], None]) -> np.ndarray:
        return self.found


def test_a_group_gets_what_the_other_knows_every_few_rounds() -> None:
    exchange = KnowledgeExchange()
    teacher, student = (
        Teaching(name, exchange, Says(right), 2) for name, right in (("good", 0.98), ("poor", 0.6))
    )
    teacher.quality, student.quality = 0.98, 0.6
    assert teacher.turn(coordinator(0)) == []  # nothing is learned yet
    assert teacher.turn(coordinator(2)) == []  # nobody else has said anything
    assert student.turn(coordinator(1)) == []
    bodies = student.turn(coordinator(2))
    assert student.turn(coordinator(2)) == []
    receiver = KnowledgeReceiver(TOPIC, ROWS, CLASSES)
    for body in bodies:
        assert len(body) <= 184 - 14 - 65
        receiver.take(body)
    assert (receiver.labels == TRUTH).mean() > 0.95
    assert receiver.quality == pytest.approx(0.98, abs=0.01)
    assert teacher.turn(coordinator(4)) == []  # the other is worse, by far
    assert "worse" in teacher.remarks["poor"]
    assert teacher.status().less == dict(teacher.remarks)


def test_what_was_sent_before_a_restart_is_not_sent_again() -> None:
    exchange = KnowledgeExchange()
    exchange.publish("other", known(0.9))
    again = Teaching("own", exchange, Says(0.7), 2)
    again.version = 4
    assert again.turn(coordinator(4)) == []
    assert exchange.taught("other").labels is not None  # a group that is over teaches too
    assert again.turn(coordinator(6)) != []


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"return_value": np.full((ROWS, CLASSES), np.nan)}, "NaN"),
        ({"side_effect": MemoryError("too little")}, "too little"),
    ],
)
def test_a_model_that_fails_teaches_nothing_and_ends_nothing(answer: Any, why: str) -> None:
    broken = Teaching("own", KnowledgeExchange(), Mock(topic=TOPIC, **answer), 2)
    assert broken.turn(coordinator(2)) == []
    assert why in broken.remarks["own"]


@pytest.mark.parametrize(
    ("teacher", "why"),
    [
        (known(0.9, topic=Topic(9, 2)), "probe set"),
        (known(0.9, topic=Topic(1, 9)), "classes"),
        (known(0.5, quality=0.5), "worse"),
        (GroupKnowledge(TOPIC, np.roll(labels(0.9), 1, axis=1), 0.99, 1.0), "contradict"),
    ],
)
def test_a_wrong_teacher_counts_nothing_and_is_named(teacher: GroupKnowledge, why: str) -> None:
    judged = judge(teacher, known(0.85))
    assert judged.weights.max() == 0
    assert why in judged.reason


def test_a_group_of_low_reputation_weighs_little() -> None:
    exchange = KnowledgeExchange()
    exchange.publish("own", known(0.7))
    exchange.publish("low", GroupKnowledge(TOPIC, labels(0.8, 7), 0.9, 0.0))
    exchange.publish("high", known(0.99))
    assert (_labels(exchange) == labels(0.99).argmax(axis=1)).all()
    exchange.publish("high", known(0.99, trust=0.25))
    assert (_labels(exchange) == labels(0.7).argmax(axis=1)).all()
    exchange.publish("high", known(0.99, trust=0.0))
    assert exchange.taught("own").labels is None


def test_only_boards_that_train_make_a_group_trusted() -> None:
    exchange = KnowledgeExchange()
    exchange.publish("other", known(0.7))
    for weight, said in ((0.4, labels(0.7)), (0.6, labels(0.99, 99))):
        Teaching("own", exchange, Says(0.99), 2).turn(coordinator(2, weight=weight))
        assert (exchange.taught("other").labels == said.argmax(axis=1)).all()


def test_a_group_that_is_ahead_waits() -> None:
    exchange = KnowledgeExchange()
    fast, slow = (Teaching(name, exchange, Says(0.9), 2) for name in ("fast", "slow"))
    assert not slow.is_ahead(coordinator(1))
    assert not fast.is_ahead(coordinator(2))
    assert fast.is_ahead(coordinator(3))
    assert not slow.is_ahead(coordinator(20, phase=FINISHED))  # nobody waits for it any more
    assert not fast.is_ahead(coordinator(9))
    assert not Teaching("new", exchange, Says(0.9), 2).is_ahead(coordinator(40))
    assert not slow.is_ahead(coordinator(1))
    assert fast.is_ahead(coordinator(3))
    assert not slow.is_ahead(coordinator(1, boards=()))
    assert not fast.is_ahead(coordinator(3))
    endless = Teaching("endless", exchange, Says(0.9), 2)
    assert not endless.is_ahead(coordinator(50, rounds=0))


def write(folder: Path, name: str, **changes: str) -> Path:
    """The settings of a group; `changes` replace lines."""
    lines = {
        "state_dir": f'"{name}"',
        "model": '"keyword"',
        "link": f'{{url = "mqtt://h", fleet = "{name}"}}',
        "knowledge": '{path = "probe.npz"}',
        **changes,
    }
    path = folder / f"{name}.toml"
    path.write_text("".join(f"{key} = {value}\n" for key, value in lines.items() if value))
    return path


@pytest.fixture
def _named_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Model packages that have nothing but a name."""
    monkeypatch.setattr(groups, "load_model_package", lambda model: SimpleNamespace(name=model))
    monkeypatch.setattr("host.config.load_model_package", lambda _m: SimpleNamespace(dimension=99))
    monkeypatch.setattr(groups, "package_folder", Path)


@pytest.fixture
def two_groups(tmp_path: Path, _named_models: None) -> HostConfig:
    """The settings of a group "keyword" and of a group "other"."""
    write(tmp_path, "b", model='"other"')
    return read_host_config(write(tmp_path, "a", run='{groups = ["b.toml"]}'))


@pytest.mark.usefixtures("_named_models")
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"state_dir": '"a"', "model": '"other"'}, "state_dir"),
        ({"link": '{url = "mqtt://h", fleet = "a"}', "model": '"other"'}, "link"),
        ({"knowledge": "", "model": '"other"'}, "knowledge"),
        ({"run": '{groups = ["b.toml"]}', "model": '"other"'}, "groups itself"),
        ({"run": '{groups = ["b.toml"]}', "knowledge": ""}, "probe set"),
        ({}, "the model keyword"),
    ],
)
def test_groups_that_do_not_fit_are_refused(tmp_path, changes: dict[str, str], why: str) -> None:
    path = write(tmp_path, "a", run='{groups = ["b.toml"]}')
    write(tmp_path, "b", **changes)
    with pytest.raises(ConfigError, match=why):
        read_groups(read_host_config(path))


def test_the_error_of_one_group_ends_all(two_groups: HostConfig, monkeypatch: Any) -> None:
    ended = []

    def host(config: Any, stop: threading.Event, **_options: Any) -> None:
        if Path(config.model).name == "other":
            raise ConfigError("it cannot go on")
        ended.append(stop.wait(10.0))

    monkeypatch.setattr(groups, "run_host", host)
    with pytest.raises(ConfigError, match="it cannot go on"):
        run_groups(two_groups, threading.Event(), lambda *_: Says(0.9))
    assert ended == [True]


def test_a_released_model_that_does_not_fit_ends_no_group(
    two_groups: HostConfig, monkeypatch: Any
) -> None:
    made = []

    def host(config: Any, stop: threading.Event, *, make_teaching: Any, **_options: Any) -> None:
        made.append(make_teaching(Path(config.model)))
        made.append(make_teaching(Path("released")))

    def open_predictions(model: Path, _config: Any) -> Says:
        if model.name == "released":
            raise ConfigError("its classes are others")
        return Says(0.9)

    monkeypatch.setattr(groups, "run_host", host)
    run_groups(two_groups, threading.Event(), open_predictions)
    assert [one is None for one in made].count(True) == 2


@pytest.mark.parametrize(
    ("topic", "why"), [(Topic(9, 2), "other probe set"), (Topic(1, 9), "other classes")]
)
def test_groups_have_one_probe_set_and_the_same_classes(
    two_groups: HostConfig, topic: Topic, why: str
) -> None:
    found = {"keyword": TOPIC, "other": topic}
    with pytest.raises(ConfigError, match=why):
        run_groups(two_groups, threading.Event(), lambda model, _: Says(0.9, found[model.name]))


def test_a_held_round_closes_at_its_deadline_or_when_it_is_released(tmp_path: Path) -> None:
    bench = Bench(StateFile(tmp_path))
    host = bench.service.protocol
    assert [*host.boards] == []
    host.hold(True, bench.now)
    bench.meet("ada", "bob")
    assert [board.name for board in host.boards] == ["ada", "bob"]
    assert host.version == 0
    bench.now += 61
    bench.settle()
    assert host.version == 1
    host.hold(False, bench.now)
    bench.settle()
    assert host.version == 3
    bench.state.close()
