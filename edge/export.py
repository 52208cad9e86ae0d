"""What was learned, as files for other programs: a model package, an adapter and a plain model."""

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

from edge.config import NodeConfig
from edge.errors import ModelError
from edge.files import read_file
from edge.onnx.merge import merge_adapter
from edge.onnx.session import DESCRIPTION, LoadedModel, load_model, read_adapter, write_adapter
from edge.releases.store import Releases, accept_unsigned
from ternmesh.model_package import ADAPTER, FORWARD, TRAIN_STEP, write_model_package
from ternmesh.release import FILE_BYTES_MAX
from ternmesh.types import Vector
from ternmesh_service.config_file import package_folder
from ternmesh_store.files import replace_file


def learned_on(config: NodeConfig) -> tuple[LoadedModel, Vector, int]:
    """The model of a board, its newest adapter, and the adapter's version.

    The board may run. ModelError where it has no such adapter yet.
    """
    folder = package_folder(config.model)
    if config.releases.dir is not None:
        releases = Releases(Path(config.releases.dir), accept_unsigned)
        standing = releases.standing()
        release = standing.last_good if standing.on_trial else standing.current
        folder = releases.folder / str(release) if release else folder
    loaded = load_model(folder)
    path = config.adapter_path
    if not path.exists():
        raise ModelError(f"{path} is not there: {config.name} has not run yet")
    return (loaded, *read_adapter(path, loaded.package))


def export_learned(folder: Path, loaded: LoadedModel, vector: Vector, version: int) -> list[Path]:
    """Write the adapter `vector` (float32, D) of `version` into a new folder, in three forms.

    Returns a model package, whose initial adapter it is; an adapter file; and a model that has it
    in its weights. OSError or ModelError where they cannot be written.
    """
    package = loaded.package
    if Path(package.name).name != package.name or package.name[:1] in ("", "."):
        raise ModelError(f"the model is called {package.name!r}, which is no name for a file")
    contents = {
        name: read_file(loaded.folder / name, FILE_BYTES_MAX) for name in (FORWARD, TRAIN_STEP)
    }
    merged = merge_adapter(contents[FORWARD], package.split(vector))
    contents[ADAPTER] = vector.astype("<f4").tobytes()
    digest = hashlib.sha256(contents[ADAPTER]).hexdigest()
    learned = replace(package, files={**package.files, ADAPTER: digest})
    contents[DESCRIPTION] = write_model_package(learned)
    made = [folder / f"{package.name}{suffix}" for suffix in ("", ".onnx_adapter", ".onnx")]
    made[0].mkdir(parents=True)
    try:
        for name, content in contents.items():
            replace_file(made[0] / name, content)
        write_adapter(made[1], package, vector, version)
        replace_file(made[2], merged)
    except BaseException:
        shutil.rmtree(made[0])  # it tells that the export is whole, and is never overwritten
        raise
    return made
