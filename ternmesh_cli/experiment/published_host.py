"""The host of a published arm: it waits for the state of every node, and publishes the average.

python -m ternmesh_cli.experiment.published_host JOB.json
"""

import logging
import sys
import time
from pathlib import Path

import numpy as np

from host.config import load_bundle
from ternmesh.bundle import ADAPTER, Bundle
from ternmesh_cli.experiment.bearer import Bearer
from ternmesh_cli.experiment.errors import PayloadError
from ternmesh_cli.experiment.job import (
    LEDGER,
    POLL_S,
    READY,
    RESEND_S,
    STATE,
    Job,
    Ledger,
    State,
    Vector,
    do,
    load_state,
    save_state,
)
from ternmesh_cli.experiment.payload import Message, Payload, decode, encode, mean
from transports.base import HOST

_log = logging.getLogger(__name__)


class PublishedHost:
    """The rounds of one run. What arrives twice, too late or broken changes nothing."""

    def __init__(self, job: Job, bundle: Bundle, state: State, bearer: Bearer) -> None:
        self.job, self.bundle, self.state = job, bundle, state
        self._bearer = bearer
        self._ledger = Ledger(job.file(LEDGER))
        self._states: dict[str, Vector] = {}
        self._published_at = 0.0

    def turn(self, wait_s: float) -> None:
        """Take what arrives within `wait_s`."""
        data = self._bearer.receive(wait_s)
        if data is None:
            return
        try:
            message = decode(self.job.codec, self.bundle, data)
        except PayloadError as error:
            _log.warning("%s", error)
            return
        if message.sender not in self.job.nodes:
            _log.warning("%s is no node of this run", message.sender)
        elif message.version < self.state.version:
            self._repeat()
        elif message.version == self.state.version < self.job.run.rounds:
            self._states[message.sender] = message.vector
            if len(self._states) == len(self.job.nodes):
                self._close()

    def _close(self) -> None:
        """Average the states of the round, keep the result and publish it."""
        vector = mean([self._states[node] for node in self.job.nodes])
        self._states.clear()
        round_number = self.state.version
        self.state = State(round_number + 1, vector)
        payload = self._payload()
        self._ledger.note(round_number, {"down": payload.parts})
        save_state(self.job.file(STATE), self.state)
        self._publish(payload)
        _log.info("reference %d: %d bytes", self.state.version, len(payload.data))

    def _repeat(self) -> None:
        """Somebody missed the newest reference: publish it again, but not for each who says so."""
        if time.monotonic() > self._published_at + RESEND_S / 2:
            self._publish(self._payload())

    def _payload(self) -> Payload:
        message = Message(HOST, self.state.version, self.state.vector)
        return encode(self.job.codec, self.bundle, message)

    def _publish(self, payload: Payload) -> None:
        self._bearer.publish(self.job.down, payload.data)
        self._published_at = time.monotonic()


def run(job: Job) -> None:
    """Host until ended."""
    bundle = load_bundle(job.bundle)
    initial = np.fromfile(Path(job.bundle) / ADAPTER, dtype="<f4").astype(np.float32)
    state = load_state(job.file(STATE), initial)
    with Bearer(job.url, job.identity, job.up("+")) as bearer:
        host = PublishedHost(job, bundle, state, bearer)
        job.file(READY).touch()
        _log.info("hosting from reference %d on", state.version)
        while True:
            host.turn(POLL_S)


if __name__ == "__main__":
    sys.exit(do(run, sys.argv[1]))
