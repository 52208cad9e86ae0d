"""What a listening program took for words, as its board keeps it: sound for people, and counts.

A word that was heard and a close miss wait for a label. What people answer gives recall and false
accepts an hour.
"""

import base64
import binascii
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from edge.data.sources import Sample
from edge.errors import DataError
from ternmesh.model_package import ModelPackage
from ternmesh_service.status import WordsStatus
from ternmesh_store.store import StoredValues

HEARD, NEAR = "heard", "near"  # kinds of sound, with which their keys begin
OTHER = "other"  # the label of all that is none of the words
DAY_S = 86_400
A_DAY: Final[Mapping[str, int]] = {HEARD: 100, NEAR: 50}
REPORT_S_MAX = 600.0  # of sound in one report
CLIPS_MAX = 16  # in one report
_COUNTS = "words"  # the key of the counts in the state file


class HeardWords:
    """The words of one board; the counts are in `values`, which its buffer commits."""

    def __init__(
        self, package: ModelPackage, values: StoredValues, clock: Callable[[], float] = time.time
    ) -> None:
        self._package = package  # with the inputs of samples from outside
        self._values = values
        self._clock = clock
        self._day = 0.0
        self._kept: Counter[str] = Counter()  # clips of this day by kind
        self._counts: Counter[str] = Counter(json.loads(values.get(_COUNTS) or b"{}"))

    def take(self, request: Mapping[str, Any]) -> list[Sample]:
        """The samples of a report: seconds that were listened to, and clips. DataError."""
        seconds, clips = request.get("seconds"), request.get("clips")
        if type(seconds) is not float or not 0.0 <= seconds <= REPORT_S_MAX:
            raise DataError(f"seconds must be a number up to {REPORT_S_MAX:g}, not {seconds!r:.50}")
        if not isinstance(clips, list) or len(clips) > CLIPS_MAX:
            raise DataError(f"clips must be a list of at most {CLIPS_MAX}")
        read = [self._read(clip) for clip in clips]
        items = [item for at, clip in enumerate(read) for item in self._clip(at, *clip)]
        self._counts["ms"] += round(1000 * seconds)
        self._store()
        return items

    def judge(self, key: str, before: str | None, after: str | None) -> None:
        """A person has given a sample another label, or none, in place of that before."""
        kind, _, rest = key.partition(":")
        word = rest.rpartition(":")[0]
        for label, step in ((before, -1), (after, 1)):
            if kind in (HEARD, NEAR) and label is not None:
                is_right = label == word
                self._counts[f"{kind} {'right' if is_right else 'wrong'}"] += step
        self._store()

    def status(self) -> WordsStatus | None:
        """None where nothing has listened yet."""
        if not self._counts["ms"]:
            return None
        return WordsStatus(
            hours=self._counts["ms"] / 3.6e6,
            heard=self._counts[HEARD],
            right=self._counts[f"{HEARD} right"],
            false=self._counts[f"{HEARD} wrong"],
            missed=self._counts[f"{NEAR} right"],
        )

    def _read(self, clip: Any) -> tuple[str, str, Any]:
        """Kind, word and sound of a clip; DataError."""
        shape = self._package.inputs[0].shape[1:]
        try:
            kind, word = str(clip["kind"]), str(clip["word"])
            sound = np.frombuffer(base64.b64decode(clip["sound"], validate=True), "<i2")
        except (TypeError, KeyError, ValueError, binascii.Error) as error:
            raise DataError(f"a clip needs kind, word and sound in base64 ({error})") from error
        if kind not in A_DAY or word not in self._package.labels:
            raise DataError(f"{kind!r:.50} {word!r:.50} is no kind of sound, or no word")
        if sound.shape != shape:
            raise DataError(f"a clip of {sound.size} numbers: it must have {shape}")
        return kind, word, sound.astype(np.float32) / np.float32(32_768)

    def _clip(self, at: int, kind: str, word: str, sound: Any) -> Iterator[Sample]:
        """The sample of one clip, unless there were enough of its kind today."""
        self._counts[kind] += 1
        now = self._clock()
        if now // DAY_S != self._day:
            self._day = now // DAY_S
            self._kept.clear()
        if self._kept[kind] < A_DAY[kind]:
            self._kept[kind] += 1
            key = f"{kind}:{word}:{round(1000 * now)}-{at}"
            yield Sample(key, {self._package.inputs[0].name: sound})

    def _store(self) -> None:
        self._values.put(_COUNTS, json.dumps(self._counts).encode())
