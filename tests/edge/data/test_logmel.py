"""Log-mel features against a slow implementation, and .wav files."""

import math
import struct
import wave
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.data.logmel import CLIP, HOP, RATE, log_mel, read_clip, resample
from edge.errors import DataError

RNG = np.random.default_rng(3)


def slow_log_mel(sound: np.ndarray) -> np.ndarray:
    """The same, term by term: a Fourier sum, triangles and logarithms of one number at a time."""
    padded = [*map(float, sound), *[0.0] * CLIP][:CLIP]
    mel = [2595 * math.log10(1 + hz / 700) for hz in (60.0, 3900.0)]
    corners = [700 * (10 ** ((mel[0] + (mel[1] - mel[0]) * i / 33) / 2595) - 1) for i in range(34)]
    turn = np.exp(-2j * np.pi * np.outer(np.arange(129), np.arange(240)) / 256)
    rows = []
    for frame in range(50):
        part = padded[160 * frame : 160 * frame + 240]
        windowed = [v * (0.5 - 0.5 * math.cos(2 * math.pi * n / 239)) for n, v in enumerate(part)]
        power = [abs(value) ** 2 for value in turn @ np.array(windowed)]
        row = []
        for low, top, high in zip(corners, corners[1:], corners[2:], strict=False):
            total = 1e-6
            for bin_, energy in enumerate(power):
                hz = bin_ * 8000 / 256
                weight = min((hz - low) / (top - low), (high - hz) / (high - top))
                total += max(0.0, weight) * energy
            row.append(round((min(3.0, max(-6.0, math.log10(total))) + 6) / 9 * 255))
        rows.append(row)
    return np.array(rows)


@pytest.mark.parametrize("length", [0, 100, 5145, CLIP, 12_000])
def test_features_are_those_of_the_slow_implementation(length: int) -> None:
    times = np.arange(length) / RATE
    sound = 0.3 * np.sin(2 * np.pi * (200 + 900 * times) * times) + 0.01 * RNG.normal(size=length)
    features = log_mel(sound.astype(np.float32))
    assert features.shape == (50, 32)
    assert features.dtype == np.float32
    off = np.abs(np.round(features * 255) - slow_log_mel(sound.astype(np.float32)))
    assert off.max() <= 1  # where a value lies between two steps
    assert off.mean() < 0.01


def write_wav(path: Path, rate: int, width: int, channels: int, sound: np.ndarray) -> Path:
    scaled = np.repeat(np.round(sound * ((1 << (8 * width - 1)) - 1))[:, None], channels, 1)
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, width, rate, 0, "NONE", ""))
        data = (scaled + 128).astype("u1") if width == 1 else scaled.astype("<i4")
        whole = (
            data.tobytes() if width == 1 else data.view("u1").reshape(-1, 4)[:, :width].tobytes()
        )
        file.writeframes(whole)
    return path


MONO = (1, 1, 8000, 16_000, 2, 16)


def riff(
    path: Path, form: tuple[int, ...], sound: bytes, more: bytes = b"", promised: int | None = None
) -> Path:
    """A file with this format, and with the bytes of sound that its header promises."""
    head = struct.pack("<HHIIHH", *form) + more
    size = len(sound) if promised is None else promised
    body = b"fmt " + struct.pack("<I", len(head)) + head + b"data" + struct.pack("<I", size) + sound
    path.write_bytes(b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body)
    return path


@pytest.mark.parametrize("rate", [8000, 11_025, 16_000, 48_000])
@pytest.mark.parametrize(("width", "channels"), [(1, 1), (2, 2), (3, 2), (4, 1)])
def test_a_tone_is_the_same_at_any_rate(tmp_path, rate, width, channels) -> None:
    times = np.arange(rate) / rate
    path = write_wav(tmp_path / "a.wav", rate, width, channels, 0.5 * np.sin(5000 * times))
    sound = read_clip(path)
    assert abs(len(sound) - RATE) <= 1
    assert abs(sound[100:-100].mean()) < 0.001
    error = sound - 0.5 * np.sin(5000 * np.arange(len(sound)) / RATE)
    assert np.sqrt(np.mean(error[100:-100] ** 2)) < (0.05 if rate == 11_025 else 0.02)


def test_what_is_above_the_new_range_is_filtered_out() -> None:
    times = np.arange(48_000) / 48_000
    high = np.sin(2 * np.pi * 5000 * times).astype(np.float32)  # would become 3 kHz
    assert np.abs(resample(high, 48_000)[100:-100]).max() < 0.02


