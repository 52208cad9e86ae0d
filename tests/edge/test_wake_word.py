"""A real Wyoming client speaks to the wake-word service, with held-out clips.

The recordings are not here, only their features: sound is made of them again (Griffin and Lim,
"Signal estimation from modified short-time Fourier transform", 1984), whose features are the same
to 0.001.
"""

import asyncio
import base64
import logging
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("wyoming", reason="wyoming is not installed: pip install 'ternmesh[dev]'")
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncClient
from wyoming.event import Event
from wyoming.info import Describe, Info
from wyoming.wake import Detect, Detection, NotDetected

from edge import wake_word
from edge.data.logmel import CLIP, FFT, FRAMES, HOP, LOUD, QUIET, RATE, WINDOW, _mel_bank
from edge.errors import DataError
from edge.onnx.session import load_model, write_adapter
from edge.predict.predictor import Predictor
from edge.wake_word import CLIENTS_MAX, WakeWordService, check_address, decode, serve_newest
from models.zoo import fsdd_path, package_path
from ternmesh.config import ConfigError
from ternmesh_service.control_socket import ControlServer
from tests.edge.data.live.conftest import new_package
from tests.mosquitto import free_port

NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
# Of the held-out recordings: none too loud for 16 bits.
CLIPS = 0, 48, 104


def sound_of(features: np.ndarray) -> np.ndarray:
    """Sound whose log-mel features are these."""
    target = 10.0 ** (features.astype(float) * (LOUD - QUIET) + QUIET) - 10.0**QUIET
    bank = _mel_bank()
    power = np.maximum(target @ np.linalg.pinv(bank), 1e-9)
    for _ in range(50):
        ratio = np.maximum(target, 1e-9) / np.maximum(power @ bank, 1e-12)
        power *= ratio @ bank.T / np.maximum(bank.sum(1), 1e-9)
    window = np.hanning(WINDOW)
    phase = np.exp(2j * np.pi * np.random.default_rng(0).random(power.shape))
    for _ in range(60):
        out, norm = np.zeros(CLIP), np.full(CLIP, 1e-6)
        for k, frame in enumerate(np.fft.irfft(np.sqrt(power) * phase, FFT)[:, :WINDOW]):
            out[k * HOP : k * HOP + WINDOW] += frame * window
            norm[k * HOP : k * HOP + WINDOW] += window**2
        out /= norm
        frames = np.lib.stride_tricks.sliding_window_view(out, WINDOW)[::HOP] * window
        phase = np.exp(1j * np.angle(np.fft.rfft(frames, FFT)))
    assert len(frames) == FRAMES
    return out.astype(np.float32)


