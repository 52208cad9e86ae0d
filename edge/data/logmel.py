"""Sound to log-mel features, as the shipped keyword model knows them; sound from .wav files.

A second of sound at 8 kHz becomes 50 frames of 32 mel bands. With these numbers the features of the
recordings in models/zoo/fsdd come out bit for bit.
"""

import io
import math
import wave
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge.errors import DataError
from ternmesh_store.files import read_file

RATE = 8000  # Hz
FRAMES, MELS = 50, 32
WINDOW, HOP, FFT = 240, 160, 256  # samples of sound: 30 ms, 20 ms
CLIP = (FRAMES - 1) * HOP + WINDOW  # samples that the frames cover
LOW_HZ, HIGH_HZ = 60.0, 3900.0
QUIET, LOUD = -6.0, 3.0  # log10 of power; 0 and 1 as features
RATES = (1000, 384_000)  # Hz, of a .wav file
WAV_BYTES_MAX, WAV_S = 16 << 20, 2
TAPS = 16  # of the low-pass filter, on each side, for each sample that it leaves out

Sound = NDArray[np.float32]  # [samples], -1 to 1


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


@cache
def _mel_bank() -> NDArray[np.float64]:
    """[129, 32] weights: triangles whose corners are equally far apart on O'Shaughnessy's scale."""
    low, high = (2595 * math.log10(1 + hz / 700) for hz in (LOW_HZ, HIGH_HZ))
    corners = 700 * (10 ** (np.linspace(low, high, MELS + 2) / 2595) - 1)
    begin, peak, end = corners[:-2], corners[1:-1], corners[2:]
    hz = np.fft.rfftfreq(FFT, 1 / RATE)[:, None]
    rise, fall = (hz - begin) / (peak - begin), (end - hz) / (end - peak)
    return np.maximum(0.0, np.minimum(rise, fall))


def resample(sound: Sound, rate: int) -> Sound:
    """`sound` of `rate` Hz at 8 kHz: a low-pass filter (windowed sinc), then straight lines."""
    if not len(sound):
        return sound
    if rate > RATE:
        half = TAPS * math.ceil(rate / RATE)
        at = np.arange(-half, half + 1)
        taps = np.sinc(at * 0.9 * RATE / rate) * np.hamming(len(at))
        sound = np.convolve(np.pad(sound, half), taps / taps.sum(), "valid")
    times = np.arange(0, len(sound), rate / RATE)
    resampled: Sound = np.interp(times, np.arange(len(sound)), sound).astype(np.float32)
    return resampled


def read_clip(path: Path) -> Sound:
    """The first 2 s of a .wav file (PCM of 8, 16 or 32 bits) at 8 kHz, its channels mixed.

    DataError; OSError where the file cannot be read.
    """
    try:
        with wave.open(io.BytesIO(read_file(path, WAV_BYTES_MAX))) as file:
            rate, width, channels = file.getframerate(), file.getsampwidth(), file.getnchannels()
            data = file.readframes(WAV_S * rate)
    except (wave.Error, EOFError, ValueError, RuntimeError) as error:
        raise DataError(f"{path} is no .wav file of PCM ({error}): convert it") from error
    if width not in (1, 2, 4) or not RATES[0] <= rate <= RATES[1]:
        raise DataError(
            f"{path} has {8 * width} bits at {rate} Hz: convert it to PCM of 8, 16 or 32 bits, "
            f"{RATES[0]} to {RATES[1]} Hz"
        )
    whole = data[: len(data) - len(data) % (width * channels)]
    samples = np.frombuffer(whole, "u1" if width == 1 else f"<i{width}").astype(np.float32)
    scaled = (samples - 128 * (width == 1)) / (1 << (8 * width - 1))
    return resample(scaled.reshape(-1, channels).mean(1), rate)
