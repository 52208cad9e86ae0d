"""The models of the transfer experiment: how each is made, what it sees, and how it is trained."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from examples.voice.architectures import ARCHITECTURES
from examples.voice.keyword import SPEAKERS, add_keyword_lora, load_clips
from examples.voice.pretrain_keyword import augment, pretrain
from experiments.text.encoder import GT_MINILM, load_model, load_tokenizer
from experiments.transfer.distillation import Augment, LearningSettings
from experiments.transfer.gpt2 import SMALL_GPT2, small_gpt2
from experiments.transfer.pairs import TransferError
from experiments.transfer.tasks import Samples
from models.zoo import fsdd_path

TOKENS, TOKENS_OF_PAIR = 40, 48
STORIES = "stories260k"
EMBEDDED_AT_ONCE = 64
LENGTH = 8.0  # of an embedding: its head learns faster than from unit length


@dataclass(frozen=True, slots=True)
class Learner:
    """A model as it comes, the same for every arm, and how it learns.

    `make` returns a module with `hidden` and `head`. `few_steps` are for a few labels alone.
    """

    make: Callable[[], nn.Module]
    inputs: tuple[Tensor, ...]  # of all samples
    settings: LearningSettings
    few_steps: int
    augment: Augment | None = None

    @property
    def few_settings(self) -> LearningSettings:
        return replace(self.settings, steps=self.few_steps)


class Perceptron(nn.Module):
    """Layers with rectifiers, then a linear head; dropout before the head."""

    def __init__(self, *sizes: int, classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(sizes))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(sizes[-1], classes)

    def hidden(self, x: Tensor) -> Tensor:
        """x: float32 [batch, sizes[0]] to [batch, sizes[-1]]."""
        for layer in self.layers:
            x = functional.relu(layer(x))
        dropped: Tensor = self.dropout(x)
        return dropped

    def forward(self, x: Tensor) -> Tensor:
        """Logits [batch, classes]."""
        logits: Tensor = self.head(self.hidden(x))
        return logits


class HistogramCNN(nn.Module):
    """Convolutions over the three histograms of a window, beside its other 13 features."""

    def __init__(self, classes: int, width: int = 32) -> None:
        super().__init__()
        self.first = nn.Conv1d(3, width, 3, padding=1)
        self.second = nn.Conv1d(width, width, 3, padding=1)
        self.joined = nn.Linear(5 * width + 13, 2 * width)
        self.head = nn.Linear(2 * width, classes)

    def hidden(self, x: Tensor) -> Tensor:
        """x: float32 [batch, 43] to [batch, 2 width]."""
        y = functional.relu(self.first(x[:, :30].unflatten(1, (3, 10))))  # type: ignore[no-untyped-call]
        y = functional.max_pool1d(functional.relu(self.second(y)), 2).flatten(1)
        return functional.relu(self.joined(torch.cat([y, x[:, 30:]], 1)))

    def forward(self, x: Tensor) -> Tensor:
        """Logits [batch, classes]."""
        logits: Tensor = self.head(self.hidden(x))
        return logits


class TextClassifier(nn.Module):
    """Any Hugging Face encoder or decoder, mean and maximum over its tokens, and a head."""

    def __init__(self, model: nn.Module, classes: int) -> None:
        super().__init__()
        self.model = model
        config: Any = model.config
        self.head = nn.Linear(2 * config.hidden_size, classes)

    def hidden(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """ids int64 [batch, tokens], lengths int64 [batch] to [batch, 2 width]."""
        longest = int(lengths.max())
        ids = ids[:, :longest]
        real = torch.arange(longest)[None] < lengths[:, None]
        x: Tensor = self.model(input_ids=ids, attention_mask=real.long()).last_hidden_state
        mean = (x * real[..., None]).sum(1) / lengths[:, None]
        return torch.cat([mean, x.masked_fill(~real[..., None], -torch.inf).amax(1)], 1)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Logits [batch, classes]."""
        logits: Tensor = self.head(self.hidden(ids, lengths))
        return logits


def keyword_learner(architecture: str, samples: Samples, kept: Path, _data: Path) -> Learner:
    """A keyword model, trained before on three other speakers, with a LoRA adapter."""
    path = kept / f"{architecture}.safetensors"
    if not path.is_file():
        clips = load_clips(fsdd_path("train"), SPEAKERS)
        save_file(pretrain(*clips, architecture=architecture).state_dict(), _beside(path))
        _beside(path).replace(path)
    state = load_file(path)

    def make() -> nn.Module:
        module = ARCHITECTURES[architecture]()
        module.load_state_dict(state)
        add_keyword_lora(module)
        return module.eval()

    settings = LearningSettings(steps=1200, learning_rate=5e-3)
    if architecture == "keyword":
        settings = replace(settings, steps=800, learning_rate=2e-3)
    inputs = (torch.from_numpy(samples.columns["features"]),)
    return Learner(make, inputs, settings, few_steps=60, augment=augment)


def tabular_learner(name: str, samples: Samples, _kept: Path, _data: Path) -> Learner:
    """A model of sensor features that begins with nothing learned."""
    features, classes = torch.from_numpy(samples.columns["features"]), len(samples.labels)

    def make() -> nn.Module:
        torch.manual_seed(0)
        if name == "cnn":
            return HistogramCNN(classes).eval()
        return Perceptron(features.shape[1], 128, 128, classes=classes, dropout=0.2).eval()

    return Learner(make, (features,), LearningSettings(1500, 2e-3), few_steps=200)


