"""`ternmesh adapt`: a classifier in a plain .onnx file becomes a model package, without torch."""

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ternmesh.codec.entropy_coder import bits_per_trit
from ternmesh.config import ConfigError
from ternmesh.errors import TernmeshError
from ternmesh.plan import LENGTH_PREFIX, PERMILLE, make_plan
from ternmesh.wire.frame import FRAME_OVERHEAD
from ternmesh.wire.update import CHUNK_HEAD_SIZE, MANIFEST_SIZE_MIN
from ternmesh_cli.process import number, path

if TYPE_CHECKING:
    from models.adapt import Classifier
    from ternmesh.model_package import ModelPackage

STEPS = 5  # timed
HIDDEN = 32  # of the layer that is proposed
SAMPLES, ERROR_MAX = 4, 1e-3  # that are compared; relative to the largest number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    parser.add_argument("model", type=path, metavar="MODEL.onnx", help="a classifier")
    what = "where to write the model package; without --head and --lora, nothing is written"
    parser.add_argument("--out", type=path, metavar="FOLDER", help=what)
    what = "freeze what makes this tensor, and train a head on it; `last`: the last layer's input"
    parser.add_argument("--head", metavar="TENSOR", help=what)
    what = "the names of the classes of the head (default: as many as the model has, unnamed)"
    parser.add_argument("--labels", metavar="A,B,C", help=what)
    what = "numbers of a hidden layer in the head (default: none)"
    parser.add_argument("--hidden", type=number(1, 4096), metavar="N", help=what)
    what = "train LoRA in the layers whose node or weight is named so: '*' is all"
    parser.add_argument("--lora", metavar="PATTERN", help=what)
    parser.add_argument("--rank", type=number(1, 256), default=8, help="of LoRA (default: 8)")
    what = "samples of a training step (default: 16)"
    parser.add_argument("--batch", type=number(1, 4096), default=16, help=what)
    parser.add_argument("--name", help="of the model package (default: that of the file)")
    what = "sizes that the file leaves open, the batch first: features=1,3,224,224"
    parser.add_argument("--shape", metavar="NAME=SIZES", type=_shape, action="append", help=what)


def run(arguments: argparse.Namespace) -> int:
    """Write the package, or without a choice print what fits."""
    from models.adapt import read_classifier

    classifier = read_classifier(arguments.model, dict(arguments.shape or ()))
    arguments.name = arguments.name or arguments.model.stem
    if arguments.head is None and arguments.lora is None:
        return _propose(classifier, arguments)
    if arguments.out is None:
        raise ConfigError("--out is missing: name a new folder for the model package")
    if arguments.lora is not None and arguments.hidden:
        raise ConfigError("LoRA keeps the layers: leave out --hidden")
    with tempfile.TemporaryDirectory() as made:
        package = _write(Path(made, "package"), classifier, arguments)
        if arguments.out.exists() and any(arguments.out.iterdir()):
            raise ConfigError(f"{arguments.out} is not empty: name a new folder")
        shutil.copytree(Path(made, "package"), arguments.out, dirs_exist_ok=True)
    bytes_up = _bytes_of_round(package)
    print(
        f"{arguments.out} is a model package that trains {package.dimension:,} numbers, about "
        f"{bytes_up:,} bytes a round: name it as `model` in the settings of host and boards"
    )
    return 0


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, sizes = text.rpartition("=")
    if not name or not all(size.isdecimal() and int(size) for size in sizes.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} must be like features=1,3,224,224")
    return name, tuple(map(int, sizes.split(",")))


def _write(folder: Path, classifier: "Classifier", arguments: argparse.Namespace) -> "ModelPackage":
    """The package in a new folder, after a look at it with a board's own classes."""
    from models.adapt import cut_at_last, front_of, layers_of, write_lora
    from models.tails import write_tail

    labels = [label.strip() for label in (arguments.labels or "").split(",") if label.strip()]
    common: dict[str, Any] = {"name": arguments.name, "labels": labels, "batch": arguments.batch}
    rest, head, is_lora = classifier, None, arguments.lora is not None
    if (tensor := arguments.head) is not None:
        if tensor == "last":
            tensor, head = cut_at_last(classifier)
        common["front"], rest = front_of(classifier, tensor, is_whole=is_lora)
    if is_lora:
        layers = layers_of(rest, arguments.lora)
        package = write_lora(folder, rest, layers, rank=arguments.rank, **common)
    else:
        width, classes = rest.shape[0], len(labels) or rest.classes
        if head is not None and (arguments.hidden or head[0].shape != (width, classes)):
            head = None
        sizes = {"rows": 1, "width": width, "classes": classes, "hidden": arguments.hidden}
        package = write_tail(folder, head=head, **sizes, **common)
    _compare(folder, classifier, begins_as_it=is_lora or head is not None)
    return package


