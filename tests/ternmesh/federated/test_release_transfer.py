"""A release over links that lose frames: sender and receivers, and the sessions that carry them."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ternmesh.errors import WireError
from ternmesh.federated.release_transfer import (
    NAME_SIZE,
    ReleaseReceiver,
    ReleaseSender,
    canaries,
    layout_of,
    place_of,
)
from ternmesh.link.erasure_code import Decoder, best_symbol_bytes
from ternmesh.wire import control, release
from ternmesh.wire.frame import BROADCAST

LONGEST_S, COST_S = 3600.0, 0.8


class Air:
    """A host and boards in simulated time; each broadcast is lost at each board by chance."""

    def __init__(self, seed: int, size: int, boards: int, loss: float, mtu: int = 252) -> None:
        self.rng = np.random.default_rng(seed)
        self.loss = loss
        self.data = self.rng.bytes(size)
        digest = hashlib.sha256(self.data).digest()
        symbol = best_symbol_bytes(size, mtu - 19)
        self.offer = release.ReleaseOffer(
            digest, size, symbol, "tiny", 2, 1, release.ON_TRIAL, 0, release.NOBODY, 0
        )
        self.sender = self.new_sender()
        self.boards = {f"b{i}": ReleaseReceiver(f"b{i}", self.rng) for i in range(boards)}
        self.away: set[str] = set()
        self.symbols: dict[str, dict[int, bytes]] = {name: {} for name in self.boards}
        self.now = self.bytes = 0.0

    def new_sender(self, cursors: list[int] | None = None) -> ReleaseSender:
        return ReleaseSender(self.data, self.offer, 0.1, LONGEST_S, cursors or ())

    def step(self) -> None:
        """One frame of the host, and what boards answer."""
        self.sender.expect(self.boards)
        if (offer := self.sender.verdict()) is not None:
            self.offer = replace(offer, number=offer.number + 1)
            self.sender.change(self.offer)
        for body in self.sender.bodies(self.now, COST_S, 1):
            self.bytes += len(body) + 14 + 65 * (body[0] == release.OFFER)
            for name, board in self.boards.items():
                if name not in self.away and self.rng.random() >= self.loss:
                    self.hear(name, board, body)
        for name, board in self.boards.items():
            answer = board.answer(self.now)
            if answer is not None and name not in self.away:
                self.bytes += len(answer) + 79
                if self.rng.random() >= self.loss:
                    self.sender.receive(name, release.read_status(answer))
        self.now += COST_S / 2

    def hear(self, name: str, board: ReleaseReceiver, body: bytes) -> None:
        if body[0] == release.OFFER:
            board.take_offer(release.read_offer(body), self.now)
        elif board.add(symbol := release.read_symbol(body)):
            self.symbols[name][symbol.index] = symbol.data

    def until(self, condition: Callable[[], bool], limit: int = 60_000) -> None:
        for _ in range(limit):
            if condition():
                return
            self.step()
            for name, board in self.boards.items():
                if (
                    board.offer is not None
                    and board.state == release.RECEIVING
                    and not any(board.needs)
                ):
                    self.complete(name, board)
        raise AssertionError(f"not within {self.now:.0f} s")

    def complete(self, name: str, board: ReleaseReceiver) -> None:
        if name != "b0" and len(self.data) > 100_000:  # the code's own tests have more
            board.become(release.HELD, self.now)
            return
        decoder = Decoder(layout_of(self.offer), self.offer.digest[:NAME_SIZE])
        for index in sorted(self.symbols[name]):
            decoder.add(index, self.symbols[name][index])
        if decoder.is_complete:
            assert decoder.data() == self.data
            board.become(release.HELD, self.now)
        else:
            board.lack(decoder.missing)

    @property
    def states(self) -> list[int]:
        return [board.state for board in self.boards.values()]


def test_ten_boards_at_a_loss_of_20_percent() -> None:
    air = Air(0, 200_000, 10, 0.2)
    air.until(lambda: release.RECEIVING not in air.states)
    assert air.bytes / len(air.data) < 1.5


@pytest.mark.parametrize("seed", range(4))
def test_kills_of_both_ends_and_boards_that_come_late(seed: int) -> None:
    air = Air(seed, 4_000 + 3_000 * (seed % 5), 4, 0.3, mtu=60)
    air.away = {"b0"}
    for _ in range(6):
        for _ in range(int(air.rng.integers(20, 400))):
            air.step()
        if air.rng.random() < 0.5:
            air.sender = air.new_sender(air.sender.cursors)
        else:
            name = str(air.rng.choice(sorted(air.boards)))
            again = air.boards[name] = ReleaseReceiver(name, air.rng)
            again.take_offer(air.offer, air.now)
            for index, data in air.symbols[name].items():
                again.add(release.ReleaseSymbol(air.offer.digest[:2], index, data))
    air.until(lambda: all(b.state != release.RECEIVING for n, b in air.boards.items() if n != "b0"))
    air.away = set()
    air.sender.heard("b0")
    air.until(lambda: release.RECEIVING not in air.states)


def test_the_stages_a_canary_then_all_then_active() -> None:
    air = Air(1, 2_000, 5, 0.1)
    tried: list[tuple[str, int]] = []

    def work() -> bool:
        for name, board in air.boards.items():
            offer = board.offer
            if board.state == release.HELD and board.may_try and offer is not None:
                tried.append((name, offer.tries))
                board.become(release.GOOD, air.now)
            elif (
                board.state == release.GOOD and offer is not None and offer.stage == release.ACTIVE
            ):
                board.become(release.RUNNING, air.now)
        return {board.state for board in air.sender.boards.values()} == {release.RUNNING}

    air.until(work)
    digest = air.offer.digest
    first, tries = tried[0]
    assert tries == canaries([first], digest, 0.1), "the first of those that hold it"
    assert [n for n, _ in tried[1:]] != []
    assert all(t == release.PLACES for name, t in tried if place_of(name, digest) >= tries)
    air.sender.heard(first, is_behind=True)
    assert air.sender.boards[first].state == release.HELD, "it has gone back, and is asked again"


def sender_with(states: dict[str, int], tries: int = release.PLACES) -> ReleaseSender:
    air = Air(0, 1_000, 0, 0.0)
    air.offer = replace(air.offer, tries=tries)
    sender = air.new_sender()
    sender.expect(states)
    for name, state in states.items():
        sender.receive(
            name,
            release.ReleaseStatus(air.offer.digest[:4], state, (5,) * (state == release.RECEIVING)),
        )
    return sender


@pytest.mark.parametrize(
    ("states", "tries", "stage"),
    [
        # one bad canary is enough
        ({"a": release.BAD, "b": release.HELD}, release.PLACES - 1, release.WITHDRAWN),
        ({"a": release.GOOD, "b": release.BAD, "c": release.GOOD}, release.PLACES, release.ACTIVE),
        (
            {"a": release.GOOD, "b": release.BAD, "c": release.BAD},
            release.PLACES,
            release.WITHDRAWN,
        ),
        ({"a": release.REFUSED, "b": release.REFUSED}, release.PLACES, release.WITHDRAWN),
        ({"a": release.REFUSED, "b": release.GOOD}, release.PLACES, release.ACTIVE),
        ({"a": release.GOOD, "b": release.HELD}, release.PLACES, None),  # one is still at it
        ({"a": release.GOOD, "b": release.RECEIVING}, release.PLACES, None),
    ],
)
def test_what_follows_from_what_boards_say(states, tries, stage) -> None:
    step = sender_with(states, tries).verdict()
    assert (None if step is None else step.stage) == stage


def test_boards_that_are_away_hold_up_nobody() -> None:
    sender = sender_with({"a": release.GOOD, "b": release.RECEIVING})
    sender.boards["b"].silent = 4
    step = sender.verdict()
    assert step.stage == release.ACTIVE


def test_wrong_statuses_change_nothing() -> None:
    sender = sender_with({"a": release.HELD})
    for status in (
        release.ReleaseStatus(b"else", release.HELD),
        release.ReleaseStatus(sender.offer.digest[:4], release.RECEIVING, (9,)),
    ):
        with pytest.raises(WireError):
            sender.receive("a", status)
    assert sender.boards["a"].state == release.HELD


def test_an_older_offer_and_a_wrong_symbol_are_refused() -> None:
    air = Air(0, 1_000, 1, 0.0)
    board = air.boards["b0"]
    assert board.take_offer(replace(air.offer, number=5), 0.0)
    with pytest.raises(WireError):
        board.take_offer(replace(air.offer, number=4, digest=bytes(32)), 0.0)
    with pytest.raises(WireError):
        board.add(release.ReleaseSymbol(air.offer.digest[:2], 0, b"short"))
    assert not board.add(release.ReleaseSymbol(b"no", 0, bytes(air.offer.symbol_bytes)))
    assert board.offer.number == 5
    assert not board.held


@pytest.mark.parametrize("model", ["the same", "another"])
def test_sessions_carry_it_also_to_a_board_of_another_model(
    model: str, new_bench: Callable[..., Any]
) -> None:
    bench = new_bench(rounds=3, min_peers=2, keys=("theo", "yan"))
    bench.add("theo")
    node = bench.nodes["theo"]
    if model == "another":
        node.joining._settings = replace(node.settings, model_hash=bytes(32))
        node.channel.authenticator._model_hash = bytes(32)
    taken: list[bytes] = []
    node.take_release = lambda body, _now: taken.append(body)
    air = Air(0, 1_000, 0, 0.0)
    bench.host.session.release = air.sender
    bench.settle()
    assert ("theo" in [n.name for n in bench.host.nodes.values()]) == (model == "the same")
    symbol = release.write_symbol(release.ReleaseSymbol(b"ab", 7, b"data"))
    bench.host.session.broadcast([release.write_offer(air.offer), symbol])
    bench.exchange()
    assert taken == [release.write_offer(air.offer), symbol]
    node.send_release_status(board_status(air))
    bench.exchange()
    assert air.sender.boards["theo"].state == release.GOOD


def board_status(air: Air) -> bytes:
    board = ReleaseReceiver("theo", air.rng)
    board.take_offer(air.offer, 0.0)
    board.become(release.GOOD, 0.0)
    body = board.answer(1.0)
    assert body is not None
    return body


def test_an_offer_that_the_host_has_not_signed_is_refused(new_bench: Callable[..., Any]) -> None:
    bench = new_bench(rounds=3, min_peers=2, keys=("theo",))
    bench.add("theo")
    bench.settle()
    node = bench.nodes["theo"]
    taken: list[bytes] = []
    node.take_release = lambda body, _now: taken.append(body)
    offer = release.write_offer(Air(0, 1_000, 0, 0.0).offer)
    # A member holds the broadcast key, but not the host's.
    bench.host.channel.outgoing.push("all", BROADCAST, [offer])
    bench.exchange()
    assert not taken
    assert node.refused["signature"] == 1
    node.send_release_status(board_status(Air(0, 1_000, 0, 0.0)))
    bench.exchange()
    assert bench.host.refused["release"] == 1, "no release is on its way"
    assert bench.host.phase == control.GATHERING
