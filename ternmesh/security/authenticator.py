"""Message authentication: what the two ends sign and check beyond the seals. SPEC.md section 9.7.

A `NodeProtocol` and a `HostProtocol` get a `SecurityLayer`: the sealing of their frames, and the
authenticator of their messages. `OPEN` authenticates nothing (suite 0).
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ternmesh.errors import WireError
from ternmesh.security import notices
from ternmesh.security.enrolment import write_list_request
from ternmesh.security.identity import Identity, Role
from ternmesh.security.key_derivation import SUITE_END
from ternmesh.security.keyed_sealing import KeyedSealing
from ternmesh.security.membership import HOST, MemberList, Members, MembersBehindGateway
from ternmesh.security.notices import RotationReader
from ternmesh.security.primitives import QuantumKey
from ternmesh.security.sealing import OpenSealing, Sealing
from ternmesh.security.session import HostRotated, SealingState
from ternmesh.security.signatures import (
    NO_MODEL,
    NO_RUN,
    SIGNED,
    SIGNED_HEAD,
    Signers,
    SigningContext,
    is_valid_row,
    local_signers,
    open_signed,
    own_quantum,
    sign_body,
    sign_content,
    sign_quantum,
    sign_update,
    verify_beside,
    verify_certificate,
    verify_update,
)
from ternmesh.wire import control, fragments
from ternmesh.wire.control import Announce, Receipt, Settings
from ternmesh.wire.frame import BROADCAST, UNASSIGNED, Header, seal_open
from ternmesh.wire.global_update import UNCERTIFIED, Certificate, split_certificate
from ternmesh.wire.release import OFFER, SYMBOL
from ternmesh.wire.update import MEMBERS_MAX, Manifest


class OpenAuthenticator:
    """Signs nothing and accepts everything: for suite 0. The methods are `KeyedAuthenticator`'s."""

    names_model = True  # a global update must name its model, as no certificate covers it

    def sign_update(self, _run: bytes, _number: int, item: Manifest, _update: bytes) -> Manifest:
        return item

    def check_update(
        self, node: str, run: bytes, number: int, item: Manifest, update: bytes
    ) -> None:
        pass

    def certify(self, _run: bytes, _content: bytes) -> Certificate:
        return UNCERTIFIED

    def objects_to_send(self, _run: bytes, data: bytes) -> list[bytes]:
        return [data]

    def check_certificate(
        self, run: bytes, content: bytes, certificate: Certificate, beside: Sequence[bytes] = ()
    ) -> None:
        pass

    def sign_receipt(self, _node: str, _run: bytes, body: bytes) -> bytes:
        return body

    def sign_announce(self, body: bytes) -> bytes:
        return body

    def open_body(self, _run: bytes, _address: int, body: bytes) -> bytes:
        return body

    def may_train(self, _node: str) -> bool:
        return True

    check_board = check_update

    def may_add_up(self, _node: str) -> bool:
        return True

    boards_max = MEMBERS_MAX

    def lacks(self, _nodes: Collection[str]) -> bool:
        return False

    def read_notice(self, _frame: bytes, _now: float) -> int | HostRotated | None:
        raise WireError("suite", "an end without keys has none that a notice could be about")

    def question(self) -> bytes | None:
        return None

    host_rotations: tuple[bytes, ...] = ()

    list_number = 0

    def note_list_number(self, _number: int) -> bool:
        return False

    def claim_list_number(self, _number: int) -> None:
        pass


