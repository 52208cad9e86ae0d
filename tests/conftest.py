"""What tests of several rooms share: a real broker that can be killed, and patience."""

import os

# Two threads of a library that spin on a core which another test uses cost five times the work. It
# must be said before numpy is imported, and programs that tests start take it over.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import logging
import signal
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import pytest
from hypothesis import HealthCheck, settings

from ternmesh_service.commands import CONFIG, PROGRAM
from tests.mosquitto import Mosquitto, find_mosquitto

# How long an example takes depends on what else the machine does: no test fails for it.
settings.register_profile("ternmesh", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ternmesh")

# A shell starts what runs behind it with SIGINT ignored, and programs hand that down: those that
# tests start and interrupt would not hear it. A handler is not handed down.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.pop(PROGRAM, None)  # `./run test` sets it, and what we say would name the script


@pytest.fixture(autouse=True)
def _no_settings_of_another_test() -> None:
    os.environ.pop(CONFIG, None)  # a command leaves it to what it says afterwards


@pytest.fixture
def no_log() -> Iterator[None]:
    """Decoders log what they refuse."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--nightly", action="store_true", help="also the long loops over restarts, damage and seeds"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--nightly"):
        left_out = [item for item in items if item.get_closest_marker("nightly")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


@pytest.fixture
def new_mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Mosquitto]]:
    """A function that starts one more mosquitto, with further lines for its mosquitto.conf."""
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not installed: apt install mosquitto")
    started: list[Mosquitto] = []

    def start(config: str = "") -> Mosquitto:
        broker = Mosquitto(tmp_path_factory.mktemp("mosquitto"), config)
        started.append(broker)
        broker.start()
        return broker

    yield start
    for broker in started:
        broker.stop()


@pytest.fixture
def mosquitto(new_mosquitto: Callable[..., Mosquitto]) -> Mosquitto:
    """A running mosquitto with its defaults; see `Mosquitto` for what can be done to it."""
    return new_mosquitto()


class Eventually(Protocol):
    def __call__(self, condition: Callable[[], object], timeout_s: float = 20.0) -> None: ...


@pytest.fixture
def eventually() -> Eventually:
    """Wait until a condition holds; fails the test where it does not within `timeout_s`."""

    def wait(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"not true within {timeout_s} s"
            time.sleep(0.005)

    return wait
