"""An end's own keys, and what it knows of its fleet: what a program is given to trust by.

The private identity is one line in a file that only its owner may read, or in a systemd credential
(`LoadCredential=ternmesh-identity:...`, systemd.exec(5)).
"""

import logging
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ternmesh.config import ConfigError, limits
from ternmesh.errors import TrustError
from ternmesh.swarm.events import TrustChanged
from ternmesh.trust.identity import (
    ENTROPY_SIZE,
    Identity,
    Role,
    identity_text,
    make_identity,
    parse_private,
    private_text,
)
from ternmesh.trust.keyed import HUBS, KeyedSealing
from ternmesh.trust.keys import SUITE_HOP
from ternmesh.trust.neighbours import Behind, read_fleet
from ternmesh.trust.notary import OPEN, Trust, make_trust
from ternmesh.trust.roster import HOST, Roster, RosterState, found_fleet, write_rotation
from ternmesh.trust.sealing import Change
from ternmesh.trust.session import INSTANCE_SIZE
from ternmesh.trust.signers import QUANTUM_FRAMES, QUANTUM_SIZE, choose_signers
from ternmesh.trust.signing import Signers
from ternmesh.wire.reference import SIGNERS_MAX
from ternmesh_store.files import sync_folder
from ternmesh_store.trust_store import END, HOP, TrustStore

IDENTITY, CREDENTIAL = "identity", "ternmesh-identity"
NEXT = ".next"  # behind the name of an identity file: the one that takes its place in a rotation
CREDENTIALS = "CREDENTIALS_DIRECTORY"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrustConfig:
    """The `[trust]` table. `insecure` repeats `--insecure`, which off loopback needs both.

    `threshold` of the identities in `signers` (public lines; the host's alone by default) stand
    for references and releases; besides, the host signs with the key in the line `quantum`. On the
    host `signer_files` are private identities with which it signs references beside its own.
    """

    insecure: bool = False
    identity_file: str | None = None
    signers: tuple[str, ...] = ()
    threshold: int = field(default=1, metadata=limits(1, SIGNERS_MAX))
    signer_files: tuple[str, ...] = ()
    quantum: str = ""
    quantum_on_radio: bool = False

    def path(self, folder: Path) -> Path:
        """Where the private identity is, for an end with this state folder."""
        credentials = os.environ.get(CREDENTIALS)
        if self.identity_file is not None:
            return folder / self.identity_file
        if credentials is not None and (Path(credentials) / CREDENTIAL).exists():
            return Path(credentials) / CREDENTIAL
        return folder / IDENTITY

    def check(self, *, has_radio: bool) -> None:
        """ConfigError where the rule about signers makes no sense, or costs more than is known."""
        if len(set(self.signers)) != len(self.signers) or self.threshold > max(
            1, len(self.signers)
        ):
            raise ConfigError(
                f"trust.threshold is {self.threshold}: name at least as many trust.signers, each "
                "once"
            )
        if self.quantum and has_radio and not self.quantum_on_radio:
            raise ConfigError(
                f"trust.quantum adds {QUANTUM_SIZE:,} bytes to every reference, {QUANTUM_FRAMES} "
                "radio frames of 222 bytes: leave it out, or say trust.quantum_on_radio = true too"
            )


def read_identity_file(path: Path) -> Identity:
    """The identity in a file; TrustError where others may read it, or where there is none."""
    try:
        is_credential = str(path.parent) == os.environ.get(CREDENTIALS)  # systemd guards those
        if path.stat().st_mode & 0o077 and not is_credential:
            raise TrustError(f"others may read {path}: chmod 600 it, or make a new identity")
        text = path.read_text("ascii", "replace")
    except OSError as error:
        raise TrustError(
            f"no identity at {path} ({error.strerror}): make one with `ternmesh enrol identity`, "
            "or start with --insecure to do without"
        ) from error
    return parse_private(text)


