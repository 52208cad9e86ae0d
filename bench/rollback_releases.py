"""Twenty ways in which a release of a model is bad, each on the shipped model; needs onnx."""

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edge.releases import MANIFEST, SIGNATURES, entry_of
from models.zoo import bundle_path
from ternmesh.bundle import FORWARD, TRAIN_STEP, read_bundle, write_bundle
from ternmesh.release import DESCRIPTION, FILES, make_manifest, write_manifest
from ternmesh.trust.identity import ENTROPY_SIZE, Identity, Role, make_identity
from ternmesh.trust.release_signatures import sign_release
from ternmesh.trust.signing import Signers

LOSS_MAX, LATENCY_MAX_S = 100.0, 60.0  # of a release that is good
Limits = tuple[float, float]
LENIENT = (LOSS_MAX, LATENCY_MAX_S)


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes releases in `folder`, signed by `own` for the fleet with this digest."""

    folder: Path
    own: Identity
    fleet: bytes
    rng: np.random.Generator

    def good(self, version: int, limits: Limits = LENIENT) -> Path:
        """The shipped model as a release."""
        return self.signed(version, self.bundle(version), limits)

    def bundle(self, version: int) -> Path:
        """A copy of the shipped bundle, to be changed."""
        folder = self.folder / f"bundle-{version}"
        shutil.copytree(bundle_path("keyword"), folder)
        return folder

    def signed(self, version: int, bundle: Path, limits: Limits = LENIENT) -> Path:
        """A signed release of whatever lies in `bundle`: `ternmesh release make` would refuse."""
        loaded = read_bundle((bundle / DESCRIPTION).read_bytes())
        entries = tuple(entry_of(bundle / name) for name in FILES)
        release = self.folder / f"release-{version}"
        shutil.copytree(bundle, release)
        manifest = write_manifest(make_manifest(loaded, version, entries, limits))
        (release / MANIFEST).write_bytes(manifest)
        self.sign(release, self.own)
        return release

    def sign(self, release: Path, by: Identity) -> None:
        """Put somebody's signature beside the manifest."""
        content = (release / MANIFEST).read_bytes()
        signature = sign_release(by, self.fleet, content, Signers((by.public,)))
        (release / SIGNATURES).write_bytes(signature)


# Which processes die while a release is on trial: none, its child, the node once, the node always.
NOBODY, CHILD, NODE_ONCE, NODE_ALWAYS = "nobody", "child", "node once", "node always"


@dataclass(frozen=True, slots=True)
class Bad:
    """One kind: how it is made, what a node must say of it, and who dies in its trial."""

    make: Callable[[Maker, int], Path]
    words: str
    dies: str = NOBODY


def _file(folder: Path, name: str, content: bytes) -> None:
    """Put another file into a bundle, and its hash into the description."""
    bundle = read_bundle((folder / DESCRIPTION).read_bytes())
    files = {**bundle.files, name: hashlib.sha256(content).hexdigest()}
    (folder / name).write_bytes(content)
    (folder / DESCRIPTION).write_bytes(write_bundle(replace(bundle, files=files)))


def _changed(
    change: Callable[[Any], None], limits: Limits = LENIENT
) -> Callable[[Maker, int], Path]:
    """A release with a train step that is changed, and rightly described and signed."""

    def make(maker: Maker, version: int) -> Path:
        folder = maker.bundle(version)
        model = onnx.load_from_string((folder / TRAIN_STEP).read_bytes())
        change(model.graph)
        _file(folder, TRAIN_STEP, model.SerializeToString())
        return maker.signed(version, folder, limits)

    return make


def _spoilt(spoil: Callable[[Maker, Path], None]) -> Callable[[Maker, int], Path]:
    """A good release that is spoilt after it was signed."""

    def make(maker: Maker, version: int) -> Path:
        release = maker.good(version)
        spoil(maker, release)
        return release

    return make


