"""`ternmesh export`: what a fleet has learned, as files for other programs."""

import argparse
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from ternmesh.config import ConfigError
from ternmesh.security.identity import Role
from ternmesh_cli import keys
from ternmesh_cli.process import add_config, path
from ternmesh_cli.programs import read_program
from ternmesh_service.control_socket import BACKUP, ControlError
from ternmesh_store.database import StoreError
from ternmesh_store.host_store import HostStore
from ternmesh_store.state_file import StateFile

if TYPE_CHECKING:
    from edge.onnx.session import LoadedModel
    from ternmesh.types import Vector


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    add_config(parser, "of the host or of a board, which may run")
    what = "for a model package, an .onnx_adapter file and an .onnx file; made if it is missing"
    parser.add_argument("--out", type=path, required=True, metavar="DIR", help=what)
    what = "on a board: the adapter that is best on its held-out samples, instead of the newest"
    parser.add_argument("--best", action="store_true", help=what)


def run(arguments: argparse.Namespace) -> int:
    """Write the global adapter in three forms, and print where."""
    from edge.export import export_learned, learned_on

    end = keys.read(arguments.config)
    if end.role is Role.GATEWAY:
        raise ConfigError(f"{arguments.config} is of a gateway, which learns nothing")
    if end.role is Role.NODE:
        found = learned_on(read_program("node", arguments.config), best=arguments.best)
    elif arguments.best:
        raise ConfigError("--best is for a board with held-out samples: the host has none")
    else:
        found = _learned_on_host(arguments.config, end)
    for written in export_learned(arguments.out, *found):
        print(f"{written} holds the adapter of global update {found[2]}")
    return 0


def _learned_on_host(config: Path, end: keys.End) -> "tuple[LoadedModel, Vector, int]":
    from edge.onnx.session import load_model
    from ternmesh.codec.scale import to_float
    from ternmesh_service.config_file import package_folder

    loaded = load_model(package_folder(read_program("host", config).model))
    # The copy has the private key, too: it stays in the host's own folder.
    with tempfile.TemporaryDirectory(prefix="export-", dir=end.folder) as folder:
        answer = end.ask({BACKUP: folder})
        if answer is not None and BACKUP not in answer:
            raise ControlError(f"the host makes no copy of its state: {answer.get('error')}")
        with closing(StateFile(end.folder if answer is None else Path(folder))) as file:
            if not file.path.exists():
                raise StoreError(f"{file.path} is not there: the host has not run yet")
            file.open()
            stored = HostStore(file).load(loaded.package.model_hash())
    if stored is None:
        raise StoreError("the host's state has no run of this model: start the host with it once")
    vector = loaded.initial + to_float(stored.state.model_q24)
    return loaded, vector, stored.state.version
