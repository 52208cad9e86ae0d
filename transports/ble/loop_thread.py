"""An asyncio event loop in a thread, for code that blocks."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines from `start` to `stop`; whoever makes one starts and stops it, once."""

    def __init__(self, name: str) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event | None = None
        self._running = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin; returns when coroutines can be submitted."""
        self._thread.start()
        self._running.wait()

    def stop(self) -> None:
        """Cancel what runs and end; may be called twice."""
        if self._over is not None:
            self.call(self._over.set)
            self._thread.join()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run `coroutine`; its result or error comes in the future."""
        assert self._loop is not None, "not started"
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call(self, function: Callable[[], object]) -> None:
        """Call `function` in the loop, soon; never where the loop has ended."""
        assert self._loop is not None, "not started"
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function)

    def _run(self) -> None:
        asyncio.run(self._until_over())

    async def _until_over(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._running.set()
        await self._over.wait()
