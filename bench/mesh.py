"""A fleet on a mesh that it shares with others: MeshCore and Meshtastic over one to three hops.

Host and boards are processes with keys, a state on disk and the cap of airtime that is on by
itself; modems, repeaters and the air are emulated. Beside it stands what `ternmesh forecast` says.
"""

import json
import random
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from bench.processes import Table as Tables
from bench.radio_fleet import FREQUENCY_HZ, LOSS, REGION, SETTINGS, Air, emulated, radio_fleet
from bench.result import Figure, Result
from models.zoo import rooms_path
from ternmesh_cli.demo.fleet import BOARDS as VOICES
from ternmesh_cli.demo.fleet import MODEL, ROWS, RUN
from ternmesh_cli.process import write_toml
from ternmesh_cli.workers import Worker, python
from transports.serial_lora.emulator.channel import EmulatedChannel
from transports.serial_lora.emulator.meshtastic import MeshtasticModem
from transports.serial_lora.emulator.modem import Transmit

SHARE, HOUR_S = 0.01, 3600.0
SPEEDS = {1: 300.0, 2: 400.0, 3: 500.0}  # radio seconds in a second, by hops
BOARDS = [f"board-{number}" for number in range(6)]
ROUNDS, REACHED, PATIENCE_S, POLL_S = 20, 0.9, 900.0, 0.5
PARTS = ("heard", "reported")  # of the demo's rows
COUNTED = 2000  # frames
PER_MINUTE = 2  # frames of a sender that repeaters pass on, where they limit it
NOTES = (
    f"six boards, two for each voice of the demo; accuracy is what boards report; {LOSS:.0%} of "
    "all frames are lost at each receiver, with two repeaters at each hop; emulated modems, "
    f"{SPEEDS[1]:g} to {SPEEDS[3]:g} times faster than time; MeshCore at SF8 and 62.5 kHz, "
    "Meshtastic at LongFast",
    "seconds_on_air_90: from the first frame of all until a global adapter is right in 90 % "
    "of held-out clips, in radio time, by dialect and hops",
    "forecast_error: the largest difference between forecast and measurement of these, relative; "
    "the forecast knows hops, and the share of frames that is lost on the whole way (counted with "
    f"{COUNTED} frames before), and neither repeaters nor the order of frames",
    f"cap_breaches: frames with which a modem took more than {SHARE:.0%} of a rolling hour, "
    "repeats counted once a hop; share: the most that one took",
    "faults: repeaters pass on two frames of a sender a minute, and a radio's number changes",
)
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Mesh:
    """One arm. `faults`: repeaters limit, and the radio of a board gets another number."""

    dialect: str
    hops: int
    faults: bool = False

    def __str__(self) -> str:
        return f"{self.dialect}_{self.hops}" + "_faults" * self.faults


def run_mesh(mesh: Mesh, folder: Path) -> Row:
    """Let a fleet learn until its boards are right in nine of ten cases."""
    air = Air(mesh.dialect, mesh.hops, SPEEDS[mesh.hops])
    radios, channel = emulated(air, len(BOARDS), PER_MINUTE if mesh.faults else None)
    boards = {name: _data(folder, name) for name in BOARDS}
    history, give_up_at = list[Row](), time.monotonic() + PATIENCE_S
    with radios, radio_fleet(folder, air, radios.paths, MODEL, _run(), boards) as [host, *nodes]:
        reached: int | None = None
        while reached is None:
            if time.monotonic() > give_up_at:
                raise RuntimeError(f"{mesh}: {len(history)} rounds in {PATIENCE_S:.0f} s")
            time.sleep(POLL_S)
            modem = radios.modems[1]
            if mesh.faults and len(history) == 2 and isinstance(modem, MeshtasticModem):
                modem._node |= 1 << 20
            history = (host.status() or {"history": history})["history"]
            reached = _reached(nodes)
        diverged = sum((node.status() or {"diverged": 0})["diverged"] for node in nodes)
    share, breaches = channel.share(mesh.hops, SHARE)
    counted = Counter((row["version"], name) for row in history for name in row["counted"])
    return {
        "rounds": reached or 0,
        "seconds": channel.sent[-1][0] - channel.sent[0][0],
        "bytes_up": fmean([size for row in history for size in row["bytes_up"].values()]),
        "lost": sum(len(row["missing"]) for row in history),
        "twice": sum(number - 1 for number in counted.values()) + diverged,
        "share": share, "breaches": breaches, "limited": channel.limited,
        "frames": dict(Counter(row[1] for row in channel.sent)),
    }  # fmt: skip


def _reached(boards: Sequence[Worker]) -> int | None:
    """The first global adapter that the boards find right often enough."""
    found = defaultdict[int, float](float)
    for board in boards:
        for row in (board.status() or {"history": ()})["history"]:
            found[row["version"]] += row["metric"] or 0.0
    return min((v for v, right in found.items() if right >= REACHED * len(boards)), default=None)


