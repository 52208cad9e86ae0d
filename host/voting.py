"""How a host takes its seat among the voters of its fleet, and what it does until it leads."""

import math
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from host.config import AgreementConfig, HostConfig, read_seats
from host.council import Council
from host.voter_bus import PART_MAX, PARTS_MAX, VoterBus
from ternmesh.config import ConfigError
from ternmesh.errors import SecurityError, StateError, WireError
from ternmesh.federated.agreement.terms import VoterSettings
from ternmesh.federated.agreement.voter import Voter
from ternmesh.federated.agreement.voters import BFT, CRASH, make_voters
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.replica import PROPOSED_MAX, ProposedUpdate, check_copy, reproduce
from ternmesh.federated.state import HostSettings
from ternmesh.security.authenticator import KeyedAuthenticator, SecurityLayer
from ternmesh.security.identity import Identity, PublicIdentity
from ternmesh.security.membership import HOST
from ternmesh.security.primitives import verify
from ternmesh_service.identity_file import PROPOSAL, VOTER, VOTES, read_identity_file
from ternmesh_service.keyring import Keyring
from ternmesh_store.files import read_file, replace_private_file
from ternmesh_store.host_store import HostStore, StoredRun
from transports.link_config import LinkConfig, link_settings
from transports.mqtt.topics import TopicClient, same_broker

VOTES_MAX = 1 << 20  # bytes
BASE = struct.Struct("<I")
TERM_COUNTERS = 1 << 32  # seal counters of a term: those of a later one are above them
ARRIVALS_MAX = 1024  # messages of voters that wait
TURN = 64  # global updates of a leader where voters may lie
TIMEOUT_GROWS = 8  # times, at most, without a decision
ALIVE_SHARE = 5  # signs of life in a time-out


def read_own(config: HostConfig) -> Identity:
    """The key with which this host votes; ConfigError or SecurityError where it has none."""
    name, path = config.agreement.name, Path(config.state_dir, VOTER)
    if not path.exists():
        raise SecurityError(
            f"no key of voter {name} at {path}: restore its folder that `ternmesh enrol voters` "
            "made"
        )
    own = read_identity_file(path)
    if own.public != read_seats(config.agreement)[name]:
        raise ConfigError(f"{path} is another key than {name} has in agreement.voters: correct it")
    return own


