"""A switch in user space that delays and loses packets, where the kernel has no netem.

`python -m bench.relay DELAY_MS LOSS SEED INTERFACE...` joins interfaces (as root), says `ready`,
and on SIGTERM prints as JSON how many packets it passed on and lost. TCP itself stands between the
ends: what a lost packet stalls, it stalls.
"""

import json
import random
import select
import signal
import socket
import sys
import time
from collections import deque

ETH_P_ALL = 3
SOL_PACKET, VNET_HEADER, IGNORE_OUTGOING = 263, 15, 23  # linux/if_packet.h
VNET_SIZE = 10  # says of what checksum and segments the sender has left to do
FRAME_MAX = 1 << 17
QUEUE_MAX = 100_000  # packets on their way; what comes beyond is lost
POLL_S = 1.0


class Switch:
    """Packets from each interface to the one that their address was last seen on, or to all."""

    def __init__(self, names: list[str], delay_s: float, loss: float, seed: int) -> None:
        self._ports = [_open(name) for name in names]
        self._delay_s, self._loss, self._rng = delay_s, loss, random.Random(seed)
        self._known: dict[bytes, socket.socket] = {}
        self._queue: deque[tuple[float, list[socket.socket], bytes]] = deque()
        self.passed = self.lost = 0

    def turn(self) -> None:
        """Wait for packets, at most until the next one is due, and pass on what is due."""
        wait_s = max(0.0, self._queue[0][0] - time.monotonic()) if self._queue else POLL_S
        for port in select.select(self._ports, [], [], wait_s)[0]:
            self._take(port)
        now = time.monotonic()
        while self._queue and self._queue[0][0] <= now:
            _, ports, packet = self._queue.popleft()
            for port in ports:
                self._send(port, packet)

    def _take(self, port: socket.socket) -> None:
        packet = port.recv(FRAME_MAX)
        to, sender = packet[VNET_SIZE : VNET_SIZE + 6], packet[VNET_SIZE + 6 : VNET_SIZE + 12]
        self._known[sender] = port
        if self._rng.random() < self._loss or len(self._queue) >= QUEUE_MAX:
            self.lost += 1
            return
        known = self._known.get(to)
        ports = [known] if known else [other for other in self._ports if other is not port]
        self._queue.append((time.monotonic() + self._delay_s, ports, packet))

    def _send(self, port: socket.socket, packet: bytes) -> None:
        try:
            port.send(packet)
            self.passed += 1
        except OSError:  # an end is gone, or its queue is full
            self.lost += 1


def _open(name: str) -> socket.socket:
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    port.setsockopt(SOL_PACKET, VNET_HEADER, 1)
    port.setsockopt(SOL_PACKET, IGNORE_OUTGOING, 1)
    port.bind((name, ETH_P_ALL))
    return port


def main() -> None:
    """The command in the module's docstring."""
    delay_ms, loss, seed, *names = sys.argv[1:]
    switch = Switch(names, float(delay_ms) / 1000, float(loss), int(seed))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print("ready", flush=True)
    try:
        while True:
            switch.turn()
    finally:
        print(json.dumps({"passed": switch.passed, "lost": switch.lost}), flush=True)


if __name__ == "__main__":
    main()