def make_identity_file(path: Path, name: str, role: Role) -> Identity:
    """A new identity in a file that was not there; TrustError where there is one."""
    identity = make_identity(name, role, os.urandom(ENTROPY_SIZE))
    unfinished = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        unfinished.unlink(missing_ok=True)
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(private_text(identity) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(unfinished, path)  # whole, and never over another one
        unfinished.unlink()
        sync_folder(path.parent)
    except OSError as error:
        raise TrustError(
            f"cannot write {path} ({error.strerror}): choose another folder"
        ) from error
    return identity


class Keyring:
    """The keys of one end while it runs: `open`, then `trust` once."""

    def __init__(self, folder: Path, config: TrustConfig) -> None:
        self._path, self.store = config.path(folder), TrustStore(folder)
        self._config, self._folder = config, folder
        self._next_path = self._path.with_name(self._path.name + NEXT)
        self._own: Identity | None = None
        self._next: Identity | None = None
        self._roster: Roster | None = None
        self._sealings: dict[str, KeyedSealing] = {}  # by layer

    def open(self) -> None:
        """Read the identity and take the store; TrustError or StoreError."""
        self._own = read_identity_file(self._path)
        self.store.open()
        self._roster = self.store.roster()
        self._next = read_identity_file(self._next_path) if self._next_path.exists() else None

    def close(self) -> None:
        """Give the store back."""
        self.store.close()

    @property
    def own(self) -> Identity:
        """The identity of this end."""
        assert self._own is not None, "open the keyring first"
        return self._own

    @property
    def has_fleet(self) -> bool:
        """Whether it belongs to a fleet."""
        return self._roster is not None

    @property
    def roster(self) -> Roster:
        """Its fleet; TrustError where it has none."""
        if self._roster is None:
            raise TrustError(
                f"{self.own.public.name} belongs to no fleet yet: `ternmesh enrol` says how"
            )
        return self._roster

    @property
    def signers(self) -> Signers:
        """Who stands for references and releases; TrustError."""
        config = self._config
        return choose_signers(self.roster.host, config.signers, config.threshold, config.quantum)

    def trust(self, name: str, model_hash: bytes, counter: int) -> Trust:
        """What the end called `name` is given; TrustError where these are another one's keys."""
        self._check_name(name)
        if name == HOST and self.roster.host != self.own.public:
            raise TrustError(
                f"the fleet in {self.store.path} has a host with other keys than {self._path}: "
                "bring the identity back, or begin a new fleet in another state_dir"
            )
        state, instance = self.store.sealing(END), os.urandom(INSTANCE_SIZE)
        others = [read_identity_file(self._folder / name) for name in self._config.signer_files]
        trust = make_trust(
            self.own, self.roster, model_hash, instance, counter, state, self.signers, others
        )
        assert isinstance(trust.sealing, KeyedSealing)
        self._sealings[END] = trust.sealing
        return trust

    def hop(self, name: str, counter: int, gateway: str) -> KeyedSealing:
        """What seals the link of this end's radios; see `HopKeys`. TrustError."""
        self._check_name(name)
        hub = None if self.own.public.role in HUBS else HOST
        sealing = self._sealings[HOP] = KeyedSealing(
            self.own,
            Behind(self.roster, gateway) if gateway else self.roster,
            SUITE_HOP,
            os.urandom(INSTANCE_SIZE),
            counter,
            self.store.sealing(HOP),
            hub=hub,
        )
        return sealing

    def _check_name(self, name: str) -> None:
        own = self.own.public.name
        if own != name:
            raise TrustError(f"{self._path} is the identity of {own}, not {name}")

    def record(self, event: object) -> None:
        """Write what an event says of peers; `commit` makes it durable."""
        if isinstance(event, TrustChanged):
            self.store.record(END, event.changes)

    def commit(self) -> None:
        """Make all that was recorded durable."""
        self.store.commit()

    def adopt(self, state: RosterState) -> None:
        """Belong to a fleet from now on; TrustError where this end belongs to another one."""
        if self._roster is not None and self._roster.fleet != state.fleet:
            raise TrustError(
                f"{self.own.public.name} belongs to another fleet: delete {self.store.path} first"
            )
        if self._roster is None:
            self._roster = Roster(state)
            self.keep_roster()

    def check_fleet(self, name: str) -> None:
        """TrustError where the fleet is not the one that the configuration names."""
        roster = self.roster
        if found_fleet(name, roster.host).fleet != roster.fleet:
            raise TrustError(
                f"link.fleet is {name!r}, and the keys in {self.store.path} are for a fleet of "
                "another name: write that name, or enrol this end anew"
            )

    def learn(self, text: str) -> None:
        """Take in whom the host vouches for (`ternmesh.trust.neighbours`); TrustError."""
        self._roster = Roster(read_fleet(text, self.roster))
        self.keep_roster()

    # Rotation: both keys are there until the host has said that the new one counts

    @property
    def rotation(self) -> bytes | None:
        """By which this end goes over to its next keys (SPEC.md section 9.5), if it has any."""
        if self._next is None:
            return None
        return write_rotation(self.own, self._next, self.roster.fleet)

    def begin_rotation(self) -> bytes:
        """That, with next keys made where none wait; TrustError where they cannot be kept."""
        if str(self._path.parent) == os.environ.get(CREDENTIALS):
            raise TrustError(
                f"systemd holds {self._path}: make [trust] identity_file name the file that "
                "LoadCredential= reads, and run this again"
            )
        public, fleet = self.own.public, self.roster.fleet
        if self._next is None:
            self._next = make_identity_file(self._next_path, public.name, public.role)
        return write_rotation(self.own, self._next, fleet)

    def finish_rotation(self) -> None:
        """Go over to the next keys, and forget the last ones."""
        assert self._next is not None, "begin the rotation first"
        self.store.forget_peers()  # nothing of the old key's sessions fits; first, as it may repeat
        self.store.commit()
        self._next_path.replace(self._path)
        sync_folder(self._path.parent)
        self._own, self._next = self._next, None

    def keep_roster(self) -> None:
        """Make the roster durable."""
        self.store.keep_roster(self.roster.state)
        self.store.commit()

    def keep_rotation(self) -> None:
        """Make a member's new keys durable; who has its old ones hears no broadcast from now on."""
        self.keep_roster()
        self.rekey()

    def rekey(self) -> None:
        """Who was revoked hears no broadcast from now on."""
        for sealing in self._sealings.values():
            sealing.rekey()

    def status(self) -> dict[str, Any]:
        """What status tells, ready for JSON."""
        return {
            "mode": "keys",
            "fingerprint": self.own.public.fingerprint.hex(),
            "fleet": self.roster.fleet.hex(),
            "host": identity_text(self.roster.host),
            "clones": dict(sum((Counter(s.clones) for s in self._sealings.values()), Counter())),
        }


@dataclass(frozen=True, slots=True)
class HopKeys:
    """What seals the link of the end called `name`: see `transports.linked.LinkKeys`.

    `gateway` is the neighbour of a board whose radio does not reach the host itself, else "".
    """

    keyring: Keyring
    name: str
    gateway: str = ""

    def sealing(self, counter: int) -> KeyedSealing:
        """The seals of one process; `counter` is the first that was never reserved. TrustError."""
        return self.keyring.hop(self.name, counter, self.gateway)

    def record(self, changes: Iterable[Change]) -> None:
        """Write what has changed; `commit` makes it durable."""
        self.keyring.store.record(HOP, changes)

    def commit(self) -> None:
        """Make all that was recorded durable."""
        self.keyring.store.commit()


def hop_keys(keyring: "Keyring | NoKeyring", name: str, gateway: str = "") -> HopKeys | None:
    """The keys of a link, None where its end does without."""
    return HopKeys(keyring, name, gateway) if isinstance(keyring, Keyring) else None


def choose_keyring(
    folder: Path, config: TrustConfig, *, insecure: bool, is_loopback: bool
) -> "Keyring | NoKeyring":
    """Keys, unless an operator does without: ConfigError where that takes saying it twice."""
    if not insecure:
        return Keyring(folder, config)
    if not is_loopback and not config.insecure:
        raise ConfigError(
            "--insecure is for brokers on this machine: whoever reaches the bearer could speak in "
            "anybody's name; if that is meant, say it in the file too: [trust] insecure = true"
        )
    _log.warning("INSECURE: frames are not sealed, and everybody is believed (--insecure)")
    return NoKeyring()


class NoKeyring:
    """For an end that does without keys: everybody is believed."""

    def open(self) -> None:
        """See `Keyring`."""

    def close(self) -> None:
        """See `Keyring`."""

    def check_fleet(self, name: str) -> None:
        """See `Keyring`."""

    def trust(self, name: str, model_hash: bytes, counter: int) -> Trust:  # noqa: ARG002
        """See `Keyring`."""
        return OPEN

    def record(self, event: object) -> None:
        """See `Keyring`."""

    def commit(self) -> None:
        """See `Keyring`."""

    def status(self) -> dict[str, Any]:
        """See `Keyring`."""
        return {"mode": "insecure"}
