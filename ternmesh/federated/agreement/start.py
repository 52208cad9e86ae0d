"""The question of a start: what may this voter have signed that its disk does not know?

An old copy of a disk cannot know that it is old. So a voter that starts signs nothing before enough
others have answered, and then only above the newest place that they prove or that liars alone
cannot invent. Answers need no voter that has started: all may start together.
"""

from ternmesh.errors import WireError
from ternmesh.federated.agreement import messages
from ternmesh.federated.agreement.messages import QuorumCertificate, Verify, Vote
from ternmesh.federated.agreement.voters import Voters

Place = tuple[int, int]  # a term and a version, compared in this order


class Start:
    """Gathers the answers to one question."""

    def __init__(self, voters: Voters, index: int, nonce: bytes, needed: int) -> None:
        self.nonce = nonce
        self.is_over = False
        # Digests that answers show or prove, by the place and who has answered
        self._shown: dict[tuple[Place, int], bytes] = {}
        self._voters, self._index, self._needed = voters, index, needed
        self._answers: dict[int, tuple[messages.StartAnswer, Place]] = {}

    def add(self, answer: messages.StartAnswer, verify: Verify) -> None:
        """Keep an answer to this question. Raises WireError where its proofs are wrong."""
        if (answer.asker, answer.nonce) != (self._index, self.nonce):
            return
        for kind, proof in ((messages.Commit, answer.decided), (messages.Prepare, answer.lock)):
            if proof is not None:
                messages.check_certificate(self._voters, kind, proof, verify)
        vote = self._read(answer.seen, verify) if answer.seen else None
        newest = (0, 0)
        for shown in (vote, answer.decided, answer.lock):
            if shown is not None:
                place = shown.term, shown.version
                newest = max(newest, place)
                self._shown[place, answer.voter] = shown.digest
        self._answers[answer.voter] = answer, newest

    def is_done(self, decided: int) -> bool:
        """Whether enough have answered, and their decisions are known here up to `decided`."""
        proofs = (answer.decided for answer, _ in self._answers.values())
        is_behind = any(proof is not None and proof.version > decided for proof in proofs)
        return len(self._answers) >= self._needed and not is_behind

    def digests(self, place: Place) -> set[bytes]:
        """What was voted for in a place, as far as answers show it."""
        return {digest for (at, _), digest in self._shown.items() if at == place}

    def newest(self) -> Place:
        """The newest place in which this voter may have signed."""
        proved = max((place for _, place in self._answers.values()), default=(0, 0))
        said = sorted(((each.term, each.version) for each, _ in self._answers.values()))
        backed = said[-self._voters.witnesses] if len(said) >= self._voters.witnesses else (0, 0)
        return max(proved, backed)

    def lock(self, version: int) -> QuorumCertificate | None:
        """The lock of the latest term on a version that the others know."""
        locks = (answer.lock for answer, _ in self._answers.values())
        fitting = [lock for lock in locks if lock is not None and lock.version == version]
        return max(fitting, key=lambda lock: lock.term, default=None)

    def _read(self, data: bytes, verify: Verify) -> Vote:
        """The asker's own vote that an answer shows. Raises WireError."""
        signed = messages.read_message(data)
        messages.check_message(self._voters, signed, verify)
        vote = signed.message
        if vote.voter != self._index or not isinstance(vote, messages.VOTES):
            raise WireError("agreement", "an answer shows a vote that is not the asker's")
        return vote
