"""The parts of the model, and trainings with it; their helpers are a module beside them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from models.split.export import export_cut
from tests.ternmesh_cli.split.split_training import BATCH, Training, make_cut


@pytest.fixture(scope="session")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exported parts."""
    folder = tmp_path_factory.mktemp("parts")
    export_cut(make_cut(), BATCH, folder)
    return folder


@pytest.fixture
def train(parts: Path, tmp_path: Path) -> Iterator[Callable[..., Training]]:
    made: list[Training] = []

    def start(**plan: int) -> Training:
        made.append(Training(parts, tmp_path, **plan))
        return made[-1]

    yield start
    for training in made:
        for store in training.stores.values():
            store._database.close()
