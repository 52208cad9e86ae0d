"""A trusted gateway's bundling: the sans-I/O `Bundler` with its disk and its clock."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from models.zoo import bundle_path
from ternmesh.bundle import Bundle, read_bundle
from ternmesh.config import ConfigError, limits
from ternmesh.swarm.bundle_records import BundleMade, BundlerEvent, BundleSettled, RunFollowed
from ternmesh.swarm.bundler import Bundler, Group
from ternmesh_store.gateway_store import GatewayStore

STORE = "bundle.db"
DESCRIPTION = "model.json"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BundleConfig:
    """Whether a gateway adds its boards' packets up: it does where it is told their `model`.

    That is the name of a shipped model, or a folder with a model.json. After the first frame of a
    round it waits at most `wait_s` for all boards.
    """

    model: str | None = None
    wait_s: float = field(default=10.0, metadata=limits(0.1, 3600.0))

    def anchored(self, folder: Path) -> "BundleConfig":
        """With a relative path from `folder`."""
        if self.model is None or not (folder / self.model).is_dir():
            return self
        return replace(self, model=str(folder / self.model))


def read_model(name: str) -> Bundle:
    """The description of a shipped model or of a folder; ConfigError or BundleError."""
    try:
        folder = bundle_path(name)
    except ValueError as error:
        folder = Path(name)
        if not folder.is_dir():
            raise ConfigError(f"bundle.model is {name!r}: no such folder, and {error}") from error
    try:
        return read_bundle((folder / DESCRIPTION).read_bytes())
    except OSError as error:
        raise ConfigError(f"bundle.model is {name!r}: its {DESCRIPTION} cannot be read") from error


class Bundling:
    """What passes a gateway goes through here; `settle` says what may go on, and where.

    StoreError where its file cannot be read or written.
    """

    def __init__(
        self,
        model: Bundle,
        boards: Sequence[str],
        wait_s: float,
        store: GatewayStore,
        clock: Callable[[], float],
        rng: np.random.Generator,
    ) -> None:
        self.bundles_made = self.bundles_counted = self.packets_bundled = 0
        self._model, self._boards, self._wait_s = model, boards, wait_s
        self._store, self._clock, self._rng = store, clock, rng
        self._bundler: Bundler | None = None

    def open(self) -> None:
        """Take up what was left by the last process."""
        self._store.open()
        model_hash = self._model.model_hash()
        state = self._store.load(model_hash, self._model.dimension)
        self._bundler = Bundler(model_hash, self._boards, self._wait_s, state, self._rng)
        self._bundler.start(self._clock())

    def close(self) -> None:
        """Give the file back; may be called twice."""
        self._store.close()

    def receive_up(self, board: str, frames: Sequence[bytes]) -> None:
        """Take frames of a board for the host."""
        self._open_bundler().receive_up(board, frames, self._clock())

    def receive_down(self, peer: str, frames: Sequence[bytes]) -> None:
        """Take frames of the host for a board or for all."""
        self._open_bundler().receive_down(peer, frames, self._clock())

    def handle_timeouts(self) -> None:
        """Do what is due."""
        bundler, now = self._open_bundler(), self._clock()
        due = bundler.next_timeout()
        if due is not None and now >= due:
            bundler.handle_timeout(now)

    def settle(self) -> tuple[list[Group], list[Group]]:
        """Events, onto disk, and only then the frames: up by board, and down by peer."""
        bundler = self._open_bundler()
        while (event := bundler.next_event()) is not None:
            self._store.record(event)
            self._note(event)
        self._store.commit()
        return bundler.frames_up(), bundler.frames_down()

    def status(self) -> dict[str, Any]:
        """What it tells of itself, ready for JSON."""
        bundler = self._open_bundler()
        return {
            "model": self._model.name,
            "run": None if bundler.plan is None else bundler.run.hex(),
            "version": bundler.version,
            "refused": bundler.is_refused,
            "pending": None if bundler.pending is None else len(bundler.pending.rows),
            "bundles_made": self.bundles_made,
            "bundles_counted": self.bundles_counted,
            "packets_bundled": self.packets_bundled,
        }

    def _open_bundler(self) -> Bundler:
        assert self._bundler is not None, "open it first"
        return self._bundler

    def _note(self, event: BundlerEvent) -> None:
        match event:
            case RunFollowed(run=run):
                _log.info("bundles are made for run %s", run.hex())
            case BundleMade(bundle=bundle):
                self.bundles_made += 1
                self.packets_bundled += len(bundle.rows)
            case BundleSettled(is_counted=is_counted):
                self.bundles_counted += is_counted
            case _:
                pass  # The store's business alone.
