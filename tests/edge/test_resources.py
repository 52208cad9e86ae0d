"""What training may use of a board: the rule, the readings, and a node that keeps to them."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.config import ResourcesConfig
from edge.errors import OutOfMemory
from edge.evaluation import SLICE_S
from edge.node import Node
from edge.onnx.session import Inference
from edge.report import status, summary, values
from edge.resources import (
    BATCH_S,
    FAILURES,
    HOT,
    REST_S,
    RETRY_S,
    SHORT_OF_MEMORY,
    BatchSize,
    Readings,
    measure,
    why_to_wait,
)
from ternmesh.federated.management import ACTIVITIES
from ternmesh.plan import Plan
from tests.edge.fleet import STEPS, World, new_plan, replace_step

LIMITS = ResourcesConfig()


def test_what_waits_ends_well_below_its_limit() -> None:
    assert why_to_wait(Readings(), LIMITS) == {}
    assert why_to_wait(Readings(80.0, 10.0), LIMITS) == {}
    assert why_to_wait(Readings(83.2, 12.0), LIMITS) == {
        HOT: "83 C, waits for 75 C",
        SHORT_OF_MEMORY: "memory pressure 12 %, waits for 5 %",
    }
    assert set(why_to_wait(Readings(76.0, 6.0), LIMITS, {HOT: ""})) == {HOT}
    assert set(why_to_wait(Readings(76.0, 6.0), LIMITS, {SHORT_OF_MEMORY: ""})) == {SHORT_OF_MEMORY}
    assert why_to_wait(Readings(75.0, 5.0), LIMITS, {HOT: "", SHORT_OF_MEMORY: ""}) == {}
    off = ResourcesConfig(temperature_max_c=0, memory_pressure_max=0)
    assert why_to_wait(Readings(149.0, 100.0), off) == {}
    assert {HOT, SHORT_OF_MEMORY} < set(ACTIVITIES)


def tree(root: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def pressure(some: float) -> str:
    return f"some avg10={some} avg60=1.00 avg300=0.00 total=5\nfull avg10=99.00 avg60=0 total=0\n"


def test_the_hottest_zone_and_the_higher_pressure_count(tmp_path: Path) -> None:
    assert measure(tmp_path) == Readings(None, None)
    zone = "sys/class/thermal/thermal_zone"
    tree(
        tmp_path,
        {
            **{f"{zone}0/temp": "51234\n", f"{zone}0/type": "cpu-thermal\n"},
            **{f"{zone}1/temp": "49000\n", f"{zone}1/type": "gpu-thermal\n"},
            **{f"{zone}2/temp": "100000\n", f"{zone}2/type": "PMIC-Die\n"},
            **{f"{zone}3/temp": "-256000\n", f"{zone}4/temp": "1000000\n", f"{zone}5/temp": ""},
            f"{zone}6/temp": b"\xff\xfe",
            "proc/pressure/memory": pressure(2.5),
            "proc/self/cgroup": "4:memory:/old\n0::/system.slice/ternmesh-node.service\n",
        },
    )
    assert measure(tmp_path) == Readings(51.234, 2.5)
    own = "sys/fs/cgroup/system.slice/ternmesh-node.service/memory.pressure"
    tree(tmp_path, {own: pressure(7.25)})
    assert measure(tmp_path).memory_pressure == 7.25
    tree(tmp_path, {own: pressure(0.0)})
    assert measure(tmp_path).memory_pressure == 2.5


def test_a_batch_grows_until_it_takes_its_time_and_shrinks_for_good_without_memory() -> None:
    size = BatchSize(64)

    def settle(seconds_each: float) -> int:
        for _ in range(20):
            size.took(size.samples, size.samples * seconds_each)
        return size.samples

    assert settle(0.0001) == 64
    assert BATCH_S / 2 <= settle(0.003) * 0.003 <= BATCH_S
    assert settle(10.0) == 1
    size.took(0, 0.0)
    assert size.samples == 1, "the rest of the samples says nothing"
    settle(0.0)
    assert size.failed()
    assert settle(0.0) == 32
    assert [size.failed() for _ in range(6)] == [True] * 5 + [False]


def add(world: World, readings: list[Readings], plan: Plan | None = None, **limits: Any) -> Node:
    """A node that measures what is last in `readings`."""
    world.new_host(plan)
    node = world.add("ada", replace(world.config("ada"), resources=ResourcesConfig(**limits)))
    node.throttle.measure = lambda: readings[-1]
    return node


def test_a_hot_board_rests_in_its_round_and_goes_on_in_it(world, monkeypatch) -> None:
    freed: list[float] = []
    monkeypatch.setattr("edge.node.trim_memory", lambda: freed.append(world.now))
    readings = [Readings(60.0, 0.0)]
    node = add(world, readings)
    world.until(lambda: node.trainer.progress[0] == 2)
    readings.append(Readings(83.0, 0.0))
    world.now += 1.0
    for _ in range(30):
        world.turn()
        world.now += 1.0
    assert (node.trainer.progress, bool(freed)) == ((2, STEPS), True)
    shown = status(node)
    assert (shown.activity, shown.held_back) == (HOT, "83 C, waits for 75 C")
    assert summary(node).startswith("paused: too hot, 83 C, waits for 75 C; global adapter")
    assert ACTIVITIES[int(values(node, 0.0)["activity"] or 0)] == HOT
    readings.append(Readings(74.0, 0.0))
    world.finish()
    assert status(node).held_back == ""
    assert [entry.version for entry in node.evaluation.history][-1] == node.protocol.version


def test_a_step_without_memory_is_tried_again_and_then_seldom(world, caplog, monkeypatch) -> None:
    begins: list[float] = []

    def starved(run: Callable[..., Any], *given: Any) -> Any:
        begins.append(world.now)
        if len(begins) == 3:  # a step in between: only failures in a row count
            return run(*given)
        if len(begins) <= FAILURES + 4:
            raise (OutOfMemory("too small"), MemoryError("too small"))[len(begins) % 2]
        return run(*given)

    node = add(world, [Readings(60.0, 0.0)])
    replace_step(monkeypatch, starved)
    while not node.protocol.finished:
        world.turn()
        if 3 < len(begins) <= FAILURES + 3:
            assert status(node).activity == SHORT_OF_MEMORY
            assert "too little for a step, tries again in" in status(node).held_back
        world.now += 1.0
    waits = [b - a for a, b in pairwise(begins)]
    assert waits[:2] == [pytest.approx(RETRY_S, abs=1.5)] * 2
    assert waits[3 : FAILURES + 2] == [pytest.approx(RETRY_S, abs=1.5)] * (FAILURES - 1)
    assert waits[FAILURES + 2 : FAILURES + 4] == [pytest.approx(REST_S, abs=1.5)] * 2
    assert "out of memory, failure 3 in a row: too small" in caplog.text
    assert node.diverged == 0


def test_an_evaluation_leaves_the_loop_free_and_keeps_its_adapter(world, monkeypatch) -> None:
    predict, parts = Inference.predict, list[int]()

    def slow(self: Inference, inputs: Any) -> Any:
        parts.append(len(inputs["x"]))
        world.now += 0.02 * parts[-1]
        return predict(self, inputs)

    monkeypatch.setattr(Inference, "predict", slow)
    node = add(world, [Readings(60.0, 0.0)], new_plan(rounds=3, steps=2))
    turns: list[float] = []
    adapters: dict[int, Any] = {}
    while (last := node.evaluation.last) is None or last.version < 3:
        before = world.now
        world.turn()
        adapters[node.protocol.version] = node.global_adapter
        turns.append(world.now - before)
        world.now += 0.001
        assert len(turns) < 2000
    assert max(turns) <= 2 * SLICE_S + 0.02
    assert max(parts) == 2, "20 ms a sample"
    entries = list(node.evaluation.history)
    assert 2 <= len(entries) < 4, "rounds end sooner than evaluations"
    whole, bare = (
        node.data.held_out.batch(np.arange(16)),
        Inference(world.loaded.folder, node.package),
    )
    for entry in entries:
        tensors = node.package.split(adapters[entry.version])
        errors = np.abs(bare.predict({"x": whole["x"], **tensors})["y"] - whole["t"])
        assert entry.metric == pytest.approx(errors.mean(), rel=1e-5)
