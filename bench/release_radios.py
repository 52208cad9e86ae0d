"""A fleet on emulated radios that gets a release: the whole stack of all ends in one process.

Keys, state files, link, airtime ledger, pseudo-terminals, emulated modems. Updates are random.
"""

import os
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.processes import MODEL
from edge.config import DataConfig, EvaluateConfig, NodeConfig, ReleasesConfig
from edge.files import entry_of
from edge.releases.incoming import Incoming
from edge.releases.store import Releases, release_check
from host.config import PublishConfig, RunConfig, plan_of, settings_of
from host.releases import FOLDER, NEW, Publisher, signed_here
from host.runs import continue_or_begin
from host.service import HostService
from models.zoo import package_path
from ternmesh.federated.events import NodeEvent, WorkReady
from ternmesh.federated.joining import NodeSettings
from ternmesh.federated.node import NodeProtocol
from ternmesh.link.airtime import LoraSetting
from ternmesh.model_package import ADAPTER, read_model_package
from ternmesh.release import DESCRIPTION, FILES, MANIFEST, SIGNATURES, make_manifest, write_manifest
from ternmesh.security.identity import Identity, Role
from ternmesh.security.keyed_sealing import SYNC_OVERHEAD
from ternmesh.security.signatures import SIGNED_HEAD, Signers, sign_release
from ternmesh.timers import Random
from ternmesh.wire.frame import FRAME_OVERHEAD
from ternmesh.wire.release import OFFER, STATUS, SYMBOL
from ternmesh_cli.keys import enrol_fleet, keyring_at
from ternmesh_service.keyring import SecurityConfig, choose_keyring, hop_keys, opened
from ternmesh_service.release_files import pack_folder
from ternmesh_store.host_store import HostStore
from ternmesh_store.node_store import NodeStore
from ternmesh_store.state_file import StateFile
from tests.edge import conftest as tiny
from transports.base import HOST
from transports.driver import Driver
from transports.factory import make_transport, pace_of, profile_of
from transports.link_config import LinkConfig
from transports.serial_lora.coding import PREFIX
from transports.serial_lora.emulator.radios import EmulatedRadios, new_modem

