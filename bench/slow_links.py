"""Slow links that are real: network namespaces on a bridge, each behind a kernel token bucket.

Where a link has delay or loss, a switch in user space takes the bridge's place (the kernel may have
no netem): `python -m bench.slow_links DELAY_MS LOSS INTERFACE...`. TCP itself stands between the
ends: what a lost packet stalls, it stalls. It needs root and the programs ip and tc; `why_not` says
what is missing.
"""

import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

DEVICE = "tm0"  # what a namespace calls its end
PORT = 29_400  # of a rank, which is alone on its host
BURST_S, BURST_MIN, QUEUE = 0.01, 16_384, "2s"
ETH_P_ALL = 3
SOL_PACKET, VNET_HEADER, IGNORE_OUTGOING = 263, 15, 23  # linux/if_packet.h
VNET_SIZE = 10  # the checksum and segments that the sender has left to do
FRAME_MAX = 1 << 17
PACKETS_MAX = 100_000  # on their way; further ones are lost
POLL_S = 1.0
TAKEN_MAX = 64  # packets of an interface in a turn
BUFFER_S = 0.1  # how much a relay's link holds
Waiting = Queue[tuple[float, bytes]]  # when bytes are due, and the bytes


@dataclass(frozen=True, slots=True)
class Link:
    """What stands between a host and the others."""

    mbit: float | None = None  # its rate; None: no limit
    rtt_ms: float = 0.0  # added to a round trip
    loss: float = 0.0  # the share of packets that is lost on each way

    @property
    def is_relayed(self) -> bool:
        """Whether it takes the switch."""
        return self.rtt_ms > 0 or self.loss > 0

    def __str__(self) -> str:
        rate = "free" if self.mbit is None else f"{self.mbit:.4g}"
        return f"{rate}, {self.rtt_ms:g} ms, {self.loss:.2%}" if self.is_relayed else rate


def why_not() -> str | None:
    """The reason why there can be no namespaces here, or None."""
    if os.geteuid() != 0:
        return "not root"
    missing = [program for program in ("ip", "tc") if shutil.which(program) is None]
    if missing:
        return f"{' and '.join(missing)} is not installed (apt install iproute2)"
    try:
        with Namespaces(1, Link(10.0)):
            return None
    except subprocess.CalledProcessError as error:
        return f"the kernel refuses: {error.stderr.strip()}"


