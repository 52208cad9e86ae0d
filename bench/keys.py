"""Keys for a fleet in one process: made from a seed, for measuring only."""

from collections.abc import Callable, Sequence

import numpy as np

from ternmesh.trust.identity import Role, make_identity
from ternmesh.trust.notary import Trust, make_trust
from ternmesh.trust.roster import HOST, Roster, found_fleet
from ternmesh.trust.session import SealingState


def keyed(names: Sequence[str], model_hash: bytes, seed: int) -> Callable[[str], Trust]:
    """What each end of a fleet is given, by its name."""
    rng = np.random.default_rng((seed, 9))
    own = {HOST: make_identity(HOST, Role.HOST, rng.bytes(64))}
    own |= {name: make_identity(name, Role.NODE, rng.bytes(64)) for name in names}

    def trust(name: str) -> Trust:
        roster = Roster(found_fleet("bench", own[HOST].public))
        for member in names:
            roster.enrol(own[member].public)
        return make_trust(own[name], roster, model_hash, rng.bytes(8), 0, SealingState())

    return trust
