"""The newest references of a run as they travel, for nodes that have missed some."""

from collections import deque
from collections.abc import Iterable

from ternmesh.swarm.records import Link


class Chain:
    """At most `longest` links, each the parent of the next; `genesis` is the hash before the first.

    A link that is too many pushes the oldest out.
    """

    def __init__(self, genesis: bytes, links: Iterable[Link], longest: int) -> None:
        self._genesis = genesis
        self._links = deque(links, maxlen=longest)

    def append(self, link: Link) -> None:
        """The next reference was made."""
        self._links.append(link)

    def hash_of(self, version: int) -> bytes | None:
        """The hash of the reference of a version; None where it is not here any more."""
        if version == 0:
            return self._genesis
        return next((link.reference for link in self._links if link.version == version), None)

    def between(self, version: int, known: bytes | None, newest: int) -> list[bytes] | None:
        """What leads from `version` to the `newest` one, in order.

        None where some of it is not here, or `known` is not the hash of that version.
        """
        steps = [link.content for link in self._links if link.version > version]
        is_whole = len(steps) == newest - version and known == self.hash_of(version)
        return steps if is_whole else None