def in_a_room(sound: np.ndarray, rate: int = 16_000) -> bytes:
    """A word between two seconds of a quiet room, 16 bits at `rate`."""
    quiet = np.zeros(RATE, np.float32)
    whole = np.concatenate([quiet, sound, quiet])
    at = np.arange(len(whole) * rate // RATE) * RATE / rate
    noise = 1e-3 * np.random.default_rng(0).standard_normal(len(at))
    numbers = np.interp(at, np.arange(len(whole)), whole) + noise
    return bytes((np.clip(numbers, -1, 1) * 32_767).astype("<i2").tobytes())


@pytest.fixture(scope="module")
def predictor(tmp_path_factory) -> Predictor:
    loaded = load_model(package_path("keyword"))
    path = tmp_path_factory.mktemp("adapter") / "current.onnx_adapter"
    write_adapter(path, loaded.package, loaded.initial, 3)
    return Predictor(loaded, path)


@pytest.fixture(scope="module")
def recordings() -> list[tuple[str, bytes]]:
    data = np.load(fsdd_path("dev"))
    features = data["x"].astype(np.float32) / 255
    return [(NAMES[int(data["y"][i])], in_a_room(sound_of(features[i]))) for i in CLIPS]


async def heard(uri: str, sound: bytes, names: list[str] | None = None) -> list[Event]:
    """What the service answers to a stream of sound, until a detection or none."""
    async with AsyncClient.from_uri(uri) as client:
        await client.write_event(Detect(names=names).event())
        await client.write_event(AudioStart(rate=16_000, width=2, channels=1).event())
        for at in range(0, len(sound), 2048):
            part = sound[at : at + 2048]
            chunk = AudioChunk(16_000, 2, 1, part, timestamp=at // 32)
            await client.write_event(chunk.event())
        await client.write_event(AudioStop().event())
        events: list[Event] = []
        while not (events and NotDetected.is_type(events[-1].type)):
            try:
                event = await asyncio.wait_for(client.read_event(), 1.0 if events else 10.0)
            except TimeoutError:
                break
            if event is None:
                break
            events.append(event)
        return events


def serving(service: WakeWordService, ask):
    """Run `ask` with the address of a service."""

    async def both():
        uri = f"tcp://127.0.0.1:{free_port()}"
        task = asyncio.create_task(service.serve(uri))
        await asyncio.sleep(0.05)
        try:
            return await ask(uri)
        finally:
            task.cancel()

    return asyncio.run(both())


def detections(events: list[Event]) -> list[Detection]:
    return [Detection.from_event(event) for event in events if Detection.is_type(event.type)]


def test_held_out_words_are_detected(predictor, recordings) -> None:
    name, sound = recordings[0]
    other = next(word for word in NAMES if word != name)

    async def ask(uri: str) -> tuple[list[list[Event]], list[Event]]:
        answers = [await heard(uri, sound) for _, sound in recordings]
        return answers, await heard(uri, sound, [other])

    answers, unasked = serving(WakeWordService(predictor, [], 0.0), ask)
    found = [detections(events) for events in answers]
    assert [len(items) for items in found] == [1] * len(recordings), "each word once"
    right = [item.name == name for [item], (name, _) in zip(found, recordings, strict=True)]
    assert sum(right) >= 2, "of 3: the model knows 80 % of these voices before it has learned"
    assert all(1000 < (item.timestamp or 0) < 3000 for [item] in found)
    assert [event.type for event in unasked] == ["not-detected"]


async def described(uri: str) -> Info:
    async with AsyncClient.from_uri(uri) as client:
        await client.write_event(Describe().event())
        event = await client.read_event()
    assert event is not None
    return Info.from_event(event)


def test_what_is_no_sound_ends_that_connection_alone(predictor, recordings) -> None:
    async def ask(uri: str) -> list[Event]:
        for chunk in (AudioChunk(16_000, 3, 1, b"abc"), AudioChunk(7, 2, 1, b"ab")):
            async with AsyncClient.from_uri(uri) as client:
                await client.write_event(chunk.event())
                assert await asyncio.wait_for(client.read_event(), 10.0) is None
        reader, writer = await asyncio.open_connection("127.0.0.1", int(uri.rsplit(":", 1)[1]))
        writer.write(b"\xff no event\n")
        assert await asyncio.wait_for(reader.read(), 10.0) == b""
        writer.close()
        return await heard(uri, recordings[0][1])

    answers = serving(WakeWordService(predictor, [], 0.5), ask)
    assert detections(answers)[0].name == recordings[0][0]


def test_a_model_with_a_front_hears_a_stream_and_its_board_gets_the_sound(
    new_fronted, tmp_path, monkeypatch, caplog
) -> None:
    loaded = new_fronted(1.0, 8000, "other")
    write_adapter(tmp_path / "adapter", loaded.package, loaded.initial, 1)
    monkeypatch.setattr(wake_word, "REPORT_EVERY_S", 0.02)
    monkeypatch.setattr(Predictor, "shares", lambda *_: np.array([[0.1, 0.9]]))
    board = tmp_path / "control.sock"
    service = WakeWordService(Predictor(loaded, tmp_path / "adapter"), [], 0.8, board)
    assert [model.name for model in service.info().wake[0].models] == ["up"]
    asked = []

    def take(request: dict) -> dict:
        asked.append(request)
        return {"data": 1}

    async def ask(uri: str) -> list[Event]:
        events = await heard(uri, bytes(16_000))
        while not caplog.records:  # no board answers: nothing is lost
            await asyncio.sleep(0.01)
        with ControlServer(board, take):
            while not asked:
                await asyncio.sleep(0.01)
        return events

    found = [Detection.from_event(one).name for one in serving(service, ask)]
    assert found == ["up"], "once, however long it lasts"
    assert "gets no sound for people" in caplog.text
    [report] = asked
    assert (report["data"], report["seconds"]) == ("heard", 0.5)
    assert [(one["kind"], one["word"]) for one in report["clips"]] == [("heard", "up")]
    assert len(base64.b64decode(report["clips"][0]["sound"])) == 2 * 10


def test_silent_connections_keep_nobody_away(predictor, recordings) -> None:
    async def ask(uri: str) -> tuple[bool, list[Event]]:
        port = int(uri.rsplit(":", 1)[1])
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CLIENTS_MAX)]
        silent[0][1].write(b'{"type": "desc')  # half an event is none
        events = await heard(uri, recordings[0][1])
        ended = await asyncio.wait_for(silent[0][0].read(), 10.0) == b""
        [program] = (await described(uri)).wake
        assert [model.name for model in program.models] == [recordings[0][0]]
        for _, writer in silent:
            writer.close()
        return ended, events

    ended, events = serving(WakeWordService(predictor, [recordings[0][0]], 0.0), ask)
    assert ended, "the longest silent one makes room"
    assert detections(events), "and one that speaks stays"


