"""What a BLE transport is told."""

from dataclasses import dataclass

from transports.base import ALL, HOST, check_node, check_peer


@dataclass(frozen=True, slots=True)
class BleSettings:
    """One end of a link between a node and the host; a wrong value is a ValueError that names it.

    `role` is `host` or the node's name, `peer` the other of the two. It says nothing about who is
    central or peripheral: the GATT end does.
    """

    role: str
    peer: str = HOST
    queue_max: int = 65_536  # bytes of frames that are not confirmed
    unread_max: int = 512  # arrivals that the program has not fetched; then no credits are granted
    reconnect_min_s: float = 1.0
    reconnect_max_s: float = 30.0

    def __post_init__(self) -> None:
        if (self.role == HOST) == (self.peer == HOST):
            raise ValueError(f"a BLE link joins host and node, not {self.role} and {self.peer}")
        check_node(self.peer if self.role == HOST else self.role)
        if not 0 < self.reconnect_min_s <= self.reconnect_max_s:
            raise ValueError("reconnect_min_s must be above 0 and at most reconnect_max_s")
        for name, low, high in (("queue_max", 4096, 1 << 20), ("unread_max", 1, 1024)):
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} {getattr(self, name)} must be {low} to {high}")

    def check(self, peer: str) -> None:
        """ValueError unless `peer` is at the other end; to the host, `all` is that node, too."""
        check_peer(self.role, peer)
        if peer not in (self.peer, ALL):
            raise ValueError(f"this BLE link leads to {self.peer!r}, not to {peer!r}")
