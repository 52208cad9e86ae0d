"""What a source brings, its failures, and how many samples a board has."""

from types import SimpleNamespace
from typing import Any

from edge.data.feed import Feed, Rehearsal
from edge.data.node_data import NodeData


class Buffer:
    def __init__(self, count: int) -> None:
        self.count = count

    def add(self, items: Any, _certainties: Any) -> Any:
        return items

    def __len__(self) -> int:
        return self.count


def test_a_failure_is_over_once_the_source_works(caplog) -> None:
    errors = [OSError(2, "No such file", "/a"), None, OSError(2, "No such file", "/a"), None]

    def poll(_now: float) -> list[Any]:
        if error := errors.pop(0):
            raise error
        return []

    feed, failures = Feed(SimpleNamespace(poll=poll), Buffer(0), 1.0), []  # type: ignore[arg-type]
    for second in range(4):
        feed.poll(float(second))
        failures.append(feed.last_failure)
    assert failures == 2 * ["No such file: '/a'", ""]
    assert feed.failures == 2
    assert caplog.text.count("the source failed") == 1  # a loose plug does not fill the log


def test_a_built_in_source_that_pauses_has_still_failed(source, package, tmp_path) -> None:
    made = source("folder", package(2), path=str(tmp_path / "none"))
    feed = Feed(made, Buffer(0), 0.001)  # type: ignore[arg-type]
    feed.poll(0.0)
    feed.poll(0.1)
    assert (feed.failures, "none" in feed.last_failure) == (1, True)
    (tmp_path / "none").mkdir()
    feed.poll(100.0)
    assert not feed.last_failure


def test_each_sample_counts_once() -> None:
    files: Any = Buffer(400)
    feed: Any = SimpleNamespace(buffer=Buffer(5))
    data = NodeData(Rehearsal(feed.buffer, files), files=files, feed=feed)
    assert len(data.training) == 534  # draws
    assert data.count == 405
