"""The newest parts of a status, for any number of readers, each as fast as it can read."""

import json
from collections.abc import Collection

from ternmesh_service.page.parts import ROUND, Parts, Row, steadied
from ternmesh_service.status import BoardStatus, HostStatus

ROUNDS_MAX = 200  # rounds that are shown


class PageFeed:
    """Numbered parts. A reader asks for what is newer than the number that it has.

    So a slow reader gets the newest state, not all states, and costs no memory.
    """

    def __init__(self) -> None:
        self.number = 0
        self.rounds: dict[int, Row] = {}  # by version
        self._run = ""
        self._began = 0  # the number from which on a reader must forget what it has
        self._parts: dict[str, object] = {}
        self._written: dict[str, tuple[int, str]] = {}  # number of the change and JSON

    @property
    def version(self) -> int:
        """The newest round that is here: a status need not have it again."""
        return max(self.rounds, default=0)

    def take_rounds(self, status: HostStatus | BoardStatus) -> None:
        """Keep the rounds of a status; another run begins anew."""
        if status.run != self._run:
            self._run = status.run
            self.rounds.clear()
            self._forget(list(self._parts))
        rows = status.history
        if rows and self.rounds and rows[0].version > self.version + 1:  # some were missed
            self._forget([f"{ROUND}{version}" for version in self.rounds])
            self.rounds.clear()
        for row in rows:
            self.rounds[row.version] = row
        old = sorted(self.rounds)[:-ROUNDS_MAX]
        for version in old:
            del self.rounds[version]
            self._parts.pop(f"{ROUND}{version}", None)  # readers drop it themselves
            self._written.pop(f"{ROUND}{version}", None)

    def take(self, parts: Parts) -> bool:
        """Keep the parts; whether one has changed. Rounds that are not among them stay."""
        before = self.number
        self._forget([n for n in self._parts if n not in parts and not n.startswith(ROUND)])
        for name, part in parts.items():
            self.put(name, part, before + 1)
        return self.number > before

    def put(self, name: str, part: object, number: int = 0) -> bool:
        """Keep one part, with the number of its change, by default a new one; whether it is one."""
        kept = steadied(self._parts.get(name), part)
        if name in self._parts and kept == self._parts[name]:
            return False
        self.number = number or self.number + 1
        self._parts[name] = kept
        self._written[name] = self.number, json.dumps(kept, separators=(",", ":"))
        return True

    def _forget(self, names: Collection[str]) -> None:
        """Parts are gone: readers begin anew."""
        for name in names:
            self._parts.pop(name, None)
            self._written.pop(name, None)
        if names:
            self.number += 1
            self._began = self.number

    def since(self, number: int) -> str:
        """What has changed after `number`, as JSON: {"number", "anew", "parts"}; empty if nothing.

        With "anew", the reader forgets what it has.
        """
        if number >= self.number:
            return ""
        anew = number < self._began or number == 0
        parts = ",".join(
            f"{json.dumps(name)}:{text}"
            for name, (changed, text) in self._written.items()
            if anew or changed > number
        )
        return f'{{"number":{self.number},"anew":{str(anew).lower()},"parts":{{{parts}}}}}'
