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
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from ternmesh.config import ConfigError
from ternmesh.timers import Backoff
from ternmesh_service.alarms import Alarm, alarms
from ternmesh_service.control_socket import ControlError
from ternmesh_service.status import Status, ask_status, to_json

LOOK_S = 10.0  # between two looks at the alarms, and at least between two messages
TIMEOUT_S = 10.0  # of a connection, and of each wait for an answer
FIRST_S, LONGEST_S = 5.0, 900.0  # between attempts after a failure
GOODBYE_S = 1.0

_log = logging.getLogger(__name__)
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


@dataclass(frozen=True, slots=True)
class AlarmsConfig:
    """`[alarms]`: where alarms are posted, `https://HOST/...` or `http://`; "" posts none."""

    url: str = field(default="", repr=False)  # it may hold a secret


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
    told: dict[tuple[str, str], Alarm] = {}  # what the webhook knows
    again = Backoff(FIRST_S, LONGEST_S, random.Random())
    while not stop.wait(LOOK_S):
        with suppress(ControlError, OSError):  # it starts, ends or is busy; no file is left
            if again.at is None or again.due(time.monotonic()):
                told = _tell(url, ask_status(socket), told, failed)
                if "alarms" in failed:
                    again.again(time.monotonic())
                else:
                    again.stop()


def _tell(
    url: SplitResult,
    status: Status,
    told: dict[tuple[str, str], Alarm],
    failed: MutableMapping[str, str],
) -> dict[tuple[str, str], Alarm]:
    """Post what has changed; what the webhook knows then."""
    found = [one for one in alarms(status) if one.text != failed.get("alarms")]
    # An alarm whose numbers alone have changed is the same.
    now = {(one.about, _NUMBER.sub("", one.text)): one for one in found}
    began = [to_json(one) for key, one in now.items() if key not in told]
    ended = [to_json(one) for key, one in told.items() if key not in now]
    if began or ended:
        name = str(getattr(status, "name", status.role))
        message = {"name": name, "began": began, "ended": ended, "alarms": [*map(to_json, found)]}
        if reason := _post(url, json.dumps(message).encode()):
            sentence = f"the webhook of [alarms] at {url.hostname} fails: {reason}"
            if "alarms" not in failed:
                _log.warning("%s; it is tried again", sentence)
            failed["alarms"] = sentence
            return told
    failed.pop("alarms", None)
    return now


def _post(url: SplitResult, body: bytes) -> str:
    """Why a message was not taken; empty where it was."""
    import http.client  # with ssl and email, which take memory

    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    connection = kind(str(url.hostname), url.port or kind.default_port, timeout=TIMEOUT_S)
    try:
        path = f"{url.path or '/'}{url.query and '?'}{url.query}"
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        status = connection.getresponse().status
    except (OSError, ValueError, http.client.HTTPException) as error:
        return str(error) or type(error).__name__
    finally:
        connection.close()
    return "" if 200 <= status < 300 else f"it answers {status}"
