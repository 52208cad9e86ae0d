"""A release over the link: to ten boards by emulated radios, and five megabytes by a real broker.

`bench.release_radios` has the radios, where rounds go on meanwhile. With the broker, real processes
are killed, and restart with the new model.
"""

import hashlib
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from bench.processes import CONFIG, RUN, ProcessFleet, kill9, started, wait
from bench.release_radios import COMPARED_S, LOSS, SPEED, VERSION, Maker, Table, radios
from bench.result import Figure, Result
from ternmesh.model_package import FORWARD, read_model_package, write_model_package
from ternmesh.release import DESCRIPTION
from ternmesh.security.identity import Role
from ternmesh_cli.keys import keyring_at
from ternmesh_cli.workers import python
from tests.mosquitto import Mosquitto
from transports.base import HOST

BOARDS, BYTES, BIG = 10, 400_000, 5_000_000
QUICK_BOARDS, QUICK_BYTES, QUICK_BIG = 3, 20_000, 500_000
TABLES = {"releases": {"dir": "releases", "memory_mib": 256, "cpu_s": 5}}
KILLS, KILLS_BROKER = 14, 6  # of boards and the host in turn
NOTES = (
    f"radios: emulated modems (RNode's dialect) on pseudo-terminals, SF7, EU868 at 10 %, {SPEED:g} "
    f"times faster than time, {LOSS:.0%} of all frames lost at each receiver, no collisions; "
    "boards send updates of random vectors, and really try the release",
    "air_ratio: all bytes given to modems for the release (symbols, signed offers, statuses, seals "
    "and addresses) over the bytes of its object, all boards and repeats included",
    f"rounds_delayed: rounds of the first {COMPARED_S:g} s with the same kills and no release, "
    "less those with it",
    "kills: on radios an end is dropped between two turns without a last write, and made anew from "
    "its disk; with the broker they are kill -9 of processes",
)


def padded(maker: Maker, version: int, size: int) -> Path:
    """A signed release of the shipped model with `size` random bytes in it."""
    folder = maker.package(version)
    model = onnx.load(str(folder / FORWARD))
    noise = np.frombuffer(maker.rng.bytes(size), np.uint8)
    model.graph.initializer.append(numpy_helper.from_array(noise, "padding"))
    (folder / FORWARD).write_bytes(model.SerializeToString())
    package = read_model_package((folder / DESCRIPTION).read_bytes())
    digest = hashlib.sha256((folder / FORWARD).read_bytes()).hexdigest()
    package = replace(package, version=version, files={**package.files, FORWARD: digest})
    (folder / DESCRIPTION).write_bytes(write_model_package(package))
    return maker.signed(version, folder)


def broker(size: int, kills: int) -> Table:
    """Host and boards as processes on a real broker, killed while a release of `size` comes."""
    with tempfile.TemporaryDirectory() as name, Mosquitto(Path(name)) as mosquitto:
        folder = Path(name)
        fleet = ProcessFleet(folder, mosquitto.url, {**RUN, "rounds": 100_000}, tables=TABLES)
        with keyring_at(folder / HOST, HOST, Role.HOST) as ring:
            rng = np.random.default_rng(1)
            maker = Maker(folder / "made", ring.own, ring.member_list.fleet, rng)
        release = padded(maker, VERSION, size)
        with started(fleet):
            fleet.wait_version(2)
            begun = time.monotonic()
            config = str(folder / HOST / CONFIG)
            command = python("ternmesh_cli.main", "release", "publish", str(release))
            subprocess.run([*command, "--config", config], check=True)
            workers = [*fleet.boards.values(), fleet.host]
            for number in range(kills):
                time.sleep(1.5)
                victim = workers[number % len(workers)]
                kill9(victim)
                victim.start()
            for board in fleet.boards.values():
                wait(board, lambda now: now["releases"]["last_good"] == VERSION, "the release")
            seconds = time.monotonic() - begun
            after = wait(fleet.host, lambda now: now["version"] >= 2, "rounds with the new model")
            counted = {name for item in after["history"] for name in item["counted"]}
    return {"seconds": seconds, "kills": kills, "boards": len(counted)}


def measure(*, quick: bool) -> Result:
    """Both parts; `quick` has fewer boards and kills, and smaller releases."""
    boards, size = (QUICK_BOARDS, QUICK_BYTES) if quick else (BOARDS, BYTES)
    kills = (2, 1) if quick else (KILLS, KILLS_BROKER)
    with_it = radios(boards, size, kills[0])
    print(with_it, flush=True)
    without = radios(boards, size, 0, with_it)
    print(without, flush=True)
    real = broker(QUICK_BIG if quick else BIG, kills[1])
    print(real, flush=True)
    used = sum(with_it[kind] for kind in ("offers", "symbols", "statuses"))
    figures = {
        "installed": Figure(with_it["installed"], f">={boards}"),
        "air_ratio": Figure(used / with_it["object"], None if quick else "<=1.5"),
        "rounds_delayed": Figure(max(0, without["rounds"] - with_it["rounds"]), "<=1"),
        "hours_on_air": Figure(with_it["seconds"] * SPEED / 3600),
        "broker_boards": Figure(real["boards"], ">=3"),
        "broker_s": Figure(real["seconds"]),
        "kills": Figure(len(with_it["killed_at"]) + real["kills"], None if quick else ">=20"),
    }
    details = {"radios": with_it, "radios without a release": without, "broker": real}
    return Result("release", figures, notes=NOTES, details=details, quick=quick)
