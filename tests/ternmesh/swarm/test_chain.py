"""The chain: what leads from one version to the newest, and what is too long ago."""

import pytest

from ternmesh.swarm.chain import Chain
from ternmesh.swarm.records import Link

LINKS = [Link(version, b"hash %d" % version, b"content %d" % version) for version in (1, 2, 3)]


@pytest.mark.parametrize(
    ("version", "known", "steps"),
    [
        (0, b"genesis", [b"content 1", b"content 2", b"content 3"]),
        (2, b"hash 2", [b"content 3"]),
        (3, b"hash 3", []),
        (0, b"another", None),
        (2, b"hash 1", None),
        (2, None, None),
    ],
)
def test_what_leads_to_the_newest(
    version: int, known: bytes | None, steps: list[bytes] | None
) -> None:
    assert Chain(b"genesis", LINKS, 3).between(version, known, 3) == steps


def test_what_is_too_long_ago_is_forgotten() -> None:
    chain = Chain(b"genesis", LINKS[:2], 2)
    chain.append(LINKS[2])
    assert chain.hash_of(1) is None
    assert chain.between(0, b"genesis", 3) is None
    assert chain.between(1, b"hash 1", 3) is None
    assert chain.between(2, b"hash 2", 3) == [b"content 3"]


def test_a_chain_of_nothing_leads_nowhere() -> None:
    chain = Chain(b"genesis", LINKS, 0)
    assert chain.between(0, b"genesis", 3) is None
    assert chain.between(0, b"genesis", 0) == []
