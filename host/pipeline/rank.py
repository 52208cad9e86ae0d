"""One rank of a pipeline: it meets the others, trains, and ends with them."""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, rendezvous  # type: ignore[attr-defined]

from host.pipeline import agreement
from host.pipeline.config import PipelineConfig
from host.pipeline.errors import PipelineError
from host.pipeline.peers import Peers
from host.pipeline.train import Place, Trainer
from ternmesh.errors import TernmeshError


def run_rank(config: PipelineConfig, rank: int, ranks: int) -> None:
    """Train as rank `rank`; where a rank refuses, every rank says why and the process ends.

    PipelineError where the ranks do not even meet.
    """
    torch.set_num_threads(config.threads)
    device = choose_device(config)
    # A rank that was started again must not read what its forerunners have said.
    prefix = f"ternmesh/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    wait = timedelta(seconds=agreement.AGREE_S)
    try:
        base = next(iter(rendezvous("env://", timeout=wait)))[0]
    except dist.DistError as error:
        raise PipelineError(
            f"the {ranks} ranks did not meet within {agreement.AGREE_S:.0f} s: are all of them "
            "started, and do they reach rank 0?"
        ) from error
    store = PrefixStore(prefix, base)
    watch = agreement.Watch(PrefixStore(prefix, base.clone()), rank)
    watch.start()
    try:
        # Before links are made: whoever is missing or differs is named within 30 s.
        settings = agreement.gather(store, "settings", rank, ranks, config.shared())
        agreement.check_agreement(settings)
        train(config, rank, store, device)
    except Exception as error:
        if (reason := refusal_in(error)) is not None:
            watch.stop()
            agreement.refuse(store, rank, ranks, reason)
        # What another rank has refused breaks the links too: its sentence says more, and the watch
        # ends this process with it.
        time.sleep(2 * agreement.WATCH_S)
        raise
    watch.stop()


def train(config: PipelineConfig, rank: int, store: Store, device: torch.device) -> None:
    """Meet the other ranks and train. A replica is a world of its own, with links beside it."""
    replica, stage = divmod(rank, config.stages)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=PrefixStore(f"replica/{replica}", store),
        rank=stage,
        world_size=config.stages,
        timeout=timedelta(seconds=config.timeout_s),
    )
    peers, count = None, config.replicas.count
    if count > 1:
        peers = Peers(PrefixStore(f"stage/{stage}", store), replica, count, config.timeout_s)
    trainer = Trainer(config, Place(rank, stage, replica, store, device, peers))
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
