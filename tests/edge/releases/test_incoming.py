"""A release that comes over the link to a board's disk: whole, cut off, damaged, bad."""

import hashlib
import os
import threading
import time
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.config import EvaluateConfig, ReleasesConfig
from edge.errors import NotSigned
from edge.onnx.session import LoadedModel
from edge.releases import incoming as module
from edge.releases.incoming import CANDIDATE, FOLDER, STATE, SYMBOLS, Incoming
from edge.releases.rollout import settle
from edge.releases.store import Releases, accept_unsigned
from ternmesh.errors import WireError
from ternmesh.federated.release_transfer import NAME_SIZE, layout_of
from ternmesh.link.erasure_code import encode_symbols
from ternmesh.release import Verify
from ternmesh.wire.release import (
    ACTIVE,
    EVERYBODY,
    ON_TRIAL,
    PLACES,
    WITHDRAWN,
    ReleaseOffer,
    ReleaseSymbol,
    write_offer,
    write_symbol,
)
from ternmesh_service.release_files import entries_of, pack_folder
from ternmesh_service.status import IncomingRelease
from tests.edge.fleet import board_config

Release = Callable[..., Path]
Disk = namedtuple("Disk", "total used free")


class Board:
    """A board's intake, which can be killed, and what its host would send."""

    def __init__(self, folder: Path, model: Path, data: Path) -> None:
        self.config = board_config(
            folder,
            model,
            evaluate=EvaluateConfig(path=str(data)),
            releases=ReleasesConfig(dir=str(folder / "releases"), insecure=True),
        )
        self.model = model
        self.verify: Verify = accept_unsigned
        self.trials = 0
        self.rng = np.random.default_rng(0)
        self.now = 0.0
        self.begin()

    def begin(self) -> None:
        """A new process."""
        self.releases = Releases(Path(str(self.config.releases.dir)), self.verify)
        self.incoming = Incoming(self.config, self.releases, self.verify, self.model, self.rng)
        self.incoming.open("tiny", self.now)

    def offer(self, release: Path, **changes: Any) -> ReleaseOffer:
        """Take the offer of a release; its object leaves out what the model in use has."""
        self.data = pack_folder(release, entries_of(self.model))
        digest, size = hashlib.sha256(self.data).digest(), len(self.data)
        fields = ("tiny", 2, 1, ON_TRIAL, PLACES, EVERYBODY, 10)
        self.sent = replace(ReleaseOffer(digest, size, 64, *fields), **changes)
        self.incoming.take(write_offer(self.sent), self.now)
        return self.sent

    def state(self, release: Path, **changes: Any) -> tuple[str, str]:
        """The state and the reason of a release that came whole."""
        self.offer(release, **changes)
        self.symbols()
        report = self.settle()
        return report.state, report.reason

    def symbols(self, indexes: list[int] | range | None = None) -> None:
        """Take symbols of the object; by default all source symbols."""
        layout = layout_of(self.sent)
        chosen = list(range(layout.count) if indexes is None else indexes)
        found = encode_symbols(layout, self.sent.digest[:NAME_SIZE], self.data, chosen)
        for index, symbol in zip(chosen, found, strict=True):
            self.take(index, symbol)

    def take(self, index: int, symbol: bytes) -> None:
        body = write_symbol(ReleaseSymbol(self.sent.digest[:2], index, symbol))
        self.incoming.take(body, self.now)

    def settle(self) -> IncomingRelease:
        """Serve it until its thread has nothing to do."""
        idle = 0
        while idle < 3:
            self.incoming.poll(self.now)
            self.now += 1.0
            works = any(thread.name == "release" for thread in threading.enumerate())
            idle = 0 if works else idle + 1
            time.sleep(0.005 * works)
        report = self.incoming.report()
        assert report is not None
        return report


@pytest.fixture
def board(tiny: LoadedModel, tiny_data: dict[str, Any], tmp_path: Path) -> Board:
    np.savez(tmp_path / "ada.npz", **tiny_data)
    return Board(tmp_path, tiny.folder, tmp_path / "ada.npz")


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch, board: Board) -> None:
    """The child's answer without the child: `test_trial` has that."""

    def try_model(*_: object, **__: object) -> float:
        board.trials += 1
        return 0.010

    monkeypatch.setattr("edge.releases.rollout.try_model", try_model)


