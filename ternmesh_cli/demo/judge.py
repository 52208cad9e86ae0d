"""How well a demo's voices are understood, on recordings that no board reports on.

What boards report decides how much each of them counts, so it is no fair measure of the result.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edge.data.sources import FolderData, NpzSettings, open_folder
from edge.evaluation import Evaluator
from edge.onnx.session import Inference
from models.zoo import fsdd_path
from ternmesh.types import Vector
from ternmesh_cli import keys
from ternmesh_cli.demo.fleet import CLIPS, OTHERS
from ternmesh_cli.export import learned_on_host


def judge(config: Path, voices: tuple[str, ...]) -> dict[str, tuple[float, float]]:
    """By voice, the share of clips that are right with the initial adapter, and with the learned.

    `config` is that of the host, which may run.
    """
    loaded, learned, _ = learned_on_host(config, keys.read(config))
    evaluator = Evaluator(Inference(loaded.folder, loaded.package), loaded.package)

    def share(clips: Sequence[FolderData], adapter: Vector) -> float:
        tensors = loaded.package.split(adapter)
        for data in clips:
            for _ in evaluator.evaluate(data, np.arange(len(data)), tensors):
                pass
        return evaluator.take()[0] or 0.0

    found = {}
    for voice in voices:
        wheres = ({"speaker": voice, "index": index} for index in OTHERS)
        settings = [NpzSettings(**CLIPS, where=where) for where in wheres]
        clips = [open_folder(fsdd_path("dev"), loaded.package, each) for each in settings]
        found[voice] = share(clips, loaded.initial), share(clips, learned)
    return found
