"""Links between ranks: one-way messages over sockets, which threads send and read ahead.

A link is two connections, one for each way. No message waits for an answer. So a link carries as
much as its bandwidth lets through, whatever its round trip takes.
"""

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue

import torch
from torch import Tensor

from host.pipeline.wire import HEAD_SIZE, Kind, LinkError, read_head, receive, write_head

QUEUE_MAX = 16  # messages that were read ahead; the senders of more wait
SHORT = 1 << 14  # bytes of a message that is sent together with its head


@dataclass(frozen=True, slots=True)
class Message:
    """`body` is uint8 on the CPU, in pinned memory where the rank has a GPU."""

    kind: Kind
    number: int
    body: Tensor
    took_s: float  # from its head to its last byte

    @property
    def data(self) -> bytes:
        return self.body.numpy().tobytes()


def floats_in(body: Tensor, like: Tensor) -> Tensor:
    """The float32 numbers in a body, in the shape and on the device of `like`; LinkError."""
    size = like.numel() * torch.float32.itemsize
    if len(body) != size:
        raise LinkError(f"{len(body)} bytes of numbers came where {size} are due")
    return body.view(torch.float32).view(like.shape).to(like.device)


class LinkEvents:
    """What all links of a rank share: one condition to wait on, and how long a rank waits."""

    def __init__(self, timeout_s: float) -> None:
        self.changed = threading.Condition()
        self.waited_s = 0.0
        self.before_wait: Callable[[], None] = lambda: None  # a GPU ends its work here
        self._timeout_s = timeout_s
        self._failure: LinkError | None = None

    def fail(self, error: LinkError) -> None:
        with self.changed:
            self._failure = self._failure or error
            self.changed.notify_all()

    def wait(self, is_ready: Callable[[], bool], what: str) -> None:
        """Return when `is_ready`; LinkError after the time limit or a failure."""
        limit_s = self._timeout_s
        with self.changed:
            if is_ready():
                return
        self.before_wait()
        began = time.perf_counter()
        with self.changed:
            came = self.changed.wait_for(lambda: is_ready() or self._failure is not None, limit_s)
            is_late, failure = not came, None if is_ready() else self._failure
        self.waited_s += time.perf_counter() - began
        if failure is not None:
            raise failure
        if is_late:
            raise LinkError(
                f"{what} did not come within {limit_s:.0f} s: has its machine stopped? Raise "
                "timeout_s where it is only slower"
            )


class LinkReader:
    """Reads the messages of one peer ahead of their use; `exact` are sizes that are known before.

    `on_refusal` is called in the reading thread.
    """

    def __init__(
        self,
        peer: str,
        connection: socket.socket,
        events: LinkEvents,
        exact: Mapping[Kind, int],
        on_refusal: Callable[[str], None],
        is_pinned: bool = False,
    ) -> None:
        self._peer = peer
        self._connection = connection
        self._events = events
        self._exact = exact
        self._on_refusal = on_refusal
        self._is_pinned = is_pinned
        self._messages: deque[Message] = deque()
        self._error: LinkError | None = None

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def is_ready(self) -> bool:
        """Whether `take` returns or raises at once."""
        return bool(self._messages) or self._error is not None

    def take(self, kind: Kind, number: int = 0) -> Message:
        """The next message, which must be of this kind and number; LinkError."""
        self._events.wait(lambda: self.is_ready, f"the {kind.name.lower()} of {self._peer}")
        with self._events.changed:
            if not self._messages:
                assert self._error is not None
                raise self._error
            message = self._messages.popleft()
            self._events.changed.notify_all()
        if (message.kind, message.number) != (kind, number):
            raise LinkError(
                f"{self._peer} sends {message.kind.name.lower()} {message.number} where "
                f"{kind.name.lower()} {number} is due"
            )
        return message

    def _run(self) -> None:
        try:
            while True:
                message = self._read()
                if message.kind == Kind.REFUSAL:
                    self._on_refusal(message.data.decode("utf-8", "replace"))
                with self._events.changed:
                    self._events.changed.wait_for(lambda: len(self._messages) < QUEUE_MAX)
                    self._messages.append(message)
                    self._events.changed.notify_all()
        except (LinkError, OSError, ValueError) as error:  # ValueError: ssl's, once it is closed
            reason = f"it sent {error}" if isinstance(error, LinkError) else str(error)
            with self._events.changed:
                self._error = LinkError(f"{self._peer} is gone ({reason})")
                self._events.changed.notify_all()
            _close(self._connection)

    def _read(self) -> Message:
        head = receive(self._connection, bytearray(HEAD_SIZE))
        kind, number, size = read_head(head, self._exact)
        is_pinned = self._is_pinned and kind in self._exact
        body = torch.empty(size, dtype=torch.uint8, pin_memory=is_pinned)
        began = time.perf_counter()
        receive(self._connection, memoryview(body.numpy().data))
        return Message(kind, number, body, time.perf_counter() - began)


class LinkWriter:
    """Sends messages to one peer from a thread of its own."""

    def __init__(self, peer: str, connection: socket.socket, events: LinkEvents) -> None:
        self.sent_bytes = 0  # without what fills the link
        self._peer = peer
        self._connection = connection
        self._events = events
        # As long as micro-batches are in flight; the schedule limits those.
        self._queue: SimpleQueue[tuple[Kind, int, Tensor, Callable[[], None]] | None] = (
            SimpleQueue()
        )
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(
        self,
        kind: Kind,
        body: Tensor | bytes,
        number: int = 0,
        wait: Callable[[], None] = lambda: None,
    ) -> None:
        """Send a body, uint8 on the CPU, once `wait` has returned: a GPU may still write to it."""
        if isinstance(body, bytes):
            body = torch.frombuffer(bytearray(body), dtype=torch.uint8) if body else torch.empty(0)
        self._queue.put((kind, number, body, wait))

    def close(self, timeout_s: float) -> None:
        """Send what is waiting, then close."""
        self._queue.put(None)
        self._thread.join(timeout_s)
        _close(self._connection)

    def _run(self) -> None:
        try:
            while (item := self._queue.get()) is not None:
                kind, number, body, wait = item
                wait()
                view = body.numpy().data.cast("B")
                head = write_head(kind, number, len(view))
                self.sent_bytes += 0 if kind == Kind.FILLING else len(head) + len(view)
                if len(view) <= SHORT:
                    self._connection.sendall(head + view)
                else:
                    self._connection.sendall(head)
                    self._connection.sendall(view)
        except OSError as error:
            self._events.fail(LinkError(f"{self._peer} is gone ({error})"))


@dataclass(frozen=True, slots=True)
class RankLink:
    """Both ways between this rank and another one; `rtt_s` is 0 on the side that was called."""

    writer: LinkWriter
    reader: LinkReader
    rtt_s: float


def _close(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads
    connection.close()
