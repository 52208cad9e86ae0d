"""Every kept input through its decoder, without the fuzzer: a value or our error, nothing else.

`python -m fuzz` adds the inputs that fail.
"""

import random
from collections.abc import Iterator
from contextlib import suppress

import pytest

from fuzz.run import CORPUS
from fuzz.table import TARGETS
from fuzz.target import Target

DAMAGED, INPUTS = 20, 100  # copies of each input with another byte or cut short; about all of them


pytestmark = pytest.mark.usefixtures("no_log")


def others(target: Target, seeds: list[bytes]) -> Iterator[bytes]:
    """Nothing, the kept inputs, and damaged copies of them and of the seeds."""
    rng = random.Random(target.name)
    kept = [path.read_bytes() for path in sorted((CORPUS / target.name).glob("*"))]
    yield from (b"", *kept)
    for data in (*seeds, *kept):
        for _ in range(min(DAMAGED, INPUTS // (1 + len(seeds) + len(kept))) if data else 0):
            damaged = bytearray(data)
            damaged[rng.randrange(len(data))] = rng.randrange(256)
            yield bytes(damaged[: rng.randrange(len(data))] if rng.random() < 0.2 else damaged)


@pytest.mark.parametrize("name", TARGETS)
def test_a_seed_is_accepted_and_what_is_no_value_is_our_own_error(name: str) -> None:
    """Without an accepted seed the fuzzer would test the first lines of the decoder only."""
    target, accepted = TARGETS[name], 0
    seeds = list(target.seeds())
    for data in seeds:
        with suppress(*target.errors):
            target.call(data)
            accepted += 1
    assert accepted
    for data in others(target, seeds):
        target.run(data)


def test_every_folder_of_the_corpus_belongs_to_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} <= set(TARGETS)
