"""An end's own keys, and what it knows of its fleet: what a program is given to trust by.

The private identity is one line in a file that only its owner may read, or in a systemd credential
(`LoadCredential=ternmesh-identity:...`, systemd.exec(5)).
"""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ternmesh.config import ConfigError
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
from ternmesh.trust.keyed import KeyedSealing
from ternmesh.trust.notary import OPEN, Trust, make_trust
from ternmesh.trust.roster import HOST, Roster, RosterState
from ternmesh.trust.session import INSTANCE_SIZE
from ternmesh_store.files import sync_folder
from ternmesh_store.trust_store import TrustStore

IDENTITY, CREDENTIAL = "identity", "ternmesh-identity"
CREDENTIALS = "CREDENTIALS_DIRECTORY"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrustConfig:
    """The `[trust]` table. `insecure` repeats `--insecure`, which off loopback needs both."""

    insecure: bool = False
    identity_file: str | None = None

    def path(self, folder: Path) -> Path:
        """Where the private identity is, for an end with this state folder."""
        credentials = os.environ.get(CREDENTIALS)
        if self.identity_file is not None:
            return folder / self.identity_file
        if credentials is not None and (Path(credentials) / CREDENTIAL).exists():
            return Path(credentials) / CREDENTIAL
        return folder / IDENTITY


def read_identity_file(path: Path) -> Identity:
    """The identity in a file; TrustError where others may read it, or where there is none."""
    try:
        is_credential = str(path.parent) == os.environ.get(CREDENTIALS)  # systemd guards those
        if path.stat().st_mode & 0o077 and not is_credential:
            raise TrustError(f"others may read {path}: chmod 600 it, or make a new identity")
        text = path.read_text()
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
        self._own: Identity | None = None
        self._roster: Roster | None = None
        self._sealing: KeyedSealing | None = None

    def open(self) -> None:
        """Read the identity and take the store; TrustError or StoreError."""
        self._own = read_identity_file(self._path)
        self.store.open()
        self._roster = self.store.roster()

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

    def trust(self, name: str, model_hash: bytes, counter: int) -> Trust:
        """What the end called `name` is given; TrustError where these are another one's keys."""
        if self.own.public.name != name:
            raise TrustError(f"{self._path} is the identity of {self.own.public.name}, not {name}")
        if name == HOST and self.roster.host != self.own.public:
            raise TrustError(
                f"the fleet in {self.store.path} has a host with other keys than {self._path}: "
                "bring the identity back, or begin a new fleet in another state_dir"
            )
        state, instance = self.store.sealing(), os.urandom(INSTANCE_SIZE)
        trust = make_trust(self.own, self.roster, model_hash, instance, counter, state)
        assert isinstance(trust.sealing, KeyedSealing)
        self._sealing = trust.sealing
        return trust

    def record(self, event: object) -> None:
        """Write what an event says of peers; `commit` makes it durable."""
        if isinstance(event, TrustChanged):
            self.store.record(event.changes)

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

    def keep_roster(self) -> None:
        """Make the roster durable."""
        self.store.keep_roster(self.roster.state)
        self.store.commit()

    def rekey(self) -> None:
        """Who was revoked hears no broadcast from now on."""
        if self._sealing is not None:
            self._sealing.rekey()

    def status(self) -> dict[str, Any]:
        """What status tells, ready for JSON."""
        return {
            "mode": "keys",
            "fingerprint": self.own.public.fingerprint.hex(),
            "fleet": self.roster.fleet.hex(),
            "host": identity_text(self.roster.host),
            "clones": 0 if self._sealing is None else self._sealing.clones,
        }


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
