"""A source that hears words: a microphone on ALSA, through the program arecord."""

import os
import subprocess
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from edge.data.heard import OTHER
from edge.data.live.base import LiveSource, sole_input
from edge.data.live.options import RECORDINGS, MicrophoneOptions
from edge.data.logmel import (
    BEFORE,
    FRAMES,
    MELS,
    SILENT,
    Sound,
    changed,
    clip_length,
    hears,
    model_input,
)
from edge.data.sources import Label, Sample, class_names, label_arrays
from edge.errors import DataError
from ternmesh.model_package import FrontSpec, ModelPackage
from ternmesh_service.status import LiveStatus, RecordingStatus

PIPE_BYTES = 1 << 18  # the sound that waits for a poll: 8 s at 16 kHz
SILENT_S = 10.0  # without a byte, arecord is started again
END_S = 1.0  # for arecord to end
BLOCK_S = 0.02
BEGIN, END = 4.0, 2.0  # times the noise floor: the levels at which a clip begins and ends
RISE = 1.01  # of the noise floor in a block, at most: fourfold in 3 s
QUIET, LOUD_MIN = 15, 3  # blocks: that end a clip; loud in a clip
ENDS = 4  # hops after a word's end at which a front hears it
RECORD_S = 60.0  # without a recording, nobody records any more
BEGIN_SHARE = 0.4  # of a word, that is not the word
RECORDINGS_MAX = 100  # at a time
CLIPPED, FAINT = 0.99, 0.02  # of full scale: peaks of a recording that is too loud, or too quiet


class EnergyGate:
    """Cuts sound into clips. One begins where the level rises above the noise floor.

    It ends before 0.3 s of silence, or with `length` samples; then the next waits for silence.
    """

    def __init__(self, rate: int, length: int) -> None:
        self.block = round(rate * BLOCK_S)
        self._length = length
        self._partial = np.zeros(0, np.float32)
        self._before: deque[Sound] = deque(maxlen=BEFORE)
        self._clip: list[Sound] = []
        self._floor = np.inf
        self._quiet = self._loud = 0  # blocks: in a row, in this clip
        self._waits = False

    def take(self, sound: Sound) -> list[Sound]:
        """The clips that end in `sound`, float32 of -1 to 1."""
        sound = np.concatenate([self._partial, sound])
        end = len(sound) - len(sound) % self.block
        self._partial = sound[end:]
        clips = map(self._take_block, sound[:end].reshape(-1, self.block))
        return [clip for clip in clips if clip is not None]

    def _take_block(self, block: Sound) -> Sound | None:
        level = float(block.std())
        if level:  # zeros are no room: sound cards begin with them
            self._floor = max(SILENT, min(level, self._floor * RISE))
        is_loud = level > BEGIN * self._floor
        self._quiet = 0 if level > END * self._floor else self._quiet + 1
        self._waits &= self._quiet < QUIET
        if not self._clip:
            self._before.append(block)
            if is_loud and not self._waits:
                self._clip, self._loud = list(self._before), 1
            return None
        self._clip.append(block)
        self._loud += is_loud
        is_full = len(self._clip) * self.block >= self._length
        if not is_full and self._quiet < QUIET:
            return None
        clip = np.concatenate(self._clip[: len(self._clip) - self._quiet])[: self._length]
        self._clip, self._waits = [], is_full
        self._before.clear()
        return clip if self._loud >= LOUD_MIN else None