class KeyedAuthenticator:
    """Signs with its `own` keys; accepts signatures of the member list and of the signers.

    Refusals are WireError "signature".
    """

    names_model = False

    def __init__(
        self,
        own: Identity,
        member_list: MemberList,
        model_hash: bytes,
        sealing: KeyedSealing,
        signers: Signers,
        cosigners: Sequence[Identity],
        *,
        others_sign: bool = False,
        members: Members | None = None,
    ) -> None:
        self._own = own
        self._members = members or member_list  # by which `HOST` may be an aggregator
        self._member_list = member_list
        self._sealing = sealing
        self._model_hash = model_hash
        self._rule = signers
        self._rotations = RotationReader()
        self._certifiers: tuple[tuple[int, Identity], ...] = ()  # on the host, with their indexes
        self._quantum: QuantumKey | None = None
        if own.public.role is Role.HOST:
            self._certifiers = local_signers(signers, (own, *cosigners), others_sign=others_sign)
            self._quantum = own_quantum(signers, own)

    @property
    def _signers(self) -> Signers:
        hosts = self._member_list.hosts
        return self._rule.seated(hosts.present, hosts.before)

    def sign_update(self, run: bytes, number: int, item: Manifest, update: bytes) -> Manifest:
        """A node's manifest with its signature; `update` is the update's whole hash."""
        return sign_update(self._own, self._context(run), number, item, update)

    def check_update(
        self, node: str, run: bytes, number: int, item: Manifest, update: bytes
    ) -> None:
        """On the host: check that the node has signed this complete update, and may add up."""
        if item.members and not self.may_add_up(node):
            raise WireError("signature", f"{node} is no aggregator")
        verify_update(self._member_list.find(node), self._context(run), number, item, update)

    def check_board(
        self, node: str, run: bytes, number: int, item: Manifest, update: bytes
    ) -> None:
        """On the host: the same of a board that an aggregator names, which has no other role.

        One that was revoked may have signed before the aggregator heard of it.
        """
        board = self._member_list.known(node)
        if board is None or board.role is not Role.NODE:
            raise WireError("signature", f"{node} is no board")
        verify_update(board, self._context(run), number, item, update)

    @property
    def boards_max(self) -> int:
        """On the host: how many boards may train."""
        return sum(1 for _ in self._member_list.boards())

    def certify(self, run: bytes, content: bytes) -> Certificate:
        """On the host: the certificate of a global update or snapshot."""
        context = self._context(run)
        return tuple(sign_content(one, index, context, content) for index, one in self._certifiers)

    def valid_rows(
        self, run: bytes, content: bytes, rows: Iterable[tuple[int, bytes]]
    ) -> dict[int, bytes]:
        """On the host: the signatures among these that signers have made, by index."""
        signers, context = self._signers, self._context(run)
        return dict(row for row in rows if is_valid_row(signers, context, content, row))

    def objects_to_send(self, run: bytes, data: bytes) -> list[bytes]:
        """On the host: a certified object, after the object with its ML-DSA-44 signature if any."""
        if self._quantum is None:
            return [data]
        content, _ = split_certificate(data)
        return [sign_quantum(self._quantum, self._context(run), content), data]

    def check_certificate(
        self, run: bytes, content: bytes, certificate: Certificate, beside: Sequence[bytes] = ()
    ) -> None:
        """On a node: check that enough signers have signed; `beside` has ML-DSA-44 signatures."""
        signers, context = self._signers, self._context(run)
        verify_certificate(signers, context, content, certificate)
        verify_beside(signers, context, content, beside)

    def sign_receipt(self, node: str, run: bytes, body: bytes) -> bytes:
        """On the host: the body that carries a receipt or settings for a node."""
        to = self._member_list.find(node).fingerprint
        return sign_body(self._own, self._context(run), to, body)

    def sign_announce(self, body: bytes) -> bytes:
        """On the host: the body that carries an announce, or a release's offer, for all nodes."""
        context = self._context_for_all(body)
        return sign_body(self._own, context, self._sealing.broadcast_name, body)

    def open_body(self, run: bytes, address: int, body: bytes) -> bytes:
        """On a node: the content of a signed body; an unsigned body as it is, if it may be."""
        if body[0] == SIGNED:
            is_for_all = address == BROADCAST
            # The name of the broadcast key is signed too: else a member that holds the present key
            # could seal an announce again that was signed for an earlier key.
            group = self._sealing.broadcast_name
            to = group if is_for_all else self._own.public.fingerprint
            context = self._context(NO_RUN if address == UNASSIGNED else run)
            if is_for_all:
                context = self._context_for_all(body[SIGNED_HEAD:])
            return open_signed(self._members.find(HOST), context, to, body)
        if address == BROADCAST and body[0] not in (fragments.KIND, SYMBOL):
            raise WireError("signature", "a broadcast message must be signed")
        message = control.read_control(body) if body[0] == control.KIND else None
        if isinstance(message, Announce | Receipt | Settings):
            raise WireError("signature", "an announce, a receipt or settings must be signed")
        return body

    def may_train(self, node: str) -> bool:
        """On the host: whether a node is a member of the fleet, in a role that trains."""
        try:
            return self._member_list.find(node).role in (Role.NODE, Role.GATEWAY)
        except WireError:
            return False

    def may_add_up(self, node: str) -> bool:
        """On the host: whether a node may be an aggregator."""
        return self._member_list.find(node).role is Role.GATEWAY

    def lacks(self, nodes: Collection[str]) -> bool:
        """On the host: whether a board that may train is none of these nodes."""
        return any(name not in nodes for name in self._member_list.boards())

    def read_notice(self, frame: bytes, now: float) -> int | HostRotated | None:
        """On a node: the kind of a notice of the host for this node, or the host's new key.

        None for what tells nothing new. WireError.
        """
        member_list = self._member_list
        if not notices.is_rotation(frame):
            own = self._own.public.fingerprint
            notices.check_notice(frame, member_list.host, member_list.fleet, own)
            return notices.REVOKED
        follow = partial(member_list.follow_host, signers=self._rule)
        is_new = self._rotations.take(frame, follow, now)
        return HostRotated(member_list.hosts) if is_new else None

    def question(self) -> bytes | None:
        """On a node: the frame that asks whether the host knows it; None where it is no board."""
        if self._own.public.role is not Role.NODE:
            return None
        body = write_list_request(self._own, self._member_list.fleet, 0)
        return seal_open(Header(UNASSIGNED, 0), body)

    @property
    def host_rotations(self) -> tuple[bytes, ...]:
        return self._member_list.hosts.rotations

    @property
    def list_number(self) -> int:
        """The number of the host's membership list; on a node, the highest announced one."""
        return self._member_list.number

    def note_list_number(self, number: int) -> bool:
        """On a node: note what the host has announced; True for a new number, to be stored."""
        is_new = number > self._member_list.number
        self._member_list.number = max(number, self._member_list.number)
        return is_new

    def claim_list_number(self, number: int) -> None:
        """On the host: note that a node has seen this number of its list."""
        self._member_list.claim(number)

    def _context_for_all(self, body: bytes) -> SigningContext:
        """The context of a broadcast: an offer is for boards of any model."""
        context = self._context(NO_RUN)
        return replace(context, model_hash=NO_MODEL) if body[:1] == bytes((OFFER,)) else context

    def _context(self, run: bytes) -> SigningContext:
        return SigningContext(self._member_list.fleet, run, self._model_hash)


