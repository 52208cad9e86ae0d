"""This host among the voters of its fleet: it follows what they decide, and leads when asked to.

The voters share the host's identity, so to boards they are one host, which starts again where
another one takes over. A voter that follows keeps no contact with boards: it makes each proposal of
the leader again, from the state that it has on disk, and votes for what comes out the same. The
leader publishes a global update once it is decided; then it is on the disks of a quorum.

Version 1 of the agreement is the global update after `base`, the version of the run when it got
voters.
"""

import hashlib
import logging
import os
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import cbor2

from host.voter_bus import NAME_SIZE, Matter, VoterBus
from ternmesh.errors import WireError
from ternmesh.federated import events
from ternmesh.federated.agreement import events as asked
from ternmesh.federated.agreement.messages import (
    SIGNATURE_SIZE,
    Commit,
    check_certificate,
    parse_certificate,
    plain_certificate,
)
from ternmesh.federated.agreement.voter import Voter
from ternmesh.federated.agreement.voters import BFT
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.replica import (
    OtherStateError,
    ProposedUpdate,
    made_by,
    made_hash,
    proposal_hash,
    read_proposal,
    take_over,
    write_proposal,
)
from ternmesh.security.authenticator import KeyedAuthenticator
from ternmesh.security.membership import fleet_content, write_fleet
from ternmesh.timers import RateLimiter
from ternmesh.wire.control import read_cbor, read_plain
from ternmesh.wire.global_update import Certificate, split_certificate
from ternmesh_service.keyring import Keyring
from ternmesh_service.status import AgreementStatus
from ternmesh_store.database import StoreError
from ternmesh_store.host_store import HostStore, StoredRun, read_copy

KEPT = 4  # proposals beside those that are needed now
ROWS_MAX = 64  # of a certificate, that are kept until they are checked
ASK_S = 1.0  # between two questions for the same thing
COPY_S = 5.0  # between two copies that this voter gives: they are long, and liars ask for them
LISTS_S = 3600.0  # the longest wait before a list of the same number is asked for again
TO_JUDGE_MAX = 8  # proposals that wait for what comes before them
TIMED_MAX = 100  # decisions whose times are kept
REQUESTS_MAX = 16  # of other voters' owners that wait here
ANSWER_S = 8.0  # to wait for the host that leads
TURN_S = 0.02  # between two looks for its answer
PATIENCE = 10  # signs of life that a voter may miss until it counts as away

# The index of a voter, the number and hash of its list of members, and how requests to it begin
HERE = struct.Struct("<BI4s8s")

_log = logging.getLogger(__name__)

# Makes a proposal again, from the stored run; WireError.
Reproduce = Callable[[ProposedUpdate, StoredRun], tuple[HostProtocol, bytes]]
# Raises WireError for a copy of another voter's run that no signers have certified.
CheckCopy = Callable[[StoredRun], None]


