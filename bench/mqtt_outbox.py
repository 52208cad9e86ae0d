"""Small messages from one process to another over MQTT, durable at both ends, with receipts.

A message stays in its sender's outbox until its receipt has come; its receiver has it on disk
before that leaves. Each message is a PUBLISH of its own; what happens while a commit lasts shares
the next commit, and the receipts of one commit share a message.
"""

import multiprocessing
import random
import struct
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path

from ternmesh_store.database import Database, Schema
from transports.base import HOST, Busy, NotConnected, Transport
from transports.mqtt import MqttTransport
from transports.mqtt_settings import MqttSettings

BODY = 222  # bytes, the number of the message included
WINDOW = 512  # messages without a receipt; mosquitto drops what waits beyond 1,000 for a reader
AGAIN_S = 10.0  # after so long without a receipt a message is sent again
PATIENCE_S = 120.0
NODE = "sender"
ARRIVALS_MAX = 256
SCHEMA = Schema(
    application=0x544D4242,  # "TMBB"
    version=1,
    statements=("CREATE TABLE message (number INTEGER PRIMARY KEY, body BLOB NOT NULL)",),
)
_NUMBER = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Sent:
    """What one run showed. `seconds` end when the sender has every receipt on disk."""

    seconds: float
    commits: int  # of the sender
    receiver_commits: int
    again: int
    is_right: bool  # the receiver has each message once, and the outbox is empty


def messages(count: int, seed: int) -> Iterator[bytes]:
    """`count` messages; no two are equal."""
    rng = random.Random(seed)
    for number in range(count):
        yield _NUMBER.pack(number) + rng.randbytes(BODY - _NUMBER.size)


def run(url: str, folder: Path, count: int, seed: int) -> Sent:
    """Send `count` messages to a process of its own, through the broker at `url`."""
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_receive, args=(url, folder, theirs), daemon=True)
    process.start()
    try:
        with _opened(folder / "outbox.sqlite") as box, _connected(url, NODE) as end:
            _expect(ours.poll(PATIENCE_S), "the receiver did not connect")
            outbox = Outbox(box, end, messages(count, seed))
            begun = time.monotonic()
            while outbox.step():
                _expect(time.monotonic() - begun < PATIENCE_S, "receipts are missing")
            seconds = time.monotonic() - begun
            left = box.rows("SELECT * FROM message")
        ours.send("end")
        process.join(PATIENCE_S)
        ours.recv()
        receiver_commits = ours.recv()
    finally:
        process.kill()
    with _opened(folder / "inbox.sqlite") as box:
        found = [body for (body,) in box.rows("SELECT body FROM message ORDER BY number")]
    is_right = not left and found == list(messages(count, seed))
    return Sent(seconds, outbox.commits, receiver_commits, outbox.again, is_right)


class Outbox:
    """The sending end: a table, what is to leave, and what has left without a receipt so far."""

    def __init__(self, database: Database, end: Transport, fresh: Iterator[bytes]) -> None:
        self.commits = self.again = 0
        self._database, self._end, self._fresh = database, end, fresh
        self._due: deque[bytes] = deque()
        self._sent: dict[int, float] = {}  # when each message was handed over last, oldest first

    def step(self) -> bool:
        """Take new messages, commit, send, take receipts; False when all is over and on disk."""
        for body in islice(self._fresh, WINDOW - len(self._sent)):
            number = self._number(body)
            self._database.write("INSERT INTO message VALUES (?, ?)", number, body)
            self._due.append(body)
            self._sent[number] = time.monotonic()
        if self._database.changed:
            self._database.commit()
            self.commits += 1
        if not self._sent:
            return False
        self._send()
        self._take_receipts()
        self._send_again()
        return True

    def _send(self) -> None:
        with suppress(Busy, NotConnected):  # what is due stays due
            while self._due:
                self._end.send(HOST, [self._due[0]])
                self._due.popleft()

    def _take_receipts(self) -> None:
        for frame in _arrived(self._end, wait_s=0.002 if self._due else 0.1):
            for (number,) in _NUMBER.iter_unpack(frame):
                if self._sent.pop(number, None) is not None:
                    self._database.write("DELETE FROM message WHERE number = ?", number)

    def _send_again(self) -> None:
        late = time.monotonic() - AGAIN_S
        for number in [number for number, at in self._sent.items() if at < late]:
            [(body,)] = self._database.rows("SELECT body FROM message WHERE number = ?", number)
            del self._sent[number]
            self._sent[number] = time.monotonic()
            self._due.append(body)
            self.again += 1

    @staticmethod
    def _number(body: bytes) -> int:
        (number,) = _NUMBER.unpack_from(body)
        return int(number)


def _receive(url: str, folder: Path, pipe: Connection) -> None:
    """The other process: disk first, then receipts, until the pipe speaks."""
    commits, due = 0, b""
    with _opened(folder / "inbox.sqlite") as box, _connected(url, HOST) as end:
        pipe.send("connected")
        while not pipe.poll():
            for frame in _arrived(end, wait_s=0.002 if due else 0.1):
                number = frame[: _NUMBER.size]
                (place,) = _NUMBER.unpack(number)
                box.write("INSERT OR IGNORE INTO message VALUES (?, ?)", place, frame)
                due += number
            if box.changed:
                box.commit()
                commits += 1
            with suppress(Busy, NotConnected):  # what is due stays due
                if due:
                    end.send(NODE, [due])
                    due = b""
    pipe.send(commits)


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
def _opened(path: Path) -> Iterator[Database]:
    database = Database(path, SCHEMA)
    database.open()
    try:
        yield database
    finally:
        database.close()


@contextmanager
def _connected(url: str, role: str) -> Iterator[MqttTransport]:
    end = MqttTransport(MqttSettings(url, "bench", role))
    end.open()
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not end.connected:
            _expect(time.monotonic() < deadline, f"{role} did not connect to {url}")
            time.sleep(0.01)
        yield end
    finally:
        end.close()


def _expect(is_right: object, sentence: str) -> None:
    if not is_right:
        raise SystemExit(f"bench mqtt: {sentence}")
