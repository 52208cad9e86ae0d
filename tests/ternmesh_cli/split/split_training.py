"""A small split model, and boards and a host that train it in one process."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from bench.loopback import LoopbackHub
from edge.config import DataConfig
from edge.data.sources import FolderData
from edge.split.config import SplitBoardConfig, SplitTrainingConfig
from edge.split.node import SplitNode, with_labels
from edge.split.part import load_part
from host.split.service import SplitService
from host.split.stage import TorchStage
from models.adapters.spaces import train_whole
from models.split.cut import HOST, BoundaryReceiver, BoundarySender, Cut, load_rest, make_boundary
from ternmesh.split.host import SplitSettings
from ternmesh.split.plan import SplitPlan
from ternmesh_store.split_store import SplitStore
from ternmesh_store.state_file import StateFile
from transports.base import Transport
from transports.link_config import LinkConfig

LENGTH, INPUTS, WIDTH, LATENT, CLASSES, BATCH = 3, 4, 6, 2, 3, 4
torch.set_num_threads(1)
PLAN = SplitPlan(LENGTH * LATENT, 4, 4, BATCH, 40, 20_000, 500, CLASSES, 512, 2000, 100_000_000)


class Start(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(INPUTS, WIDTH)

    def forward(self, features: Tensor) -> Tensor:
        return torch.tanh(self.linear(features))


class End(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.mean(1))


def make_cut() -> Cut:
    torch.manual_seed(5)
    up, down = (make_boundary("learned", WIDTH, LATENT, LENGTH) for _ in range(2))
    first = BoundarySender(Start(), up, LENGTH)
    rest = BoundaryReceiver(down, End(), LENGTH)
    adapter = train_whole(first, ("layers", "boundary"))
    return Cut("tiny", (LENGTH, INPUTS), CLASSES, first, rest, adapter)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Training:
    """Ends are made anew from their stores by `host` and `board`, as after a SIGKILL."""

    def __init__(self, parts: Path, folder: Path, **plan: int) -> None:
        self.parts, self.folder = parts, folder
        self.plan = replace(PLAN, **plan)
        self.hub, self.clock = LoopbackHub(), Clock()
        self.boards: dict[str, SplitNode] = {}
        self.stores: dict[str, SplitStore] = {}
        self.service = self.host()

    def host(self, checkpoint: int = 5, wait_s: float = 1.0) -> SplitService:
        cut = make_cut()
        load_rest(cut.rest, self.parts / HOST)
        stage, transport = TorchStage(cut.rest, self.plan.clip_norm), self.hub.host()
        model = load_part(self.parts).package.model_hash()
        self.service = SplitService(
            self.plan,
            SplitSettings(),
            model,
            stage,
            self._store("host"),
            transport,
            self.clock,
            checkpoint=checkpoint,
            wait_s=wait_s,
        )
        transport.open()
        self.service.start()
        return self.service

    def board(
        self,
        name: str,
        around: Callable[[Transport], Transport] = lambda transport: transport,
        clips: dict[str, np.ndarray] | None = None,
    ) -> SplitNode:
        part = load_part(self.parts)
        config = SplitBoardConfig(
            name,
            str(self.folder),
            str(self.parts),
            LinkConfig(),
            DataConfig(path="clips"),
            training=SplitTrainingConfig(checkpoint=5),
        )
        data = FolderData(with_labels(part.package), clips or samples(), 1.0)
        transport = around(self.hub.node(name))
        node = SplitNode(config, part, data, data, self._store(name), transport, self.clock)
        transport.open()
        node.start()
        self.boards[name] = node
        return node

    def _store(self, name: str) -> SplitStore:
        if name in self.stores:
            self.stores[name]._database.close()  # what was not committed is lost
        state = StateFile(self.folder / name)
        state.open()
        self.stores[name] = SplitStore(state)
        return self.stores[name]

    def turn(self) -> None:
        moved = self.service.poll(0.0)
        for board in self.boards.values():
            moved |= board.turn(0.0)
        self.clock.now += 0.0 if moved else 0.5

    def until(self, condition: Callable[[], object]) -> None:
        for _ in range(20_000):
            if condition():
                return
            self.turn()
        raise AssertionError("it does not come to an end")

    def finish(self) -> None:
        self.until(lambda: all(board.is_done for board in self.boards.values()))


def samples(count: int = 48) -> dict[str, np.ndarray]:
    """Three classes that a linear model can tell apart."""
    rng = np.random.default_rng(2)
    labels = np.arange(count) % CLASSES
    centres = rng.standard_normal((CLASSES, INPUTS)) * 2
    features = centres[labels][:, None] + 0.5 * rng.standard_normal((count, LENGTH, INPUTS))
    return {"features": features.astype(np.float32), "label": labels}
