"""Words from a microphone: the gate on its own, and arecord with ALSA's file and null devices."""

import os
import sys

import numpy as np
import pytest

from edge.data.live.microphone import SILENT_S, EnergyGate
from edge.data.logmel import CLIP, RATE
from edge.errors import DataError

ALSA = """
pcm.quiet {{ type null }}
pcm.words {{ type file  slave.pcm "quiet"  file "{outfile}"  infile "{infile}"  format "raw" }}
"""
RNG = np.random.default_rng(5)


def noise(seconds: float, level: float = 0.01, rate: int = RATE) -> np.ndarray:
    return (level * RNG.normal(size=round(seconds * rate))).astype(np.float32)


def cut(*parts: np.ndarray, rate: int = RATE, pieces: int = 1000) -> list[np.ndarray]:
    gate, sound = EnergyGate(rate, CLIP * rate // RATE), np.concatenate(parts)
    return [clip for at in range(0, len(sound), pieces) for clip in gate.take(sound[at:][:pieces])]


@pytest.mark.parametrize("pieces", [37, 1000, 100_000])
def test_a_word_is_one_clip(pieces: int) -> None:
    clips = cut(noise(1), noise(0.4, 0.3), noise(1), noise(0.5, 0.2), noise(1), pieces=pieces)
    assert [round(len(clip) / RATE, 1) for clip in clips] == [0.4, 0.5]
    assert np.abs(clips[0][: RATE // 50]).max() < 0.1 < np.abs(clips[0][RATE // 5 :]).max()


@pytest.mark.parametrize(
    ("parts", "lengths"),
    [
        ([np.zeros(8000, np.float32), noise(3.0)], []),  # a card begins with zeros
        ([np.zeros(8000, np.float32), noise(1.0), noise(0.5, 0.3), noise(1.0)], [4320]),
        ([noise(1), noise(1.8, 0.3), noise(1)], [CLIP]),  # a long word is cut
        ([noise(10)], []),
        ([np.zeros(10 * RATE, np.float32)], []),
        ([noise(1), noise(0.02, 0.5), noise(1)], []),  # a click
        ([noise(1), noise(20, 0.1), noise(0.5, 0.9), noise(1, 0.1)], [CLIP, 4480]),  # louder room
    ],
)
def test_what_is_a_word(parts: list[np.ndarray], lengths: list[int]) -> None:
    found = [len(clip) for clip in cut(*parts)]
    assert found == pytest.approx(lengths, abs=400)


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A function that puts a Python program in the place of arecord."""

    def install(code: str) -> None:
        path = tmp_path / "arecord"
        path.write_text(f"#!{sys.executable}\nimport os, sys, time\n{code}\n")
        path.chmod(0o700)
        monkeypatch.setenv("PATH", str(tmp_path))

    return install


def poll_until(source, eventually, count: int) -> list:
    items: list = []

    def enough() -> bool:
        items.extend(source.poll(0.0))
        return len(items) >= count

    eventually(enough)
    return items


def test_words_of_a_program_in_odd_pieces(source, package, program, eventually, tmp_path) -> None:
    word = np.concatenate([noise(1, rate=16_000), noise(0.4, 0.3, 16_000), noise(1, rate=16_000)])
    (tmp_path / "sound").write_bytes((word * 32_767).astype("<i2").tobytes())
    program(
        f"data = open({str(tmp_path / 'sound')!r}, 'rb').read()\n"
        "for at in range(0, len(data), 4095): os.write(1, data[at : at + 4095])\n"
        "time.sleep(60)"
    )
    made = source("microphone", package(50, 32))
    [sample] = poll_until(made, eventually, 1)
    loud = (sample.inputs["x"] > 0.6).any(1)
    assert not loud[0]
    assert loud[3:20].all()
    assert not loud[30:].any()
    assert made.poll(SILENT_S - 1) == []
    with pytest.raises(DataError, match="arecord gives no sound from default"):
        made.poll(3 * SILENT_S)


def test_a_program_that_ends_is_started_again(
    source, package, program, eventually, tmp_path
) -> None:
    made = source("microphone", package(50, 32))
    program("sys.exit(1)")
    with pytest.raises(DataError, match="gives no sound"):
        poll_until(made, eventually, 1)
    assert made.poll(0.1) == []
    program(f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)")
    assert made.poll(5.0) == []
    assert made.status().open
    eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    made.close()
    assert not os.path.exists(f"/proc/{(tmp_path / 'pid').read_text()}")


def test_without_arecord_there_is_one_sentence(source, package, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match="apt install alsa-utils"):
        source("microphone", package(50, 32)).poll(0.0)
