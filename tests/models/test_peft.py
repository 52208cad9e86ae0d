"""LoRA adapters as files of Hugging Face PEFT, which the real library loads."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.numpy import load_file, save_file
from torch.nn import functional

from models.adapters.base import Adapter
from models.adapters.lora import add_lora
from models.adapters.spaces import train_whole
from models.export import export
from models.peft import CONFIG, WEIGHTS, read_peft, write_peft
from ternmesh.errors import ModelPackageError
from ternmesh.model_package import FORWARD, ModelPackage
from tests.models.conftest import Exported, TwoInputs, regression_loss

KEY = "base_model.model.mix.lora_A.weight"


@pytest.fixture
def learned(exported: Exported) -> np.ndarray:
    rng = np.random.default_rng(3)
    return (0.3 * rng.standard_normal(exported.package.dimension)).astype(np.float32)


def base() -> TwoInputs:
    """The frozen module from which `Exported` was made."""
    torch.manual_seed(0)
    return TwoInputs()


def logits(exported: Exported, vector: np.ndarray) -> np.ndarray:
    """What our model gives with an adapter."""
    session = onnxruntime.InferenceSession(str(exported.folder / FORWARD))
    names = [spec.name for spec in exported.package.inputs]
    inputs = {n: t.numpy() for n, t in zip(names, exported.batch, strict=False)}
    (found,) = session.run(None, {**inputs, **exported.package.split(vector)})
    return found


def test_peft_gives_the_same_logits_and_is_read_back(
    exported: Exported, learned: np.ndarray, tmp_path: Path
) -> None:
    write_peft(tmp_path / "peft", exported.package, exported.folder, learned)
    model = PeftModel.from_pretrained(base(), tmp_path / "peft")
    with torch.no_grad():
        theirs = model(*exported.batch[:2]).numpy()
    assert np.abs(theirs - logits(exported, learned)).max() < 1e-5
    assert np.abs(theirs - logits(exported, exported.adapter.vector())).max() > 1e-2
    found = read_peft(tmp_path / "peft", exported.package, exported.folder)
    assert np.allclose(found, learned, rtol=1e-6)


@pytest.mark.parametrize(
    "more", [{}, {"use_rslora": True}, {"alpha_pattern": {"mix": 3}}, {"alpha_pattern": {"m.x": 5}}]
)
def test_an_adapter_of_peft_keeps_its_own_scales(exported: Exported, tmp_path: Path, more) -> None:
    config = LoraConfig(
        r=4, lora_alpha=12, target_modules=["project", "mix", "up", "out"],
        init_lora_weights=False, **more,
    )  # fmt: skip
    model = get_peft_model(base(), config)
    model.save_pretrained(str(tmp_path / "theirs"))
    with torch.no_grad():
        expected = model(*exported.batch[:2]).numpy()
    vector = read_peft(tmp_path / "theirs", exported.package, exported.folder)
    assert np.abs(logits(exported, vector) - expected).max() < 1e-5


def exported_with(add: Any, folder: Path) -> tuple[ModelPackage, Any]:
    """A package of the module with another adapter, and its example batch."""
    module = base()
    adapter = add(module)
    example = Exported.sample(None)  # type: ignore[arg-type]
    both = example[:2], example[2:]
    return export(module, adapter, regression_loss, both, folder, name="two-inputs"), example


@pytest.mark.nightly
def test_a_head_that_is_trained_whole_travels_along(tmp_path: Path) -> None:
    def add(module: TwoInputs) -> Adapter:
        return add_lora(module, ("mix",), rank=2, alpha=2) + train_whole(module, ("down",))

    package, example = exported_with(add, tmp_path / "p")
    vector = np.random.default_rng(1).standard_normal(package.dimension).astype(np.float32)
    write_peft(tmp_path / "peft", package, tmp_path / "p", vector)
    model = PeftModel.from_pretrained(base(), tmp_path / "peft")
    session = onnxruntime.InferenceSession(str(tmp_path / "p" / FORWARD))
    names = [spec.name for spec in package.inputs]
    inputs = {n: t.numpy() for n, t in zip(names, example, strict=False)}
    (ours,) = session.run(None, {**inputs, **package.split(vector)})
    with torch.no_grad():
        assert np.abs(model(*example[:2]).numpy() - ours).max() < 1e-4
    assert np.allclose(read_peft(tmp_path / "peft", package, tmp_path / "p"), vector)


@pytest.fixture
def files(exported: Exported, learned: np.ndarray, tmp_path: Path) -> Path:
    write_peft(tmp_path / "peft", exported.package, exported.folder, learned)
    return tmp_path / "peft"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda t: t.pop(KEY), "no such tensor"),
        (lambda t: t.update({KEY: t[KEY][:, :-1]}), r"must be \(4, 8\), and it is \(4, 7\) there"),
        (lambda t: t.update({"other": t[KEY]}), "has other, which two-inputs does not train"),
        (lambda t: t[KEY].fill(np.nan), "NaN"),
    ],
)
def test_tensors_that_do_not_fit_are_a_sentence(exported, files, change, sentence) -> None:
    tensors = load_file(files / WEIGHTS)
    change(tensors)
    save_file(
        {name: np.ascontiguousarray(value) for name, value in tensors.items()}, files / WEIGHTS
    )
    with pytest.raises(ModelPackageError, match=sentence):
        read_peft(files, exported.package, exported.folder)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"use_dora": True}, "only the plain LoRA"),
        ({"bias": "all"}, "only the plain LoRA"),
        ({"peft_type": "IA3"}, "only the plain LoRA"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights.*only the plain LoRA"),
        ({"made_tomorrow": {"a": 1}}, "made_tomorrow.*only the plain LoRA"),
        ({"lora_alpha": "much"}, "no configuration of a LoRA"),
        ({"alpha_pattern": {"layers.(": 3}}, "no configuration of a LoRA"),
    ],
)
def test_a_configuration_that_is_no_plain_lora_is_a_sentence(
    exported, files, change, sentence
) -> None:
    config = json.loads((files / CONFIG).read_text())
    (files / CONFIG).write_text(json.dumps({**config, **change}))
    with pytest.raises(ModelPackageError, match=sentence):
        read_peft(files, exported.package, exported.folder)


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
@pytest.mark.parametrize("content", [b"", b"[1]", b"\xff" * 40])
def test_files_that_are_none_are_a_sentence(exported, files, name: str, content: bytes) -> None:
    (files / name).write_bytes(content)
    with pytest.raises(ModelPackageError, match=name.replace(".", r"\.")):
        read_peft(files, exported.package, exported.folder)


@pytest.mark.nightly
def test_another_adapter_space_has_no_form_in_peft(tmp_path: Path) -> None:
    package, _ = exported_with(lambda module: train_whole(module, ("mix",)), tmp_path / "p")
    vector = np.zeros(package.dimension, np.float32)
    with pytest.raises(ModelPackageError, match="no LoRA with A and B"):
        write_peft(tmp_path / "peft", package, tmp_path / "p", vector)
    assert not (tmp_path / "peft").exists()


def test_older_and_named_files_and_a_bom(exported, files: Path, tmp_path: Path) -> None:
    (files / CONFIG).write_bytes(b"\xef\xbb\xbf" + (files / CONFIG).read_bytes())
    read_peft(files, exported.package, exported.folder)
    with pytest.raises(ModelPackageError, match="of a named adapter the one in it"):
        read_peft(tmp_path, exported.package, exported.folder)
    (files / WEIGHTS).rename(files / "adapter_model.bin")
    with pytest.raises(ModelPackageError, match=r"a file \.bin must be saved again"):
        read_peft(files, exported.package, exported.folder)


def test_a_short_name_of_a_layer_stands_for_no_longer_one(tmp_path: Path) -> None:
    """`out` would also be `block.out` in PEFT, which we do not train."""
    module = torch.nn.Sequential()
    module.add_module("block", torch.nn.Sequential())
    module.block.add_module("out", torch.nn.Linear(3, 3))
    module.add_module("out", torch.nn.Linear(3, 2))
    frozen = copy.deepcopy(module)
    adapter = add_lora(module, ("out",), rank=2, alpha=2)
    both = ((torch.randn(4, 3),), (torch.zeros(4, 2),))
    package = export(module, adapter, functional.mse_loss, both, tmp_path / "p", name="two-outs")
    write_peft(tmp_path / "peft", package, tmp_path / "p", adapter.vector())
    model = PeftModel.from_pretrained(frozen, tmp_path / "peft")
    assert {name for name, _ in model.named_parameters() if "lora_A" in name} == {
        "base_model.model.out.lora_A.default.weight"
    }
