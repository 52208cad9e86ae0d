"""More open files than `select` knows."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

LIMIT, OPENED = 1300, 1030  # `select` knows 1,024 descriptors


@contextmanager
def many_open_files() -> Iterator[None]:
    """Descriptors above those that `select` knows, until the block ends."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < LIMIT:
        pytest.skip("this system allows fewer open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, before[1]))
    others = [os.open("/dev/null", os.O_RDONLY) for _ in range(OPENED)]
    try:
        yield
    finally:
        for other in others:
            os.close(other)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
