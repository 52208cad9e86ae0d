"""The keys of a process (host, gateway or node) and the members of its fleet.

A private identity is the secret key pair of one process. It is one line in a file that only the
file's owner may read, or in a systemd credential (`LoadCredential=ternmesh-identity:...`,
systemd.exec(5)).
"""

import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ternmesh.config import ConfigError, limits
from ternmesh.errors import SecurityError
from ternmesh.federated.events import SecurityChanged
from ternmesh.security.authenticator import OPEN, SecurityLayer, make_security_layer
from ternmesh.security.host_keys import write_host_rotation
from ternmesh.security.identity import (
    ENTROPY_SIZE,
    Identity,
    Role,
    identity_text,
    make_identity,
    parse_identity,
    parse_quantum,
)
from ternmesh.security.key_derivation import SUITE_HOP
from ternmesh.security.keyed_sealing import HUBS, KeyedSealing
from ternmesh.security.membership import (
    HOST,
    MemberList,
    MemberListState,
    MembersBehindGateway,
    found_fleet,
)
from ternmesh.security.sealing import Change
from ternmesh.security.session import EPHEMERAL_SIZE
from ternmesh.security.signatures import QUANTUM_FRAMES, QUANTUM_SIZE, Signers, choose_signers
from ternmesh.wire.global_update import SIGNERS_MAX
from ternmesh_service.config_file import anchored
from ternmesh_service.identity_file import (
    CREDENTIALS,
    IDENTITY,
    read_host_file,
    read_identity_file,
    replace_host_file,
)
from ternmesh_service.status import SecurityStatus
from ternmesh_store.security_store import SecurityStore
from ternmesh_store.state_file import SECURITY, StateFile
from ternmesh_store.store import END, HOP
from transports.link_config import LinkConfig

