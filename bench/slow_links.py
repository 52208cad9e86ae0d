"""Slow links that are real: network namespaces on a bridge, each behind a kernel token bucket.

Where a link has delay or loss, bench/relay.py takes the bridge's place. It needs root and the
programs ip and tc; `why_not` says what is missing.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

DEVICE = "tm0"  # what a namespace calls its end
BURST_S, BURST_MIN, QUEUE = 0.01, 16_384, "2s"


@dataclass(frozen=True, slots=True)
class Link:
    """What stands between a host and the others: its rate (None: no limit), delay and loss.

    `rtt_ms` is added to a round trip; `loss` is the share of packets that is lost on each way.
    """

    mbit: float | None = None
    rtt_ms: float = 0.0
    loss: float = 0.0

    @property
    def is_relayed(self) -> bool:
        """Whether it takes the relay."""
        return self.rtt_ms > 0 or self.loss > 0

    def __str__(self) -> str:
        rate = "free" if self.mbit is None else f"{self.mbit:.4g}"
        return f"{rate}, {self.rtt_ms:g} ms, {self.loss:.2%}" if self.is_relayed else rate


def why_not() -> str | None:
    """The sentence that says why there can be no namespaces here, or None."""
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

    `relayed` says after the end how many packets the relay has passed and lost.
    """

    def __init__(self, count: int, link: Link) -> None:
        self._count, self._link = count, link
        self._prefix = f"tm{os.getpid() % 100_000}"
        self._relay: subprocess.Popen[str] | None = None
        self.relayed: dict[str, int] = {}

    def __enter__(self) -> "Namespaces":
        try:
            if not self._link.is_relayed:
                _ip("link", "add", self._bridge, "type", "bridge")
                _ip("link", "set", self._bridge, "up")
            for host in range(self._count):
                self._add(host)
            if self._link.is_relayed:
                self._start_relay()
        except subprocess.CalledProcessError:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        self._remove()

    @property
    def _bridge(self) -> str:
        return f"{self._prefix}br"

    def inside(self, host: int) -> list[str]:
        """What a command begins with to run on a host."""
        return ["ip", "netns", "exec", self._name(host)]

    def address(self, host: int) -> str:
        """A host's address."""
        return f"10.99.0.{host + 1}"

    def sent_bytes(self) -> list[int]:
        """What each host has sent since the beginning, headers of Ethernet, IP and TCP included."""
        paths = [Path(f"/sys/class/net/{name}/statistics/rx_bytes") for name in self._outer]
        return [int(path.read_text()) for path in paths]

    @property
    def _outer(self) -> list[str]:
        return [f"{self._prefix}v{host}" for host in range(self._count)]

    def _name(self, host: int) -> str:
        return f"{self._prefix}-{host}"

    def _add(self, host: int) -> None:
        name, outer = self._name(host), self._outer[host]
        _ip("netns", "add", name)
        _ip("link", "add", outer, "type", "veth", "peer", "name", DEVICE, "netns", name)
        if self._link.is_relayed:
            # Else the relay would delay and lose bundles of packets that the kernel has made.
            _ip("-n", name, "link", "set", DEVICE, "gso_max_segs", "1")
            _ip("link", "set", outer, "up")
        else:
            _ip("link", "set", outer, "master", self._bridge, "up")
        _ip("-n", name, "addr", "add", f"{self.address(host)}/24", "dev", DEVICE)
        _ip("-n", name, "link", "set", DEVICE, "up")
        _ip("-n", name, "link", "set", "lo", "up")
        if self._link.mbit is not None:
            rate = self._link.mbit * 1e6
            burst = max(BURST_MIN, int(rate / 8 * BURST_S))
            bucket = ["tbf", "rate", f"{rate:.0f}", "burst", str(burst), "latency", QUEUE]
            _run("tc", "-n", name, "qdisc", "add", "dev", DEVICE, "root", *bucket)

    def _start_relay(self) -> None:
        delay_ms, loss = str(self._link.rtt_ms / 2), str(self._link.loss)
        self._relay = subprocess.Popen(
            [sys.executable, "-m", "bench.relay", delay_ms, loss, "0", *self._outer],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
        )
        assert self._relay.stdout is not None
        if self._relay.stdout.readline() != "ready\n":
            raise subprocess.CalledProcessError(self._relay.wait(), "bench.relay", stderr="")

    def _remove(self) -> None:
        if self._relay is not None:
            self._relay.terminate()
            said = self._relay.communicate()[0].strip()
            self.relayed = json.loads(said) if said else {}
        for host, outer in enumerate(self._outer):
            subprocess.run(["ip", "link", "del", outer], capture_output=True, check=False)
            subprocess.run(
                ["ip", "netns", "del", self._name(host)], capture_output=True, check=False
            )
        if not self._link.is_relayed:
            subprocess.run(["ip", "link", "del", self._bridge], capture_output=True, check=False)


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    subprocess.run(command, capture_output=True, text=True, check=True)
