"""The log lines of a node's events; in an ordinary round only its result is of interest."""

import logging
import math

from ternmesh.federated import events
from ternmesh.federated.refusals import NO_ANSWER, RefusalLog, why
from ternmesh.plan import run_length
from ternmesh.security.session import HostRotated

_log = logging.getLogger(__name__)


class EventLog:
    """Logs the events of the node `name`, what is no news as DEBUG.

    If no host has answered at `unanswered_at`, that is logged once.
    """

    def __init__(self, name: str, unanswered_at: float) -> None:
        self._name = name
        self._unanswered_at = unanswered_at
        self._refusals = RefusalLog()
        self._joined: events.Joined | None = None  # the last one

    def log(self, event: events.NodeEvent) -> None:
        line = _describe(event, self._name)
        if line is not None:
            news = logging.WARNING if isinstance(event, events.Refused) else logging.INFO
            _log.log(news if self._is_news(event) else logging.DEBUG, "%s", line)

    def note_answer(self, now: float, *, has_answer: bool) -> None:
        if not has_answer and now >= self._unanswered_at:
            _log.warning("%s", NO_ANSWER)
        if has_answer or now >= self._unanswered_at:
            self._unanswered_at = math.inf

    def _is_news(self, event: events.NodeEvent) -> bool:
        match event:
            case events.Refused():
                return self._refusals.is_news(event.peer, event.reason)
            case events.Joined():  # each hello is answered with a welcome
                last, self._joined = self._joined, event
                return event != last
            case _:
                return not isinstance(event, events.UpdateMade | events.UpdateReceived)


def _describe(event: events.NodeEvent, name: str) -> str | None:
    match event:
        case events.Joined():
            return f"{name} has joined run {event.run.hex()}, {run_length(event.plan.rounds)}"
        case events.UpdateMade():
            size = sum(map(len, event.pending.bodies))
            return f"the update of round {event.pending.round + 1} is ready: {size} bytes"
        case events.FellSilent():
            return f"silent in round {event.round + 1}: its delta waits for a later update"
        case events.UpdateReceived():
            return f"the host has the update of round {event.round + 1}"
        case events.SecurityChanged() if any(isinstance(one, HostRotated) for one in event.changes):
            return f"the host has a new key, which {name} trusts from now on"
        case events.Refused():
            who = f"refused from {event.peer}" if event.peer else "the host refused a frame"
            return f"{who}: {event.reason}: {why(event.reason, on_host=False)}"
        case _:
            return None
