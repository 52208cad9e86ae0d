"""One rank of a pipeline: it connects to the others, trains, and ends with them."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import torch

from host.pipeline.agreement import Control, check_agreement
from host.pipeline.config import PipelineConfig, PipelineError, host_and_port
from host.pipeline.launch import hold
from host.pipeline.links import LinkEvents, LinkReader, LinkWriter, RankLink
from host.pipeline.meeting import Meeting, Place, Wires
from host.pipeline.replicas import Peers
from host.pipeline.train import RankContext, StageTrainer
from host.pipeline.wire import FILLING_SIZE, Kind, LinkError
from ternmesh.errors import TernmeshError

CONTROL, BOUNDARY, REPLICA = "control", "boundary", "replica"  # what a link is for
REASON_S = 4.0  # how long a rank that has lost another one waits for a reason

_log = logging.getLogger(__name__)


def run_rank(config: PipelineConfig, place: Place) -> None:
    """Train. If a rank refuses, all ranks print its reason and end.

    LinkError where another rank is gone; PipelineError where the ranks cannot connect.
    """
    torch.set_num_threads(config.threads)
    rank, (replica, stage) = place.rank, divmod(place.rank, config.stages)
    meeting = Meeting(place, config)
    wires = meeting.connect(wanted_links(config, rank))
    events, control = LinkEvents(config.timeout_s), Control(rank, config.ranks)
    make = partial(make_link, events, control.spread)
    control.links |= {
        other: make(other, wires[other, why], {}) for other, why in wires if why == CONTROL
    }
    try:
        control.decide("settings", config.shared(), check_agreement)
        with hold(config.folder, rank):
            device, took = choose_device(config, place)
            _log.info("rank %d: %s; links: %s", rank, took, meeting.transport)
            peers = None
            if config.replicas.count > 1:
                others = [other for other, why in wires if why == REPLICA]
                links = {o // config.stages: make(o, wires[o, REPLICA], {}) for o in others}
                peers = Peers(links, replica, config.replicas.count)
            context = RankContext(
                rank, stage, control, events, device, took, meeting.transport, peers
            )
            trainer = build(config, context)
            neighbours = {
                other: make(other, wires[other, why], trainer.exact(other), device.type == "cuda")
                for other, why in wires
                if why == BOUNDARY
            }
            byte_s = {} if place.is_local else fill(neighbours)
            own_s = hop([link.rtt_s for link in neighbours.values()], byte_s, trainer.exact)
            hops_s = control.decide("hops", own_s, lambda each: each)
            hops_s = hops_s[replica * config.stages :][: config.stages]
            trainer.connect(neighbours.get(rank - 1), neighbours.get(rank + 1), hops_s)
            trainer.prepare()
            trainer.run()
            control.decide("done", None)
            for link in (*control.links.values(), *neighbours.values()):
                link.writer.close(config.timeout_s)
    except Exception as error:
        if (reason := refusal_in(error)) is not None:
            control.spread(f"rank {rank}: {reason}")
        # A refusal of another rank breaks the links too. Its reason is more useful: wait until it
        # ends this process.
        time.sleep(REASON_S)
        raise


def wanted_links(config: PipelineConfig, rank: int) -> list[tuple[int, str]]:
    """The ranks to which a rank has links, and what for."""
    stage = rank % config.stages
    to_control = range(1, config.ranks) if rank == 0 else [0]
    neighbours = [rank + way for way in (-1, 1) if 0 <= stage + way < config.stages]
    replicas = [each * config.stages + stage for each in range(config.replicas.count)]
    return [
        *((other, CONTROL) for other in to_control),
        *((other, BOUNDARY) for other in neighbours),
        *((other, REPLICA) for other in replicas if other != rank),
    ]


def make_link(
    events: LinkEvents,
    on_refusal: Callable[[str], None],
    peer: int,
    wires: Wires,
    exact: Mapping[Kind, int],
    is_pinned: bool = False,
) -> RankLink:
    """A link whose threads run."""
    writer = LinkWriter(f"rank {peer}", wires.outgoing, events)
    reader = LinkReader(f"rank {peer}", wires.incoming, events, exact, on_refusal, is_pinned)
    writer.start()
    reader.start()
    return RankLink(writer, reader, wires.rtt_s)


def fill(links: Mapping[int, RankLink]) -> dict[int, float]:
    """Fill each link once, both ways: BBR sends no burst faster than it has seen the link carry.

    Returns the seconds a byte takes from each neighbour. The first filling has TCP's slow start.
    """
    for link in [*links.values()] * 2:
        link.writer.send(Kind.FILLING, bytes(FILLING_SIZE))
    for link in links.values():
        link.reader.take(Kind.FILLING)
    second = {other: link.reader.take(Kind.FILLING) for other, link in links.items()}
    return {other: message.took_s / FILLING_SIZE for other, message in second.items()}


def hop(
    rtts_s: Iterable[float], byte_s: Mapping[int, float], exact: Callable[[int], Mapping[Kind, int]]
) -> list[float]:
    """From the rank before to this one: the round trip, and what a payload's bytes take."""
    payload_s = (exact(other).get(Kind.FORWARD, 0) * taken for other, taken in byte_s.items())
    return [sum(rtts_s), sum(payload_s)]


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
    hosts = [host_and_port(each)[0] for each in place.addresses[: place.rank]]
    here = hosts.count(place.own[0])
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
