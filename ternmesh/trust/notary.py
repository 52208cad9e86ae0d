"""What the two ends sign and check beyond the seals, in one place. SPEC.md section 9.7.

`Trust` is what a `Member` and a `Coordinator` are given: how frames are sealed, and whose word
counts. With `OPEN` nothing is authenticated, as suite 0 says.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ternmesh.errors import WireError
from ternmesh.trust.identity import Identity, Role
from ternmesh.trust.keyed import KeyedSealing
from ternmesh.trust.keys import SUITE_END
from ternmesh.trust.primitives import QuantumKey
from ternmesh.trust.roster import HOST, Roster
from ternmesh.trust.sealing import OpenSealing, Sealing
from ternmesh.trust.session import SealingState
from ternmesh.trust.signers import held, own_quantum
from ternmesh.trust.signing import (
    SIGNED,
    Place,
    Signers,
    open_signed,
    sign_body,
    sign_content,
    sign_packet,
    sign_quantum,
    verify_beside,
    verify_certificate,
    verify_packet,
)
from ternmesh.wire import control, pieces
from ternmesh.wire.control import Announce, Receipt
from ternmesh.wire.manifest import Manifest
from ternmesh.wire.reference import UNCERTIFIED, Certificate, split_certificate
from ternmesh.wire.seal import BROADCAST

NO_RUN = bytes(8)  # in the place of what is signed for all: an announce names its run itself


class Notary(Protocol):
    """Signs for this end and checks what others have signed; refusals are WireError "signature".

    `names_model`: whether a reference must name its model, as no certificate stands for that.
    """

    names_model: bool

    def sign_packet(self, run: bytes, number: int, item: Manifest, packet: bytes) -> Manifest:
        """A node's manifest with its signature; `packet` is the packet's whole hash."""

    def check_packet(
        self, node: str, run: bytes, number: int, item: Manifest, packet: bytes
    ) -> None:
        """On the host: that the node has signed this packet, all of whose shares are here."""

    def certify(self, run: bytes, content: bytes) -> Certificate:
        """The certificate of a reference's or snapshot's content."""

    def travelling(self, run: bytes, data: bytes) -> list[bytes]:
        """A certified object as it travels: behind the signature that stands beside it, if any."""

    def check_certificate(
        self, run: bytes, content: bytes, certificate: Certificate, beside: Sequence[bytes] = ()
    ) -> None:
        """On a node: that enough signers stand for the content; `beside` are such signatures."""

    def sign_receipt(self, node: str, run: bytes, body: bytes) -> bytes:
        """The body that carries a receipt for a node."""

    def sign_announce(self, body: bytes) -> bytes:
        """The body that carries an announce for all."""

    def open_body(self, run: bytes, context: int, body: bytes) -> bytes:
        """On a node: the body inside a signed one; another as it is, unless it must be signed."""

    def may_train(self, node: str) -> bool:
        """On the host: whether a node belongs to the fleet, in a role that learns."""


class OpenNotary:
    """Signs nothing and believes everything: for suite 0."""

    names_model = True

    def sign_packet(
        self,
        run: bytes,  # noqa: ARG002
        number: int,  # noqa: ARG002
        item: Manifest,
        packet: bytes,  # noqa: ARG002
    ) -> Manifest:
        """See `Notary`."""
        return item

    def check_packet(
        self, node: str, run: bytes, number: int, item: Manifest, packet: bytes
    ) -> None:
        """See `Notary`."""

    def certify(self, run: bytes, content: bytes) -> Certificate:  # noqa: ARG002
        """See `Notary`."""
        return UNCERTIFIED

    def travelling(self, run: bytes, data: bytes) -> list[bytes]:  # noqa: ARG002
        """See `Notary`."""
        return [data]

    def check_certificate(
        self, run: bytes, content: bytes, certificate: Certificate, beside: Sequence[bytes] = ()
    ) -> None:
        """See `Notary`."""

    def sign_receipt(self, node: str, run: bytes, body: bytes) -> bytes:  # noqa: ARG002
        """See `Notary`."""
        return body

    def sign_announce(self, body: bytes) -> bytes:
        """See `Notary`."""
        return body

    def open_body(self, run: bytes, context: int, body: bytes) -> bytes:  # noqa: ARG002
        """See `Notary`."""
        return body

    def may_train(self, node: str) -> bool:  # noqa: ARG002
        """See `Notary`."""
        return True


class KeyedNotary:
    """Signs with `own` keys; whose signature counts, say `roster` and `signers`."""

    names_model = False

    def __init__(
        self,
        own: Identity,
        roster: Roster,
        model_hash: bytes,
        sealing: KeyedSealing,
        signers: Signers,
        cosigners: Sequence[Identity],
    ) -> None:
        self._own, self._roster, self._sealing = own, roster, sealing
        self._model_hash, self._signers = model_hash, signers
        self._rows: tuple[tuple[int, Identity], ...] = ()
        self._quantum: QuantumKey | None = None
        if own.public.role is Role.HOST:
            self._rows = held(signers, (own, *cosigners))
            self._quantum = own_quantum(signers, own)

    def sign_packet(self, run: bytes, number: int, item: Manifest, packet: bytes) -> Manifest:
        """See `Notary`."""
        return sign_packet(self._own, self._place(run), number, item, packet)

    def check_packet(
        self, node: str, run: bytes, number: int, item: Manifest, packet: bytes
    ) -> None:
        """See `Notary`."""
        verify_packet(self._roster.find(node), self._place(run), number, item, packet)

    def certify(self, run: bytes, content: bytes) -> Certificate:
        """See `Notary`."""
        place = self._place(run)
        return tuple(sign_content(one, index, place, content) for index, one in self._rows)

    def travelling(self, run: bytes, data: bytes) -> list[bytes]:
        """See `Notary`."""
        if self._quantum is None:
            return [data]
        content, _ = split_certificate(data)
        return [sign_quantum(self._quantum, 0, self._place(run), content), data]

    def check_certificate(
        self, run: bytes, content: bytes, certificate: Certificate, beside: Sequence[bytes] = ()
    ) -> None:
        """See `Notary`."""
        signers, place = self._signers, self._place(run)
        verify_certificate(signers, place, content, certificate)
        verify_beside(signers, place, content, beside)

    def sign_receipt(self, node: str, run: bytes, body: bytes) -> bytes:
        """See `Notary`."""
        to = self._roster.find(node).fingerprint
        return sign_body(self._own, self._place(run), to, body)

    def sign_announce(self, body: bytes) -> bytes:
        """See `Notary`."""
        return sign_body(self._own, self._place(NO_RUN), self._sealing.broadcast_name, body)

    def open_body(self, run: bytes, context: int, body: bytes) -> bytes:
        """See `Notary`."""
        if body[0] == SIGNED:
            is_for_all = context == BROADCAST
            # Who holds the broadcast key could seal anew what was signed under another one.
            all_of_us = self._sealing.broadcast_name
            to = all_of_us if is_for_all else self._own.public.fingerprint
            place = self._place(NO_RUN if is_for_all else run)
            return open_signed(self._roster.host, place, to, body)
        if context == BROADCAST and body[0] != pieces.KIND:
            raise WireError("signature", "what is said to all must be signed")
        message = control.read_control(body) if body[0] == control.KIND else None
        if isinstance(message, Announce | Receipt):
            raise WireError("signature", "an announce or a receipt must be signed")
        return body

    def may_train(self, node: str) -> bool:
        """See `Notary`."""
        try:
            return self._roster.find(node).role in (Role.NODE, Role.GATEWAY)
        except WireError:
            return False

    def _place(self, run: bytes) -> Place:
        return Place(self._roster.fleet, run, self._model_hash)


@dataclass(frozen=True, slots=True)
class Trust:
    """How an end seals its frames, and what it signs and checks."""

    sealing: Sealing
    notary: Notary


OPEN = Trust(OpenSealing(), OpenNotary())


def make_trust(
    own: Identity,
    roster: Roster,
    model_hash: bytes,
    instance: bytes,
    counter: int,
    state: SealingState,
    signers: Signers | None = None,
    cosigners: Sequence[Identity] = (),
) -> Trust:
    """The trust of a host or a node with keys, end to end.

    `instance` is 8 random bytes of this process, `counter` the first seal counter that was never
    reserved, `state` what was kept of earlier processes. Without `signers` the host alone signs;
    `cosigners` are those with whom it does so besides. TrustError where they are too few.
    """
    hub = None if own.public.role is Role.HOST else HOST
    sealing = KeyedSealing(own, roster, SUITE_END, instance, counter, state, hub=hub)
    signers = signers or Signers((roster.host,))
    return Trust(sealing, KeyedNotary(own, roster, model_hash, sealing, signers, cosigners))
