"""The sounds of `bench wake_word`, and their rows: each is made once and kept in a folder.

Speech and music are Debian packages (telephone sound, 8 kHz); TERNMESH_SOUNDS names the folder that
they are in if they are not installed. Noise and rooms are made here, from seeds.
"""

import io
import os
import shutil
import subprocess
import wave
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.signal import fftconvolve, resample_poly

from edge.data.front import Front
from edge.onnx.session import LoadedModel, load_model
from experiments.data import DataMissing, find_data
from models import shelf

Array = NDArray[np.float32]
Words = dict[tuple[str, int, int], Array]  # by speaker, digit and take

KEPT = Path(__file__).parents[1] / "build" / "wake_word"
RATE, PHONE = 16_000, 8000  # Hz: of the front, and of telephone sound
LEAD_S, AFTER_S, GAP_S = 2.1, 1.2, 0.4  # before a word, after it, and between two files
FAINT = 3e-4  # RMS of the noise in a quiet room, of 1
CONDITIONS = ("clean", "noise", "room")
SPEECH = {  # the folders of languages and music, by what they are called here
    "english": "sounds/en_US_f_Allison",
    "spanish": "sounds/es_MX_f_Allison",
    "french": "sounds/fr_CA_f_June",
    "italian": "sounds/it_IT_m_Carlo",
    "italian 2": "sounds/it_IT_f_Menardi",
    "russian": "sounds/ru_RU_f_IvrvoiceRU",
    "spanish 2": "sounds/es",
    "french 2": "sounds/fr",
    "music": "moh",
}
# Read by espeak-ng, then brought down to telephone sound: licence and voice
READ = {
    "GPL-3": "en-us+f2", "MPL-2.0": "en-gb+m3", "Apache-2.0": "en-us+m7", "GFDL-1.3": "en-gb+f4",
}  # fmt: skip
MISSING = (
    "apt-get install espeak-ng sox asterisk-core-sounds-{en,es,fr,it,ru}-wav asterisk-prompt-es-co "
    "asterisk-prompt-fr-armelle asterisk-prompt-it-menardi-wav asterisk-moh-opsound-wav"
)


def digits() -> Words:
    """The spoken digits at 8 kHz, float32 of -1 to 1; takes from 10 on are the training part."""
    words = {}
    for part in ("train", "dev"):
        with np.load(find_data("sensors") / "sensors" / f"fsdd_wav_{part}.npz") as file:
            data = {name: file[name] for name in file.files}
        sounds = np.split(data["sound"], np.cumsum(data["length"])[:-1])
        keys = zip(data["speaker"], data["digit"], data["take"], sounds, strict=True)
        for speaker, digit, take, sound in keys:
            words[str(speaker), int(digit), int(take)] = sound.astype(np.float32) / 32_768
    return words


