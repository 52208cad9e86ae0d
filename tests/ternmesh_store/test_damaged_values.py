"""Values that nobody wrote: SQLite checks its pages, the stores what they read from them."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from ternmesh.federated.events import (
    BodyAccepted,
    CountersReserved,
    GlobalUpdateMade,
    Joined,
    NodeJoined,
    UpdateMade,
)
from ternmesh.federated.local_update import make_update
from ternmesh.link.events import (
    LinkCountersReserved,
    ObjectArrived,
    Queued,
    SymbolHeld,
    TransferBegun,
)
from ternmesh.link.ledger import Moment
from ternmesh.link.messages import Offer
from ternmesh.link.regions import REGIONS
from ternmesh.plan import make_plan
from ternmesh.wire.global_update import Counted, certify, hash_global_update
from ternmesh_store.airtime_store import AirtimeStore
from ternmesh_store.database import StoreError
from ternmesh_store.host_store import HostStore
from ternmesh_store.link_store import LinkStore
from ternmesh_store.node_store import NodeStore
from ternmesh_store.state_file import STATE, StateFile
from ternmesh_store.store import StoredValues, read_floats

MODEL, RUN = bytes(32), b"runrunru"
PLAN = make_plan(50, rounds=5, local_steps=1, learning_rate=0.1)
PACKET = make_update(np.ones(50, np.float32), MODEL, 1, 10, PLAN)
NAN = np.full(50, np.nan, "<f4").tobytes()
KEY = "UPDATE {}_value SET value = ? WHERE key = '{}'"


@pytest.fixture
def file(tmp_path):
    file = StateFile(tmp_path)
    file.open()
    yield file
    file.close()


@pytest.fixture
def node(file):
    store = NodeStore(file)
    store.load(MODEL, 50)
    store.record(CountersReserved(4096))
    store.record(Joined(RUN, 7, PLAN))
    store.record(UpdateMade(PACKET))
    return store


@pytest.fixture
def host(file):
    store = HostStore(file)
    store.begin(RUN, PLAN, MODEL)
    counted, hashed = Counted(3, 0, b"dige", b"\x01"), hash_global_update(b"content")
    made = (np.zeros(50, np.int32), np.zeros(50, np.float32), (counted,), (), False)
    store.record(CountersReserved(4096))
    store.record(NodeJoined(3, "ada", 10))
    store.record(GlobalUpdateMade(1, hashed, certify(b"content"), *made))
    for body in PACKET.bodies:
        store.record(BodyAccepted(3, 1, body))
    return store


@pytest.fixture
def link(file):
    store = LinkStore(file)
    store.record(LinkCountersReserved(4096))
    for number in range(2):
        store.record(Queued(number, "ada", ("ada",), b"payload", 1))
        store.record(TransferBegun(number, number))
    store.record(SymbolHeld("bob", Offer(3, 1, b"name", 60, 20), 0, bytes(20)))
    store.record(ObjectArrived("bob", b"eman", b"payload"))
    store.load()
    return store


def refused(load: Callable[[], object], file: str = STATE) -> None:
    with pytest.raises(StoreError) as caught:
        load()
    assert f"{file} holds something that was never written" in str(caught.value)
    assert "the identity stays" in str(caught.value)


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("UPDATE node_run SET plan = ?", "[1, 2"),
        ("UPDATE node_run SET plan = ?", "[0,0,0,0,0,0,0,0,0,0,0]"),
        ("UPDATE node_run SET plan = ?", "[" * 3000),
        (KEY.format("node", "residual"), NAN),
        (KEY.format("node", "residual"), bytes(196)),
        (KEY.format("node", "model_q24"), bytes(201)),
        ("DELETE FROM node_value WHERE ? = ''", ""),
        ("UPDATE node_run SET silences = ?", b"x"),
        ("UPDATE security_counter SET reserved = ?", -1),
        ("UPDATE node_run SET address = ?", 1 << 15),
        ("UPDATE node_run SET global_hash = ?", b""),
        ("UPDATE node_pending SET round = ?", -1),
        ("UPDATE node_pending SET digest = ?", b"abcd"),
        ("UPDATE node_pending_body SET body = ? WHERE position = 0", b""),
        ("UPDATE node_pending_body SET body = ? WHERE position = 1", bytes(80)),
    ],
)
def test_a_node_does_not_begin_with_it(node, sql, value) -> None:
    node._database.write(sql, value)
    refused(lambda: node.load(MODEL, 50))


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("UPDATE host_run SET plan = ?", "{}"),
        (KEY.format("host", "residual"), NAN),
        (KEY.format("host", "model_q24"), bytes(4)),
        ("UPDATE host_run SET run = ?", b""),
        ("UPDATE host_run SET version = ?", -1),
        ("UPDATE host_run SET version = ?", 1 << 40),
        ("UPDATE host_run SET global_hash = ?", bytes(16)),
        ("UPDATE security_counter SET reserved = ?", (1 << 63) - 1),
        ("UPDATE host_node SET address = ?", 1 << 20),
        ("UPDATE host_node SET address = ?", 4),
        ("UPDATE host_node SET name = ?", "no/name"),
        ("UPDATE host_node SET samples = ?", -1),
        ("UPDATE host_node SET counted_round = ?", 9),
        ("UPDATE host_node SET counted_digest = ?", b""),
        ("UPDATE host_node SET counted_have = ?", b""),
        ("UPDATE host_chain SET version = ?", 5),
        ("UPDATE host_chain SET content = ?", b"content"),
        ("UPDATE host_body SET address = ?", 65539),
        ("UPDATE host_body SET address = ? WHERE position = 1", 9),
        ("UPDATE host_body SET body = ? WHERE position = 1", b""),
        ("UPDATE host_body SET body = ? WHERE position = 2", bytes(90)),
    ],
)
def test_nor_does_a_host(host, sql, value) -> None:
    host._database.write(sql, value)
    refused(lambda: host.load(MODEL))


def test_a_host_does_not_show_a_history_that_is_none(host) -> None:
    host._database.write("UPDATE host_round SET counted = ?", "[1")
    refused(host.history)


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("UPDATE link_outgoing SET receivers = ?", "3"),
        ("UPDATE link_outgoing SET receivers = ?", "[[]]"),
        ("UPDATE link_outgoing SET number = ? WHERE slot = 1", 99),
        ("UPDATE link_outgoing SET payload = ?", b""),
        ("UPDATE link_outgoing SET repairs = ?", -1),
        ("UPDATE link_outgoing SET slot = ?", 9),
        ("UPDATE link_outgoing SET slot = ?", 1),
        ("UPDATE security_counter SET reserved = ?", -1),
        ("UPDATE link_number SET next = ?", 0),
        ("UPDATE link_symbol SET position = ?", 1 << 16),
        ("UPDATE link_symbol SET slot = ?", 99),
        ("UPDATE link_symbol SET name = ?", b""),
        ("UPDATE link_symbol SET size = ?", 0),
        ("UPDATE link_symbol SET data = ?", b""),
        ("UPDATE link_arrived SET name = ?", b""),
    ],
)
def test_nor_does_a_link(link, sql, value) -> None:
    link._database.write(sql, value)
    refused(link.load)


def test_nor_a_ledger_of_airtime(tmp_path) -> None:
    now = Moment("boot", 1.0, None)
    band = next(band for band in REGIONS["EU868"].sub_bands if band.budget_us is not None)
    for damage in (False, True):
        store = AirtimeStore(tmp_path / "airtime.sqlite")
        store.open(now)
        if damage:
            store._database.write("UPDATE airtime_ledger SET entries = ?", b"cut")
            refused(partial(store.reserve, band, now, 1000), "airtime.sqlite")
        else:
            assert store.reserve(band, now, 1000)
        store.close()


def test_vectors_of_other_lengths_or_without_numbers_are_refused(file) -> None:
    for data in (b"abc", NAN):
        with pytest.raises(ValueError, match=r"multiple of|NaN"):
            read_floats(data)
    values = StoredValues(file, "node_value")
    values.put("model_q24", b"abcde")
    with pytest.raises(ValueError, match="multiple of"):
        values.integers("model_q24")
