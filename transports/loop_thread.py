"""Run an asyncio event loop in a thread, so that code that blocks can use coroutines."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

STOP_S = 10.0  # how long `stop` waits for the thread
TURN_S = 10.0  # between two notes that the loop turns

T = TypeVar("T")


class LoopThread:
    """Runs coroutines between `start` and `stop`. Call `start` once."""

    def __init__(self, name: str) -> None:
        self.turned_at = time.monotonic()  # when the loop last turned, within `TURN_S`
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self._running = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the loop. Return when coroutines can be submitted."""
        self._thread.start()
        self._running.wait()

    def stop(self) -> None:
        """Cancel all tasks and end the thread. A second call does nothing."""
        if self._stopped is not None:
            self.call(self._stopped.set)
            self._thread.join(STOP_S)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run `coroutine` in the loop. Return a future with its result or error."""
        assert self._loop is not None, "not started"
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call(self, function: Callable[[], object]) -> None:
        """Schedule `function` in the loop. If the loop has ended, do nothing."""
        assert self._loop is not None, "not started"
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function)

    def _run(self) -> None:
        asyncio.run(self._wait_for_stop())

    async def _wait_for_stop(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._running.set()
        while not self._stopped.is_set():
            self.turned_at = time.monotonic()
            with suppress(TimeoutError):
                async with asyncio.timeout(TURN_S):
                    await self._stopped.wait()
