"""What the benchmark of the pipeline rests on: a run's figures, links and their bytes."""

import hashlib
import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from bench.pipeline import _summary
from bench.slow_links import DEVICE, Link, Namespaces, why_not

LISTEN = """
import hashlib, socket
server = socket.create_server(("", 4040)); print("ready", flush=True)
end, _ = server.accept(); end.sendall(end.recv(1)); digest = hashlib.sha256()
while data := end.recv(65536): digest.update(data)
print(digest.hexdigest())
"""
CONNECT = """
import socket, sys, time
end = socket.create_connection(("10.99.0.1", 4040)); began = time.monotonic()
end.sendall(b"?"); end.recv(1); print(time.monotonic() - began)
end.sendall(sys.stdin.buffer.read())
"""


def test_a_run_is_measured_between_its_first_report_and_its_last() -> None:
    def report(step: int, rate: float) -> dict[str, object]:
        size = {"forward": 10.0, "back": 6.0}
        return {
            "step": step,
            "tokens_per_s": rate,
            "boundary_bytes_per_token": size,
            "bubble": [0.5, 0.25],
            "links": ["loopback", "bbr"],
            "loss": 1.0,
        }

    tables = {"": {"stages": 2, "micro_batch": 2, "micro_batches": 5}, "model": {"length": 10}}
    # 200 tokens in 2 s, then 200 in 1 s; the first report's start-up does not count.
    sent = [[500, 500], [1_000, 3_000], [2_000, 7_000]]
    seen = [
        (report(s, r), b)
        for (s, r), b in zip([(2, 1.0), (4, 100.0), (6, 200.0)], sent, strict=True)
    ]
    made = _summary(seen, tables)
    assert made.tokens_per_s == pytest.approx(400 / 3)
    assert made.socket_bytes == pytest.approx(20.0)
    assert made.payload_bytes == 16.0
    assert made.busiest_mbit == pytest.approx(8e-6 * 6_500 / 3)


@pytest.fixture
def joined() -> Callable[[Link], AbstractContextManager[Namespaces]]:
    if (reason := why_not()) is not None:
        pytest.skip(f"no network namespaces here: {reason}")
    return lambda link: Namespaces(2, link)


def passed_on(hosts: Namespaces, data: bytes) -> float:
    """Send bytes from host 1 to host 0, which must get them whole; the seconds to and fro."""
    server = [*hosts.inside(0), sys.executable, "-c", LISTEN]
    with subprocess.Popen(server, stdout=subprocess.PIPE, text=True) as listening:
        assert listening.stdout.readline() == "ready\n"
        client = [*hosts.inside(1), sys.executable, "-c", CONNECT]
        made = subprocess.run(client, input=data, check=True, capture_output=True)
        assert listening.stdout.read() == f"{hashlib.sha256(data).hexdigest()}\n"
    return float(made.stdout)


def test_namespaces_keep_a_rate_count_bytes_and_leave_nothing(joined: Any) -> None:
    with joined(Link(80.0)) as hosts:
        before = hosts.sent_bytes()
        passed_on(hosts, bytes(50_000))
        sent = [now - then for now, then in zip(hosts.sent_bytes(), before, strict=True)]
        assert 50_000 <= sent[1] <= 60_000
        name = hosts.inside(0)[-1]
        shown = subprocess.check_output(["tc", "-n", name, "qdisc", "show", "dev", DEVICE])
        assert b"tbf" in shown
        assert b"rate 80Mbit" in shown
    assert name.encode() not in subprocess.check_output(["ip", "netns", "list"])


def test_the_relay_delays_and_loses_and_what_arrives_is_whole(joined: Any) -> None:
    with joined(Link(None, rtt_ms=40.0, loss=0.03)) as hosts:
        assert passed_on(hosts, random.Random(0).randbytes(400_000)) >= 0.04
    assert hosts.relayed["passed"] > 400_000 / 1500
    assert hosts.relayed["lost"] > 0
