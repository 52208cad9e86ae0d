"""What an end stores of its fleet: who belongs to it, and the state of each peer's seals.

Seals have two layers (`store.END`, `store.HOP`); a peer may have a state in both. All of it
outlives every run and model.
"""

from collections.abc import Iterable
from hmac import compare_digest

from ternmesh.security.host_keys import read_host_keys, write_host_keys
from ternmesh.security.identity import read_identity, write_identity
from ternmesh.security.membership import HOST, MemberList, MemberListState
from ternmesh.security.sealing import Change
from ternmesh.security.session import (
    CloneCount,
    GroupState,
    HostRotated,
    ListNumber,
    PeerState,
    SealingState,
    read_group,
    read_peer,
    write_group,
    write_peer,
)
from ternmesh_store.store import END, Store


class SecurityStore(Store):
    """The tables of a fleet's membership and of the seals."""

    def member_list(self) -> MemberList | None:
        """Who belongs to the fleet; None where this end belongs to none."""
        rows = self._database.rows
        fleets = rows("SELECT fleet, host, number FROM security_fleet")
        if not fleets:
            return None
        [(fleet, host, number)] = fleets
        members = rows("SELECT identity FROM security_member ORDER BY name")
        revoked = [row for (row,) in rows("SELECT fingerprint FROM security_revoked ORDER BY 1")]
        state = MemberListState(
            fleet,
            read_host_keys(host),
            tuple(read_identity(identity) for (identity,) in members),
            tuple(revoked),
            number,
        )
        return MemberList(state)

    def keep_member_list(self, state: MemberListState) -> None:
        """Write the membership in place of the last one."""
        insert = self._database.insert
        self._database.clear("security_fleet", "security_member", "security_revoked")
        insert("security_fleet", state.fleet, write_host_keys(state.hosts), state.number)
        for member in state.members:
            insert("security_member", member.name, write_identity(member))
        for fingerprint in state.revoked:
            insert("security_revoked", fingerprint)

    def sealing(self, layer: str) -> SealingState:
        """The state of a layer's seals at the last commit."""
        rows = self._database.rows
        peers = rows("SELECT name, state FROM security_peer WHERE layer = ?", layer)
        groups = rows("SELECT state FROM security_broadcast WHERE layer = ?", layer)
        clones = rows("SELECT name, count FROM security_clone WHERE layer = ?", layer)
        return SealingState(
            tuple(read_peer(name, state) for name, state in peers),
            read_group(groups[0][0]) if groups else None,
            tuple(CloneCount(name, count) for name, count in clones),
        )

    def forget_peers(self) -> None:
        """Delete the state of all seals: this end has new keys, and so has every session."""
        self._database.clear("security_peer", "security_broadcast")
        self._database.leave_no_trace()

    def record(self, layer: str, changes: Iterable[Change]) -> None:
        """Write what has changed in a layer. `commit` makes it durable."""
        insert, write = self._database.insert, self._database.write
        for change in changes:
            match change:
                case PeerState():
                    insert("security_peer", layer, change.name, write_peer(change), replace=True)
                case CloneCount():
                    insert("security_clone", layer, change.name, change.count, replace=True)
                case GroupState():
                    self._keep_broadcast_key(layer, change)
                case ListNumber():
                    write("UPDATE security_fleet SET number = ?", change.number)
                case HostRotated():
                    write("UPDATE security_fleet SET host = ?", write_host_keys(change.hosts))
                    write("DELETE FROM security_peer WHERE name = ? AND layer = ?", HOST, END)
                    write("DELETE FROM security_broadcast WHERE layer = ?", END)
                    self._database.leave_no_trace()

    def _keep_broadcast_key(self, layer: str, state: GroupState) -> None:
        """Recorded broadcasts open with the key before: it must not stay on the disk."""
        rows = self._database.rows("SELECT state FROM security_broadcast WHERE layer = ?", layer)
        if rows and not compare_digest(read_group(rows[0][0]).secret, state.secret):
            self._database.leave_no_trace()
        self._database.insert("security_broadcast", layer, write_group(state), replace=True)