def text_learner(name: str, samples: Samples, kept: Path, data: Path) -> Learner:
    """A language model that learns with all its weights, by name or folder."""
    if name == SMALL_GPT2:
        folder = str(small_gpt2(kept, data))
    else:
        folder = str(data / "models" / name) if name == STORIES else name
    pretrained = load_model(folder)
    state, classes = pretrained.state_dict(), len(samples.labels)

    def make() -> nn.Module:
        torch.manual_seed(0)
        fresh = type(pretrained)(pretrained.config)
        fresh.load_state_dict(state)
        return TextClassifier(fresh, classes).eval()

    settings = LearningSettings(steps=600, learning_rate=3e-3)
    return Learner(make, _to_tokens(folder, samples), settings, few_steps=200)


def embedding_learner(name: str, samples: Samples, kept: Path, _data: Path) -> Learner:
    """An encoder that stays as it is, and a head that learns from its embeddings."""
    inputs = _embedded(name, samples, kept)
    classes, is_pair = len(samples.labels), "seconds" in samples.columns

    def make() -> nn.Module:
        torch.manual_seed(0)
        width = inputs.shape[1]
        if is_pair:
            return Perceptron(width, 256, classes=classes, dropout=0.3).eval()
        return Perceptron(width, classes=classes).eval()

    settings = LearningSettings(steps=2500, learning_rate=1e-2, batch=64)
    if is_pair:
        settings = LearningSettings(steps=1000, learning_rate=1e-3, batch=64, weight_decay=0.1)
    return Learner(make, (inputs,), settings, few_steps=600)


def _to_tokens(folder: str, samples: Samples) -> tuple[Tensor, Tensor]:
    """ids int64 [samples, tokens] and lengths int64 [samples]."""
    is_pair = "seconds" in samples.columns
    tokenizer = load_tokenizer(folder)
    texts = samples.columns["texts"]
    if is_pair:
        texts = [
            f"{one} | {two}" for one, two in zip(texts, samples.columns["seconds"], strict=True)
        ]
    most = TOKENS_OF_PAIR if is_pair else TOKENS
    rows = [tokenizer(text, add_special_tokens=False)["input_ids"][-most:] for text in texts]
    ids = torch.zeros(len(rows), most, dtype=torch.int64)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = torch.tensor(row)
    return ids, torch.tensor([max(1, len(row)) for row in rows])


def _embedded(name: str, samples: Samples, kept: Path) -> Tensor:
    """Embeddings of the samples, for a pair both, their difference and product; kept on disk."""
    path = kept / f"embeddings-{name.replace('/', '-')}-{len(samples.target)}.npy"
    if not path.is_file():
        columns = [samples.columns[key] for key in ("texts", "seconds") if key in samples.columns]
        np.save(_beside(path), np.stack([_embed(name, texts) for texts in columns]))
        _beside(path).replace(path)
    parts = [functional.normalize(torch.from_numpy(part), dim=1) * LENGTH for part in np.load(path)]
    if len(parts) == 1:
        return parts[0]
    first, second = parts
    return torch.cat([first, second, (first - second).abs(), first * second], 1)


def _embed(name: str, texts: list[str]) -> Any:
    tokenizer, model = load_tokenizer(name), load_model(name)
    unique = sorted(set(texts), key=len)
    found: dict[str, Tensor] = {}
    with torch.no_grad():
        for at in range(0, len(unique), EMBEDDED_AT_ONCE):
            some = unique[at : at + EMBEDDED_AT_ONCE]
            tokens = tokenizer(some, padding=True, truncation=True, max_length=TOKENS_OF_PAIR,
                               return_tensors="pt")  # fmt: skip
            hidden, real = model(**tokens).last_hidden_state, tokens["attention_mask"][..., None]
            found |= dict(zip(some, (hidden * real).sum(1) / real.sum(1), strict=True))
    return torch.stack([found[text] for text in texts]).numpy()


def _beside(path: Path) -> Path:
    return path.with_suffix(f".unfinished{path.suffix}")


Make = Callable[[str, Samples, Path, Path], Learner]
LEARNERS: Final[Mapping[str, tuple[Make, str]]] = {
    **{name: (keyword_learner, name) for name in ARCHITECTURES},
    "wisdm-mlp": (tabular_learner, "mlp"),
    "wisdm-cnn": (tabular_learner, "cnn"),
    STORIES: (text_learner, STORIES),
    SMALL_GPT2: (text_learner, SMALL_GPT2),
    GT_MINILM: (embedding_learner, GT_MINILM),
}


def make_learner(
    name: str, samples: Samples, kept: Path, data: Path, *, is_teacher: bool
) -> Learner:
    """The learner of a name; another name is that of a Hugging Face model. TransferError."""
    if name in LEARNERS:
        make, model = LEARNERS[name]
        return make(model, samples, kept, data)
    if "texts" not in samples.columns:
        raise TransferError(f"{name} is no model of this task: choose one of {', '.join(LEARNERS)}")
    make = embedding_learner if is_teacher else text_learner
    return make(name, samples, kept, data)
