"""One rank of a pipeline: it connects to the others, trains, and ends with them."""

import os
import time
import uuid
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, rendezvous  # type: ignore[attr-defined]

from host.pipeline import agreement
from host.pipeline.config import PipelineConfig, PipelineError
from host.pipeline.launch import hold
from host.pipeline.replicas import Peers
from host.pipeline.train import RankContext, StageTrainer
from ternmesh.errors import TernmeshError


def run_rank(config: PipelineConfig, rank: int, ranks: int) -> None:
    """Train as rank `rank`. If a rank refuses, all ranks print its reason and end.

    PipelineError where the ranks cannot connect.
    """
    torch.set_num_threads(config.threads)
    wait = timedelta(seconds=agreement.AGREE_S)
    try:
        base = next(iter(rendezvous("env://", timeout=wait)))[0]
    except dist.DistError as error:
        raise PipelineError(
            f"the {ranks} ranks did not meet within {agreement.AGREE_S:.0f} s: are all of them "
            "started, and do they reach rank 0?"
        ) from error
    own = uuid.uuid4().hex
    meeting = agreement.join(base, rank, own) if rank else own
    store = PrefixStore(meeting, base)
    watch = agreement.Watch(PrefixStore(meeting, base.clone()), rank)
    watch.start()

    def answer() -> None:
        if rank == 0:
            agreement.welcome(base, ranks, meeting)

    try:
        # Before links are made: the error names a missing or different rank within 30 s.
        shared = config.shared()
        settings = agreement.gather(store, "settings", rank, ranks, shared, meanwhile=answer)
        agreement.check_agreement(settings)
        with hold(config.folder, rank):
            device = choose_device(config, ranks)
            own_device = {"device": device.type}
            devices = agreement.gather(store, "devices", rank, ranks, own_device)
            agreement.check_agreement(devices)
            train(config, rank, store, device, watch)
    except Exception as error:
        if (reason := refusal_in(error)) is not None:
            watch.stop()
            agreement.refuse(store, rank, ranks, reason)
        # A refusal of another rank breaks the links too. Its reason is more useful: wait until the
        # watch ends this process with it.
        time.sleep(2 * agreement.WATCH_S)
        raise


def train(
    config: PipelineConfig, rank: int, store: Store, device: torch.device, watch: agreement.Watch
) -> None:
    """Connect the stages of this replica, and the replicas of this stage, and train."""
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
    trainer = build(config, RankContext(rank, stage, replica, store, device, peers))
    trainer.prepare()
    trainer.run()
    watch.stop()  # from here on ranks end, and the store with them
    if peers is not None:
        peers.mean(torch.zeros(1))  # wait until all replicas are here
    dist.barrier()
    dist.destroy_process_group()


def build(config: PipelineConfig, context: RankContext) -> StageTrainer:
    """The trainer; PipelineError for any failure, because a restart would fail again."""
    try:
        return StageTrainer(config, context)
    except TernmeshError:
        raise
    except Exception as error:  # texts, tokenizers and models fail in many ways
        raise PipelineError(
            f"texts and model cannot be used: {type(error).__name__}: {error}"
        ) from error


def choose_device(config: PipelineConfig, ranks: int) -> torch.device:
    """A GPU for this process alone, or the CPU.

    PipelineError where `device` is "cuda" and this machine has fewer GPUs than ranks.
    """
    here = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    found = torch.cuda.device_count()
    if config.device == "cpu" or (config.device == "auto" and found < here):
        return torch.device("cpu")
    if found < here:
        raise PipelineError(
            f"device is cuda, and this machine has {found} GPUs for {here} ranks: start fewer "
            'here, or set device = "cpu"'
        )
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def refusal_in(error: BaseException | None) -> str | None:
    """The reason of a TernmeshError that the engine has wrapped into its own errors, or None."""
    while error is not None:
        if isinstance(error, TernmeshError):
            return str(error)
        error = error.__cause__ or error.__context__
    return None
