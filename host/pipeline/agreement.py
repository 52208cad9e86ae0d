"""Ranks agree before they train; if one cannot go on, all of them end with its reason.

They communicate through torchrun's key-value store, apart from the links that carry payloads. So a
rank that waits for a payload still learns of a refusal. In the order of a start:

1. `hello/RANK`: each rank writes a random name of its own.
2. `welcome/NAME`: rank 0 answers each name with the name of this start.
3. `TOPIC/RANK`: all write their values (settings, hashes of texts), read all, and compare.
4. `refusal`: at any time later, the reason of a rank that cannot go on; all print it and end.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from host.pipeline.config import PipelineError

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

AGREE_S = 25.0  # how long ranks wait for each other before they train
SEEN_S = 5.0  # how long a refusing rank waits until all others have its reason
POLL_S = 0.05
WATCH_S = 2.0  # each look takes a few hundred bytes of the link
REFUSED = 1  # exit code
REFUSAL = "refusal"  # the key of the reason
SEEN = "refusal-seen"  # the key of how many ranks have printed it


def join(store: "Store", rank: int, own: str, wait_s: float = AGREE_S) -> str:
    """The name of this start, which rank 0 chooses; PipelineError after `wait_s`.

    The store may outlive ranks that are started again, and still hold the keys of earlier starts.
    The torchruns of several machines do not share a count of restarts. So each rank asks under a
    random name `own`, which has no answer yet.
    """
    store.set(f"hello/{rank}", own)
    deadline = time.monotonic() + wait_s
    while not store.check([f"welcome/{own}"]):
        if time.monotonic() > deadline:
            raise PipelineError(f"rank 0 did not answer within {wait_s:.0f} s")
        time.sleep(POLL_S)
    return store.get(f"welcome/{own}").decode()


def welcome(store: "Store", ranks: int, meeting: str) -> None:
    """As rank 0, answer all ranks that have asked so far, in this start or an earlier one."""
    for rank in range(1, ranks):
        if store.check([f"hello/{rank}"]):
            store.set(f"welcome/{store.get(f'hello/{rank}').decode()}", meeting)


def gather(
    store: "Store",
    topic: str,
    rank: int,
    ranks: int,
    value: Any,
    wait_s: float = AGREE_S,
    meanwhile: Callable[[], None] = lambda: None,
) -> list[Any]:
    """The value of each rank for `topic`, in the order of ranks; PipelineError after `wait_s`.

    `meanwhile` is called repeatedly until all values are there.
    """
    store.set(f"{topic}/{rank}", json.dumps(value))
    keys = [f"{topic}/{each}" for each in range(ranks)]
    deadline = time.monotonic() + wait_s
    while not store.check(keys):
        if time.monotonic() > deadline:
            missing = [str(each) for each in range(ranks) if not store.check([keys[each]])]
            raise PipelineError(f"rank {', '.join(missing)} did not answer within {wait_s:.0f} s")
        meanwhile()
        time.sleep(POLL_S)
    return [json.loads(store.get(key)) for key in keys]


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


def check_world(stages: int, replicas: int, ranks: int) -> None:
    """PipelineError unless torchrun started one rank for each stage of each replica."""
    wanted = stages * replicas
    if ranks != wanted:
        each = f" in {replicas} replicas" if replicas > 1 else ""
        raise PipelineError(
            f"{ranks} ranks were started for {stages} stages{each}: start {wanted} "
            f"(torchrun --nproc-per-node {wanted}), or change `stages`"
        )


class Watch:
    """A thread with its own connection that ends this process when another rank refuses.

    It also ends the process when the store is gone: then torchrun is gone too and cannot end it.
    """

    def __init__(self, store: "Store", rank: int) -> None:
        self._store = store
        self._rank = rank
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join()

    def _listen(self) -> None:
        while not self._done.wait(WATCH_S):
            try:
                refused = self._store.check([REFUSAL])
            except Exception as error:  # noqa: BLE001  (torch's error classes differ by version)
                try:
                    end_with(f"torchrun, or the machine of rank 0, is gone: {error}", self._rank)
                finally:  # the terminal may be gone too, so that printing fails
                    os._exit(REFUSED)
            if refused:
                end_with(self._store.get(REFUSAL).decode(), self._rank)
                self._store.add(SEEN, 1)
                os._exit(REFUSED)


def refuse(store: "Store", rank: int, ranks: int, sentence: str) -> None:
    """Publish a reason, wait until all ranks have printed it, and end torchrun and this process.

    Only the first refusal of all ranks is published.
    """
    reason = f"rank {rank}: {sentence}"
    if store.add(f"{REFUSAL}-first", 1) == 1:
        store.set(REFUSAL, reason)
    else:
        reason = store.get(REFUSAL).decode()
    end_with(reason, rank)
    seen = store.add(SEEN, 1)
    deadline = time.monotonic() + SEEN_S
    while seen < ranks and time.monotonic() < deadline:
        time.sleep(POLL_S)
        seen = store.add(SEEN, 0)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        os.kill(os.getppid(), signal.SIGTERM)  # torchrun would restart ranks only to be refused
    os._exit(REFUSED)


def end_with(sentence: str, rank: int) -> None:
    """Print why this rank ends."""
    print(f"ternmesh: rank {rank} ends: {sentence}", file=sys.stderr, flush=True)  # noqa: T201
