import io
import sys
import zipfile
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from edge.data.gate import aside_status
from edge.data.sources import NpzSettings, make_source, open_folder, opened_npz
from edge.errors import DataError, NoData
from models.zoo import package_path
from ternmesh.model_package import TensorSpec, read_model_package

PLAIN = NpzSettings(arrays={}, where={})


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_one_file_or_a_folder_of_them(tiny, tiny_data, tmp_path: Path) -> None:
    save(tmp_path / "b.npz", **{name: array[60:] for name, array in tiny_data.items()})
    one = save(tmp_path / "a.npz", **{name: array[:60] for name, array in tiny_data.items()})
    (tmp_path / "notes.txt").write_text("not data")
    assert len(open_folder(one, tiny.package, PLAIN)) == 60
    data = open_folder(tmp_path, tiny.package, PLAIN)
    assert len(data) == 96
    batch = data.batch(np.array([95, 0]))
    np.testing.assert_array_equal(batch["x"], tiny_data["x"][[95, 0]])
    np.testing.assert_array_equal(batch["t"], tiny_data["t"][[95, 0]])


def test_names_are_mapped_bytes_are_scaled_and_samples_are_chosen(tiny, tmp_path: Path) -> None:
    path = save(
        tmp_path / "a.npz",
        features=np.full((4, 6), 51, np.uint8),
        target=np.ones((4, 3), np.int16),
        speaker=np.array([0, 1, 1, 2], np.uint8),
        speaker_names=np.array(["ada", "bob", "cleo"]),
    )
    names = {"x": "features", "t": "target"}
    data = open_folder(path, tiny.package, NpzSettings(names, {"speaker": "bob"}, divide_by=255.0))
    assert len(data) == 2
    batch = data.batch(np.array([0, 1]))
    np.testing.assert_allclose(batch["x"], 0.2)
    np.testing.assert_array_equal(batch["t"], 1.0)  # targets are not inputs: never divided
    assert {array.dtype for array in batch.values()} == {np.dtype(np.float32)}
    by_number = open_folder(path, tiny.package, NpzSettings(names, {"speaker": 2}))
    assert len(by_number) == 1


def test_labels_beyond_their_dtype_are_refused(tmp_path: Path) -> None:
    package = read_model_package((package_path("keyword") / "model.json").read_bytes())
    x, y = np.zeros((2, 50, 32), np.float32), np.array([0.5, 1.0])
    path = save(tmp_path / "a.npz", features=x, target=y)
    with pytest.raises(DataError, match="target is float64: target must be int64"):
        open_folder(path, package, PLAIN)
    path = save(tmp_path / "b.npz", features=x, target=np.array([0, 2**63], np.uint64))
    data = open_folder(path, package, PLAIN)
    assert (len(data), data.aside.count) == (1, 1)
    assert "target holds 9223372036854775808" in data.aside.newest[0][1]


@pytest.mark.parametrize(
    ("array", "value", "kind", "sentence"),
    [
        ("target", -1, NoData, "target holds -1: target of this model is 0 to 9"),
        ("target", 99, DataError, "target holds 99: target of this model is 0 to 9"),
        ("features", np.nan, NoData, "features holds NaN or infinity: leave such samples out"),
    ],
)
def test_bad_samples_are_set_aside_and_named(tmp_path: Path, array, value, kind, sentence) -> None:
    package = read_model_package((package_path("keyword") / "model.json").read_bytes())
    good: dict[str, Any] = {
        "features": np.zeros((300, 50, 32), np.float32),
        "target": np.zeros(300, np.int16),
        "room": np.arange(300) % 2,
    }
    save(tmp_path / "a.npz", **good)
    good[array][[4, 281, 283]] = value
    path = save(tmp_path / "b.npz", **good)
    data = open_folder(tmp_path, package, NpzSettings(where={"room": 1}))
    assert (len(data), data.aside.count) == (298, 2)
    assert data.aside.newest[0] == (f"{path}: sample 281", sentence)
    assert len(data.batch(np.arange(298))["target"]) == 298
    with pytest.raises(DataError) as caught:
        open_folder(tmp_path, package, NpzSettings(where={"room": 1}), needs_all=True)
    assert type(caught.value) is kind
    assert str(caught.value) == f"{path}: sample 281: {sentence}"


