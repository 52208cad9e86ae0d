"""Real programs: boards behind an aggregator, whose broker is bridged to that of the host."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ternmesh_cli.keys import enrol_fleet
from ternmesh_cli.process import write_toml
from tests.conftest import Eventually
from tests.mosquitto import Mosquitto
from tests.packaging.test_cluster import bridge
from tests.programs import PATIENCE_S, TOP, Process, board_settings, host_settings, running

ROUNDS = 12


def link(broker: Mosquitto, **more: str) -> dict[str, Any]:
    return {"url": broker.url, "fleet": "attic", **more}


@pytest.mark.nightly
def test_a_region_behind_a_bridge_loses_nothing_when_its_aggregator_is_killed(
    tmp_path: Path, eventually: Eventually
) -> None:
    names = ("george", "jackson", "lucas")
    folders = {name: tmp_path / name for name in names}
    for folder in ("host", "shed", "far", "near", *names):
        (tmp_path / folder).mkdir()
    enrol_fleet("attic", tmp_path / "host", folders, {"shed": tmp_path / "shed"})
    with Mosquitto(tmp_path / "far") as far:
        near = Mosquitto(tmp_path / "near", bridge(far))
        with near:
            run = {"rounds": ROUNDS, "min_peers": 2, "deadline_s": 30.0}
            host = Process("host", tmp_path / "host", host_settings(link(far), **run))
            below = link(near, aggregator="shed")
            settings = {
                "": TOP,
                "link": below,
                "upstream": {"url": near.url},
                "run": {"min_peers": 2, "deadline_s": 10.0},
            }
            shed = Process("host", tmp_path / "shed", write_toml(settings))
            links = dict(zip(names, (below, below, link(far)), strict=True))
            boards = [
                Process("node", folders[name], board_settings(name, links[name])) for name in names
            ]

            def reached(process: Process, version: int) -> bool:
                status = process.status()
                return status is not None and status["version"] >= version

            with running(host, shed, *boards):
                eventually(lambda: reached(host, 3), PATIENCE_S)
                shed.kill9()
                shed.start()
                for process in (host, *boards):
                    eventually(partial(reached, process, ROUNDS), PATIENCE_S)
                adapters = {(folders[n] / "current.onnx_adapter").read_bytes() for n in names}
                assert len(adapters) == 1
                assert host.status()["caught"] == {}
                counted = [board["rounds_counted"] for board in shed.status()["nodes"]]
                assert min(counted) >= ROUNDS - 2


@pytest.mark.nightly
def test_boards_go_on_with_another_aggregator_when_theirs_is_killed(tmp_path, eventually) -> None:
    names, regions = ("george", "jackson", "lucas"), ("shed", "barn")
    folders = {name: tmp_path / name for name in (*names, *regions)}
    for folder in ("host", "broker", *folders):
        (tmp_path / folder).mkdir()
    own = {name: folders[name] for name in names}
    enrol_fleet("attic", tmp_path / "host", own, {name: folders[name] for name in regions})
    with Mosquitto(tmp_path / "broker") as broker:
        run = {"rounds": 9999, "min_peers": 1, "deadline_s": 20.0}
        host = Process("host", tmp_path / "host", host_settings(link(broker), **run))
        below = {}
        for name in regions:
            settings = {
                "": TOP,
                "link": link(broker, aggregator=name),
                "upstream": {"url": broker.url},
                "run": {"min_peers": 1, "deadline_s": 5.0},
            }
            below[name] = Process("host", folders[name], write_toml(settings))
        among = {**link(broker), "aggregators": {"shed": "", "barn": broker.url}}
        boards = [Process("node", folders[n], board_settings(n, among)) for n in names]

        def all_learn(there: str, since: int) -> bool:
            found = [board.status() for board in boards]
            return all(
                one is not None and one["belongs_to"] == there and one["version"] >= since
                for one in found
            )

        with running(host, *below.values(), *boards):
            eventually(lambda: all_learn("shed", 3), PATIENCE_S)
            below["shed"].kill9()
            eventually(lambda: all_learn("barn", host.status()["version"]), PATIENCE_S)
            version = host.status()["version"]
            eventually(lambda: all_learn("barn", version + 3), PATIENCE_S)
            nodes = {board["name"]: board["members"] for board in host.status()["nodes"]}
            assert nodes["barn"] == len(names)
            assert boards[0].status()["trips_s"].keys() == {"barn"}
