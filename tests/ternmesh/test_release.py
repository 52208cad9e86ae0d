"""The manifest of a release, and the way of a board through releases."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ternmesh import release
from ternmesh.errors import ModelPackageError
from ternmesh.model_package import FILES as PACKAGE_FILES
from ternmesh.model_package import ModelPackage, TensorSpec

ENTRIES = tuple(
    release.FileEntry(100 + index, bytes([index]) * 32) for index in range(len(release.FILES))
)
MANIFEST = release.ReleaseManifest("tiny", 7, b"m" * 32, ENTRIES, 2_500_000, 40)
PACKAGE = ModelPackage(
    name="tiny",
    version=1,
    inputs=(TensorSpec("x", "float32", (-1, 6)),),
    outputs=(TensorSpec("y", "float32", (-1, 3)),),
    batch_inputs=(TensorSpec("x", "float32", (8, 6)),),
    adapter=(TensorSpec("A", "float32", (6, 2)),),
    metric="mean_absolute_error",
    files=dict.fromkeys(PACKAGE_FILES, "00" * 32),
)

numbers = st.integers(1, 2**32 - 1)
entries = st.builds(
    release.FileEntry, st.integers(0, 2**31 - 1), st.binary(min_size=32, max_size=32)
)
manifests = st.builds(
    release.ReleaseManifest,
    st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}", fullmatch=True),
    numbers,
    st.binary(min_size=32, max_size=32),
    st.tuples(*[entries] * len(release.FILES)) | st.tuples(*[entries] * len(release.WITH_FRONT)),
    numbers,
    numbers,
    st.booleans(),
)


# Boards in the field verify signatures over these bytes: they never change.
GOLDEN = bytes.fromhex(
    "87727465726e6d6573682072656c6561736520316474696e790758206d6d6d6d6d6d6d6d6d6d6d6d6d6d6d6d"
    "6d6d6d6d6d6d6d6d6d6d6d6d6d6d6d6d84821864582000000000000000000000000000000000000000000000"
    "0000000000000000000082186558200101010101010101010101010101010101010101010101010101010101"
    "0101018218665820020202020202020202020202020202020202020202020202020202020202020282186758"
    "2003030303030303030303030303030303030303030303030303030303030303031a002625a01828"
)


def test_the_bytes_that_are_signed() -> None:
    assert release.write_manifest(MANIFEST) == GOLDEN
    assert release.read_manifest(GOLDEN) == MANIFEST


@given(manifests)
@settings(deadline=None)
def test_a_manifest_comes_back(manifest: release.ReleaseManifest) -> None:
    content = release.write_manifest(manifest)
    assert len(content) <= release.MANIFEST_MAX
    assert release.read_manifest(content) == manifest


@pytest.mark.parametrize(
    "changed",
    [
        {"version": 0},
        {"version": 1 << 32},
        {"loss_max": 0},
        {"latency_max": 0},
        {"name": "../etc"},
        {"name": ""},
        {"model": b"short"},
        {"files": ENTRIES[:-1]},
        {"files": (*ENTRIES, *ENTRIES[:2])},
        {"files": (*ENTRIES[:-1], release.FileEntry(1 << 31, b"h" * 32))},
        {"files": (*ENTRIES[:-1], release.FileEntry(1, b"short"))},
    ],
    ids=repr,
)
def test_a_manifest_out_of_its_limits_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ModelPackageError, match=r"manifest"):
        release.read_manifest(release.write_manifest(replace(MANIFEST, **changed)))


def test_a_manifest_of_another_kind_or_length_is_refused() -> None:
    content = release.write_manifest(MANIFEST)
    with pytest.raises(ModelPackageError, match="not the manifest"):
        release.read_manifest(content.replace(b"ternmesh release 1", b"ternmesh release 2"))
    with pytest.raises(ModelPackageError, match="at most 1024"):
        release.read_manifest(bytes(release.MANIFEST_MAX + 1))
    with pytest.raises(ModelPackageError, match="not the manifest"):
        release.read_manifest(content + b"\0")


def test_a_manifest_of_a_package() -> None:
    made = release.make_manifest(PACKAGE, 3, ENTRIES, (2.5, 0.04))
    assert (made.loss_max, made.latency_max, made.model) == (2_500_000, 40, PACKAGE.model_hash())
    for limits in ((0.0, 1.0), (1.0, 0.0), (1e9, 1.0)):
        with pytest.raises(ModelPackageError, match="must be more than 0"):
            release.make_manifest(PACKAGE, 1, ENTRIES, limits)
    with pytest.raises(ModelPackageError, match="a release's name"):
        release.make_manifest(replace(PACKAGE, name="two words"), 1, ENTRIES, (1, 1))


def test_a_bad_release_leads_back_and_is_never_tried_again() -> None:
    good = release.succeed(release.attempt(release.adopt(release.ReleaseStanding(), [1])))
    back = release.fail(release.attempt(release.adopt(good, [1, 2])), "its loss is 9")
    assert (back.current, back.last_good, back.bad) == (1, 1, ((2, "its loss is 9"),))
    assert release.adopt(back, [1, 2]) == back
    assert release.adopt(back, [1, 2, 3]).current == 3


def test_deaths_in_trials_count() -> None:
    standing = release.adopt(release.ReleaseStanding(current=1, last_good=1, floor=1), [1, 2])
    for count in range(1, release.ATTEMPTS_MAX + 1):
        standing = release.attempt(standing)
        assert (standing.current, standing.attempts) == (2, count)
    back = release.attempt(standing)
    assert (back.current, back.bad) == (1, ((2, "the node died in 3 trials of it"),))


@given(
    st.lists(st.one_of(st.integers(1, 60), st.sampled_from(["good", "bad", "die"])), max_size=80)
)
@settings(deadline=None)
def test_whatever_happens_the_current_one_was_good_or_is_on_trial(events: list[int | str]) -> None:
    standing, installed, good = release.ReleaseStanding(), set[int](), {0}
    for event in events:
        if isinstance(event, int):
            installed.add(event)
            continue
        before = standing
        standing = release.attempt(release.adopt(standing, installed))
        assert standing.floor >= before.floor
        if event == "good":
            standing = release.succeed(standing)
            good.add(standing.current)
        elif event == "bad" and standing.on_trial:
            standing = release.fail(standing, "x" * 1000)
        assert standing.last_good in good
        assert standing.on_trial or standing.current in good
        assert standing.attempts <= release.ATTEMPTS_MAX
        assert standing.current not in {version for version, _ in standing.bad}
        assert len(standing.bad) <= release.BAD_MAX
        assert all(len(reason) <= release.REASON_MAX for _, reason in standing.bad)