def test_another_sample_is_read_in_place_of_one_that_is_set_aside(tiny, tmp_path) -> None:
    for name in ("a", "b"):
        save(tmp_path / f"{name}.npz", x=np.arange(18).reshape(3, 6), t=np.zeros((3, 3)))
    data = open_folder(tmp_path, tiny.package, PLAIN)
    data.set_aside({0: "odd", 4: "even"})
    assert [*data.aside.newest] == [
        (f"{tmp_path}/a.npz: sample 0", "odd"),
        (f"{tmp_path}/b.npz: sample 1", "even"),
    ]
    assert data.batch(np.arange(6))["x"][:, 0].tolist() == [6, 6, 12, 0, 6, 12]
    data.set_aside(dict.fromkeys(range(6), "all"))
    assert len(data) == 0


def whole(tmp_path: Path, **changes: Any) -> Path:
    """A file for the tiny model, in which some arrays were changed; None leaves one out."""
    arrays = {
        "x": np.zeros((4, 6)),
        "t": np.zeros((4, 3)),
        "room": np.zeros(4, np.uint8),
        "room_names": np.array(["hall", "roof"]),
    } | changes
    return save(tmp_path / "a.npz", **{name: a for name, a in arrays.items() if a is not None})


@pytest.mark.parametrize(
    ("arrays", "settings", "kind", "sentence"),
    [
        ({"x": None}, {}, DataError, "has no array x: it has t"),
        ({"x": np.zeros((4, 5))}, {}, DataError, r"x has shape \(4, 5\), tiny needs"),
        ({"x": np.zeros(6)}, {}, DataError, r"x has shape \(6,\)"),
        ({"t": np.zeros((5, 3))}, {}, DataError, "t has 5 samples, other arrays have 4"),
        ({"x": np.zeros((4, 6), "<U3")}, {}, DataError, "x is <U3: x must be float32"),
        ({"x": np.full((4, 6), np.nan)}, {}, NoData, "x holds NaN or infinity"),
        ({"x": np.full((4, 6), 1e300)}, {}, DataError, "x holds NaN or infinity"),
        (
            {"x": np.zeros((0, 6)), "t": np.zeros((0, 3))},
            {},
            NoData,
            "holds no sample: its arrays are empty",
        ),
        ({"x": np.array([{}] * 4)}, {}, DataError, "x holds Python objects: save an array"),
        ({}, {"arrays": {"z": "x"}}, DataError, "z is no tensor of tiny: arrays may map t, x"),
        ({}, {"where": {"site": 1}}, DataError, "has no array site"),
        ({}, {"where": {"room": "attic"}}, NoData, "room 'attic' is none of hall, roof"),
        ({}, {"where": {"t": 1}}, DataError, "t does not hold one value for each sample"),
        ({}, {"where": {"room": 9}}, NoData, "no sample where room = 9"),
    ],
)
def test_what_does_not_fit_is_one_sentence(
    tiny, tmp_path, arrays, settings, kind, sentence
) -> None:
    path = whole(tmp_path, **arrays)
    with pytest.raises(kind, match=sentence) as caught:
        open_folder(path, tiny.package, NpzSettings(**settings))
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)


def damage(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:150] + bytes(100) + data[250:])


@pytest.mark.parametrize(
    ("name", "make", "sentence"),
    [
        ("a.npz", lambda path: path.write_bytes(b"PK\x03\x04 but not"), "is not an .npz file"),
        ("b.npy", lambda path: np.save(path, np.zeros(3)), "is not an .npz file"),
        ("empty", Path.mkdir, r"is a folder of 0 \.npz files"),
        ("missing.npz", lambda _: None, r"cannot be read \(No such file.*\): check that it"),
        ("a" * 300, lambda _: None, "cannot be read"),
        ("c.npz", lambda path: damage(whole(path.parent).rename(path)), "is damaged"),
    ],
)
def test_a_file_that_is_no_npz_is_no_data(tiny, tmp_path, name, make, sentence) -> None:
    make(tmp_path / name)
    with pytest.raises(NoData, match=f"{name} {sentence}"):
        open_folder(tmp_path / name, tiny.package, PLAIN)


