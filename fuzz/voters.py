"""What voters tell each other (SPEC.md section 13), for one voter, and proposals."""

from collections.abc import Iterable
from contextlib import suppress

import numpy as np

from fuzz.target import Target, joined, parts
from fuzz.wire import chunks
from ternmesh.errors import WireError
from ternmesh.federated.agreement import messages
from ternmesh.federated.agreement.terms import VoterSettings
from ternmesh.federated.agreement.voter import NOTHING_DECIDED, Voter
from ternmesh.federated.agreement.voters import make_voters
from ternmesh.federated.replica import ProposedUpdate, read_proposal, write_proposal

RUN_ID = b"run-id-8"
_VOTERS = make_voters(RUN_ID, ("attic", "barn", "cellar"), "crash")
_DIGEST, _SIGNATURE = bytes(range(32)), bytes(64)
_PROOF = messages.QuorumCertificate(0, 1, _DIGEST, (0, 2), 2 * _SIGNATURE)


def _said() -> list[bytes]:
    """One message of each type."""
    items: Iterable[messages.Message] = (
        messages.Propose(0, 0, 1, _DIGEST, NOTHING_DECIDED, None),
        messages.Prepare(2, 0, 1, _DIGEST),
        messages.Commit(2, 0, 1, _DIGEST),
        messages.Suspect(2, 0),
        messages.NewTerm(2, 1, 0, _PROOF),
        messages.DecisionWanted(2, 1),
        messages.Decision(2, _PROOF),
        messages.Alive(0, 0, 1),
        messages.StartQuestion(2, bytes(8)),
        messages.StartAnswer(2, 1, bytes(8), 0, 1, _PROOF, None, b""),
    )
    return [messages.sign_message(_VOTERS, item, lambda _: _SIGNATURE).data for item in items]


def _proposal() -> bytes:
    bodies = tuple(enumerate(chunks(2)))
    joined_boards = ((0, "ada", 9), (1, "bob", 7))
    return write_proposal(
        ProposedUpdate(
            RUN_ID, 1, bytes(16), 3, ("ada",), None, joined_boards, bodies, _DIGEST, _DIGEST
        )
    )


def _receive(data: bytes) -> None:
    """A voter that takes every signature for good: no message breaks it."""
    voter = Voter(
        voters=_VOTERS,
        index=1,
        settings=VoterSettings(trusts_disk=True),
        sign=lambda _: _SIGNATURE,
        verify=lambda *_: True,
        rng=np.random.default_rng(0),
    )
    voter.start(0.0)
    for second, item in enumerate(parts(data)):
        with suppress(WireError):
            voter.receive(item, float(second))
        voter.tick(float(second))


TARGETS = (
    Target("voter", lambda: [joined(_said()), *map(lambda m: joined([m]), _said())], _receive),
    Target("proposal", lambda: [_proposal()], lambda data: read_proposal(data)),
)
