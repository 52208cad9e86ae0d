"""Which bytes on the bearer, and how much time, belong to which round."""

from collections.abc import Mapping

from transports.driver import PeerTraffic


class Ledger:
    """Differences of a driver's running totals, and of the clock, since they were last taken."""

    def __init__(self, traffic: Mapping[str, PeerTraffic], now: float) -> None:
        self._traffic = traffic
        self._taken: dict[str, tuple[int, int]] = {}
        self._since = now

    def take_bytes(self) -> dict[str, tuple[int, int]]:
        """Bytes (up, down) by peer since the last call; only peers that moved any."""
        moved = {}
        for peer, total in self._traffic.items():
            up, down = self._taken.get(peer, (0, 0))
            if (total.bytes_in, total.bytes_out) != (up, down):
                moved[peer] = (total.bytes_in - up, total.bytes_out - down)
                self._taken[peer] = (total.bytes_in, total.bytes_out)
        return moved

    def take_seconds(self, now: float) -> float:
        """Seconds since the last call."""
        seconds, self._since = now - self._since, now
        return seconds
