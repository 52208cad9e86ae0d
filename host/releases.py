"""A release on its way from the host to its boards: what is published, on disk, stage by stage.

`ternmesh release publish` puts `new` into the folder `release/` of the state, which the host takes
while it runs or at its next start. There too are the object as it is sent, `release.json` (stage,
boards, next symbols), a folder with the model of each version, and `active`: the version that the
host itself runs, in place of its configured model.
"""

import json
import logging
import math
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path

from host.config import PublishConfig
from ternmesh.errors import ModelPackageError, TernmeshError, WireError
from ternmesh.federated.release_transfer import ASKS_SILENT, BoardProgress, ReleaseSender, held
from ternmesh.link.erasure_code import best_symbol_bytes
from ternmesh.release import OBJECT_MAX, Verify
from ternmesh.security.signatures import verify_release
from ternmesh.wire.frame import FRAME_MAX
from ternmesh.wire.release import (
    ACTIVE,
    NOBODY,
    ON_TRIAL,
    RECEIVING,
    RUNNING,
    STAGES,
    STATES,
    SYMBOL_OVERHEAD,
    WITHDRAWN,
    ReleaseOffer,
)
from ternmesh_service.keyring import Keyring, NoKeyring
from ternmesh_service.release_files import entries_of, extract, pack_folder
from ternmesh_service.status import BoardRelease, PublishedRelease
from ternmesh_store.files import read_file, replace_file
from transports.base import Spare

FOLDER, NEW, OBJECT, STATE, ACTIVE_FILE = "release", "new", "object", "release.json", "active"
REFUSED = "the release is not published"
NETWORK_RATE = 1e6  # bytes a second of a bearer without a limit of its own
RADIO_FRAME = 184  # bytes that the modems of gateways carry in one frame
TURN_S = 0.1  # of symbols at once
SAVE_EVERY = 64  # symbols

_log = logging.getLogger(__name__)


def active_model(folder: Path) -> Path | None:
    """The folder of the model of the release that the host runs; None: its configured model."""
    with suppress(OSError, ValueError):
        model = folder / str(int((folder / ACTIVE_FILE).read_text()))
        return model if model.is_dir() else None
    return None


def signed_here(keyring: Keyring | NoKeyring) -> Verify:
    """What accepts a release that enough signers of this fleet have signed."""

    def check(content: bytes, signatures: bytes) -> None:
        if isinstance(keyring, Keyring):
            verify_release(keyring.signers, keyring.member_list.fleet, content, signatures)

    return check


