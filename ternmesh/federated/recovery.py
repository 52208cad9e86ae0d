"""A host whose state is an old copy gets the global updates that it lacks back from its nodes.

A hello of the host's own run with a higher version is a claim. The host asks the first node that
made one, again and again, until it has reached that version. A claim that brings nothing is given
up, and the node's next ones are ignored for a while: a node could lie, and no round is opened or
closed meanwhile.

A node that does not have all global updates from the host's version on gives its newest one, with
its adapter. The host's own signature is on the hash of that adapter.
"""

import math
from collections.abc import Container, Iterable
from functools import partial

from ternmesh.codec.scale import add_q24
from ternmesh.errors import WireError
from ternmesh.federated.aggregation import global_delta_q24, read_step
from ternmesh.federated.registry import UpdateChain
from ternmesh.federated.state import ChainLink
from ternmesh.plan import Plan
from ternmesh.security.authenticator import MessageAuthenticator
from ternmesh.types import ModelQ24
from ternmesh.wire.fragments import Reassembler
from ternmesh.wire.global_update import (
    GIVEN,
    Certificate,
    Counted,
    GlobalSnapshot,
    GlobalUpdate,
    hash_adapter,
    read_given,
    read_object,
    split_certificate,
    write_given,
)

GIVEN_MAX = 4  # global updates in one answer; as many objects as a `Reassembler` holds
ASKS_MAX = 6  # questions and wrong answers in a row without a global update
IGNORED_PAUSES = 20 * ASKS_MAX  # a lie stops the rounds for a twentieth of the time at most


# The update, its certified bytes, and the adapter that it leads to
Answer = tuple[GlobalUpdate, ChainLink, ModelQ24]


def steps_after(version: int, chain: UpdateChain, newest: int, model_q24: ModelQ24) -> list[bytes]:
    """The next global updates for a host at `version`, or the adapter with the newest one.

    A first global update that counts nobody takes the adapter of another run along, which is not
    in it; one that returns to an older version needs those before it. Empty if the node does not
    have them.
    """
    steps = chain.after(version, newest)
    for content in steps or ():
        step = read_object(split_certificate(content)[0], model_q24.size)
        is_first = step.version == 1 and not step.counted
        if is_first or (isinstance(step, GlobalUpdate) and step.returns_to is not None):
            steps = None
            break
    if steps is None and (last := chain.after(newest - 1, newest)):
        steps = [write_given(last[0], model_q24)]
    return (steps or [])[:GIVEN_MAX]


def own_rows(counted: Iterable[Counted], addresses: Container[int]) -> dict[int, Counted]:
    """Return the rows of known nodes in a global update, by address.

    A node's row stands before that of its partial aggregate, and the first one counts.
    """
    rows: dict[int, Counted] = {}
    for row in counted:
        if row.address in addresses:
            rows.setdefault(row.address, row)
    return rows


class Recovery:
    """The claims of nodes, and what has come of the one that is being asked.

    `pause_s` is how long the host waits for an answer.
    """

    def __init__(
        self,
        *,
        plan: Plan,
        model_hash: bytes,
        authenticator: MessageAuthenticator,
        pause_s: float,
        may_adopt: bool,
    ) -> None:
        self.may_adopt = may_adopt  # the host may have lost its run, and take a node's
        self.at: float | None = None  # when to ask (again)
        self.tries = 0  # questions and wrong answers since the last global update
        self.givers: set[str] = set()  # nodes that were asked since the start
        self._plan = plan
        self._model_hash = model_hash
        self._authenticator = authenticator
        self._pause_s = pause_s
        self._claims: dict[str, int] = {}  # versions by node
        self._given_up: dict[str, tuple[int, float]] = {}  # the claim, and when it was given up
        self._wanted_from = 0  # the version in the last question
        self._reassembler = self._new_reassembler()

    @property
    def source(self) -> str | None:
        """The node that is being asked; None while the host is not behind."""
        return next(iter(self._claims), None)

    def unmet(self, version: int) -> list[str]:
        """The nodes whose claim to be beyond `version` was given up."""
        return [name for name, (claim, _) in self._given_up.items() if claim > version]

    def claim(self, node: str, version: int, now: float) -> bool:
        """Note that a node has a newer version. False if its claims are ignored."""
        _, given_up_at = self._given_up.get(node, (0, -math.inf))
        if now < given_up_at + IGNORED_PAUSES * self._pause_s:
            return False
        if self.source is None:
            self.at = now
        self._claims[node] = version
        return True

    def asked(self, node: str, version: int, now: float) -> None:
        self.givers.add(node)
        self.tries += 1
        self._wanted_from = version
        self.at = now + self._pause_s

    def add(
        self, body: bytes, *, run: bytes, origin: bytes, version: int, model_q24: ModelQ24
    ) -> Answer | None:
        """Add a fragment of the asked node, for a host that holds this version and adapter.

        `origin` is the genesis hash of the run. Return the global update that is complete now, if
        it leads on from there. Raises WireError.
        """
        try:
            data = self._reassembler.add(body)
            if data is None:
                return None
            sent, given = (data, None)
            if data[0] == GIVEN:
                sent, given = read_given(data, self._plan.dimension)
            check = partial(self._check, run, sent)
            step, name = read_step(sent, self._plan.dimension, self._model_hash, check)
            if isinstance(step, GlobalSnapshot):
                raise WireError("kind", "a snapshot does not tell the host's chain")
            if step.version <= version or (given is None and step.version != version + 1):
                return None
            if given is None:
                delta_q24 = global_delta_q24(
                    step.chunks, self._model_hash, step.version, self._plan
                )
                given = add_q24(model_q24, delta_q24)
            if hash_adapter(origin, step.version, given) != step.adapter_hash:
                raise WireError(
                    "reference", "the node follows other global updates, or a damaged adapter"
                )
            return step, ChainLink(step.version, name, sent), given
        except WireError:
            self.tries += 1
            raise

    def _check(self, run: bytes, data: bytes, content: bytes, certificate: Certificate) -> None:
        """Raise WireError unless the host itself has signed this."""
        beside = self._authenticator.objects_to_send(run, data)[:-1]
        self._authenticator.check_certificate(run, content, certificate, beside)

    def advanced(self, version: int, now: float) -> None:
        """Note that the host has a version now; `at` is when to ask for the next one."""
        self.tries = 0
        self._claims = {name: claim for name, claim in self._claims.items() if claim > version}
        is_whole = version >= self._wanted_from + GIVEN_MAX
        self.at = None if self.source is None else now + (0 if is_whole else self._pause_s)

    def give_up(self, now: float) -> str:
        """Ignore the node that is being asked; returns its name. The next one is due at once."""
        name = next(iter(self._claims))
        self._given_up[name] = self._claims.pop(name), now
        self.tries = 0
        self._reassembler = self._new_reassembler()
        self.at = None if self.source is None else now
        return name

    def _new_reassembler(self) -> Reassembler:
        return Reassembler(self._plan.frame_mtu, self._plan.object_max, GIVEN_MAX)
