"""The state of one process: state.sqlite in its folder, and the airtime ledgers of its radios.

All tables stand here, and the version of their form. A process uses only some of them. The first
word of a table's name is its group (see `database.Schema`).
"""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from ternmesh.errors import SecurityError
from ternmesh.security.host_keys import HostKeys, read_host_keys
from ternmesh_store.airtime_store import AirtimeStore
from ternmesh_store.database import DamagedError, Database, Schema, StoreError, trouble
from ternmesh_store.files import PRIVATE, copy_file, make_private_folder, open_regular
from ternmesh_store.link_store import LinkStore

STATE, AIRTIME = "state.sqlite", "airtime.db"
HEAD = b"SQLite format 3\0"
COPY_MAX = 1 << 40  # bytes of a state that is brought back
SECURITY, HOST = "security", "host"  # groups without which some programs cannot go on

_SECURITY = (
    "CREATE TABLE security_counter (layer TEXT PRIMARY KEY, reserved INTEGER NOT NULL)",
    "CREATE TABLE security_fleet (fleet BLOB, host BLOB, number INTEGER NOT NULL)",
    "CREATE TABLE security_member (name TEXT PRIMARY KEY, identity BLOB NOT NULL)",
    "CREATE TABLE security_revoked (fingerprint BLOB PRIMARY KEY)",
    """CREATE TABLE security_peer (
        layer TEXT, name TEXT, state BLOB NOT NULL, PRIMARY KEY (layer, name)
    )""",
    "CREATE TABLE security_broadcast (layer TEXT PRIMARY KEY, state BLOB NOT NULL)",
    """CREATE TABLE security_clone (
        layer TEXT, name TEXT, count INTEGER NOT NULL, PRIMARY KEY (layer, name)
    )""",
)
_LINK = (
    "CREATE TABLE link_number (next INTEGER NOT NULL)",
    """CREATE TABLE link_outgoing (
        number INTEGER PRIMARY KEY,
        peer TEXT NOT NULL, receivers TEXT NOT NULL, payload BLOB NOT NULL,
        repairs INTEGER NOT NULL, slot INTEGER
    )""",
    """CREATE TABLE link_symbol (
        peer TEXT, slot INTEGER,
        number INTEGER NOT NULL, name BLOB NOT NULL, size INTEGER NOT NULL,
        position INTEGER, data BLOB NOT NULL,
        PRIMARY KEY (peer, slot, position)
    )""",
    "CREATE TABLE link_arrived (place INTEGER PRIMARY KEY, peer TEXT NOT NULL, name BLOB NOT NULL)",
    "CREATE TABLE link_inbox (place INTEGER PRIMARY KEY, peer TEXT NOT NULL, payload BLOB)",
)
_NODE = (
    """CREATE TABLE node_run (
        model BLOB NOT NULL, dimension INTEGER NOT NULL,
        run BLOB NOT NULL, address INTEGER NOT NULL, plan TEXT NOT NULL,
        version INTEGER NOT NULL, global_hash BLOB NOT NULL, finished INTEGER NOT NULL,
        silent INTEGER NOT NULL, silences INTEGER NOT NULL
    )""",
    "CREATE TABLE node_pending (round INTEGER NOT NULL, digest BLOB NOT NULL, received INTEGER)",
    "CREATE TABLE node_pending_body (position INTEGER PRIMARY KEY, body BLOB NOT NULL)",
    """CREATE TABLE node_chain (
        version INTEGER PRIMARY KEY, global_hash BLOB, content BLOB, rows BLOB
    )""",
    "CREATE TABLE node_value (key TEXT PRIMARY KEY, value BLOB NOT NULL)",
    "CREATE TABLE node_settings (number INTEGER NOT NULL, settings TEXT NOT NULL)",
)
# added_at: seconds since 1970, 0 where the clock was not set
# certainty: 0 to 1, NULL where nothing has rated the sample
# set_aside: why the model cannot compute the sample; NULL where it can
_REPLAY = (
    """CREATE TABLE replay_sample (
        id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, added_at INTEGER NOT NULL,
        certainty REAL, had_label INTEGER NOT NULL, targets BLOB, inputs BLOB NOT NULL,
        set_aside TEXT
    )""",
    "CREATE TABLE replay_value (key TEXT PRIMARY KEY, value BLOB NOT NULL)",
)
_HOST = (
    """CREATE TABLE host_run (
        model BLOB NOT NULL, run BLOB NOT NULL, plan TEXT NOT NULL,
        version INTEGER NOT NULL DEFAULT 0, global_hash BLOB NOT NULL DEFAULT x'',
        started INTEGER NOT NULL DEFAULT 0, finished INTEGER NOT NULL DEFAULT 0,
        is_first INTEGER NOT NULL DEFAULT 0
    )""",
    # counted_*: the node's update that was counted last
    """CREATE TABLE host_node (
        address INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, samples INTEGER NOT NULL,
        counted_round INTEGER, counted_digest BLOB, counted_have BLOB, counted_root BLOB,
        rounds_counted INTEGER NOT NULL DEFAULT 0, rounds_missed INTEGER NOT NULL DEFAULT 0,
        bytes_up INTEGER NOT NULL DEFAULT 0, bytes_down INTEGER NOT NULL DEFAULT 0
    )""",
    """CREATE TABLE host_chain (
        version INTEGER PRIMARY KEY, global_hash BLOB, content BLOB, rows BLOB
    )""",
    "CREATE TABLE host_body (position INTEGER PRIMARY KEY, address INTEGER, body BLOB)",
    """CREATE TABLE host_round (
        version INTEGER PRIMARY KEY, counted TEXT, missing TEXT, seconds REAL NOT NULL DEFAULT 0,
        loss REAL, accuracy REAL, evaluations INTEGER NOT NULL DEFAULT 0
    )""",
    """CREATE TABLE host_traffic (
        version INTEGER, peer TEXT,
        bytes_up INTEGER NOT NULL, bytes_down INTEGER NOT NULL,
        PRIMARY KEY (version, peer)
    ) WITHOUT ROWID""",
    # What arrived of updates and left in a global update; the nodes' reports (`_write_reports`)
    """CREATE TABLE host_report (
        version INTEGER PRIMARY KEY, useful_bytes INTEGER NOT NULL, reports BLOB NOT NULL
    )""",
    "CREATE TABLE host_value (key TEXT PRIMARY KEY, value BLOB NOT NULL)",
    # Of the fleet, not of a run: what the host wants of a board, and its last report.
    """CREATE TABLE host_board (
        name TEXT PRIMARY KEY, number INTEGER NOT NULL, settings TEXT NOT NULL,
        report BLOB, reported_at INTEGER NOT NULL
    )""",
)
_SPLIT = (
    "CREATE TABLE split_board (address INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    "CREATE TABLE split_value (key TEXT PRIMARY KEY, value BLOB NOT NULL)",
)
SCHEMA = Schema(
    application=0x544D5354,  # "TMST"
    version=11,
    statements=(*_SECURITY, *_LINK, *_NODE, *_REPLAY, *_HOST, *_SPLIT),
    advice="bring back a backup of this format (`ternmesh restore --force`), or rename that file "
    "and enrol again",
)


