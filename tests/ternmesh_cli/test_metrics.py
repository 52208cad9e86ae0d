"""A real Prometheus scrapes a real fleet; each query of the Grafana dashboard returns data."""

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from ternmesh_cli.keys import enrol_fleet
from tests.mosquitto import free_port
from tests.programs import Process, board_settings, host_settings, running, speaker

DASHBOARD = Path(__file__).parents[2] / "packaging" / "grafana" / "ternmesh.json"
BOARDS = ("theo", "nicolas")
PROMETHEUS = """
global: {{scrape_interval: 1s}}
scrape_configs:
- job_name: ternmesh-host
  static_configs: [{{targets: ["127.0.0.1:{0}"]}}]
- job_name: ternmesh-node
  static_configs: [{{targets: ["127.0.0.1:{1}", "127.0.0.1:{2}"]}}]
"""


@pytest.fixture
def prometheus(tmp_path):
    if not shutil.which("prometheus"):
        pytest.skip("prometheus is not installed")
    ports = [free_port() for _ in range(4)]
    (tmp_path / "prometheus.yml").write_text(PROMETHEUS.format(*ports))
    with (tmp_path / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [
                "prometheus", f"--config.file={tmp_path}/prometheus.yml",
                f"--storage.tsdb.path={tmp_path}/tsdb",
                f"--web.listen-address=127.0.0.1:{ports[3]}",
            ],
            stdout=log, stderr=log,
        )  # fmt: skip
    yield ports
    process.kill()
    process.wait()


@pytest.mark.nightly
def test_every_panel_has_data(tmp_path, mosquitto, eventually, prometheus) -> None:
    enrol_fleet("ternmesh", tmp_path / "host", {name: tmp_path / name for name in BOARDS})
    link, (port, *ports, asked) = {"url": mosquitto.url}, prometheus
    settings = host_settings(link, rounds=500, min_peers=2, deadline_s=600)
    fleet = [Process("host", tmp_path / "host", f"{settings}[metrics]\nport = {port}\n")]
    for name, own in zip(BOARDS, ports, strict=True):
        judged = {**speaker(name), "samples_max": 8}
        settings = board_settings(name, link, evaluate=judged, metrics={"port": own})
        fleet.append(Process("node", tmp_path / name, settings))
    panels = json.loads(DASHBOARD.read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    with running(*fleet):
        eventually(lambda: all(_found(asked, query) for query in queries), 60.0)


def _found(port: int, query: str) -> list[object]:
    url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    try:
        with urllib.request.urlopen(url) as answer:
            return json.loads(answer.read())["data"]["result"]
    except urllib.error.URLError:  # it is not up yet
        return []
