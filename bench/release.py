"""A release over the link: to boards on emulated radios, and five megabytes by a real broker.

All ends are real processes with keys and files, which restart with the new model. Some are killed.
"""

import hashlib
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from bench.processes import CONFIG, MODEL, RUN, ProcessFleet, kill9, started, wait
from bench.radio_fleet import LOSS, Air, emulated, radio_fleet
from bench.result import Figure, Result
from edge.files import entry_of
from models.zoo import package_path
from ternmesh.model_package import ADAPTER, FORWARD, read_model_package, write_model_package
from ternmesh.release import DESCRIPTION, FILES, MANIFEST, SIGNATURES, make_manifest, write_manifest
from ternmesh.security.identity import Identity, Role
from ternmesh.security.signatures import Signers, sign_release
from ternmesh_cli.keys import keyring_at
from ternmesh_cli.workers import Worker, python
from tests.edge import conftest as tiny
from tests.mosquitto import Mosquitto
from transports.base import HOST

VERSION, DATA, PACKED = 2, "data.npz", 0.92  # of an adapter's bytes, once it is compressed
RADIOS = {  # boards, bytes, kills
    Air("rnode", 0, 100.0): (10, 400_000, 14), Air("meshcore", 1, 600.0): (3, 12_000, 3),
    Air("meshtastic", 1, 600.0): (3, 12_000, 3),
}  # fmt: skip
RADIOS_QUICK = {Air("rnode", 0, 100.0): (3, 20_000, 2)}
GATEWAY = (Air("rnode", 0, 100.0), 3, 20_000, 3)  # behind one
BIG, QUICK_BIG, KILLS_BROKER, POLL_S = 5_000_000, 500_000, 6, 0.3
RADIO_BYTES_S = 60.0  # that SF7 carries in a tenth of the time
TABLES = {"releases": {"dir": "releases", "memory_mib": 256, "cpu_s": 5}}
LIMITS = 100.0, 60.0  # the largest loss, and the longest seconds of a step
SETTING = ("pace_s", 7)
NOTES = (
    f"radios: emulated modems on pseudo-terminals, {LOSS:.0%} of all frames lost at each receiver, "
    "no collisions; plain LoRa (RNode) at SF7 with EU868's 10 % of the hour, 100 times faster than "
    "time; MeshCore and Meshtastic over a hop with their cap of 1 %, 600 times",
    "air_ratio: all bytes that modems send (plain LoRa) after boards have joined, the setting, all "
    "repeats and seals included, over those of the object; no rounds meanwhile",
    "installed, settings: boards that run the release, and took the setting of the host, over "
    "plain LoRa, MeshCore, Meshtastic, and plain LoRa behind a gateway of a broker",
    "kills: kill -9 of processes, host and boards in turn",
)
Table = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes releases in `folder`, signed by `own` for the fleet with this digest."""

    folder: Path
    own: Identity
    fleet: bytes
    rng: np.random.Generator

    def package(self, version: int) -> Path:
        """A copy of the shipped model package, to be changed."""
        folder = self.folder / f"package-{version}"
        shutil.copytree(package_path(MODEL), folder)
        return folder

    def signed(self, version: int, package: Path) -> Path:
        """A signed release of a package."""
        loaded = read_model_package((package / DESCRIPTION).read_bytes())
        entries = tuple(entry_of(package / name) for name in FILES)
        release = self.folder / f"release-{version}"
        shutil.copytree(package, release)
        manifest = write_manifest(make_manifest(loaded, version, entries, LIMITS))
        (release / MANIFEST).write_bytes(manifest)
        signature = sign_release(self.own, self.fleet, manifest, Signers((self.own.public,)))
        (release / SIGNATURES).write_bytes(signature)
        return release


def wide(folder: Path, inputs: int, rng: np.random.Generator) -> Path:
    """A linear model with an adapter of about 2 numbers for each input, and its data."""
    outputs, rank = 2, 2
    tiny.INPUTS, tiny.OUTPUTS, tiny.RANK = inputs, outputs, rank
    tiny.SIZE_A, tiny.SIZE_B = inputs * rank, rank * outputs
    tiny.SLOPE = np.zeros((inputs, outputs), np.float32)
    folder.mkdir(parents=True)
    adapter = 0.01 * rng.standard_normal(tiny.SIZE_A + tiny.SIZE_B)
    tiny._write(folder, {ADAPTER: adapter.astype("<f4").tobytes()})
    x, t = rng.standard_normal((32, inputs)), rng.standard_normal((32, outputs))
    np.savez(folder / DATA, x=x.astype(np.float32), t=t.astype(np.float32))
    return folder


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


def radios(air: Air, boards: int, size: int, kills: int, url: str = "") -> Table:
    """A fleet at rest on radios until all have the release and the setting.

    With a broker's `url` the host is there, and its boards behind a gateway.
    """
    names = [f"board-{number}" for number in range(boards)]
    modems, channel = emulated(air, boards)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as name, modems:
        folder, rng = Path(name), np.random.default_rng(0)
        inputs = round(size / PACKED / 8)
        model = wide(folder / "package", inputs, rng)
        data = {"path": str(model / DATA)}
        tables = {"data": data, "evaluate": data, **TABLES}
        own: Table = {"run": {"rounds": 0, "min_peers": boards + 1}}
        own |= {"releases": {"radio_bytes_s": RADIO_BYTES_S * air.speed}} if url else {}
        each = dict.fromkeys(names, tables)
        with radio_fleet(folder, air, modems.paths, str(model), own, each, url) as ends:
            host, nodes = ends[0], ends[-boards:]
            with keyring_at(folder / HOST, HOST, Role.HOST) as ring:
                maker = Maker(folder / "made", ring.own, ring.member_list.fleet, rng)
            release = maker.signed(VERSION, wide(maker.folder / "package", inputs, rng))
            wait(host, lambda now: sum(b["active"] for b in now["nodes"]) == boards, "all boards")
            joining = len(channel.sent)
            _tell(host, "release", "publish", str(release))
            _tell(host, "settings", "all", "=".join(map(str, SETTING)))
            ready: set[str] = set()
            killed = 0
            while len(ready) < boards:
                time.sleep(POLL_S)
                for node in nodes:
                    now = node.status() or {"releases": None}
                    held = now["releases"] and now["releases"]["last_good"] == VERSION
                    if held and now["settings"].get(SETTING[0]) == SETTING[1]:
                        ready.add(node.name)
                shown = (host.status() or {"release": None})["release"]
                held = sum(b["held"] for b in shown["boards"].values()) if shown else 0.0
                if killed < kills and held > boards * (killed + 1) / (kills + 2):
                    victim = ends[killed * 3 % len(ends)]
                    kill9(victim)
                    victim.start()
                    killed += 1
    return {
        "boards": len(ready), "kills": killed, "object": shown["bytes"] if shown else 0,
        "hours": (time.monotonic() - begun) * air.speed / 3600,
        "bytes": sum(row[3] for row in channel.sent[joining:]),
    }  # fmt: skip


def _tell(host: Worker, *words: str) -> None:
    command = python("ternmesh_cli.main", *words, "--config", str(host.folder / CONFIG))
    subprocess.run(command, check=True, capture_output=True)


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
    """All parts; `quick` has fewer boards and kills, and smaller releases."""
    found = {}
    for air, numbers in (RADIOS_QUICK if quick else RADIOS).items():
        found[air.dialect] = radios(air, *numbers)
        print(air.dialect, found[air.dialect], flush=True)
    with tempfile.TemporaryDirectory() as name, Mosquitto(Path(name)) as mosquitto:
        found["gateway"] = radios(*GATEWAY, mosquitto.url)
    real = broker(QUICK_BIG if quick else BIG, 1 if quick else KILLS_BROKER)
    print(real, flush=True)
    boards = GATEWAY[1] + sum(row[0] for row in (RADIOS_QUICK if quick else RADIOS).values())
    plain = found["rnode"]
    kills = sum(row["kills"] for row in (*found.values(), real))
    figures = {
        "installed": Figure(sum(row["boards"] for row in found.values()), f">={boards}"),
        "air_ratio": Figure(plain["bytes"] / plain["object"], None if quick else "<=1.5"),
        "hours_on_air": Figure(plain["hours"]),
        "broker_boards": Figure(real["boards"], ">=3"),
        "broker_s": Figure(real["seconds"]),
        "kills": Figure(kills, None if quick else ">=20"),
    }
    details = {**found, "broker": real}
    return Result("release", figures, notes=NOTES, details=details, quick=quick)
