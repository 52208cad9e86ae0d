"""One rank of a pipeline: it meets the others, trains, and ends with them."""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, rendezvous  # type: ignore[attr-defined]

from host.pipeline import agreement
from host.pipeline.config import PipelineConfig
from host.pipeline.train import Place, Trainer
from ternmesh.errors import TernmeshError


def run_rank(config: PipelineConfig, rank: int, ranks: int) -> None:
    """Train as rank `rank`; where a rank refuses, every rank says why and the process ends."""
    torch.set_num_threads(config.threads)
    device = choose_device(config)
    # A rank that was started again must not read what its forerunners have said.
    prefix = f"ternmesh/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    wait = timedelta(seconds=agreement.AGREE_S)
    base = next(iter(rendezvous("env://", timeout=wait)))[0]
    store = PrefixStore(prefix, base)
    watch = agreement.Watch(PrefixStore(prefix, base.clone()), rank)
    watch.start()
    try:
        train(config, Place(rank, store, device), ranks)
    except Exception as error:
        if (reason := refusal_in(error)) is not None:
            watch.stop()
            agreement.refuse(store, rank, ranks, reason)
        # What another rank has refused breaks the links too: its sentence says more, and the watch
        # ends this process with it.
        time.sleep(2 * agreement.WATCH_S)
        raise
    watch.stop()


def train(config: PipelineConfig, place: Place, ranks: int) -> None:
    """Meet the other ranks and train."""
    backend = "nccl" if place.device.type == "cuda" else "gloo"
    limit = timedelta(seconds=config.timeout_s)
    dist.init_process_group(
        backend,
        store=PrefixStore("group", place.store),
        rank=place.rank,
        world_size=ranks,
        timeout=limit,
    )
    trainer = Trainer(config, place)
    trainer.prepare()
    trainer.run()
    dist.barrier()
    dist.destroy_process_group()


def choose_device(config: PipelineConfig) -> torch.device:
    """The GPU of this process where there is one and it is wanted, or the CPU."""
    if config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def refusal_in(error: BaseException | None) -> str | None:
    """The sentence of a refusal that the engine has wrapped into errors of its own."""
    while error is not None:
        if isinstance(error, TernmeshError):
            return str(error)
        error = error.__cause__ or error.__context__
    return None
