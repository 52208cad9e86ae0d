"""A node's source: hourly records replayed faster than life, each value known an hour later.

A real board would read its sensor here in place of a file. numpy only; no torch.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from features import HOURS, encode, scale_pm25

from edge.data.sources import Label, Sample

HOURS_MAX = 240  # in one poll: a board that was suspended catches up bit by bit


class HourlyReplay:
    """At each virtual hour: the last 24 hours as a sample, and the label of the sample before.

    `data` is pm25_*.npz, `hours_per_s` the pace, `year` the first year (None: from the start).
    """

    def __init__(self, data: str, hours_per_s: float = 20.0, year: int | None = None) -> None:
        with np.load(Path(data), allow_pickle=False) as content:
            records = content["x"] if year is None else content["x"][content["year"] >= year]
        if len(records) < HOURS or not hours_per_s > 0:
            raise ValueError(f"{data} must hold at least {HOURS} hours, hours_per_s be above 0")
        self._features = encode(records)
        self._targets = scale_pm25(records[:, 0])
        self._hours_per_s = hours_per_s
        self._hour = HOURS - 1  # the first one with a whole day behind it
        self._begun: float | None = None

    def poll(self, now: float) -> Sequence[Sample | Label]:
        """What has been measured since the last call."""
        if self._begun is None:
            self._begun = now
        due = HOURS + int((now - self._begun) * self._hours_per_s)
        end = min(due, self._hour + HOURS_MAX, len(self._features))
        items: list[Sample | Label] = []
        for hour in range(self._hour, end):
            if hour >= HOURS and not np.isnan(self._targets[hour]):
                items.append(Label(str(hour - 1), {"target": self._targets[hour, None]}))
            items.append(Sample(str(hour), {"hours": self._features[hour - HOURS + 1 : hour + 1]}))
        self._hour = end
        return items
