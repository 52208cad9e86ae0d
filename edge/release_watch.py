"""How a node that runs looks for new releases: what is wrong is said once, and the node goes on."""

import logging
import time
from typing import Any

from edge.errors import BoardFault
from edge.releases import Releases
from edge.rollout import report

LOOK_S = 1.0  # how often a node looks

_log = logging.getLogger(__name__)


class ReleaseWatch:
    """Looks at `releases` now and then; `told` is what the last look has found, for status."""

    def __init__(self, releases: Releases) -> None:
        self.told: dict[str, Any] | None = None
        self._releases = releases
        self._look_at = 0.0
        self._said: set[str] = set()

    def is_news(self) -> bool:
        """Whether a release was installed that has not been tried; call it as often as you like."""
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_S
        try:
            standing = self._releases.standing()
            signed, refused = self._releases.survey(standing.floor)
        except BoardFault as error:
            self._say(f"no new release can be seen: {error}")
            return False
        for version, reason in refused.items():
            self._say(f"release {version} is not taken: {reason}")
        self.told = report(standing, refused)
        return bool(signed)

    def _say(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            _log.warning(sentence)
