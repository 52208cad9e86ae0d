"""Slow links that are real: network namespaces on a bridge, each behind a kernel token bucket.

It needs root and the programs ip and tc; `why_not` says what is missing.
"""

import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType

DEVICE = "tm0"  # what a namespace calls its end
BURST_S, BURST_MIN, QUEUE = 0.01, 16_384, "2s"


def why_not() -> str | None:
    """The sentence that says why there can be no namespaces here, or None."""
    if os.geteuid() != 0:
        return "not root"
    missing = [program for program in ("ip", "tc") if shutil.which(program) is None]
    if missing:
        return f"{' and '.join(missing)} is not installed (apt install iproute2)"
    try:
        with Namespaces(1, 10.0):
            return None
    except subprocess.CalledProcessError as error:
        return f"the kernel refuses: {error.stderr.strip()}"


class Namespaces:
    """`count` hosts that see each other; each sends at most `mbit` Mbit/s (None: no limit)."""

    def __init__(self, count: int, mbit: float | None) -> None:
        self._count, self._mbit = count, mbit
        self._prefix = f"tm{os.getpid() % 100_000}"

    def __enter__(self) -> "Namespaces":
        try:
            _ip("link", "add", self._bridge, "type", "bridge")
            _ip("link", "set", self._bridge, "up")
            for host in range(self._count):
                self._add(host)
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
        names = [f"{self._prefix}v{host}" for host in range(self._count)]
        paths = [Path(f"/sys/class/net/{name}/statistics/rx_bytes") for name in names]
        return [int(path.read_text()) for path in paths]

    def _name(self, host: int) -> str:
        return f"{self._prefix}-{host}"

    def _add(self, host: int) -> None:
        name, outer = self._name(host), f"{self._prefix}v{host}"
        _ip("netns", "add", name)
        _ip("link", "add", outer, "type", "veth", "peer", "name", DEVICE, "netns", name)
        _ip("link", "set", outer, "master", self._bridge, "up")
        _ip("-n", name, "addr", "add", f"{self.address(host)}/24", "dev", DEVICE)
        _ip("-n", name, "link", "set", DEVICE, "up")
        _ip("-n", name, "link", "set", "lo", "up")
        if self._mbit is not None:
            rate = self._mbit * 1e6
            burst = max(BURST_MIN, int(rate / 8 * BURST_S))
            bucket = ["tbf", "rate", f"{rate:.0f}", "burst", str(burst), "latency", QUEUE]
            _run("tc", "-n", name, "qdisc", "add", "dev", DEVICE, "root", *bucket)

    def _remove(self) -> None:
        for host in range(self._count):
            outer = f"{self._prefix}v{host}"
            subprocess.run(["ip", "link", "del", outer], capture_output=True, check=False)
            subprocess.run(
                ["ip", "netns", "del", self._name(host)], capture_output=True, check=False
            )
        subprocess.run(["ip", "link", "del", self._bridge], capture_output=True, check=False)


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    subprocess.run(command, capture_output=True, text=True, check=True)
