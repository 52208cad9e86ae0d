from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import mqtt_kills, mqtt_outbox
from bench.mqtt_kills import Plan
from bench.mqtt_outbox import BODY, SCHEMA, Outbox, messages
from ternmesh_store.database import Database
from transports.base import Arrival, Busy


def test_each_message_is_on_disk_once_and_every_receipt_has_come(mosquitto, tmp_path) -> None:
    sent = mqtt_outbox.run(mosquitto.url, tmp_path, 600, 1)
    assert sent.is_right
    assert 1 < sent.commits < 600


def test_nothing_is_lost_or_doubled_while_the_broker_is_killed(new_mosquitto, tmp_path) -> None:
    plan = Plan(60, rate=30.0, up_s=(0.3, 0.8), down_s=(0.0, 0.1), reconnect_min_s=0.05)
    outcome = mqtt_kills.run(tmp_path, plan, 1)
    assert (outcome.lost, outcome.twice, outcome.not_forgotten) == (0, 0, 0)
    assert outcome.kills > 0


class BadEnd:
    """A bearer that loses what is sent at first, is busy then, and answers after that."""

    def __init__(self) -> None:
        self.calls = 0
        self.answers: list[bytes] = []

    def send(self, _peer: str, frames: Sequence[bytes]) -> int:
        self.calls += 1
        if self.calls in (5, 6):
            raise Busy("later")
        if self.calls > 4:
            self.answers += [frame[:4] for frame in frames]
        return 0

    def receive(self, _timeout_s: float) -> Arrival | None:
        return Arrival("host", (self.answers.pop(),), 4) if self.answers else None


def rows(path: Path) -> int:
    """What a process would find that begins now."""
    copy = path.with_name("copy.sqlite")
    for suffix in ("", "-wal"):
        copy.with_name(copy.name + suffix).write_bytes(
            path.with_name(path.name + suffix).read_bytes()
        )
    database = Database(copy, SCHEMA)
    database.open()
    found = database.rows("SELECT body FROM message")
    database.close()
    assert all(len(body) == BODY for (body,) in found)
    return len(found)


def test_a_message_stays_in_the_outbox_until_its_receipt(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, end = Database(tmp_path / "outbox.sqlite", SCHEMA), BadEnd()
    database.open()
    outbox = Outbox(database, end, messages(4, 1))
    assert outbox.step()
    assert (end.calls, rows(database.path)) == (4, 4)
    assert outbox.step()
    assert (end.calls, outbox.again) == (4, 0)
    monkeypatch.setattr(mqtt_outbox, "AGAIN_S", -1.0)
    outbox.step()
    assert rows(database.path) == 4
    monkeypatch.setattr(mqtt_outbox, "AGAIN_S", 1e9)
    while outbox.step():
        pass
    assert (outbox.again, rows(database.path)) == (4, 0)
    database.close()
