"""A node of a published arm: it trains, publishes its whole state, and loads the average.

python -m ternmesh_cli.experiment.published_node JOB.json
"""

import logging
import sys
import time
from pathlib import Path

from edge.adam import AdamSettings
from edge.session import LoadedBundle, TrainStep, load_bundle, write_adapter
from edge.sources import NpzSettings, open_folder
from edge.trainer import Trainer, round_rng
from host.config import plan_of
from ternmesh_cli.experiment.bearer import Bearer
from ternmesh_cli.experiment.errors import PayloadError
from ternmesh_cli.experiment.job import (
    CURRENT,
    LEDGER,
    OWN,
    POLL_S,
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
from ternmesh_cli.experiment.payload import Message, decode, encode

_log = logging.getLogger(__name__)


class PublishedNode:
    """One node. A round that is begun again after a kill draws the same batches."""

    def __init__(
        self, job: Job, loaded: LoadedBundle, trainer: Trainer, state: State, bearer: Bearer
    ) -> None:
        self.job, self.state = job, state
        self._bundle, self._trainer, self._bearer = loaded.bundle, trainer, bearer
        self._plan = plan_of(job.run, loaded.bundle.dimension)
        self._ledger = Ledger(job.file(LEDGER))

    def follow(self) -> None:
        """Take part until the last round is over."""
        self._use()
        while self.state.version < self.job.run.rounds:
            self._exchange(self._train())
            self._use()

    def _train(self) -> Vector:
        """This node's own state after the local steps of the round."""
        job, reference = self.job, self.state
        rng = round_rng(job.seed, job.name, reference.version)
        self._trainer.begin(reference.version, reference.vector, self._plan, rng)
        while self._trainer.step():
            pass
        own = reference.vector + self._trainer.delta()
        self._trainer.stop()
        if reference.version + 1 == job.run.rounds:
            write_adapter(job.file(OWN), self._bundle, own, reference.version)
        return own

    def _exchange(self, own: Vector) -> None:
        """Publish the state until the average comes back, and keep that."""
        round_number = self.state.version
        payload = encode(self.job.codec, self._bundle, Message(self.job.name, round_number, own))
        sent, sent_at = 0, 0.0
        while self.state.version == round_number:
            if sent == 0 or time.monotonic() > sent_at + RESEND_S:
                self._bearer.publish(self.job.up(self.job.name), payload.data)
                sent, sent_at = sent + 1, time.monotonic()
            self._take(self._bearer.receive(POLL_S))
        self._ledger.note(round_number, {"up": payload.parts, "repeats": sent - 1})
        save_state(self.job.file(STATE), self.state)
        _log.info("round %d: sent %d bytes", round_number + 1, len(payload.data))

    def _take(self, data: bytes | None) -> None:
        if data is None:
            return
        try:
            message = decode(self.job.codec, self._bundle, data)
        except PayloadError as error:
            _log.warning("%s", error)
            return
        if message.version > self.state.version:
            self.state = State(message.version, message.vector)

    def _use(self) -> None:
        """Show the reference as an adapter file, as a node of ternmesh does."""
        write_adapter(self.job.file(CURRENT), self._bundle, self.state.vector, self.state.version)


def run(job: Job) -> None:
    """Take part until the last round is over."""
    loaded = load_bundle(Path(job.bundle))
    data = open_folder(Path(job.data), loaded.bundle, NpzSettings({}, {}))
    step = TrainStep(loaded.folder, loaded.bundle)
    trainer = Trainer(step, data, loaded.bundle.batch, AdamSettings(), keep_moments=True)
    state = load_state(job.file(STATE), loaded.initial)
    with Bearer(job.url, job.identity, job.down) as bearer:
        PublishedNode(job, loaded, trainer, state, bearer).follow()


if __name__ == "__main__":
    sys.exit(do(run, sys.argv[1]))
