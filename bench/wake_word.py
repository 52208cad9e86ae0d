"""The wake-word service answers a real Wyoming client: how soon, and how often rightly."""

import asyncio
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncClient
from wyoming.wake import Detection, NotDetected

from bench.result import Figure, Result
from edge.onnx.session import load_model, write_adapter
from edge.predict.predictor import Predictor
from edge.wake_word import WakeWordService
from models.zoo import fsdd_path, package_path
from tests.edge.test_wake_word import NAMES, in_a_room, sound_of
from tests.mosquitto import free_port

CLIPS, CLIPS_QUICK = 60, 6
CHUNK, CHUNK_MS, PACE = 2048, 64, 4.0  # bytes and length of a chunk, and times faster than real
NOTES = (
    "held-out clips of the spoken digits; their sound is made again from their features, and lies "
    "between two seconds of a quiet room; the shipped model, before any fleet has trained it",
    "latency: from the client's sending of the chunk that ends the word for the service until its "
    "Detection is read; the service waits for quiet before that, which is not counted",
    f"client and service in one process over TCP; sound comes {PACE:g} times faster than real",
)


def measure(*, quick: bool) -> Result:
    """Clips one after the other, each over a connection of its own."""
    with np.load(fsdd_path("dev")) as data:
        some = np.linspace(0, len(data["x"]) - 1, CLIPS_QUICK if quick else CLIPS).astype(int)
        clips = [(NAMES[data["y"][i]], data["x"][i].astype(np.float32) / 255) for i in some]
    with TemporaryDirectory() as folder:
        loaded = load_model(package_path("keyword"))
        path = Path(folder, "current.onnx_adapter")
        write_adapter(path, loaded.package, loaded.initial, 3)
        service = WakeWordService(Predictor(loaded, path), [], 0.0)
        answers = asyncio.run(_all(service, [sound_of(features) for _, features in clips]))
    latencies = [latency for _, latency in answers if latency]
    right = [word == name for (word, _), (name, _) in zip(answers, clips, strict=True)]
    figures = {
        "latency_p50_ms": Figure(statistics.median(latencies), "<=50"),
        "latency_p95_ms": Figure(float(np.percentile(latencies, 95))),
        "detected_percent": Figure(100 * len(latencies) / len(clips)),
        "right_percent": Figure(100 * sum(right) / len(clips)),
    }
    return Result("wake_word", figures, {}, NOTES, {"clips": len(clips)}, quick)


async def _all(service: WakeWordService, sounds: list[np.ndarray]) -> list[tuple[str, float]]:
    uri = f"tcp://127.0.0.1:{free_port()}"
    task = asyncio.create_task(service.serve(uri))
    await asyncio.sleep(0.1)
    try:
        return [await _one(uri, in_a_room(sound)) for sound in sounds]
    finally:
        task.cancel()


async def _one(uri: str, sound: bytes) -> tuple[str, float]:
    """The first word that is told, and after how many milliseconds; none: "" and 0."""
    sent: dict[int, float] = {}
    async with AsyncClient.from_uri(uri) as client:
        answer = asyncio.create_task(_told(client))
        await client.write_event(AudioStart(rate=16_000, width=2, channels=1).event())
        for number, at in enumerate(range(0, len(sound), CHUNK)):
            sent[number * CHUNK_MS] = time.monotonic()
            part = sound[at : at + CHUNK]
            chunk = AudioChunk(16_000, 2, 1, part, timestamp=number * CHUNK_MS)
            await client.write_event(chunk.event())
            await asyncio.sleep(CHUNK_MS / 1000 / PACE)
        await client.write_event(AudioStop().event())
        found, ended = await answer
    return ("", 0.0) if found is None else (
        found.name or "", 1000 * (ended - sent[found.timestamp or 0])
    )  # fmt: skip


async def _told(client: AsyncClient) -> tuple[Detection | None, float]:
    while (event := await client.read_event()) is not None:
        if Detection.is_type(event.type):
            return Detection.from_event(event), time.monotonic()
        if NotDetected.is_type(event.type):
            break
    return None, 0.0
