"""What somebody can say who has all rights on the broker, and no key of the fleet or only one."""

import struct
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from bench.processes import FLEET, PATIENCE_S
from ternmesh.trust.identity import Identity
from ternmesh.trust.keys import SUITE_END, group_key, nonce
from ternmesh.trust.notary import NO_RUN
from ternmesh.trust.primitives import Ccm
from ternmesh.trust.session import GroupState, group_name
from ternmesh.trust.signing import Place, sign_body
from ternmesh.wire import control, pieces, seal
from ternmesh_store.keyring import Keyring, TrustConfig
from ternmesh_store.trust_store import END
from transports import batch
from transports.base import ALL, HOST

ROOT = f"ternmesh/{FLEET}"
UP, DOWN, EVERYONE = f"{ROOT}/up/", f"{ROOT}/down/", f"{ROOT}/{ALL}"
_HEAD = struct.Struct("<BH3s")
AHEAD = 200  # counters: an insider's broadcasts are newer than those that were heard


@dataclass(frozen=True, slots=True)
class Shot:
    """A message of an attack."""

    topic: str
    frames: tuple[bytes, ...]

    @property
    def to(self) -> str:
        """Who hears it: HOST, ALL or a node."""
        if self.topic.startswith(UP):
            return HOST
        return ALL if self.topic == EVERYONE else self.topic.removeprefix(DOWN)


class Wiretap:
    """Hears everything on a broker that lets it, and says what it likes."""

    def __init__(self, url: str) -> None:
        self.heard: list[Shot] = []
        self._client = Client(CallbackAPIVersion.VERSION2, client_id="wiretap")
        self._client.max_inflight_messages_set(1000)
        self._client.on_message = lambda _c, _u, m: self.heard.append(
            Shot(m.topic, batch.split(bytes(m.payload)))
        )
        self._client.on_connect = lambda client, *_: client.subscribe(f"{ROOT}/#", qos=1)
        self._address = urlsplit(url).hostname or "", urlsplit(url).port or 0

    def __enter__(self) -> "Wiretap":
        self._client.connect(*self._address)
        self._client.loop_start()
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def say(self, shots: Sequence[Shot]) -> None:
        """Publish, in this order; back when the broker has all."""
        sent = [self._client.publish(s.topic, batch.join(s.frames), qos=1) for s in shots]
        for item in sent:
            item.wait_for_publish(PATIENCE_S)


def singly(shots: Sequence[Shot]) -> list[Shot]:
    """Each frame in a message of its own."""
    return [Shot(shot.topic, (frame,)) for shot in shots for frame in shot.frames]


def shuffled(shots: Sequence[Shot], rng: np.random.Generator) -> list[Shot]:
    """The frames in another order, so that counters go up and down."""
    single = singly(shots)
    return [single[index] for index in rng.permutation(len(single))]


def bent(shots: Sequence[Shot], rng: np.random.Generator) -> list[Shot]:
    """Each frame with one bit flipped, anywhere in it."""
    found = []
    for shot in singly(shots):
        frame = bytearray(shot.frames[0])
        frame[int(rng.integers(len(frame)))] ^= 1 << int(rng.integers(8))
        found.append(Shot(shot.topic, (bytes(frame),)))
    return found


def crossed(shots: Sequence[Shot], names: Sequence[str]) -> list[Shot]:
    """What one node said or heard, in the place of another."""
    found = []
    for shot in singly(shots):
        root, _, name = shot.topic.rpartition("/")
        if name in names:
            other = names[(names.index(name) + 1) % len(names)]
            found.append(Shot(f"{root}/{other}", shot.frames))
    return found


