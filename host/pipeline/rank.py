"""One rank of a pipeline: it connects to the others, trains, and ends with them."""

import logging
import time
from functools import partial

import torch

from host.pipeline.agreement import Control, check_agreement
from host.pipeline.config import PipelineConfig, PipelineError, host_and_port
from host.pipeline.launch import hold
from host.pipeline.links import Inbox, Link, Receiver, Sender
from host.pipeline.meeting import Meeting, Place, Wires
from host.pipeline.replicas import Peers
from host.pipeline.train import RankContext, StageTrainer
from host.pipeline.wire import LinkError
from ternmesh.errors import TernmeshError

CONTROL, BOUNDARY, REPLICA = "control", "boundary", "replica"  # what a link is for
REASON_S = 4.0  # how long a rank that has lost another one waits for a reason

_log = logging.getLogger(__name__)


def run_rank(config: PipelineConfig, place: Place) -> None:
    """Train. If a rank refuses, all ranks print its reason and end.

    LinkError where another rank is gone; PipelineError where the ranks cannot connect.
    """
    torch.set_num_threads(config.threads)
    rank = place.rank
    meeting = Meeting(place, config, config.timeout_s)
    wires = meeting.connect(wanted_links(config, rank))
    inbox, control = Inbox(config.timeout_s), Control(rank, config.ranks)
    make = partial(make_link, inbox=inbox, on_refusal=control.spread)
    control.links |= {
        other: make(f"rank {other}", wires[other, purpose], {}, is_pinned=False)
        for other, purpose in wires
        if purpose == CONTROL
    }
    try:
        control.decide("settings", config.shared(), check_agreement)
        with hold(config.folder, rank):
            device, took = choose_device(config, place)
            _log.info("rank %d: %s; links: %s", rank, took, meeting.transport)
            peers = None
            if config.replicas.count > 1:
                others = {
                    other // config.stages: make(f"rank {other}", made, {}, is_pinned=False)
                    for (other, purpose), made in wires.items()
                    if purpose == REPLICA
                }
                peers = Peers(others, rank // config.stages, config.replicas.count)
            stage = rank % config.stages
            context = RankContext(
                rank, stage, control, inbox, device, took, meeting.transport, peers
            )
            trainer = build(config, context)
            is_gpu = device.type == "cuda"
            links = {
                other: make(f"rank {other}", made, trainer.exact(other), is_pinned=is_gpu)
                for (other, purpose), made in wires.items()
                if purpose == BOUNDARY
            }
            rtts = control.decide(
                "rtt", sum(link.rtt_s for link in links.values()), lambda all_: all_
            )
            behind = rtts[rank + 1 : (rank // config.stages + 1) * config.stages]
            trainer.connect(links.get(rank - 1), links.get(rank + 1), sum(behind))
            trainer.prepare()
            trainer.run()
            control.decide("done", None)
            for link in (*control.links.values(), *links.values()):
                link.sender.close(config.timeout_s)
    except Exception as error:
        if (reason := refusal_in(error)) is not None:
            control.refuse(reason)
        # A refusal of another rank breaks the links too. Its reason is more useful: wait until it
        # ends this process.
        time.sleep(REASON_S)
        raise


def wanted_links(config: PipelineConfig, rank: int) -> list[tuple[int, str]]:
    """The ranks to which a rank has links, and what for."""
    replica, stage = divmod(rank, config.stages)
    to_control = range(1, config.ranks) if rank == 0 else [0]
    neighbours = [rank + way for way in (-1, 1) if 0 <= stage + way < config.stages]
    replicas = [each * config.stages + stage for each in range(config.replicas.count)]
    return [
        *((other, CONTROL) for other in to_control),
        *((other, BOUNDARY) for other in neighbours),
        *((other, REPLICA) for other in replicas if other != rank),
    ]


def make_link(
    peer: str, wires: Wires, exact: dict, *, inbox: Inbox, on_refusal, is_pinned: bool
) -> Link:
    """A link that sends and receives."""
    sender = Sender(peer, wires.outgoing, inbox)
    receiver = Receiver(peer, wires.incoming, inbox, exact, on_refusal, is_pinned)
    sender.start()
    receiver.start()
    return Link(sender, receiver, wires.rtt_s)


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


def choose_device(config: PipelineConfig, place: Place) -> tuple[torch.device, str]:
    """The device of this rank, and its name for people. Ranks of a machine take turns at its GPUs.

    PipelineError where `device` is "cuda" and this machine has no GPU.
    """
    hosts = [host_and_port(each)[0] for each in place.addresses]
    here = hosts[: place.rank].count(hosts[place.rank])
    found = torch.cuda.device_count()
    if config.device == "cpu" or (config.device == "auto" and not found):
        why = " (auto: no GPU here)" if config.device == "auto" else ""
        return torch.device("cpu"), f"cpu{why}"
    if not found:
        raise PipelineError(
            'device is cuda, and torch finds no GPU on this machine: set device = "cpu" here'
        )
    device = torch.device("cuda", here % found)
    torch.cuda.set_device(device)
    return device, f"{device} ({torch.cuda.get_device_name(device)})"


def refusal_in(error: BaseException | None) -> str | None:
    """The reason of a TernmeshError that asks for no other start, or None."""
    while error is not None:
        if isinstance(error, TernmeshError):
            return None if isinstance(error, LinkError) else str(error)
        error = error.__cause__ or error.__context__
    return None
