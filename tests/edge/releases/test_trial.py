"""A model's first steps in a child process: bombs and loops stay there."""

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge.errors import BoardFault, ModelError
from edge.onnx.session import LoadedModel
from edge.releases.trial import try_model
from ternmesh.model_package import FORWARD, TRAIN_STEP, read_model_package, write_model_package
from ternmesh.release import DESCRIPTION
from tests.edge.conftest import model_file

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'ternmesh[dev]'")


def exploding(side: int, products: int = 0) -> bytes:
    """A forward graph whose constants become side x side numbers, and are multiplied so often.

    No check can see it: the shape is computed from constants.
    """
    squares = "\n".join(f"m{n + 1} = MatMul (m{n}, m{n})" for n in range(products))
    return model_file(
        f"""(float[n, 6] x, float[6, r] A, float[r, 3] B) => (float[n, 3] y) {{
            shape = Concat <axis = 0> (side, side)
            m0 = Expand (one, shape)
            {squares}
            sum = ReduceSum <keepdims = 0> (m{products})
            mean = ReduceMean (x, last)
            zero = Expand (mean, three)
            y = Add (zero, sum)
        }}""",
        side=[side],
        one=np.float32(0.5),
        last=[1],
        three=[1, 3],
        A=np.zeros((6, 0), np.float32),
        B=np.zeros((0, 3), np.float32),
    )


def replace_file(folder: Path, name: str, content: bytes) -> None:
    """Put another file into a model package, and its hash into the description."""

    package = read_model_package((folder / DESCRIPTION).read_bytes())
    files = {**package.files, name: hashlib.sha256(content).hexdigest()}
    (folder / name).write_bytes(content)
    (folder / DESCRIPTION).write_bytes(write_model_package(replace(package, files=files)))


def test_a_memory_bomb_is_refused_and_does_not_take_the_parent(tiny_copy: Path) -> None:
    replace_file(tiny_copy, FORWARD, exploding(50))
    assert try_model(tiny_copy, memory_mib=64) > 0
    replace_file(tiny_copy, FORWARD, exploding(50_000))  # 10 GB
    with pytest.raises(ModelError, match="its first steps need more than 64 MiB"):
        try_model(tiny_copy, memory_mib=64)


def test_a_loop_is_ended_by_the_limit_of_processor_time(tiny_copy: Path) -> None:
    replace_file(tiny_copy, FORWARD, exploding(3000, products=2000))
    with pytest.raises(ModelError, match="died of SIGXCPU: it used up 1 s of processor time"):
        try_model(tiny_copy, cpu_s=1)


def test_a_child_that_takes_too_long_is_ended(tiny: LoadedModel) -> None:
    with pytest.raises(ModelError, match=r"no step was done within 0\.001 s"):
        try_model(tiny.folder, wall_s=0.001)


def test_a_board_that_cannot_start_the_child_is_at_fault(tiny, monkeypatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(BoardFault, match=r"cannot be started .*: free memory"):
        try_model(tiny.folder)


def test_what_the_check_or_onnxruntime_refuses_is_the_reason(tiny_copy: Path) -> None:
    whole = (tiny_copy / TRAIN_STEP).read_bytes()
    (tiny_copy / TRAIN_STEP).write_bytes(whole[:-1])
    with pytest.raises(ModelError, match=r"not what model\.json describes"):
        try_model(tiny_copy)
    replace_file(tiny_copy, TRAIN_STEP, whole[:-1])
    with pytest.raises(ModelError, match=r"train_step\.onnx is refused: it ends inside"):
        try_model(tiny_copy)


def test_a_gradient_of_another_length_is_refused(tiny_copy: Path) -> None:
    step = onnx.load_from_string((tiny_copy / TRAIN_STEP).read_bytes())
    step.graph.node[-1].output[0] = "whole"
    cut = onnx.helper.make_node("Slice", ["whole", "from", "to"], ["gradient"])
    step.graph.node.append(cut)
    for name, value in (("from", [0]), ("to", [17])):
        step.graph.initializer.append(onnx.numpy_helper.from_array(np.array(value), name))
    step.graph.output[1].type.tensor_type.shape.dim[0].dim_value = 17
    replace_file(tiny_copy, TRAIN_STEP, step.SerializeToString())
    with pytest.raises(ModelError, match=r"a gradient has the shape \(17,\)"):
        try_model(tiny_copy)


def test_modules_in_the_current_directory_are_not_the_childs(tiny, tmp_path, monkeypatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(1)")
    (tmp_path / "edge").mkdir()
    (tmp_path / "edge" / "model_trial.py").write_text("raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    assert try_model(tiny.folder) > 0
    relative = Path(os.path.relpath(tiny.folder))
    assert try_model(relative) > 0
