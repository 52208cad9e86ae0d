"""Serves predictions on a Unix socket and to other threads, in one thread of its own.

Requests that wait together run as one batch. Each line of a client is a request and gets one
answer. Each queue has a limit, beyond which the answer is to try later. `predicting` also serves
the MQTT topics and the live samples of a running node.
"""

import asyncio
import json
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from edge.config import NodeConfig
from edge.data.sources import Arrays, Sample, input_specs
from edge.errors import DataError, ModelError
from edge.node import Node
from edge.onnx.session import LoadedModel
from edge.predict.messages import BUSY, ID_MAX, Answer, answer, read_request, read_sample
from edge.predict.predictor import Prediction, Predictor
from ternmesh_service.control_socket import listen_privately
from ternmesh_service.status import PredictStatus, from_json
from transports.link_config import link_settings
from transports.loop_thread import STOP_S, LoopThread
from transports.mqtt.settings import INBOUND_MESSAGE_MAX
from transports.mqtt.topics import TopicClient, same_broker

CLIENTS_MAX, BATCH_MAX = 16, 16  # connections; requests that run together
QUEUE_MIN, QUEUE_MAX, QUEUE_BYTES_MAX = 16, 256, 32 << 20  # requests that wait, and their arrays
SHARE = 4  # one client has at most one of so many parts of the queue
POSTED_MAX = 64  # messages of other threads on their way
LIVE_MAX = 128  # samples of one poll of the source that are predicted
OUT_MAX = 1 << 20  # bytes of answers that a client has not read
LINE_BYTES, NUMBER_BYTES = 4096, 32  # of a request, and for each number in it
RECENT_MAX = 1000  # answers in the latency
Predict = Callable[[Arrays], list[Prediction]]
# `failed`: NaN, wrong shapes, a fault of the model. `refused`: told to try later, or no request.
COUNTS = ("count", "failed", "refused", "clients_refused", "clients_dropped")

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Asker:
    """Who asks: a client or MQTT. `send` gets the answers, in our thread."""

    send: Callable[[Answer], None]
    queued: int = 0  # samples that wait for their batch
    follows: bool = False  # a client that wants live predictions


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A sample that waits for its batch."""

    id: str | int | None
    sample: Arrays
    asker: Asker
    since: float


class PredictionServer:
    """Answers from `start` to `close`. `on_live` gets each live prediction, in our thread."""

    def __init__(self, path: Path, predictor: Predictor) -> None:
        self.counts = dict.fromkeys(COUNTS, 0)  # written in our thread
        self.clients: set[_Client] = set()
        self.predictor = predictor
        self.on_live: Callable[[Answer], None] = lambda _: None
        self._live: Answer | None = None  # the newest live prediction
        self._unposted = 0  # live samples; written in the thread of the source
        self._seconds: deque[float] = deque(maxlen=RECENT_MAX)  # from a request to its answer
        self._path = path
        self._specs = input_specs(predictor.package)
        numbers = sum(math.prod(spec.shape[1:]) for spec in self._specs)
        self.line_max = LINE_BYTES + NUMBER_BYTES * numbers
        self._queue_max = min(QUEUE_MAX, max(QUEUE_MIN, QUEUE_BYTES_MAX // (8 * numbers)))
        self._queue: deque[_Waiting] = deque()
        self._posted = threading.BoundedSemaphore(POSTED_MAX)
        self._thread = LoopThread("predictions")
        self._listening: Future[asyncio.Server] | None = None

    def start(self) -> None:
        """Listen, and answer from now on; ControlError where that is not possible."""
        listening = listen_privately(self._path, CLIENTS_MAX)
        self._thread.start()
        self._listening = self._thread.submit(self._listen(listening))
        self._thread.call(self.predictor.refresh)  # loads the model before the first request

    def close(self) -> None:
        """Stop after the batch that runs."""
        listening, self._listening = self._listening, None
        if listening is not None:
            with suppress(TimeoutError):  # the model takes longer than a service may to stop
                self._thread.submit(self._disconnect(listening.result(STOP_S))).result(STOP_S)
        self._thread.stop()

    def post(self, line: bytes, asker: Asker) -> bool:
        """Pass on a request from any thread; False where too many wait."""
        return self._post(partial(self.take, line, asker))

    def predict_live(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Predict samples of the source, in its thread; returns how certain it is, by key.

        They have passed the front. Those that come too fast are skipped.
        """
        self._unposted += max(0, len(samples) - LIVE_MAX)
        certainties = {}
        for start in range(0, len(samples := samples[-LIVE_MAX:]), BATCH_MAX):
            for key, seconds, result in self._predicted(samples[start : start + BATCH_MAX]):
                if isinstance(result, Prediction) and result.top:
                    certainties[key] = result.top[0][1]
                content = answer(key, result, seconds)
                self._unposted += not self._post(partial(self._take_live, content, seconds))
        return certainties

    def status(self) -> PredictStatus:
        """The counts, the latency and the newest live prediction, for `ternmesh status`."""
        self.predictor.refresh()  # there may have been no request since the newest adapter
        recent = tuple(self._seconds)  # made in one step, while our thread waits
        latency: dict[str, float | None] = {
            name: round(1000 * float(np.percentile(recent, percent)), 3) if recent else None
            for name, percent in (("p50_ms", 50), ("p99_ms", 99), ("max_ms", 100))
        }
        figures = {
            **self.counts,
            **latency,
            "live_skipped": self._unposted,
            "clients": len(self.clients),
            "version": self.predictor.version,
            "bad_adapters": self.predictor.bad_adapters,
            "last_error": self.predictor.last_error,
            "live": self._live,
            "topics": None,
        }
        return from_json(PredictStatus, figures)

    def _post(self, function: Callable[[], None]) -> bool:
        """Call it in our thread; False where too much waits."""
        if not self._posted.acquire(blocking=False):
            return False
        self._thread.call(self._posted.release)
        self._thread.call(function)
        return True

    def _predicted(
        self, samples: Sequence[Sample]
    ) -> Iterator[tuple[str, float, Prediction | Exception]]:
        """For each sample its key, and the seconds and the prediction of this batch."""
        began, good = time.monotonic(), {}
        for sample in samples:
            key = "?"
            try:
                key = str(sample.key)[:ID_MAX]
                good[key] = read_sample(sample.inputs, self.predictor.row_specs)
            except Exception as error:  # noqa: BLE001  (the user's code may give anything)
                yield key, 0.0, error
        predictions = self._run([*good.values()], self.predictor.predict_rows) if good else []
        seconds = time.monotonic() - began
        yield from ((key, seconds, one) for key, one in zip(good, predictions, strict=True))

    # In our thread

    async def _listen(self, listening: Any) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        return await loop.create_unix_server(lambda: _Client(self), sock=listening)

    async def _disconnect(self, server: asyncio.Server) -> None:
        # A server that closes while it accepts a connection would leave that one open.
        self._path.unlink(missing_ok=True)  # nobody new connects
        for _ in range(5):  # asyncio takes four turns to `connection_made` of the last one
            await asyncio.sleep(0)
        server.close()
        for client in self.clients:
            client.transport.abort()

    def take(self, line: bytes, asker: Asker) -> None:
        """Queue the sample in a request, or answer at once."""
        request_id, kind = None, "refused"
        try:
            request = read_request(line, self.line_max)
            request_id = request.id
            if request.inputs is None:
                asker.follows = request.follow is True
                asker.send({"id": request_id, "follow": asker.follows})
            elif max(len(self._queue), SHARE * asker.queued) >= self._queue_max:
                self.counts["refused"] += 1
                asker.send({"id": request_id, "error": BUSY, "busy": True})
            else:
                kind = "failed"
                self._enqueue(request_id, read_sample(request.inputs, self._specs), asker)
        except DataError as error:
            self.counts[kind] += 1
            asker.send(answer(request_id, error, 0.0))

    def _take_live(self, content: Answer, seconds: float) -> None:
        self._count(content, seconds)
        self._publish(content)

    def _enqueue(self, request_id: str | int | None, sample: Arrays, asker: Asker) -> None:
        if not self._queue:
            asyncio.get_running_loop().call_soon(self._predict)
        asker.queued += 1
        self._queue.append(_Waiting(request_id, sample, asker, time.monotonic()))

    def _predict(self) -> None:
        """Run one batch and send its answers."""
        batch = [self._queue.popleft() for _ in range(min(len(self._queue), BATCH_MAX))]
        if self._queue:
            asyncio.get_running_loop().call_soon(self._predict)
        results = self._run([one.sample for one in batch], self.predictor.predict)
        for waiting, result in zip(batch, results, strict=True):
            seconds = time.monotonic() - waiting.since
            content = answer(waiting.id, result, seconds)
            self._count(content, seconds)
            waiting.asker.queued -= 1
            waiting.asker.send(content)

    def _count(self, content: Answer, seconds: float) -> None:
        self.counts["failed" if "error" in content else "count"] += 1
        if "error" not in content:
            self._seconds.append(seconds)

    def _run(self, samples: Sequence[Arrays], predict: Predict) -> list[Prediction | Exception]:
        """The prediction of each sample, or its error. One bad sample must not fail the others."""
        try:
            inputs = {name: np.stack([one[name] for one in samples]) for name in samples[0]}
            return [*predict(inputs)]
        except Exception as error:  # noqa: BLE001  (no request may stay without an answer)
            if len(samples) > 1:
                return [result for sample in samples for result in self._run([sample], predict)]
            if not isinstance(error, ModelError):
                _log.error("an error of the model that should not happen", exc_info=error)
            return [error]

    def _publish(self, content: Answer) -> None:
        self._live = content
        self.on_live(content)
        for client in tuple(self.clients):
            if client.asker.follows:
                client.send({"live": True, **content})


