"""Where the real data is (by --data, TERNMESH_DATA or ../shared/data), and samples in memory."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ternmesh.errors import TernmeshError

DATA_VARIABLE = "TERNMESH_DATA"
BESIDE = Path(__file__).parents[2] / "shared" / "data"
FILES: Final[Mapping[str, str]] = {  # of each folder of data
    "snli": "{snli_train_5k,snli_dev_2k,snli_extra}.tsv.gz (id, label, premise, hypothesis)",
    "text": "*.txt.gz",
    "banking77": "{train,dev}.tsv.gz",
    "sensors": "wisdm_{train,dev}.npz",
}


class DataMissing(TernmeshError):
    """No folder has the data; the message says what to fetch."""


def find_data(*names: str, given: Path | None = None) -> Path:
    """The folder that holds the folders `names` of FILES; DataMissing."""
    for place in [given] if given else [os.environ.get(DATA_VARIABLE), BESIDE]:
        if place and all((Path(place) / name).is_dir() for name in names):
            return Path(place)
    wanted = ", ".join(f"{name}/{FILES[name]}" for name in names)
    raise DataMissing(
        f"no data: put {wanted} into one folder and name it with --data or {DATA_VARIABLE}"
    )


class Clips:
    """Samples in memory, by the names of the model's tensors."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.arrays = arrays

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def batch(self, indexes: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """The arrays of the given samples."""
        return {name: array[indexes] for name, array in self.arrays.items()}

    def set_aside(self, reasons: Mapping[int, str]) -> None:
        """No sample of an experiment is left out."""
        raise DataMissing(f"the model cannot compute sample {next(iter(reasons.items()))}")