FLEET, VERSION, MEMORY = "bench", 2, Path("/dev/shm")
PACKAGE, DATA = "package", "data.npz"  # of the fleet
PACKED = 0.92  # of the bytes of an adapter, once it is compressed
LOSS, SPEED = 0.2, 100.0
# In radio time: how long a board trains, and when a round closes without late boards
DIMENSION, TRAINING_S, DEADLINE_S = 2000, 900.0, 3600.0
PATIENCE_S, TURN_S = 600.0, 0.002
COMPARED_S = 240.0  # how long rounds are counted, and the run without a release
RADIO = LoraSetting(7)
LIMITS = 100.0, 60.0  # the largest loss, and the longest seconds of a step
Table = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes releases in `folder`, signed by `own` for the fleet with this digest."""

    folder: Path
    own: Identity
    fleet: bytes
    rng: np.random.Generator

    def package(self, version: int) -> Path:
        """A copy of the shipped model package, to be changed."""
        folder = self.folder / f"package-{version}"
        shutil.copytree(package_path(MODEL), folder)
        return folder

    def signed(self, version: int, package: Path) -> Path:
        """A signed release of a package."""
        loaded = read_model_package((package / DESCRIPTION).read_bytes())
        entries = tuple(entry_of(package / name) for name in FILES)
        release = self.folder / f"release-{version}"
        shutil.copytree(package, release)
        manifest = write_manifest(make_manifest(loaded, version, entries, LIMITS))
        (release / MANIFEST).write_bytes(manifest)
        signature = sign_release(self.own, self.fleet, manifest, Signers((self.own.public,)))
        (release / SIGNATURES).write_bytes(signature)
        return release


def wide(folder: Path, inputs: int, rng: np.random.Generator) -> Path:
    """A linear model with an adapter of about 2 numbers for each input, and its data."""
    outputs, rank = 2, 2
    tiny.INPUTS, tiny.OUTPUTS, tiny.RANK = inputs, outputs, rank
    tiny.SIZE_A, tiny.SIZE_B = inputs * rank, rank * outputs
    tiny.SLOPE = np.zeros((inputs, outputs), np.float32)
    folder.mkdir(parents=True)
    adapter = 0.01 * rng.standard_normal(tiny.SIZE_A + tiny.SIZE_B)
    tiny._write(folder, {ADAPTER: adapter.astype("<f4").tobytes()})
    x, t = rng.standard_normal((16, inputs)), rng.standard_normal((16, outputs))
    np.savez(folder / DATA, x=x.astype(np.float32), t=t.astype(np.float32))
    return folder


class End:
    """One end on a radio; `begin` is called again after each kill."""

    def __init__(self, role: str, folder: Path, link: LinkConfig) -> None:
        self.role, self.folder, self.link = role, folder / role, link
        self.bytes_sent = Counter[int]()  # for the release, by the kind of body

    def begin(self) -> None:
        """Make everything anew from the disk."""
        state = StateFile(self.folder)
        self.keyring = choose_keyring(state, SecurityConfig(), self.link, insecure=False)
        self.stack = ExitStack()
        self.stack.enter_context(opened(state, self.keyring, FLEET))
        self.transport = make_transport(
            self.link, self.role, state, hop_keys(self.keyring, self.role)
        )
        self.make(state)
        self.transport.open()

    def make(self, state: StateFile) -> None:
        """The protocol of this end."""
        raise NotImplementedError

    def turn(self) -> None:
        """Serve it once."""
        raise NotImplementedError

    def kill(self) -> None:
        """Drop everything, and begin anew."""
        self.end()
        self.begin()

    def end(self) -> None:
        """Drop everything."""
        self.transport.close()
        self.stack.close()

    def count(self, body: bytes, overhead: int) -> None:
        """Note a body of the release that goes on the air."""
        self.bytes_sent[body[0]] += len(body) + overhead + PREFIX


class HostEnd(End):
    """The host's services, but for its control socket."""

    def make(self, state: StateFile) -> None:
        run = RunConfig(rounds=100_000, min_peers=2, deadline_s=DEADLINE_S / SPEED, up_zeros=0.95)
        folder = self.folder.parent / PACKAGE
        package = read_model_package((folder / DESCRIPTION).read_bytes())
        plan, settings = plan_of(run, DIMENSION, profile_of(self.link)), settings_of(run)
        store, model = HostStore(state, settings.chain_max), package.model_hash()
        self.keyring.security(HOST, model, 0)
        stored = continue_or_begin(store, plan, package)
        check, longest_s = signed_here(self.keyring), float(plan.announce_s)
        where = self.folder / FOLDER
        self.releases = Publisher(where, folder, package.name, check, PublishConfig(), longest_s)
        self.releases.open()
        self.service = HostService(
            stored, settings, model, store, self.transport, keyring=self.keyring,
            pace=pace_of(self.transport), releases=self.releases,
        )  # fmt: skip
        send = self.service.protocol.session.broadcast

        def broadcast(bodies: Sequence[bytes]) -> None:
            for body in bodies:
                signature = SIGNED_HEAD * (body[0] == OFFER)
                self.count(body, FRAME_OVERHEAD + signature)
            send(bodies)

        self.service.protocol.session.broadcast = broadcast  # type: ignore[method-assign]
        self.service.start()

    def turn(self) -> None:
        self.service.poll(0.0)


class BoardEnd(End):
    """A node whose updates are random, and the real intake of releases."""

    def make(self, state: StateFile) -> None:
        folder = self.folder.parent / PACKAGE
        data = str(folder / DATA)
        config = NodeConfig(
            self.role, str(self.folder), str(folder), self.link,
            DataConfig(path=data), evaluate=EvaluateConfig(path=data),
            releases=ReleasesConfig(dir=str(self.folder / "releases")),
        )  # fmt: skip
        package = read_model_package((folder / DESCRIPTION).read_bytes())
        model, rng = package.model_hash(), np.random.default_rng()
        self.store, self.rng = NodeStore(state), rng
        self.trained: dict[int, float] = {}  # when a round's training is done, by its number
        last = self.store.load(model, DIMENSION, package.adapter_key())
        security = self.keyring.security(self.role, model, last.counter)
        pace = pace_of(self.transport)
        self.node = NodeProtocol(
            NodeSettings(self.role, model, os.urandom(8), pace=pace),
            last,
            samples=100,
            rng=rng,
            security=security,
        )
        self.driver: Driver[NodeEvent] = Driver(self.node, self.transport, time.monotonic)
        check = release_check(config, self.keyring)
        self.releases = Releases(self.folder / "releases", check)
        jitter: Random = random.Random()
        self.incoming = Incoming(config, self.releases, check, folder, jitter)
        self.incoming.send = self.tell
        self.incoming.open(package.name, time.monotonic())
        self.node.take_release = self.incoming.take
        self.node.start(time.monotonic())

    def turn(self) -> None:
        now = time.monotonic()

        def handle(event: NodeEvent) -> None:
            self.store.record(event)
            self.keyring.record(event)
            if isinstance(event, WorkReady):
                self.trained = {event.round: now + TRAINING_S / SPEED}

        self.driver.poll(0.0, handle, self.store.commit)
        for number in [n for n, at in self.trained.items() if now >= at]:
            del self.trained[number]
            delta = (0.01 * self.rng.standard_normal(DIMENSION)).astype(np.float32)
            self.node.submit(number, delta, now)
        self.incoming.poll(now)

    def tell(self, body: bytes) -> None:
        """Send a status."""
        self.count(body, FRAME_OVERHEAD if self.node.joined else SYNC_OVERHEAD)
        self.node.send_release_status(body)

    @property
    def installed(self) -> bool:
        """Whether it has the release, and would restart with it."""
        return self.releases.installed() == [VERSION]


