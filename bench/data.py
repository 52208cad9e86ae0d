"""Where the real data is: TERNMESH_DATA, or ../shared/data beside the repository."""

import os
from pathlib import Path

DEFAULT = Path(__file__).parents[2] / "shared" / "data"


def data_folder() -> Path:
    """The folder of language data; SystemExit with one sentence where there is none."""
    return _folder(
        "snli",
        "{snli_train_5k,snli_dev_2k,snli_extra,snli_cad_train}.tsv.gz, columns id, label, "
        "premise and hypothesis",
    ).parent


def text_folder() -> Path:
    """The folder of texts; SystemExit with one sentence where there is none."""
    return _folder("text", "*.txt.gz")


def _folder(name: str, files: str) -> Path:
    folder = Path(os.environ.get("TERNMESH_DATA", DEFAULT)) / name
    if not folder.is_dir():
        raise SystemExit(f"{folder} is missing: set TERNMESH_DATA to a folder with {name}/{files}")
    return folder
