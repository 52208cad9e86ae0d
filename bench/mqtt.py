"""MQTT through a real mosquitto: messages a second with disk and receipts, and a broker that dies.

The broker has its default settings, so it keeps nothing on disk.
"""

import logging
import multiprocessing
import random
import struct
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

import numpy as np

from bench.result import Figure, Result, mean_figure
from ternmesh.link.settings import LinkSettings
from ternmesh_store.database import Database, Schema
from ternmesh_store.link_store import LinkStore
from ternmesh_store.state_file import StateFile
from tests.mosquitto import Mosquitto
from transports.base import HOST, Busy, NotConnected, Transport
from transports.mqtt.settings import MqttSettings
from transports.mqtt.transport import MqttTransport
from transports.reliable import ReliableTransport

RUNS, RUNS_QUICK = 8, 2
MESSAGES, MESSAGES_QUICK = 10_000, 3_000
BODY = 222  # bytes of a message, its number included
WINDOW = 512  # messages without a receipt; mosquitto drops what waits beyond 1,000 for a reader
ARRIVALS_MAX = 256
SEEDS, SEEDS_QUICK = 8, 1
OBJECTS, OBJECTS_QUICK = 500, 200  # of a seed, while the broker is killed
SIZES, RATE = (1100, 1300), 25.0  # bytes of an object, objects a second
HALF = 600  # an object is handed over as two frames
UP_S, DOWN_S = (2.0, 4.0), (0.0, 0.5)  # how long the broker lives, and is away
LINK = LinkSettings(mtu=184, idle_s=0.25, longest_s=2.0)
NODE, FLEET = "node", "bench"
PATIENCE_S, POLL_S = 300.0, 0.02
SCHEMA = Schema(
    application=0x544D4242,  # "TMBB"
    version=1,
    statements=("CREATE TABLE message (number INTEGER PRIMARY KEY, body BLOB NOT NULL)",),
)
NUMBER = struct.Struct("<I")
Openable = TypeVar("Openable", Database, StateFile, MqttTransport, ReliableTransport)
NOTES = (
    f"{MESSAGES:,} messages of {BODY} bytes a run, each a PUBLISH of its own at QoS 1, between "
    "two processes, through a mosquitto with its defaults on this machine; time ends when the "
    f"sender has the receipt of every message on disk (SQLite, synchronous=FULL, at both ends)",
    f"kills: SIGKILL after {UP_S[0]:g} to {UP_S[1]:g} s of life, until all is delivered; "
    f"{OBJECTS} objects of 1.1 to 1.3 kB a seed, {RATE:g} a second, over the reliable link in "
    "frames of 184 bytes",
)


def measure(*, quick: bool) -> Result:
    """Both claims."""
    logging.getLogger("transports").setLevel(logging.ERROR)  # it warns of each kill
    runs, messages = (RUNS_QUICK, MESSAGES_QUICK) if quick else (RUNS, MESSAGES)
    objects, seeds = (OBJECTS_QUICK, SEEDS_QUICK) if quick else (OBJECTS, SEEDS)
    sent, found = [], Counter[str]()
    with tempfile.TemporaryDirectory() as name, Mosquitto(Path(name)) as broker:
        for run in range(runs):
            folder = Path(name, str(run))
            folder.mkdir()
            sent.append(send_messages(broker.url, folder, messages, run))
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as name:
            found += survive_kills(Path(name), objects, seed)
    figures = {
        "messages_per_s": mean_figure([messages / seconds for seconds, _ in sent], ">=1500"),
        "messages_right": Figure(sum(is_right for _, is_right in sent) / runs, ">=1"),
        "kills_packets": Figure(objects * seeds, None if quick else ">=500"),
        "kills": Figure(found["kills"]),
    }
    for kind in ("lost", "twice", "not_forgotten"):
        figures[f"kills_packets_{kind}"] = Figure(found[kind], "<=0")
    return Result("mqtt", figures, notes=NOTES, quick=quick)


def bodies(count: int, seed: int) -> Iterator[bytes]:
    """`count` messages, each with its number in front."""
    rng = random.Random(seed)
    for number in range(count):
        yield NUMBER.pack(number) + rng.randbytes(BODY - NUMBER.size)


def send_messages(url: str, folder: Path, count: int, seed: int) -> tuple[float, bool]:
    """Send messages to a process of its own, through the broker at `url`.

    Returns the seconds until the sender has every receipt on disk, and whether the receiver has
    each message once and the outbox is empty.
    """
    fresh, due, sent = bodies(count, seed), deque[bytes](), set[int]()  # `sent`: without a receipt
    with (
        _other_process(_receive, url, folder) as other,
        _opened(Database(folder / "outbox.sqlite", SCHEMA)) as box,
        _opened(_transport(url, NODE)) as end,
    ):
        begun = time.monotonic()
        while True:
            for body in islice(fresh, WINDOW - len(sent)):
                number = NUMBER.unpack_from(body)[0]
                box.write("INSERT INTO message VALUES (?, ?)", number, body)
                due.append(body)
                sent.add(number)
            if box.changed:
                box.commit()
            if not sent:
                break
            with suppress(Busy, NotConnected):  # what is due stays due
                while due:
                    end.send(HOST, [due[0]])
                    due.popleft()
            for frame in _arrived(end, wait_s=0.002 if due else 0.1):
                for (number,) in NUMBER.iter_unpack(frame):
                    if number in sent:
                        sent.remove(number)
                        box.write("DELETE FROM message WHERE number = ?", number)
            assert time.monotonic() - begun < PATIENCE_S, "receipts are missing"
        seconds = time.monotonic() - begun
        left = box.rows("SELECT * FROM message")
        other.send("end")
        other.recv()
    with _opened(Database(folder / "inbox.sqlite", SCHEMA)) as box:
        found = [body for (body,) in box.rows("SELECT body FROM message ORDER BY number")]
    return seconds, not left and found == list(bodies(count, seed))


