"""The models and clips that ternmesh ships, by name; needs neither torch nor onnxruntime."""

from pathlib import Path

FOLDER = Path(__file__).parent
SPLITS = ("train", "dev")


def package_path(name: str) -> Path:
    """The folder of a shipped model package, such as "keyword"; ValueError for another name."""
    folder = FOLDER / name
    if not (folder / "model.json").is_file():
        shipped = sorted(path.parent.name for path in FOLDER.glob("*/model.json"))
        raise ValueError(f"no model is called {name!r}: choose one of {', '.join(shipped)}")
    return folder


def fsdd_path(split: str) -> Path:
    """The spoken-digit clips of a split ("train" or "dev"), as .npz with x, y, speaker, index.

    x is uint8 log-mel [clips, 50, 32]; models take it as float32 / 255. See fsdd/ATTRIBUTION.md.
    """
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}: it must be one of {', '.join(SPLITS)}")
    return FOLDER / "fsdd" / f"fsdd_logmel_{split}.npz"


def rooms_path() -> Path:
    """Ten words in three voices as rows of a frozen front, as .npz with x, y, speaker, index, part.

    x is int8 [clips, 4, 96]; the model "words" takes it as float32 / 32. See fsdd/ATTRIBUTION.md.
    """
    return FOLDER / "fsdd" / "fsdd_rooms.npz"


def speech_path() -> Path:
    """Speech as rows of the front of models of words, as .npz with rows, scale, front.

    `rows` is int8 [rows, 96], one each 80 ms; times `scale` they are the front's. `front` is the
    SHA-256 of its front.onnx. See speech/ATTRIBUTION.md.
    """
    return FOLDER / "speech" / "speech_rows.npz"
