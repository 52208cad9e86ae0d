"""Keys for a fleet in one process: made from a seed, for measuring only."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ternmesh.trust.identity import Identity, Role, make_identity
from ternmesh.trust.keyed import KeyedSealing
from ternmesh.trust.keys import SUITE_HOP
from ternmesh.trust.notary import Trust, make_trust
from ternmesh.trust.roster import HOST, Roster, found_fleet
from ternmesh.trust.session import SealingState


def keyed(names: Sequence[str], model_hash: bytes, seed: int) -> Callable[[str], Trust]:
    """What each end of a fleet is given, by its name."""
    rng = np.random.default_rng((seed, 9))
    own = _identities(names, rng)

    def trust(name: str) -> Trust:
        roster = _roster(own)
        return make_trust(own[name], roster, model_hash, rng.bytes(8), 0, SealingState())

    return trust


def hop_seals(names: Sequence[str], seed: int) -> Callable[[str], KeyedSealing]:
    """The seals of a radio link between a host and these nodes, by the name of an end."""
    rng = np.random.default_rng((seed, 10))
    own = _identities(names, rng)

    def sealing(name: str) -> KeyedSealing:
        hub = None if name == HOST else HOST
        state = SealingState()
        return KeyedSealing(own[name], _roster(own), SUITE_HOP, rng.bytes(8), 0, state, hub=hub)

    return sealing


def _identities(names: Sequence[str], rng: np.random.Generator) -> dict[str, Identity]:
    host = make_identity(HOST, Role.HOST, rng.bytes(64))
    return {HOST: host} | {n: make_identity(n, Role.NODE, rng.bytes(64)) for n in names}


def _roster(own: Mapping[str, Identity]) -> Roster:
    roster = Roster(found_fleet("bench", own[HOST].public))
    for name, identity in own.items():
        if name != HOST:
            roster.enrol(identity.public)
    return roster
