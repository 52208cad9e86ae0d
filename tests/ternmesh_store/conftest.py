"""What the tests of the stores share: a process that dies without a word."""

import os
import signal
from collections.abc import Callable

import pytest

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