@pytest.mark.parametrize("sent", [b"", b'{"type": "audio-chunk", "payload_length": 9}\n123'])
def test_a_client_that_stops_in_an_event_is_left(predictor, monkeypatch, sent: bytes) -> None:
    monkeypatch.setattr(wake_word, "IDLE_S", 0.3)

    async def ask(uri: str) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(uri.rsplit(":", 1)[1]))
        writer.write(sent)
        return await asyncio.wait_for(reader.read(), 10.0)

    assert serving(WakeWordService(predictor, [], 0.5), ask) == b""


def nested(kind: str, depth: int) -> bytes:
    """An event whose data are lists in lists."""
    data = b'{"names": ' + b"[" * depth + b"]" * depth + b"}"
    return b'{"type": "%s", "data_length": %d}\n' % (kind.encode(), len(data)) + data


@pytest.mark.parametrize(
    "sent",
    [
        b"[" * wake_word.HEADER_MAX,
        b"[" * 20_000 + b"\n",
        b"x" * (3 * wake_word.HEADER_MAX),
        b'{"type": "audio-chunk", "payload_length": 1500000000}\n',
        b'{"type": "audio-chunk", "payload_length": %d}\n' % (wake_word.PART_MAX + 1),
        b'{"type": "detect", "data_length": 1500000000}\n',
        b'{"type": "detect", "data_length": "many"}\n',
        b'{"type": "detect", "data_length": 1e300}\n',
        b'{"type": "detect", "data_length": 2}\n[]',
        b'{"type": "detect", "data": 5, "data_length": 2}\n{}',
        nested("detect", 20_000),
        nested("detect", 900) + b'{"type": "audio-start"}\n',
        b'{"type": "audio-chunk", "data": {"rate": 16000, "width": [], "channels": 1}}\n',
        b'{"type": "audio-chunk", "data": {"rate": NaN, "width": 2, "channels": 1}}\n',
        b'{"type": "audio-chunk", "data": {"rate": 8000.5, "width": 2, "channels": 1},'
        b' "payload_length": 4}\nabcd',
        b'{"type": "audio-chunk"}\n',
        b'{"type": ["x"]}\n{"type": {}}\n{}\n',
        b"[1]\n",
        b"null\n",
    ],
)
def test_hostile_events_end_that_connection_alone(predictor, caplog, sent: bytes) -> None:
    async def ask(uri: str) -> Info:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(uri.rsplit(":", 1)[1]))
        writer.write(sent)
        with suppress(ConnectionError):  # it may hang up before it has all
            writer.write_eof()
            await asyncio.wait_for(reader.read(), 10.0)
        return await described(uri)

    assert serving(WakeWordService(predictor, [], 0.5), ask).wake
    assert not [record for record in caplog.records if record.exc_info], "no traceback"
    assert all(len(record.getMessage()) < 300 for record in caplog.records)


