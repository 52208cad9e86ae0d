"""How ranks agree before they train, and how all of them end with one sentence when one cannot.

Everything goes through the store that torchrun keeps, beside the links that carry payloads: a rank
that waits for a payload hears of a refusal too.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from host.pipeline.errors import PipelineError

AGREE_S, SEEN_S, POLL_S = 25.0, 5.0, 0.05
WATCH_S = 2.0  # looking takes a few hundred bytes of the link
REFUSED = 1  # exit code
REFUSAL, SEEN = "refusal", "refusal-seen"


class Store(Protocol):
    """What is used of torch's stores."""

    def set(self, key: str, value: str, /) -> None:
        """Set a key for all ranks."""

    def get(self, key: str, /) -> bytes:
        """The value of a key."""

    def add(self, key: str, amount: int, /) -> int:
        """A counter after it has grown by `amount`."""

    def check(self, keys: list[str], /) -> bool:
        """Whether all keys are set."""


def join(store: Store, rank: int, own: str, wait_s: float = AGREE_S) -> str:
    """The name of the meeting, which rank 0 tells all who are there; PipelineError after `wait_s`.

    The store may outlive ranks that are started again, with the words of their forerunners in it,
    and torchruns of several machines count restarts apart. So each rank asks under a fresh `own`
    that nobody has answered before.
    """
    store.set(f"hello/{rank}", own)
    deadline = time.monotonic() + wait_s
    while not store.check([f"welcome/{own}"]):
        if time.monotonic() > deadline:
            raise PipelineError(f"rank 0 did not answer within {wait_s:.0f} s")
        time.sleep(POLL_S)
    return store.get(f"welcome/{own}").decode()


def welcome(store: Store, ranks: int, meeting: str) -> None:
    """As rank 0, tell all who have asked by now, whether they live or not."""
    for rank in range(1, ranks):
        if store.check([f"hello/{rank}"]):
            store.set(f"welcome/{store.get(f'hello/{rank}').decode()}", meeting)


def gather(
    store: Store,
    topic: str,
    rank: int,
    ranks: int,
    value: Any,
    wait_s: float = AGREE_S,
    meanwhile: Callable[[], None] = lambda: None,
) -> list[Any]:
    """What each rank said on `topic`, in the order of ranks; PipelineError after `wait_s`.

    `meanwhile` is called again and again until all have.
    """
    store.set(f"{topic}/{rank}", json.dumps(value))
    keys = [f"{topic}/{each}" for each in range(ranks)]
    deadline = time.monotonic() + wait_s
    while not store.check(keys):
        if time.monotonic() > deadline:
            silent = [str(each) for each in range(ranks) if not store.check([keys[each]])]
            raise PipelineError(f"rank {', '.join(silent)} did not answer within {wait_s:.0f} s")
        meanwhile()
        time.sleep(POLL_S)
    return [json.loads(store.get(key)) for key in keys]


def agree(
    store: Store,
    topic: str,
    rank: int,
    ranks: int,
    own: Mapping[str, Any],
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """PipelineError unless all ranks say what this one says on `topic`, within 25 s."""
    check_agreement(gather(store, topic, rank, ranks, own, AGREE_S, meanwhile))


def check_agreement(shared: Sequence[Mapping[str, Any]]) -> None:
    """PipelineError that names the first setting in which a rank differs from rank 0."""
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
    if ranks != (wanted := stages * replicas):
        each = f" in {replicas} replicas" if replicas > 1 else ""
        raise PipelineError(
            f"{ranks} ranks were started for {stages} stages{each}: start {wanted} "
            f"(torchrun --nproc-per-node {wanted}), or change `stages`"
        )


class Watch:
    """Listens on its own connection for another rank's refusal, and ends this process with it.

    It ends it too where the store is gone, and with it torchrun: nobody would end it otherwise.
    """

    def __init__(self, store: Store, rank: int) -> None:
        self._store, self._rank = store, rank
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def start(self) -> None:
        """Listen from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Listen no more."""
        self._done.set()
        self._thread.join()

    def _listen(self) -> None:
        while not self._done.wait(WATCH_S):
            try:
                refused = self._store.check([REFUSAL])
            except Exception as error:  # noqa: BLE001  (torch's own kinds differ by version)
                try:
                    end_with(f"torchrun, or the machine of rank 0, is gone: {error}", self._rank)
                finally:  # the terminal may be gone with it
                    os._exit(REFUSED)
            if refused:
                end_with(self._store.get(REFUSAL).decode(), self._rank)
                self._store.add(SEEN, 1)
                os._exit(REFUSED)


def refuse(store: Store, rank: int, ranks: int, sentence: str) -> None:
    """Say it on every rank, wait until all have said it, end torchrun, and this process."""
    whole = f"rank {rank}: {sentence}"
    if store.add(f"{REFUSAL}-first", 1) == 1:
        store.set(REFUSAL, whole)
    else:
        whole = store.get(REFUSAL).decode()
    end_with(whole, rank)
    seen, deadline = store.add(SEEN, 1), time.monotonic() + SEEN_S
    while seen < ranks and time.monotonic() < deadline:
        time.sleep(POLL_S)
        seen = store.add(SEEN, 0)
    stop_launcher()
    os._exit(REFUSED)


def end_with(sentence: str, rank: int) -> None:
    """Say why this rank ends."""
    print(f"ternmesh: rank {rank} ends: {sentence}", file=sys.stderr, flush=True)  # noqa: T201


def stop_launcher() -> None:
    """Tell torchrun not to start again what would only be refused again."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        os.kill(os.getppid(), signal.SIGTERM)
