"""A board's model of words as a wake-word service that speaks Wyoming (imported here only).

Home Assistant and Wyoming satellites send sound; words that the model knows are detected with the
adapter that the board has learned. What was heard, and nearly heard, goes to the board, where a
person labels it. The protocol has no authentication.
"""

import asyncio
import base64
import ipaddress
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import numpy as np

from edge.data.heard import CLIPS_MAX, HEARD, OTHER, REPORT_S_MAX
from edge.data.logmel import FRAMES, MELS, Sound, hears
from edge.errors import DataError
from edge.predict.predictor import Predictor
from edge.words import ClipStream, Spotted, WordStream, new_stream
from ternmesh import __version__
from ternmesh.config import ConfigError
from ternmesh.errors import TernmeshError
from ternmesh.extras import installed
from ternmesh.timers import RateLimiter
from ternmesh_service.control_socket import DATA, ControlError, NobodyAnswers, ask
from ternmesh_service.fair_listener import FairListener
from transports.base import MissingExtra

with installed("wake-word", "a wake-word service needs the package wyoming", MissingExtra):
    from wyoming.audio import AudioChunk, AudioStart, AudioStop
    from wyoming.event import Event, async_read_event, async_write_event
    from wyoming.info import Attribution, Describe, Info, WakeModel, WakeProgram
    from wyoming.wake import Detect, Detection, NotDetected

PROGRAM: Final = "ternmesh"
CLIENTS_MAX = 32  # at once; a further one ends another
HEADER_MAX = 1 << 15  # bytes of the line with which an event begins
PART_MAX = 1 << 17  # bytes of its data, and of its sound: 4 s of 16 bits at 16 kHz
IDLE_S = 60.0  # for a whole event and the answers to it
WARN_S = 60.0  # between two lines of the log about clients that are left
REPORT_EVERY_S = 5.0
LOOK_S = 30.0  # between two looks at which model the board has
RELEASE_WARN_S = 3600.0  # between two lines of the log about a model that cannot be served
REPORT_S = 60.0  # of sound in which nothing was spotted, for a report
_WIDTHS = {1: ("u1", 128.0, 128.0), 2: ("<i2", 0.0, 32_768.0), 4: ("<i4", 0.0, 2.0**31)}
_AUTHOR = Attribution("ternmesh", "")

_log = logging.getLogger(__name__)


def check_address(uri: str, *, in_lan: bool) -> None:
    """ConfigError for an address that is none, or that others reach unless `in_lan` allows it."""
    try:
        parts = urlsplit(uri)
        host, port = parts.hostname or "", parts.port
        is_own = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        host, port, is_own = "", None, False
    if parts.scheme != "tcp" or not host or not port:
        raise ConfigError(f"{uri!r} must be like tcp://127.0.0.1:10400")
    if not (is_own or in_lan):
        raise ConfigError(
            f"others can reach {uri}, and the protocol has no password: write --in-lan if all of "
            "this network may send sound and see what was detected"
        )


def decode(audio: bytes, width: int, channels: int) -> Sound:
    """The first channel as float32 of -1 to 1; DataError."""
    if width not in _WIDTHS or not 1 <= channels <= 8:
        raise DataError(f"sound of {channels} channels with {width} bytes a number is not known")
    kind, zero, full = _WIDTHS[width]
    whole = audio[: len(audio) - len(audio) % (width * channels)]
    numbers = np.frombuffer(whole, kind)[::channels].astype(np.float32)
    return (numbers - np.float32(zero)) / np.float32(full)


class WakeWordService:
    """Serves the words of a model to at most `CLIENTS_MAX` clients.

    What it hears goes to the board that serves the control socket `board`, if there is one.
    """

    def __init__(
        self,
        predictor: Predictor,
        words: Sequence[str],
        threshold: float,
        board: Path | None = None,
    ) -> None:
        """DataError where the model knows no words, or not these."""
        labels = predictor.package.labels
        if not hears(predictor.package) or not labels:
            raise DataError(
                f"{predictor.package.name} is no model of words: it needs one input of "
                f"{(FRAMES, MELS)} log-mel features or a front for sound, and labels"
            )
        if unknown := [word for word in words if word not in labels]:
            raise DataError(f"the model does not know {unknown[0]!r}: it has {', '.join(labels)}")
        self._predictor, self._threshold = predictor, threshold
        self._words = tuple(words) or tuple(label for label in labels if label != OTHER)
        self._board = board
        self._spotted: deque[Spotted] = deque(maxlen=CLIPS_MAX)  # that the board has not yet
        self._heard_s = 0.0  # of sound that the board does not know of
        self._refusals = RateLimiter(WARN_S, 24 * 3600.0)  # a board that only has files
        self.warnings = RateLimiter(WARN_S)

    async def serve(self, uri: str) -> None:
        """Serve until the task is cancelled; OSError where the address cannot be used."""
        loop, parts, running = asyncio.get_running_loop(), urlsplit(uri), set[asyncio.Task[None]]()
        listener = FairListener(parts.hostname or "", parts.port or 0, CLIENTS_MAX)

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = loop.create_task(_Client(self, listener, reader, writer).run())
            running.add(task)
            task.add_done_callback(running.discard)

        server = await loop.create_server(
            lambda: asyncio.StreamReaderProtocol(_Reader(HEADER_MAX), connected), sock=listener
        )
        _log.info("wake words on %s: %s", uri, ", ".join(self._words))
        try:
            while True:
                await asyncio.sleep(REPORT_EVERY_S)
                await self._report()
        finally:
            server.close()
            for task in running:
                task.cancel()

    def info(self) -> Info:
        """What the service has: each word is a model in Wyoming's sense."""
        models = [
            WakeModel(
                name=word, attribution=_AUTHOR, installed=True, description=f"the word {word}",
                version=str(self._predictor.version or 0), languages=["en"], phrase=word,
            )
            for word in self._words
        ]  # fmt: skip
        return Info(
            wake=[
                WakeProgram(
                    name=PROGRAM, attribution=_AUTHOR, installed=True, version=__version__,
                    description="words that a fleet of boards has learned", models=models,
                )
            ]
        )  # fmt: skip

    def stream(self, names: Collection[str] | None, rate: int) -> WordStream | ClipStream:
        """What hears some of the words, or all, in a stream of `rate` Hz; DataError."""
        words = [word for word in self._words if not names or word in names]
        return new_stream(self._predictor, words, self._threshold, rate)

    def note(self, spotted: Sequence[Spotted], seconds: float) -> None:
        """Keep for the board what was spotted in so many seconds of sound."""
        self._spotted.extend(one for one in spotted if one.sound.size)
        self._heard_s = min(self._heard_s + seconds, REPORT_S_MAX)

    async def _report(self) -> None:
        """Give the board what it does not know yet; what it does not take now stays."""
        if self._board is None or self._predictor.package.front is None:
            return
        if not self._spotted and self._heard_s < REPORT_S:  # each report is a write on a card
            return
        spotted, seconds = [*self._spotted], self._heard_s
        self._spotted.clear()
        clips = [
            {
                "kind": one.kind,
                "word": one.word,
                "sound": base64.b64encode(_as_int16(one.sound)).decode(),
            }
            for one in spotted
        ]
        try:
            request = {DATA: "heard", "seconds": seconds, "clips": clips}
            await asyncio.to_thread(ask, self._board, request)
        except NobodyAnswers as error:
            self._spotted.extendleft(reversed(spotted))
            self._say(error)
            return
        except ControlError as error:  # it may have it, or cannot use it: not a second time
            self._say(error)
        self._heard_s -= seconds

    def _say(self, error: ControlError) -> None:
        if self._refusals.allow("", time.monotonic()):
            _log.warning("the board gets no sound for people to label: %s", error)