def _limited(limits: Limits) -> Callable[[Maker, int], Path]:
    return lambda maker, version: maker.good(version, limits)


def _flip(maker: Maker, release: Path) -> None:
    data = bytearray((release / FORWARD).read_bytes())
    data[int(maker.rng.integers(len(data)))] ^= 1 << int(maker.rng.integers(8))
    (release / FORWARD).write_bytes(data)


def _rubbish_manifest(maker: Maker, release: Path) -> None:
    (release / MANIFEST).write_bytes(maker.rng.bytes(300))
    maker.sign(release, maker.own)


def _other_signature(maker: Maker, release: Path) -> None:
    signature = (release / SIGNATURES).read_bytes()
    other = maker.good(10_000 + int(release.name.removeprefix("release-")))
    shutil.copy(other / MANIFEST, release / MANIFEST)
    (release / SIGNATURES).write_bytes(signature)


def _stranger(maker: Maker, release: Path) -> None:
    maker.sign(release, make_identity("host", Role.HOST, maker.rng.bytes(ENTROPY_SIZE)))


def _old_one(maker: Maker, _version: int) -> Path:
    """The first release once more: whoever puts it into a folder gives that another number."""
    return maker.folder / "release-1"


def _no_onnx(maker: Maker, version: int) -> Path:
    folder = maker.bundle(version)
    _file(folder, TRAIN_STEP, maker.rng.bytes(4096))
    return maker.signed(version, folder)


def _rewire(graph: Any, output: str, kind: str, *more: str) -> None:
    """Put one more node between an output and what made it."""
    before = f"{output} before"
    for node in graph.node:
        node.output[:] = [before if name == output else name for name in node.output]
    graph.node.append(helper.make_node(kind, [before, *more], [output]))


def _constant(graph: Any, name: str, value: Any, kind: type) -> None:
    graph.initializer.append(numpy_helper.from_array(np.array(value, kind), name))


def _forbidden(graph: Any) -> None:
    _rewire(graph, "loss", "Bernoulli")


def _external(graph: Any) -> None:
    tensor = max(graph.initializer, key=lambda item: len(item.raw_data))
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../host/identity")


def _nan_loss(graph: Any) -> None:
    _constant(graph, "zero", 0.0, np.float32)
    _rewire(graph, "loss", "Mul", "zero")
    graph.node.append(helper.make_node("Div", ["loss late", "loss late"], ["loss"]))
    graph.node[-2].output[0] = "loss late"


def _nan_gradient(graph: Any) -> None:
    _constant(graph, "zero", 0.0, np.float32)
    _rewire(graph, "gradient", "Mul", "zero")
    graph.node.append(helper.make_node("Div", ["gradient late", "gradient late"], ["gradient"]))
    graph.node[-2].output[0] = "gradient late"


def _add_zero(graph: Any, nodes: list[Any], zero: str) -> None:
    """Let the loss wait for `nodes`, the last of which makes the scalar called `zero`."""
    _rewire(graph, "loss", "Add", zero)
    last = graph.node.pop()
    graph.node.extend([*nodes, last])


def _large(graph: Any) -> None:
    """64 MiB of zeros, which the check lets pass, many times over."""
    _constant(graph, "wide", [1 << 24], np.int64)
    nodes = [helper.make_node("ConstantOfShape", ["wide"], ["wide 0"])]
    nodes += [helper.make_node("Neg", [f"wide {i}"], [f"wide {i + 1}"]) for i in range(4)]
    nodes += [helper.make_node("Concat", [f"wide {i}" for i in range(5)], ["all"], axis=0)]
    nodes += [helper.make_node("ReduceSum", ["all"], ["zero sum"], keepdims=0)]
    _add_zero(graph, nodes, "zero sum")


