"""What the tests of the stores share: a state that ends without a word, in this process or not."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from ternmesh_store.state_file import StateFile

Work = Callable[[], None]


@pytest.fixture
def in_killed_process() -> Callable[[Work], None]:
    """Do work in a process that is then killed as by a power cut (SIGKILL, nothing is closed)."""

    def run(work: Work) -> None:
        child = os.fork()
        if child == 0:
            try:
                work()
                os.kill(os.getpid(), signal.SIGKILL)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), "the work failed before the process was killed"

    return run


class Reopen(Protocol):
    def __call__(
        self, folder: Path | None = None, keep: tuple[str, ...] | None = None
    ) -> StateFile: ...


@pytest.fixture
def reopen(tmp_path: Path) -> Iterator[Reopen]:
    """A function that opens the state of a folder anew. What was not committed is lost."""
    states: dict[Path, StateFile] = {}

    def opened(folder: Path | None = None, keep: tuple[str, ...] | None = None) -> StateFile:
        place = folder or tmp_path / "state"
        if place in states:
            states[place].close()
        states[place] = StateFile(place)
        states[place].open(keep)
        return states[place]

    yield opened
    for state in states.values():
        state.close()
