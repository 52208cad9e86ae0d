"""The demo's voters: several hosts keep its fleet together, and the one that leads is killed."""

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ternmesh.federated.agreement.voters import BFT, CRASH, make_voters
from ternmesh.security.identity import Role, identity_text
from ternmesh_cli.workers import Worker
from ternmesh_service.identity_file import make_identity_file

HOSTS = ("host", "host-2", "host-3", "host-4", "host-5", "host-6", "host-7")
COUNTS = (3, 4, 7)  # three bear one that stops; four and seven one and two that lie
KILL_VERSION = 6
AWAY_S = 30.0
BEGIN_S, POLL_S = 60.0, 0.1

Tables = dict[str, Mapping[str, Any]]


def begin(first: Worker) -> None:
    """Let a host begin the run with which its copies go on."""
    first.start()
    give_up_at = time.monotonic() + BEGIN_S
    while first.status() is None and time.monotonic() < give_up_at:
        first.keep_alive()
        time.sleep(POLL_S)
    first.stop()


def seat(first: Path, count: int) -> tuple[dict[str, Tables], Mapping[str, Any]]:
    """Make voters of copies of a host's folder; further settings by host, and of the boards."""
    names = HOSTS[:count]
    for name in names[1:]:
        shutil.copytree(first, first.with_name(name))
    made = [
        make_identity_file(first.with_name(name) / "voter", name, Role.OBSERVER).public
        for name in names
    ]
    lines = [identity_text(public) for public in made]
    mode = BFT if count % 3 == 1 else CRASH
    agreement = {"voters": lines, "mode": mode, "timeout_s": 3.0}
    witnesses = make_voters(b"", names, mode).witnesses
    signed = {"signers": lines, "threshold": witnesses} if mode == BFT else {}
    tables: dict[str, Tables] = {}
    for name in names:
        tables[name] = {"agreement": {"name": name, **agreement}}
        if signed:
            tables[name]["security"] = {**signed, "signer_files": ["voter"]}
    return tables, signed


@dataclass(slots=True)
class LeaderKill:
    """Kills the host that leads once, and starts it again after a while."""

    victim: Worker | None = None
    back_at: float = 0.0

    def turn(self, hosts: Mapping[str, Worker], version: int, leader: str, now: float) -> str:
        """Do what is due; what was done, if anything."""
        if self.victim is not None or version < KILL_VERSION or leader not in hosts:
            return ""
        self.victim, self.back_at = hosts[leader], now + AWAY_S
        assert self.victim.process is not None
        self.victim.process.kill()
        return f"{leader} led, and was killed; it starts again in {AWAY_S:.0f} s"

    def keeps_away(self, worker: Worker, now: float) -> bool:
        """Whether a host is not to be started again yet."""
        return worker is self.victim and now < self.back_at
