"""The nodes of a run and the newest global updates, as the host keeps both."""

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from ternmesh.deliveries import Deliveries
from ternmesh.errors import WireError
from ternmesh.federated.state import ChainLink
from ternmesh.timers import RateLimiter

CHAIN_BYTES_MAX = 256_000  # of the global updates that a node keeps
CATCH_UP_MIN_S = 2.0  # at most one catch-up a node in this time: a hello must not be an amplifier


class Registered(Protocol):
    """The attributes that every kind of node has."""

    address: int
    name: str
    heard_at: float | None
    refused: Counter[str]


NodeT_co = TypeVar("NodeT_co", bound=Registered, covariant=True)


class NodeRegistry(Mapping[int, NodeT_co], Generic[NodeT_co]):
    """The nodes of a run by address, in the order of joining. No node is ever removed.

    `new` makes a node from an address and a name.
    """

    def __init__(self, nodes: Iterable[NodeT_co], new: Callable[[int, str], NodeT_co]) -> None:
        self._by_address = {node.address: node for node in nodes}
        self._by_name = {node.name: node for node in self._by_address.values()}
        self._highest = max(self._by_address, default=0)
        self._new = new

    def __getitem__(self, address: int) -> NodeT_co:
        """Return the node of an address. Raises KeyError if no node has this address."""
        return self._by_address[address]

    def __iter__(self) -> Iterator[int]:
        return iter(self._by_address)

    def __len__(self) -> int:
        return len(self._by_address)

    def named(self, name: str) -> NodeT_co | None:
        return self._by_name.get(name)

    def names(self) -> Collection[str]:
        return self._by_name.keys()

    def sender(self, address: int, peer: str) -> NodeT_co:
        """Return the node of an address. Raises WireError unless its name is `peer`."""
        node = self._by_address.get(address)
        if node is None:
            raise WireError("unknown node", "a frame from an address that no node was given")
        if peer != node.name:
            raise WireError("wrong peer", "a frame in another node's name")
        return node

    def take_in(self, name: str, places: int) -> NodeT_co:
        """Return the node of this name; a new node gets the next address.

        Raises WireError if there are `places` nodes already."""
        node = self._by_name.get(name)
        if node is None:
            if len(self) >= places:
                raise WireError("full", f"this host takes {places} nodes")
            self._highest += 1
            node = self._new(self._highest, name)
            self._by_address[node.address] = node
            self._by_name[name] = node
        return node


class UpdateChain:
    """The newest global updates as sent, each the parent of the next.

    `genesis` is the hash before the first global update. At most `longest` global updates are kept,
    and together at most `bytes_max`; the oldest is removed first.
    """

    def __init__(
        self, genesis: bytes, links: Iterable[ChainLink], longest: int, bytes_max: float = math.inf
    ) -> None:
        self.genesis = genesis
        self._links = deque(links, maxlen=longest)
        self._bytes_max = bytes_max

    def append(self, link: ChainLink) -> None:
        self._links.append(link)
        while sum(len(link.content) for link in self._links) > self._bytes_max:
            self._links.popleft()

    def clear(self) -> None:
        """Remove all: what comes next does not follow from them."""
        self._links.clear()

    def newest_first(self) -> Iterator[ChainLink]:
        return reversed(self._links)

    @property
    def newest(self) -> int:
        """The version of the newest global update that is kept; 0 for none."""
        return self._links[-1].version if self._links else 0

    @property
    def oldest(self) -> int | None:
        """The version of the oldest global update that is kept."""
        return self._links[0].version if self._links else None

    def reach(self, bytes_max: int) -> int:
        """The oldest version from which at most so many bytes of global updates lead here."""
        version, total = self.newest, 0
        for link in reversed(self._links):
            total += len(link.content)
            if total > bytes_max:
                break
            version = link.version - 1
        return version

    def hash_of(self, version: int) -> bytes | None:
        """Return the hash of a version's global update; None if it is not kept any more."""
        if version == 0:
            return self.genesis
        return next((link.global_hash for link in self._links if link.version == version), None)

    def link_of(self, version: int) -> ChainLink | None:
        """The global update to a version, if it is kept."""
        return next((link for link in self._links if link.version == version), None)

    def between(self, version: int, known: bytes | None, newest: int) -> list[bytes] | None:
        """Return the global updates that lead from `version` to `newest`, in order.

        None if some of these are not kept any more, or if `known` is not the hash of `version`.
        """
        return self.after(version, newest) if known == self.hash_of(version) else None

    def after(self, version: int, newest: int) -> list[bytes] | None:
        """Return the same, whatever the hash of `version` is."""
        steps = [link.content for link in self._links if link.version > version]
        return steps if len(steps) == newest - version else None


class CatchUp:
    """When a node that is behind is sent global updates. `pause_s` is how long they take."""

    def __init__(self, pause_s: float) -> None:
        self.deliveries = Deliveries()  # of a transport that retransmits
        self._pause_s = pause_s
        self._limiter = RateLimiter(CATCH_UP_MIN_S)

    def is_due(self, name: str, now: float) -> bool:
        """Whether nothing is on its way to a node; if so, it counts as sent now."""
        is_on_its_way = self.deliveries.is_held(name) or self.deliveries.was_delivered(
            name, now - self._pause_s
        )
        return not is_on_its_way and self._limiter.allow(name, now)