def _receive(pipe: Connection, url: str, folder: Path) -> None:
    """The receiving process: disk first, then receipts, until `end` comes over the pipe."""
    due = b""
    with (
        _opened(Database(folder / "inbox.sqlite", SCHEMA)) as box,
        _opened(_transport(url, HOST)) as end,
    ):
        pipe.send("ready")
        while not pipe.poll():
            for frame in _arrived(end, wait_s=0.002 if due else 0.1):
                number = frame[: NUMBER.size]
                row = NUMBER.unpack(number)[0]
                box.write("INSERT OR IGNORE INTO message VALUES (?, ?)", row, frame)
                due += number
            if box.changed:
                box.commit()
            with suppress(Busy, NotConnected):  # what is due stays due
                if due:
                    end.send(
                        NODE, [due + due[: NUMBER.size] * 4]
                    )  # no frame is shorter than 15 bytes
                    due = b""
    pipe.send("ended")


def _arrived(end: Transport, wait_s: float) -> list[bytes]:
    """The frames that have arrived; it waits for the first."""
    frames: list[bytes] = []
    for _ in range(ARRIVALS_MAX):
        arrival = end.receive(0.0 if frames else wait_s)
        if arrival is None:
            break
        frames += arrival.frames
    return frames


@contextmanager
def _other_process(target: Callable[..., None], *arguments: object) -> Iterator[Connection]:
    """A pipe to a process that runs `target(pipe, *arguments)`, once it has sent `ready`."""
    ours, theirs = multiprocessing.Pipe()
    address = multiprocessing.get_context("spawn")
    process = address.Process(target=target, args=(theirs, *arguments), daemon=True)
    process.start()
    try:
        assert ours.poll(PATIENCE_S), f"{target.__name__} did not start"
        ours.recv()
        yield ours
    finally:
        process.kill()


@contextmanager
def _opened(thing: Openable) -> Iterator[Openable]:
    """A database or transport that is open in the block, and connected where it can be."""
    thing.open()
    try:
        give_up_at = time.monotonic() + PATIENCE_S
        while not getattr(thing, "connected", True):
            assert time.monotonic() < give_up_at, "no connection to the broker"
            time.sleep(0.01)
        yield thing
    finally:
        thing.close()


def survive_kills(folder: Path, count: int, seed: int) -> Counter[str]:
    """Send objects from the node to the host over a broker that is killed."""
    rng = random.Random(seed)
    objects = [rng.randbytes(rng.randint(*SIZES)) for _ in range(count)]
    received: Counter[bytes] = Counter()
    kills, is_up = 0, True
    with (
        Mosquitto(folder) as broker,
        _opened(StateFile(folder / NODE)) as sent,
        _opened(StateFile(folder / HOST)) as taken,
        _opened(_reliable(sent, broker.url, NODE)) as node,
        _opened(_reliable(taken, broker.url, HOST)) as host,
    ):
        begun, waiting = time.monotonic(), deque(objects)
        change_at = begun + rng.uniform(*UP_S)
        while waiting or received.total() < count or node.objects_sent < count:
            now = time.monotonic()
            if now > begun + PATIENCE_S:
                break  # what is missing is lost
            with suppress(Busy):  # the rest is sent later
                while count - len(waiting) < (now - begun) * RATE and waiting:
                    node.send(HOST, [waiting[0][:HALF], waiting[0][HALF:]])
                    waiting.popleft()
            node.receive(0.0)
            while (arrival := host.receive(POLL_S)) is not None:
                received[b"".join(arrival.frames)] += 1
            if now >= change_at:
                broker.kill9() if is_up else broker.start()
                kills, is_up = kills + is_up, not is_up
                change_at = now + rng.uniform(*(UP_S if is_up else DOWN_S))
    with _opened(StateFile(folder / NODE)) as file:
        not_forgotten = len(LinkStore(file).load().outgoing)
    wanted = Counter(objects)
    return Counter(
        kills=kills,
        lost=(wanted - received).total(),
        twice=(received - wanted).total(),
        not_forgotten=not_forgotten,  # objects that stay in the sender's file
    )


def _transport(url: str, role: str) -> MqttTransport:
    return MqttTransport(MqttSettings(url, FLEET, role))


def _reliable(state: StateFile, url: str, role: str) -> ReliableTransport:
    rng = np.random.default_rng()
    return ReliableTransport(_transport(url, role), LINK, LinkStore(state), time.monotonic, rng)
