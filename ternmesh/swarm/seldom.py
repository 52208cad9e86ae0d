"""A limit on answers: whoever asks often is not answered often."""

ASKERS_MAX = 4096


class Seldom:
    """At most one answer to each asker in `min_s` seconds; the last `askers_max` are remembered."""

    def __init__(self, min_s: float, askers_max: int = ASKERS_MAX) -> None:
        self._min_s, self._askers_max = min_s, askers_max
        self._answered: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._answered)

    def may(self, asker: str, now: float) -> bool:
        """Whether to answer now; if so, it counts as answered."""
        answered = self._answered.pop(asker, None)
        is_due = answered is None or now >= answered + self._min_s
        self._answered[asker] = now if answered is None or is_due else answered
        while len(self._answered) > self._askers_max:
            del self._answered[next(iter(self._answered))]
        return is_due
