"""What a process serves beside its work: its page, its metrics and its alarms.

A port that is taken does not end the process: it is tried again, and the owner is told.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path

from ternmesh_service.control_socket import NotServed
from ternmesh_service.metrics import MetricsConfig, served_metrics
from ternmesh_service.page.config import PageConfig, served_page
from ternmesh_service.webhook import AlarmsConfig, pushed_alarms

TRY_S = 30.0  # between two attempts

_log = logging.getLogger(__name__)


class Servers:
    """Opens each of `makers` by its name, in `turn`, until it works; closes all at the end."""

    def __init__(
        self,
        makers: Mapping[str, Callable[[], AbstractContextManager[None]]],
        failed: dict[str, str] | None = None,
    ) -> None:
        self.failed = {} if failed is None else failed  # why something is not served, by its name
        self._waiting = dict(makers)
        self._stack = ExitStack()
        self._next = 0.0

    def __enter__(self) -> "Servers":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def turn(self, now: float) -> None:
        """Open what is not open yet. ConfigError for settings that can never work."""
        if not self._waiting or now < self._next:
            return
        self._next = now + TRY_S
        for name, make in list(self._waiting.items()):
            try:
                self._stack.enter_context(make())
            except NotServed as error:
                if self.failed.get(name) != str(error):
                    _log.error("%s; the work goes on without it", error)
                self.failed[name] = str(error)
                continue
            del self._waiting[name]
            self.failed.pop(name, None)


def servers_of(
    page: PageConfig, metrics: MetricsConfig, alarms: AlarmsConfig, socket: Path, folder: Path
) -> Servers:
    """Those of the process behind a control socket, with its state folder."""
    failed: dict[str, str] = {}
    return Servers(
        {
            "alarms": partial(pushed_alarms, alarms, socket, failed),
            "metrics": partial(served_metrics, metrics, socket),
            "page": partial(served_page, page, socket, folder),
        },
        failed,
    )
