"""Data and models of the arms, made in the experiment's folder by a process with torch."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from experiments.m3.settings import BATCH, NODES, TOKENS, Arm, Experiment
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
    """Return the data and the model of an arm, which arms of one space share; WorkerError."""
    data, space = experiment.folder / "data", arm.space
    made = Prepared(experiment.folder / "models" / space.space, data)
    options = ["--encoder", experiment.encoder, "--tokens", str(TOKENS)]
    if not data.is_dir():
        for index, name in enumerate(NODES):
            rows = (str(index * NODE_PAIRS), str((index + 1) * NODE_PAIRS))
            options += ["--pairs", str(made.samples(name)), *rows, str(experiment.data / TRAIN)]
        tests = [str(experiment.data / name) for name in TESTS]
        options += ["--pairs", str(made.samples(TEST)), "0", "0", *tests]
    if not made.model.is_dir():
        show("exporting the model")
        options += ["--out", str(made.model), "--batch", str(BATCH), "--space", space.space]
        options += ["--rank", str(space.rank), "--alpha", str(space.alpha)]
        options += ["--length", str(space.length)]
        command = python("experiments.text.export", *options)
        with running(Worker("the export", made.model.parent, command, may_end=True)) as worker:
            worker.wait()
    return made
