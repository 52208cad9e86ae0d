"""The page of a fleet in a real browser: how soon it is there, how soon news are, what it costs.

`python -m bench.page FOLDER BOARDS` is the host with its page. Two rounds are real. Then the boards
rest, so that what the process does is what a page costs: a tenth of the boards is heard each
second, and each ten seconds a round is added to the history.
"""

import json
import os
import select
import shutil
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.jobs import environment
from bench.result import Figure, Result, mean_figure
from host.report import HISTORY_CELLS_MAX, HISTORY_MAX
from ternmesh.federated.evaluation import Evaluation, write_values
from ternmesh.federated.events import WorkReady
from ternmesh_service.control_socket import ControlServer, Relay
from ternmesh_service.page.config import PageConfig, served_page
from ternmesh_service.page.server import STATIC
from ternmesh_service.status import to_json
from ternmesh_store.state_file import StateFile
from tests.host.test_service import Bench
from tests.mosquitto import free_port
from tests.statuses import KEYS, MACHINE, UP

ROUND_S, POLL_S = 10.0, 0.1
BOARDS = (50, 500)
LOADS, LOADS_QUICK = 5, 2
WATCH_S, WATCH_S_QUICK = 60.0, 15.0  # while the CPU time is measured
PAGES = 10
NOTES = (
    "boards rest in memory, host and page are the product's in one process; a tenth of the boards "
    "is heard each second, a round with a report of each board comes each ten seconds",
    "first paint: from the begin of navigation until the rows of all boards are painted, in "
    "headless Chromium at 1,400 pixels on the same machine, without a warm cache",
    "update: from the arrival of a message until its painting, the longest of a minute",
    "CPU: of the whole process, in percent of a core, with ten open pages (one browser and nine "
    "readers of the stream), and without any",
    "weight: the files of the page; data: its first message",
)
# When the page has painted a message, by what a browser itself offers
WATCH = """
globalThis.seen = [];
const parse = JSON.parse;
JSON.parse = (text) => {
  const began = performance.now();
  requestAnimationFrame(() => setTimeout(() => {
    const rows = document.querySelectorAll("#rows tr").length;
    seen.push({began, ended: performance.now(), rows});
  }));
  return parse(text);
};
"""


def measure(*, quick: bool) -> Result:
    """Two fleets, one after the other."""
    figures: dict[str, Figure] = {}
    weight = sum(path.stat().st_size for path in STATIC.iterdir()) / 1000
    figures["weight_kb"] = Figure(weight, "<=150")
    loads = LOADS_QUICK if quick else LOADS
    watch_s = WATCH_S_QUICK if quick else WATCH_S
    for boards in BOARDS:
        with hosted(boards) as (port, pid):
            figures |= _with_boards(boards, port, pid, loads, watch_s)
    return Result("page", figures, {}, NOTES, {}, quick)


@contextmanager
def hosted(boards: int) -> Iterator[tuple[int, int]]:
    """A host with its page, in a process: port and process id."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bench.page", folder, str(boards)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=environment(threads=1), cwd=Path(__file__).parents[1],
        )  # fmt: skip
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline()), process.pid
        finally:
            process.kill()
            process.wait()


def _with_boards(boards: int, port: int, pid: int, loads: int, watch_s: float) -> dict[str, Figure]:
    url, found = f"http://127.0.0.1:{port}/", {}
    idle = _cpu_percent(pid, watch_s / 3)
    paints, updates = [], []
    for _ in range(loads):
        with browser() as driver:
            driver.get(url)
            paints.append(_painted(driver, boards) / 1000)
    with browser() as driver:
        driver.get(url)
        _painted(driver, boards)
        with readers(url, PAGES - 1) as sizes:
            busy = _cpu_percent(pid, watch_s)
        seen = driver.execute_script("return seen.slice(1)")
        updates = [row["ended"] - row["began"] for row in seen]
    found[f"first_paint_{boards}_s"] = mean_figure(paints, "<=1")
    found[f"update_{boards}_ms"] = Figure(max(updates), "<=100")
    found[f"update_median_{boards}_ms"] = Figure(statistics.median(updates))
    found[f"cpu_{boards}_percent"] = Figure(busy, "<=5")
    found[f"cpu_idle_{boards}_percent"] = Figure(idle)
    found[f"data_{boards}_kb"] = Figure(sizes[0] / 1000)
    print({name: round(figure.value, 3) for name, figure in found.items()}, flush=True)
    return found


@contextmanager
def browser() -> Iterator[Any]:
    """A browser that notes when messages are painted."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "window-size=1400,1000"):
        options.add_argument(f"--{flag}")
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": WATCH})
    yield driver
    driver.quit()


