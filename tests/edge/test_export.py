"""What was learned as files: a package, an adapter, and a model with the adapter in its weights."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from edge.errors import ModelError
from edge.export import export_learned, merge_adapter
from edge.onnx.session import Inference, LoadedModel, adapter_version, load_model
from edge.releases.store import make_release
from models.zoo import package_path
from ternmesh.model_package import FORWARD, fits_adapter, keeps_adapter


@pytest.mark.parametrize("name", ["tiny", "keyword"])
def test_all_three_forms_give_the_outputs_of_the_node(name, tiny, tmp_path) -> None:
    loaded = tiny if name == "tiny" else load_model(package_path(name))
    rng = np.random.default_rng(0)
    vector = loaded.initial + (rng.standard_normal(loaded.initial.size) / 10).astype(np.float32)
    package, adapter, plain = export_learned(tmp_path / "out", loaded, vector, 7)
    assert [path.name for path in (package, adapter, plain)] == [
        name,
        f"{name}.onnx_adapter",
        f"{name}.onnx",
    ]
    [spec] = loaded.package.inputs
    x = rng.standard_normal((4, *spec.shape[1:])).astype(np.float32)
    inference = Inference(loaded.folder, loaded.package)
    inference.use_adapter(adapter)
    [expected] = inference.predict({spec.name: x}).values()

    onnx.checker.check_model(onnx.load(plain))
    session = onnxruntime.InferenceSession(plain, providers=["CPUExecutionProvider"])
    assert [value.name for value in session.get_inputs()] == [spec.name]
    assert not session.get_overridable_initializers()
    np.testing.assert_allclose(session.run(None, {spec.name: x})[0], expected, atol=1e-6)

    again = load_model(package)
    assert np.array_equal(again.initial, vector)
    assert again.package == replace(loaded.package, files=again.package.files)
    assert again.package.model_hash() != loaded.package.model_hash()
    old, new = loaded.package.adapter_key(), again.package.adapter_key()
    assert fits_adapter(old, new)
    assert not keeps_adapter(old, new), "what was learned would be added twice"
    assert adapter_version(adapter) == 7
    make_release(package, tmp_path / "release", 1, (1.0, 1.0))


def test_nothing_is_overwritten_and_a_name_is_no_path(tiny: LoadedModel, tmp_path: Path) -> None:
    export_learned(tmp_path / "out", tiny, tiny.initial, 1)
    with pytest.raises(FileExistsError):
        export_learned(tmp_path / "out", tiny, tiny.initial, 1)
    for name in ("../x", "", ".x"):
        with pytest.raises(ModelError, match="no name for a file"):
            export_learned(
                tmp_path, replace(tiny, package=replace(tiny.package, name=name)), tiny.initial, 1
            )


def test_what_is_cut_off_is_no_package_and_can_be_tried_again(tiny, tmp_path, monkeypatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("edge.export.write_adapter", full)
        with pytest.raises(OSError, match="No space"):
            export_learned(tmp_path, tiny, tiny.initial, 1)
    assert list(tmp_path.iterdir()) == []
    export_learned(tmp_path, tiny, tiny.initial, 1)


def test_a_graph_that_lacks_a_tensor_or_is_cut_off_is_refused(tiny: LoadedModel) -> None:
    forward = (tiny.folder / FORWARD).read_bytes()
    with pytest.raises(ModelError, match="no value for b'C'"):
        merge_adapter(forward, {"C": np.zeros(3, np.float32)})
    with pytest.raises(ModelError, match="cannot be read"):
        merge_adapter(forward[:-3], {})
