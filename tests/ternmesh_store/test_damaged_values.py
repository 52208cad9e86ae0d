"""Values that nobody wrote: SQLite checks its pages, the stores what they read from them."""

from collections.abc import Callable

import numpy as np
import pytest

from ternmesh.link.ledger import Moment
from ternmesh.link.records import Queued
from ternmesh.link.regions import REGIONS
from ternmesh.plan import make_plan
from ternmesh.swarm.events import Joined
from ternmesh_store.airtime_store import AirtimeStore
from ternmesh_store.arrays import read_fixed, read_floats
from ternmesh_store.database import StoreError
from ternmesh_store.host_store import HostStore
from ternmesh_store.link_store import LinkStore
from ternmesh_store.node_store import NodeStore

MODEL, RUN = bytes(32), b"runrunru"
PLAN = make_plan(50, rounds=5, local_steps=1, learning_rate=0.1)
NAN = np.full(50, np.nan, "<f4").tobytes()
KEY = "UPDATE value SET value = ? WHERE key LIKE '%.{}'"


@pytest.fixture
def node(tmp_path):
    store = NodeStore(tmp_path / "node.sqlite")
    store.open()
    store.load(MODEL, 50)
    store.record(Joined(RUN, 7, PLAN))
    yield store
    store.close()


@pytest.fixture
def host(tmp_path):
    store = HostStore(tmp_path / "host.sqlite")
    store.open()
    store.begin(RUN, PLAN, MODEL)
    yield store
    store.close()


def refused(load: Callable[[], object], file: str) -> None:
    with pytest.raises(StoreError) as caught:
        load()
    assert f"{file} holds something that was never written" in str(caught.value)
    assert "move it away" in str(caught.value)


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("UPDATE standing SET plan = ?", "[1, 2"),
        ("UPDATE standing SET plan = ?", "[0,0,0,0,0,0,0,0,0,0,0]"),
        ("UPDATE standing SET plan = ?", "[" * 3000),
        (KEY.format("residual"), NAN),
        (KEY.format("residual"), bytes(196)),
        (KEY.format("fixed"), bytes(201)),
        ("DELETE FROM value WHERE ? = ''", ""),
        ("UPDATE value SET value = ? WHERE key = 'member.silence'", b"x"),
    ],
)
def test_a_node_does_not_begin_with_it(node, sql, value) -> None:
    node._database.write(sql, value)
    refused(lambda: node.load(MODEL, 50), "node.sqlite")


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("UPDATE run SET plan = ?", "{}"),
        (KEY.format("residual"), NAN),
        (KEY.format("fixed"), bytes(4)),
    ],
)
def test_nor_does_a_host(host, sql, value) -> None:
    host._database.write(sql, value)
    refused(lambda: host.load(MODEL), "host.sqlite")


def test_a_host_does_not_show_a_history_that_is_none(host) -> None:
    host._database.write("INSERT INTO round VALUES (1, ?, '[]', 0)", "[1")
    refused(host.history, "host.sqlite")


def test_nor_a_link(tmp_path) -> None:
    store = LinkStore(tmp_path / "link.sqlite")
    store.open()
    store.record(Queued(0, "ada", ("ada",), b"payload", 1, None))
    store._database.write("UPDATE outgoing SET receivers = ?", "3")
    refused(store.load, "link.sqlite")
    store.close()


def test_nor_a_ledger_of_airtime(tmp_path) -> None:
    now = Moment("boot", 1.0, None)
    band = next(band for band in REGIONS["EU868"].sub_bands if band.budget_us is not None)
    for damage in (False, True):
        store = AirtimeStore(tmp_path / "airtime.sqlite")
        store.open(now)
        if damage:
            store._database.write("UPDATE airtime SET entries = ?", b"cut")
            refused(lambda store=store: store.reserve(band, now, 1000), "airtime.sqlite")
        else:
            assert store.reserve(band, now, 1000)
        store.close()


def test_arrays_of_other_lengths_or_without_numbers_are_none() -> None:
    for data in (b"abc", NAN):
        with pytest.raises(ValueError, match=r"multiple of|NaN"):
            read_floats(data)
    with pytest.raises(ValueError, match="multiple of"):
        read_fixed(b"abcde")
