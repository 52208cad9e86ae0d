import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from edge.onnx.session import load_model
from models.adapters.lora import add_lora
from models.errors import ExportError
from models.export import export
from ternmesh.model_package import FORWARD, TRAIN_STEP, ModelPackage, read_model_package

Arrays = Mapping[str, NDArray[np.float32]]


def open_session(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def feed(batch: tuple[torch.Tensor, ...]) -> dict[str, NDArray[np.float32]]:
    return {"sequence": batch[0].numpy(), "extra": batch[1].numpy()}


@contextmanager
def active(path: Path, tensors: Arrays) -> Iterator[ort.RunOptions]:
    """Run options with these tensors active as an .onnx_adapter file.

    RunOptions hold a bare pointer: the LoraAdapter must live as long as they do.
    """
    form = ort.AdapterFormat()
    form.set_adapter_version(1)
    form.set_model_version(1)
    form.set_parameters({n: ort.OrtValue.ortvalue_from_numpy(t) for n, t in tensors.items()})
    form.export_adapter(str(path))
    adapter = ort.LoraAdapter()
    adapter.Load(str(path))
    options = ort.RunOptions()
    options.add_active_adapter(adapter)
    yield options
    del options, adapter


def arrays(tensors: Mapping[str, torch.Tensor]) -> dict[str, NDArray[np.float32]]:
    return {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in tensors.items()}


def test_the_train_step_gives_loss_and_gradient_of_torch(exported) -> None:
    step = open_session(exported.folder / TRAIN_STEP)
    batch, vector = exported.sample(), exported.random_vector()
    names = [tensor.name for tensor in exported.package.batch_inputs]
    given = dict(zip(names, (tensor.numpy() for tensor in batch), strict=True))
    loss, gradient = step.run(["loss", "gradient"], {"adapter": vector.numpy(), **given})

    parameters = dict(exported.module.named_parameters())
    for name, tensor in exported.adapter.split(vector).items():
        parameters[name].data.copy_(tensor)
    output = exported.module(*batch[:2])
    difference = nn.functional.huber_loss(output, batch[2], reduction="none").mean(-1)
    expected = (difference * batch[3]).mean()
    gradients = torch.autograd.grad(expected, [parameters[n] for n in exported.adapter.names])
    flat = torch.cat([part.reshape(-1) for part in gradients]).numpy()
    assert loss.shape == ()
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    assert np.linalg.norm(gradient - flat) <= 1e-4 * np.linalg.norm(flat)


def test_the_forward_graph_takes_any_batch_and_adapter(exported) -> None:
    forward = open_session(exported.folder / FORWARD)
    tensors = exported.adapter.split(exported.random_vector())
    for count in (1, 3, 17):
        batch = exported.sample(count)
        (output,) = forward.run(None, feed(batch) | arrays(tensors))
        with torch.no_grad():
            expected = torch.func.functional_call(exported.module, tensors, batch[:2])
        np.testing.assert_allclose(output, expected.numpy(), rtol=1e-4, atol=1e-5)


def test_one_session_takes_every_rank(exported, tmp_path: Path) -> None:
    forward = open_session(exported.folder / FORWARD)
    overridable = {value.name: value.shape for value in forward.get_overridable_initializers()}
    assert [value.name for value in forward.get_inputs()] == ["sequence", "extra"]
    assert set(overridable) == set(exported.adapter.names)
    assert isinstance(overridable["mix.lora_A"][1], str)  # a symbolic rank
    given, rng = feed(exported.batch), np.random.default_rng(0)
    (base,) = forward.run(None, given)
    for rank in (0, 4, 8, 16):
        tensors = {}
        specs = zip(exported.adapter.names, exported.adapter.shapes, strict=True)
        for (name, shape), axis in zip(specs, exported.adapter.rank_axes, strict=True):
            assert axis is not None
            sizes = [rank if index == axis else size for index, size in enumerate(shape)]
            tensors[name] = rng.standard_normal(sizes).astype(np.float32)
        with active(tmp_path / f"{rank}.onnx_adapter", tensors) as options:
            (output,) = forward.run(None, given, options)
        assert np.array_equal(output, base) == (rank == 0)


def test_the_description_matches_the_files(exported) -> None:
    package = read_model_package((exported.folder / "model.json").read_bytes())
    assert package == exported.package
    assert package.metric == "mean_absolute_error"
    shapes = [(tensor.name, tensor.shape) for tensor in package.inputs]
    assert shapes == [("sequence", (-1, 5, 3)), ("extra", (-1, 2))]
    assert [t.name for t in package.batch_inputs] == ["sequence", "extra", "target_0", "target_1"]
    for file, digest in package.files.items():
        assert hashlib.sha256((exported.folder / file).read_bytes()).hexdigest() == digest
    vector = np.frombuffer((exported.folder / "adapter.f32").read_bytes(), "<f4")
    assert np.array_equal(vector, exported.adapter.vector())


class Wrapped(nn.Module):
    """A linear layer and then any function."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.layer(x))


def try_export(
    function: Callable[[torch.Tensor], torch.Tensor],
    folder: Path,
    inputs: int = 4,
    target: torch.Tensor | None = None,
    metric: str | None = None,
    replace: bool = False,
) -> ModelPackage:
    module = Wrapped(function)
    adapter = add_lora(module, ("layer",), rank=2, alpha=2)
    target = torch.randn(4, 4) if target is None else target
    loss = nn.functional.mse_loss if target.is_floating_point() else nn.functional.cross_entropy
    example = (torch.randn(inputs, 4, requires_grad=True),), (target,)
    return export(
        module, adapter, loss, example, folder, name="wrapped", metric=metric, replace=replace
    )


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda x: x * x.sum().item(), "cannot be exported: .*data-dependent .*torch.where"),
        (lambda x: x.detach(), r"the loss does not depend on layer\.lora_A"),
        (lambda x: torch.stack([row * 2 for row in x]), r"fixes the size of the batch \(a loop"),
        (lambda x: {"logits": x}, "the module returns dict: it must return a tensor"),
        (lambda x: x.reshape(5, 5), "the module, given the example inputs, cannot be exported: sh"),
        *(
            pytest.param(*row, marks=pytest.mark.nightly)
            for row in (
                (lambda x: x + x.median(-1, keepdim=True)[0], r"no operator for aten\.median"),
                (lambda x: nn.functional.gelu(x.bfloat16()).float(), "onnxruntime has no operator"),
                (lambda x: x if x.sum() > 0 else -x, "data-dependent .*torch.where"),
                (lambda x: 0 * x, r"the gradient of layer\.lora_A is zero for the example batch"),
                (lambda x: 1.0 * x.argmax(-1), r"layer\.lora_A: .* has no gradient \(argmax"),
                (lambda x: torch.fft.rfft(x).abs()[:, :1] + x, "DFT, which boards do not run"),
                (lambda x: x + torch.rand_like(x), "its forward must be deterministic"),
            )
        ),
    ],
)
def test_what_cannot_be_exported_gives_one_sentence_and_no_files(
    function: Callable[[torch.Tensor], torch.Tensor], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ExportError, match=sentence) as caught:
        try_export(function, tmp_path / "package")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "package").exists()


X, Y = torch.ones(4, 4), torch.ones(4, 4)


class Named(Wrapped):
    def forward(self, target: torch.Tensor) -> torch.Tensor:
        return super().forward(target)


@pytest.mark.parametrize(
    ("example", "sentence", "change"),
    [
        ((X, Y), r"must be \(inputs, targets\), two tuples", {}),
        (X, r"must be \(inputs, targets\), two tuples", {}),
        (((X.numpy(),), (Y,)), "must hold torch tensors", {}),
        (((), (Y,)), "at least one of them an input", {}),
        (((X[:0],), (Y[:0],)), r"batch size of at least 2 .* not \[0\]", {}),
        (((X[:1],), (Y[:1],)), r"batch size of at least 2 .* not \[1\]", {}),
        (((X,), (Y[:3],)), r"batch size of at least 2 .* not \[3, 4\]", {}),
        (((X.double(),), (Y,)), r"given the example .* convert the batch with \.float\(\)", {}),
        (((X / 0,), (Y,)), "example_batch holds NaN or infinity", {}),
        (((X,), (Y[:, :3],)), "the loss cannot be exported: The size of tensor", {}),
        (((X,), (Y,)), "the loss must return one number", {"loss": torch.sub}),
        (((X,), (Y,)), "argument `target`, a name of ours: rename it", {"kind": Named}),
        (
            ((X.half(),), (Y.half(),)),
            r"base\.weight is torch\.f.*float\(\)",
            {"dtype": X.half().dtype},
        ),
    ],
)
def test_arguments_that_do_not_fit_are_one_sentence(example, sentence, change, tmp_path) -> None:
    module = change.get("kind", Wrapped)(torch.tanh).to(change.get("dtype", X.dtype))
    adapter = add_lora(module, ("layer",), rank=2, alpha=2)
    loss = change.get("loss", nn.functional.mse_loss)
    with pytest.raises(ExportError, match=sentence) as caught:
        export(module, adapter, loss, example, tmp_path, name="wrapped")
    assert "\n" not in str(caught.value)


def test_a_module_and_an_adapter_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    adapter = add_lora(Wrapped(torch.tanh), ("layer",), rank=2, alpha=2)
    module = Wrapped(torch.tanh)
    with pytest.raises(ExportError, match=r"of another module: this one has no layer\.lora_A"):
        export(module, adapter, nn.functional.mse_loss, ((X,), (Y,)), tmp_path, name="wrapped")


def test_nothing_is_overwritten_but_a_package_that_may_be(exported, tmp_path: Path, caplog) -> None:
    with pytest.raises(ExportError, match=r"holds a package: .*replace=True"):
        try_export(torch.tanh, exported.folder)
    (tmp_path / FORWARD).write_bytes(b"of an earlier package")
    classes = torch.zeros(4, dtype=torch.int64)
    assert try_export(nn.Dropout(), tmp_path, target=classes, replace=True).metric == "accuracy"
    assert "exported in evaluation mode: no dropout" in caplog.text
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(ExportError, match=r"holds thesis\.txt, no part of a package"):
        try_export(torch.tanh, tmp_path, replace=True)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.layer = nn.LSTM(4, 4, batch_first=True), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.rnn(x)[0][:, -1])


@pytest.mark.nightly
@pytest.mark.filterwarnings("error::UserWarning")
def test_an_lstm_can_be_exported_and_loaded_by_a_board(tmp_path: Path) -> None:
    module = Recurrent()
    adapter = add_lora(module, ("layer",), rank=2, alpha=2)
    example = (torch.randn(4, 5, 4),), (Y,)
    export(module, adapter, nn.functional.mse_loss, example, str(tmp_path), name="lstm")
    assert load_model(tmp_path).package.name == "lstm"


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ExportError, match="cannot write the model package"):
        try_export(torch.tanh, tmp_path / "file")


def test_a_graph_that_differs_from_torch_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("models.export.RELATIVE_ERROR_MAX", -1.0)
    with pytest.raises(ExportError, match=r"forward\.onnx differs from torch by"):
        try_export(torch.tanh, tmp_path)


@pytest.mark.parametrize(
    ("metric", "sentence"),
    [
        ("mae", "metric is 'mae': it must be one of accuracy, mean_absolute_error"),
        ("accuracy", r"accuracy cannot compare an output of shape \[4, 4\] with a target"),
    ],
)
def test_a_metric_must_fit(metric: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=sentence):
        try_export(torch.tanh, tmp_path, metric=metric)
