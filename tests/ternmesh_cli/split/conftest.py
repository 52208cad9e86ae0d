"""The parts of the model, and trainings with it; their helpers are a module beside them."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from models.split.cut import HOST, save_middle
from models.split.export import export_cut
from tests.ternmesh_cli.split.split_training import BATCH, Training, make_cut


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """The exported parts, by whether labels stay."""
    stays, sent = (tmp_path_factory.mktemp(name) for name in ("stays", "sent"))
    export_cut(make_cut(labels_stay=True), BATCH, stays)
    shutil.copytree(stays / "first", sent / "first")  # it is the same
    save_middle(make_cut(labels_stay=False).middle, sent / HOST)
    return {True: stays, False: sent}


@pytest.fixture
def train(folders: dict[bool, Path], tmp_path: Path) -> Iterator[Callable[..., Training]]:
    made: list[Training] = []

    def start(*, stay: bool = False, **plan: int) -> Training:
        made.append(Training(folders[stay], tmp_path, stay=stay, **plan))
        return made[-1]

    yield start
    for training in made:
        for store in training.stores.values():
            store._database.close()
