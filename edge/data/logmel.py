"""Sound to log-mel features, as the shipped keyword model knows them; sound from .wav files.

A second of sound at 8 kHz becomes 50 frames of 32 mel bands. With these numbers the features of the
recordings in models/zoo/fsdd come out bit for bit.
"""

import math
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge.errors import DataError
from ternmesh.model_package import FrontSpec, ModelPackage
from ternmesh_store.files import read_file

RATE = 8000  # Hz
FRAMES, MELS = 50, 32
WINDOW, HOP, FFT = 240, 160, 256  # samples of sound: 30 ms, 20 ms
CLIP = (FRAMES - 1) * HOP + WINDOW  # samples that the frames cover
LOW_HZ, HIGH_HZ = 60.0, 3900.0
QUIET, LOUD = -6.0, 3.0  # log10 of power; 0 and 1 as features
RATES = (1000, 384_000)  # Hz, of a .wav file
WAV_BYTES_MAX = 16 << 20
FLOAT_MAX = 8.0  # of full scale: louder floats are whole numbers that nobody has divided
SILENT = 1e-4  # of full scale: a microphone that is switched off
MOST, BEFORE = 0.99, 3  # of the sound in the loudest second; blocks of HOP before it begins
PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE  # formats; the last one names another at `SUBFORMAT`
SUBFORMAT = 24
_FORM, _TAG = struct.Struct("<HHIIHH"), struct.Struct("<H")
_KINDS = {
    (PCM, 8): "u1",
    (PCM, 16): "<i2",
    (PCM, 24): "<i4",
    (PCM, 32): "<i4",
    (FLOAT, 32): "<f4",
    (FLOAT, 64): "<f8",
}
BLOCK_S = 0.02  # of a stream that is resampled
NOISE = 0.316  # of a sound's level
ECHO, ECHO_S = 0.7, 0.06  # of a made room: the length of its echo by that of the sound; its decay
TAPS = 16  # of the low-pass filter, on each side, for each sample that it leaves out

Sound = NDArray[np.float32]  # [samples], -1 to 1
Note = Callable[[str], object]  # is told what is left out


def log_mel(sound: Sound) -> NDArray[np.float32]:
    """Features float32 [50, 32] in [0, 1] of the first second; shorter sound ends in silence."""
    clip = np.zeros(CLIP)
    clip[: len(sound)] = sound[:CLIP]
    frames = np.lib.stride_tricks.sliding_window_view(clip, WINDOW)[::HOP] * np.hanning(WINDOW)
    power = np.abs(np.fft.rfft(frames, FFT)) ** 2
    logs = np.clip(np.log10(power @ _mel_bank() + 10.0**QUIET), QUIET, LOUD)
    # In the steps of a byte, as the model was trained.
    features: Sound = np.round((logs - QUIET) / (LOUD - QUIET) * 255).astype(np.float32) / 255
    return features


def hears(package: ModelPackage) -> bool:
    """Whether the one input of a model is log-mel features, or sound for its front."""
    is_features = [spec.shape[1:] for spec in package.inputs] == [(FRAMES, MELS)]
    return package.front.rate > 0 if package.front else is_features


def clip_length(rate: int, front: FrontSpec | None = None) -> int:
    """The numbers of sound of `rate` Hz that a model takes at once."""
    return CLIP * rate // RATE if front is None else front.length * rate // front.rate


