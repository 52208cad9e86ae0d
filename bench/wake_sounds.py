"""The sounds of `bench wake_word`, and their rows: each is made once and kept in build/wake_word.

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
Word = tuple[int, ...]  # its digits

KEPT = Path(__file__).parents[1] / "build" / "wake_word"
PHONE = 8000  # Hz
LEAD_S, AFTER_S, GAP_S = 2.1, 1.2, 0.4  # before a word, after it, and between two files
FAINT = 3e-4  # RMS of the noise in a quiet room, of 1
CLIP_ROWS, LAST = 28, 19  # of a word's clip, and the first whose window holds its end
CONDITIONS = ("clean", "noise", "room")
SPEAKERS = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")
RECORDED, JUDGED = range(10, 20), range(5, 10)  # takes of the training part, and of the other
SPEECH = {  # folders in /usr/share/asterisk
    "english": "sounds/en_US_f_Allison", "spanish": "sounds/es_MX_f_Allison",
    "french": "sounds/fr_CA_f_June", "italian": "sounds/it_IT_m_Carlo",
    "italian 2": "sounds/it_IT_f_Menardi", "russian": "sounds/ru_RU_f_IvrvoiceRU",
    "spanish 2": "sounds/es", "french 2": "sounds/fr", "music": "moh",
}  # fmt: skip
READ = {  # licences that espeak-ng reads, and its voices
    "GPL-3": "en-us+f2", "MPL-2.0": "en-gb+m3", "Apache-2.0": "en-us+m7", "GFDL-1.3": "en-gb+f4",
}  # fmt: skip
SAID = {10: "hello", 11: "house"}  # "digits" that espeak-ng says, at 16 kHz, in a voice for each
VOICES = ("en-us", "en-gb", "en-us+f2", "en-us+m3", "en-gb+f4", "en-gb+m7")
WIDE = " wide"  # of a licence's name: at 16 kHz
MISSING = (
    "apt-get install espeak-ng sox asterisk-core-sounds-{en,es,fr,it,ru}-wav asterisk-prompt-es-co "
    "asterisk-prompt-fr-armelle asterisk-prompt-it-menardi-wav asterisk-moh-opsound-wav"
)


def stream(name: str) -> Array:
    """The rows of all speech in a language, of the music, or of a licence that is read aloud."""
    return _kept(name, lambda: _rows_of(sound_of(name)))


def clips(word: Word, speaker: str, what: str) -> Array:
    """Rows of clips "recorded" or "judged", float32 [clips, conditions, CLIP_ROWS, 96]."""

    def make() -> Array:
        rng = np.random.default_rng([SPEAKERS.index(speaker), what == "judged", *word])
        takes = [(a, b) for a in JUDGED for b in JUDGED]
        if what == "recorded":
            takes = [(take, RECORDED[take - 13]) for take in RECORDED]
        rate = shelf.RATE if word[0] in SAID else PHONE
        made = []
        for pair in takes:
            quiet = np.zeros(int(rng.uniform(0.02, 0.15) * rate), np.float32)
            said = [_take(speaker, *one) for one in zip(word, pair, strict=False)]
            sound = np.concatenate([said[0], *([quiet, said[1]] if len(said) > 1 else [])])
            made += [_scene(sound, how, rng, rate) for how in CONDITIONS]
        return np.array(made).reshape(len(takes), len(CONDITIONS), CLIP_ROWS, shelf.WIDTH)

    return _kept(f"{''.join(map(str, word))} {speaker} {what}", make)


@cache
def shelf_model() -> LoadedModel:
    """The package `wake-word` of the shelf, as a board has it before it learns."""
    if not (folder := KEPT / "model").exists():
        shelf.add("wake-word", folder, ("other", "wake"))
    return load_model(folder)


def spoken(text: str, voice: str, *options: str) -> Array:
    """What espeak-ng says, at 16 kHz."""
    heard = _sound(_output("espeak-ng", "--stdout", "-v", voice, *options, text))
    return np.asarray(resample_poly(heard, 320, 441), np.float32)  # from 22,050 Hz


def _take(speaker: str, digit: int, take: int) -> Array:
    if digit not in SAID:
        return _digits()[speaker, digit, take]
    speed, pitch = 130 + 37 * take % 60, 35 + 23 * take % 30
    voice = VOICES[SPEAKERS.index(speaker)]
    return spoken(SAID[digit], voice, "-s", str(speed), "-p", str(pitch))


def _scene(word: Array, how: str, rng: np.random.Generator, rate: int) -> Array:
    """Rows of a word in a quiet room, in noise at 10 dB, or in another room.

    That has a tail as loud as the word, 60 dB down after 0.5 s, and a microphone further away.
    """
    lead, after = (np.zeros(int(rate * s), np.float32) for s in (LEAD_S, AFTER_S))
    sound = np.concatenate([lead[: rng.integers(len(lead) - rate // 10, len(lead))], word])
    end, sound = shelf.RATE // rate * len(sound), np.concatenate([sound, after])
    if how == "room":
        tail = rng.standard_normal(rate // 2) * 10 ** (-3 * np.linspace(0, 1, rate // 2))
        tail /= np.linalg.norm(tail)
        tail[0] = 1
        sound = rng.uniform(0.3, 1) * fftconvolve(sound, tail)[: len(sound)]
    level = FAINT if how != "noise" else 10 ** (-10 / 20) * np.sqrt(np.mean(word**2))
    first = -(-(end - shelf.WINDOW) // shelf.HOP) - LAST
    whole = _up(sound + level * _pink(len(sound), rng), rate)[first * shelf.HOP :]
    return _rows_of(whole[: shelf.WINDOW + (CLIP_ROWS - 1) * shelf.HOP])


def _rows_of(sound: Array) -> Array:
    """The rows of a stream at 16 kHz, float32 [hops, 96]."""
    starts = range(0, len(sound) - shelf.WINDOW + 1, shelf.HOP)
    rows = [_front().row(sound[at : at + shelf.WINDOW]) for at in starts]
    return np.array(rows, np.float32).reshape(-1, shelf.WIDTH)


@cache
def _front() -> Front:
    return Front(shelf_model())


def _kept(name: str, make: Callable[[], Array]) -> Array:
    path = KEPT / f"{name}.npy"
    if not path.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        np.save(path, make())
        print(f"made the rows of {name}", flush=True)
    return np.asarray(np.load(path))


@cache
def _digits() -> dict[tuple[str, int, int], Array]:
    """The spoken digits by speaker, digit and take."""
    words: dict[tuple[str, int, int], Array] = {}
    for part in ("train", "dev"):
        with np.load(find_data("sensors") / "sensors" / f"fsdd_wav_{part}.npz") as file:
            data = {name: file[name] for name in file.files}
        sounds = np.split(data["sound"] / np.float32(32_768), np.cumsum(data["length"])[:-1])
        keys = zip(data["speaker"], data["digit"], data["take"], strict=True)
        words |= {(str(s), int(d), int(t)): x for (s, d, t), x in zip(keys, sounds, strict=True)}
    return words


def sound_of(name: str) -> Array:
    """All sound of a stream at 16 kHz; see `stream`."""
    licence, rate = name.removesuffix(WIDE), shelf.RATE if name.endswith(WIDE) else PHONE
    if licence in READ:
        sound = spoken(Path("/usr/share/common-licenses", licence).read_text(), READ[licence])
        sound = sound if rate == shelf.RATE else resample_poly(sound, PHONE, shelf.RATE)
    else:
        folder = Path(os.environ.get("TERNMESH_SOUNDS", "/"), "usr/share/asterisk", SPEECH[name])
        files = [p for p in sorted(folder.rglob("*.*")) if p.suffix in (".wav", ".gsm")]
        if not files:
            raise DataMissing(f"no speech in {folder}: {MISSING}")
        gap = np.zeros(int(GAP_S * PHONE), np.float32)
        read = (_read(path) for path in files if "silence" not in path.parts)
        sound = np.concatenate([part for one in read for part in (one, gap)])
    return _up(sound + FAINT * _pink(len(sound), np.random.default_rng(1)), rate)


def _read(path: Path) -> Array:
    if path.suffix == ".wav":
        return _sound(path.read_bytes())
    return _sound(_output("sox", str(path), "-t", "wav", "-b", "16", "-e", "signed", "-"))


def _output(*command: str) -> bytes:
    if shutil.which(command[0]) is None:
        raise DataMissing(f"{command[0]} is missing: {MISSING}")
    return subprocess.run(command, check=True, capture_output=True).stdout


def _sound(data: bytes) -> Array:
    with wave.open(io.BytesIO(data)) as file:
        return np.float32(1 / 32_768) * np.frombuffer(file.readframes(1 << 30), "<i2")


def _pink(size: int, rng: np.random.Generator) -> Array:
    """Noise with equal power in each octave, of RMS 1."""
    spectrum = np.fft.rfft(rng.standard_normal(size))
    noise = np.fft.irfft(spectrum / np.sqrt(np.maximum(1, np.arange(len(spectrum)))), size)
    return np.asarray(noise / noise.std(), np.float32)


def _up(sound: NDArray[np.floating], rate: int) -> Array:
    return np.asarray(resample_poly(sound, shelf.RATE // rate, 1), np.float32)
