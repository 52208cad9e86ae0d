"""A release that comes over the link: its symbols on disk, its trial, its installation.

The folder `incoming/` beside the installed releases holds the offer, the symbols with a CRC each,
and what was unpacked of them, which moves to the installed releases once it has passed its trial
here and the host says so. All slow work is done in one thread: the node goes on to predict and to
learn.
"""

import json
import logging
import os
import shutil
import struct
import threading
import zlib
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from edge.config import NodeConfig
from edge.errors import BoardFault, NoData
from edge.files import read_optional
from edge.releases.rollout import report, try_release
from edge.releases.store import Releases, load_release
from ternmesh.errors import ModelPackageError, TernmeshError, WireError
from ternmesh.federated.release_transfer import NAME_SIZE, ReleaseReceiver, layout_of
from ternmesh.link.erasure_code import Decoder
from ternmesh.release import ATTEMPTS_MAX, SIGNATURES, Verify
from ternmesh.timers import Random
from ternmesh.wire.release import (
    ACTIVE,
    BAD,
    GOOD,
    HELD,
    OFFER,
    RECEIVING,
    REFUSED,
    RUNNING,
    STAGES,
    STATES,
    WITHDRAWN,
    ReleaseOffer,
    ReleaseSymbol,
    read_offer,
    read_symbol,
    write_offer,
)
from ternmesh_service.release_files import FileMissing, extract
from ternmesh_service.status import IncomingRelease, InstalledReleases
from ternmesh_store.files import replace_file

FOLDER, CANDIDATE = "incoming", "candidate"
OFFER_FILE, SYMBOLS, STATE = "offer", "symbols", "state.json"
START, STATE_MAX = b'{"state": 0, "reason": "", "attempts": 0}', 4096
SPARE_BYTES = 8 << 20  # that stay free on the disk
_RECORD = struct.Struct("<HI")  # index, CRC-32 of the index and the symbol

_log = logging.getLogger(__name__)

Outcome = tuple[int, str]  # the next state, and a reason


