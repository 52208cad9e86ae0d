"""What benches of the shipped keyword model share: clips of voices, and settings of a run."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.data import Clips
from models.zoo import fsdd_path

# The size of an update and of a global update in bytes, and the learning rate's decay for them.
RUN: Mapping[str, Any] = {"up_bytes": 670, "down_bytes": 1200, "learning_rate_drop": 0.8}


def clips_of(split: str, speaker: str, recordings: tuple[int, ...] = ()) -> Clips:
    """The clips of one speaker in `train` or `dev`; of all recordings, or of some."""
    with np.load(fsdd_path(split), allow_pickle=False) as data:
        mine = data["speaker_names"][data["speaker"]] == speaker
        if recordings:
            mine &= np.isin(data["index"], recordings)
        features = data["x"][mine].astype(np.float32) / 255
        return Clips({"features": features, "target": data["y"][mine].astype(np.int64)})