class _Client(asyncio.Protocol):
    """One connection."""

    def __init__(self, server: PredictionServer) -> None:
        self.asker = Asker(self.send)
        self._server = server
        self._received = bytearray()
        self._has_ended = False  # it sends nothing more, and still reads

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        if len(self._server.clients) >= CLIENTS_MAX:
            self._server.counts["clients_refused"] += 1
            self.transport.abort()
        else:
            self._server.clients.add(self)

    def connection_lost(self, _: Exception | None) -> None:
        self._server.clients.discard(self)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if b"\n" in data:
            *lines, self._received = self._received.split(b"\n")
            for line in lines:
                if self.transport.is_closing():
                    return  # what else it has sent would hold up the others
                self._server.take(bytes(line), self.asker)
        if len(self._received) > self._server.line_max:
            self._server.take(bytes(self._received), self.asker)  # which refuses it
            self.transport.close()

    def eof_received(self) -> bool:
        self._has_ended = True
        if self._received:  # the last line may have no end
            self._server.take(bytes(self._received), self.asker)
        return self.asker.queued > 0  # whether the connection stays

    def send(self, content: Answer) -> None:
        """Send an answer, unless the client is gone. One that does not read is disconnected."""
        if self.transport.is_closing():
            return
        self.transport.write(json.dumps(content).encode() + b"\n")
        if self.transport.get_write_buffer_size() > OUT_MAX:
            self._server.counts["clients_dropped"] += 1
            _log.warning("a client of the predictions does not read its answers: disconnected")
            self.transport.abort()
        elif self._has_ended and not self.asker.queued:
            self.transport.close()  # once all is sent