class Incoming:
    """The release that the host offers, on this board. `model` is the folder of the model in use.

    The node's thread calls `take` with bodies and `poll` in its loop; statuses go to `send`. Once a
    release `waits`, from the link or from a person, the node restarts with it.
    """

    def __init__(
        self, config: NodeConfig, releases: Releases, verify: Verify, model: Path, rng: Random
    ) -> None:
        self.send: Callable[[bytes], None] = lambda _body: None
        self.waits = False  # a release is installed that is newer than all that have run
        self.installed: InstalledReleases | None = None  # for the status
        self._config = config
        self._releases = releases
        self._verify = verify
        self._model = model
        self._folder = releases.folder / FOLDER
        self._receiver = ReleaseReceiver(config.name, rng)
        self._attempts = 0
        self._number = 0  # of the offer on disk
        self._file: Any = None  # the symbols
        self._outcome: list[Outcome] = []  # of the thread
        self._thread: threading.Thread | None = None

    def open(self, name: str, now: float) -> None:
        """Go on with what is on disk; `name` is that of the model."""
        self._name = name
        self.survey()
        self._folder.mkdir(parents=True, exist_ok=True)
        receiver = self._receiver
        try:
            offer = read_offer((self._folder / OFFER_FILE).read_bytes())
            receiver.take_offer(offer, now)
            stored = json.loads(read_optional(self._folder / STATE, STATE_MAX) or START)
            receiver.state, self._attempts = int(stored["state"]), int(stored["attempts"])
            receiver.reason = str(stored["reason"])
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, TernmeshError) as error:
            _log.warning("the incoming release begins anew, its files are damaged: %s", error)
            receiver.offer = None
            return
        self._number = offer.number
        if receiver.state == RECEIVING:
            for symbol in self._symbols(offer):
                receiver.add(symbol)
        elif receiver.state == REFUSED and (self._folder / CANDIDATE / SIGNATURES).exists():
            receiver.state, receiver.reason = HELD, ""  # the board's fault may be gone
        self._judge(offer)
        receiver.answer_soon(now)

    def survey(self) -> None:
        """See what is installed; what of it is not taken is logged with the reason."""
        try:
            standing = self._releases.standing()
            signed, refused = self._releases.survey(standing.floor)
        except BoardFault as error:
            _log.warning("no new release can be seen: %s", error)
            return
        for version, reason in refused.items():
            _log.warning("release %d is not taken: %s", version, reason)
        self.installed = report(standing, refused)
        self.waits = bool(signed)

    def take(self, body: bytes, now: float) -> None:
        """Take an offer or a symbol. WireError."""
        try:
            if body[0] == OFFER:
                self._take_offer(read_offer(body), now)
            elif self._receiver.add(symbol := read_symbol(body)):
                self._write(symbol)
        except (OSError, BoardFault) as error:
            self._receiver.become(REFUSED, now, f"the disk fails: {error}")
            raise WireError("release", str(error)) from error

    def _write(self, symbol: ReleaseSymbol) -> None:
        if self._file is None:
            self._file = (self._folder / SYMBOLS).open("ab", buffering=0)
        crc = zlib.crc32(symbol.index.to_bytes(2, "little") + symbol.data)
        self._file.write(_RECORD.pack(symbol.index, crc) + symbol.data)

    def poll(self, now: float) -> None:
        """Go on with the work, and tell the host if that is due."""
        receiver = self._receiver
        try:
            if self._outcome:
                self._thread = None
                self._attempts = 0  # the node has survived
                self._become(*self._outcome.pop(), now)
                self.survey()
            if receiver.offer is not None and self._thread is None:
                self._work(receiver.offer)
            if self._file is not None and receiver.is_due(now):
                os.fsync(self._file.fileno())
        except (OSError, BoardFault) as error:
            receiver.become(REFUSED, now, f"the disk fails: {error}")
        if (body := receiver.answer(now)) is not None:
            self.send(body)

    def report(self) -> IncomingRelease | None:
        """The state for `ternmesh status`; None without a release."""
        receiver, offer = self._receiver, self._receiver.offer
        if offer is None:
            return None
        count = layout_of(offer).count
        lacking = sum(receiver.needs) if receiver.state == RECEIVING else 0
        return IncomingRelease(
            version=offer.version,
            stage=STAGES[offer.stage],
            state=STATES[receiver.state],
            reason=receiver.reason,
            held=round(1 - lacking / count, 3),
        )

    def _take_offer(self, offer: ReleaseOffer, now: float) -> None:
        if offer.name != self._name:
            raise WireError("wrong model", f"a release of {offer.name}")
        changes_files = offer.stage == WITHDRAWN or self._receiver.is_new(offer)
        if changes_files and self._thread is not None:
            return  # the thread still reads them, and the host repeats its offers
        is_new = self._receiver.take_offer(offer, now)
        if is_new:
            self._clear()
        if is_new or offer.number != self._number:
            self._number = offer.number
            replace_file(self._folder / OFFER_FILE, write_offer(offer))
            if offer.stage == WITHDRAWN and self._receiver.state != RUNNING:
                self._clear()
                self._become(REFUSED, "withdrawn", now)
        if is_new and offer.stage != WITHDRAWN and not self._judge(offer):
            raise WireError("release", self._receiver.reason)

    def _judge(self, offer: ReleaseOffer) -> bool:
        """Whether the release may come here, by what this board runs and its disk."""
        receiver, standing = self._receiver, self._releases.standing()
        outcome, bad = (receiver.state, receiver.reason), dict(standing.bad)
        if offer.version == standing.current:
            outcome = RUNNING, ""
        elif offer.version in bad:
            outcome = BAD, bad[offer.version]
        elif offer.version <= standing.floor:
            outcome = REFUSED, f"this board has had version {standing.floor}"
        elif receiver.state == RECEIVING:
            used = sum(path.stat().st_size for path in self._model.iterdir() if path.is_file())
            needed = 2 * offer.size + used + SPARE_BYTES
            free = shutil.disk_usage(self._folder).free
            if free < needed:
                outcome = REFUSED, f"{needed >> 20} MiB are needed and {free >> 20} are free"
        receiver.state, receiver.reason = outcome
        return receiver.state != REFUSED

    def _work(self, offer: ReleaseOffer) -> None:
        receiver = self._receiver
        if receiver.state == RECEIVING and not any(receiver.needs):
            self._begin(self._assemble, offer)
        elif offer.stage == ACTIVE and receiver.state == GOOD:
            self._begin(self._install, offer)
        elif offer.stage != WITHDRAWN and receiver.state == HELD and receiver.may_try:
            self._attempts += 1  # on disk before the trial begins: it may kill the node
            self._save()
            self._begin(self._try, offer)

    def _begin(self, work: Callable[[ReleaseOffer], Outcome], offer: ReleaseOffer) -> None:
        def run() -> None:
            try:
                outcome = work(offer)
            except (BoardFault, NoData, FileMissing, OSError) as error:  # of the board
                outcome = REFUSED, str(error)
            except TernmeshError as error:
                outcome = BAD, str(error)
            self._outcome.append(outcome)

        self._thread = threading.Thread(target=run, name="release", daemon=True)
        self._thread.start()

    def _assemble(self, offer: ReleaseOffer) -> Outcome:
        layout = layout_of(offer)
        decoder = Decoder(layout, offer.digest[:NAME_SIZE])
        for symbol in sorted(self._symbols(offer), key=lambda one: one.index):
            decoder.add(symbol.index, symbol.data)
        if not decoder.is_complete:
            self._receiver.lack(decoder.missing)
            return RECEIVING, ""
        data = decoder.data()
        if sha256(data).digest() != offer.digest:
            self._clear()
            self._receiver.start_over()
            return RECEIVING, ""
        standing = self._releases.standing()
        held = [self._model, self._releases.folder / str(standing.current)]
        target = self._folder / CANDIDATE
        manifest = extract(data, target, held, self._verify)
        if (manifest.name, manifest.version) != (offer.name, offer.version):
            raise ModelPackageError("the release is not the one of its offer")
        (self._folder / SYMBOLS).unlink(missing_ok=True)
        return HELD, ""

    def _try(self, _offer: ReleaseOffer) -> Outcome:
        if self._attempts > ATTEMPTS_MAX:
            return BAD, f"the node died in {ATTEMPTS_MAX} trials of it"
        folder = self._folder / CANDIDATE
        manifest = self._releases.read(folder)
        try_release(self._config, load_release(folder, manifest), manifest)
        return GOOD, ""

    def _install(self, _offer: ReleaseOffer) -> Outcome:
        self._releases.adopt(self._folder / CANDIDATE)
        return RUNNING, ""  # the node restarts with it

    def _symbols(self, offer: ReleaseOffer) -> Sequence[ReleaseSymbol]:
        path, size = self._folder / SYMBOLS, _RECORD.size + offer.symbol_bytes
        if not path.exists():
            return []
        os.truncate(path, path.stat().st_size // size * size)
        data, symbols = path.read_bytes(), []
        for at in range(0, len(data), size):
            index, crc = _RECORD.unpack_from(data, at)
            content = data[at + _RECORD.size : at + size]
            if crc == zlib.crc32(data[at : at + 2] + content):
                symbols.append(ReleaseSymbol(offer.digest[:2], index, content))
        return symbols

    def _become(self, state: int, reason: str, now: float) -> None:
        if (state, reason) != (self._receiver.state, self._receiver.reason):
            _log.info("the release is %s %s", STATES[state], reason)
        self._receiver.become(state, now, reason)
        self._save()

    def _save(self) -> None:
        content = {
            "state": self._receiver.state,
            "reason": self._receiver.reason,
            "attempts": self._attempts,
        }
        replace_file(self._folder / STATE, json.dumps(content).encode())

    def _clear(self) -> None:
        self._attempts = 0
        if self._file is not None:
            self._file.close()
            self._file = None
        for name in (SYMBOLS, STATE):
            (self._folder / name).unlink(missing_ok=True)
        shutil.rmtree(self._folder / CANDIDATE, ignore_errors=True)
