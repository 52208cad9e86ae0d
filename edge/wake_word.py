"""A board's keyword model as a wake-word service that speaks Wyoming (imported here only).

Home Assistant and Wyoming satellites send sound; words that the model knows are detected with the
adapter that the board has learned. The protocol has no authentication.
"""

import asyncio
import ipaddress
import logging
import time
from collections.abc import Collection, Sequence
from typing import Final
from urllib.parse import urlsplit

import numpy as np

from edge.data.live.microphone import EnergyGate
from edge.data.logmel import FRAMES, MELS, Sound, clip_length, hears, model_input
from edge.data.sources import input_specs
from edge.errors import DataError
from edge.predict.predictor import Predictor
from ternmesh import __version__
from ternmesh.config import ConfigError
from ternmesh.extras import installed
from ternmesh.timers import RateLimiter
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
SOUND_RATES = (8000, 48_000)  # Hz, lowest and highest
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


class Ears:
    """The words in one stream of sound."""

    def __init__(self, predictor: Predictor, words: Collection[str], threshold: float) -> None:
        self._predictor = predictor
        self._words = words
        self._threshold = threshold
        self._rate = 0
        self._gate: EnergyGate | None = None
        self._input = input_specs(predictor.package)[0].name
        self._front = predictor.package.front

    def take(self, sound: Sound, rate: int) -> list[str]:
        """The words that end in `sound`; DataError for a rate that we do not have, ModelError."""
        if not SOUND_RATES[0] <= rate <= SOUND_RATES[1]:
            raise DataError(f"sound of {rate} Hz: send {SOUND_RATES[0]} to {SOUND_RATES[1]} Hz")
        if self._gate is None or rate != self._rate:
            self._gate, self._rate = EnergyGate(rate, clip_length(rate, self._front)), rate
        clips = [model_input(clip, rate, self._front) for clip in self._gate.take(sound)]
        predictions = self._predictor.predict({self._input: np.stack(clips)}) if clips else []
        tops = [item.top[0] for item in predictions if item.top]
        return [word for word, sure in tops if word in self._words and sure >= self._threshold]


def decode(audio: bytes, width: int, channels: int) -> Sound:
    """The first channel as float32 of -1 to 1; DataError."""
    if width not in _WIDTHS or not 1 <= channels <= 8:
        raise DataError(f"sound of {channels} channels with {width} bytes a number is not known")
    kind, zero, full = _WIDTHS[width]
    whole = audio[: len(audio) - len(audio) % (width * channels)]
    numbers = np.frombuffer(whole, kind)[::channels].astype(np.float32)
    return (numbers - np.float32(zero)) / np.float32(full)


class WakeWordService:
    """Serves the words of a model to at most `CLIENTS_MAX` clients."""

    def __init__(self, predictor: Predictor, words: Sequence[str], threshold: float) -> None:
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
        self._words = tuple(words) or labels
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
            await asyncio.Event().wait()
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

    def ears(self, names: Collection[str] | None) -> Ears:
        """Ears for some of the words, or for all."""
        words = [word for word in self._words if not names or word in names]
        return Ears(self._predictor, words, self._threshold)


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
        self._ears = service.ears(None)
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
            self._ears, self._detected = self._service.ears(self._names), False
        elif AudioChunk.is_type(event.type):
            chunk = AudioChunk.from_event(event)
            sound = decode(chunk.audio, chunk.width, chunk.channels)
            for word in await asyncio.to_thread(self._ears.take, sound, chunk.rate):
                self._detected = True
                found = Detection(name=word, timestamp=chunk.timestamp).event()
                await async_write_event(found, self._writer)
        elif AudioStop.is_type(event.type) and not self._detected:
            await async_write_event(NotDetected().event(), self._writer)
