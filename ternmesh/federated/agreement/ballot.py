"""The votes on one version: proposals, prepares and commits of its newest terms."""

from collections import defaultdict

from ternmesh.federated.agreement.messages import (
    Commit,
    Prepare,
    Propose,
    QuorumCertificate,
    Signed,
    Vote,
)
from ternmesh.federated.agreement.voters import Voters

TERMS_KEPT = 4  # of each voter's votes of each kind


class Ballot:
    """Counts one vote of each kind, voter and term: the first that comes."""

    def __init__(self, voters: Voters, version: int) -> None:
        self.version = version
        self._voters = voters
        self._votes: dict[tuple[type[Vote], int], dict[int, Signed[Vote]]] = defaultdict(dict)

    def get(self, kind: type[Vote], voter: int, term: int) -> Signed[Vote] | None:
        return self._votes[kind, voter].get(term)

    def add(self, vote: Signed[Vote]) -> Signed[Vote] | None:
        """Count a vote; returns the one that counts instead, where its voter has signed another."""
        message = vote.message
        votes = self._votes[type(message), message.voter]
        first = votes.setdefault(message.term, vote)
        if len(votes) > TERMS_KEPT:
            del votes[min(votes)]
        return None if first.message.digest == message.digest else first

    def proposal(self, term: int) -> Propose | None:
        vote = self.get(Propose, self._voters.leader(term), term)
        return vote.message if vote is not None and isinstance(vote.message, Propose) else None

    def certificate(self, kind: type[Prepare | Commit], term: int) -> QuorumCertificate | None:
        """A quorum of votes of this kind for one digest in this term alone, if there is one."""
        signatures: dict[bytes, dict[int, bytes]] = defaultdict(dict)
        for voter in range(self._voters.count):
            vote = self.get(kind, voter, term)
            if vote is not None:
                signatures[vote.message.digest][voter] = vote.signature
        for digest, rows in signatures.items():
            if len(rows) >= self._voters.quorum:
                signers = tuple(rows)[: self._voters.quorum]
                joined = b"".join(rows[voter] for voter in signers)
                return QuorumCertificate(term, self.version, digest, signers, joined)
        return None
