"""A release on its way to all boards over the link, sans-I/O: its two ends. SPEC.md section 6.12.

The host offers the release, sends bursts of symbols, and asks. Each board answers what it lacks;
the next burst has as many symbols of each generation as the board that lacks most.

    FleetSession ── ReleaseSender        NodeProtocol ── ReleaseReceiver
"""

import hashlib
import math
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from ternmesh.errors import WireError
from ternmesh.link.erasure_code import INDEX_END, Layout, encode_symbols
from ternmesh.timers import Random
from ternmesh.wire.global_update import COUNTED_MAX
from ternmesh.wire.release import (
    ACTIVE,
    BAD,
    EVERYBODY,
    GOOD,
    HELD,
    INCOMPLETE,
    NOBODY,
    ON_TRIAL,
    PLACES,
    RECEIVING,
    REFUSED,
    RUNNING,
    WITHDRAWN,
    ReleaseOffer,
    ReleaseStatus,
    ReleaseSymbol,
    write_offer,
    write_status,
    write_symbol,
)

GENERATION_MAX = 1024  # source symbols: many receivers, each with losses of its own
NAME_SIZE = 4
LOSS_MAX = 0.7  # the loss by which a burst is made longer, at most
SPREAD_MIN_S = 0.5
ASKS_SILENT = 4  # unanswered asks after which a board is away
BOARDS_MAX = COUNTED_MAX
OFFERS_APART = 10.0  # times the spread: two offers to boards that come back are not closer
FIRST_PAUSE = 8.0  # times the spread: the first wait for boards that try the release
OFFER_EVERY = 256  # symbols: a board that has missed the offer loses no more than these


def layout_of(offer: ReleaseOffer) -> Layout:
    """The symbols of an object; WireError."""
    return Layout(offer.size, offer.symbol_bytes, GENERATION_MAX)


def _sizes(layout: Layout) -> tuple[int, ...]:
    """The source symbols of each generation."""
    return tuple(len(layout.source(g)) for g in range(layout.generations))


def place_of(board: str, digest: bytes) -> int:
    """The place of a board among those that try a release, 0 to 65,535."""
    return int.from_bytes(hashlib.sha256(digest + board.encode()).digest()[:2], "little")


def canaries(boards: Collection[str], digest: bytes, share: float) -> int:
    """The `tries` of an offer for this share of boards, at least one."""
    first = min(place_of(board, digest) for board in boards)
    return min(PLACES, max(first + 1, round(share * PLACES)))