class MicrophoneSource(LiveSource):
    """Words, one sample each, as log-mel features or as sound for a front, without labels."""

    def __init__(self, options: MicrophoneOptions, package: ModelPackage) -> None:
        super().__init__(options.rate_max)
        spec = sole_input(package)
        if not hears(package):
            raise DataError(
                f"a microphone gives sound to a front, or log-mel features of {(FRAMES, MELS)}, "
                f"and {spec.name} of {package.name} has {spec.shape[1:]}: use a source of your own"
            )
        self._options = options
        self._input = spec.name
        self._front = package.front
        self._process: subprocess.Popen[bytes] | None = None
        self._package = package
        self._label: str | None = None  # of the recordings that somebody makes now
        self._left = 0  # of them
        self._since: float | None = None  # when the last one was made, or they began
        self._said = ""  # of the last one
        self._level = 0.0  # the peak of the newest sound
        self._recorded = 0  # samples of recordings that `poll` has not given yet
        self._rng = np.random.default_rng()

    def record(self, label: object, count: object) -> None:
        """Give the next `count` sounds this label; DataError."""
        names = class_names(self._package)
        if label not in names or type(count) is not int or not 0 <= count <= RECORDINGS_MAX:
            raise DataError(
                f"{label!r:.50}, {count!r:.50}: write one of {', '.join(names)}, and a number up "
                f"to {RECORDINGS_MAX}"
            )
        self._label, self._left, self._said, self._since = str(label), count, "", None

    def status(self) -> LiveStatus:
        recording = RecordingStatus(
            label=self._label, left=self._left, said=self._said, level=self._level
        )
        return replace(super().status(), recording=recording)

    def _allows(self, now: float) -> bool:
        """A person who records is no flood."""
        is_recorded = self._recorded > 0
        self._recorded -= is_recorded
        return is_recorded or super()._allows(now)

    def close(self) -> None:
        super().close()
        if (process := self._process) is None:
            return
        self._process = None
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
        process.__exit__(None, None, None)  # closes the pipe and waits

    def _open(self, now: float) -> None:
        device, rate = self._options.device, self._options.rate
        command = ["arecord", "-q", "-t", "raw", "-f", "S16_LE", "-c", "1", "-r", str(rate)]
        try:  # What it complains of goes to our log.
            self._process = subprocess.Popen(
                [*command, "-D", device], stdout=subprocess.PIPE, pipesize=PIPE_BYTES
            )
        except FileNotFoundError as error:
            raise DataError("a microphone needs arecord: apt install alsa-utils") from error
        assert self._process.stdout is not None
        self._pipe = self._process.stdout.fileno()
        os.set_blocking(self._pipe, False)
        self._gate = EnergyGate(rate, clip_length(rate, self._front))
        held = 2 * clip_length(rate, self._front) + (QUIET + 1) * self._gate.block
        self._past = np.zeros(held, np.float32)  # the newest sound
        self._half = b""  # of a number
        self._heard_at = now

    def _read(self, now: float) -> list[Sample | Label]:
        try:
            data = os.read(self._pipe, PIPE_BYTES)
        except BlockingIOError:
            if now < self._heard_at + SILENT_S:
                return []
            data = b""
        if not data:
            raise DataError(
                f"arecord gives no sound from {self._options.device}: see its message in the log, "
                "and `arecord -L` for the names of devices"
            )
        self._heard_at = now
        self._expire(now)
        data = self._half + data
        end = len(data) - len(data) % 2
        self._half = data[end:]
        sound = np.frombuffer(data[:end], "<i2").astype(np.float32) / np.float32(32_768)
        self._level = float(np.abs(sound).max(initial=0.0))
        return [item for clip, past in self._cut(sound) for item in self._items(clip, past)]

    def _expire(self, now: float) -> None:
        """End recordings that nobody goes on with."""
        self._since = now if self._since is None else self._since
        if self._left and now > self._since + RECORD_S:
            self._left, self._said = 0, "nothing was said for a minute: begin again"

    def _cut(self, sound: Sound) -> Iterator[tuple[Sound, Sound]]:
        """Clips of the gate, each with the newest sound when it was cut."""
        for block in np.split(sound, range(self._gate.block, len(sound), self._gate.block)):
            self._past = np.concatenate([self._past, block])[-len(self._past) :]
            for clip in self._gate.take(block):
                yield clip, self._past

    def _items(self, clip: Sound, past: Sound) -> list[Sample | Label]:
        """The sample of a clip; while somebody records, some with a label, or none if it is bad."""
        if self._label is None or not self._left:
            if self._options.keep == RECORDINGS:
                return []
            return [Sample(self._key(), {self._input: self._inputs(clip, past)[0]})]
        self._said = self._wrong(clip)
        if self._said:
            return []
        self._left -= 1
        self._since = None
        front, heard = self._front, [past]
        if front is not None:
            heard.append(self._spoken(clip, past))
            heard += [one for of in heard for one in changed(of, self._options.rate, self._rng)]
        made = [(one, self._label) for of in heard for one in self._inputs(clip, of)]
        if front is not None and OTHER in self._package.labels and self._label != OTHER:
            made += [(one, OTHER) for of in heard for one in self._partly(front, clip, of)]
        items: list[Sample | Label] = []
        for one, name in made:
            sample = Sample(self._key(), {self._input: one})
            items += [sample, Label(sample.key, label_arrays(self._package, name))]
        self._recorded += len(made)
        return items

    def _inputs(self, clip: Sound, past: Sound) -> list[Sound]:
        """What the model gets of a word: for a front the sound until it ended, and a little later.

        A stream is heard so. With what was before it in the room a word is told from silence.
        """
        rate, front = self._options.rate, self._front
        if front is None:
            return [model_input(clip, rate)]
        quiet = 0 if len(clip) >= clip_length(rate, front) else QUIET * self._gate.block
        hop, length = front.hop * rate // front.rate, clip_length(rate, front)
        late = range(ENDS if quiet else 1)
        ends = [len(past) - quiet + min(quiet, at * hop) for at in late]
        return [model_input(past[max(0, end - length) : end], rate, front) for end in ends]

    def _spoken(self, clip: Sound, past: Sound) -> Sound:
        """The same with speech right before the word, or the quiet there is learned with it.

        It is the word played backwards: a voice that says nothing.
        """
        begin = len(past) - QUIET * self._gate.block - len(clip)
        return np.concatenate([np.resize(clip, begin)[::-1], past[begin:]])

    def _partly(self, front: FrontSpec, clip: Sound, past: Sound) -> list[Sound]:
        """The begin of a word, and then the room: by itself it is not the word."""
        rate, quiet = self._options.rate, past[len(past) - QUIET * self._gate.block :]
        hop, length = front.hop * rate // front.rate, clip_length(rate, front)
        end = len(past) - len(quiet) - len(clip) + round(BEGIN_SHARE * len(clip))
        sound = np.concatenate([past[:end], quiet])
        return [
            model_input(sound[end + at * hop - length : end + at * hop], rate, front)
            for at in (1, 2)
        ]

    def _wrong(self, clip: Sound) -> str:
        """What is wrong with a recording; empty if nothing."""
        peak = float(np.abs(clip).max())
        if len(clip) >= clip_length(self._options.rate, self._front):
            return "too long: say it once, with silence before and after"
        if peak >= CLIPPED:
            return "too loud: the sound is clipped"
        return "too quiet: come nearer" if peak < FAINT else ""
