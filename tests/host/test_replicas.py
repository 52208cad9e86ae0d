"""Replicas of a pipeline: their updates lose nothing, and they end with equal global weights."""

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from host.pipeline.config import PipelineConfig, PipelineError, ReplicasConfig, read_pipeline_config
from host.pipeline.replicas import GLOBAL, Packets, Replica, StageVector
from host.pipeline.report import line
from models.bottleneck.shared_subspace import SharedSubspace, make_basis, make_table, project
from models.bottleneck.subspace import SubspaceLinear, SubspaceTokens, change_basis, confined
from ternmesh.codec.scale import UNIT
from ternmesh.errors import WireError
from tests.host.pipeline_ranks import STEPS, reports, run_ranks, write_config
from transports import batch

NUMBERS = 3000


class LocalPeers:
    """Replicas in threads of one process."""

    def __init__(self, own: int, count: int, messages: list[Any], barrier: threading.Barrier):
        self.own, self.count, self._messages, self._barrier = own, count, messages, barrier

    def gather(self, message: Any) -> list[Any]:
        self._messages[self.own] = message
        self._barrier.wait(60.0)
        everyone = list(self._messages)
        self._barrier.wait(60.0)
        return everyone


def pairs(count: int = 2) -> list[tuple[nn.Linear, Replica]]:
    """Replicas of a small layer, all alike."""
    config = PipelineConfig("", replicas=ReplicasConfig(count, 1, 0.9))
    messages, barrier, made = [b""] * count, threading.Barrier(count), list[Any]()
    for own in range(count):
        torch.manual_seed(0)
        layer = nn.Linear(40, 50)
        peers: Any = LocalPeers(own, count, messages, barrier)
        made.append((layer, Replica(config, 0, layer, None, peers)))
    return made


def at_once(actions: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=action) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_an_exchange_moves_learning_and_loses_none() -> None:
    made = pairs()
    start = StageVector(made[0][0], None).read()
    for step in range(1, 4):
        for number, (layer, _) in enumerate(made):
            torch.manual_seed(10 * step + number)
            with torch.no_grad():
                layer.weight.add_(1e-3 * torch.randn_like(layer.weight))
        before = torch.stack([StageVector(layer, None).read() for layer, _ in made]).mean(0)
        at_once([partial(replica.after_step, step, False) for _, replica in made])
        weights = [StageVector(layer, None).read() for layer, _ in made]
        first, second = (dict(replica.tensors())[GLOBAL] for _, replica in made)
        assert torch.equal(first, second)
        assert torch.allclose(torch.stack(weights).mean(0), before, atol=1e-7)
    moved = float((first - start).norm() / (before - start).norm())
    assert 0.5 < moved < 1.0  # the rest is in the weights, for a later update
    assert not torch.equal(weights[0], weights[1])
    with made[0][1].agreed():
        assert torch.equal(StageVector(made[0][0], None).read(), first)
    assert torch.equal(StageVector(made[0][0], None).read(), weights[0])


def test_what_is_not_finite_is_refused() -> None:
    (layer, replica), _ = pairs()
    with torch.no_grad():
        layer.weight[0, 0] = float("nan")
    with pytest.raises(PipelineError, match="is not finite"):
        replica.after_step(1, False)


def test_updates_are_for_one_exchange(monkeypatch: pytest.MonkeyPatch) -> None:  # R11.2-1
    monkeypatch.setattr("host.pipeline.replicas.PART_MAX", 1000)
    vector = np.random.default_rng(0).standard_normal(NUMBERS).astype(np.float32)
    packets = Packets(NUMBERS, ReplicasConfig(2, 1, 0.5), "a")
    message = packets.write(vector, 7)
    arrived = packets.read(message, 7) * UNIT
    energy = np.square(vector).sum()
    assert np.square(vector - arrived).sum() / energy < 0.25
    others = [
        (packets, message, 8),
        (Packets(NUMBERS, ReplicasConfig(2, 1, 0.5), "b"), message, 7),
        (packets, message[:-1], 7),
        (packets, message[:-1] + bytes([message[-1] ^ 1]), 7),
        (packets, b"", 7),
        (packets, message + batch.join([b"more"]), 7),
        (packets, batch.join(batch.split(message)[: 1 + packets._plans[0].up.count]), 7),
    ]
    for reader, data, number in others:
        with pytest.raises(WireError):
            reader.read(data, number)


@pytest.mark.parametrize("form", ["rows", "factors"])
def test_a_vector_of_weights_in_a_subspace_holds_their_coordinates(form: str) -> None:
    frame = SharedSubspace(make_basis(20, 3, 0), make_table(30, 20, 1.0, 0))
    stage = nn.Sequential(
        SubspaceTokens(nn.Embedding(30, 20), frame, form),
        SubspaceLinear(nn.Linear(10, 20, bias=False), frame, form),
        nn.Linear(20, 2),
    )
    vector = StageVector(stage, frame)
    assert vector.dimension == 3 * 30 + 3 * 10 + 42
    numbers = torch.randn(vector.dimension)
    vector.write(numbers)
    assert torch.allclose(vector.read(), numbers, atol=1e-5)
    if form == "rows":
        for weight, axis, _ in confined(stage):
            assert torch.allclose(weight, project(weight, frame.basis, axis), atol=1e-5)
    basis = make_basis(20, 3, 1)
    moved = vector.in_basis(numbers, basis)
    change_basis(stage, frame.basis, basis, {})
    frame.basis.copy_(basis)
    assert torch.allclose(vector.read(), moved, atol=1e-5)


def test_replicas_with_packets_agree_and_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    path = write_config(
        tmp_path,
        replicas__count=2,
        replicas__every_steps=2,
        replicas__zeros=0.5,
        boundary__basis_steps=3,
        checkpoint_steps=3,
    )
    config = read_pipeline_config(path)
    logs = run_ranks([path] * 4, tmp_path)
    assert [log[-2:] for log in logs] == ["\n0"] * 4, logs
    folder = config.folder / "checkpoints"
    ends = [load_file(folder / f"rank-{rank}-{STEPS}.safetensors") for rank in range(4)]
    for stage in (0, 1):
        assert torch.equal(ends[stage][GLOBAL], ends[2 + stage][GLOBAL])
        assert torch.equal(ends[stage]["basis"], ends[2 + stage]["basis"])
    name = next(name for name in ends[0] if name.endswith("attention_out.weight"))
    assert not torch.equal(ends[0][name], ends[2][name])  # each keeps what it could not say
    inside = project(ends[0][name], ends[0]["basis"], 0)
    assert torch.allclose(ends[0][name], inside, atol=1e-5)
    rows = reports(config)
    assert "to each other replica" in line(rows[1])
    # A ternary update of half zeros takes 1.5 bits a number, and its head.
    size = 2 * float(str(rows[1]["replica_bytes_per_token"])) * config.rows * config.model.length
    numbers = sum(end[GLOBAL].numel() for end in ends[:2])
    assert numbers * 1.4 / 8 < size < numbers * 2.4 / 8 + 400
    for rank in range(4):
        (folder / f"rank-{rank}-{STEPS}.safetensors").unlink()
    stale = folder / "rank-0-50.safetensors"
    stale.write_bytes(b"of a start that got further than the others")
    run_ranks([path] * 4, tmp_path)
    assert not stale.exists()
    again = [load_file(folder / f"rank-{rank}-{STEPS}.safetensors") for rank in range(4)]
    for end, other in zip(ends, again, strict=True):
        assert all(torch.equal(end[name], other[name]) for name in end)
