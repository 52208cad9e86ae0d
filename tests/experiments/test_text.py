"""Text classifiers: tiny random encoders against onnxruntime, their layers' names, their data."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install -e '.[text]'"
)

from edge.onnx.session import Inference, TrainStep, load_model  # noqa: E402
from experiments.text.encoder import TextConfig, attention_patterns, build, example_batch  # noqa: E402
from experiments.text.export import export_text, main  # noqa: E402
from experiments.text.pairs import LABELS, Pair, TextError, read_pairs, to_arrays  # noqa: E402
from experiments.transfer.distillation import predict  # noqa: E402
from experiments.transfer.learners import make_learner  # noqa: E402
from experiments.transfer.tasks import Samples  # noqa: E402
from models.adapters.spaces import SpaceConfig  # noqa: E402

WIDTH, LAYERS, RANK, TOKENS, BATCH = 16, 1, 2, 7, 4


def save_encoder(kind: str, folder: Path) -> str:
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "max_position_embeddings": 16, "initializer_range": 0.5}
    if kind == "bert":
        config = transformers.BertConfig(
            hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=2,
            intermediate_size=24, **sizes,
        )  # fmt: skip
        model = transformers.BertModel(config)
    else:
        config = transformers.DistilBertConfig(
            dim=WIDTH, n_layers=LAYERS, n_heads=2, hidden_dim=24, **sizes
        )
        model = transformers.DistilBertModel(config)
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture(params=["bert", "distilbert"])
def encoder(request, tmp_path):
    return request.param, save_encoder(request.param, tmp_path / "encoder")


torch.set_num_threads(1)  # threads that wait for a busy core are slower than none


def feed(inputs):
    return dict(zip(("ids", "lengths", "kinds"), (t.numpy() for t in inputs), strict=False))


@pytest.mark.nightly  # tests/models/test_export.py exports a small model daily
def test_the_package_computes_what_torch_computes(encoder, tmp_path):
    kind, folder = encoder
    pooling = "mean" if kind == "bert" else "first"
    config = TextConfig(folder, tokens=TOKENS, pooling=pooling)
    space = SpaceConfig((), rank=RANK, alpha=4.0, whole=("head",))
    package = export_text(config, space, BATCH, tmp_path / "package")
    loaded = load_model(tmp_path / "package")
    names = {spec.name: spec.dtype for spec in package.inputs}
    assert names == dict.fromkeys(
        ["ids", "lengths"] if kind == "distilbert" else ["ids", "lengths", "kinds"], "int32"
    )
    assert package.dimension == 4 * LAYERS * RANK * 2 * WIDTH + 3 * WIDTH + 3

    module = build(config)
    inputs, targets = example_batch(module, config, BATCH)
    logits = module(*inputs)
    output = Inference(loaded.folder, package).predict(feed(inputs))["output"]
    np.testing.assert_allclose(output, logits.detach().numpy(), atol=1e-5)
    step = TrainStep(loaded.folder, package)
    loss, gradient = step.run(loaded.initial, {**feed(inputs), "target": targets[0].numpy()})
    expected = torch.nn.functional.cross_entropy(logits, targets[0])
    assert loss == pytest.approx(expected.item(), rel=1e-4)
    module.requires_grad_(False)
    module.head.requires_grad_(True)
    torch.nn.functional.cross_entropy(module(*inputs), targets[0]).backward()
    count = 3 * WIDTH
    np.testing.assert_allclose(
        gradient[-count - 3 : -3], module.head.weight.grad.reshape(-1).numpy(), atol=1e-5
    )


@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_padding_changes_nothing(encoder, pooling):
    module = build(TextConfig(encoder[1], tokens=TOKENS, pooling=pooling))
    short = torch.tensor([[3, 7, 9, 4]], dtype=torch.int32)
    padded = torch.tensor([[3, 7, 9, 4, 11, 12, 13]], dtype=torch.int32)
    length = torch.tensor([4], dtype=torch.int32)
    torch.testing.assert_close(module(short, length), module(padded, length))
    assert not torch.allclose(module(short, length), module(padded, length + 3), atol=1e-3)


def test_a_transfer_takes_a_distilbert_and_a_gpt2_from_folders(tmp_path):
    words = {word: at for at, word in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b"))}
    teacher, student = save_encoder("distilbert", tmp_path / "teacher"), str(tmp_path / "student")
    transformers.DistilBertTokenizerFast(vocab=words).save_pretrained(teacher)
    config = transformers.GPT2Config(vocab_size=6, n_embd=8, n_layer=1, n_head=2)
    gpt2 = transformers.GPT2LMHeadModel(config)
    gpt2.save_pretrained(student)
    tokenizer = transformers.GPT2TokenizerFast(vocab=words, merges=[], unk_token="[UNK]")
    tokenizer.save_pretrained(student)
    samples = Samples(LABELS, {"texts": 3 * ["a b"], "seconds": 3 * ["b"]}, np.arange(3), {}, 1.0)
    for folder, is_teacher in ((teacher, True), (student, False)):
        learner = make_learner(folder, samples, tmp_path, tmp_path, is_teacher=is_teacher)
        module = learner.make()
        assert predict(module, learner.inputs).shape == (3, len(LABELS))
    torch.testing.assert_close(module.model.wte.weight, gpt2.transformer.wte.weight)


def test_an_encoder_that_does_not_fit_is_a_sentence(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert main(["--encoder", str(tmp_path / "empty"), "--out", str(tmp_path / "out")]) == 1
    assert "cannot be loaded" in capsys.readouterr().err
    with pytest.raises(TextError, match="takes 16 tokens, not 40"):
        build(TextConfig(save_encoder("bert", tmp_path / "encoder")))
    with pytest.raises(TextError, match="name the layers"):
        attention_patterns(["layers.0.wq", "layers.0.attention.q_lin"])


def write_tsv(path: Path, text: str) -> Path:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write(text)
    return path


def test_pairs_are_read_as_they_stand(tmp_path):
    path = write_tsv(
        tmp_path / "a.tsv.gz",
        "id\tlabel\tpremise\thypothesis\n1\tneutral\tA \"cat.\tIt's\n2\tcontradiction\tb\tc\n",
    )
    assert read_pairs(path) == [Pair('A "cat.', "It's", 1), Pair("b", "c", 2)]


@pytest.mark.parametrize(
    "text",
    [
        "id\tlabel\tpremise\n1\tneutral\ta\n",
        "id\tlabel\tpremise\thypothesis\n1\tmaybe\ta\tb\n",
        "id\tlabel\tpremise\thypothesis\n1\tneutral\ta\n",
        "id\tlabel\tpremise\thypothesis\n",
    ],
)
def test_what_are_no_pairs_is_a_sentence(tmp_path, text):
    with pytest.raises(TextError, match=r"a\.tsv\.gz"):
        read_pairs(write_tsv(tmp_path / "a.tsv.gz", text))


def test_arrays_of_pairs(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "d"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    tokenizer = transformers.BertTokenizerFast(
        vocab={word: index for index, word in enumerate(words)}
    )
    pairs = [Pair("a", "b c", 0), Pair("a a a a a a", "d", 2)]
    arrays = to_arrays(pairs, tokenizer, 8)
    assert arrays["ids"].tolist() == [[2, 4, 3, 5, 6, 3, 0, 0], [2, 4, 4, 4, 4, 3, 7, 3]]
    assert arrays["kinds"].tolist() == [[0, 0, 0, 1, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0, 1, 1]]
    assert arrays["lengths"].tolist() == [6, 8]
    assert arrays["target"].tolist() == [0, 2]
    assert {name: str(array.dtype) for name, array in arrays.items()} == {
        "ids": "int32", "kinds": "int32", "lengths": "int32", "target": "int64",
    }  # fmt: skip
    assert LABELS[2] == "contradiction"
