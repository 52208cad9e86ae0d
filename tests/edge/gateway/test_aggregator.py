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
