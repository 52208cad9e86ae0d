"""A board's keyword model as a wake-word service that speaks Wyoming (imported here only).

Home Assistant and Wyoming satellites send sound; words that the model knows are detected with the
adapter that the board has learned. The protocol has no authentication.
"""

import asyncio
import ipaddress
import logging
from collections.abc import Collection, Sequence
from typing import Final
from urllib.parse import urlsplit

import numpy as np

from edge.data.live.microphone import EnergyGate
from edge.data.logmel import CLIP, FRAMES, MELS, RATE, Sound, log_mel, resample
from edge.data.sources import input_specs
from edge.errors import DataError, ModelError
from edge.predict.predictor import Predictor
from ternmesh import __version__
from ternmesh.config import ConfigError
from transports.base import MissingExtra

try:
    from wyoming.audio import AudioChunk, AudioStart, AudioStop
    from wyoming.event import Event
    from wyoming.info import Attribution, Describe, Info, WakeModel, WakeProgram
    from wyoming.server import AsyncEventHandler, AsyncServer
    from wyoming.wake import Detect, Detection, NotDetected
except ImportError as error:
    raise MissingExtra(
        "a wake-word service needs the package wyoming: pip install 'ternmesh[wake-word]'"
    ) from error

PROGRAM: Final = "ternmesh"
CLIENTS_MAX = 8
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

    def take(self, sound: Sound, rate: int) -> list[str]:
        """The words that end in `sound`; DataError for a rate that we do not have, ModelError."""
        if not SOUND_RATES[0] <= rate <= SOUND_RATES[1]:
            raise DataError(f"sound of {rate} Hz: send {SOUND_RATES[0]} to {SOUND_RATES[1]} Hz")
        if self._gate is None or rate != self._rate:
            self._gate, self._rate = EnergyGate(rate, CLIP * rate // RATE), rate
        clips = [log_mel(resample(clip, rate)) for clip in self._gate.take(sound)]
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
        specs = input_specs(predictor.package)
        labels = predictor.package.labels
        if len(specs) != 1 or specs[0].shape[1:] != (FRAMES, MELS) or not labels:
            raise DataError(
                f"{predictor.package.name} is no model of words: it needs one input of "
                f"{(FRAMES, MELS)} log-mel features, and labels"
            )
        if unknown := [word for word in words if word not in labels]:
            raise DataError(f"the model does not know {unknown[0]!r}: it has {', '.join(labels)}")
        self._predictor, self._threshold = predictor, threshold
        self._words = tuple(words) or labels
        self.clients = 0

    async def serve(self, uri: str) -> None:
        """Serve until the task is cancelled; OSError where the address cannot be used."""
        server = AsyncServer.from_uri(uri)
        await server.start(lambda reader, writer: _Client(self, reader, writer))
        _log.info("wake words on %s: %s", uri, ", ".join(self._words))
        try:
            await asyncio.Event().wait()
        finally:
            await server.stop()

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


class _Client(AsyncEventHandler):
    """One connection: sound in, detections out."""

    def __init__(
        self, service: WakeWordService, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        super().__init__(reader, writer)
        self._service = service
        self._names: Collection[str] | None = None
        self._ears = service.ears(None)
        self._detected = False

    async def run(self) -> None:
        """Serve the client, if there is room for it."""
        if self._service.clients == CLIENTS_MAX:
            _log.warning("a client is refused: there are %d of them", CLIENTS_MAX)
            self.writer.close()
            return
        self._service.clients += 1
        try:
            await super().run()
        except (OSError, EOFError, ValueError) as error:
            _log.debug("a client went away: %r", error)
        finally:
            self._service.clients -= 1

    async def handle_event(self, event: Event) -> bool:
        """False ends the connection."""
        try:
            return await self._handle(event)
        except (DataError, ModelError, KeyError, TypeError, ValueError) as error:
            _log.warning("a client of the wake-word service is left: %s", error)
            return False

    async def _handle(self, event: Event) -> bool:
        if Describe.is_type(event.type):
            await self.write_event(self._service.info().event())
        elif Detect.is_type(event.type):
            self._names = Detect.from_event(event).names
        elif AudioStart.is_type(event.type):
            self._ears, self._detected = self._service.ears(self._names), False
        elif AudioChunk.is_type(event.type):
            chunk = AudioChunk.from_event(event)
            sound = decode(chunk.audio, chunk.width, chunk.channels)
            for word in await asyncio.to_thread(self._ears.take, sound, chunk.rate):
                self._detected = True
                await self.write_event(Detection(name=word, timestamp=chunk.timestamp).event())
        elif AudioStop.is_type(event.type) and not self._detected:
            await self.write_event(NotDetected().event())
        return True