MessageAuthenticator = OpenAuthenticator | KeyedAuthenticator


@dataclass(frozen=True, slots=True)
class SecurityLayer:
    """The seals of an end's frames, and the signatures of its messages."""

    sealing: Sealing
    authenticator: MessageAuthenticator


OPEN = SecurityLayer(OpenSealing(), OpenAuthenticator())


def make_security_layer(
    own: Identity,
    member_list: MemberList,
    model_hash: bytes,
    entropy: bytes,
    counter: int,
    state: SealingState,
    signers: Signers | None = None,
    cosigners: Sequence[Identity] = (),
    *,
    others_sign: bool = False,
    aggregator: str = "",
    is_aggregator: bool = False,
) -> SecurityLayer:
    """The security of a host or a node with keys, end to end.

    `entropy` is 32 random bytes of this process, `counter` the first seal counter that was never
    reserved, `state` the stored state of earlier processes. Without `signers` the host alone
    signs; `cosigners` are the other signers whose keys the host has. SecurityError if too few,
    unless `others_sign`, too. `aggregator` is the one that a board has in place of the host;
    `is_aggregator`: this end is one, towards its boards.
    """
    hub = None if own.public.role is Role.HOST or is_aggregator else HOST
    members = MembersBehindGateway(member_list, aggregator) if aggregator else member_list
    sealing = KeyedSealing(own, members, SUITE_END, entropy, counter, state, hub=hub)
    signers = signers or Signers((member_list.host,))
    authenticator = KeyedAuthenticator(
        own,
        member_list,
        model_hash,
        sealing,
        signers,
        cosigners,
        others_sign=others_sign,
        members=members,
    )
    return SecurityLayer(sealing, authenticator)