def _as_int16(sound: Sound) -> bytes:
    return (sound.clip(-1.0, 32_767 / 32_768) * 32_768).astype("<i2").tobytes()


async def serve_newest(
    make: Callable[[], WakeWordService], model: Callable[[], Path], uri: str
) -> None:
    """Serve what `make` makes of a board's model, and again when `model` names another folder.

    Where the model of a release cannot be served, the old one is served on, and the log says why.
    Ends when the task is cancelled; DataError where the address cannot be used.
    """
    warnings = RateLimiter(RELEASE_WARN_S)
    folder, service = model(), make()
    while True:
        made: WakeWordService | None = None
        serving = asyncio.ensure_future(service.serve(uri))
        try:
            while made is None:
                await asyncio.wait({serving}, timeout=LOOK_S)
                if serving.done():
                    return await serving
                try:
                    newest = model()
                    made = make() if newest != folder else None
                except (TernmeshError, OSError) as error:
                    if warnings.allow("", time.monotonic()):
                        _log.warning("the words of the older model are served on: %s", error)
        except OSError as error:
            raise DataError(f"cannot listen on {uri}: {error.strerror}") from error
        finally:
            serving.cancel()
            await asyncio.wait({serving})
        folder, service = newest, made


class _Reader(asyncio.StreamReader):
    """Refuses a part of an event that is too long before it comes."""

    async def readexactly(self, n: int) -> bytes:
        if n > PART_MAX:
            raise DataError(f"a part of an event of {n} bytes: send at most {PART_MAX}")
        return await super().readexactly(n)


class _Client:
    """One connection: sound in, detections out."""

    def __init__(
        self,
        service: WakeWordService,
        listener: FairListener,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._service, self._listener = service, listener
        self._reader, self._writer = reader, writer
        self._names: Collection[str] | None = None
        self._stream: WordStream | ClipStream | None = None
        self._rate = 0
        self._detected = False

    async def run(self) -> None:
        """Serve the client until it ends, says nothing for too long, or sends no event."""
        address = (self._writer.get_extra_info("peername") or ("", 0))[:2]
        try:
            while True:
                async with asyncio.timeout(IDLE_S):
                    event = await async_read_event(self._reader)
                    if event is None:
                        break
                    self._listener.heard(address)
                    await self._handle(event)
        except Exception as error:  # noqa: BLE001  (whatever it sends ends this client alone)
            is_gone = isinstance(error, OSError | EOFError)
            if not is_gone and self._service.warnings.allow("", time.monotonic()):
                _log.warning("a wake-word client at %s is left: %.200r", address[0], str(error))
            self._writer.transport.abort()
        finally:
            self._writer.close()

    async def _handle(self, event: Event) -> None:
        if Describe.is_type(event.type):
            await async_write_event(self._service.info().event(), self._writer)
        elif Detect.is_type(event.type):
            self._names = Detect.from_event(event).names
        elif AudioStart.is_type(event.type):
            self._stream, self._detected = None, False
        elif AudioChunk.is_type(event.type):
            chunk = AudioChunk.from_event(event)
            sound = decode(chunk.audio, chunk.width, chunk.channels)
            if self._stream is None or chunk.rate != self._rate:
                self._rate = chunk.rate
                self._stream = self._service.stream(self._names, chunk.rate)
            spotted = await asyncio.to_thread(self._stream.take, sound)
            self._service.note(spotted, len(sound) / chunk.rate)
            for one in spotted:
                if one.kind == HEARD:
                    self._detected = True
                    found = Detection(name=one.word, timestamp=chunk.timestamp).event()
                    await async_write_event(found, self._writer)
        elif AudioStop.is_type(event.type) and not self._detected:
            await async_write_event(NotDetected().event(), self._writer)
