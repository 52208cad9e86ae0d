"""Files of sound, numbers and pictures as samples."""

import importlib.util
import os
import struct
import sys
import warnings
import wave
import zlib
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge.data.decode import SUFFIXES, read_sample
from edge.data.live import folder
from edge.data.logmel import log_mel, read_clip
from edge.data.sources import Label, Sample
from edge.errors import DataError

GREY = np.arange(12, dtype=np.uint8).reshape(3, 4)
ANY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def write_clip(path, size: int = 8000) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(np.random.default_rng([*path.name.encode()]).bytes(size))


def test_clips_are_read_once_with_their_labels(source, package, tmp_path) -> None:
    made = source("folder", package(50, 32), path=str(tmp_path))
    for name in ("yes/1.wav", "2/b.wav", "stop_7.wav", "other/c.wav", "notes.txt", "d.wav"):
        write_clip(tmp_path / name)
    write_clip(tmp_path / "yes/deep/f.wav")
    write_clip(tmp_path / "no/long.wav", 40_000)
    (tmp_path / "bad.wav").write_bytes(b"RIFF")
    write_clip(tmp_path / ".being_written.wav")
    assert made.poll(0.0) == []  # They may still be written to.
    items = made.poll(1.0)
    labels = {i.key.partition("@")[0]: int(i.targets["target"]) for i in items if type(i) is Label}
    assert labels == {"yes/1.wav": 1, "2/b.wav": 2, "stop_7.wav": 2, "no/long.wav": 0}
    samples = [item for item in items if isinstance(item, Sample)]
    assert len(samples) == 6
    assert np.array_equal(samples[0].inputs["x"], log_mel(read_clip(tmp_path / "2/b.wav")))
    write_clip(tmp_path / "e.wav")
    assert made.poll(2.0) == made.poll(3.0)[1:] == []
    kind = f"file that is none of {', '.join(SUFFIXES)}"
    assert made.status().left_out == {  # each once
        "file that cannot be used": 1,
        "sample of a folder that is called by no label": 1,
        kind: 1,
        "folder in a folder of the source": 1,
        "sound beside the loudest second of a file": 1,
    }
    assert "'bad.wav is no whole .wav file" in made.status().first["file that cannot be used"]
    assert made.status().first[kind] == "'notes.txt'"
    again = source("folder", package(50, 32), path=str(tmp_path))
    again.poll(0.0)
    assert {item.key for item in items} < {item.key for item in again.poll(1.0)}


def test_content_is_stored_once_whatever_its_file_is_called(
    source, package, tmp_path, new_buffer
) -> None:
    folder = tmp_path / "recordings"
    for name in ("no", "yes", "stop"):
        (folder / name).mkdir(parents=True)
    np.save(folder / "yes/rep.npy", np.array([0.25, 0.5]))
    buffer = new_buffer(package(2))
    made, now = source("folder", package(2), path=str(folder)), 0.0

    def look() -> list[int]:
        nonlocal now
        for _ in range(2):
            now += 1.0
            buffer.add(made.poll(now))
        assert buffer.waiting == 0
        return [*buffer.classes.values()]

    assert look() == [1]
    os.utime(folder / "yes/rep.npy", (1e9, 1e9))  # as `touch`, or rsync without -t
    assert look() == [1]
    np.save(folder / "no/copy.npy", np.array([0.25, 0.5]))
    assert look() == [1]
    reason = "file with the same content as another"
    assert made.status().first == {reason: "'no/copy.npy is yes/rep.npy'"}
    buffer.label(Label(buffer.key(1), {"target": np.array(2)}))
    os.utime(folder / "yes/rep.npy", (1.1e9, 1.1e9))
    assert look() == [2], "a person's label goes before the folder that is no news"
    (folder / "yes/rep.npy").rename(folder / "yes/renamed.npy")
    assert look() == [0], "the first file has gone: the copy is what it was moved to"
    corrected = buffer.counters.corrected
    (folder / "no/copy.npy").rename(folder / "stop/copy.npy")
    (folder / "yes/renamed.npy").unlink()
    assert look() == [2]
    assert buffer.counters.corrected == corrected + 1
    buffer = new_buffer(package(2))
    made = source("folder", package(2), path=str(folder))
    assert look() == [2]
    (folder / "stop/copy.npy").rename(folder / "stop/other.npy")
    assert look() == [2]
    assert (buffer.counters.corrected, buffer.counters.samples) == (0, 0)
    buffer.forget([1])
    os.utime(folder / "stop/other.npy", (1e9, 1e9))
    assert look() == [2], "what was deleted may come again"