def radios(boards: int, size: int, kills: int, like: Table | None = None) -> Table:
    """A fleet on radios until all have the release.

    With `like`, an earlier result: the same kills for `COMPARED_S`, without a release.
    """
    names = [f"board-{index}" for index in range(boards)]
    modems = [new_modem("rnode", index, radio=RADIO) for index in range(boards + 1)]
    air = EmulatedRadios(modems, speed=SPEED, loss=LOSS)
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as scratch, air:
        folder = Path(scratch)
        enrol_fleet(FLEET, folder / HOST, {name: folder / name for name in names})
        links = [_link(port, names) for port in air.paths]
        host = HostEnd(HOST, folder, links[0])
        fleet = [BoardEnd(n, folder, at) for n, at in zip(names, links[1:], strict=True)]
        _publish(folder, rng, size, is_sent=like is None)
        ends: list[End] = [host, *fleet]
        for end in ends:
            end.begin()
        begun, held, killed_at = time.monotonic(), 0.0, list[float]()
        planned = like["killed_at"] if like else []
        limit_s, rounds = min(like["seconds"], COMPARED_S) if like else PATIENCE_S, 0
        while (passed := time.monotonic() - begun) < limit_s:
            for end in ends:
                end.turn()
            time.sleep(TURN_S)  # the modems' thread needs the interpreter, too
            held = sum(_held(board) for board in fleet) / boards
            if passed < COMPARED_S:
                rounds = host.service.protocol.version
            killed = len(killed_at)
            is_due = killed < kills and held > (killed + 1) / (kills + 2)
            if is_due or (killed < len(planned) and passed > planned[killed]):
                ends[killed * 3 % len(ends)].kill()
                killed_at.append(round(passed, 1))
            if like is None and all(board.installed for board in fleet):
                break
        installed = sum(board.installed for board in fleet)
        status = host.releases.status()
        for end in ends:
            end.end()
    used = sum((end.bytes_sent for end in ends), Counter[int]())
    return {
        "installed": installed,
        "seconds": passed, "rounds": rounds, "killed_at": killed_at,
        "object": status.bytes if status else 0,
        "offers": used[OFFER], "symbols": used[SYMBOL], "statuses": used[STATUS],
    }  # fmt: skip


def _publish(folder: Path, rng: np.random.Generator, size: int, *, is_sent: bool) -> None:
    """Make the fleet's model, and a release of about `size` bytes for the host's start."""
    with keyring_at(folder / HOST, HOST, Role.HOST) as ring:
        maker = Maker(folder / "made", ring.own, ring.member_list.fleet, rng)
    inputs = round(size / PACKED / 8)
    wide(folder / PACKAGE, inputs, rng)
    release = maker.signed(VERSION, wide(maker.folder / PACKAGE, inputs, rng))
    target = folder / HOST / FOLDER
    target.mkdir(parents=True)
    if not is_sent:
        return
    (target / NEW).write_bytes(pack_folder(release))
    (target / f"{NEW}.json").write_text("0.1")


def _held(board: BoardEnd) -> float:
    with suppress(AttributeError):
        report = board.incoming.report()
        return 0.0 if report is None else report.held
    return 0.0


def _link(port: str, names: Sequence[str]) -> LinkConfig:
    serial = {
        "port": port, "dialect": "rnode", "frequency_hz": 869_525_000, "speed": SPEED,
        "spreading_factor": 7,
        "addresses": {name: address for address, name in enumerate(names, 1)},
    }  # fmt: skip
    return LinkConfig(region="EU868", fleet=FLEET, serial=serial)