class Namespaces:
    """`count` hosts that see each other, each behind such a link.

    `relayed` tells after the end how many packets the switch has passed and lost.
    """

    def __init__(self, count: int, link: Link) -> None:
        self.relayed: dict[str, int] = {}
        self._link = link
        self._prefix = f"tm{os.getpid() % 100_000}"
        self._names = [f"{self._prefix}-{host}" for host in range(count)]
        self._outer = [f"{self._prefix}v{host}" for host in range(count)]
        self._bridge = f"{self._prefix}br"
        self._switch: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Namespaces":
        try:
            if not self._link.is_relayed:
                _run("ip", "link", "add", self._bridge, "type", "bridge")
                _run("ip", "link", "set", self._bridge, "up")
            for host in range(len(self._names)):
                self._add(host)
            if self._link.is_relayed:
                self._start_switch()
        except subprocess.CalledProcessError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._switch is not None:
            self._switch.terminate()
            output = self._switch.communicate()[0].strip()
            self.relayed = json.loads(output) if output else {}
        for name, outer in zip(self._names, self._outer, strict=True):
            _run("ip", "link", "del", outer, check=False)
            _run("ip", "netns", "del", name, check=False)
        if not self._link.is_relayed:
            _run("ip", "link", "del", self._bridge, check=False)

    def inside(self, host: int) -> list[str]:
        """What a command begins with to run on a host."""
        return ["ip", "netns", "exec", self._names[host]]

    def address(self, host: int) -> str:
        """A host's address."""
        return f"10.99.0.{host + 1}"

    def addresses(self, rank: int) -> list[str]:  # noqa: ARG002
        """Where a rank finds the others, and itself."""
        return [f"{self.address(host)}:{PORT}" for host in range(len(self._names))]

    def sent_bytes(self) -> list[int]:
        """What each host has sent since the beginning, headers of Ethernet, IP and TCP included."""
        paths = [Path(f"/sys/class/net/{name}/statistics/rx_bytes") for name in self._outer]
        return [int(path.read_text()) for path in paths]

    def _add(self, host: int) -> None:
        name, outer = self._names[host], self._outer[host]
        _run("ip", "netns", "add", name)
        _run("ip", "link", "add", outer, "type", "veth", "peer", "name", DEVICE, "netns", name)
        if self._link.is_relayed:
            # Else the switch would delay and lose groups of packets that the kernel has made.
            _run("ip", "-n", name, "link", "set", DEVICE, "gso_max_segs", "1")
            _run("ip", "link", "set", outer, "up")
        else:
            _run("ip", "link", "set", outer, "master", self._bridge, "up")
        _run("ip", "-n", name, "addr", "add", f"{self.address(host)}/24", "dev", DEVICE)
        _run("ip", "-n", name, "link", "set", DEVICE, "up")
        _run("ip", "-n", name, "link", "set", "lo", "up")
        if self._link.mbit is not None:
            rate = self._link.mbit * 1e6
            burst = max(BURST_MIN, int(rate / 8 * BURST_S))
            bucket = ["tbf", "rate", f"{rate:.0f}", "burst", str(burst), "latency", QUEUE]
            _run("tc", "-n", name, "qdisc", "add", "dev", DEVICE, "root", *bucket)

    def _start_switch(self) -> None:
        arguments = [str(self._link.rtt_ms / 2), str(self._link.loss), *self._outer]
        command = [sys.executable, "-m", "bench.slow_links", *arguments]
        root = Path(__file__).parents[1]
        self._switch = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root)
        assert self._switch.stdout is not None
        if self._switch.stdout.readline() != "ready\n":
            raise subprocess.CalledProcessError(self._switch.wait(), command, stderr="")


def _run(*command: str, check: bool = True) -> None:
    subprocess.run(command, capture_output=True, text=True, check=check)


class Relay:
    """`count` ranks of this machine, each behind such a link, where there can be no namespaces.

    Connections go through threads of this process: a token bucket for what a rank sends, the delay,
    and for a lost packet a round trip more. TCP's window is not modelled: it is a link with BBR.
    """

    def __init__(self, count: int, link: Link) -> None:
        self._link = link
        self._count = count
        self._servers: list[socket.socket] = []
        self._free_s = [0.0] * count  # when a rank's link has sent what it was given
        self._lock = threading.Lock()
        self._rng = random.Random(0)

    def __enter__(self) -> "Relay":
        self._own = [socket.create_server(("127.0.0.1", 0)) for _ in range(self._count)]
        self._ports = [server.getsockname()[1] for server in self._own]
        for server in self._own:
            server.close()  # the ranks bind them
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()

    def inside(self, host: int) -> list[str]:  # noqa: ARG002
        """What a command begins with to run on a host."""
        return []

    def addresses(self, rank: int) -> list[str]:
        """Where a rank finds the others, and itself."""
        ports = [
            port if other == rank or self._link == Link() else self._open(rank, other)
            for other, port in enumerate(self._ports)
        ]
        return [f"127.0.0.1:{port}" for port in ports]

    def _open(self, caller: int, called: int) -> int:
        server = socket.create_server(("127.0.0.1", 0))
        self._servers.append(server)
        threading.Thread(target=self._accept, args=(server, caller, called), daemon=True).start()
        port: int = server.getsockname()[1]
        return port

    def _accept(self, server: socket.socket, caller: int, called: int) -> None:
        while True:
            try:
                near = server.accept()[0]
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._ports[called]))
            except OSError:
                near.close()
                continue
            for sender, source, sink in ((caller, near, far), (called, far, near)):
                sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                queue: Queue[tuple[float, bytes]] = Queue()
                for work in (self._take, self._pass_on):
                    arguments = (sender, source, sink, queue)
                    threading.Thread(target=work, args=arguments, daemon=True).start()

    def _take(self, sender: int, source: socket.socket, _: object, queue: "Waiting") -> None:
        due, data = 0.0, b"."
        while data:
            try:
                data = source.recv(1 << 15)
            except OSError:
                data = b""
            lost = sum(self._rng.random() < self._link.loss for _ in range(0, len(data), 1448))
            with self._lock:
                took_s = 8e-6 * len(data) / self._link.mbit if self._link.mbit else 0.0
                free_s = max(self._free_s[sender], time.monotonic()) + took_s
                self._free_s[sender] = free_s
            due = max(due, free_s + (0.5 + lost) * self._link.rtt_ms / 1000)
            queue.put((due, data))
            time.sleep(max(0.0, free_s - time.monotonic() - BUFFER_S))

    def _pass_on(self, _: int, __: object, sink: socket.socket, queue: "Waiting") -> None:
        data = b"."
        while data:
            due, data = queue.get()
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                sink.sendall(data) if data else sink.shutdown(socket.SHUT_WR)
            except OSError:
                return


