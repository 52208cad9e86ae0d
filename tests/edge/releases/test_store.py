"""Releases on disk: what is installed, what is refused, and what a cut leaves behind."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge.errors import BoardFault, ModelError
from edge.releases.store import KEPT_MAX, STANDING, Releases, accept_unsigned, make_release
from ternmesh.errors import TernmeshError
from ternmesh.model_package import ADAPTER, FORWARD
from ternmesh.release import (
    DESCRIPTION,
    FILES,
    MANIFEST,
    SIGNATURES,
    ReleaseStanding,
    fail,
    read_manifest,
    succeed,
    write_manifest,
)

Release = Callable[..., Path]


@pytest.fixture
def releases(tmp_path: Path) -> Releases:
    return Releases(tmp_path / "releases", accept_unsigned)


def everything(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "lock"
    }


def test_a_release_is_installed_whole(releases: Releases, new_release: Release) -> None:
    source = new_release(3)
    (source / "extra.bin").write_bytes(b"x")
    (source / "sub").mkdir()
    assert releases.installed() == []
    assert releases.install(source).version == 3
    assert releases.installed() == [3]
    assert sorted(os.listdir(releases.folder / "3")) == sorted([*FILES, MANIFEST])
    loaded, manifest = releases.open(3)
    assert (loaded.package.name, manifest.version) == ("tiny", 3)
    assert loaded.folder == releases.folder / "3"


def test_a_downgrade_is_refused(releases: Releases, new_release: Release) -> None:
    releases.install(new_release(5))
    before = everything(releases.folder)
    with pytest.raises(ModelError, match=r"has had 5, and never goes back: .* higher version"):
        releases.install(new_release(1, name="old"))
    with pytest.raises(ModelError, match="is installed here already"):
        releases.install(new_release(5, name="old"))
    assert everything(releases.folder) == before
    releases.change(lambda _: ReleaseStanding(floor=9))  # its folder is gone from the disk
    with pytest.raises(ModelError, match="has had 9"):
        releases.install(new_release(9))


def bytes_of(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Change what is in a file."""

    def spoil(folder: Path) -> None:
        path = folder / name
        path.write_bytes(change(path.read_bytes() if path.exists() else b""))

    return spoil


def other_entry(**changes: Any) -> Callable[[Path], None]:
    """Another entry for the adapter, in a manifest that is right otherwise."""

    def change(content: bytes) -> bytes:
        manifest = read_manifest(content)
        entries = (*manifest.files[:-1], replace(manifest.files[-1], **changes))
        return write_manifest(replace(manifest, files=entries))

    return bytes_of(MANIFEST, change)


SPOILT = {
    "a changed model": (
        bytes_of(FORWARD, lambda data: data[:-1] + bytes([data[-1] ^ 1])), "forward.onnx is not"
    ),
    "a longer adapter": (bytes_of(ADAPTER, lambda data: data + b"\0"), "more than the 72 bytes"),
    "a missing file": (lambda folder: (folder / FORWARD).unlink(), "cannot install"),
    "a missing manifest": (lambda folder: (folder / MANIFEST).unlink(), "cannot install"),
    "another size": (other_entry(size=73), "adapter.f32 is not the file"),
    "another hash": (other_entry(sha256=bytes(32)), "adapter.f32 is not the file"),
    "another name": (
        bytes_of(MANIFEST, lambda data: data.replace(b"tiny", b"huge")),
        "another model than its manifest says",
    ),
    "another description": (
        bytes_of(DESCRIPTION, lambda data: data.replace(b'"version": 1', b'"version": 2')),
        "model.json is not the file",
    ),
    "a long manifest": (bytes_of(MANIFEST, lambda _: bytes(1025)), "more than the 1024 bytes"),
    "long signatures": (bytes_of(SIGNATURES, lambda _: bytes(16_385)), "more than the 16384"),
    "a pipe": (lambda folder: pipe(folder / FILES[0]), "it is no regular file"),
    "a manifest that is a pipe": (lambda folder: pipe(folder / MANIFEST), "it is no regular file"),
}  # fmt: skip


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_release_changes_nothing(name, releases, new_release) -> None:
    spoil, reason = SPOILT[name]
    releases.install(new_release(1))
    before = everything(releases.folder)
    with pytest.raises(TernmeshError, match=reason) as caught:
        releases.install(new_release(2, spoil=spoil))
    assert "unfinished" not in str(caught.value)
    assert everything(releases.folder) == before


