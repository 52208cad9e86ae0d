"""The tiny model as a classifier of three labels, with an adapter file that tests replace."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.onnx.session import LoadedModel, write_adapter
from edge.predict.predictor import Predictor
from edge.predict.server import PredictionServer

Write = Callable[[int], None]


class Client(ExitStack):
    """A client of the socket."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.socket = self.enter_context(socket.socket(socket.AF_UNIX))
        self.socket.settimeout(20.0)
        self.socket.connect(str(path))
        self.lines = self.enter_context(self.socket.makefile("rb"))

    def send(self, *contents: Any) -> None:
        self.socket.sendall(b"".join(json.dumps(one).encode() + b"\n" for one in contents))

    def answer(self) -> dict[str, Any]:
        return json.loads(self.lines.readline())

    def ask(self, content: Any) -> dict[str, Any]:
        self.send(content)
        return self.answer()


@pytest.fixture
def classifier(tiny: LoadedModel) -> LoadedModel:
    return replace(
        tiny, package=replace(tiny.package, metric="accuracy", labels=("ant", "bee", "cat"))
    )


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    return tmp_path / "current.onnx_adapter"


@pytest.fixture
def write(tiny: LoadedModel, adapter: Path) -> Write:
    def new(version: int, fill: float | None = None) -> None:
        rng = np.random.default_rng(version)
        vector = rng.standard_normal(tiny.package.dimension).astype(np.float32)
        write_adapter(
            adapter, tiny.package, vector if fill is None else np.full_like(vector, fill), version
        )

    new(1)
    return new


@pytest.fixture
def server(classifier: LoadedModel, adapter: Path, write: Write, tmp_path: Path, monkeypatch):
    made = PredictionServer(tmp_path / "predict.sock", Predictor(classifier, adapter))
    made.start()
    yield made
    made.close()


@pytest.fixture
def client(server: PredictionServer, tmp_path: Path) -> Iterator[Client]:
    with Client(tmp_path / "predict.sock") as made:
        yield made