def _compare(folder: Path, classifier: "Classifier", *, begins_as_it: bool) -> None:
    """ModelError unless a board can run the package, and it gives the classifier's logits."""
    from edge.data.front import Front
    from edge.errors import ModelError
    from edge.onnx.session import Inference, load_model
    from models.adapt import logits_of

    try:
        loaded = load_model(folder)
        front, tail = Front(loaded), Inference(folder, loaded.package)
        adapter, [spec] = loaded.package.split(loaded.initial), loaded.package.inputs
        rng = np.random.default_rng(0)
        for _ in range(SAMPLES):
            sample = rng.standard_normal((1, *classifier.shape)).astype(np.float32)
            rows = front.rows({spec.name: sample})
            [logits] = tail.predict({**rows, **adapter}).values()
            if not begins_as_it:
                continue
            wanted = logits_of(classifier, sample)
            error = np.abs(logits - wanted).max() / max(np.abs(wanted).max(), 1e-6)
            if not error <= ERROR_MAX:
                raise ModelError(f"its logits differ from the model's by {error:.1e}, relative")
    except ModelError as error:
        raise ModelError(f"no board can use this package ({error}): try --head TENSOR") from error


def _propose(classifier: "Classifier", arguments: argparse.Namespace) -> int:
    """Print what could be trained, and what it costs."""
    choices: tuple[tuple[str, dict[str, Any]], ...] = (
        ("--head last", {"head": "last"}),
        (f"--head last --hidden {HIDDEN}", {"head": "last", "hidden": HIDDEN}),
        (f"--lora '*' --rank {arguments.rank}", {"lora": "*"}),
    )
    print(f"{'choice':28} {'numbers':>9} {'bytes/round':>11} {'ms/step':>8} {'MiB':>6}")
    for text, chosen in choices:
        options = argparse.Namespace(**{**vars(arguments), **chosen})
        with tempfile.TemporaryDirectory() as made:
            try:
                package = _write(Path(made, "package"), classifier, options)
            except TernmeshError as error:
                print(f"{text:28} {error}")
                continue
            step_ms, mib = _step_cost(Path(made, "package"), package)
        size, bytes_up = package.dimension, _bytes_of_round(package)
        print(f"{text:28} {size:9,} {bytes_up:11,} {step_ms:8.2f} {mib:6.1f}")
    print(
        "bytes/round: up, at the default coding; ms/step and MiB: here, on one thread, batch "
        f"{arguments.batch}; a frozen front runs once a sample, whatever the rounds. Take one: "
        f"ternmesh adapt {arguments.model} --out FOLDER --head last"
    )
    return 0


def _bytes_of_round(package: "ModelPackage") -> int:
    """About what an update takes on the air, at the defaults of a run."""
    plan = make_plan(package.dimension, rounds=1, local_steps=1, learning_rate=0.001)
    frame = LENGTH_PREFIX + FRAME_OVERHEAD
    heads = frame + MANIFEST_SIZE_MIN + plan.up.count * (frame + CHUNK_HEAD_SIZE)
    zeros = plan.up_zeros_permille / PERMILLE
    return heads + round(package.dimension * bits_per_trit(zeros) / 8)


def _step_cost(folder: Path, package: "ModelPackage") -> tuple[float, float]:
    """Milliseconds of a training step, and MiB that it adds to this process at its peak."""
    from edge.onnx.session import TrainStep

    batch = {spec.name: np.ones(spec.shape, spec.dtype) for spec in package.batch_inputs}
    vector = np.zeros(package.dimension, np.float32)
    TrainStep(folder, package).run(vector, batch)  # what a first run takes is no cost of a choice
    step, times = TrainStep(folder, package), []
    Path("/proc/self/clear_refs").write_text("5")  # the peak is now
    before = _memory_mib("VmRSS")
    for _ in range(STEPS):
        begun = time.perf_counter()
        step.run(vector, batch)
        times.append(1000 * (time.perf_counter() - begun))
    return statistics.median(times), _memory_mib("VmHWM") - before


def _memory_mib(what: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1024