@dataclass(frozen=True, slots=True)
class Voting:
    """What a voter needs of its host."""

    keyring: Keyring
    settings: HostSettings
    model_hash: bytes
    store: HostStore

    @contextmanager
    def seated(self, config: HostConfig, stored: StoredRun) -> Iterator[Council]:
        """This host's place among the voters, connected to them until the block ends.

        ConfigError or SecurityError where it has none.
        """
        agreement, folder = config.agreement, Path(config.state_dir)
        own, publics = read_own(config), read_seats(agreement)
        base = self._base(stored.state.version)
        if base and agreement.mode == BFT:
            raise ConfigError(
                "[agreement]: in the mode bft boards take nothing that one host alone has signed, "
                "so this run must end: begin another with --new-run, and copy that"
            )
        # Before the host has its own: the keyring gives the newest of these another broadcast key.
        security = self.keyring.security(HOST, self.model_hash, stored.state.counter)
        assert isinstance(security.authenticator, KeyedAuthenticator)
        topic = f"ternmesh/{config.link.fleet}/voters"
        brokers = [link for link in config.link.bearers().values() if link.url]
        clients = [_client(link, topic) for link in brokers]
        council = Council(
            voter=_voter(
                agreement,
                own,
                publics,
                stored.run + BASE.pack(base),
                folder / VOTES,
                idle_s=2 * self.settings.deadline_s + TIMEOUT_GROWS * agreement.timeout_s,
            ),
            base=base,
            bus=VoterBus(clients, topic, self.keyring.own),
            store=self.store,
            model_hash=self.model_hash,
            keep=partial(replace_private_file, folder / VOTES),
            keep_proposal=partial(replace_private_file, folder / PROPOSAL),
            reproduce=partial(self._reproduce, self.keyring, security),
            check_copy=partial(self._check_copy, stored, security),
            authenticator=security.authenticator,
            threshold=self.keyring.signers.needed,
            keyring=self.keyring,
            alive_s=agreement.timeout_s / ALIVE_SHARE,
        )
        with ExitStack() as stack:
            for client in clients:
                client.open()
                stack.callback(client.close)
            council.start(time.monotonic(), _read(folder / PROPOSAL, 3 * PROPOSED_MAX))
            yield council

    def _base(self, version: int) -> int:
        """The version of the run when it got voters, stored with the run."""
        if self.store.base is None:
            self.store.keep_base(version)
            self.store.commit()
        return self.store.base or 0

    def _reproduce(
        self, keyring: Keyring, security: SecurityLayer, item: ProposedUpdate, stored: StoredRun
    ) -> tuple[HostProtocol, bytes]:
        return reproduce(
            item,
            plan=stored.plan,
            settings=self.settings,
            model_hash=self.model_hash,
            run=stored.run,
            state=stored.state,
            # Where voters may lie, each looks at its own list alone, however it was changed.
            members=0 if self.settings.bears_liars else keyring.member_list.number,
            security=security,
        )

    def _check_copy(self, own: StoredRun, security: SecurityLayer, found: StoredRun) -> None:
        if (found.run, found.plan) != (own.run, own.plan):
            raise WireError("agreement", "a copy is of another run")
        check_copy(
            found.state,
            plan=own.plan,
            settings=self.settings,
            model_hash=self.model_hash,
            run=own.run,
            security=security,
            known=own.state.chain,
        )


def _voter(
    config: AgreementConfig,
    own: Identity,
    publics: Mapping[str, PublicIdentity],
    run: bytes,
    votes: Path,
    *,
    idle_s: float,
) -> Voter:
    """The voter of this process, which remembers its votes; ConfigError."""
    voters = make_voters(run, publics, config.mode)

    def is_signed(index: int, message: bytes, signature: bytes) -> bool:
        try:
            verify(publics[voters.names[index]].verify, signature, message)
        except (WireError, IndexError):
            return False
        return True

    new_voter = partial(
        Voter,
        voters=voters,
        index=voters.names.index(config.name),
        settings=VoterSettings(
            config.timeout_s,
            TIMEOUT_GROWS * config.timeout_s,
            # A backup has no votes, so where they are here, they are not an old copy. A liar's disk
            # may be anything.
            trusts_disk=config.mode == CRASH and votes.exists(),
            # Boards may have nothing to send; but a liar may only say so.
            idle_s=math.inf if config.mode == CRASH else idle_s,
            turn=None if config.mode == CRASH else TURN,
        ),
        sign=own.sign,
        verify=is_signed,
        rng=np.random.default_rng(),
    )
    try:
        stored = _read(votes, VOTES_MAX)
        return Voter.restored(stored, **new_voter.keywords) if stored else new_voter()
    except StateError as error:
        how = "move it away if the run or the voters have changed"
        raise ConfigError(f"{votes}: {error}; {how}") from error


def _read(path: Path, size_max: int) -> bytes:
    """The content of a file; nothing where there is none."""
    return read_file(path, size_max) if path.exists() else b""


def _client(config: LinkConfig, topic: str) -> TopicClient:
    # A copy of a run is written faster than a link carries its parts.
    limits = {"payload_max": 2 * PART_MAX, "arrivals_max": ARRIVALS_MAX, "queue_max": PARTS_MAX}
    return TopicClient(same_broker(link_settings(config, HOST), topics=(topic,), **limits))


def as_leader(stored: StoredRun, council: Council) -> StoredRun:
    """The run as the leader of a term goes on with it: its seals come after all earlier ones."""
    counter = max(stored.state.counter, council.voter.term * TERM_COUNTERS)
    return replace(stored, state=replace(stored.state, counter=counter))
