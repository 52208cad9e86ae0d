"""What a voter asks of the program that runs it. Values only."""

from dataclasses import dataclass

from ternmesh.federated.agreement.messages import QuorumCertificate


@dataclass(frozen=True, slots=True)
class VoterChanged:
    """Put these bytes on disk, in place of those before, before anything that follows is done."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Send these bytes to all other voters."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Judge:
    """Say by `judged` whether the value with this digest may be decided as this version."""

    term: int
    version: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Decided:
    """All voters agree on this digest. A version that was skipped has to be had elsewhere."""

    version: int
    digest: bytes
    proof: QuorumCertificate  # a quorum of commits


@dataclass(frozen=True, slots=True)
class Led:
    """This voter has entered a term."""

    term: int
    leader: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """A voter has signed two different votes of one kind for one term and version."""

    voter: int
    first: bytes
    second: bytes


Event = VoterChanged | Broadcast | Judge | Decided | Led | Evidence