class Publisher:
    """The release that a host publishes. `model` is the folder of the model that it runs.

    `longest_s` is the longest time between two offers. OSError where the disk fails.
    """

    def __init__(
        self,
        folder: Path,
        model: Path,
        name: str,
        verify: Verify,
        settings: PublishConfig,
        longest_s: float,
    ) -> None:
        self.sender: ReleaseSender | None = None
        self.reason = ""  # why the release was withdrawn, or the last one was not taken
        self._folder = folder
        self._model = model
        self._name = name
        self._verify = verify
        self._settings = settings
        self._longest_s = longest_s
        self._offer: ReleaseOffer | None = None
        self._canary = 0.0
        self._cost_s = 0.0
        self._saved: tuple[object, ...] = ()

    def open(self) -> None:
        """Go on with what is on disk, and take what waits there."""
        with suppress(FileNotFoundError):
            stored = json.loads((self._folder / STATE).read_text())
            offer = ReleaseOffer(
                **{**stored["offer"], "digest": bytes.fromhex(stored["offer"]["digest"])}
            )
            self._offer, self._canary, self.reason = offer, stored["canary"], stored["reason"]
            if offer.symbol_bytes:
                # Those that may have left since the last save are skipped: none leaves twice.
                skipped = SAVE_EVERY if any(stored["cursors"]) else 0
                self.sender = self._make(offer, [c + skipped for c in stored["cursors"]])
                self.sender.boards = {n: BoardProgress(*row) for n, row in stored["boards"].items()}
        self.take_new()

    def take_new(self) -> str:
        """Take a release that the owner has put here; what became of it, empty for none."""
        path = self._folder / NEW
        try:
            canary = float((self._folder / f"{NEW}.json").read_text())
            data = read_file(path, OBJECT_MAX)
        except FileNotFoundError:
            return ""
        try:
            sentence = self._publish(data, canary)
        except TernmeshError as error:
            sentence = f"{REFUSED}: {error}"
        path.unlink()
        (self._folder / f"{NEW}.json").unlink()
        _log.info("%s", sentence)
        return sentence

    def withdraw(self, reason: str) -> None:
        """Offer the release no more; boards that run it keep it."""
        if self._offer is not None:
            self.reason = reason
            self._change(replace(self._offer, stage=WITHDRAWN))

    @property
    def has_switched(self) -> bool:
        """Whether the host has to restart with the model of this release."""
        is_active = self._offer is not None and self._offer.stage == ACTIVE
        return is_active and active_model(self._folder) != self._model

    def bodies(self, now: float, spare: Spare | None, boards: Iterable[str]) -> list[bytes]:
        """The bodies to broadcast now; `boards` are those of the run."""
        offer = self._offer
        if offer is None or spare is None or (self.sender is None and offer.stage == WITHDRAWN):
            return []
        try:
            return self._bodies(offer, now, spare, boards)
        except OSError as error:
            if (sentence := f"the disk fails: {error}") != self.reason:
                _log.warning("the release waits: %s", sentence)
            self.reason = sentence
            return []

    def _bodies(
        self, offer: ReleaseOffer, now: float, spare: Spare, boards: Iterable[str]
    ) -> list[bytes]:
        settings = self._settings
        if settings.radio_bytes_s:  # the network's own room says nothing
            frame = min(RADIO_FRAME, spare.frame_max)
            spare = Spare(frame, frame / settings.radio_bytes_s)
        room = min(FRAME_MAX, spare.frame_max) - SYMBOL_OVERHEAD
        is_open = offer.stage != WITHDRAWN
        if self.sender is None or (is_open and offer.symbol_bytes > room):
            try:
                size = best_symbol_bytes(offer.size, room)
                self._offer = offer = replace(offer, symbol_bytes=size)
                self.sender = self._make(offer)
            except (WireError, ValueError) as error:
                self.withdraw(str(error))
                return []
        self.sender.expect(boards)
        step = self.sender.verdict()
        if step is not None:
            if step.stage == WITHDRAWN:
                reasons = sorted(
                    f"{n}: {b.reason}" for n, b in self.sender.boards.items() if b.reason
                )
                self.reason = "; ".join(reasons)[:1000]
            self._change(step)
        free_s = (offer.symbol_bytes + SYMBOL_OVERHEAD) / NETWORK_RATE
        self._cost_s = (spare.cost_s or free_s) / settings.airtime_share
        bodies = self.sender.bodies(now, self._cost_s, max(1, int(TURN_S / self._cost_s)))
        self._save_if_changed()
        return bodies

    def status(self) -> PublishedRelease | None:
        """The state for `ternmesh status`; None without a release."""
        offer, sender = self._offer, self.sender
        if offer is None:
            return PublishedRelease(reason=self.reason) if self.reason else None
        boards = sender.boards if sender is not None else {}
        left = sender.remaining() if sender is not None else 0
        return PublishedRelease(
            version=offer.version,
            stage=STAGES[offer.stage],
            reason=self.reason,
            bytes=offer.size,
            eta_s=round(left * self._cost_s, 1),
            boards={
                name: BoardRelease(
                    state=STATES[board.state],
                    held=round(held(board, sender.layout), 3),
                    away=board.silent >= ASKS_SILENT,
                    reason=board.reason,
                )
                for name, board in boards.items()
                if sender
            },
        )

    def _publish(self, data: bytes, canary: float) -> str:
        unpacked = self._folder / "unpacked"
        manifest = extract(data, unpacked, [], self._verify)
        if manifest.name != self._name:
            raise ModelPackageError(
                f"it is of the model {manifest.name}, this fleet has {self._name}"
            )
        before = self._offer
        # One that was withdrawn before any board tried it may come again.
        is_untried = before is not None and before.stage == WITHDRAWN and not before.tries
        if before is not None and manifest.version < before.version + (not is_untried):
            raise ModelPackageError(
                f"version {manifest.version} is not above version {before.version} before it"
            )
        model = self._folder / str(manifest.version)
        shutil.rmtree(model, ignore_errors=True)
        unpacked.rename(model)
        boards = self.sender.boards.values() if self.sender else ()
        is_active = before is not None and before.stage == ACTIVE
        # Who missed the last one lacks its files, and gets a whole one.
        is_whole = is_active and any(board.state != RUNNING for board in boards)
        content = pack_folder(model, () if is_whole else entries_of(self._model))
        replace_file(self._folder / OBJECT, content)
        self.sender, self.reason, self._canary = None, "", canary
        digest, size = sha256(content).digest(), len(content)
        number = 0 if before is None else before.number
        fields = (self._name, manifest.version, number, ON_TRIAL, 0, NOBODY, 0)
        self._change(ReleaseOffer(digest, size, 0, *fields))
        for old in self._folder.iterdir():
            if old.name.isdigit() and old not in (model, self._model):
                shutil.rmtree(old, ignore_errors=True)
        return f"version {manifest.version} of {self._name} is published: {size:,} bytes to send"

    def _make(self, offer: ReleaseOffer, cursors: Sequence[int] = ()) -> ReleaseSender:
        data = read_file(self._folder / OBJECT, OBJECT_MAX)
        return ReleaseSender(data, offer, self._canary, self._longest_s, cursors)

    def _change(self, offer: ReleaseOffer) -> None:
        # By the clock: a host that has lost its disk must not begin below what boards have seen.
        offer = replace(offer, number=max(offer.number + 1, int(time.time())))
        self._offer = offer
        if self.sender is not None:
            self.sender.change(offer)
        if offer.stage == ACTIVE:
            replace_file(self._folder / ACTIVE_FILE, str(offer.version).encode())
        _log.info("release %d is %s %s", offer.version, STAGES[offer.stage], self.reason)
        self._save()

    def _save_if_changed(self) -> None:
        sender = self.sender
        assert sender is not None
        states = [(name, board.state) for name, board in sender.boards.items()]
        mark = (math.ceil(sum(sender.cursors) / SAVE_EVERY), states)
        if mark != self._saved:
            self._saved = mark
            self._save()

    def _save(self) -> None:
        assert self._offer is not None
        boards: Mapping[str, BoardProgress] = {} if self.sender is None else self.sender.boards
        content = {
            "offer": {**asdict(self._offer), "digest": self._offer.digest.hex()},
            "canary": self._canary,
            "reason": self.reason,
            "cursors": [] if self.sender is None else self.sender.cursors,
            "boards": {n: (b.state, b.reason) for n, b in boards.items() if b.state != RECEIVING},
        }
        replace_file(self._folder / STATE, json.dumps(content).encode())