class ReleaseReceiver:
    """The board's side. `held` are the indexes of symbols that are on its disk."""

    def __init__(self, board: str, rng: Random) -> None:
        self.offer: ReleaseOffer | None = None
        self.state = RECEIVING
        self.reason = ""
        self.held: set[int] = set()
        self._board = board
        self._rng = rng
        self._layout = Layout(1, 1)
        self.needs: list[int] = []  # how many symbols each generation lacks
        self._answer_at: float | None = None

    def take_offer(self, offer: ReleaseOffer, now: float) -> bool:
        """Take an offer of the host; True where it begins another object. WireError."""
        if self.offer is not None and offer.number < self.offer.number:
            raise WireError("replay", "an older offer of a release than the newest known one")
        is_new = self.is_new(offer)
        layout = layout_of(offer)
        self.offer = offer
        if is_new:
            self._layout = layout
            self.start_over()
        if offer.asked > (NOBODY if self.state == RECEIVING else INCOMPLETE):
            self.answer_soon(now)
        return is_new

    def is_new(self, offer: ReleaseOffer) -> bool:
        old = self.offer
        return (
            old is None
            or (old.digest, old.symbol_bytes) != (offer.digest, offer.symbol_bytes)
            or (old.stage == WITHDRAWN and offer.stage == ON_TRIAL and self.state == REFUSED)
        )

    def start_over(self) -> None:
        """Forget all symbols: the object is another one, or damaged."""
        self.held = set()
        self.state, self.reason = RECEIVING, ""
        self.needs = list(_sizes(self._layout))

    def add(self, symbol: ReleaseSymbol) -> bool:
        """Note a symbol; whether it has to be put on disk. WireError."""
        offer, layout = self.offer, self._layout
        if offer is None or symbol.tag != offer.digest[:2] or self.state != RECEIVING:
            return False
        if len(symbol.data) != layout.symbol_bytes:
            raise WireError("symbol", f"a symbol of {len(symbol.data)} bytes is none of {layout}")
        generation = layout.generation(symbol.index)
        if symbol.index in self.held or not self.needs[generation]:
            return False
        self.held.add(symbol.index)
        self.needs[generation] -= 1
        return True

    def lack(self, missing: Sequence[int]) -> None:
        """Ask for so many more: the symbols that are held are not independent."""
        self.needs = list(missing)

    def become(self, state: int, now: float, reason: str = "") -> None:
        self.state, self.reason = state, reason
        self.answer_soon(now)

    @property
    def may_try(self) -> bool:
        """Whether this board is among those that try the release."""
        offer = self.offer
        return offer is not None and place_of(self._board, offer.digest) < offer.tries

    def answer_soon(self, now: float) -> None:
        """Answer within the spread of the offer."""
        if self.offer is not None and self._answer_at is None:
            self._answer_at = now + self.offer.spread_ms / 1000 * self._rng.random()

    def is_due(self, now: float) -> bool:
        """Whether the host is to be told now."""
        return self._answer_at is not None and now >= self._answer_at

    def answer(self, now: float) -> bytes | None:
        """The body of a status, if one is due. What is held must be on disk."""
        if self.offer is None or not self.is_due(now):
            return None
        self._answer_at = None
        needs = tuple(self.needs) if self.state == RECEIVING else ()
        name = self.offer.digest[:NAME_SIZE]
        return write_status(ReleaseStatus(name, self.state, needs, self.reason))


@dataclass(slots=True)
class BoardProgress:
    """What the host knows of a board."""

    state: int = RECEIVING
    reason: str = ""
    needs: tuple[int, ...] = ()
    before: tuple[int, ...] = ()  # its needs before the last burst
    heard: bool = False  # since the last question
    silent: int = 0  # questions without an answer


