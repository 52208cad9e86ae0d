"""The log lines of a node's events: what an owner must see is a warning."""

import logging

import pytest

from edge.event_log import EventLog
from ternmesh.federated.events import Refused
from ternmesh.federated.refusals import HARMLESS, NORMAL_UP_TO, SENTENCES


@pytest.mark.parametrize("reason", SENTENCES)
def test_a_refusal_is_a_warning_once(reason: str, caplog) -> None:
    """`journalctl -p warning` shows it."""
    caplog.set_level(logging.INFO)
    log = EventLog("ada", 10.0)
    for _ in range(NORMAL_UP_TO):
        log.log(Refused("host", reason))
    levels = [record.levelno for record in caplog.records]
    assert levels == ([] if reason in HARMLESS else [logging.WARNING])
