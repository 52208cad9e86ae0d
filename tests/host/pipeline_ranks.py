"""Ranks of a pipeline as forks of one process that has torch loaded, each with its own files."""

import multiprocessing
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from ternmesh_cli.toml import write_toml

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
    }
    tables[""] |= {"micro_batches": 2, "checkpoint_steps": 2, "report_steps": 1}
    tables[""] |= {"validate_steps": STEPS, "device": "cpu"}
    for key, value in changes.items():
        table, _, last = key.rpartition("__")
        tables[table][last] = value
    (folder / "text").mkdir(exist_ok=True)
    (folder / "text" / "a.txt").write_text(TEXT * 40)
    path = folder / name
    path.write_text(write_toml(tables))
    return path


def run_ranks(configs: Sequence[Path], folder: Path, ranks: int | None = None) -> list[str]:
    """Run one rank for each file to its end; what each wrote to stderr, then its exit code."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["host.pipeline.rank"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    logs = [folder / f"rank-{rank}.log" for rank in range(len(configs))]
    world = ranks or len(configs)
    jobs = [
        context.Process(target=_run, args=(str(configs[rank]), rank, world, port, str(logs[rank])))
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


def _run(config: str, rank: int, ranks: int, port: int, log: str) -> None:
    os.dup2(os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), 2)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    from host.pipeline.__main__ import main

    code = main([config])
    os._exit(code)