@dataclass(slots=True)
class Council:
    """The voter of this process with what it needs: a bus, the store, and a way to reproduce.

    `keep` puts the voter's own state on disk, and `keep_proposal` the newest proposal that it
    agrees to: else none might have it after all have lost their power. `threshold` signatures make
    a certificate. `turn` is called often, from the thread of the store, and never while that has
    uncommitted changes.
    """

    voter: Voter
    base: int
    bus: VoterBus
    store: HostStore
    model_hash: bytes
    keep: Callable[[bytes], None]
    keep_proposal: Callable[[bytes], None]
    reproduce: Reproduce
    check_copy: CheckCopy
    authenticator: KeyedAuthenticator
    keyring: Keyring
    threshold: int
    alive_s: float
    host: HostProtocol | None = None  # that serves the boards, while this voter leads
    heard: dict[int, float] = field(default_factory=dict)  # when, by voter
    # Names and requests of owners of other voters, for the host of this process while it leads
    requests: deque[tuple[bytes, dict[str, Any]]] = field(
        default_factory=lambda: deque(maxlen=REQUESTS_MAX)
    )
    _nonce: bytes = b""  # of the next request: who repeats an old one has another
    _nonces: dict[int, bytes] = field(default_factory=dict)  # of the other voters
    _answers: dict[bytes, dict[str, Any]] = field(default_factory=dict)  # that `pass_on` waits for
    _newest_members: int = -1  # the number of a list that another one has, and the owner was told
    _is_doubtful: bool = False  # the leader's state is another than this one
    _own: bytes = b""  # the hash of the newest proposal of `host`
    _proposals: dict[bytes, bytes] = field(default_factory=dict)  # by hash, the newest
    _made: dict[bytes, HostProtocol] = field(default_factory=dict)  # of these, and `awaits` them
    _to_judge: dict[bytes, int] = field(default_factory=dict)  # versions, by hash
    _decided: deque[tuple[int, bytes]] = field(default_factory=deque)  # and not applied yet
    # Of the certificate of the next global update, with the signer's index; not all are checked
    _rows: set[tuple[int, bytes]] = field(default_factory=set)
    _limits: RateLimiter = field(default_factory=lambda: RateLimiter(ASK_S))
    # Two lists may not fit together: one name with two keys
    _lists: RateLimiter = field(default_factory=lambda: RateLimiter(ASK_S, LISTS_S))
    _copies: RateLimiter = field(default_factory=lambda: RateLimiter(COPY_S))
    _took_s: deque[float] = field(default_factory=lambda: deque(maxlen=TIMED_MAX))
    _proposed_at: float = 0.0
    _alive_at: float = 0.0
    _led_term: int = -1  # in which `host` began

    @property
    def version(self) -> int:
        """Of the newest global update here."""
        return self.store.version if self.host is None else self.host.version

    @property
    def bears_liars(self) -> bool:
        """Whether no single voter decides who is a member, who is muted, and what is undone."""
        return self.voter.voters.mode == BFT

    @property
    def _members(self) -> int:
        return self.keyring.member_list.number

    def start(self, now: float, kept: bytes = b"") -> None:
        """Begin, or go on after a restart, with the proposals that were kept."""
        self._nonce = os.urandom(NAME_SIZE)
        found = read_plain(kept) if kept else []
        is_list = all(type(data) is bytes for data in found)  # of an older version it is a proposal
        for data in found if is_list else [kept]:
            self._keep_proposal(data)
        decided = self.voter.decided
        if decided is not None and self.base + decided.version > self.version:
            self._decided.append((decided.version, decided.digest))
        self._do(self.voter.start(now))

    def turn(self, now: float) -> None:
        """Take what has arrived, and do what is due."""
        for matter, body in self.bus.receive():
            try:
                self._receive(matter, body, now)
            except (StoreError, OSError):  # the disk's: what was decided would be lost
                raise
            except Exception as error:  # noqa: BLE001  (what a lying voter says may raise anything)
                _log.debug("a message of a voter is refused: %r", error)
        if now >= self._alive_at:
            self._alive_at = now + self.alive_s
            here = self.voter.index, self._members, self._list_hash(), self._nonce
            self.bus.send(Matter.HERE, HERE.pack(*here))
        self._do(self.voter.tick(now))
        for digest, version in [*self._to_judge.items()][-TO_JUDGE_MAX:]:
            if self.base + version <= self.version:
                del self._to_judge[digest]
            else:
                self._judge(digest, now)
        while self._decided and self._apply(*self._decided[0], now):
            self._decided.popleft()
        first = self._decided[0][0] if self._decided else self.voter.version + 1
        if self.version < self.base + min(self.voter.version, first - 1):
            self._want_copy(now)  # of versions that were skipped

    @property
    def leader(self) -> str:
        """Who leads in the present term."""
        return self.voter.voters.names[self.voter.voters.leader(self.voter.term)]

    def can_lead(self, now: float) -> bool:
        """Whether this voter may begin to serve the boards."""
        is_up_to_date = self.version == self.base + self.voter.version and not self._decided
        return self.voter.can_propose and is_up_to_date and self._is_connected(now)

    def is_deposed(self, now: float) -> bool:
        """Whether another one leads now, something else was decided, or too few are heard."""
        is_other = any(digest != self._own for _, digest in self._decided)
        is_other |= self.voter.term != self._led_term
        return not self.voter.is_leader or is_other or not self._is_connected(now)

    def _is_connected(self, now: float) -> bool:
        return len(self.missing(now)) <= self.voter.voters.count - self.voter.voters.quorum

    def status(self, now: float) -> AgreementStatus:
        """What the owner sees."""
        voters, took = self.voter.voters, sorted(self._took_s)
        return AgreementStatus(
            name=voters.names[self.voter.index],
            mode=voters.mode,
            term=self.voter.term,
            leader=self.leader,
            voters=voters.names,
            missing=tuple(self.missing(now)),
            needed=voters.quorum,
            decisions=len(took),
            decision_mean_s=sum(took) / len(took) if took else None,
            decision_p95_s=took[int(0.95 * len(took))] if took else None,
        )

    def missing(self, now: float) -> list[str]:
        """The other voters of which nothing was heard lately."""
        since = now - PATIENCE * self.alive_s
        names = enumerate(self.voter.voters.names)
        others = ((index, name) for index, name in names if index != self.voter.index)
        return [name for index, name in others if self.heard.get(index, since - 1) < since]

    def pass_on(self, request: Mapping[str, Any], clock: Callable[[], float]) -> dict[str, Any]:
        """The answer of the host that leads to an owner's request; `turn` goes on meanwhile."""
        leader = self.voter.voters.leader(self.voter.term)
        name = self._nonces.get(leader, b"") + os.urandom(NAME_SIZE)
        self.bus.send(Matter.REQUEST, cbor2.dumps([name, dict(request)]))
        self._answers[name], until = {}, clock() + ANSWER_S
        while not self._answers[name] and clock() < until:
            self.turn(clock())
            time.sleep(TURN_S)
        late = {"error": f"{self.leader} leads, and has not answered: ask again"}
        return self._answers.pop(name) or late

    # What the leader does

    def lead(self, host: HostProtocol) -> None:
        """Serve the boards with this host from now on, until `host` is None again."""
        self.host, self._led_term = host, self.voter.term
        self._nonce, self._alive_at = os.urandom(NAME_SIZE), 0.0
        self.requests.clear()

    def answer(self, name: bytes, answer: Mapping[str, Any]) -> None:
        """Answer one of `requests`."""
        self.bus.send(Matter.ANSWER, cbor2.dumps([name, dict(answer)]))

    def propose(self, made: events.Proposed, now: float) -> None:
        """Ask the voters for a global update that `host` has made."""
        host = self.host
        assert host is not None
        boards = [
            node
            for _, node in sorted(host.nodes.items())
            if node.counted is not None or not host.is_excluded(node.name)
        ]
        item = ProposedUpdate(
            run=host.run,
            version=made.version,
            before=host.global_hash,
            members=0 if self.bears_liars else host.channel.authenticator.list_number,
            muted=tuple(sorted(host.combiner.muted)),
            returns_to=made.returns_to,
            joined=tuple((node.address, node.name, node.samples) for node in boards),
            bodies=self.store.bodies() if made.returns_to is None else (),
            state=b"",
            made=b"",
        )
        stored = self.store.load(self.model_hash)
        assert stored is not None
        try:
            again, state = self.reproduce(item, stored)
        except WireError as error:  # of a round that this voter cannot stand by
            _log.warning("version %d is given up: %s", made.version, error)
            self.store.forget_open_round()
            self._led_term = -1  # it leads anew, from its disk
            return
        take_over(host, again)
        data = write_proposal(replace(item, state=state, made=made_by(again, stored.state)))
        self._store_proposal(data)
        self._own = self._keep_proposal(data)
        self._proposed_at = now
        self._made[self._own] = host
        self.bus.send(Matter.PROPOSAL, data)
        place = self.voter.term, made.version - self.base
        self._do(self.voter.propose(*place, self._own, now))

    # What arrives

    def _receive(self, matter: Matter, body: bytes, now: float) -> None:
        match matter:
            case Matter.AGREEMENT:
                self._do(self.voter.receive(body, now))
            case Matter.HERE:
                # An older version tells no more than the first two.
                index, members, found, nonce = HERE.unpack(body.ljust(HERE.size, b"\0"))
                self.heard[index], self._nonces[index] = now, nonce
                may_join = self.host is None and not self.bears_liars and members == self._members
                is_other = may_join and found not in (self._list_hash(), bytes(4))
                if is_other and self._lists.allow(found.hex(), now):
                    self._want_copy(now, members - 1)  # two leaders have changed it
                if members > max(self._members, self._newest_members):
                    self._want_members(members, now)
            case Matter.PROPOSAL_WANTED:
                if body in self._proposals and self._limits.allow(f"give {body.hex()}", now):
                    self.bus.send(Matter.PROPOSAL, self._proposals[body])
            case Matter.PROPOSAL:
                read_proposal(body)
                self._keep_proposal(body)
            case Matter.SIGNED:
                version, rows = read_plain(body)
                self._take_rows(version, {(index, signature) for index, signature in rows}, now)
            case Matter.REQUEST if self.host is not None:
                name, request = read_plain(body)
                if name[:NAME_SIZE] != self._nonce or len(name) != 2 * NAME_SIZE:
                    raise WireError("agreement", "a request is an older one that was repeated")
                self._nonce, self._alive_at = os.urandom(NAME_SIZE), now
                self.requests.append((name, dict(request)))
            case Matter.ANSWER:
                name, answer = read_plain(body)
                if name in self._answers:
                    self._answers[name] = dict(answer)
            case Matter.COPY_WANTED:
                version, members = read_plain(body)
                is_behind = version < self.version or members < self._members
                if is_behind and self._copies.allow("give", now):
                    self._give_copy()
            case Matter.COPY:
                self._take_copy(*read_plain(body))

    def _keep_proposal(self, data: bytes) -> bytes:
        digest = proposal_hash(data)
        self._proposals[digest] = data
        needed = {self._own, *self._made, *self._to_judge, *(d for _, d in self._decided)}
        if self.voter.decided is not None:
            needed.add(self.voter.decided.digest)  # it shows that a copy is right
        others = [known for known in self._proposals if known not in needed]
        for oldest in others[:-KEPT]:
            del self._proposals[oldest]
        return digest

    def _store_proposal(self, data: bytes) -> None:
        """Put it on disk, beside that of the newest decision, which proves a copy."""
        decided = self.voter.decided
        before = self._proposals.get(decided.digest, data) if decided else data
        self.keep_proposal(cbor2.dumps([*{data, before}]))

    def _take_rows(self, version: int, rows: set[tuple[int, bytes]], now: float) -> None:
        """Keep signatures, or give those of a global update that is newest only elsewhere."""
        fit = all(type(index) is int and type(signed) is bytes for index, signed in rows)
        if not (fit and type(version) is int and version > 0):
            raise WireError("agreement", "a row of a certificate is an index and a signature")
        if version == self.version + 1 and len(self._rows | rows) <= ROWS_MAX:
            self._rows |= rows
        elif version <= self.version and len(rows) < self.threshold:
            known = self.store.certified(version)
            if known and self._limits.allow(f"sign {version}", now):
                certificate = split_certificate(known)[1]
                self.bus.send(Matter.SIGNED, cbor2.dumps([version, certificate]))

    def _list_hash(self) -> bytes:
        content = fleet_content(self.keyring.member_list.state)
        return hashlib.sha256(content).digest()[:4]

    def _give_copy(self) -> None:
        """Tell the list of members and, where it can be proved, all that this voter has."""
        fleet = write_fleet(self.keyring.own, self.keyring.member_list.state)
        decided, copy = self.voter.decided, [0, self._members, fleet, b"", b"", b""]
        if self.version == self.base:  # older than the voters: nobody has decided it
            copy = [self.base, self._members, fleet, self.store.copied(), b"", b""]
        elif decided is not None and self.version == self.base + decided.version:
            proposal = self._proposals.get(decided.digest)
            if proposal is not None:
                proof = proposal, cbor2.dumps(plain_certificate(decided), canonical=True)
                copy = [self.version, self._members, fleet, self.store.copied(), *proof]
        self.bus.send(Matter.COPY, cbor2.dumps(copy))

    def _take_copy(
        self, version: int, members: int, fleet: bytes, data: bytes, proposal: bytes, proof: bytes
    ) -> None:
        """Go on from what another voter has, where this one does not lead and is behind."""
        own = self.version - self._is_doubtful
        if self.host is not None or (version, members) < (own, self._members):
            return
        if not self.bears_liars:
            self.keyring.learn(fleet)
            own_list = fleet_content(self.keyring.member_list.state)
            if members == self._members and fleet[:-SIGNATURE_SIZE] != own_list:
                self.keyring.member_list.renumber()  # it has more than the other voter's
                self.keyring.keep_member_list()
        if version > own:
            found = read_copy(data, self.model_hash, self.base)
            if found.state.version != version:
                raise WireError("agreement", "a copy is of another version than it says")
            self.check_copy(found)
            if version > self.base:
                self._check_decided(version, made_hash(found.state), proposal, proof)
                self._store_proposal(proposal)
            self._is_doubtful = False
            self.store.take_copy(data)
            self.store.forget_open_round()  # nobody has decided that, nor who is muted
            if version > self.base:
                self.store.keep_muted(read_proposal(proposal).muted)
            self.store.commit()
            self._decided.clear()
            self._made.clear()
            self._keep_proposal(proposal)
            _log.info("took over global update %d from another voter", version)

    def _check_decided(self, version: int, made: bytes, proposal: bytes, proof: bytes) -> None:
        """Check that the voters have decided what a copy of a run has. Raises WireError."""
        decision = parse_certificate(read_cbor(proof))
        if decision is None:
            raise WireError("agreement", "nobody has decided what a copy of a run has")
        check_certificate(self.voter.voters, Commit, decision, self.voter.verify)
        decided = self.base + decision.version, decision.digest, read_proposal(proposal).made
        if decided != (version, proposal_hash(proposal), made):
            raise WireError("agreement", "the voters have decided another state than a copy has")

    # What the voter asks for

    def _do(self, wanted: Iterable[asked.Event]) -> None:
        for event in wanted:
            match event:
                case asked.VoterChanged():
                    self.keep(event.data)
                case asked.Broadcast():
                    self.bus.send(Matter.AGREEMENT, event.data)
                case asked.Judge():
                    self._to_judge[event.digest] = event.version
                case asked.Decided():
                    self._decided.append((event.version, event.digest))
                case asked.Led():
                    name = self.voter.voters.names[event.leader]
                    _log.info("term %d: %s leads", event.term, name)
                case asked.Evidence():
                    name = self.voter.voters.names[event.voter]
                    _log.error("the voter %s has signed two votes that exclude each other", name)

    def _judge(self, digest: bytes, now: float) -> None:
        """Make a proposal again as soon as it is here, and say whether that gives the same."""
        if self.host is not None:
            return  # it was deposed, and is about to end
        data = self._proposals.get(digest)
        if data is None:
            if self._limits.allow(f"want {digest.hex()}", now):
                self.bus.send(Matter.PROPOSAL_WANTED, digest)
            return
        if not self._limits.allow(f"judge {digest.hex()}", now):
            return
        version, item = self._to_judge[digest], read_proposal(data)
        stored = self.store.load(self.model_hash)
        is_behind = stored is None or self.base + version > stored.state.version + 1
        if is_behind:
            self._want_copy(now)  # of what comes before
            return
        if item.members > self._members and not self.bears_liars:
            self._want_copy(now)  # with the list of members
            return
        del self._to_judge[digest]
        is_valid = False
        try:
            if stored is None or self.base + version != stored.state.version + 1:
                raise WireError("agreement", "a proposal is of an older version")
            if self.bears_liars and (
                item.returns_to is not None or {*item.muted} != {*self.store.muted}
            ):
                raise WireError("agreement", "in the mode bft no voter mutes boards or goes back")
            made, _ = self.reproduce(item, stored)
            self._is_doubtful = False
            if made_by(made, stored.state) != item.made:
                raise WireError("agreement", "the same updates make another one here")
            self._store_proposal(data)
            self._made[digest] = made
            is_valid = True
        except (StoreError, OSError):
            raise
        except Exception as error:  # noqa: BLE001  (a lying voter's copy or proposal may raise anything)
            is_other = not isinstance(error, WireError) or isinstance(error, OtherStateError)
            self._is_doubtful |= is_other and not self._is_proven(stored)
            _log.warning("version %d is not agreed to: %s", self.base + version, error)
            if self._is_doubtful:
                self._want_copy(now)
        self._do(self.voter.judged(version, digest, is_valid, now))

    def _is_proven(self, stored: StoredRun | None) -> bool:
        """Whether the voters have decided just what this one has: then a proposal is wrong."""
        decided = self.voter.decided
        if stored is None or decided is None or self.base + decided.version != self.version:
            return False
        data = self._proposals.get(decided.digest)
        return data is not None and read_proposal(data).made == made_hash(stored.state)

    def _want_members(self, number: int, now: float) -> None:
        """Get a newer list of members; from the owner alone where voters may lie."""
        if self.bears_liars:
            self._newest_members = number
            _log.warning(
                "another voter has list %d of members, and this one %d: if you have changed it, "
                "bring it here by `ternmesh enrol export` and `import`",
                number,
                self._members,
            )
        elif self.host is None:
            self._want_copy(now)

    def _want_copy(self, now: float, members: int | None = None) -> None:
        if self._limits.allow("want a copy", now):
            wanted = self.version - self._is_doubtful, self._members if members is None else members
            self.bus.send(Matter.COPY_WANTED, cbor2.dumps(wanted))

    def _apply(self, version: int, digest: bytes, now: float) -> bool:
        """Take a decided global update as the newest; False while something for it is missing."""
        version += self.base
        if version <= self.version:
            return True
        if version > self.version + 1:
            return False
        made = self._made.get(digest)
        if made is None:  # it was decided without this voter, or before its last start
            if self._limits.allow(f"make {digest.hex()}", now):
                self._to_judge[digest] = version - self.base
                self._want_copy(now)  # nobody may have the proposal any more
            return False
        certificate = self._certificate(version, made, now)
        if certificate is None or (self.host is not None and made is not self.host):
            return False  # in the second case the host must end first: it was deposed
        if made is not self.host:
            self._record(read_proposal(self._proposals[digest]), made, certificate, now)
        else:
            self._took_s.append(now - self._proposed_at)
            made.agreed(certificate, now)
        self._made.clear()  # all that was made follows the global update before
        return True

    def _certificate(self, version: int, made: HostProtocol, now: float) -> Certificate | None:
        """Enough signatures of a global update; None while others are missing."""
        assert made.awaiting is not None
        content = made.awaiting.content
        own = self.authenticator.certify(made.run, content)
        rows = self.authenticator.valid_rows(made.run, content, {*self._rows, *own})
        self._rows = {*rows.items()}
        if self.threshold > 1 and self._limits.allow(f"signed {version}", now):
            self.bus.send(Matter.SIGNED, cbor2.dumps([version, own]))
        return tuple(sorted(rows.items())) if len(rows) >= self.threshold else None

    def _record(
        self, item: ProposedUpdate, made: HostProtocol, certificate: Certificate, now: float
    ) -> None:
        """Put a decided global update on disk, with what led to it."""
        made.agreed(certificate, now)
        self.store.forget_open_round()  # of a term in which this voter led
        for row in item.joined:
            self.store.record(events.NodeJoined(*row))
        for address, body in item.bodies:
            self.store.record(events.BodyAccepted(address, item.version - 1, body))
        while (event := made.next_event()) is not None:
            if isinstance(event, events.RoundOpened | events.GlobalUpdateMade):
                self.store.record(event)
        self.store.keep_muted(item.muted)
        self.store.commit()
