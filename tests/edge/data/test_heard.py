"""Sound that a program took for words: what is kept, what people say of it, and recordings."""

import base64
from collections import Counter
from typing import Any

import numpy as np
import pytest

from edge.data import heard
from edge.data.feed import Feed
from edge.data.front import Front
from edge.data.heard import HEARD, NEAR, HeardWords
from edge.data.labels import answer_data, finish_data
from edge.data.live.microphone import QUIET, EnergyGate, MicrophoneSource
from edge.data.live.options import MicrophoneOptions
from edge.onnx.session import LoadedModel
from ternmesh_service.status import WordsStatus
from tests.edge.conftest import FrontedPackage
from tests.edge.data.conftest import NewBuffer

DAY_S = 86_400.0


class Quiet:
    """A source that gives nothing."""

    def poll(self, now: float) -> list[Any]:
        return []


class Board:
    """A buffer with a feed, as a node has them."""

    def __init__(self, loaded: LoadedModel, new_buffer: NewBuffer, source: Any = None) -> None:
        self.now = 3 * DAY_S
        self.buffer = new_buffer(loaded.package)
        outside = loaded.package.outside()
        words = HeardWords(outside, self.buffer.values, lambda: self.now)
        self.feed = Feed(source or Quiet(), self.buffer, 1.0, Front(loaded), words)
        self.polls = 0

    def ask(self, what: str, **values: Any) -> Any:
        answer = finish_data(answer_data(self.buffer, {"data": what, **values}, None, self.feed))
        self.poll()
        return answer.get("data", answer.get("error"))

    def poll(self) -> None:
        self.polls += 1
        self.feed.poll(10.0 * self.polls)

    def words(self) -> WordsStatus | None:
        assert self.feed.words is not None
        return self.feed.words.status()

    def waiting(self) -> list[str]:
        return [row["key"] for row in self.ask("queue")["rows"]]


def clip(kind: str, word: str = "up", level: float = 0.5, size: int = 10) -> dict[str, str]:
    sound = (level * 32_767 * np.linspace(-1, 1, size)).astype("<i2").tobytes()
    return {"kind": kind, "word": word, "sound": base64.b64encode(sound).decode()}


@pytest.fixture
def loaded(new_fronted: FrontedPackage) -> LoadedModel:
    return new_fronted(1.0, 8000, "other")


@pytest.fixture
def board(loaded: LoadedModel, new_buffer: NewBuffer) -> Board:
    return Board(loaded, new_buffer)


def test_people_answer_and_the_figures_follow(board: Board, loaded: Any, new_buffer: Any) -> None:
    assert board.words() is None, "nothing has listened yet"
    board.ask("heard", seconds=600.0, clips=[clip(HEARD), clip(HEARD), clip(NEAR)])
    assert board.buffer.waiting == 3
    assert (found := board.words()) is not None
    assert found.false_per_hour is None, "nobody has answered"
    right, false, near = sorted(board.waiting())
    assert board.ask("label", keys=[right], label="up")["labelled"] == 1
    board.ask("label", keys=[false], label="other")
    board.ask("label", key=near, label="up")  # as the command does
    for _ in range(5):
        board.ask("heard", seconds=600.0, clips=[])
    assert board.words() == WordsStatus(hours=1.0, heard=2, right=1, false=1, missed=1)
    assert (words := board.words()) is not None
    assert (words.recall, words.false_per_hour) == (0.5, 1.0)
    assert "recall 50%" in words.sentence()
    board.ask("unlabel", keys=[near])
    assert board.words() == WordsStatus(hours=1.0, heard=2, right=1, false=1, missed=0)
    board.ask("label", keys=[false], label="up")  # a slip
    again = Board(loaded, new_buffer)  # as after a restart
    assert again.words() == WordsStatus(hours=1.0, heard=2, right=2, false=0, missed=0)


