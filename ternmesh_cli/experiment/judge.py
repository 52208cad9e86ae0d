"""How good an adapter is on pairs that nobody trained on."""

import hashlib
from pathlib import Path

from edge.evaluation import Evaluator, spread
from edge.session import Inference, load_bundle
from edge.sources import NpzSettings, open_folder
from ternmesh_cli.experiment.prepare import TEST, Prepared


class Judge:
    """Judges `.onnx_adapter` files of one model."""

    def __init__(self, prepared: Prepared) -> None:
        loaded = load_bundle(prepared.bundle)
        self.bundle, self.initial = loaded.bundle, loaded.initial
        self._inference = Inference(loaded.folder, loaded.bundle)
        self._evaluator = Evaluator(self._inference, loaded.bundle)
        self._data = open_folder(prepared.samples(TEST), loaded.bundle, NpzSettings({}, {}))
        self._known: dict[tuple[bytes, int | None], float] = {}

    def accuracy(self, adapter: Path, pairs_max: int | None = None) -> float:
        """The share of right answers with the adapter file, on all pairs or some evenly spread.

        Two nodes that hold the same bytes are judged once.
        """
        key = (hashlib.sha256(adapter.read_bytes()).digest(), pairs_max)
        if key not in self._known:
            self._known[key] = self._judge(adapter, pairs_max)
        return self._known[key]

    def _judge(self, adapter: Path, pairs_max: int | None) -> float:
        self._inference.use_adapter(adapter)
        count = len(self._data)
        self._evaluator.judge(self._data, spread(count, pairs_max or count))
        value = self._evaluator.take()
        return 0.0 if value is None else value
