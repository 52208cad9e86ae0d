"""Data and models, made once in the experiment's folder by a process that may load torch."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from ternmesh_cli.experiment.errors import ExperimentError
from ternmesh_cli.experiment.settings import BATCH, NODES, TOKENS, Arm, Experiment, Space
from ternmesh_cli.experiment.workers import guarded
from ternmesh_cli.workers import python, running

FOLDER = "snli"
TRAIN, TESTS = "snli_train_5k.tsv.gz", ("snli_dev_2k.tsv.gz", "snli_extra.tsv.gz")
TEST = "test"
DATA_VARIABLE = "TERNMESH_DATA"
EXPORT = "models.text_export"
ROWS = 2500  # of the training pairs for each node


@dataclass(frozen=True, slots=True)
class Prepared:
    """Where an arm finds its model and the samples."""

    bundle: Path
    data: Path

    def samples(self, name: str) -> Path:
        """The .npz of a node, or of TEST."""
        return self.data / f"{name}.npz"


def find_data(given: Path | None) -> Path:
    """The folder with the SNLI files; ExperimentError that says what to fetch."""
    places = [given] if given else [os.environ.get(DATA_VARIABLE), _beside_the_repository()]
    for place in places:
        for folder in (Path(place) / FOLDER, Path(place)) if place else ():
            if all((folder / name).is_file() for name in (TRAIN, *TESTS)):
                return folder
    raise ExperimentError(
        f"no SNLI data: put {', '.join((TRAIN, *TESTS))} (columns id, label, premise, hypothesis) "
        f"into a folder and name it with --data or {DATA_VARIABLE}"
    )


def fingerprint(data: Path) -> str:
    """A hash of the data files."""
    digest = hashlib.sha256()
    for name in (TRAIN, *TESTS):
        digest.update((data / name).read_bytes())
    return digest.hexdigest()[:16]


def prepare(experiment: Experiment, arm: Arm, tell: Callable[[str], None]) -> Prepared:
    """The data and the model of an arm, made now where they are missing; ExperimentError."""
    data = experiment.folder / "data"
    bundle = experiment.folder / "models" / _name(arm.space)
    missing = [folder for folder in (data, bundle) if not folder.is_dir()]
    if missing:
        tell("reading the pairs" if bundle.is_dir() else "exporting the model")
        made = {folder: _empty(folder) for folder in missing}
        options = _pairs(experiment.data, made[data]) if data in made else []
        options += ["--out", str(made[bundle]), *_options(arm.space)] if bundle in made else []
        _export(experiment, options)  # once for both: torch takes its time to load
        for folder, unfinished in made.items():
            unfinished.rename(folder)
    return Prepared(bundle, data)


def _pairs(source: Path, out: Path) -> list[str]:
    options = []
    for index, name in enumerate(NODES):
        rows = (str(index * ROWS), str((index + 1) * ROWS))
        options += ["--pairs", str(out / f"{name}.npz"), *rows, str(source / TRAIN)]
    tests = [str(source / name) for name in TESTS]
    return [*options, "--pairs", str(out / f"{TEST}.npz"), "0", "0", *tests]


def _options(space: Space) -> list[str]:
    options = ["--batch", str(BATCH), "--space", space.space, "--rank", str(space.rank)]
    options += ["--alpha", str(space.alpha), "--length", str(space.length)]
    return [*options, "--layers", *space.layers]


def _export(experiment: Experiment, options: list[str]) -> None:
    common = ["--encoder", experiment.encoder, "--tokens", str(TOKENS)]
    command = python(EXPORT, *common, *options)
    with running(guarded("the export", experiment.folder / "export", command)) as worker:
        worker.wait()


def _empty(folder: Path) -> Path:
    unfinished = folder.with_name(folder.name + ".new")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    return unfinished


def _name(space: Space) -> str:
    text = json.dumps(asdict(space), sort_keys=True)
    return f"{space.space}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _beside_the_repository() -> str | None:
    folder = Path(__file__).resolve().parents[2].parent / "shared" / "data"
    return str(folder) if folder.is_dir() else None