def test_files_wait_where_there_are_too_many(source, package, tmp_path, monkeypatch) -> None:
    for number in range(7):
        np.save(tmp_path / f"{number}.npy", np.full(2, number / 8))
    made = source("folder", package(2), path=str(tmp_path), rate_max=2)
    counts = [len(made.poll(float(second))) for second in range(6)]
    assert counts == [0, 2, 2, 2, 1, 0]
    monkeypatch.setattr(folder, "ENTRIES_MAX", 3)
    with pytest.raises(DataError, match="over 3 files"):
        made.poll(7.0)
    made = source("folder", package(2), path=str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError):
        made.poll(0.0)


def test_what_cannot_be_looked_at_does_not_stop_the_others(
    source, package, tmp_path, monkeypatch
) -> None:
    """For example lost+found, where the folder is a disk of its own."""
    np.save(tmp_path / "a.npy", np.zeros(2))
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "loop.npy").symlink_to(tmp_path / "loop.npy")
    scandir = os.scandir

    def refuse(path):
        if path.name == "lost+found":
            raise PermissionError(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    made = source("folder", package(2), path=str(tmp_path))
    assert made.poll(0.0) == []
    assert len(made.poll(1.0)) == 1
    reason = "file that cannot be used (Too many levels of symbolic links)"
    assert made.status().left_out == {reason: 1, "folder that cannot be read": 1}
    assert made.status().first[reason] == "'loop.npy'"


def test_a_file_of_another_kind_than_its_name_says_is_refused(package, tmp_path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros(2))
    (tmp_path / "a.npz").rename(tmp_path / "a.npy")
    with pytest.raises(DataError, match=r"a\.npy is no \.npy file"):
        read_sample(tmp_path / "a.npy", package(2))
    (tmp_path / "c.ppm").write_bytes(b"P6 2 2 255\n" + GREY.tobytes())
    with pytest.raises(DataError, match="shape"):  # red alone is no grey
        read_sample(tmp_path / "c.ppm", package(2, 2))


def test_arrays_and_pictures_of_the_models_shape(package, tmp_path) -> None:
    def read(name: str, *shape: int) -> np.ndarray:
        return read_sample(tmp_path / name, package(*shape))["x"]

    np.save(tmp_path / "a.npy", np.arange(3))
    np.savez(tmp_path / "a.npz", x=np.arange(3.0), other=np.zeros(9))
    assert read("a.npy", 3).tolist() == read("a.npz", 3).tolist() == [0, 1, 2]
    (tmp_path / "g.pgm").write_bytes(b"P5 # grey\n4 3\n255\n" + GREY.tobytes())
    assert np.allclose(read("g.pgm", 3, 4) * 255, GREY)
    assert np.allclose(read("g.pgm", 1, 3, 4)[0] * 255, GREY)
    (tmp_path / "c.ppm").write_bytes(b"P6 2 2 255\n" + GREY.tobytes())
    assert np.allclose(read("c.ppm", 2, 2, 3) * 255, GREY.reshape(2, 2, 3))
    assert np.allclose(read("c.ppm", 3, 2, 2)[1] * 255, [[1, 4], [7, 10]])
    for name, shape in (("a.npy", (4,)), ("a.npz", (4,)), ("g.pgm", (4, 3)), ("c.ppm", (12,))):
        with pytest.raises(DataError, match=rf"{name} does not have the shape"):
            read(name, *shape)
    np.save(tmp_path / "n.npy", np.array([np.nan]))
    with pytest.raises(DataError, match="NaN"):
        read("n.npy", 1)
    with pytest.raises(DataError, match=r"is no input for small: it may be \.wav"):
        read("a.gif", 3)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"GIF89a", "a GIF picture: save it as PNG or JPEG"),
        (b"RIFF\x0a\0\0\0WEBPVP8 ", "a WebP picture"),
        (b"II*\0", "a TIFF picture"),
        (b"\0\0\0\x18ftypheic", "a HEIC picture"),
        (b"P3\n1 1\n255\n1 2 3\n", "a PNM picture: .* P5 or P6 with 255 levels"),
        (b"P5 -1 1 255\n1", "a PNM picture: .* sides of 1 to 999999 and a head of up to 4096"),
        (b"P6 1 1 65535\n123456", "a PNM picture: .* P5 or P6 with 255 levels"),
    ],
)
def test_a_picture_says_what_it_is_whatever_its_name(package, tmp_path, data, sentence) -> None:
    for name in ("a.jpg", "a.png", "a.ppm"):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match=f"{name} is {sentence}"):
            read_sample(tmp_path / name, package(3, 4, 4))