def test_files_of_several_dtypes_lose_nothing(tiny, tmp_path) -> None:
    for name, kind in (("a", np.uint8), ("b", np.float64)):
        x = np.full((2, 6), 200 if name == "a" else 0.25, kind)
        save(tmp_path / f"{name}.npz", x=x, t=np.zeros((2, 3)))
    data = open_folder(tmp_path, tiny.package, PLAIN)
    assert data.batch(np.arange(4))["x"][:, 0].tolist() == [200, 200, 0.25, 0.25]


@pytest.mark.parametrize(
    ("kind", "shape", "sentence"),
    [
        ("<f4", (3_000_000_000, 2), "its shape needs 24000000000"),
        ("<U0", (3_000_000_000, 2), "its shape needs 6000000000"),
        ("<f4", (0, 1 << 70), "x has shape"),
        ("<f4", (-1, 6), "cannot be read as .npz"),
    ],
)
def test_a_head_that_promises_too_much_is_refused(tiny, tmp_path, kind, shape, sentence) -> None:
    content = io.BytesIO()
    head = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(content, head)
    path = tmp_path / "data.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", content.getvalue())
    with pytest.raises(DataError, match=sentence):
        open_folder(path, tiny.package, PLAIN)


class Beeper:
    def __init__(self, tone: int = 3) -> None:
        if tone < 0:
            raise ValueError("tone must not be negative")
        self.tone = tone

    def poll(self, now: float) -> list[object]:
        return []


def test_a_source_is_made_from_its_name_and_options(monkeypatch) -> None:
    module = ModuleType("beepers")
    module.Beeper, module.number = Beeper, int  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "beepers", module)
    assert make_source("beepers:Beeper", {"tone": 5}).tone == 5  # type: ignore[attr-defined]
    for name, options, sentence in (
        ("beepers:Beeper", {"pitch": 1}, "does not take its options"),
        ("beepers:Beeper", {"tone": -1}, "tone must not be negative"),
        ("beepers:Bell", {}, "write package.module:ClassName"),
        ("no_such_module:Bell", {}, "write package.module:ClassName"),
        ("", {}, "write package.module:ClassName"),
        ("..:Bell", {}, "write package.module:ClassName"),
        ("beepers:number", {}, "has no method poll"),
    ):
        with pytest.raises(DataError, match=sentence):
            make_source(name, options)


def test_an_archive_with_two_arrays_of_one_name_is_refused(tiny, tmp_path) -> None:
    path = whole(tmp_path)
    with zipfile.ZipFile(path) as archive:
        content = archive.read("x.npy")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("x", content)
    with pytest.raises(NoData, match="two arrays of one name"):
        open_folder(path, tiny.package, PLAIN)


def test_numbers_that_a_table_of_the_model_does_not_have_are_set_aside(tiny, tmp_path) -> None:
    specs = (TensorSpec("x", "int64", (1, 2)), TensorSpec("t", "float32", (1, 3)))
    inputs = (TensorSpec("x", "int64", (-1, 2)),)
    package = replace(tiny.package, inputs=inputs, batch_inputs=specs, table_sizes={"x": 8})
    path = save(tmp_path / "a.npz", x=[[0, 7], [99, 1], [1, -1]], t=np.zeros((3, 3)))
    data = open_folder(path, package, PLAIN)
    assert [*data.aside.newest] == [
        (f"{path}: sample 1", "x holds 99: x of this model is 0 to 7"),
        (f"{path}: sample 2", "x holds -1: x of this model is 0 to 7"),
    ]
    assert data.batch(np.array([0]))["x"].tolist() == [[0, 7]]