class ReleaseSender:
    """The host's side. `longest_s` is the longest time between two offers.

    A `share` of the boards tries the release first. `cursors` are the next symbols by generation,
    from an earlier process.
    """

    def __init__(
        self,
        data: bytes,
        offer: ReleaseOffer,
        share: float,
        longest_s: float,
        cursors: Sequence[int] = (),
    ) -> None:
        self.offer = offer
        self.boards: dict[str, BoardProgress] = {}
        self.layout = layout_of(offer)
        self._sizes = _sizes(self.layout)
        self.cursors = list(cursors) or [0] * self.layout.generations
        self.burst: deque[int] = deque()  # the generations of the symbols to send
        self.loss = 0.0
        self._data = data
        self._share = share
        self._longest_s = longest_s
        self._sent = [0] * self.layout.generations  # in the last burst
        self._next_at = 0.0  # when the next symbol may leave
        self._ask_at = 0.0
        self._pause_s = 0.0  # the next one between two questions
        self._until: float | None = None  # when the answers to the last question are here
        self._spread_s = SPREAD_MIN_S
        self._offered_at = -math.inf
        self._is_missed = False  # a board came back that may not have the offer
        self._asked = NOBODY  # by the last question
        self._first_asks = 0

    def change(self, offer: ReleaseOffer) -> None:
        """Offer with another stage, from now on."""
        self.offer = offer
        self._ask_at = self._pause_s = 0.0
        if offer.stage == WITHDRAWN:
            self.burst.clear()

    def expect(self, boards: Iterable[str]) -> None:
        """Boards of the run, which may not have heard of the release."""
        for board in boards:
            if board not in self.boards and len(self.boards) < BOARDS_MAX:
                self.boards[board] = BoardProgress(needs=self._sizes, silent=1)

    def heard(self, board: str, *, is_behind: bool = False) -> None:
        """A board says hello, or is refused for its model: it may lack the release."""
        known = self.boards.get(board)
        if known is not None and known.state == RUNNING and is_behind:
            known.state = HELD  # it has gone back, or its disk was set back
        self._is_missed |= known is None or not self.is_settled(board)

    def receive(self, board: str, status: ReleaseStatus) -> None:
        """Take what a board says. WireError."""
        if status.name != self.offer.digest[:NAME_SIZE]:
            raise WireError("release", "a status of another release")
        if board not in self.boards and len(self.boards) >= BOARDS_MAX:
            raise WireError("full", "too many boards answer")
        sizes = self._sizes
        fits = len(status.needs) == len(sizes) and all(map(int.__le__, status.needs, sizes))
        if status.state == RECEIVING and not fits:
            raise WireError("release", "a status asks for more than the object has")
        known = self.boards.setdefault(board, BoardProgress())
        known.state, known.reason, known.needs = status.state, status.reason, status.needs
        known.heard, known.silent = True, 0

    def is_settled(self, board: str) -> bool:
        """Whether nothing more is awaited of a board in this stage."""
        state = self.boards[board].state
        if self.offer.stage == WITHDRAWN or state in (BAD, REFUSED, RUNNING):
            return True
        is_tried = place_of(board, self.offer.digest) < self.offer.tries
        return self.offer.stage == ON_TRIAL and (state == GOOD or (state == HELD and not is_tried))

    def verdict(self) -> ReleaseOffer | None:
        """The offer of the next stage, once the boards that try it have reported; None before.

        Boards that are away do not hold it up.
        """
        offer = self.offer
        if offer.stage != ON_TRIAL:
            return None
        tried = [
            b.state
            for name, b in self.boards.items()
            if place_of(name, offer.digest) < offer.tries
            and (b.silent < ASKS_SILENT or b.state in (GOOD, BAD))
        ]
        if not tried:
            held = [name for name, b in self.boards.items() if b.state == HELD and not b.silent]
            tries = canaries(held, offer.digest, self._share) if held else offer.tries
            return replace(offer, tries=tries) if tries > offer.tries else None
        good, bad = tried.count(GOOD) + tried.count(RUNNING), tried.count(BAD)
        is_first = offer.tries < PLACES
        if (bad and is_first) or bad > len(tried) / 2 or tried.count(REFUSED) == len(tried):
            return replace(offer, stage=WITHDRAWN)
        if not good or good + bad + tried.count(REFUSED) < len(tried):
            return None
        return replace(offer, tries=PLACES) if is_first else replace(offer, stage=ACTIVE)

    def bodies(self, now: float, cost_s: float, room: int) -> list[bytes]:
        """The bodies to broadcast now that nothing else waits, of at most `room` symbols.

        `cost_s` is the share of the bearer's time that a symbol takes.
        """
        if now < self._next_at:
            return []
        self._spread_s = max(SPREAD_MIN_S, 2 * cost_s * len(self.boards))
        is_apart = now >= self._offered_at + OFFERS_APART * self._spread_s
        if self.burst:
            is_due = len(self.burst) % OFFER_EVERY == 0 or (self._is_missed and is_apart)
            bodies = [self._offer(NOBODY, now)] if is_due else []
            bodies += self._symbols(room)
            self._next_at = now + cost_s * len(bodies)
            return bodies
        if self._until is not None:
            if now >= self._until:
                self._until = None
                self._hear(now)
            return []
        if now < self._ask_at and not (self._is_missed and is_apart):
            return []
        here = [name for name, b in self.boards.items() if b.silent < ASKS_SILENT]
        is_open = not here or not all(map(self.is_settled, here))
        self._ask_at = math.inf
        self._until = now + self._spread_s + max(1.0, 6 * cost_s)
        for board in self.boards.values():
            board.heard = False
        self._asked = EVERYBODY if is_open else INCOMPLETE
        return [self._offer(self._asked, now)]

    def remaining(self) -> int:
        """About how many symbols are still to be sent."""
        lacking = (self._worst(), (0,) * self.layout.generations)[bool(self.burst)]
        return len(self.burst) + math.ceil(sum(lacking) / (1 - self.loss))

    def _offer(self, asked: int, now: float) -> bytes:
        self._offered_at = now
        self._is_missed = False
        spread_ms = math.ceil(1000 * self._spread_s)
        return write_offer(replace(self.offer, asked=asked, spread_ms=spread_ms))

    def _symbols(self, room: int) -> list[bytes]:
        indexes: list[int] = []
        while self.burst and len(indexes) < room:
            generation = self.burst.popleft()
            indexes.append(self._next_index(generation))
            self._sent[generation] += 1
        digest = self.offer.digest
        symbols = encode_symbols(self.layout, digest[:NAME_SIZE], self._data, indexes)
        pairs = zip(indexes, symbols, strict=True)
        return [write_symbol(ReleaseSymbol(digest[:2], index, data)) for index, data in pairs]

    def _next_index(self, generation: int) -> int:
        layout, source = self.layout, self.layout.source(generation)
        place = self.cursors[generation] - len(source)
        index = layout.count + generation + place * layout.generations
        if index >= INDEX_END:  # none is left: the repairs begin again
            place, index = 0, layout.count + generation
        self.cursors[generation] = len(source) + place + 1
        return source[place] if place < 0 else index

    def _worst(self) -> tuple[int, ...]:
        """The symbols that the board lacks that lacks most, by generation."""
        lacking = [b.needs for b in self.boards.values() if b.state == RECEIVING and not b.silent]
        return tuple(map(max, zip(*lacking, (0,) * self.layout.generations, strict=True)))

    def _hear(self, now: float) -> None:
        """All answers are here that will come: make the next burst."""
        for board in self.boards.values():
            if self._asked == EVERYBODY or board.state == RECEIVING:
                board.silent = 0 if board.heard else board.silent + 1
        doubtful = any(
            0 < b.silent < ASKS_SILENT and b.state == RECEIVING for b in self.boards.values()
        )
        self._first_asks += 1
        if doubtful and self._first_asks < ASKS_SILENT:
            # All boards should have this process's broadcast key, and the offer, before symbols.
            self._ask_at = now + FIRST_PAUSE * self._spread_s * self._first_asks
            return
        self._first_asks = ASKS_SILENT
        self._note_loss()
        worst = [math.ceil(need / (1 - self.loss)) for need in self._worst()]
        for place in range(max(worst)):
            self.burst.extend(g for g, count in enumerate(worst) if place < count)
        self._sent = [0] * self.layout.generations
        for board in self.boards.values():
            board.before = board.needs
        if self.burst:
            self._pause_s = self._ask_at = 0.0
            return
        if not doubtful:
            first_s = FIRST_PAUSE * self._spread_s  # boards tell by themselves what they have done
            self._pause_s = min(self._longest_s, max(2 * self._pause_s, first_s))
        self._ask_at = now + self._pause_s

    def _note_loss(self) -> None:
        """Estimate the loss from what those gained in the last burst that still lack something."""
        gained = sent = 0
        for board in self.boards.values():
            if board.heard and board.before and board.state == RECEIVING:
                for before, need, count in zip(board.before, board.needs, self._sent, strict=True):
                    if need:
                        gained, sent = gained + before - need, sent + count
        if sent:
            self.loss = min(LOSS_MAX, max(0.0, 1 - gained / sent))


def held(progress: BoardProgress, layout: Layout) -> float:
    """The share of a release that a board has."""
    return 1.0 if progress.state != RECEIVING else 1 - sum(progress.needs) / layout.count