@dataclass(frozen=True, slots=True)
class StateContent:
    """What a state holds, as far as a restore asks for it."""

    runs: Mapping[bytes, int]  # the version that was reached in each
    fleet: bytes | None
    groups: frozenset[str]  # of tables that have rows


@dataclass(frozen=True, slots=True)
class StoredFleet:
    """The fleet that a process belongs to."""

    fleet: bytes
    hosts: HostKeys


class StateFile(Database):
    """The state in `folder`. See `transports.factory.Stores` for what a transport asks of it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / STATE, SCHEMA)
        self.folder = folder

    def take_copy(self, source: Path) -> tuple[Path, StateContent]:
        """A copy of a state file beside this one, checked and closed. Raises StoreError."""
        copy = StateFile(self.folder)
        copy.path = path = self.path.with_name(f"{STATE}.restored")
        try:
            path.unlink(missing_ok=True)  # of a restore that was interrupted
            make_private_folder(self.folder)
            with open_regular(source) as file:
                if (head := file.read(len(HEAD))) != HEAD:
                    raise DamagedError(source, "it is no database" if head else "it is empty")
            copy_file(source, path, COPY_MAX, PRIVATE)
            return path, copy.content()
        except OSError as error:
            path.unlink(missing_ok=True)
            raise StoreError(f"cannot copy {source} to {path} ({error})") from error
        except StoreError as error:
            path.unlink(missing_ok=True)
            if isinstance(error, DamagedError):
                raise StoreError(f"{source} is damaged ({error.args[1]}): take another") from error
            raise StoreError(str(error).replace(str(path), str(source))) from error

    def content(self) -> StateContent:
        """What a closed state holds. Raises StoreError; a damaged file stays as it is."""
        with closing(self):
            self._connect()
            runs = [
                self.rows(f"SELECT run, version FROM {table}") for table in ("host_run", "node_run")
            ]
            fleet = self.rows("SELECT fleet FROM security_fleet")
            filled = {name for name in self._tables() if self.rows(f"SELECT 1 FROM {name} LIMIT 1")}
        return StateContent(
            dict(row for rows in runs for row in rows),
            fleet[0][0] if fleet else None,
            frozenset(name.split("_")[0] for name in filled),
        )

    def stored_fleet(self) -> StoredFleet | None:
        """The fleet of the keys; None without one. It only reads, also while a process runs.

        A change of members is moved out of the WAL at once, so the file alone has it. StoreError.
        """
        uri = f"{self.path.absolute().as_uri()}?mode=ro&immutable=1"
        try:
            with closing(sqlite3.connect(uri, uri=True)) as connection:
                row = connection.execute("SELECT fleet, host FROM security_fleet").fetchone()
            return StoredFleet(row[0], read_host_keys(row[1])) if row else None
        except SecurityError as error:
            raise StoreError(f"cannot read {self.path} ({error}): see docs/backup.md") from error
        except sqlite3.Error as error:
            raise StoreError(f"cannot read {self.path}: {trouble(self.path, error)}") from error

    def link(self) -> LinkStore:
        return LinkStore(self)

    def airtime(self, bearer: str = "") -> AirtimeStore:
        """The airtime ledger of the radio, or of a further radio with this bearer's name.

        It has a file and a commit of its own, because the radio's thread uses it.
        """
        folder = self.folder / f"link-{bearer}" if bearer else self.folder
        return AirtimeStore(folder / AIRTIME)
