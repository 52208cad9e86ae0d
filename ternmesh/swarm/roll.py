"""The nodes of a run, by their contexts and by their names."""

from collections.abc import Iterable, Iterator, Mapping

from ternmesh.errors import WireError
from ternmesh.swarm.records import Node, NodeRecord


class Roll(Mapping[int, Node]):
    """The nodes by context, in the order in which they came. None ever leaves."""

    def __init__(self, records: Iterable[NodeRecord]) -> None:
        nodes = [Node(r.context, r.name, r.samples, r.counted, r.bundle) for r in records]
        self._by_context = {node.context: node for node in nodes}
        self._by_name = {node.name: node for node in nodes}

    def __getitem__(self, context: int) -> Node:
        """KeyError for a context that nobody has."""
        return self._by_context[context]

    def __iter__(self) -> Iterator[int]:
        """The contexts."""
        return iter(self._by_context)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._by_context)

    def named(self, name: str) -> Node | None:
        """The node of this name, if it is here."""
        return self._by_name.get(name)

    def speaker(self, context: int, peer: str) -> Node:
        """Who speaks in a context; WireError unless that is `peer`."""
        node = self._by_context.get(context)
        if node is None:
            raise WireError("unknown node", "a frame from a context that nobody was given")
        if peer != node.name:
            raise WireError("wrong peer", "a frame in another node's name")
        return node

    def take_in(self, name: str, places: int) -> Node:
        """The node of this name, new in the next context; WireError where no place is left."""
        node = self._by_name.get(name)
        if node is None:
            if len(self) >= places:
                raise WireError("full", f"this host takes {places} nodes")
            context = max(self, default=0) + 1
            node = self._by_context[context] = self._by_name[name] = Node(context, name, 0)
        return node
