"""Ranks of a pipeline as forks of one process that has torch loaded, each with its own files."""

import json
import multiprocessing
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from bench.one_process import run_stages
from host.pipeline.config import PipelineConfig
from host.pipeline.engine import next_token_loss
from host.pipeline.report import PROGRESS
from host.pipeline.texts import read_texts
from host.pipeline.train import VALIDATION_PARTS, own_stage
from models.bottleneck.training import StageOptimizer
from ternmesh_cli.process import write_toml

TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom. "
LATENT, STEPS = 4, 6
WAIT_S = 600.0  # for a machine that others use; only a rank that hangs takes it


def write_config(folder: Path, name: str = "run.toml", **changes: object) -> Path:
    """A small pipeline's file; changes are by dotted name with __ for the dot."""
    tables: dict[str, dict[str, object]] = {
        "": {"state_dir": "state", "data": "text", "stages": 2, "micro_batch": 2, "steps": STEPS},
        "model": {"width": 16, "layers": 2, "heads": 2, "length": 12},
        "boundary": {"method": "subspace", "latent": LATENT, "basis_steps": 4, "form": "rows"},
        "optimizer": {"warmup_steps": 2, "learning_rate": 0.01},
        "replicas": {"count": 1},
    }
    tables[""] |= {"micro_batches": 2, "checkpoint_steps": 2, "report_steps": 1}
    tables[""] |= {"validate_steps": STEPS, "device": "cpu"}
    tables["boundary"] |= {"bits": 32, "back_bits": 32}
    for key, value in changes.items():
        table, _, last = key.rpartition("__")
        tables[table][last] = value
    (folder / "text").mkdir(exist_ok=True)
    (folder / "text" / "a.txt").write_text(TEXT * 40)
    path = folder / name
    path.write_text(write_toml(tables))
    return path


def in_one_process(config: PipelineConfig) -> tuple[list[list[float]], float]:
    """The losses of all micro-batches by step and that of validation, without any rank."""
    parts = [own_stage(config, rank) for rank in range(config.stages)]
    stages = [stage for stage, _ in parts]
    trainers = [StageOptimizer(s, f, config.boundary, config.optimizer) for s, f in parts]
    texts, length = read_texts(Path(config.data), config.model.length), config.model.length
    rows, losses = config.micro_batch * config.micro_batches, []
    for step in range(config.steps):
        batch = torch.from_numpy(texts.batch(step, config.seed, rows, length))
        is_basis_step = trainers[0].is_basis_step(step)
        for (_, subspace), trainer in zip(parts, trainers, strict=True):
            trainer.zero_grad()
            if subspace is not None:
                subspace.collecting = is_basis_step
        part_losses = []
        for part in batch.split(config.micro_batch):
            loss = next_token_loss(run_stages(stages, part[:, :-1]), part[:, 1:])
            (loss / config.micro_batches).backward()
            part_losses.append(float(loss.detach()))
        losses.append(part_losses)
        norm = sum(trainer.square() for trainer in trainers) ** 0.5
        for trainer in trainers:
            trainer.step(step, config.steps, norm)
        if is_basis_step:
            subspaces = [subspace for _, subspace in parts if subspace is not None]
            subspaces[0].gram.copy_(torch.stack([subspace.gram for subspace in subspaces]).sum(0))
            basis = trainers[0].next_basis()
            for subspace, trainer in zip(subspaces, trainers, strict=True):
                trainer.change_basis(basis)
                subspace.basis.copy_(basis)
    judged = []
    with torch.no_grad():
        for number in range(VALIDATION_PARTS):
            batch = torch.from_numpy(texts.validation_batch(number, rows, length))
            judged += [
                float(next_token_loss(run_stages(stages, part[:, :-1]), part[:, 1:]))
                for part in batch.split(config.micro_batch)
            ]
    return losses, sum(judged) / len(judged)


def reports(config: PipelineConfig) -> list[dict[str, object]]:
    return [json.loads(text) for text in (config.folder / PROGRESS).read_text().splitlines()]


def free_addresses(count: int) -> list[str]:
    with ExitStack() as stack:
        servers = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [f"127.0.0.1:{server.getsockname()[1]}" for server in servers]


def run_ranks(configs: Sequence[Path], folder: Path) -> list[str]:
    """Run one rank for each file to its end; what each wrote to stderr, then its exit code."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["host.pipeline.rank"])
    addresses = free_addresses(len(configs))
    logs = [folder / f"rank-{rank}.log" for rank in range(len(configs))]
    jobs = [
        context.Process(
            target=run_rank, args=(str(configs[rank]), rank, addresses, str(logs[rank]))
        )
        for rank in range(len(configs))
    ]
    for job in jobs:
        job.start()
    try:
        for job in jobs:
            job.join(WAIT_S)
            assert job.exitcode is not None, "a rank hangs"
    finally:
        for job in jobs:
            job.kill()
    return [f"{log.read_text()}\n{job.exitcode}" for log, job in zip(logs, jobs, strict=True)]


def run_rank(config: str, rank: int, addresses: list[str], log: str) -> None:
    """Be a rank, in a process of its own."""
    os.dup2(os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), 2)
    given, write = os.pipe()  # `write` stays open as long as this process
    os.write(write, json.dumps([addresses, "secret", None]).encode() + b"\n")
    sys.stdin = os.fdopen(given)
    from host.pipeline.__main__ import main

    code = main([config, str(rank), "--supervised"])
    os._exit(code)
