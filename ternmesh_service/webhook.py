"""Alarms for an owner's webhook: a message when alarms begin or end.

The status comes over the control socket, in a thread of its own: a webhook that is slow or away
costs the process nothing. Each message is a POST of JSON:

    {"name": "ada", "began": [ALARM ...], "ended": [ALARM ...], "alarms": [ALARM ...]}

An ALARM has level, about, text and advice; `alarms` are all of now.
"""

import json
import logging
import random
import re
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from ternmesh.config import ConfigError
from ternmesh.timers import Backoff, RateLimiter
from ternmesh_service.alarms import Alarm, alarms
from ternmesh_service.control_socket import ControlError
from ternmesh_service.status import ask_status, to_json

LOOK_S = 10.0  # between two looks at the alarms, and at least between two messages
TIMEOUT_S = 10.0  # of a connection, and of each wait for an answer
FIRST_S, LONGEST_S = 5.0, 900.0  # between attempts after a failure
WAITING_MAX = 32  # messages; the oldest give way
LOG_S = 3600.0  # at least between two lines of the log about failures
GOODBYE_S = 1.0

_log = logging.getLogger(__name__)
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


@dataclass(frozen=True, slots=True)
class AlarmsConfig:
    """`[alarms]`: where alarms are posted, `https://HOST/...` or `http://`; "" posts none."""

    url: str = field(default="", repr=False)  # it may hold a secret


class AlarmMessages:
    """The messages that wait; an alarm is told once when it begins, and once when it ends."""

    def __init__(self) -> None:
        self.waiting: deque[dict[str, Any]] = deque(maxlen=WAITING_MAX)
        self._known: Mapping[tuple[str, str], Alarm] = {}

    def look(self, name: str, found: Sequence[Alarm]) -> None:
        """Take the alarms of now. One whose numbers alone have changed is the same."""
        now = {(one.about, _NUMBER.sub("", one.text)): one for one in found}
        parts = {
            "began": [one for key, one in now.items() if key not in self._known],
            "ended": [one for key, one in self._known.items() if key not in now],
        }
        if any(parts.values()):
            lists = {**parts, "alarms": found}
            told = {key: [to_json(one) for one in several] for key, several in lists.items()}
            self.waiting.append({"name": name, **told})
        self._known = now


def check_alarms(config: AlarmsConfig) -> None:
    """ConfigError for a url that can never work; it is not shown, as it may hold a secret."""
    url, is_good = config.url, not config.url
    with suppress(ValueError):
        parts = urlsplit(url)
        is_plain = parts.username is None and url.isascii() and url.isprintable() and " " not in url
        is_named = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        is_good |= bool(is_named) and is_plain
    if not is_good:
        raise ConfigError("alarms.url must be like https://HOST/PATH, without a user")


@contextmanager
def pushed_alarms(
    config: AlarmsConfig, socket: Path, failed: MutableMapping[str, str]
) -> Iterator[None]:
    """Post the alarms of the process behind a control socket; why that fails is in `failed`."""
    if not config.url:
        yield
        return
    stop = threading.Event()
    arguments = (urlsplit(config.url), socket, failed, stop)
    thread = threading.Thread(target=_run, args=arguments, name="alarms", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(GOODBYE_S)


def _run(
    url: SplitResult, socket: Path, failed: MutableMapping[str, str], stop: threading.Event
) -> None:
    messages = AlarmMessages()
    said, again = RateLimiter(LOG_S, LOG_S), Backoff(FIRST_S, LONGEST_S, random.Random())
    while not stop.wait(LOOK_S):
        with suppress(ControlError):  # it starts, ends or is busy
            status = ask_status(socket)
            name = str(getattr(status, "name", status.role))
            messages.look(name, [one for one in alarms(status) if one.text != failed.get("alarms")])
        now = time.monotonic()
        if not messages.waiting or (again.at is not None and not again.due(now)):
            continue
        if reason := _post(url, json.dumps(messages.waiting[0]).encode()):
            again.again(now)
            failed["alarms"] = f"the webhook of [alarms] at {url.hostname} fails: {reason}"
            if said.allow("", now):
                _log.warning("%s; it is tried again", failed["alarms"])
        else:
            messages.waiting.popleft()
            again.stop()
            failed.pop("alarms", None)


def _post(url: SplitResult, body: bytes) -> str:
    """Why a message was not taken; empty where it was."""
    import http.client  # with ssl and email, which take memory

    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    connection = kind(str(url.hostname), url.port, timeout=TIMEOUT_S)
    try:
        path = f"{url.path or '/'}{url.query and '?'}{url.query}"
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        status = connection.getresponse().status
    except (OSError, ValueError, http.client.HTTPException) as error:
        return str(error) or type(error).__name__
    finally:
        connection.close()
    return "" if 200 <= status < 300 else f"it answers {status}"
