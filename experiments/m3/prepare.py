"""Data and models of the arms, made once in the experiment's folder by a process with torch."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from experiments.m3.settings import BATCH, NODES, TOKENS, Arm, Experiment, Space
from ternmesh_cli.workers import Worker, python, running

TRAIN = "snli_train_5k.tsv.gz"
TESTS = ("snli_dev_2k.tsv.gz", "snli_extra.tsv.gz")
TEST = "test"  # the name of the test pairs beside the names of the nodes
NODE_PAIRS = 2500  # training pairs of each node


@dataclass(frozen=True, slots=True)
class Prepared:
    """The model package and the samples of an arm."""

    model: Path
    data: Path

    def samples(self, name: str) -> Path:
        """Return the .npz file of a node, or of TEST."""
        return self.data / f"{name}.npz"


def prepare(experiment: Experiment, arm: Arm, show: Callable[[str], None]) -> Prepared:
    """Return the data and the model of an arm, and make what is missing; WorkerError."""
    data = experiment.folder / "data"
    model = experiment.folder / "models" / _model_name(arm.space)
    missing = [folder for folder in (data, model) if not folder.is_dir()]
    if missing:
        show("reading the pairs" if model.is_dir() else "exporting the model")
        unfinished = {folder: _empty_folder(folder) for folder in missing}
        options = ["--encoder", experiment.encoder, "--tokens", str(TOKENS)]
        if data in unfinished:
            options += _pairs_options(experiment.data, unfinished[data])
        if model in unfinished:
            options += ["--out", str(unfinished[model]), *_model_options(arm.space)]
        command = python("experiments.text.export", *options)
        worker = Worker("the export", experiment.folder / "export", command, may_end=True)
        with running(worker):
            worker.wait()
        for folder, made in unfinished.items():
            made.rename(folder)
    return Prepared(model, data)


def _pairs_options(source: Path, out: Path) -> list[str]:
    options = []
    for index, name in enumerate(NODES):
        rows = (str(index * NODE_PAIRS), str((index + 1) * NODE_PAIRS))
        options += ["--pairs", str(out / f"{name}.npz"), *rows, str(source / TRAIN)]
    tests = [str(source / name) for name in TESTS]
    return [*options, "--pairs", str(out / f"{TEST}.npz"), "0", "0", *tests]


def _model_options(space: Space) -> list[str]:
    options = ["--batch", str(BATCH), "--space", space.space, "--rank", str(space.rank)]
    return [*options, "--alpha", str(space.alpha), "--length", str(space.length)]


def _empty_folder(folder: Path) -> Path:
    unfinished = folder.with_name(folder.name + ".new")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    return unfinished


def _model_name(space: Space) -> str:
    text = json.dumps(asdict(space), sort_keys=True)
    return f"{space.space}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
