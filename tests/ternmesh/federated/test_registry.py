"""The registry of nodes, and the chain of global updates."""

import pytest

from ternmesh.federated.registry import NodeRegistry, UpdateChain
from ternmesh.federated.state import ChainLink, RegisteredNode

PLACES = 3
LINKS = [ChainLink(version, b"hash %d" % version, b"content %d" % version) for version in (1, 2, 3)]


def registry(*names: str) -> NodeRegistry[RegisteredNode]:
    return NodeRegistry(
        [RegisteredNode(3 * i + 1, name) for i, name in enumerate(names)], RegisteredNode
    )


def test_a_new_node_has_the_next_address_and_a_known_one_keeps_its_own() -> None:  # R3-4, R6.5-12
    nodes = registry("theo", "nora")
    assert nodes.take_in("yan", PLACES).address == 5
    assert nodes.take_in("nora", PLACES) is nodes[4]
    assert [(a, node.name) for a, node in nodes.items()] == [(1, "theo"), (4, "nora"), (5, "yan")]
    assert nodes.named("yan") is nodes[5]
    assert nodes.named("li") is None


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
def test_what_leads_to_the_newest(version, known, steps) -> None:  # R6.5-13
    assert UpdateChain(b"genesis", LINKS, 3).between(version, known, 3) == steps


def test_a_chain_has_so_many_bytes() -> None:  # R6.9-8
    chain = UpdateChain(b"genesis", (), 9, bytes_max=len(b"content 1content 2"))
    for link in LINKS:
        chain.append(link)
    assert (chain.oldest, chain.newest, chain.after(1, 3)) == (2, 3, [b"content 2", b"content 3"])


def test_what_is_too_long_ago_is_forgotten() -> None:
    chain = UpdateChain(b"genesis", LINKS[:2], 2)
    chain.append(LINKS[2])
    assert chain.hash_of(1) is None
    assert chain.between(0, b"genesis", 3) is None
    assert chain.between(1, b"hash 1", 3) is None
    assert chain.between(2, b"hash 2", 3) == [b"content 3"]