def _painted(driver: Any, boards: int) -> float:
    """Milliseconds from the begin of the navigation until all boards were painted."""
    while True:
        rows = driver.execute_script(
            "return seen.filter((row) => row.rows === arguments[0])", boards
        )
        if rows:
            return float(rows[0]["ended"])
        time.sleep(0.05)


@contextmanager
def readers(url: str, count: int) -> Iterator[list[int]]:
    """So many further readers; the bytes of the first message of each."""
    sizes: list[int] = []
    streams = [urllib.request.urlopen(f"{url}events", timeout=60) for _ in range(count)]

    def read(stream: Any) -> None:
        with suppress(OSError, ValueError, AttributeError):
            for number, line in enumerate(row for row in stream if row.startswith(b"data: ")):
                if number == 0:
                    json.loads(line[6:])
                    sizes.append(len(line))

    threads = [threading.Thread(target=read, args=(stream,), daemon=True) for stream in streams]
    for thread in threads:
        thread.start()
    yield sizes


def _cpu_percent(pid: int, seconds: float) -> float:
    before, began = _cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    return 100 * (_cpu_s(pid) - before) / (time.monotonic() - began)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Fleet(Bench):
    """Boards that report loss and accuracy with each update."""

    def work(self, driver, event) -> None:  # type: ignore[no-untyped-def]
        if isinstance(event, WorkReady):
            driver.endpoint.evaluation = write_values(Evaluation(0.5, 0.8))
            super().work(driver, event)


def main() -> None:
    """Print the port, and run until the standard input ends."""
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    fleet = Fleet(StateFile(folder))
    service = fleet.service
    service.protocol.settings = replace(service.protocol.settings, min_peers=count)
    for number in range(count):
        fleet.join(f"b-{number:04}")
    fleet.settle()
    rounds = min(HISTORY_MAX, HISTORY_CELLS_MAX // count)
    for _ in range(rounds):
        add_round(fleet)
    config, relay = PageConfig(free_port()), Relay()

    def answer(request: dict[str, int]) -> dict[str, object]:
        shown = service.status(request.get("since", 0))
        about = {"fleet": "bench", "model": "keyword", "security": KEYS, "transport": UP}
        return to_json(replace(shown, machine=MACHINE, **about))

    with (
        ControlServer(folder / "control.sock", relay.ask),
        served_page(config, folder / "control.sock", folder),
    ):
        print(config.port, flush=True)
        began, step = fleet.now, 0
        while not select.select([sys.stdin], [], [], POLL_S)[0]:
            relay.serve(answer)
            step += 1
            fleet.now = began + POLL_S * step
            if step % round(1 / POLL_S) == 0:
                for node in list(service.protocol.nodes.values())[step // 10 % 10 :: 10]:
                    node.heard_at = fleet.now
            if step % round(ROUND_S / POLL_S) == 0:
                add_round(fleet)


def add_round(fleet: Fleet) -> None:
    """A round like the last one, a little better."""
    history, host = fleet.service._history, fleet.service.protocol
    last = history[-1]
    better = {
        name: (round(loss * 0.98, 3), round(min(1.0, accuracy + 0.003), 4))
        for name, (loss, accuracy) in last.reports.items()
    }
    host.version = last.version + 1
    history.append(replace(last, version=last.version + 1, reports=better))


if __name__ == "__main__":
    main()
