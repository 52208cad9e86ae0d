"""Every kept input through its decoder, without the fuzzer: a value or our error, nothing else.

`python -m fuzz` adds the inputs that fail.
"""

import logging
import random
from collections.abc import Iterator

import pytest

from fuzz.run import CORPUS
from fuzz.table import TARGETS
from fuzz.target import Target

DAMAGED, INPUTS = 20, 200  # copies of each input with another byte or cut short; about all of them


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Decoders log what they refuse."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def inputs(target: Target) -> Iterator[bytes]:
    """Nothing, the seeds and the kept inputs, and damaged copies of them."""
    rng = random.Random(target.name)
    kept = [path.read_bytes() for path in sorted((CORPUS / target.name).glob("*"))]
    whole = [b"", *target.seeds(), *kept]
    for data in whole:
        yield data
        for _ in range(min(DAMAGED, INPUTS // len(whole)) if data else 0):
            damaged = bytearray(data)
            damaged[rng.randrange(len(data))] = rng.randrange(256)
            yield bytes(damaged[: rng.randrange(len(data))] if rng.random() < 0.2 else damaged)


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_no_value_is_our_own_error(name: str) -> None:
    for data in inputs(TARGETS[name]):
        TARGETS[name].run(data)


@pytest.mark.parametrize("name", TARGETS)
def test_a_seed_is_accepted(name: str) -> None:
    """Otherwise the fuzzer would test the first lines of the decoder only."""
    target, accepted = TARGETS[name], 0
    for data in target.seeds():
        try:
            target.call(data)
        except target.errors:
            continue
        accepted += 1
    assert accepted


def test_every_folder_of_the_corpus_belongs_to_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} <= set(TARGETS)
