"""Text to train on, to choose rates with, and to judge: three sets of documents without overlap.

Bytes of the books in the data folder, or tokens of the Python sources of the installed packages,
the largest text that is everywhere. Whole folders are held out.
"""

import hashlib
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

VOCABULARY = 16_384
SHARES = {"chosen": 6, "judged": 12}  # of 256: folders whose name's hash begins below
COPIES = "transformers"  # its models are copies of each other: held-out text would not be new
FILE_BYTES_MAX, LINE_MEAN_MAX = 300_000, 100  # what is longer is data, not written by people
PACKAGE_CHARACTERS_MAX, TRAIN_CHARACTERS_MAX = 12_000_000, 90_000_000
HELD_OUT_CHARACTERS_MAX, FITTED_CHARACTERS = 2_000_000, 20_000_000


@dataclass(frozen=True, slots=True)
class Corpus:
    """Tokens of the three sets; rates are chosen on `chosen`, and `judged` is looked at once."""

    train: NDArray[np.int32]
    chosen: NDArray[np.int32]
    judged: NDArray[np.int32]
    vocabulary: int

    @property
    def sizes(self) -> dict[str, int | str]:
        """Tokens of each set, and 16 hex digits that identify the training text."""
        digest = hashlib.sha256(self.train.tobytes()).hexdigest()[:16]
        sizes = {name: len(getattr(self, name)) for name in ("train", "chosen", "judged")}
        return {**sizes, "train_sha256": digest}

    def save(self, path: Path) -> None:
        """Write it where `load` finds it."""
        np.savez(path, **{name: getattr(self, name) for name in self.__slots__})

    def batch(self, step: int, seed: int, rows: int, length: int) -> NDArray[np.int64]:
        """The batch of a step, [rows, length + 1]: it depends on seed and step only."""
        rng = np.random.default_rng((seed, step))
        return _windows(self.train, rng.integers(0, len(self.train) - length, rows), length)

    def held_out(self, name: str, parts: int, rows: int, length: int) -> list[NDArray[np.int64]]:
        """`parts` batches [rows, length + 1], evenly spread over the set `name`."""
        tokens = getattr(self, name)
        places = np.linspace(0, len(tokens) - length - 1, parts * rows).astype(np.int64)
        return [_windows(tokens, part, length) for part in places.reshape(parts, rows)]


def load(path: Path) -> Corpus:
    """What `save` wrote."""
    with np.load(path) as arrays:
        return Corpus(
            arrays["train"], arrays["chosen"], arrays["judged"], int(arrays["vocabulary"])
        )


def books(length: int) -> Corpus:
    """The bytes of the texts in the data folder: of the last 5 %, half chooses and half judges."""
    from experiments.data import find_data
    from host.pipeline.texts import read_texts

    texts = read_texts(find_data("text") / "text", length)
    middle = len(texts.validation) // 2
    train, held = (part.astype(np.int32) for part in (texts.train, texts.validation))
    return Corpus(train, held[:middle], held[middle:], 256)


def sources() -> Corpus:
    """Python sources of the installed packages as tokens of a byte-level BPE made from them."""
    from tokenizers import ByteLevelBPETokenizer

    documents = _documents(Path(sysconfig.get_paths()["purelib"]))
    model = ByteLevelBPETokenizer()
    fitted = _first(documents["train"], FITTED_CHARACTERS)
    model.train_from_iterator(fitted, vocab_size=VOCABULARY, show_progress=False)
    sets = []
    for name in ("train", *SHARES):
        limit = TRAIN_CHARACTERS_MAX if name == "train" else HELD_OUT_CHARACTERS_MAX
        encoded = model.encode_batch(_first(documents[name], limit))
        sets.append(np.concatenate([np.array(each.ids, np.int32) for each in encoded]))
    train, chosen, judged = sets
    return Corpus(train, chosen, judged, VOCABULARY)


def _documents(folder: Path) -> Mapping[str, Sequence[str]]:
    """The files of each set in an order by their hash; a content that was seen is left out."""
    found: dict[str, list[tuple[str, str]]] = {"train": [], "chosen": [], "judged": []}
    seen: set[str] = set()
    for package in sorted(folder.iterdir()):
        kept = 0
        is_read = package.is_dir() and package.name != COPIES
        for path in sorted(package.rglob("*.py")) if is_read else ():
            if path.stat().st_size > FILE_BYTES_MAX or kept > PACKAGE_CHARACTERS_MAX:
                continue
            text = path.read_text(errors="ignore")
            digest = hashlib.sha256(text.encode()).hexdigest()
            if digest in seen or len(text) > LINE_MEAN_MAX * (text.count("\n") + 1):
                continue
            seen.add(digest)
            kept += len(text)
            place = path.parent.relative_to(folder).as_posix()
            first = hashlib.sha256(place.encode()).digest()[0]
            which = next((name for name, end in SHARES.items() if first < end), "train")
            found[which].append((digest, text))
    return {name: [text for _, text in sorted(rows)] for name, rows in found.items()}


def _first(documents: Sequence[str], characters: int) -> list[str]:
    ends = np.cumsum([len(text) for text in documents])
    return list(documents[: int(np.searchsorted(ends, characters)) + 1])


def _windows(
    tokens: NDArray[np.int32], places: NDArray[np.int64], length: int
) -> NDArray[np.int64]:
    windows: NDArray[np.int64] = tokens[places[:, None] + np.arange(length + 1)].astype(np.int64)
    return windows
