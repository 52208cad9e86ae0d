"""Where the real data is: TERNMESH_DATA, or ../shared/data beside the repository."""

import os
from pathlib import Path

DEFAULT = Path(__file__).parents[2] / "shared" / "data"


def data_folder() -> Path:
    """The data folder; SystemExit with one sentence where there is none."""
    folder = Path(os.environ.get("TERNMESH_DATA", DEFAULT))
    if not (folder / "snli").is_dir():
        raise SystemExit(
            f"{folder} has no folder snli: set TERNMESH_DATA to a folder with snli/"
            "{snli_train_5k,snli_dev_2k,snli_extra,snli_cad_train}.tsv.gz, columns id, label, "
            "premise and hypothesis"
        )
    return folder


def text_folder() -> Path:
    """Its folder of texts; SystemExit with one sentence where there is none."""
    folder = Path(os.environ.get("TERNMESH_DATA", DEFAULT)) / "text"
    if not folder.is_dir():
        raise SystemExit(f"{folder} is missing: set TERNMESH_DATA to a folder with text/*.txt.gz")
    return folder