def _products(side: int, count: int, start: str = "") -> Callable[[Any], None]:
    """A chain of matrix products, computed as the model is loaded; from data, in every step."""

    def change(graph: Any) -> None:
        _constant(graph, "square", [side, side], np.int64)
        nodes = [helper.make_node("ConstantOfShape", ["square"], ["zeros"])]
        nodes += [helper.make_node("ReduceMin", ["features"], ["lowest"], keepdims=0)]
        nodes += [helper.make_node("Add", ["zeros", start or "zeros"], ["product 0"])]
        nodes += [
            helper.make_node("MatMul", [f"product {i}", f"product {i}"], [f"product {i + 1}"])
            for i in range(count)
        ]
        nodes += [helper.make_node("ReduceSum", [f"product {count}"], ["no sum"], keepdims=0)]
        _add_zero(graph, nodes, "no sum")

    return change


def _breaks_on_data(graph: Any) -> None:
    """On zeros it looks up row 0 of a table of one row; on anything else a row that is not there.

    So the child sees nothing of it, and the board's own data does.
    """
    _constant(graph, "rows", [0.0], np.float32)
    nodes = [
        helper.make_node("ReduceMax", ["features"], ["largest"], keepdims=0),
        helper.make_node("Ceil", ["largest"], ["ceiling"]),
        helper.make_node("Cast", ["ceiling"], ["row"], to=onnx.TensorProto.INT64),
        helper.make_node("Gather", ["rows", "row"], ["found"], axis=0),
    ]
    _add_zero(graph, nodes, "found")


def _other_data(maker: Maker, version: int) -> Path:
    """The shape of what it learns from is not that of the board's data."""
    folder = maker.bundle(version)
    path = folder / DESCRIPTION
    bundle = read_bundle(path.read_bytes())
    specs = tuple(
        replace(spec, shape=(spec.shape[0], spec.shape[1] + 1, *spec.shape[2:]))
        if spec.name == "features"
        else spec
        for spec in bundle.batch_inputs
    )
    path.write_bytes(write_bundle(replace(bundle, batch_inputs=specs)))
    return maker.signed(version, folder)


_SLOW = _products(600, 60)  # so that its trial lasts long enough to be killed in

KINDS = {
    "a bit flipped in forward.onnx": Bad(_spoilt(_flip), "forward.onnx is not"),
    "a manifest of rubbish": Bad(_spoilt(_rubbish_manifest), "not the manifest"),
    "not signed": Bad(_spoilt(lambda _, r: (r / SIGNATURES).unlink()), "not signed by the host"),
    "signed by a stranger": Bad(_spoilt(_stranger), "not signed by the host"),
    "another one's signature": Bad(_spoilt(_other_signature), "not signed by the host"),
    "an old release again": Bad(_old_one, "holds version 1"),
    "no ONNX at all": Bad(_no_onnx, "train_step.onnx is refused"),
    "a forbidden operator": Bad(_changed(_forbidden), "not on the list"),
    "data outside the file": Bad(_changed(_external), "data in another file"),
    "too much memory": Bad(_changed(_large), "its first steps need more than"),
    "too much processor time": Bad(_changed(_products(1000, 400, "lowest")), "SIGXCPU"),
    "its process dies": Bad(_changed(_SLOW), "died of SIGSEGV", CHILD),
    "loss out of bounds": Bad(_limited((1e-6, LATENCY_MAX_S)), "its loss on"),
    "loss, node killed once": Bad(_changed(_SLOW, (1e-6, LATENCY_MAX_S)), "its loss on", NODE_ONCE),
    "loss is not a number": Bad(_changed(_nan_loss), "held-out data is nan"),
    "gradient is not finite": Bad(_changed(_nan_gradient), "gradient"),
    "too slow": Bad(_limited((LOSS_MAX, 0.001)), "a step takes"),
    "breaks on the board's data": Bad(_changed(_breaks_on_data), "onnxruntime cannot run"),
    "of other data": Bad(_other_data, "features"),
    "node killed in each trial": Bad(_changed(_SLOW), "the node died in 3 trials", NODE_ALWAYS),
}
