"""Words in sound: what a model hears in a stream, when that counts, and what is kept for people.

A model with a front hears the last rows anew at each hop. Another one hears the clips of a gate.
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from edge.data.heard import HEARD, NEAR
from edge.data.live.microphone import EnergyGate
from edge.data.logmel import Resampler, Sound, clip_length, model_input
from edge.data.sources import input_specs
from edge.errors import DataError
from edge.predict.predictor import Predictor
from ternmesh.model_package import FrontSpec

SOUND_RATES = (8000, 48_000)  # Hz, lowest and highest
REFRACTORY_S = 2.0  # a word is not told again so soon
NEAR_SHARE = 0.5  # of the threshold: the level from which on a word is nearly heard
SMOOTHED = 3  # the newest scores, whose mean counts
NOTHING = np.zeros(0, np.float32)


@dataclass(frozen=True, slots=True)
class Spotted:
    """A word that was heard, or nearly heard."""

    kind: str  # HEARD or NEAR
    word: str
    share: float  # the probability of the word
    sound: Sound  # what the model was given, in the rate of its front; empty without one


class Trigger:
    """Finds one word in its scores, one a hop: in the mean of the last three.

    The word begins where that reaches `near`, and is over below that. It is heard at `threshold`,
    once, and not within `REFRACTORY_S` of the time before.

    >>> trigger = Trigger("hello", threshold=0.8)
    >>> scores = 0.1, 0.6, 0.9, 0.9, 0.9, 0.1, 0.0, 0.5, 0.7, 0.1, 0.1
    >>> found = [trigger.take(score, NOTHING, 0.08 * at) for at, score in enumerate(scores)]
    >>> [(at, one.kind) for at, one in enumerate(found) if one]
    [(4, 'heard'), (10, 'near')]
    """

    def __init__(self, word: str, threshold: float) -> None:
        self._word = word
        self._threshold = threshold
        self._near = threshold * NEAR_SHARE
        self._scores: deque[float] = deque(maxlen=SMOOTHED)
        self._best: Spotted | None = None  # of the word that has begun
        self._is_heard = False  # the word that has begun
        self._told_at_s = -REFRACTORY_S

    def take(self, score: float, sound: Sound, now_s: float) -> Spotted | None:
        """The word that is heard now, or the close miss that is over."""
        self._scores.append(score)
        score = sum(self._scores) / len(self._scores)
        if not score >= self._near:  # also for NaN
            best, was_heard = self._best, self._is_heard
            self._best, self._is_heard = None, False
            return None if was_heard else best
        if self._best is None or score > self._best.share:
            self._best = Spotted(NEAR, self._word, score, sound)
        if self._is_heard or score < self._threshold:
            return None
        self._is_heard = True
        if now_s < self._told_at_s + REFRACTORY_S:
            return None
        self._told_at_s = now_s
        return Spotted(HEARD, self._word, score, sound)


class WordStream:
    """Hears some words of a model with a front in one stream of sound of `rate` Hz."""

    def __init__(
        self,
        predictor: Predictor,
        front: FrontSpec,
        words: Collection[str],
        threshold: float,
        rate: int,
    ) -> None:
        labels = predictor.package.labels
        self._predictor = predictor
        self._front = front
        self._input = predictor.row_specs[0]
        self._resampler = Resampler(rate, front.rate)
        self._held = NOTHING  # less than a hop
        self._hop = front.hop or front.window
        self._clip = np.zeros(front.length, np.float32)  # the newest sound
        self._rows: deque[Sound] = deque(maxlen=front.rows)
        self._triggers = {labels.index(word): Trigger(word, threshold) for word in words}
        self._hops = 0

    def take(self, sound: Sound) -> list[Spotted]:
        """What ends in `sound`; ModelError."""
        found: list[Spotted] = []
        self._held = np.concatenate([self._held, self._resampler.take(sound)])
        while len(self._held) >= self._hop:
            piece, self._held = np.split(self._held, [self._hop])
            found += self._hear(piece)
        return found

    def _hear(self, piece: Sound) -> list[Spotted]:
        """Score the clip that ends with this piece, which is a hop long."""
        self._hops += 1
        self._clip = np.concatenate([self._clip[len(piece) :], piece])
        self._rows.append(self._predictor.front.row(self._clip[-self._front.window :]))
        if len(self._rows) < self._front.rows:
            return []
        rows = np.array(self._rows, np.float32).reshape(1, *self._input.shape[1:])
        shares = self._predictor.shares({self._input.name: rows})[0]
        now_s = self._hops * self._hop / self._front.rate
        events = [
            trigger.take(float(shares[at]), self._clip, now_s)
            for at, trigger in self._triggers.items()
        ]
        return [event for event in events if event is not None]


class ClipStream:
    """Hears some words of a model without a front: in the clips of a gate."""

    def __init__(
        self, predictor: Predictor, words: Collection[str], threshold: float, rate: int
    ) -> None:
        self._predictor = predictor
        self._words = words
        self._threshold = threshold
        self._rate = rate
        self._gate = EnergyGate(rate, clip_length(rate))
        self._input = input_specs(predictor.package)[0].name

    def take(self, sound: Sound) -> list[Spotted]:
        """The words that end in `sound`; ModelError."""
        clips = [model_input(clip, self._rate) for clip in self._gate.take(sound)]
        predictions = self._predictor.predict({self._input: np.stack(clips)}) if clips else []
        tops = [item.top[0] for item in predictions if item.top]
        return [
            Spotted(HEARD, word, sure, NOTHING)
            for word, sure in tops
            if word in self._words and sure >= self._threshold
        ]


def new_stream(
    predictor: Predictor, words: Collection[str], threshold: float, rate: int
) -> WordStream | ClipStream:
    """What hears these words in a stream of `rate` Hz; DataError for a rate that we do not take."""
    if not SOUND_RATES[0] <= rate <= SOUND_RATES[1]:
        raise DataError(f"sound of {rate} Hz: send {SOUND_RATES[0]} to {SOUND_RATES[1]} Hz")
    front = predictor.package.front
    if front is None:
        return ClipStream(predictor, words, threshold, rate)
    return WordStream(predictor, front, words, threshold, rate)