def model_input(sound: Sound, rate: int, front: FrontSpec | None = None) -> Sound:
    """What a model gets of a clip of `rate` Hz: `log_mel`, or the sound that its front takes.

    A short clip is in the middle of that: of words at its begin a front tells less.
    """
    if front is None:
        return log_mel(resample(sound, rate))
    taken = resample(sound, rate, front.rate)[: front.length]
    missing = front.length - len(taken)
    return np.pad(taken, (missing // 2, missing - missing // 2))


@cache
def _mel_bank() -> NDArray[np.float64]:
    """[129, 32] weights: triangles whose corners are equally far apart on O'Shaughnessy's scale."""
    low, high = (2595 * math.log10(1 + hz / 700) for hz in (LOW_HZ, HIGH_HZ))
    corners = 700 * (10 ** (np.linspace(low, high, MELS + 2) / 2595) - 1)
    begin, peak, end = corners[:-2], corners[1:-1], corners[2:]
    hz = np.fft.rfftfreq(FFT, 1 / RATE)[:, None]
    rise, fall = (hz - begin) / (peak - begin), (end - hz) / (end - peak)
    return np.maximum(0.0, np.minimum(rise, fall))


def resample(sound: Sound, rate: int, to: int = RATE) -> Sound:
    """`sound` of `rate` Hz at `to` Hz: a low-pass filter (windowed sinc), then straight lines."""
    if not len(sound) or rate == to:
        return sound
    if rate > to:
        half = TAPS * math.ceil(rate / to)
        at = np.arange(-half, half + 1)
        taps = np.sinc(at * 0.9 * to / rate) * np.hamming(len(at))
        sound = np.convolve(np.pad(sound, half), taps / taps.sum(), "valid")
    times = np.arange(0, len(sound), rate / to)
    resampled: Sound = np.interp(times, np.arange(len(sound)), sound).astype(np.float32)
    return resampled


def changed(sound: Sound, rate: int, rng: np.random.Generator) -> tuple[Sound, Sound]:
    """The same sound with made noise, 10 dB below it, and in a made room."""
    noise = rng.standard_normal(len(sound)) * (sound.std() * NOISE)
    times_s = np.arange(round(5 * ECHO_S * rate)) / rate
    echo = rng.standard_normal(len(times_s)) * np.exp(-times_s / ECHO_S)
    echo *= ECHO / np.linalg.norm(echo)
    size = len(sound) + len(echo)
    echoes = np.fft.irfft(np.fft.rfft(sound, size) * np.fft.rfft(echo, size), size)[: len(sound)]
    return (sound + noise).astype(np.float32), (sound + echoes).astype(np.float32)


class Resampler:
    """`resample` for a stream: piece by piece, it gives what the whole would give."""

    def __init__(self, rate: int, to: int) -> None:
        unit = rate // math.gcd(rate, to)  # numbers after which both rates meet
        self._rate, self._to = rate, to
        self._margin = 0 if rate == to else unit * math.ceil((TAPS * rate / to + TAPS) / unit)
        self._block = 1 if rate == to else unit * math.ceil(rate * BLOCK_S / unit)
        self._held = np.zeros(self._margin, np.float32)

    def take(self, sound: Sound) -> Sound:
        """What is known of the stream at the new rate; it comes a little later."""
        self._held = np.concatenate([self._held, sound])
        count = (len(self._held) - 2 * self._margin) // self._block * self._block
        if count <= 0:
            return np.zeros(0, np.float32)
        whole = resample(self._held[: count + 2 * self._margin], self._rate, self._to)
        self._held = self._held[count:]
        begin = self._margin * self._to // self._rate
        return whole[begin : begin + count * self._to // self._rate]


def loudest(sound: Sound, rate: int, front: FrontSpec | None = None) -> Sound:
    """The clip with the most sound, from just before that begins; all where it is no longer."""
    length, block = clip_length(rate, front) + 1, HOP * rate // RATE
    if len(sound) <= length:
        return sound
    power = sound[: len(sound) // block * block].reshape(-1, block).var(1, dtype=np.float64)
    sums = np.convolve(power, np.ones(max(1, length // block)), "valid")
    near = np.flatnonzero(sums >= MOST * sums.max())
    begin = max(near[0], near[-1] - BEFORE) * block
    return sound[begin : begin + length]


def read_clip(path: Path, note: Note = str, front: FrontSpec | None = None) -> Sound:
    """The loudest second of a .wav file at 8 kHz, or the loudest clip in the rate of a front.

    Its channels are mixed; `note` is told of the rest of the sound.

    PCM of 8, 16, 24 or 32 bits, or floats of 32 or 64. DataError; OSError where the file cannot be
    read.
    """
    try:
        form, data = _read_wav(read_file(path, WAV_BYTES_MAX))
        tag, channels, rate, _, block, bits = _FORM.unpack_from(form)
        if tag == EXTENSIBLE:
            (tag,) = _TAG.unpack_from(form, SUBFORMAT)
    except (ValueError, struct.error) as error:
        raise DataError(f"{path} is no whole .wav file ({error}): record or convert it") from error
    kind = _KINDS.get((tag, bits))
    is_known = kind and channels and block == channels * bits // 8
    if not is_known or not RATES[0] <= rate <= RATES[1]:
        raise DataError(
            f"{path} has format {tag} of {bits} bits at {rate} Hz, {channels} channels in {block} "
            f"bytes: convert it to PCM of 8, 16, 24 or 32 bits or to floats, {RATES[0]} to "
            f"{RATES[1]} Hz, with 1 channel"
        )
    used = data[: len(data) // block * block]
    if bits == 24:  # as 32 bits whose lowest are 0
        used = np.insert(np.frombuffer(used, "u1").reshape(-1, 3), 0, 0, axis=1).tobytes()
    samples = np.frombuffer(used, kind)
    if tag == PCM:
        zero, full = (128, 128) if bits == 8 else (0, 1 << 8 * np.dtype(kind).itemsize - 1)
        samples = (samples.astype(np.float32) - zero) / full
    if not (most := np.abs(samples).max(initial=0)) <= FLOAT_MAX:  # also for NaN
        raise DataError(f"{path} holds {most:g}: divide its numbers, floats of sound are -1 to 1")
    tracks = samples.astype(np.float32).reshape(-1, channels)
    mixed = tracks.mean(1)
    if len(tracks) and mixed.std() * channels < (alone := tracks.std(0)).max() / 2:
        mixed = tracks[:, alone.argmax()]  # the channels cancel each other
    sound = loudest(mixed, rate, front)
    if len(sound) * RATE < WINDOW * rate or sound.std() < SILENT:
        raise DataError(f"{path} is silent or under 30 ms: record it again, or leave it out")
    if len(sound) < len(mixed):
        note("sound beside the loudest second of a file")
    return resample(sound, rate, front.rate if front else RATE)


def _read_wav(data: bytes) -> tuple[bytes, bytes]:
    """The format and the sound of a RIFF file; ValueError where it holds less than it says."""
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        raise ValueError("it does not begin as one")
    form, at = b"", 12
    while at + 8 <= len(data):
        name, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        content = data[at + 8 : at + 8 + size]
        if name == b"data" and not size:
            raise ValueError("its header promises no sound")
        if len(content) < size:
            raise ValueError(f"its header promises {size} bytes, and {len(content)} are there")
        if name == b"fmt ":
            form = content
        elif name == b"data":
            return form, content
        at += 8 + size + size % 2
    raise ValueError("it holds no sound")
