"""The machine that a program runs on: its disk, and the certificates that it uses."""

import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from cryptography.x509 import load_pem_x509_certificates

from ternmesh_service.page.config import PageConfig
from ternmesh_service.servers import Servers
from ternmesh_service.status import MachineStatus
from ternmesh_store.state_file import StateFile
from transports.link_config import LinkConfig


class Machine:
    """Looks at a state and its disk, the certificates of page and link, and the servers."""

    def __init__(
        self, state: StateFile, page: PageConfig, link: LinkConfig, servers: Servers
    ) -> None:
        self._state = state
        self._servers = servers
        certificates = (page.certificate_file, link.ca_file, link.certificate_file)
        self._certificates = [Path(path) for path in certificates if path]
        self._began = time.monotonic()

    def status(self) -> MachineStatus:
        """What is so now; OSError."""
        return MachineStatus(
            up_s=time.monotonic() - self._began,
            disk_free_mb=shutil.disk_usage(self._state.folder).free / 1e6,
            certificates=dict(self._ends(time.time())),
            not_served=tuple(self._servers.failed.values()),
            loss=self._state.loss,
        )

    def _ends(self, now: float) -> Iterator[tuple[str, float]]:
        """Each certificate's name and the seconds until the first of its chain ends."""
        for path in self._certificates:
            with contextlib.suppress(OSError, ValueError):  # read anew: its renewal may be half
                chain = load_pem_x509_certificates(path.read_bytes())
                yield path.name, min(one.not_valid_after_utc.timestamp() for one in chain) - now