Status = Callable[[], PredictStatus]


@contextmanager
def predicting(config: NodeConfig, loaded: LoadedModel, node: Node) -> Iterator[Status]:
    """Do what `[predict]` asks for, of a node that has started; ControlError.

    Yields what `ternmesh status` shows of it.
    """
    settings = config.predict
    predictor = Predictor(
        loaded,
        config.adapter_path,
        threads=config.training.threads,
        threshold=lambda: node.management.settings.get("threshold", settings.threshold),
    )
    server = PredictionServer(config.predict_path, predictor)
    topics = None if settings.topic is None else _Topics(config, server)
    with ExitStack() as stack:
        server.start()
        stack.callback(server.close)
        if topics is not None:
            topics.open()
            stack.callback(topics.close)
        if (feed := node.data.feed) is not None:
            feed.predict = server.predict_live
            feed.buffer.certainty = predictor.certainty
        yield lambda: replace(server.status(), topics=None if topics is None else topics.status())


class _Topics(TopicClient):
    """Requests come on ../request; answers go to ../answer, live predictions to ../live."""

    def __init__(self, config: NodeConfig, server: PredictionServer) -> None:
        link = link_settings(config.link, config.name)
        self._prefix = f"{config.predict.topic}/{config.name}"
        self._server = server
        self._refused = self._unsent = 0
        self._asker = Asker(partial(self._send, "answer"))
        server.on_live = partial(self._send, "live")
        super().__init__(
            same_broker(link, topics=(f"{self._prefix}/request",), payload_max=INBOUND_MESSAGE_MAX)
        )

    def _numbers(self) -> dict[str, int]:
        """Also the requests that were told to try later, and the answers that no broker took."""
        return {**super()._numbers(), "refused": self._refused, "unsent": self._unsent}

    def _take(self, topic: str, payload: bytes) -> None:
        super()._take(topic, payload)
        for _, line in self.drain():
            if not self._server.post(line, self._asker):
                self._refused += 1
                self._asker.send({"id": None, "error": BUSY, "busy": True})

    def _send(self, kind: str, content: Answer) -> None:
        self._unsent += not self.publish(f"{self._prefix}/{kind}", json.dumps(content).encode())