def scene(word: Array, rate: int, how: str, rng: np.random.Generator) -> tuple[Array, int]:
    """A word in a quiet room, in noise at 10 dB or in another room, at 16 kHz, and where it ends.

    The other room has a tail as loud as the word, 60 dB down after 0.5 s, and a microphone
    further away.
    """
    lead, after = (np.zeros(int(rate * s), np.float32) for s in (LEAD_S, AFTER_S))
    sound = np.concatenate([lead[: rng.integers(len(lead) - rate // 10, len(lead))], word])
    end, sound = len(sound), np.concatenate([sound, after])
    if how == "room":
        tail = rng.standard_normal(rate // 2) * 10 ** (-3 * np.linspace(0, 1, rate // 2))
        tail /= np.linalg.norm(tail)
        tail[0] = 1
        sound = rng.uniform(0.3, 1) * fftconvolve(sound, tail)[: len(sound)]
    level = FAINT if how != "noise" else 10 ** (-10 / 20) * np.sqrt(np.mean(word**2))
    return _up(sound + level * _pink(len(sound), rng), rate), end * RATE // rate


def scene_rows(word: Array, rate: int, how: str, rng: np.random.Generator) -> Array:
    """28 rows of a scene; the one at 19 is the first whose window holds the word's end."""
    sound, end = scene(word, rate, how, rng)
    first = -(-(end - shelf.WINDOW) // shelf.HOP) - 19
    return rows_of(sound[first * shelf.HOP :][: shelf.WINDOW + 27 * shelf.HOP])


def rows_of(sound: Array) -> Array:
    """The rows of a stream at 16 kHz, float32 [hops, 96]."""
    starts = range(0, len(sound) - shelf.WINDOW + 1, shelf.HOP)
    rows = [_front().row(sound[at : at + shelf.WINDOW]) for at in starts]
    return np.asarray(rows, np.float32).reshape(-1, shelf.WIDTH)


def stream(name: str) -> Array:
    """The rows of all speech in a language, of the music, or of a licence that is read aloud."""
    return kept(name, lambda: rows_of(_whole(name)))


def kept(name: str, make: Callable[[], Array]) -> Array:
    """An array that is made once."""
    path = KEPT / f"{name}.npy"
    if not path.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        np.save(path, make())
        print(f"made the rows of {name}", flush=True)
    return np.asarray(np.load(path))


def spoken(text: str, voice: str, *options: str) -> Array:
    """Synthetic speech at 16 kHz."""
    data = _output(["espeak-ng", "--stdout", "-v", voice, *options, text])
    return resample_poly(_numbers(data), 320, 441).astype(np.float32)  # from 22,050 Hz


def _whole(name: str) -> Array:
    rng = np.random.default_rng(1)
    if name in READ:
        text = Path("/usr/share/common-licenses", name).read_text()
        sound = resample_poly(spoken(text, READ[name]), 1, 2)
    else:
        folder = Path(os.environ.get("TERNMESH_SOUNDS", "/"), "usr/share/asterisk", SPEECH[name])
        files = sorted(p for p in folder.rglob("*") if p.suffix in (".wav", ".gsm"))
        if not files:
            raise DataMissing(f"no speech in {folder}: {MISSING}")
        gap = np.zeros(int(GAP_S * PHONE), np.float32)
        read = (_read(path) for path in files if "silence" not in path.parts)
        sound = np.concatenate([part for sound in read for part in (sound, gap)])
    return _up(sound + FAINT * _pink(len(sound), rng), PHONE)


def _read(path: Path) -> Array:
    if path.suffix == ".wav":
        return _numbers(path.read_bytes())
    return _numbers(_output(["sox", str(path), "-t", "wav", "-b", "16", "-e", "signed", "-"]))


def _output(command: list[str]) -> bytes:
    if shutil.which(command[0]) is None:
        raise DataMissing(f"{command[0]} is missing: {MISSING}")
    return subprocess.run(command, check=True, capture_output=True).stdout


def _numbers(data: bytes) -> Array:
    with wave.open(io.BytesIO(data)) as file:
        return np.frombuffer(file.readframes(1 << 30), "<i2").astype(np.float32) / 32_768


def _pink(size: int, rng: np.random.Generator) -> Array:
    """Noise with equal power in each octave, of RMS 1."""
    spectrum = np.fft.rfft(rng.standard_normal(size))
    noise = np.fft.irfft(spectrum / np.sqrt(np.maximum(1, np.arange(len(spectrum)))), size)
    return (noise / noise.std()).astype(np.float32)


def _up(sound: Array, rate: int) -> Array:
    return resample_poly(sound, RATE // rate, 1).astype(np.float32)


@cache
def shelf_model() -> LoadedModel:
    """The package `wake-word` of the shelf, as a board has it before it learns."""
    if not (folder := KEPT / "model").exists():
        shelf.add("wake-word", folder, ("other", "wake"))
    return load_model(folder)


@cache
def _front() -> Front:
    return Front(shelf_model())