def test_it_is_tried_and_then_installed_when_the_host_says_so(board, new_release) -> None:
    offer = board.offer(new_release(2), tries=0)
    assert len(board.data) < 2000, "only the files that are new"
    board.symbols()
    assert board.settle().state == "held"
    board.incoming.take(write_offer(replace(offer, tries=PLACES, number=2)), board.now)
    assert board.settle().state == "tried good"
    assert board.releases.installed() == [], "the node does not switch to it yet"
    board.incoming.take(write_offer(replace(offer, stage=ACTIVE, number=3)), board.now)
    assert not board.incoming.waits
    assert board.settle().state == "running"
    assert board.incoming.waits, "the node restarts with it"
    assert board.releases.installed() == [2]
    assert not (board.releases.folder / FOLDER / CANDIDATE).exists(), "it was moved, not copied"
    assert settle(board.config, board.releases).folder == board.releases.folder / "2"
    assert board.trials == 1
    assert board.releases.standing().last_good == 2
    board.begin()
    assert board.settle().state == "running"
    assert not board.incoming.waits


def test_a_release_that_a_person_installs_is_seen_when_the_node_is_told(
    board: Board, new_release: Release, caplog: pytest.LogCaptureFixture
) -> None:
    (board.releases.folder / "20251122").mkdir(parents=True)
    board.incoming.survey()
    assert "release 20251122 is not taken: " in caplog.text
    assert board.incoming.installed is not None
    assert [version for version, _ in board.incoming.installed.not_taken] == [20251122]
    board.releases.install(new_release(2))
    assert not board.incoming.waits
    board.incoming.survey()
    assert board.incoming.waits
    board.releases.begin()
    board.incoming.survey()
    assert not board.incoming.waits
    assert board.incoming.installed.current == 2


def test_a_board_that_lacks_a_file_vetoes_nothing(board: Board, new_release, tmp_path) -> None:
    """It missed the release before, and this one leaves out what that has."""
    board.incoming._model = tmp_path
    for begin in range(2):
        report = board.settle() if begin else board.state(new_release(2))
        assert "the release leaves out model.json" in str(report)
        assert "refused" in str(report)
        board.begin()


def test_a_fault_of_the_board_is_forgiven_at_its_next_start(board, new_release, tmp_path) -> None:
    data = (tmp_path / "ada.npz").rename(tmp_path / "away.npz")
    for number in range(1, 6):
        board.offer(new_release(2), number=number) if number == 1 else board.begin()
        board.symbols()
        report = board.settle()
        assert report.state == "refused"
        assert "ada.npz" in report.reason
    data.rename(tmp_path / "ada.npz")
    board.begin()
    assert board.settle().state == "tried good"


def test_a_kill_costs_what_was_not_written(board: Board, new_release: Release) -> None:
    board.offer(new_release(2))
    count = layout_of(board.sent).count
    board.symbols(range(0, count, 2))
    file = board.releases.folder / FOLDER / SYMBOLS
    content = bytearray(file.read_bytes())
    content[20] ^= 1  # of the first record
    file.write_bytes(content[:-5])  # the last one was cut off
    board.begin()
    report = board.incoming.report()
    assert report.held == pytest.approx((len(range(0, count, 2)) - 2) / count, abs=0.01)
    board.symbols()
    assert board.settle().state == "tried good"


def test_a_forged_symbol_begins_it_anew(board: Board, new_release: Release) -> None:
    board.offer(new_release(2))
    board.take(0, bytes(64))
    board.symbols()
    report = board.settle()
    assert (report.state, report.held) == ("receiving", 0.0)
    board.symbols()
    assert board.settle().state == "tried good"


def unsigned(_content: bytes, _signatures: bytes) -> None:
    raise NotSigned("this release is not signed by the host of this fleet")


