"""Ranks agree before they train; if one cannot go on, all of them end with its reason.

Each rank has a link to rank 0, apart from those that carry payloads, and rank 0 decides. So a rank
that waits for a payload still learns of a refusal.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from host.pipeline.config import PipelineError
from host.pipeline.launch import REFUSED
from host.pipeline.links import RankLink
from host.pipeline.wire import Kind, LinkError, read_json, write_json

SEEN_S = 5.0  # how long a refusing rank waits until the others have its reason
GONE = 4  # exit code: another rank is gone, and ranks that are started again may go on


class Control:
    """The links between rank 0 and all others, by the other's rank."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.links: dict[int, RankLink] = {}
        self._rank = rank
        self._ranks = ranks
        self._ending = threading.Lock()

    def decide(
        self, topic: str, value: Any, judge: Callable[[list[Any]], Any] = lambda _: None
    ) -> Any:
        """What rank 0's `judge` makes of the values of all ranks, in their order, on all ranks."""
        value = read_json(write_json(value))  # as it arrives from others: lists in place of tuples
        if self._rank:
            self.links[0].writer.send(Kind.NOTE, write_json([topic, value]))
            return self._take(0, topic)
        others = range(1, self._ranks)
        answer = judge([value, *(self._take(rank, topic) for rank in others)])
        for rank in others:
            self.links[rank].writer.send(Kind.NOTE, write_json([topic, answer]))
        return answer

    def spread(self, reason: str) -> None:
        """End this process, and all ranks with the reason. Links call it where one arrives."""
        with self._ending:  # the first reason of all ranks counts
            end_with(reason, self._rank)
            for link in self.links.values():
                link.writer.send(Kind.REFUSAL, reason.encode())
            deadline = time.monotonic() + SEEN_S
            for link in self.links.values():
                link.writer.close(max(0.0, deadline - time.monotonic()))
            os._exit(REFUSED)

    def _take(self, rank: int, topic: str) -> Any:
        message = read_json(self.links[rank].reader.take(Kind.NOTE).data)
        match message:
            case [str(found), value] if found == topic:
                return value
        raise LinkError(
            f"rank {rank} is at another point of its start: start all with this version"
        )


def check_agreement(shared: Sequence[Mapping[str, Any]]) -> None:
    """PipelineError for the first setting in which a rank differs from rank 0."""
    for rank, settings in enumerate(shared):
        for name in sorted(shared[0].keys() | settings.keys()):
            first, other = shared[0].get(name), settings.get(name)
            if first != other:
                raise PipelineError(
                    f"the ranks do not agree on {name}: it is {first!r} on rank 0 and {other!r} on "
                    f"rank {rank}; start all of them with the same configuration and texts"
                )


def end_with(sentence: str, rank: int) -> None:
    """Print why this rank ends."""
    print(f"ternmesh: rank {rank} ends: {sentence}", file=sys.stderr, flush=True)  # noqa: T201
