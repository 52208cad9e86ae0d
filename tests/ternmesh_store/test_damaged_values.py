"""Values that nobody wrote: SQLite checks its pages, the stores what they read from them."""

from collections.abc import Callable

import numpy as np
import pytest

from ternmesh.link.frames import Offer
from ternmesh.link.ledger import Moment
from ternmesh.link.records import ObjectArrived, Queued, SymbolHeld, TransferBegun
from ternmesh.link.regions import REGIONS
from ternmesh.plan import make_plan
from ternmesh.swarm.events import BodyAccepted, Joined, NodeJoined, PacketMade, ReferenceMade
from ternmesh.swarm.packet import make_packet
from ternmesh.wire.reference import Counted, certify, reference_hash
from ternmesh_store.airtime_store import AirtimeStore
from ternmesh_store.arrays import read_fixed, read_floats
from ternmesh_store.database import StoreError
from ternmesh_store.host_store import HostStore
from ternmesh_store.link_store import LinkStore
from ternmesh_store.node_store import NodeStore

MODEL, RUN = bytes(32), b"runrunru"
PLAN = make_plan(50, rounds=5, local_steps=1, learning_rate=0.1)
PACKET = make_packet(np.ones(50, np.float32), MODEL, 1, 10, PLAN)
NAN = np.full(50, np.nan, "<f4").tobytes()
KEY = "UPDATE value SET value = ? WHERE key LIKE '%.{}'"


@pytest.fixture
def node(tmp_path):
    store = NodeStore(tmp_path / "node.sqlite")
    store.open()
    store.load(MODEL, 50)
    store.record(Joined(RUN, 7, PLAN))
    store.record(PacketMade(PACKET))
    yield store
    store.close()


@pytest.fixture
def host(tmp_path):
    store = HostStore(tmp_path / "host.sqlite")
    store.open()
    store.begin(RUN, PLAN, MODEL)
    counted, hashed = Counted(3, 0, b"dige", b"\x01"), reference_hash(b"content")
    made = (np.zeros(50, np.int32), np.zeros(50, np.float32), (counted,), (), False)
    store.record(NodeJoined(3, "ada", 10))
    store.record(ReferenceMade(1, hashed, certify(b"content"), *made))
    for body in PACKET.bodies:
        store.record(BodyAccepted(3, 1, body))
    yield store
    store.close()


@pytest.fixture
def link(tmp_path):
    store = LinkStore(tmp_path / "link.sqlite")
    store.open()
    for number in range(2):
        store.record(Queued(number, "ada", ("ada",), b"payload", 1, None))
        store.record(TransferBegun(number, number))
    store.record(SymbolHeld("bob", Offer(3, 1, b"name", 60, 20), 0, bytes(20)))
    store.record(ObjectArrived("bob", b"eman", b"payload"))
    store.load()
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
        ("UPDATE counter SET reserved = ?", -1),
        ("UPDATE standing SET context = ?", 1 << 15),
        ("UPDATE standing SET reference = ?", b""),
        ("UPDATE pending SET round = ?", -1),
        ("UPDATE pending SET digest = ?", b"abcd"),
        ("UPDATE pending_body SET body = ? WHERE position = 0", b""),
        ("UPDATE pending_body SET body = ? WHERE position = 1", bytes(80)),
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
        ("UPDATE run SET run = ?", b""),
        ("UPDATE run SET version = ?", -1),
        ("UPDATE run SET version = ?", 1 << 40),
        ("UPDATE run SET reference = ?", bytes(16)),
        ("UPDATE counter SET reserved = ?", (1 << 63) - 1),
        ("UPDATE node SET context = ?", 1 << 20),
        ("UPDATE node SET context = ?", 4),
        ("UPDATE node SET name = ?", "no/name"),
        ("UPDATE node SET samples = ?", -1),
        ("UPDATE node SET counted_round = ?", 9),
        ("UPDATE node SET counted_digest = ?", b""),
        ("UPDATE node SET counted_have = ?", b""),
        ("UPDATE link SET version = ?", 5),
        ("UPDATE link SET content = ?", b"content"),
        ("UPDATE body SET context = ?", 65539),
        ("UPDATE body SET context = ? WHERE position = 1", 9),
        ("UPDATE body SET body = ? WHERE position = 1", b""),
        ("UPDATE body SET body = ? WHERE position = 2", bytes(90)),
    ],
)
def test_nor_does_a_host(host, sql, value) -> None:
    host._database.write(sql, value)
    refused(lambda: host.load(MODEL), "host.sqlite")


def test_a_host_does_not_show_a_history_that_is_none(host) -> None:
    host._database.write("UPDATE round SET counted = ?", "[1")
    refused(host.history, "host.sqlite")


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("UPDATE outgoing SET receivers = ?", "3"),
        ("UPDATE outgoing SET receivers = ?", "[[]]"),
        ("UPDATE outgoing SET number = ? WHERE slot = 1", 99),
        ("UPDATE outgoing SET payload = ?", b""),
        ("UPDATE outgoing SET repairs = ?", -1),
        ("UPDATE outgoing SET slot = ?", 9),
        ("UPDATE outgoing SET slot = ?", 1),
        ("UPDATE counter SET seal = ?", -1),
        ("UPDATE counter SET number = ?", 0),
        ("UPDATE symbol SET position = ?", 1 << 16),
        ("UPDATE symbol SET slot = ?", 99),
        ("UPDATE symbol SET name = ?", b""),
        ("UPDATE symbol SET size = ?", 0),
        ("UPDATE symbol SET data = ?", b""),
        ("UPDATE arrived SET name = ?", b""),
    ],
)
def test_nor_does_a_link(link, sql, value) -> None:
    link._database.write(sql, value)
    refused(link.load, "link.sqlite")


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
