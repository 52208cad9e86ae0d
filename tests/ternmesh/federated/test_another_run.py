"""The host has begun another run: each node learns of it in time, whatever is lost."""

from dataclasses import replace
from typing import Any

import pytest

from ternmesh.federated.host import HostProtocol
from ternmesh.federated.state import new_host_state
from ternmesh.security.membership import HOST

OTHER_RUN = b"run-id-9"
ANNOUNCE_S = 3600
SOON_S = 10.0  # more than a node waits for news of the host's new process
COUNTER = 1 << 16


@pytest.fixture
def bench(new_bench: Any) -> Any:
    """Two nodes with an open round; announces are rare, as on a radio."""
    plan = {"announce_s": ANNOUNCE_S}
    made = new_bench(min_peers=2, deadline_s=1e6, keys=("theo", "yan"), plan=plan)
    for name in ("theo", "yan"):
        made.add(name)
    settle(made)
    return made


def restart(bench: Any, run: bytes) -> None:
    is_open = run == bench.host.run
    state = replace(new_host_state(bench.plan.dimension), counter=COUNTER, started=is_open)
    security = bench.keys.security(HOST, COUNTER)
    model = bytes(range(32))
    bench.host = HostProtocol(
        plan=bench.plan,
        settings=bench.host.settings,
        model_hash=model,
        run=run,
        state=state,
        security=security,
    )
    bench.host.start(bench.now)


def settle(bench: Any) -> None:
    for _ in range(10):
        bench.exchange()
        bench.wait(SOON_S / 10)
    bench.exchange()


@pytest.mark.parametrize("way", ["frame", "announces"])
def test_a_node_follows_at_its_next_contact_or_the_second_announce(bench: Any, way: str) -> None:
    # R6.5-14, R9.3-10
    theo = bench.nodes["theo"]
    restart(bench, OTHER_RUN)
    bench.take(HOST)  # all that it sends at its start is lost
    bench.now += SOON_S
    if way == "frame":
        theo.submit(0, bench.delta(1), bench.now)
        _, first = bench.take("theo")[0]
        theo.sender.timer.stop()  # of its update no more arrives
        bench.host.receive_frames("theo", [first], bench.now)
    else:
        bench.wait(ANNOUNCE_S)
        settle(bench)
        assert theo.run != OTHER_RUN
        bench.wait(ANNOUNCE_S)
    settle(bench)
    assert theo.run == OTHER_RUN


def test_a_host_that_goes_on_with_its_run_costs_no_hello(bench: Any) -> None:  # R6.5-14
    restart(bench, bench.host.run)
    bench.exchange()
    assert bench.nodes["theo"].next_timeout() > bench.now + SOON_S, "its announce was news enough"
