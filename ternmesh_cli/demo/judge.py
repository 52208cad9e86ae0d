"""How well a demo's voices are understood, on recordings that no board reports on.

What boards report decides how much each of them counts, so it is no fair measure of the result.
"""

from pathlib import Path

import numpy as np

from edge.data.sources import NpzSettings, open_folder
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

    def share(voice: str, adapter: Vector) -> float:
        for index in OTHERS:
            which = NpzSettings(**CLIPS, where={"speaker": voice, "index": index})
            data = open_folder(fsdd_path("dev"), loaded.package, which)
            every = np.arange(len(data))
            for _ in evaluator.evaluate(data, every, loaded.package.split(adapter)):
                pass
        return evaluator.take()[0] or 0.0

    return {voice: (share(voice, loaded.initial), share(voice, learned)) for voice in voices}