@pytest.mark.parametrize("loudness", [(1, -1), (1, -0.999), (0, 1, -1), (1, 0), (1, 0, 0, 0)])
def test_channels_that_cancel_each_other_are_no_silence(tmp_path, loudness) -> None:
    tone = np.round(9000 * np.sin(np.arange(800))).astype("<i2")
    tracks = np.outer(tone, loudness).astype("<i2")
    count = len(loudness)
    form = (1, count, 8000, 16_000 * count, 2 * count, 16)
    sound = read_clip(riff(tmp_path / "a.wav", form, tracks.tobytes()))
    mixed = tone / 32_768 if sum(loudness) < 1 else tracks.mean(1) / 32_768
    assert np.allclose(sound, mixed, atol=1e-4)


def test_a_file_of_another_kind_is_one_sentence(tmp_path) -> None:
    sound = np.zeros(80)
    for path, sentence in (
        (write_wav(tmp_path / "a.wav", 500, 2, 1, sound), "has format 1 of 16 bits at 500 Hz"),
        (riff(tmp_path / "b.wav", (7, 1, 8000, 8000, 1, 8), bytes(80)), "has format 7 of 8 bits"),
        (riff(tmp_path / "e.wav", (1, 0, 8000, 0, 0, 16), bytes(80)), "8000 Hz, 0 channels in 0 b"),
        (riff(tmp_path / "c.wav", MONO, b""), "its header promises no sound"),
        (riff(tmp_path / "f.wav", MONO, b"\0\0\xff\x3f\0\0"), "is silent or under 30 ms: record"),
        *(
            (
                write_wav(tmp_path / f"{n}.wav", RATE, 2, 1, np.full(n * RATE, 0.25)),  # an offset
                "is silent or under 30 ms: record it again, or",
            )
            for n in (1, 3)
        ),
        (riff(tmp_path / "d.wav", MONO, bytes(80), promised=99), "promises 99 bytes, and 80 are"),
    ):
        with pytest.raises(DataError, match=sentence):
            read_clip(path)


def test_floats_and_an_extensible_header_are_read(tmp_path) -> None:
    tone = (0.5 * np.sin(np.arange(800))).astype(np.float32)
    plain = riff(tmp_path / "a.wav", (3, 1, 8000, 32_000, 4, 32), tone.tobytes())
    assert np.array_equal(read_clip(plain), tone)
    whole = struct.pack("<HHI", 22, 32, 0) + struct.pack("<H", 3) + bytes(14)
    path = riff(tmp_path / "b.wav", (0xFFFE, 1, 8000, 32_000, 4, 32), tone.tobytes(), whole)
    assert np.array_equal(read_clip(path), tone)
    for scale, shown in ((np.nan, "nan"), (18_000, "8999"), (2e300, "9.9"), (20, "9.9")):
        loud = (tone * np.float64(scale)).tobytes()
        with pytest.raises(DataError, match=f"holds {shown}.*: divide its .* -1 to 1"):
            read_clip(riff(tmp_path / "c.wav", (3, 1, 8000, 64_000, 8, 64), loud))


@given(st.binary(max_size=64), st.integers(0, 64), st.integers(0, 64))
def test_any_bytes_are_sound_or_refused(tmp_path_factory, data, at, size) -> None:
    path = tmp_path_factory.getbasetemp() / "any.wav"
    good = write_wav(path, 8000, 2, 1, np.zeros(32)).read_bytes()
    for content in (data, good[:at], good[:at] + data + good[at + size :]):
        path.write_bytes(content)
        with suppress(DataError):
            assert read_clip(path).dtype == np.float32


@pytest.mark.parametrize("at", [0.0, 0.5, 2.0, 4.5])
@pytest.mark.parametrize("rate", [8000, 44_100])
def test_the_loudest_second_has_the_word_wherever_it_is(tmp_path, rate, at) -> None:
    rng = np.random.default_rng(2)
    sound = 0.001 * rng.standard_normal(5 * rate)
    begin, word = round(at * rate), round(0.5 * rate)
    sound[begin : begin + word] += 0.3 * np.sin(np.arange(word) / rate * 5000)
    path = write_wav(tmp_path / "a.wav", rate, 2, 1, sound)
    clip = read_clip(path)
    assert -HOP <= len(clip) - CLIP <= 2
    assert abs((clip**2).sum() / RATE - 0.3**2 / 4) < 0.002