def test_a_television_all_day_fills_no_disk(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heard, "A_DAY", {HEARD: 3, NEAR: 2})
    for level in np.linspace(0.1, 0.9, 9):
        clips = [clip(HEARD, level=level), clip(NEAR, level=level)]
        board.ask("heard", seconds=5.0, clips=clips)
        board.now += 5.0
    assert board.buffer.waiting == 5
    assert (words := board.words()) is not None
    assert words.heard == 9
    board.now += DAY_S
    board.ask("heard", seconds=5.0, clips=[clip(NEAR)])
    assert board.buffer.waiting == 6


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"seconds": 601.0, "clips": []}, "seconds must be a number up to 600"),
        ({"seconds": "1", "clips": []}, "seconds must be"),
        ({"seconds": float("nan"), "clips": []}, "seconds must be"),
        ({"seconds": 1.0, "clips": [clip(HEARD)] * 17}, "at most 16"),
        ({"seconds": 1.0, "clips": ["x"]}, "needs kind, word and sound"),
        ({"seconds": 1.0, "clips": [{**clip(HEARD), "sound": "AAA"}]}, "needs kind, word and"),
        ({"seconds": 1.0, "clips": [clip("loud")]}, "no kind of sound"),
        ({"seconds": 1.0, "clips": [clip(HEARD, "left")]}, "no word"),
        ({"seconds": 1.0, "clips": [clip(HEARD, size=9)]}, "a clip of 9 numbers"),
    ],
)
def test_a_report_that_does_not_fit_is_a_sentence(board: Board, values: Any, sentence: str) -> None:
    clips = values["clips"]
    both = {**values, "clips": [clip(HEARD), *clips] if len(clips) == 1 else clips}
    assert sentence in board.ask("heard", **both)
    assert board.buffer.waiting == 0
    assert board.words() is None, "nothing of a report that does not fit counts"


def test_a_board_without_a_front_or_microphone_says_so(board: Board) -> None:
    board.feed.words = None
    assert "no front that hears" in board.ask("heard", seconds=1.0, clips=[])
    assert 'source = "microphone"' in board.ask("record", label="up", count=1)


def test_recordings_are_checked_and_labelled(loaded: LoadedModel, new_buffer: NewBuffer) -> None:
    source = MicrophoneSource(MicrophoneOptions(rate=8000), loaded.package.outside())
    board = Board(loaded, new_buffer, source)
    sounds: list[np.ndarray] = []
    past = np.linspace(-1, 1, 3000, dtype=np.float32)
    source._gate = EnergyGate(8000, 10)
    source._read = lambda now: [i for s in sounds for i in source._items(s, past)]  # type: ignore[method-assign]
    source._open = lambda now: None  # type: ignore[method-assign]

    def hear(*some: Any) -> tuple[str | None, int, str]:
        sounds[:] = [np.asarray(one, np.float32) for one in some]
        board.poll()
        sounds.clear()
        live = source.status().recording
        assert live is not None
        return live.label, live.left, live.said

    assert "write one of other, up" in board.ask("record", label="left", count=10)
    assert "write one of" in board.ask("record", label="up", count=101)
    assert hear([0.5] * 8) == (None, 0, "")
    assert (board.buffer.waiting, len(board.buffer)) == (1, 0), "nobody records"
    board.ask("record", label="up", count=2)
    assert hear([0.01] * 8) == ("up", 2, "too quiet: come nearer")
    assert hear([1.0] * 8)[2].startswith("too loud")
    assert hear([0.5] * 10)[2].startswith("too long")
    assert hear([0.3] * 8) == ("up", 1, "")
    assert hear([0.4] * 8) == ("up", 0, "")
    assert hear([0.6] * 8) == ("up", 0, "")
    assert board.buffer.waiting == 2
    labels = Counter(board.buffer.classes.values())
    # ends, speech before it, noise and a room; its begin is another sound
    assert labels == {1: 2 * 4 * 2 * 3, 0: 2 * 2 * 2 * 3}
    spoken = source._spoken(np.arange(3, dtype=np.float32), past)
    assert spoken[: 3000 - QUIET * source._gate.block - 3][-4:].tolist() == [0, 2, 1, 0]
    quiet = QUIET * source._gate.block
    for at, heard_at in enumerate(source._inputs(np.zeros(8, np.float32), past)):
        end = 3000 - quiet + 2 * at
        np.testing.assert_array_equal(heard_at, past[end - 10 : end], str(at))


def test_recordings_end_by_themselves_and_nothing_else_is_kept(loaded: LoadedModel) -> None:
    options = MicrophoneOptions(rate=8000, keep="recordings")
    source = MicrophoneSource(options, loaded.package.outside())
    source._gate = EnergyGate(8000, 10)
    word, past = np.full(8, 0.5, np.float32), np.zeros(3000, np.float32)
    source.record("up", 2)
    source._expire(5.0)
    assert source._items(word, past)
    source._expire(6.0)
    source._expire(67.0)
    assert source._items(word, past) == [], "a stranger who comes later is not recorded"
    live = source.status().recording
    assert live is not None
    assert (live.left, live.said[:16]) == (0, "nothing was said")
