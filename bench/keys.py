"""Keys for a fleet in one process: made from a seed, for measuring only."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ternmesh.security.authenticator import SecurityLayer, make_security_layer
from ternmesh.security.identity import Identity, Role, make_identity
from ternmesh.security.key_derivation import SUITE_HOP
from ternmesh.security.keyed_sealing import KeyedSealing
from ternmesh.security.membership import HOST, MemberList, found_fleet
from ternmesh.security.session import SealingState


def keyed(names: Sequence[str], model_hash: bytes, seed: int) -> Callable[[str], SecurityLayer]:
    """What each end of a fleet is given, by its name."""
    rng = np.random.default_rng((seed, 9))
    own = _identities(names, rng)

    def security(name: str) -> SecurityLayer:
        member_list = _member_list(own)
        return make_security_layer(
            own[name], member_list, model_hash, rng.bytes(32), 0, SealingState()
        )

    return security


def hop_seals(names: Sequence[str], seed: int) -> Callable[[str], KeyedSealing]:
    """The seals of a radio link between a host and these nodes, by the name of an end."""
    rng = np.random.default_rng((seed, 10))
    own = _identities(names, rng)

    def sealing(name: str) -> KeyedSealing:
        hub = None if name == HOST else HOST
        state = SealingState()
        return KeyedSealing(
            own[name], _member_list(own), SUITE_HOP, rng.bytes(32), 0, state, hub=hub
        )

    return sealing


def _identities(names: Sequence[str], rng: np.random.Generator) -> dict[str, Identity]:
    host = make_identity(HOST, Role.HOST, rng.bytes(64))
    return {HOST: host} | {n: make_identity(n, Role.NODE, rng.bytes(64)) for n in names}


def _member_list(own: Mapping[str, Identity]) -> MemberList:
    member_list = MemberList(found_fleet("bench", own[HOST].public))
    for name, identity in own.items():
        if name != HOST:
            member_list.enrol(identity.public)
    return member_list
