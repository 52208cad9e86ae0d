"""`ternmesh predict`: what a running board says of samples."""

import argparse
import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ternmesh.config import ConfigError
from ternmesh.model_package import ModelPackage
from ternmesh_cli.process import add_config, add_json
from ternmesh_service.config_file import load_model_package
from ternmesh_service.control_socket import ControlError
from ternmesh_service.status import PredictStatus

if TYPE_CHECKING:
    from edge.data.sources import Arrays, NpzSettings

ANSWER_S = 30.0  # how long to wait for an answer

Answer = Mapping[str, Any]
Named = tuple[str, "Arrays"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    add_config(parser, "the board's configuration: [predict], and how [data] names the arrays")
    what = "then show what the board predicts of its source, until Ctrl-C"
    parser.add_argument("--follow", action="store_true", help=what)
    add_json(parser, "print each answer as one JSON object")
    what = "an .npz with the arrays of the model's inputs, or a clip (.wav), a picture, an .npy"
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help=what)


def run(arguments: argparse.Namespace) -> int:
    """Print a line for each sample; a sample without a prediction has its reason in the line."""
    from edge.config import read_node_config

    if not arguments.files and not arguments.follow:
        raise ConfigError("name files, or give --follow")
    config = read_node_config(arguments.config)
    if not config.predict.enabled:
        raise ConfigError(f"{arguments.config}: write enabled = true under [predict]")
    package = load_model_package(config.model).outside()
    samples = read_samples(arguments.files, package, config.data)
    for answer in _ask(config.predict_path, samples, arguments.follow):
        print(json.dumps(answer) if arguments.json else prediction_text(answer), flush=True)
    return 0


def read_samples(
    files: Sequence[Path], package: ModelPackage, settings: "NpzSettings"
) -> Iterator[Named]:
    """The samples in files: a name, and the model's inputs with a batch axis of 1; DataError."""
    from edge.data.decode import read_sample
    from edge.data.sources import input_specs, open_folder
    from edge.errors import DataError

    specs = input_specs(package)
    only_inputs = replace(package, batch_inputs=specs)
    arrays = {spec.name: settings.arrays.get(spec.name, spec.name) for spec in specs}
    settings = replace(settings, arrays=arrays, where={})
    for path in files:
        if path.suffix == ".npz":
            data = open_folder(path, only_inputs, settings, needs_all=True)
            for at in range(len(data)):
                yield f"{path.name}:{at}", data.batch(np.array([at]))
            continue
        try:
            found = read_sample(path, package)
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error.strerror})") from error
        yield path.name, {name: array[None] for name, array in found.items()}


def _ask(path: Path, samples: Iterator[Named], follow: bool) -> Iterator[Answer]:
    """The answers of the board that serves `path`; ControlError where none comes."""
    from edge.predict.messages import as_request

    try:
        with socket.socket(socket.AF_UNIX) as client, client.makefile("rb") as lines:
            client.settimeout(ANSWER_S)
            client.connect(str(path))
            for name, inputs in samples:
                client.sendall(as_request(name, {key: array[0] for key, array in inputs.items()}))
                yield json.loads(lines.readline())
            if follow:
                client.sendall(b'{"follow": true}\n')
                lines.readline()
                client.settimeout(None)
                while True:
                    yield json.loads(lines.readline())
    except OSError as error:
        raise ControlError(f"no board answers on {path} ({error}): is it running?") from error
    except ValueError as error:
        raise ControlError("the board has closed the connection: ask again") from error


def figures_text(figures: PredictStatus) -> Iterator[str]:
    """What a board's status says of its predictions."""
    took = ""
    if figures.count:
        took = (
            f", in {figures.p50_ms:.3g} ms (p99 {figures.p99_ms:.3g}, longest {figures.max_ms:.3g})"
        )
    yield (
        f"{figures.count} predictions{took}, by global adapter {figures.version}; "
        f"{figures.failed} failed, {figures.refused} refused; {figures.clients} clients"
    )
    for count, what in (
        (figures.clients_dropped, "clients disconnected: they do not read their answers"),
        (figures.live_skipped, "live samples skipped: they come too fast"),
        (figures.bad_adapters, f"bad adapters: {figures.last_error}"),
    ):
        if count:
            yield f"{count} {what}"
    if figures.live is not None:
        yield f"live: {prediction_text(figures.live)}"


def prediction_text(answer: Answer) -> str:
    if "error" in answer:
        return f"{answer['id']}: {answer['error']}"
    if "top" not in answer:
        return f"{answer['id']}: {answer.get('output', answer)}"
    shown = ", ".join(f"{label} {probability:.1%}" for label, probability in answer["top"])
    uncertain = "uncertain: " if answer["uncertain"] else ""
    return f"{answer['id']}: {uncertain}{shown}"
