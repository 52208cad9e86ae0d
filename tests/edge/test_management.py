"""A board applies what its host sets, at once, and says so; what it reports of itself."""

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from edge.config import RemoteConfig
from edge.node import Node
from edge.report import status, values
from edge.resources import Readings
from ternmesh.federated.management import ACTIVITIES, VALUES, pack, unpack
from tests.edge.fleet import SECOND_RUN, World


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """The root logger's level, which a board may change, as it was."""
    before = logging.getLogger().level
    yield
    logging.getLogger().setLevel(before)


def set_all(world: World, node: Node, **settings: int) -> None:
    """The owner sets these on a board, and they arrive."""
    host = world.host.protocol
    host.session.set_board(node.config.name, settings, world.now)
    board = host.session.management.boards[node.config.name]
    for _ in range(50):
        world.turn()
        if not (board.is_behind or board.must_report):
            return
    raise AssertionError("the settings do not arrive")


def test_a_board_that_is_paused_stops_in_its_round_and_goes_on_in_it(world, monkeypatch) -> None:
    # R6.10-11
    freed: list[float] = []
    monkeypatch.setattr("edge.node.trim_memory", lambda: freed.append(world.now))
    node = world.add("ada")
    world.until(lambda: node.trainer.progress[0] == 2)
    set_all(world, node, pause=1)
    held = node.trainer.progress
    for _ in range(50):
        world.turn()
        world.now += 1.0
    assert (node.trainer.progress, bool(freed)) == (held, True)
    assert status(node).activity == "paused by the host"
    assert status(node).settings == {"pause": 1}
    set_all(world, node)
    world.finish()
    assert status(node).settings == {}


def test_a_paused_board_follows_the_others(world: World) -> None:  # R6.10-5
    ada, bob = world.add("ada"), world.add("bob")
    world.until(lambda: ada.protocol.joined and bob.protocol.joined)
    set_all(world, ada, pause=1)
    world.finish()
    address = ada.protocol.address
    assert world.host.counted[address] < world.host.counted[bob.protocol.address]
    assert world.now < 1060.0, "no round waited for its deadline"


def test_a_board_keeps_its_pace(world: World) -> None:
    node = world.add("ada")
    world.until(lambda: node.trainer.round is not None)
    began = world.now
    rounds: list[float] = []
    set_all(world, node, pace_s=40)
    while not node.protocol.finished and len(rounds) < 3:
        before = node.trainer.round
        world.turn()
        if node.trainer.round not in (None, before):
            rounds.append(world.now)
        if node.wanted is not None:
            assert status(node).activity == "slowed by the host"
        world.now += 1.0
    assert all(b - a >= 40 for a, b in zip([began, *rounds], rounds, strict=False))
    assert len(rounds) == 3


def test_the_log_level_changes_at_once_and_back(world: World, caplog) -> None:
    node = world.add("ada")
    world.until(lambda: node.protocol.joined)
    set_all(world, node, log_level=0)
    assert logging.getLogger().level == logging.DEBUG
    assert "set by the host: log_level=debug" in caplog.text
    assert values(node, 0.0)["log_level"] == 0
    set_all(world, node)
    assert logging.getLogger().level == logging.INFO
    assert "set by the host: nothing" in caplog.text


def test_settings_survive_a_power_cut_and_another_run(world: World) -> None:  # R6.10-7, R6.10-10
    node = world.add("ada")
    world.until(lambda: node.protocol.joined)
    set_all(world, node, pause=1, log_level=3)
    world.cut_power("ada")
    logging.getLogger().setLevel(logging.INFO)
    world.new_host(run=SECOND_RUN)
    again = world.add("ada")
    assert again.management.paused
    assert logging.getLogger().level == logging.ERROR
    world.until(lambda: again.protocol.run == SECOND_RUN)
    assert again.management.number == 1
    assert again.management.settings == {"pause": 1, "log_level": 3}


def test_the_owner_of_a_board_may_keep_settings_from_the_host(world: World, caplog) -> None:
    # R6.10-9
    caplog.set_level(logging.INFO)
    config = replace(world.config("ada"), remote=RemoteConfig(("pace_s",)))
    node = world.add("ada", config)
    world.until(lambda: node.protocol.joined)
    set_all(world, node, pause=1, pace_s=1)
    assert node.management.settings == {"pace_s": 1}
    assert "settings: the host may not set this here" in caplog.text
    world.finish()


def test_a_report_has_what_is_known(world: World) -> None:
    node = world.add("ada")
    early: dict[str, Any] = {**values(node, time.monotonic())}
    assert (early["metric"], early["loss"]) == (None, None)
    assert ACTIVITIES[early["activity"]] == "joining"
    node.throttle.measure = lambda: Readings(51.234)
    world.now += 1.0
    world.finish()
    found: dict[str, Any] = {**values(node, time.monotonic() - 90)}
    assert found["uptime_s"] == pytest.approx(90, abs=60)
    assert found["temperature_c"] == 51.234
    assert ACTIVITIES[found["activity"]] == "finished"
    assert found["version"] == found["rounds_trained"] == node.protocol.version
    metrics = [entry.metric for entry in node.evaluation.history if entry.metric is not None]
    assert found["metric"] == metrics[-1]
    assert found["loss"] > 0
    assert tuple(found) == VALUES
    assert unpack(VALUES, pack(VALUES, found))["temperature_c"] == 51.2
