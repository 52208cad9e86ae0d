"""Asks a process for its status again and again, in a thread of its own.

What is done with the status may be slow or fail: the process does not notice.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ternmesh_service.control_socket import ControlError, ask

Status = Mapping[str, Any]

_log = logging.getLogger(__name__)


@contextmanager
def observed(
    socket: Path, every_s: float, take: Callable[[Status], None], since: bool = False
) -> Iterator[None]:
    """Give `take` the status of the process behind a control socket every `every_s` seconds.

    With `since`, the history in it begins after the newest version that was taken before. An
    exception of `take` is logged, once for each text, and the next status is given as before.
    """
    stop = threading.Event()
    thread = threading.Thread(
        target=_observe, args=(socket, every_s, take, since, stop), name="observer", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=5.0)


def newest_reports(history: Sequence[Status]) -> dict[str, tuple[float | None, float | None]]:
    """The newest loss and accuracy by board in a host's history, and of the fleet as "".

    A report may lack either: it has another value in place of the accuracy in some rounds.
    """
    found: dict[str, tuple[float | None, float | None]] = {}
    for row in history:
        for name, (loss, accuracy) in {
            **row["reports"],
            "": (row["loss"], row["accuracy"]),
        }.items():
            old = found.get(name, (None, None))
            found[name] = old[0] if loss is None else loss, old[1] if accuracy is None else accuracy
    return found


def _observe(
    socket: Path, every_s: float, take: Callable[[Status], None], since: bool, stop: threading.Event
) -> None:
    version, run, said = 0, None, ""
    while not stop.wait(every_s):
        try:
            status = ask(socket, {"command": "status", "since": version})
            if since and status.get("run") != run:
                if version:  # its rounds begin anew
                    status = ask(socket, {"command": "status", "since": 0})
                run = status.get("run")
            take(status)
            version, said = int(status.get("version", 0)) if since else 0, ""
        except ControlError:
            continue  # it starts, ends or is busy
        except Exception as error:  # noqa: BLE001  (of a library or a server: it must stop nothing)
            if str(error) != said:
                said = str(error)
                _log.warning("%s: %s", type(error).__name__, error)
