"""Asks a process for its status again and again, in a thread of its own.

What is done with the status may be slow or fail: the process does not notice.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ternmesh_service.control_socket import ControlError
from ternmesh_service.status import BoardStatus, HostStatus, ask_status
from ternmesh_store.host_store import StoredRound

Observed = HostStatus | BoardStatus

_log = logging.getLogger(__name__)


@contextmanager
def observed(socket: Path, every_s: float, take: Callable[[Observed], None]) -> Iterator[None]:
    """Give `take` the status of the process behind a control socket every `every_s` seconds.

    An exception of `take` is logged, once for each text, and the next status is given as before.
    """
    stop = threading.Event()

    def observe() -> None:
        last_error = ""
        while not stop.wait(every_s):
            try:
                status = ask_status(socket)
                assert isinstance(status, Observed)  # only hosts and boards are observed
                take(status)
                last_error = ""
            except ControlError:
                continue  # it starts, ends or is busy
            except Exception as error:  # noqa: BLE001  (of a library or a server: it must stop nothing)
                if str(error) != last_error:
                    last_error = str(error)
                    _log.warning("%s: %s", type(error).__name__, error)

    thread = threading.Thread(target=observe, name="observer", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=5.0)


def newest_reports(history: Sequence[StoredRound]) -> dict[str, tuple[float | None, float | None]]:
    """The newest loss and accuracy by board in a host's history, and of the fleet as "".

    A report may lack either: it has another value in place of the accuracy in some rounds.
    """
    newest: dict[str, tuple[float | None, float | None]] = {}
    for row in history:
        for name, (loss, accuracy) in {**row.reports, "": (row.loss, row.accuracy)}.items():
            old = newest.get(name, (None, None))
            newest[name] = (
                old[0] if loss is None else loss,
                old[1] if accuracy is None else accuracy,
            )
    return newest