CREDENTIAL = "ternmesh-identity"  # the name of the systemd credential
SUPERSEDED = (
    "an earlier key of this host, and boards have taken a newer one: is its state_dir an old copy? "
    "Bring a copy back that was made after `ternmesh enrol rotate`"
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SecurityConfig:
    """The `[security]` table.

    Global updates and releases count when `threshold` of `signers` have signed them.

    >>> SecurityConfig(threshold=1).quantum_on_radio
    False
    """

    # For a broker on another machine, insecure mode needs this and --insecure.
    insecure: bool = False
    identity_file: str | None = None
    signers: tuple[str, ...] = ()  # public identities; by default only the host's
    threshold: int = field(default=1, metadata=limits(1, SIGNERS_MAX))
    signer_files: tuple[str, ...] = ()  # on the host: further private identities that sign
    quantum: str = ""  # an ML-DSA-44 key of the host, whose signature is also required
    quantum_on_radio: bool = False

    def path(self, folder: Path) -> Path:
        """Return the file of the private identity; `folder` is the state folder."""
        credentials = os.environ.get(CREDENTIALS)
        if self.identity_file is not None:
            return anchored(self.identity_file, folder, "security.identity_file")
        if credentials is not None and (Path(credentials) / CREDENTIAL).exists():
            return Path(credentials) / CREDENTIAL
        return folder / IDENTITY

    def check(self, *, has_radio: bool) -> None:
        """Raise ConfigError if the signers' rule cannot be met or costs too much airtime."""
        most = max(1, len(self.signers))
        if len(set(self.signers)) != len(self.signers) or self.threshold > most:
            raise ConfigError(
                f"security.threshold is {self.threshold}: name at least as many security.signers, "
                "each once"
            )
        if self.quantum and has_radio and not self.quantum_on_radio:
            raise ConfigError(
                f"security.quantum adds {QUANTUM_SIZE:,} bytes to every global update, "
                f"{QUANTUM_FRAMES} radio frames of 222 bytes: leave it out, or set "
                "security.quantum_on_radio = true too"
            )
        try:
            where = "signers"
            for line in self.signers:
                parse_identity(line)
            where = "quantum"
            if self.quantum:
                parse_quantum(self.quantum)
        except SecurityError as error:
            raise ConfigError(f"security.{where}: {error}") from error


class Keyring:
    """The keys of one running process.

    Open `state` before you call `open`. What `record` writes is durable after the next commit of
    `state`.
    """

    # The groups of tables that the process needs to start.
    must_keep: tuple[str, ...] = (SECURITY,)

    def __init__(self, state: StateFile, config: SecurityConfig) -> None:
        self.state = state
        self.store = SecurityStore(state)
        self.has_voters = False  # other hosts of this fleet sign with this one
        self._config = config
        self._path = config.path(state.folder)
        self._own: Identity | None = None
        self._member_list: MemberList | None = None
        self._sealings: dict[str, KeyedSealing] = {}  # by layer

    def open(self) -> None:
        """Read the identity and the fleet. Raises SecurityError or StoreError."""
        self._own = read_identity_file(self._path)
        self._member_list = self.store.member_list()
        self._take_over()

    @property
    def own(self) -> Identity:
        assert self._own is not None, "open the keyring first"
        return self._own

    @property
    def has_fleet(self) -> bool:
        """Whether this process belongs to a fleet."""
        return self._member_list is not None

    @property
    def member_list(self) -> MemberList:
        """The members of the fleet. Raises SecurityError if this process belongs to no fleet."""
        if self._member_list is None:
            is_host = self.own.public.role is Role.HOST
            how = "found one with `ternmesh enrol identity`" if is_host else "see `ternmesh enrol`"
            raise SecurityError(f"{self.own.public.name} belongs to no fleet yet: {how}")
        return self._member_list

    @property
    def signers(self) -> Signers:
        """The keys that must sign global updates and releases. Raises SecurityError."""
        config = self._config
        hosts = self.member_list.hosts
        chosen = choose_signers(hosts.present, config.signers, config.threshold, config.quantum)
        return chosen.seated(hosts.present, hosts.before)

    def twin(self, state: StateFile) -> "Keyring":
        """The same keys and members for another session, whose state is in another open file."""
        twin = Keyring(state, self._config)
        twin._path, twin._own = self._path, self._own
        # A list of its own: a number that is announced there is not that of a list that came.
        twin._member_list = MemberList(self.member_list.state)
        return twin

    def security(
        self,
        name: str,
        model_hash: bytes,
        counter: int,
        *,
        aggregator: str = "",
        is_aggregator: bool = False,
    ) -> SecurityLayer:
        """Return the security layer of the host or node `name`; see `make_security_layer`.

        Raises SecurityError if the keys belong to another name.
        """
        self._check_name(name)
        self._check_host()
        security = make_security_layer(
            self.own,
            self.member_list,
            model_hash,
            os.urandom(EPHEMERAL_SIZE),
            counter,
            self.store.sealing(END),
            self.signers,
            self._cosigners(),
            others_sign=self.has_voters,
            aggregator=aggregator,
            is_aggregator=is_aggregator,
        )
        assert isinstance(security.sealing, KeyedSealing)
        self._sealings[END] = security.sealing
        return security

    def hop(self, name: str, counter: int, gateway: str) -> KeyedSealing:
        """Return the sealing of one radio link; see `HopKeys`. Raises SecurityError."""
        self._check_name(name)
        hub = None if self.own.public.role in HUBS else HOST
        sealing = self._sealings[HOP] = KeyedSealing(
            self.own,
            MembersBehindGateway(self.member_list, gateway) if gateway else self.member_list,
            SUITE_HOP,
            os.urandom(EPHEMERAL_SIZE),
            counter,
            self.store.sealing(HOP),
            hub=hub,
        )
        return sealing

    def _cosigners(self) -> list[Identity]:
        folder = self.state.folder
        return [read_identity_file(folder / name) for name in self._config.signer_files]

    def _check_host(self) -> None:
        """Raise SecurityError on a host whose key is not that of the fleet."""
        if self.own.public.role is not Role.HOST or self.member_list.host == self.own.public:
            return
        if self.own.public.fingerprint in self.member_list.hosts.before:
            raise SecurityError(f"{self._path} has {SUPERSEDED}")
        raise SecurityError(
            f"the fleet in {self.store.path} has a host with other keys than {self._path}: "
            "bring that identity back"
        )

    def _check_name(self, name: str) -> None:
        own = self.own.public.name
        if own != name:
            raise SecurityError(f"{self._path} is the identity of {own}, not {name}")

    def record(self, event: object) -> None:
        """Write the changes of the sealing state in `event`, if it has any."""
        if isinstance(event, SecurityChanged):
            self.store.record(END, event.changes)

    def adopt(self, state: MemberListState) -> None:
        """Join a fleet. Raises SecurityError if this process belongs to another fleet."""
        if self._member_list is not None and self._member_list.fleet != state.fleet:
            name = self.own.public.name
            raise SecurityError(
                f"{name} belongs to another fleet: to leave it, rename {self.store.path}, and "
                "`identity` stays"
            )
        if self._member_list is None:
            self._member_list = MemberList(state)
            self.keep_member_list()

    def leave(self) -> None:
        """Belong to no fleet, until the next one is adopted."""
        self._member_list = None

    def found(self, name: str) -> None:
        """On a host: found its fleet, where there is none yet. Raises SecurityError."""
        earlier = read_host_file(self._path)
        self.adopt(found_fleet(name, earlier or self.own.public))

    def check_fleet(self, name: str) -> None:
        """Raise SecurityError if the configured fleet `name` is not the fleet of the keys."""
        member_list = self.member_list
        if found_fleet(name, member_list.hosts).fleet != member_list.fleet:
            raise SecurityError(
                f"link.fleet is {name!r}, and the keys in {self.store.path} are for a fleet of "
                "another name: write that name, or enrol again for this fleet"
            )

    def learn(self, data: bytes) -> bool:
        """Store the membership list that the host has signed; True if it has changed anything.

        Raises SecurityError.
        """
        if not self.member_list.learn(data):
            return False
        self.keep_member_list()
        self.rekey()
        return True

    # Rotation of the host's key: one file changes at once, and everything else follows from it.

    def rotate_host(self) -> None:
        """On a host that does not run: change to a new key. Raises SecurityError."""
        if str(self._path.parent) == os.environ.get(CREDENTIALS):
            raise SecurityError(
                f"systemd holds {self._path}: make [security] identity_file name the file that "
                "LoadCredential= reads, and run this again"
            )
        self._check_host()
        hosts, fleet, signers = self.member_list.hosts, self.member_list.fleet, self.signers
        new = make_identity(HOST, Role.HOST, os.urandom(ENTROPY_SIZE))
        keys = (self.own, *self._cosigners())
        rotation = write_host_rotation(hosts.present, new, fleet, signers, keys)
        replace_host_file(self._path, new, hosts.follow(rotation, fleet, signers))
        self.open()

    def _take_over(self) -> None:
        """On a host: make the fleet follow the identity file, also after a kill in between."""
        hosts = read_host_file(self._path)
        members = self._member_list
        if hosts is not None and members is not None and members.host.fingerprint in hosts.before:
            members.take_over(hosts)
            self.store.forget_peers()  # sessions of the old key
            self.keep_member_list()

    def follow_host(self, rotation: bytes) -> bool:
        """Store the host's next key; False if the rotation changes nothing. Raises WireError."""
        if not self.member_list.follow_host(rotation, self.signers):
            return False
        self.keep_member_list()
        return True

    def is_strange(self, peer: str) -> bool:
        """Whether a peer's last frame was sealed for other keys than this end has."""
        sealing = self._sealings.get(END)
        return sealing is not None and sealing.is_strange(peer)

    def keep_member_list(self) -> None:
        self.store.keep_member_list(self.member_list.state)
        self.state.checkpoint()  # damage to the WAL must not bring a revoked member back

    def rekey(self) -> None:
        """Seal broadcasts with a new key, which revoked members do not receive."""
        for sealing in self._sealings.values():
            sealing.rekey()

    def status(self) -> SecurityStatus:
        return SecurityStatus(
            mode="keys",
            fingerprint=self.own.public.fingerprint.hex(),
            fleet=self.member_list.fleet.hex(),
            host=identity_text(self.member_list.host),
            host_before=tuple(sorted(old.hex() for old in self.member_list.hosts.before)),
            clones=dict(sum((Counter(s.clones) for s in self._sealings.values()), Counter())),
        )


@dataclass(frozen=True, slots=True)
class HopKeys:
    """The keys of a radio link between neighbours; see `transports.reliable.LinkKeys`."""

    keyring: Keyring
    name: str  # of this process
    gateway: str = ""  # the gateway of a board whose radio does not reach the host directly

    def sealing(self, counter: int) -> KeyedSealing:
        """Return the sealing. `counter` is the first frame counter that was never reserved."""
        return self.keyring.hop(self.name, counter, self.gateway)

    def record(self, changes: Iterable[Change]) -> None:
        self.keyring.store.record(HOP, changes)


class NoKeyring:
    """The keyring of insecure mode: no keys, and no peer is checked.

    See `Keyring` for the methods.
    """

    must_keep: tuple[str, ...] = ()

    def open(self) -> None:
        """Do nothing: there are no keys to read."""

    def check_fleet(self, name: str) -> None:
        """Do nothing: every fleet is accepted."""

    def twin(self, _state: StateFile) -> "NoKeyring":
        return self

    def security(self, name: str, model_hash: bytes, counter: int, **_: object) -> SecurityLayer:  # noqa: ARG002
        return OPEN

    def record(self, event: object) -> None:
        """Do nothing: there is no state to store."""

    def status(self) -> SecurityStatus:
        return SecurityStatus()


def hop_keys(keyring: Keyring | NoKeyring, name: str, gateway: str = "") -> HopKeys | None:
    """Return the keys of a radio link; None in insecure mode."""
    return HopKeys(keyring, name, gateway) if isinstance(keyring, Keyring) else None


def choose_keyring(
    state: StateFile, config: SecurityConfig, link: LinkConfig, *, insecure: bool
) -> Keyring | NoKeyring:
    """Return the keyring; one without keys if `insecure` (--insecure) is set.

    Raises ConfigError if --insecure is set, the broker of `link` is on another machine and the file
    does not set `insecure` too.
    """
    if not insecure:
        return Keyring(state, config)
    if not link.is_loopback and not config.insecure:
        raise ConfigError(
            "--insecure is for brokers on this machine: elsewhere anyone who reaches the broker or "
            "the radio could send in any node's name; if that is intended, set it in the file too: "
            "[security] insecure = true"
        )
    _log.warning("INSECURE: frames are not encrypted, and no peer is authenticated (--insecure)")
    return NoKeyring()


@contextmanager
def opened(
    state: StateFile, keyring: Keyring | NoKeyring, fleet: str, *groups: str
) -> Iterator[None]:
    """Open the state file, and the keys, which must be those of `fleet`, until the block ends.

    The tables of `groups` are needed besides those of the keys. Raises SecurityError or StoreError.
    """
    with closing(state):
        state.open(keep=(*keyring.must_keep, *groups))
        keyring.open()
        keyring.check_fleet(fleet)
        yield
