"""Files that a kill cannot leave half-written."""

import json
from pathlib import Path
from typing import Any

from ternmesh_cli.experiment.errors import ExperimentError
from ternmesh_store.files import replace_file


def write_file(path: Path, content: bytes) -> None:
    """Put `content` in the file at `path`; a reader sees the old or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content)


def write_json(path: Path, content: object) -> None:
    """Put `content` as JSON in the file at `path`; a reader sees the old or the new."""
    write_file(path, json.dumps(content, indent=1, sort_keys=True).encode())


def read_json(path: Path) -> Any:
    """What the JSON file at `path` holds, None where there is none; ExperimentError."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ExperimentError(f"{path} cannot be read ({error}): remove it") from error
