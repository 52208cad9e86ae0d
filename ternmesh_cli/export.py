"""`ternmesh export`: what a fleet has learned, as files for other programs."""

import argparse
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from ternmesh.config import ConfigError
from ternmesh_cli import keys
from ternmesh_cli.process import add_config, path
from ternmesh_cli.programs import read_program
from ternmesh_service.config_file import package_folder
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
    form = parser.add_mutually_exclusive_group()
    what = "also write a LoRA as files of Hugging Face PEFT"
    form.add_argument("--peft", action="store_true", help=what)
    what = "instead: a model package that begins with the LoRA in these files of PEFT"
    form.add_argument("--from-peft", type=path, metavar="DIR", help=what)


def run(arguments: argparse.Namespace) -> int:
    """Write the global adapter in three forms or four, and print where."""
    from edge.export import export_learned, learned_on

    end = keys.read(arguments.config)
    if arguments.from_peft is not None:
        return _from_peft(arguments, end)
    if end.program == "gateway":
        raise ConfigError(f"{arguments.config} is of a gateway, which learns nothing")
    if end.program == "node":
        learned = learned_on(read_program("node", arguments.config))
    else:
        learned = learned_on_host(arguments.config, end)
    if arguments.peft:
        from models.peft import write_peft  # before anything is written: it may not be installed
    made = export_learned(arguments.out, *learned)
    if arguments.peft:
        loaded, vector, _ = learned
        made.append(arguments.out / f"{loaded.package.name}-peft")
        write_peft(made[-1], loaded.package, loaded.folder, vector)
    for written in made:
        print(f"{written} holds the adapter of global update {learned[2]}")
    return 0


def _from_peft(arguments: argparse.Namespace, end: keys.End) -> int:
    from edge.export import export_learned
    from edge.onnx.session import load_model
    from models.peft import read_peft

    if end.program == "gateway":
        raise ConfigError("--from-peft needs the settings of a host or board")
    loaded = load_model(package_folder(read_program(end.program, arguments.config).model))
    vector = read_peft(arguments.from_peft, loaded.package, loaded.folder)
    made = export_learned(arguments.out, loaded, vector, 0)[0]
    print(f"{made} begins with it: name it as `model` in the settings of host and boards")
    return 0


def learned_on_host(config: Path, end: keys.End) -> "tuple[LoadedModel, Vector, int]":
    """The model of a host, which may run, the adapter that it has learned, and the version."""
    from edge.onnx.session import load_model
    from ternmesh.codec.scale import to_float

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
