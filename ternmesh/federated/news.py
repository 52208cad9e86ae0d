"""What a node of a run without an end has to learn: new samples, and rounds that learn them.

At the start of a run all samples are news, and later `samples_min` of them that came since. The
node trains in the plan's `news_rounds` rounds for them, at a learning rate that falls as it falls
over a run with an end. Only a round whose global update counts the node's update is one of these:
what was lost is sent again. Without news the node is silent in each round. While others learn, that
is after a global update that counts somebody, it trains after its silence all the same and sends
its update, so that what others learn does not undo what it has taught the fleet.
"""

import struct
from dataclasses import dataclass

from ternmesh.federated.events import Advanced
from ternmesh.federated.node import NodeProtocol
from ternmesh.wire.control import INTEGER_MAX

_STORED = struct.Struct("<II?")


@dataclass(slots=True)
class News:
    """The news of one node. The program keeps what `stored` returns on disk, for `load`."""

    samples_min: int  # as many new samples are news
    samples: int = 0  # that came since the last news
    rounds: int = 0  # that have learned the last news
    others_learn: bool = False  # the last global update counts somebody

    def load(self, stored: bytes | None) -> None:
        """Take up what an earlier process has stored; damaged bytes are ignored."""
        if stored is not None and len(stored) == _STORED.size:
            self.samples, self.rounds, self.others_learn = _STORED.unpack(stored)

    def stored(self) -> bytes:
        """Return what must be on disk."""
        return _STORED.pack(self.samples, self.rounds, self.others_learn)

    def begin_run(self) -> None:
        """Begin with all samples of this node as news."""
        self.samples = self.rounds = 0
        self.others_learn = False

    def add(self, samples: int) -> None:
        """Count samples that came; with enough of them the rounds begin anew."""
        self.samples = min(self.samples + samples, INTEGER_MAX)
        if self.samples >= self.samples_min:
            self.samples = self.rounds = 0

    def advanced(self, event: Advanced) -> None:
        """Note a global update. One that drops what was learned makes all samples news."""
        if event.has_returned:
            self.begin_run()
        self.rounds = min(self.rounds + event.counts_own, INTEGER_MAX)
        self.others_learn = not event.counts_nobody

    def round_to_train(self, node: NodeProtocol, offered: int | None, now: float) -> int | None:
        """Return the round to train for now; without news, make the node silent first.

        `offered` is the round of a `WorkReady` that nothing was done for yet.
        """
        plan = node.plan
        if plan is None or plan.rounds > 0:
            return offered
        has_news = self.rounds < plan.news_rounds
        if offered is not None and not has_news:
            node.submit(offered, None, now)
        elif offered is not None:
            return offered
        # The host must know of the silence before the update: else it takes the update for news.
        is_ready = has_news or (self.others_learn and node.received)
        return node.version if node.silent and is_ready else None