@pytest.mark.parametrize("count", [1000, 20_000])
def test_an_npz_file_of_very_many_arrays_is_refused_unread(tmp_path, count: int) -> None:
    path = tmp_path / "many.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(count):
            archive.writestr(f"{number}.npy", b"")
    refused = pytest.raises(NoData, match="too many arrays") if count > 1000 else nullcontext()
    with refused, opened_npz(path) as archive:
        assert len(archive.files) == count


def test_names_of_classes_are_labels_and_another_text_is_set_aside(tmp_path: Path) -> None:
    package = read_model_package((package_path("keyword") / "model.json").read_bytes())
    clips = np.zeros((3, 50, 32), np.float32)
    path = save(tmp_path / "a.npz", features=clips, target=np.array(["nine", "eleven", "0"]))
    data = open_folder(path, package, PLAIN)
    assert data.batch(np.arange(len(data)))["target"][0] == package.labels.index("nine")
    [(name, reason)] = data.aside.newest
    assert name.endswith("sample 1")
    assert "'eleven' is no label of keyword: it has zero, one" in reason


@pytest.mark.parametrize(
    ("most", "divide_by", "said"),
    [
        (255, 1.0, "set divide_by = 255"),
        (255, 255.0, ""),
        (9, 1.0, ""),
        (254.5, 1.0, "set divide_by = 255"),
        (200.5, 1.0, "set divide_by = 255"),
        (1e30, 1.0, "set divide_by = 1e+30"),
        (-900.0, 1.0, "set divide_by = 900"),
    ],
)
def test_inputs_of_another_scale_are_said(tiny, tmp_path, most, divide_by, said, caplog):
    x = np.linspace(0, most, 12).round(3 if most != 255 else 0).reshape(2, 6)
    path = save(tmp_path / "a.npz", x=x, t=np.zeros((2, 3), np.float32))
    data = open_folder(path, tiny.package, NpzSettings(divide_by=divide_by))
    assert data.remark.endswith(said)
    assert bool(data.remark) == bool(said)
    assert ("set divide_by" in caplog.text) == bool(said)
    assert said in caplog.text


def test_a_damaged_file_of_a_folder_is_set_aside(tiny, tiny_data, tmp_path, caplog) -> None:
    whole = save(tmp_path / "a.npz", **tiny_data).read_bytes()
    for name, content in (("b.npz", whole[:-100]), ("c.npz", b""), ("d.npz", whole[:-100])):
        (tmp_path / name).write_bytes(content)
    damaged = bytearray(whole)
    damaged[200] ^= 0xFF  # found where the samples are read
    (tmp_path / "d.npz").write_bytes(damaged)
    data = open_folder(tmp_path, tiny.package, PLAIN)
    assert len(data) == len(tiny_data["x"])
    assert [name for name, _ in data.aside.newest] == [str(tmp_path / f"{n}.npz") for n in "bcd"]
    assert data.aside.newest[0][1] == "is not an .npz file: write it with numpy.savez"
    assert aside_status(data.aside).amount() == "3 files"
    assert all(f"{n}.npz is set aside: is" in caplog.text for n in "bcd")
    with pytest.raises(NoData, match=r"b\.npz is not an"):
        open_folder(tmp_path, tiny.package, PLAIN, needs_all=True)


def test_each_file_of_a_folder_is_read_once(tiny, tiny_data, tmp_path, caplog) -> None:
    save(tmp_path / "a.npz", **tiny_data).rename(tmp_path / "C.NPZ")
    (tmp_path / "._C.npz").write_bytes(b"macOS")
    (tmp_path / "link.npz").symlink_to(tmp_path / "C.NPZ")
    (tmp_path / "more").mkdir()
    save(tmp_path / "more/b.npz", **tiny_data)
    assert len(open_folder(tmp_path, tiny.package, PLAIN)) == len(tiny_data["x"])
    assert "entries that are not read: link.npz, more" in caplog.text
