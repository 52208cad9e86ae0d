"""A state file, buffers in it, and what their control socket answers."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edge.data.buffer import ReplayBuffer
from edge.data.labels import answer_data, finish_data
from ternmesh.model_package import ModelPackage
from ternmesh_store.state_file import StateFile

NewBuffer = Callable[..., ReplayBuffer]


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateFile]:
    made = StateFile(tmp_path)
    made.open()
    yield made
    made.close()


@pytest.fixture
def new_buffer(state: StateFile) -> NewBuffer:
    """A function that loads a buffer, as a new process would."""

    def make(package: ModelPackage, samples_max: int = 100, *clocks: Any) -> ReplayBuffer:
        state.close()
        state.open()
        made = ReplayBuffer(state, package, samples_max, 1 << 30, *clocks)
        made.load()
        return made

    return make


def ask(buffer: ReplayBuffer | None, what: Any, model: Any = None, **values: Any) -> Any:
    """The answer to a request, or the sentence that refuses it."""
    answer = finish_data(answer_data(buffer, {"data": what, **values}, model))
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    assert len(answer) == 1
    return answer.get("data", answer.get("error"))