@pytest.mark.parametrize(
    ("uri", "sentence"),
    [
        ("tcp://0.0.0.0:10400", "no password"),
        ("tcp://192.0.2.1:10400", "no password"),
        ("tcp://127.0.0.1", "must be like"),
        ("unix:///x", "must be like"),
        ("tcp://x:y", "must be like"),
    ],
)
def test_an_address_that_others_reach_must_be_meant(uri: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_address(uri, in_lan=False)
    check_address("tcp://localhost:10400", in_lan=False)
    check_address("tcp://0.0.0.0:10400", in_lan=True)


def test_a_model_of_other_things_and_unknown_words_are_a_sentence(predictor) -> None:
    with pytest.raises(DataError, match="does not know 'computer'"):
        WakeWordService(predictor, ["computer"], 0.5)

    class Other:
        package = new_package(2)

    with pytest.raises(DataError, match="is no model of words"):
        WakeWordService(Other(), [], 0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(("width", "data"), [(1, b"\x80\xff"), (2, b"\0\0\xff\x7f"), (4, bytes(8))])
def test_widths_of_numbers(width: int, data: bytes) -> None:
    found = decode(data + b"\0" * (width > 1), width, 1)
    assert found == pytest.approx([0.0, 0.0 if width == 4 else 1.0], abs=0.01)


def test_the_command_serves_until_a_signal(tmp_path: Path) -> None:
    loaded = load_model(package_path("keyword"))
    (tmp_path / "state").mkdir()
    write_adapter(tmp_path / "state" / "current.onnx_adapter", loaded.package, loaded.initial, 3)
    (tmp_path / "node.toml").write_text(
        f'name = "ada"\nstate_dir = "state"\nmodel = "keyword"\n[link]\nurl = "mqtt://127.0.0.1:9"\n'
        f"[data]\npath = '{fsdd_path('train')}'\n"
    )
    port = free_port()
    command = f"ternmesh_cli.main wake-word --config {tmp_path}/node.toml --word seven --listen"
    program = [sys.executable, "-m", *command.split(), f"tcp://127.0.0.1:{port}"]
    with subprocess.Popen(program, stderr=subprocess.PIPE) as process:
        assert b"wake words on tcp://127.0.0.1" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_after_a_release_its_words_are_served(predictor, monkeypatch, caplog) -> None:
    releases = ["before"]
    words = iter([["one"], ["computer"], ["two"]])

    def make() -> WakeWordService:
        return WakeWordService(predictor, next(words), 0.5)

    async def logged(text: str) -> None:
        while text not in caplog.text:
            await asyncio.sleep(0.01)

    async def both() -> None:
        uri = f"tcp://127.0.0.1:{free_port()}"
        task = asyncio.create_task(serve_newest(make, lambda: Path(releases[-1]), uri))
        await logged(f"wake words on {uri}: one")
        releases.append("after")
        await logged("are served on: the model does not know 'computer'")
        await logged(f"wake words on {uri}: two")
        with pytest.raises(DataError, match="cannot listen on tcp"):
            await serve_newest(lambda: WakeWordService(predictor, [], 0.5), Path, uri)
        task.cancel()

    caplog.set_level(logging.INFO)
    monkeypatch.setattr(wake_word, "LOOK_S", 0.05)
    asyncio.run(asyncio.wait_for(both(), 60.0))