def verify_good(_content: bytes, signatures: bytes) -> None:
    if signatures != b"good":
        raise ModelError("this release is not signed")


def sign(folder: Path) -> None:
    (folder / SIGNATURES).write_bytes(b"good")


def test_what_is_no_release_takes_no_version_and_is_never_removed(tmp_path, new_release) -> None:
    releases = Releases(tmp_path / "releases", verify_good)
    (releases.folder / "20251122" / "kept").mkdir(parents=True)
    new_release(7).rename(releases.folder / "7")
    new_release(8, spoil=sign).rename(releases.folder / "9")
    for name in ("unfinished", "٣", "-1", "1.5", "01"):
        (releases.folder / name).mkdir()
    assert releases.begin() == ReleaseStanding()
    signed, refused = releases.survey(0)
    assert (signed, list(refused), releases.installed()) == ([], [7, 9, 20251122], [7, 9, 20251122])
    for version, words in {7: "not signed", 9: "holds version 8", 20251122: "cannot be"}.items():
        assert words in refused[version]
    with pytest.raises(ModelError, match="9 holds version 8"):
        releases.open(9)
    for version in range(1, 3):
        releases.install(new_release(version, spoil=sign))
    assert releases.begin() == ReleaseStanding(current=2, floor=2, attempts=1)
    for version in range(10, 10 + KEPT_MAX):
        releases.install(new_release(version, spoil=sign))
    assert releases.survey(0)[0] == [2, *range(11, 10 + KEPT_MAX)]
    assert {7, 9, 20251122} < set(releases.installed())


def test_a_folder_that_cannot_be_listed_is_a_sentence(releases: Releases) -> None:
    releases.folder.write_bytes(b"")
    with pytest.raises(BoardFault, match=r"releases cannot be listed .*: check the disk"):
        releases.installed()


def test_what_a_cut_has_left_is_removed(releases: Releases, new_release: Release) -> None:
    (releases.folder / "unfinished").mkdir(parents=True)
    (releases.folder / "unfinished" / FORWARD).write_bytes(b"half")
    releases.install(new_release(1))
    assert not (releases.folder / "unfinished").exists()
    assert releases.open(1)[1].version == 1


def test_the_oldest_go_and_what_is_in_use_stays(releases: Releases, new_release: Release) -> None:
    releases.install(new_release(1))
    releases.begin()
    releases.change(succeed)
    for version in range(2, 8):
        releases.install(new_release(version))
        if version == 3:
            releases.begin()
    assert releases.installed() == [1, 3, 6, 7]
    assert len(releases.installed()) == KEPT_MAX


def test_the_standing_survives_and_news_are_seen(releases: Releases, new_release: Release) -> None:
    assert releases.standing() == ReleaseStanding()
    releases.install(new_release(1))
    assert releases.survey(0) == ([1], {})
    begun = releases.begin()
    assert (begun.current, begun.attempts) == (1, 1)
    again = Releases(releases.folder, accept_unsigned)
    assert again.standing() == begun
    assert again.survey(again.standing().floor) == ([], {})
    failed = again.change(lambda standing: fail(standing, "grün ist\nanders"))
    assert Releases(releases.folder, accept_unsigned).standing() == failed


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"bad": 3}', bytes(70_000)])
def test_a_damaged_standing_leads_back_to_the_configured_model(
    content: bytes, releases: Releases, new_release: Release
) -> None:
    releases.install(new_release(4))
    (releases.folder / "20251122").mkdir()  # no release: its name is not believed
    (releases.folder / STANDING).write_bytes(content)
    assert releases.begin() == ReleaseStanding(floor=4)
    assert json.loads((releases.folder / STANDING).read_bytes())["floor"] == 4
    releases.install(new_release(5))
    assert releases.begin().current == 5


def test_a_standing_that_cannot_be_read_is_left_as_it_is(releases: Releases) -> None:
    (releases.folder / STANDING).mkdir(parents=True)
    with pytest.raises(
        BoardFault, match=r"standing\.json cannot be read \(Is a directory\): check"
    ):
        releases.begin()
    assert (releases.folder / STANDING).is_dir()


def test_a_release_is_made_once(tmp_path: Path, new_release: Release) -> None:
    made = new_release(1)
    with pytest.raises(ModelError, match=r"cannot write the release .*: it exists; name another"):
        make_release(tmp_path / "package-release-1", made, 3, (1.0, 1.0))