def test_a_label_in_an_npz_file_is_not_passed_over_in_silence(source, package, tmp_path) -> None:
    (tmp_path / "yes").mkdir()
    np.savez(tmp_path / "yes/a.npz", x=np.zeros(2), target=np.array(2))
    made = source("folder", package(2), path=str(tmp_path))
    made.poll(0.0)
    assert [int(item.targets["target"]) for item in made.poll(1.0)[1:]] == [1]
    [(reason, name)] = made.status().first.items()
    assert ("folders and names give labels" in reason, name) == (True, "'yes/a.npz'")


def test_pictures_of_other_kinds_need_pillow(package, tmp_path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"\x89PNG")
    has_pillow = importlib.util.find_spec("PIL") is not None
    wrong = "damaged, or no PNG or JPEG" if has_pillow else f"{sys.executable} -m pip install"
    with pytest.raises(DataError, match=wrong):
        read_sample(path, package(4, 4))
    if has_pillow:
        from PIL import Image

        image = Image.fromarray(np.full((8, 8, 3), 51, np.uint8))
        image.save(path, "BMP")  # Pillow reads slowly what some other formats may hold
        with pytest.raises(DataError, match="is a BMP picture: save it as PNG or JPEG"):
            read_sample(path, package(3, 4, 4))
        image.resize((64, 64)).save(path)
        path.write_bytes(path.read_bytes()[:-40])
        with pytest.raises(DataError, match=r"is damaged .*truncated"):
            read_sample(path, package(3, 4, 4))
        for side in (30_000, 12_000):  # which Pillow refuses, and warns of
            head = b"\0\0\0\rIHDR" + struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
            head += struct.pack(">I", zlib.crc32(head[4:])) + b"\0\0\0\0IDAT" + bytes(8)
            path.write_bytes(b"\x89PNG\r\n\x1a\n" + head)
            refused = pytest.raises(DataError, match="more than 16777216 pixels: make it smaller")
            with refused, warnings.catch_warnings(action="error"):
                read_sample(path, package(3, 4, 4))
        image.save(path)
        assert np.allclose(read_sample(path, package(3, 4, 4))["x"], 0.2)
        assert np.allclose(read_sample(path, package(4, 4))["x"], 0.2)
        Image.fromarray(np.full((4, 4), 0x8080, np.uint16)).save(path)
        assert np.allclose(read_sample(path, package(4, 4))["x"], 128 / 255)
        Image.fromarray(np.zeros((4, 4, 4), np.uint8)).save(path)
        with pytest.raises(DataError, match="mode RGBA, or transparent parts"):
            read_sample(path, package(4, 4))


@given(
    st.sampled_from(SUFFIXES),
    st.binary(max_size=80) | st.binary(max_size=20).map(lambda rest: b"P6 2 1 255\n" + rest),
)
@ANY
def test_any_bytes_are_a_sample_or_refused(package, tmp_path, suffix, data) -> None:
    path = tmp_path / f"any{suffix}"
    path.write_bytes(data)
    with suppress(DataError):
        assert read_sample(path, package(1, 2, 3))["x"].shape == (1, 2, 3)


def test_a_long_path_leaves_room_for_the_reason(source, package, tmp_path) -> None:
    deep = tmp_path / ("long" * 20)
    deep.mkdir()
    (deep / "a.wav").write_bytes(b"RIFF")
    made = source("folder", package(50, 32), path=str(deep))
    made.poll(0.0)
    made.poll(1.0)
    [first] = made.status().first.values()
    assert first == "'a.wav is no whole .wav file (it does not begin as one): record or convert it'"


def test_a_name_that_is_no_utf_8_is_still_a_key(source, package, tmp_path) -> None:
    np.save(tmp_path / os.fsdecode(b"\xff.npy"), np.zeros(2))
    made = source("folder", package(2), path=str(tmp_path))
    made.poll(0.0)
    assert made.poll(1.0)[0].key.encode().startswith(rb"\xff.npy@")
