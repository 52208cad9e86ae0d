"""What an end keeps of its fleet: who belongs to it, and where the seals of each peer stand.

Seals have two layers, from end to end and from one neighbour to the next on a link; a peer may have
a state in both. It is apart from the run, because it outlives every run and model.
"""

from collections.abc import Iterable
from pathlib import Path

from ternmesh.trust.identity import read_identity, write_identity
from ternmesh.trust.roster import Roster, RosterState
from ternmesh.trust.sealing import Change
from ternmesh.trust.session import (
    CloneCount,
    GroupState,
    PeerState,
    SealingState,
    read_group,
    read_peer,
    write_group,
    write_peer,
)
from ternmesh_store.database import Database, Schema

TRUST = "trust.sqlite"
END, HOP = "end", "hop"  # layers
SCHEMA = Schema(
    application=0x544D5452,  # "TMTR"
    version=3,
    statements=(
        "CREATE TABLE fleet (fleet BLOB NOT NULL, host BLOB NOT NULL, number INTEGER NOT NULL)",
        "CREATE TABLE member (name TEXT PRIMARY KEY, identity BLOB NOT NULL)",
        "CREATE TABLE revoked (fingerprint BLOB PRIMARY KEY)",
        "CREATE TABLE rotated (name TEXT NOT NULL, fingerprint BLOB PRIMARY KEY)",
        "CREATE TABLE peer (layer TEXT NOT NULL, name TEXT NOT NULL, state BLOB NOT NULL, "
        "PRIMARY KEY (layer, name))",
        "CREATE TABLE broadcast (layer TEXT PRIMARY KEY, state BLOB NOT NULL)",
        "CREATE TABLE clone (layer TEXT NOT NULL, name TEXT NOT NULL, count INTEGER NOT NULL, "
        "PRIMARY KEY (layer, name))",
    ),
)


class TrustStore:
    """The file in a state folder; see `Database` for errors. TrustError for damaged rows."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / TRUST
        self._database = Database(self.path, SCHEMA)

    def open(self) -> None:
        """Take the file, or make it; a damaged one is refused: revocations are not forgotten."""
        self._database.open(replace_damaged=False)

    def close(self) -> None:
        """Forget what was not committed, and give the file back."""
        self._database.close()

    def commit(self) -> None:
        """Make all that was recorded durable."""
        self._database.commit()

    def roster(self) -> Roster | None:
        """Who belongs to the fleet, if there is one."""
        found = self._database.rows("SELECT fleet, host, number FROM fleet")
        if not found:
            return None
        [(fleet, host, number)] = found
        members = self._database.rows("SELECT identity FROM member ORDER BY name")
        revoked = self._database.rows("SELECT fingerprint FROM revoked ORDER BY fingerprint")
        rotated = self._database.rows("SELECT name, fingerprint FROM rotated ORDER BY 1, 2")
        state = RosterState(
            fleet,
            read_identity(host),
            tuple(read_identity(identity) for (identity,) in members),
            tuple(fingerprint for (fingerprint,) in revoked),
            number,
            tuple(rotated),
        )
        return Roster(state)

    def keep_roster(self, state: RosterState) -> None:
        """Write a roster in the place of the last one."""
        database = self._database
        for table in ("fleet", "member", "revoked", "rotated"):
            database.write(f"DELETE FROM {table}")
        host = write_identity(state.host)
        database.write("INSERT INTO fleet VALUES (?, ?, ?)", state.fleet, host, state.number)
        rows = [(member.name, write_identity(member)) for member in state.members]
        database.write_many("INSERT INTO member VALUES (?, ?)", rows)
        database.write_many("INSERT INTO revoked VALUES (?)", [(key,) for key in state.revoked])
        database.write_many("INSERT INTO rotated VALUES (?, ?)", state.rotated)

    def sealing(self, layer: str) -> SealingState:
        """Where the seals of a layer stood at the last commit."""
        peers = self._database.rows("SELECT name, state FROM peer WHERE layer = ?", layer)
        groups = self._database.rows("SELECT state FROM broadcast WHERE layer = ?", layer)
        group = read_group(groups[0][0]) if groups else None
        counts = self._database.rows("SELECT name, count FROM clone WHERE layer = ?", layer)
        clones = tuple(CloneCount(name, count) for name, count in counts)
        return SealingState(tuple(read_peer(name, state) for name, state in peers), group, clones)

    def forget_peers(self) -> None:
        """Drop all of that: this end has new keys, and so has every pair."""
        self._database.write("DELETE FROM peer")
        self._database.write("DELETE FROM broadcast")

    def record(self, layer: str, changes: Iterable[Change]) -> None:
        """Write what has changed in a layer; `commit` makes it durable."""
        for change in changes:
            match change:
                case PeerState():
                    self._database.write(
                        "INSERT OR REPLACE INTO peer VALUES (?, ?, ?)",
                        layer,
                        change.name,
                        write_peer(change),
                    )
                case CloneCount():
                    self._database.write(
                        "INSERT OR REPLACE INTO clone VALUES (?, ?, ?)",
                        layer,
                        change.name,
                        change.count,
                    )
                case GroupState():
                    self._database.write(
                        "INSERT OR REPLACE INTO broadcast VALUES (?, ?)", layer, write_group(change)
                    )
