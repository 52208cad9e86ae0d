"""Who stands for references and releases where that is not the host alone. SPEC.md section 9.7.

All ends of a fleet are given the same public lines, in any order: an index counts by rising key.
"""

from collections.abc import Iterable, Sequence

from ternmesh.errors import TrustError
from ternmesh.trust.identity import Identity, PublicIdentity, parse_identity, parse_quantum
from ternmesh.trust.primitives import SEED_SIZE, QuantumKey, hkdf, need_quantum
from ternmesh.trust.signing import Signers

QUANTUM_SIZE = 2438  # bytes of an object with an ML-DSA-44 signature
QUANTUM_FRAMES = 13  # radio frames of 222 bytes that it takes


def choose_signers(
    host: PublicIdentity, lines: Sequence[str], needed: int, quantum: str = ""
) -> Signers:
    """The identities of `lines`, or the host's where there are none; TrustError.

    With `quantum`, the line of an ML-DSA-44 key, the host signs with that as well; an end that
    could not check such a signature is told here, at its start.
    """
    found = [parse_identity(line) for line in lines] or [host]
    key = parse_quantum(quantum) if quantum else b""
    if key:
        need_quantum()
    try:
        return Signers(tuple(sorted(found, key=lambda one: one.verify)), needed, key)
    except ValueError as error:
        raise TrustError(
            f"trust.threshold is {needed}, and trust.signers names {len(found)}: {error}"
        ) from error


def held(signers: Signers, identities: Iterable[Identity]) -> tuple[tuple[int, Identity], ...]:
    """Those who sign here, by rising index: as many as it takes. TrustError for fewer."""
    indexes = {key.verify: index for index, key in enumerate(signers.keys)}
    known = {i.public.verify: i for i in identities if i.public.verify in indexes}
    if len(known) < signers.needed:
        raise TrustError(
            f"references take the signatures of {signers.needed} of {len(signers.keys)} signers, "
            f"and {len(known)} of their private keys are here: trust.signer_files names more"
        )
    return tuple(sorted((indexes[verify], one) for verify, one in known.items()))[: signers.needed]


def quantum_key(own: Identity) -> QuantumKey:
    """The ML-DSA-44 key of an identity: of its Ed25519 seed, which no public key gives away."""
    return QuantumKey(hkdf(own.seeds[:SEED_SIZE], b"", b"ternmesh quantum", SEED_SIZE))


def own_quantum(signers: Signers, own: Identity) -> QuantumKey | None:
    """With what the host signs besides, if the fleet wants that; TrustError for another's key."""
    if not signers.quantum:
        return None
    key = quantum_key(own)
    if key.public != signers.quantum:
        raise TrustError(
            "trust.quantum is another key than this host's: `enrol identity --quantum` shows that"
        )
    return key
