"""Every input that fuzzing has kept, through its decoder, without the fuzzer.

`python -m bench fuzz` makes the files. One whose name begins with `found-` was a finding once.
"""

import logging
import random
import tracemalloc
from collections.abc import Iterator

import pytest

from bench.fuzz_corpus import BYTES_MAX, FILES_MAX, KEPT, REGRESSION, choose, kept
from bench.fuzz_targets import TARGETS
from bench.fuzz_targets.target import Target, joined, parts

DAMAGED = 20  # of each input, with a byte changed or cut short


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Decoders that log what they refuse would bury a failure."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def inputs(target: Target) -> Iterator[bytes]:
    """What is kept and what is known to be good, and both with damage."""
    rng = random.Random(target.name)
    for data in [b"", *target.seeds(), *kept(target)]:
        yield data
        for _ in range(DAMAGED if data else 0):
            damaged = bytearray(data)
            damaged[rng.randrange(len(data))] = rng.randrange(256)
            yield bytes(damaged[: rng.randrange(len(data))] if rng.random() < 0.2 else damaged)


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_no_value_is_our_own_error(name: str) -> None:
    for data in inputs(TARGETS[name]):
        TARGETS[name].run(data)


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_takes_more_memory_than_is_declared(name: str) -> None:
    target = TARGETS[name]
    for data in [*target.seeds(), *kept(target)]:
        target.run(data)  # What is made once and kept is made before it is measured.
        tracemalloc.start()
        target.run(data)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak <= target.memory_max, data.hex()


@pytest.mark.parametrize("name", TARGETS)
def test_known_good_inputs_are_not_refused(name: str) -> None:
    """A target whose seeds were all refused would fuzz nothing but its first line."""
    target = TARGETS[name]
    good = 0
    for data in target.seeds():
        try:
            target.check(data)
        except target.refusals:
            continue
        good += 1
    assert good


def test_every_target_has_a_corpus_and_every_corpus_a_target() -> None:
    folders = {path.name for path in KEPT.iterdir()}
    assert folders == set(TARGETS)
    for name in folders:
        files = [path for path in (KEPT / name).iterdir() if not path.name.startswith(REGRESSION)]
        assert 0 < len(files) <= FILES_MAX
        assert all(path.stat().st_size <= BYTES_MAX for path in files)


def test_the_fuzzer_and_this_test_can_find_something() -> None:
    def check(data: bytes) -> None:
        if data[:2] == b"ab":
            raise KeyError("not one of ours")

    planted = Target("planted", check)
    planted.run(b"b")
    with pytest.raises(KeyError):
        planted.run(b"abc")


def test_inputs_that_lead_nowhere_new_are_not_kept() -> None:
    target = TARGETS["batch"]
    same_way = [b"\x01\x00" + bytes([byte]) for byte in range(50)]
    chosen = choose(target, [*same_way, b"", b"\x05", bytes(BYTES_MAX + 1)])
    assert chosen.count(b"") == 1
    assert len(set(chosen) & set(same_way)) == 1
    assert all(len(data) <= BYTES_MAX for data in chosen)


def test_parts_give_back_what_was_joined() -> None:
    items = [b"", b"a", bytes(255)]
    assert list(parts(joined(items))) == items
    assert list(parts(b"\x05ab")) == [b"ab"]