def test_bad_releases_are_reported_with_the_reason(board: Board, new_release: Release) -> None:
    state, reason = board.state(new_release(2, loss_max=1e-6))
    assert (state, "its loss on" in reason) == ("tried bad", True)
    state, reason = board.state(new_release(4), version=5, number=2)
    assert (state, "not the one of its offer" in reason) == ("tried bad", True)
    board.verify = unsigned
    board.begin()
    state, reason = board.state(new_release(6), version=6, number=3)
    assert (state, "not signed" in reason) == ("tried bad", True)
    assert board.releases.installed() == []


def test_a_trial_that_kills_the_node_is_not_tried_for_ever(board, new_release, monkeypatch) -> None:
    def die(*_: object) -> None:
        raise SystemExit  # ends the thread without an outcome, as a kill of the process does

    monkeypatch.setattr(module, "try_release", die)
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    board.offer(new_release(2))
    board.symbols()
    while not (board.releases.folder / FOLDER / STATE).exists():
        board.incoming.poll(board.now)
    for _ in range(6):
        for _ in range(5):
            board.incoming.poll(board.now)
            time.sleep(0.01)
        board.begin()
    report = board.settle()
    assert report.state == "tried bad"
    assert "died in 3 trials" in report.reason


@pytest.mark.parametrize("kind", ["older", "other model", "too large", "older offer"])
def test_what_is_refused_changes_nothing(kind, board, new_release, monkeypatch) -> None:
    changes: dict[str, Any] = {}
    if kind == "older":
        board.releases.install(new_release(7))
        board.releases.begin()
    elif kind == "other model":
        changes["name"] = "huge"
    elif kind == "too large":
        monkeypatch.setattr("shutil.disk_usage", lambda _: Disk(1, 1, 1_000_000))
    else:
        board.offer(new_release(2), number=9)
        changes["number"] = 8
    before = sorted(os.listdir(board.releases.folder))
    with pytest.raises(WireError):
        board.offer(new_release(3), **changes)
    board.symbols() if kind != "other model" else None
    assert sorted(os.listdir(board.releases.folder)) == before
    assert not (board.releases.folder / FOLDER / SYMBOLS).exists()


def test_another_offer_waits_for_the_end_of_a_trial(board, new_release, monkeypatch) -> None:
    may_end = threading.Event()
    monkeypatch.setattr(module, "try_release", lambda *_: may_end.wait(60.0))
    first = board.offer(new_release(2))
    board.symbols()
    while not (board.releases.folder / FOLDER / STATE).exists():
        board.incoming.poll(board.now)
    board.incoming.poll(board.now)  # the trial has begun
    board.incoming.take(write_offer(replace(first, stage=WITHDRAWN, number=2)), board.now)
    board.offer(new_release(3), version=3, number=3)
    may_end.set()
    assert board.settle().state == "tried good"
    report = board.incoming.report()
    assert report.version == 2
    board.incoming.take(write_offer(board.sent), board.now)
    board.symbols()
    assert (board.settle().state, board.sent.version) == ("tried good", 3)


def test_withdrawn_it_is_gone(board: Board, new_release: Release) -> None:
    offer = board.offer(new_release(2), tries=0)
    board.symbols()
    assert board.settle().state == "held"
    board.incoming.take(write_offer(replace(offer, stage=WITHDRAWN, number=2)), board.now)
    report = board.settle()
    assert (report.state, report.reason) == ("refused", "withdrawn")
    assert sorted(os.listdir(board.releases.folder / FOLDER)) == ["offer", "state.json"]
    board.incoming.take(write_offer(replace(offer, number=3)), board.now)
    board.symbols()
    assert board.settle().state == "held", "the host has published it again"


def test_damaged_files_begin_it_anew(board: Board, new_release: Release) -> None:
    board.offer(new_release(2))
    for name in ("offer", STATE):
        (board.releases.folder / FOLDER / name).write_bytes(b"\xffnothing")
        board.begin()
    assert board.incoming.report() is None
    assert board.state(new_release(3), version=3) == ("tried good", "")


def test_a_full_disk_is_said_and_nothing_is_raised(board: Board, new_release: Release) -> None:
    board.offer(new_release(2))
    (board.releases.folder / FOLDER / SYMBOLS).symlink_to("/dev/full")
    with pytest.raises(WireError):
        board.symbols([0])
    report = board.incoming.report()
    assert "No space left" in report.reason
    board.incoming.poll(1e9)