def _run() -> dict[str, Tables]:
    limits = {"min_peers": len(BOARDS), "deadline_s": HOUR_S, "rounds": ROUNDS}
    return {"run": {**RUN, **limits}}


def _data(folder: Path, name: str) -> dict[str, Tables]:
    """Two boards hear each voice: half of what the demo's room has heard of it, and judge all."""
    number, tables = BOARDS.index(name), dict[str, Tables]()
    (folder / name).mkdir()
    with np.load(rooms_path()) as rows:
        for part, (table, first, step) in enumerate((("data", number % 2, 2), ("evaluate", 0, 1))):
            is_its = (rows["speaker"] == number // 2) & (rows["part"] == part)
            chosen = np.flatnonzero(is_its)[first::step]
            path = folder / name / f"{table}.npz"
            np.savez(path, x=rows["x"][chosen], y=rows["y"][chosen])
            tables[table] = {"path": str(path), **ROWS}
    return tables


def lost_on_the_way(hops: int) -> float:
    """The share of frames that a board does not hear, as an owner counts it before."""
    channel, now_s, heard = EmulatedChannel(random.Random(0), LOSS, hops), 0.0, 0
    for number in range(COUNTED):
        channel.start(0, "air", Transmit(number.to_bytes(2, "big"), 1_000_000), now_s)
        arrives = False
        while (over := channel.finish(now_s := channel.next_end() or 0.0)) is not None:
            channel.repeat(over)
            arrives |= channel.reaches(over.sender, 1) and channel.arrives()
        heard += arrives
    return round(1 - heard / COUNTED, 3)


def forecast(mesh: Mesh, folder: Path) -> Row:
    """What `ternmesh forecast` says before: it knows a board of each voice, hops and loss."""
    radio, paths = SETTINGS[mesh.dialect], []
    for voice in VOICES:
        data, held_out = (
            {"path": str(rooms_path()), **ROWS, "where": {"speaker": voice, "part": part}}
            for part in PARTS
        )
        tables = {"data": data, "evaluate": held_out}
        paths.append(_settings(folder, voice, {"name": voice}, tables))
    options = {
        "boards": len(BOARDS), "region": REGION, "frequency": FREQUENCY_HZ / 1e6,
        "sf": radio.spreading_factor, "bandwidth": f"{radio.bandwidth_khz:g}",
        "coding-rate": radio.coding_rate, "preamble": radio.preamble_symbols,
        "loss": lost_on_the_way(mesh.hops),
        "dialect": mesh.dialect, "hops": mesh.hops,
        "host-config": _settings(folder, "host-of-forecast", {}, _run()),
    }  # fmt: skip
    words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    command = python("ternmesh_cli.main", "forecast", "--json", "--config", *map(str, paths))
    done = subprocess.run([*command, *words], check=True, capture_output=True, text=True)
    told = json.loads(done.stdout)
    first = next(row for row in told["rounds"] if row["accuracy"] >= REACHED)
    return {"rounds": first["number"], "seconds": first["hours"] * HOUR_S, **told["traffic"]}


def _settings(folder: Path, name: str, top: Row, tables: Mapping[str, Tables]) -> Path:
    path = folder / f"{name}.toml"
    top |= {"state_dir": str(folder / name), "model": MODEL}
    path.write_text(write_toml({"": top, "link": {"url": "mqtt://nowhere"}, **tables}))
    return path


def measure(*, quick: bool) -> Result:
    """About 25 minutes; `quick` has one hop of MeshCore, and takes four."""
    arms = [Mesh(dialect, hops) for hops in SPEEDS for dialect in ("meshcore", "meshtastic")]
    arms.append(Mesh("meshtastic", 2, faults=True))
    told: dict[str, Row] = {}
    found: dict[str, Row] = {}
    for mesh in arms[:1] if quick else arms:
        with tempfile.TemporaryDirectory() as name:
            told[str(mesh)] = forecast(mesh, Path(name))
            found[str(mesh)] = run_mesh(mesh, Path(name))
        print(mesh, "forecast", told[str(mesh)], "measured", found[str(mesh)], flush=True)
    errors = {
        arm: told[arm]["seconds"] / row["seconds"] - 1
        for arm, row in found.items()
        if "faults" not in arm
    }
    figures = {
        "cap_breaches": Figure(sum(row["breaches"] for row in found.values()), "<=0"),
        "lost": Figure(sum(row["lost"] for row in found.values()), "<=0"),
        "twice": Figure(sum(row["twice"] for row in found.values()), "<=0"),
        "forecast_error": Figure(max(map(abs, errors.values())), "<=0.25"),
        "seconds_on_air_90": Figure(fmean([found[arm]["seconds"] for arm in errors])),
        "share": Figure(max(row["share"] for row in found.values()), f"<={SHARE}"),
    }
    for arm, row in found.items():
        figures[f"seconds_on_air_90_{arm}"] = Figure(row["seconds"])
        figures[f"rounds_{arm}"] = Figure(row["rounds"])
    details = {"measured": found, "forecast": told, "errors": errors}
    return Result("mesh", figures, {}, NOTES, details, quick)
