"""A node looks for new releases, and says once what is wrong with them or with their folder."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from edge.releases.store import Releases, accept_unsigned
from edge.releases.watch import ReleaseWatch

Release = Callable[..., Path]


@pytest.fixture
def releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Releases:
    monkeypatch.setattr("edge.releases.watch.LOOK_S", 0.0)
    return Releases(tmp_path / "releases", accept_unsigned)


def test_a_release_is_news_until_it_is_tried(releases: Releases, new_release: Release) -> None:
    watch = ReleaseWatch(releases)
    assert not watch.sees_new_release()
    releases.install(new_release(1))
    assert watch.sees_new_release()
    releases.begin()
    assert not watch.sees_new_release()
    assert watch.report is not None
    assert watch.report["current"] == 1


def test_what_is_not_taken_is_said_once(
    releases: Releases, new_release: Release, caplog: pytest.LogCaptureFixture
) -> None:
    watch = ReleaseWatch(releases)
    (releases.folder / "20251122").mkdir(parents=True)
    assert not any(watch.sees_new_release() for _ in range(5))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "release 20251122 is not taken: " in caplog.text
    assert watch.report is not None
    assert [item["version"] for item in watch.report["not_taken"]] == [20251122]
    releases.install(new_release(2))
    assert watch.sees_new_release()


def test_a_folder_that_cannot_be_read_for_a_while_ends_nothing(
    releases: Releases, new_release: Release, caplog: pytest.LogCaptureFixture
) -> None:
    watch = ReleaseWatch(releases)
    releases.install(new_release(1))
    away = releases.folder.with_name("away")
    for _ in range(2):
        releases.folder.rename(away)
        releases.folder.write_bytes(b"")
        assert not any(watch.sees_new_release() for _ in range(5))
        releases.folder.unlink()
        away.rename(releases.folder)
    assert len(caplog.records) == 1
    assert "no new release can be seen: " in caplog.text
    assert watch.sees_new_release()