class Switch:
    """Packets from each interface to the one that their address was last seen on, or to all."""

    def __init__(self, names: list[str], delay_s: float, loss: float) -> None:
        self.passed = 0
        self.lost = 0
        self._ports = [_open(name) for name in names]
        self._delay_s = delay_s
        self._loss = loss
        self._rng = random.Random(0)
        self._known: dict[bytes, socket.socket] = {}
        self._queue: deque[tuple[float, list[socket.socket], bytes]] = deque()

    def turn(self) -> None:
        """Wait for packets, at most until the next one is due, and pass on what is due."""
        wait_s = max(0.0, self._queue[0][0] - time.monotonic()) if self._queue else POLL_S
        for port in select.select(self._ports, [], [], wait_s)[0]:
            self._take(port)
        now = time.monotonic()
        while self._queue and self._queue[0][0] <= now:
            _, ports, packet = self._queue.popleft()
            for port in ports:
                try:
                    port.send(packet)
                    self.passed += 1
                except OSError:  # an end is gone, or its queue is full
                    self.lost += 1

    def _take(self, port: socket.socket) -> None:
        for _ in range(TAKEN_MAX):  # `select` for each packet would be slower than the links
            try:
                packet = port.recv(FRAME_MAX, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            self._keep(port, packet)

    def _keep(self, port: socket.socket, packet: bytes) -> None:
        to, sender = packet[VNET_SIZE : VNET_SIZE + 6], packet[VNET_SIZE + 6 : VNET_SIZE + 12]
        self._known[sender] = port
        if self._rng.random() < self._loss or len(self._queue) >= PACKETS_MAX:
            self.lost += 1
            return
        known = self._known.get(to)
        ports = [known] if known else [other for other in self._ports if other is not port]
        self._queue.append((time.monotonic() + self._delay_s, ports, packet))


def _open(name: str) -> socket.socket:
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    port.setsockopt(SOL_PACKET, VNET_HEADER, 1)
    port.setsockopt(SOL_PACKET, IGNORE_OUTGOING, 1)
    port.bind((name, ETH_P_ALL))
    return port


def main() -> None:
    """Be the switch until SIGTERM; then print as JSON how many packets it passed and lost."""
    delay_ms, loss, *names = sys.argv[1:]
    switch = Switch(names, float(delay_ms) / 1000, float(loss))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print("ready", flush=True)
    try:
        while True:
            switch.turn()
    finally:
        print(json.dumps({"passed": switch.passed, "lost": switch.lost}), flush=True)


if __name__ == "__main__":
    main()
