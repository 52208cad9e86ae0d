"""A mixed fleet of three architectures, two boards each, on three voices that are new to all.

Each board has one voice, so each group lacks one. The groups' boards and the host are processes,
over a broker and over emulated radios:

    python -m bench.mixed BEARER SEED ROUNDS FOLDER

runs one such fleet. BEARER is `mqtt`, `alone` (the same without knowledge packets), `radio`
(emulated modems that lose a fifth of the frames), or `whole`: in place of the groups, a fleet for
each architecture with the data of all six boards, in memory.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.jobs import Finished, Job, finish
from bench.result import Figure, Result, mean_figure
from bench.simulated_fleet import accuracy, run_fleet
from edge.onnx.session import load_model
from experiments.data import Clips
from host.config import RunConfig, plan_of
from models.zoo import fsdd_path, package_path
from ternmesh.codec.scale import to_float
from ternmesh_cli.demo.bearer import RADIO_RUN, Radios, on_radio
from ternmesh_cli.keys import enrol_fleet
from ternmesh_cli.process import write_toml
from ternmesh_cli.workers import Worker, python, running
from ternmesh_service.config_file import load_model_package
from ternmesh_store.host_store import HostStore
from ternmesh_store.state_file import StateFile
from transports.mqtt.embedded_broker import EmbeddedBroker

VOICES = ("theo", "nicolas", "yweweler")
ARCHITECTURES = ("keyword", "keyword-cnn", "keyword-mlp")
BOARDS = 2  # of a group: of the voice with its number, and of the next one
OWN, HELD_OUT, PROBE = 100, 24, 130  # clips of a board, for its reports, and of each voice
RUN: Mapping[str, Any] = {
    "local_steps": 20, "learning_rate": 0.005, "learning_rate_drop": 1.0, "min_peers": BOARDS,
    "up_bytes": 1600, "down_bytes": 2650,
}  # fmt: skip
READ: Mapping[str, Any] = {"arrays": {"features": "x"}, "divide_by": 255.0}
READ_LABELLED = {"arrays": {"features": "x", "target": "y"}, "divide_by": 255.0}
SPEED, LOSS = 100.0, 0.2
HOST_FILE = "host.toml"

Samples = dict[str, NDArray[Any]]
SEEDS, ROUNDS = 5, 40
BEARERS = ("mqtt", "radio", "alone", "whole")
NOTES = (
    "six boards with 100 labelled clips each, 390 clips without labels as the probe set, 216 other "
    "clips of the three voices in the test; keys, packets every second round",
    "points_below: accuracy of a fleet of that architecture with the clips of all six boards, in "
    "memory, minus that of the group; the worst of the three groups",
    f"radios are emulated: no hardware, {SPEED:g} times faster, every fifth frame lost",
    "alone: the same three groups without knowledge packets",
)


def measure(*, quick: bool, resume: Path | None = None) -> Result:
    """All bearers and seeds; `quick` takes one seed over a broker."""
    seeds, bearers = (1, ("mqtt", "whole")) if quick else (SEEDS, BEARERS)
    finished = Finished(resume)
    folder = Path(tempfile.mkdtemp(prefix="ternmesh-mixed-"))
    for name in ARCHITECTURES[1:]:
        command = ["-m", "examples.voice.pretrain_keyword", "--architecture", name, "--out"]
        subprocess.run([sys.executable, *command, str(folder / "models" / name)], check=True)
    jobs = [
        Job(f"{bearer} {seed}", ("bench.mixed", bearer, str(seed), str(ROUNDS), str(folder)))
        for seed in range(seeds)
        for bearer in bearers
    ]
    finish(finished, jobs, lambda value: str(value["accuracy"]))
    found = {
        bearer: [finished.values[f"{bearer} {seed}"]["accuracy"] for seed in range(seeds)]
        for bearer in bearers
    }
    return Result("mixed", _figures(found), {}, NOTES, {"accuracy": found}, quick)


def _figures(found: Mapping[str, list[Mapping[str, Any]]]) -> dict[str, Figure]:
    figures = {}
    for bearer in ("mqtt", "radio", "alone"):
        if bearer not in found:
            continue
        below = {name: _points(found["whole"], found[bearer], name) for name in ARCHITECTURES}
        worst = max(below.values(), key=lambda points: float(np.mean(points)))
        limit = None if bearer == "alone" else "<=2"
        figures[f"points_below_{bearer}"] = mean_figure(worst, limit)
        for name in ARCHITECTURES:
            figures[f"points_below_{bearer}_{name}"] = mean_figure(below[name])
    if "radio" in found:
        lost = np.mean([_points(found["mqtt"], found["radio"], n) for n in ARCHITECTURES], axis=0)
        figures["points_lost_by_radio"] = mean_figure(list(lost), "<=1")
    return figures


def _points(
    better: list[Mapping[str, Any]], other: list[Mapping[str, Any]], name: str
) -> list[float]:
    return [100 * (one[name] - two[name]) for one, two in zip(better, other, strict=True)]


def split(seed: int) -> tuple[dict[str, Samples], Samples, Samples]:
    """Clips by board (and `BOARD held-out`), the probe set, and the test clips."""
    rng = np.random.default_rng((seed, 3))
    boards: dict[str, Samples] = {}
    probe, test = [], []
    with np.load(fsdd_path("train"), allow_pickle=False) as data:
        clips = {name: data[name] for name in ("x", "y", "speaker", "speaker_names")}
    for number, voice in enumerate(VOICES):
        rows = np.flatnonzero(clips["speaker_names"][clips["speaker"]] == voice)
        rows = rng.permutation(rows)
        for place in range(BOARDS):
            group = ARCHITECTURES[(number - place) % len(VOICES)]
            size = OWN + HELD_OUT
            own, rows = rows[:size], rows[size:]
            name = f"{group}-{place}"
            boards[name] = {key: clips[key][own[:OWN]] for key in "xy"}
            boards[f"{name} held-out"] = {key: clips[key][own[OWN:]] for key in "xy"}
        probe.append(rows[:PROBE])
        test.append(rows[PROBE:])
    parts = [{key: clips[key][np.concatenate(rows)] for key in "xy"} for rows in (probe, test)]
    with np.load(fsdd_path("dev"), allow_pickle=False) as data:
        new = np.isin(data["speaker_names"][data["speaker"]], VOICES)
        for key in "xy":
            parts[1][key] = np.concatenate([parts[1][key], data[key][new]])
    return boards, parts[0], parts[1]


def to_clips(samples: Samples) -> Clips:
    """The samples as the models take them."""
    features = samples["x"].astype(np.float32) / 255
    return Clips({"features": features, "target": samples["y"].astype(np.int64)})


def model_of(architecture: str, models: Path) -> Path:
    """The folder of the model package of an architecture."""
    return package_path(architecture) if architecture == "keyword" else models / architecture


def whole(seed: int, rounds: int, models: Path) -> dict[str, float]:
    """Each architecture in a fleet of its own, with the data of all six boards."""
    boards, _, test = split(seed)
    data = [to_clips(boards[name]) for name in boards if "held-out" not in name]
    held_out = [to_clips(boards[name]) for name in boards if "held-out" in name]
    found = {}
    for architecture in ARCHITECTURES:
        loaded = load_model(model_of(architecture, models))
        run = RunConfig(rounds=rounds, **{**RUN, "min_peers": len(data)})
        plan = plan_of(run, loaded.package.dimension)
        made = run_fleet(loaded, data, plan, seed, held_out=held_out)
        found[architecture] = accuracy(loaded, made.vector, [to_clips(test)])
    return found


def groups(bearer: str, seed: int, rounds: int, folder: Path, models: Path) -> dict[str, Any]:
    """The mixed fleet: accuracy by group, and the bytes of the knowledge packets."""
    boards, probe, test = split(seed)
    folder.mkdir(parents=True)
    np.savez(folder / "probe.npz", x=probe["x"])
    for name, samples in boards.items():
        np.savez(folder / f"{name}.npz", x=samples["x"], y=samples["y"])
    with ExitStack() as stack:
        configs = []
        links = stack.enter_context(_links(bearer, seed))
        for architecture in ARCHITECTURES:
            names = [f"{architecture}-{place}" for place in range(BOARDS)]
            home = folder / architecture
            enrol_fleet(architecture, home, {name: folder / name for name in names})
            table = stack.enter_context(links(architecture, names))
            configs.append(_write_host(home, architecture, rounds, bearer, models, table("host")))
            for name in names:
                _write_board(folder, name, architecture, seed, bearer, models, table(name))
        options = ["--until-finished"]
        hosts = [
            Worker(config.parent.name, config.parent,
                   python("ternmesh_cli.main", "host", "--config", str(config), *options),
                   may_end=True)
            for config in (configs[:1] if bearer != "alone" else configs)
        ]  # fmt: skip
        for host in hosts:
            stack.enter_context(running(host))
        for name in (name for name in boards if "held-out" not in name):
            home = folder / name
            command = python("ternmesh_cli.main", "node", "--config", str(home / "node.toml"))
            stack.enter_context(running(Worker(name, home, command)))
        for host in hosts:
            host.wait()
    clips = [to_clips(test)]
    return {
        architecture: _judge(folder / architecture, model_of(architecture, models), clips)
        for architecture in ARCHITECTURES
    }


@contextmanager
def _links(bearer: str, seed: int) -> Iterator[Any]:
    if bearer == "radio":
        yield lambda fleet, names: _on_radio(fleet, names, seed)
        return
    with EmbeddedBroker() as broker:
        yield lambda fleet, _: nullcontext(lambda _role: {"url": broker.url, "fleet": fleet})


@contextmanager
def _on_radio(fleet: str, names: Sequence[str], seed: int) -> Iterator[Any]:
    radios = Radios("rnode", LOSS, SPEED, seed)
    with on_radio(radios, names, fleet) as links:
        yield links.table


def _write_host(
    home: Path, architecture: str, rounds: int, bearer: str, models: Path, link: Any
) -> Path:
    run = {**RUN, "rounds": rounds, "deadline_s": 3600.0}
    run |= RADIO_RUN if bearer == "radio" else {"announce_s": 1}
    if bearer != "alone" and architecture == ARCHITECTURES[0]:
        run["groups"] = [str(home.parent / name / HOST_FILE) for name in ARCHITECTURES[1:]]
    knowledge = {**READ, "path": str(home.parent / "probe.npz"), "every_rounds": 2}
    tables = {
        "": {"state_dir": str(home), "model": str(model_of(architecture, models))},
        "link": link,
        "run": run,
        "knowledge": knowledge,
    }
    path = home / HOST_FILE
    path.write_text(write_toml(tables))
    return path


def _write_board(
    folder: Path, name: str, architecture: str, seed: int, bearer: str, models: Path, link: Any
) -> None:
    home = folder / name
    tables: dict[str, Any] = {
        "": {"name": name, "state_dir": str(home), "model": str(model_of(architecture, models))},
        "link": link,
        "data": {**READ_LABELLED, "path": str(folder / f"{name}.npz")},
        "evaluate": {**READ_LABELLED, "path": str(folder / f"{name} held-out.npz")},
        "training": {"seed": seed},
    }
    if bearer != "alone":
        tables["knowledge"] = {**READ, "path": str(folder / "probe.npz")}
    (home / "node.toml").write_text(write_toml(tables))


def _judge(home: Path, model: Path, test: Sequence[Clips]) -> float:
    """The accuracy of the last global adapter that a host holds."""
    loaded, state = load_model(model), StateFile(home)
    state.open()
    try:
        stored = HostStore(state).load(load_model_package(str(model)).model_hash())
    finally:
        state.close()
    assert stored is not None
    return accuracy(loaded, loaded.initial + to_float(stored.state.model_q24), test)


def main() -> None:
    """Run the command in the module's docstring."""
    bearer, seed, rounds, place = sys.argv[1:5]
    folder, began = Path(place), time.monotonic()
    models = folder / "models"
    if bearer == "whole":
        found = whole(int(seed), int(rounds), models)
    else:
        found = groups(bearer, int(seed), int(rounds), folder / f"{bearer}-{seed}", models)
    print(json.dumps({"accuracy": found, "seconds": round(time.monotonic() - began)}))


if __name__ == "__main__":
    main()
