"""What a host publishes: taken from the disk, staged, resumed after a kill, withdrawn."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from edge.releases.store import make_release
from host.config import PublishConfig
from host.releases import NEW, OBJECT, STATE, Publisher, active_model
from ternmesh.errors import WireError
from ternmesh.model_package import ADAPTER
from ternmesh.release import Verify, read_object
from ternmesh.wire.release import (
    ACTIVE,
    BAD,
    GOOD,
    HELD,
    OFFER,
    RUNNING,
    SYMBOL,
    ReleaseOffer,
    ReleaseStatus,
    read_offer,
    read_symbol,
)
from ternmesh_cli.status_text import published
from ternmesh_service.release_files import pack_folder
from tests.edge.conftest import SIZE_A, SIZE_B, _write
from transports.base import Spare

SPARE = Spare(200, 1.0)


class Host:
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "state" / "release"
        self.model = folder / "model"
        self.model.mkdir()
        _write(self.model)
        self.settings = PublishConfig()
        self.name = "tiny"
        self.now = 0.0
        self.offers: list[ReleaseOffer] = []
        self.indexes: list[int] = []
        self.begin()

    def begin(self, verify: Verify = lambda *_: None) -> None:
        self.publisher = Publisher(self.folder, self.model, self.name, verify, self.settings, 60.0)
        self.publisher.open()

    def put(self, version: int) -> None:
        source = self.folder.parent / f"package-{version}"
        release = self.folder.parent / f"release-{version}"
        if not source.exists():
            source.mkdir(parents=True)
            adapter = np.random.default_rng(version).standard_normal(SIZE_A + SIZE_B)
            _write(source, {ADAPTER: adapter.astype("<f4").tobytes()})
            make_release(source, release, version, (9.0, 9.0))
        self.folder.mkdir(exist_ok=True)
        (self.folder / NEW).write_bytes(pack_folder(release))
        (self.folder / f"{NEW}.json").write_text("0.5")

    def turn(self, count: int = 20, spare: Spare | None = SPARE) -> None:
        for _ in range(count):
            for body in self.publisher.bodies(self.now, spare, ["ada", "bob"]):
                if body[0] == OFFER:
                    self.offers.append(read_offer(body))
                elif body[0] == SYMBOL:
                    self.indexes.append(read_symbol(body).index)
            self.now += 1.0

    def say(self, state: int, *names: str, reason: str = "") -> None:
        sender = self.publisher.sender
        assert sender is not None
        needs = sender._sizes if state == 0 else ()
        for name in names:
            sender.receive(name, ReleaseStatus(self.offers[-1].digest[:4], state, needs, reason))

    @property
    def stage(self) -> Any:
        status = self.publisher.status()
        return None if status is None else status.stage


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_from_the_disk_to_all_boards(host: Host) -> None:
    assert host.publisher.status() is None
    host.put(2)
    host.begin()  # it was not running when the owner published it
    host.turn()
    host.say(0, "ada", "bob")
    host.turn(60)
    assert sorted(host.indexes) == list(range(len(host.indexes)))
    host.say(HELD, "ada", "bob")
    host.turn(200)
    canary = host.offers[-1]
    assert 0 < canary.tries < 65_536
    host.say(GOOD, "ada", "bob")
    host.turn(400)
    assert host.stage == "active"
    assert host.publisher.has_switched
    assert active_model(host.folder) == host.folder / "2"
    assert host.offers[-1].stage == ACTIVE
    numbers = [offer.number for offer in host.offers]
    assert numbers == sorted(numbers)
    host.say(RUNNING, "ada", "bob")
    lines = "\n".join(published(host.publisher.status()))
    assert "release 2 is active" in lines
    assert "ada: running, 100% here" in lines


def test_a_bad_canary_withdraws_it_with_the_reason(host: Host) -> None:
    host.put(2)
    host.begin()
    host.turn()
    host.say(HELD, "ada", "bob")
    host.turn(200)
    host.say(BAD, "ada", "bob", reason="its loss is 7")
    host.turn(200)
    assert host.stage == "withdrawn"
    assert "ada: its loss is 7" in next(iter(published(host.publisher.status())))
    assert active_model(host.folder) is None
    host.put(2)
    assert "not above version 2" in host.publisher.take_new(), "boards have tried it"
    host.put(3)
    assert "version 3 of tiny is published" in host.publisher.take_new()
    assert host.stage == "on trial"
    assert sorted(path.name for path in host.folder.iterdir() if path.is_dir()) == ["3"]


@pytest.mark.parametrize("missing", [0, 1])
def test_a_board_that_missed_a_release_gets_the_next_one_whole(host: Host, missing: int) -> None:
    host.put(2)
    host.begin()
    for state, turns in ((HELD, 20), (GOOD, 200), (RUNNING, 400)):
        host.turn(turns)
        host.say(state, *["ada", "bob"][missing and state == RUNNING :])
    assert host.stage == "active"
    host.put(3)
    host.publisher.take_new()
    assert (b"" not in read_object((host.folder / OBJECT).read_bytes())[2]) == bool(missing)


def test_a_kill_goes_on_where_it_was(host: Host) -> None:
    host.put(2)
    host.begin()
    host.turn()
    host.say(0, "ada", "bob")
    host.say(GOOD, "bob")
    host.turn(30)
    sent = set(host.indexes)
    host.begin()
    assert host.publisher.sender.boards["bob"].state == GOOD
    host.turn(10)
    host.say(0, "ada")
    host.turn(30)
    assert not sent & set(host.indexes[len(sent) :]), "none leaves twice"
    assert 0 < len(sent) < len(host.indexes)


def test_nothing_leaves_while_others_wait_and_no_more_than_its_share(host: Host) -> None:
    host.put(2)
    host.begin()
    host.turn(5)
    host.say(0, "ada", "bob")
    host.turn(30)
    begun = len(host.indexes)
    host.turn(40, None)
    assert len(host.indexes) == begun
    host.say(0, "ada", "bob")
    host.turn(20)
    assert len(host.indexes) - begun <= 11, "a symbol takes a second, and half of the time is free"


@pytest.mark.parametrize("kind", ["older", "other model", "not signed", "damaged"])
def test_what_is_not_published(kind: str, host: Host) -> None:
    host.put(3)
    host.begin()
    before = host.publisher.status()
    if kind == "other model":
        host.name = "huge"
    refuse = Mock(side_effect=WireError("signature", "nobody has signed it"))
    host.begin(refuse if kind == "not signed" else lambda *_: None)
    host.put(2 if kind == "older" else 4)
    if kind == "damaged":
        (host.folder / NEW).write_bytes(b"nothing")
    assert host.publisher.take_new().startswith("the release is not published: ")
    assert host.publisher.status() == before
    assert not (host.folder / NEW).exists()


def test_one_that_is_too_large_for_the_bearer_is_withdrawn(host: Host) -> None:
    host.put(2)
    host.begin()
    host.turn(2, Spare(19, 1.0))
    assert host.stage == "withdrawn"
    kept = (host.folder / STATE).read_bytes()
    number = json.loads(kept)["offer"]["number"]
    host.turn(9, Spare(19, 1.0))
    assert (host.folder / STATE).read_bytes() == kept, "nobody was told of it: it writes no more"
    host.put(2)
    assert "version 2 of tiny is published" in host.publisher.take_new()
    host.turn(2)
    assert host.stage == "on trial"
    assert host.offers[-1].number > number


def test_radios_behind_gateways_get_short_symbols_at_their_own_rate(host: Host) -> None:
    host.settings = PublishConfig(radio_bytes_s=92.0)
    host.put(2)
    host.begin()
    host.turn(5, Spare(1024))
    host.say(0, "ada", "bob")
    times = []
    for _ in range(100):
        count = len(host.indexes)
        host.turn(1, Spare(1024))
        times += [host.now] * (len(host.indexes) - count)
    gaps = np.diff(times)
    assert gaps.min() == 184 / 92.0 / host.settings.airtime_share
    assert host.offers[-1].symbol_bytes <= 184


def test_a_full_disk_stops_only_the_release(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.put(2)
    host.begin()
    full = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr("host.releases.replace_file", full)
    host.turn(3)
    assert "No space left" in host.publisher.reason