def other_versions(shots: Sequence[Shot]) -> list[Shot]:
    """Frames that were heard, as of another wire version or of another suite; suite 0 included."""
    found = []
    for index, shot in enumerate(singly(shots)):
        frame = bytearray(shot.frames[0])
        if index % 2:
            frame[0] = frame[0] & 0x1F | (0, 2, 3, 7)[index // 2 % 4] << 5
        else:
            frame[0] = frame[0] & ~0x1C | (0, 2, 3, 7)[index // 2 % 4] << 2
        found.append(Shot(shot.topic, (bytes(frame),)))
    return found


def unsealed(run: bytes, nodes: dict[str, int], model: bytes) -> list[Shot]:
    """What a fleet without keys says, in everybody's name: suite 0 and a right checksum."""
    found = []
    for name, context in nodes.items():
        for number, body in enumerate(_bodies(run, name, context, model)):
            for at in (seal.ENROL, context):
                frame = seal.seal(seal.Header(at, number), body)
                found.append(Shot(UP + name, (frame,)))
            for at in (seal.ENROL, context | seal.DOWN):
                frame = seal.seal(seal.Header(at, number), body)
                found.append(Shot(DOWN + name, (frame,)))
            frame = seal.seal(seal.Header(seal.BROADCAST, number), body)
            found.append(Shot(EVERYONE, (frame,)))
    return found


def forged(shots: Sequence[Shot], rng: np.random.Generator) -> list[Shot]:
    """Status and control frames with the right head, the next counters and a tag that is guessed.

    Nobody without the key knows what is inside, so the body is as long as that of the real one.
    """
    found = []
    for shot in singly(shots):
        first, context, low = _HEAD.unpack_from(shot.frames[0])
        counter = int.from_bytes(low, "little") + int(rng.integers(1, 50))
        head = _HEAD.pack(first, context, (counter & 0xFFFFFF).to_bytes(3, "little"))
        found.append(Shot(shot.topic, (head + rng.bytes(len(shot.frames[0]) - len(head)),)))
    return found


def rubbish(names: Sequence[str], count: int, rng: np.random.Generator) -> list[Shot]:
    """Random bytes, some of which are no frame at all, and some begin like one."""
    found = []
    for index in range(count):
        body = rng.bytes(int(rng.integers(1, 300)))
        body = body if index % 2 else b"\x24" + body  # wire version 1, suite 1
        found.append(Shot((UP, DOWN)[index % 2] + names[index % len(names)], (body,)))
    return found


@dataclass(frozen=True, slots=True)
class Insider:
    """What is in a node's files: its identity and the key of what is said to all."""

    own: Identity
    fleet: bytes
    group: GroupState


def steal(folder: Path) -> Insider:
    """Read the files of a node; it must be at rest, or another process."""
    with tempfile.TemporaryDirectory() as place:
        for path in folder.iterdir():
            if path.is_file():
                (Path(place) / path.name).write_bytes(path.read_bytes())
        for path in Path(place).iterdir():
            path.chmod(0o600)
        ring = Keyring(Path(place), TrustConfig())
        ring.open()
        try:
            state = ring.store.sealing(END)
            assert state.group is not None, "it has not heard the host yet"
            return Insider(ring.own, ring.roster.fleet, state.group)
        finally:
            ring.close()


def as_hub(insider: Insider, run: bytes, model: bytes, heard: Sequence[Shot]) -> list[Shot]:
    """A member speaks to all in the host's place: the key fits, the signature cannot."""
    counters = [
        int.from_bytes(_HEAD.unpack_from(frame)[2], "little")
        for shot in heard
        if shot.topic == EVERYONE
        for frame in shot.frames
    ]
    announce = control.write_control(control.Announce(run, 99, control.FINISHED, 0))
    place = Place(insider.fleet, NO_RUN, model)
    welcome = control.Welcome(bytes(8), 1, run, 99, control.FINISHED, 0, (1,))
    bodies = [
        announce,
        sign_body(insider.own, place, group_name(insider.group.secret), announce),
        control.write_control(control.Refusal(0, "unknown node")),
        control.write_control(welcome),
        *pieces.cut(bytes(100), 184),
    ]
    state, first = insider.group, max(counters) + AHEAD
    found = []
    for counter, body in enumerate(bodies, first):
        start = seal.VERSION << 5 | SUITE_END << 2 | (state.epoch & 1) << 1
        head = _HEAD.pack(start, seal.BROADCAST, (counter & 0xFFFFFF).to_bytes(3, "little"))
        key = group_key(
            state.secret, SUITE_END, state.fingerprint, insider.fleet, state.epoch, counter
        )
        frame = head + Ccm(key).seal(nonce(seal.BROADCAST, counter), head, body)
        found.append(Shot(EVERYONE, (frame,)))
    return found


def _bodies(run: bytes, name: str, context: int, model: bytes) -> Iterator[bytes]:
    hello = control.Hello(name, bytes(8), model[:8], run, 0, bytes(16), 100)
    yield control.write_control(hello)
    yield control.write_control(control.Welcome(bytes(8), context, run, 1, control.OPEN, 0, (1,)))
    yield control.write_control(control.Announce(run, 99, control.FINISHED, 0))
    yield control.write_control(control.Refusal(1, "unknown node"))
    yield control.write_control(control.Receipt(1, bytes(4), b"\xff"))
    yield control.write_control(control.Silent(1))
