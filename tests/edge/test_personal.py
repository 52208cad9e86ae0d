"""Personal tensors: nothing of them leaves the board, and they are used, kept and dropped."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.config import BEST, NEWEST, NodeConfig
from edge.onnx.session import LoadedModel, read_adapter
from edge.personal import KEY, Personal, find_places
from ternmesh.codec.encoder import zero_residual
from ternmesh.codec.scale import to_float
from ternmesh.config import ConfigError
from ternmesh.errors import CodecError
from ternmesh.federated.events import Advanced
from ternmesh.federated.local_update import make_update, settle_update
from ternmesh.federated.state import new_host_state
from ternmesh.model_package import ModelPackage, TensorSpec
from ternmesh.wire.global_update import Counted
from tests.edge.conftest import SIZE_A, SIZE_B
from tests.edge.test_node import World, make

A, B = slice(0, SIZE_A), slice(SIZE_A, None)
IS_A = np.arange(SIZE_A + SIZE_B) < SIZE_A


@pytest.fixture
def world(tiny, tiny_data, tmp_path) -> Iterator[World]:
    made = World(tiny, tiny_data, tmp_path)
    yield made
    made.close()


def config_of(world: World, *names: str, name: str = "ada", **training: Any) -> NodeConfig:
    config = world.config(name)
    return replace(config, training=replace(config.training, personal=names, **training))


def new_run(world: World) -> None:
    node = world.nodes["ada"]

    def joined() -> bool:
        world.now += 1.0
        return node.protocol.run == world.host.protocol.run

    world.until(joined)


# Nothing leaves


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.0, 100.0), st.sets(st.integers(0, 17), max_size=17))
def test_whatever_the_personal_part_is_the_same_bytes_leave(
    seed: int, size: float, chosen: set[int]
) -> None:
    """For any deltas: the updates and residuals of three rounds do not depend on it."""
    rng, plan, model = np.random.default_rng(seed), make(), bytes(32)
    places = np.isin(np.arange(18), list(chosen))
    personal = Personal(places, np.zeros(len(chosen), np.int32))
    residuals = [zero_residual(18)] * 2
    for number in range(3):
        delta = rng.standard_normal(18).astype(np.float32)
        other = delta + places * np.float32(size) * rng.standard_normal(18).astype(np.float32)
        shared = [personal.shared(one) for one in (delta, other)]
        assert not any(one[places].any() for one in shared)
        made = [
            make_update(residual + one, model, number, 8, plan)
            for residual, one in zip(residuals, shared, strict=True)
        ]
        assert made[0].bodies == made[1].bodies
        have = bytes([0xFF >> 8 - plan.up.count])
        counted = [Counted(1, number, made[0].digest, have)]
        residuals = [settle_update(one, counted, 1, model, plan) for one in made]
        assert residuals[0].tobytes() == residuals[1].tobytes()


class Noisy:
    """A step that learns the same of B in any fleet, and something else of A with each seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.provider = ""

    def run(self, adapter: Any, batch: Any) -> tuple[float, Any]:
        of_a = self.rng.standard_normal(SIZE_A)
        of_b = np.resize(batch["t"].sum(axis=0), SIZE_B)
        return 1.0, np.concatenate([of_a, of_b]).astype(np.float32)

    def release(self) -> None:
        pass


def leaves_of(world: World, seed: int) -> tuple[list[bytes], np.ndarray]:
    """What a node hands over in a run, and its personal part at the end."""
    config = config_of(world, "A")
    node = world.add("ada", replace(config, evaluate=replace(config.evaluate, report=False)))
    node.trainer._step = Noisy(seed)
    submit, handed = node.protocol.submit, list[bytes]()

    def submitted(number: int, delta: Any, now: float) -> None:
        assert not delta[A].any()
        submit(number, delta, now)
        pending = node.protocol.pending
        handed.append(node.protocol.residual.tobytes())
        if pending is not None:
            handed.extend((pending.corrected.tobytes(), *pending.bodies))

    node.protocol.submit = submitted  # type: ignore[method-assign, assignment]
    world.until(lambda: node.protocol.finished)
    return handed, node.model_q24[A]


def test_two_boards_with_other_personal_parts_send_the_same(
    world: World, tiny, tiny_data, tmp_path_factory
) -> None:
    other = World(tiny, tiny_data, tmp_path_factory.mktemp("other"))
    (ours, part), (theirs, its_part) = leaves_of(world, 1), leaves_of(other, 2)
    other.close()
    assert len(ours) > 6
    assert ours == theirs
    assert np.count_nonzero(part != its_part) == SIZE_A


def test_a_personal_part_that_is_not_finite_costs_the_round_alone(world: World) -> None:
    node = world.add("ada", config_of(world, "A"))
    world.until(lambda: node.trainer.progress[0] == 5 and node.protocol.version == 1)
    before = node.model_q24.copy()
    work = node.trainer._work
    assert work is not None
    work.vector = np.where(IS_A, np.nan, work.vector).astype(np.float32)
    world.until(lambda: node.diverged == 1)
    np.testing.assert_array_equal(node.model_q24[A], before[A])
    with pytest.raises(CodecError, match="personal part holds NaN"):
        node.personal.shared(np.where(IS_A, np.inf, 0).astype(np.float32))


# In use


def test_everything_on_the_board_uses_the_personal_part(world: World) -> None:
    world.new_host(min_peers=2)
    node, other = world.add("ada", config_of(world, "A")), world.add("bob")
    starts = list[np.ndarray]()
    begin = node.trainer.begin

    def began(number: int, start: np.ndarray, *rest: Any) -> None:
        starts.append(start)
        np.testing.assert_array_equal(start[A], node.global_adapter[A])
        begin(number, start, *rest)

    node.trainer.begin = began  # type: ignore[method-assign, assignment]
    world.until(lambda: node.trainer.round == 0)
    node.protocol.residual = np.where(IS_A, np.float32(1e-3), 0)  # as code words may leave there
    world.until(lambda: node.protocol.finished and other.protocol.finished)
    world.until(lambda: [entry.version for entry in node.evaluation.history][-1] == 6)
    mine, theirs = node.global_adapter, world.loaded.initial + to_float(node.protocol.model_q24)
    np.testing.assert_array_equal(mine[B], theirs[B])
    assert np.abs(mine[A] - theirs[A]).min() > 0, "what bob shares of A is ignored here"
    assert np.abs(theirs[A] - world.loaded.initial[A]).max() > 0.01, "bob shares it"
    assert len({start[A].tobytes() for start in starts}) == 6
    vector, version = read_adapter(node.config.adapter_path, world.loaded.package)
    assert version == 6
    np.testing.assert_array_equal(vector, mine)
    x = np.eye(6, dtype=np.float32)
    slope = node._inference.predict({"x": x, **world.loaded.package.split(0 * mine)})["y"]
    tensors = world.loaded.package.split(mine)
    np.testing.assert_allclose(node.scores({"x": x}) - slope, tensors["A"] @ tensors["B"], 1e-5)
    assert node.data.held_out is not None
    held_out = node.data.held_out.batch(np.arange(len(node.data.held_out)))
    errors = np.abs(node.scores({"x": held_out["x"]}) - held_out["t"]).mean()
    last = node.evaluation.history.last
    assert last is not None
    assert last.metric == pytest.approx(errors, rel=1e-5)
    best, _ = read_adapter(node.config.adapter_file(BEST), world.loaded.package)
    assert node.evaluation.best is not None
    assert (
        np.abs(best[A] - world.loaded.initial[A]).max() > 0.01 or node.evaluation.best.version == 0
    )


def test_a_probe_is_tried_as_far_as_it_would_count_here(world: World, monkeypatch) -> None:
    node = world.add("ada", config_of(world, "A"))
    tried = list[tuple[np.ndarray, np.ndarray]]()

    def effect(_data: Any, _chosen: Any, adapter: Any, probe: Any) -> Any:
        tried.append((adapter, probe))
        yield
        return 0.5

    monkeypatch.setattr(node.evaluation.evaluator, "effect", effect)
    world.until(lambda: node.protocol.version == 3)
    protocol = node.protocol
    probed = Advanced(
        version=3,
        global_hash=protocol.global_hash,
        model_q24=protocol.model_q24,
        residual=protocol.residual,
        finished=False,
        probe=np.ones(18, np.float32),
    )
    node._events.append(probed)
    node._react()
    node.evaluation.begin(3, node.model_q24)
    while node.evaluation.is_running:
        node.evaluation.advance()
    adapter, vector = tried[-1]
    assert node.evaluation.probe.effect == 0.5
    np.testing.assert_array_equal(vector, ~IS_A)
    assert not np.array_equal(adapter[A], world.loaded.initial[A])


def test_a_round_that_only_the_personal_part_has_learned_from_is_in_use(world: World) -> None:
    node = world.add("ada", config_of(world, "A"))
    world.until(lambda: node.protocol.pending is not None)
    vector, _ = read_adapter(node.config.adapter_file(NEWEST), world.loaded.package)
    np.testing.assert_array_equal(vector, node.global_adapter)
    assert not np.array_equal(vector[A], world.loaded.initial[A])


# Kept


def update_of_round(world: World, number: int) -> tuple[bytes, bytes]:
    def sent() -> bool:
        pending = world.nodes["ada"].protocol.pending
        return pending is not None and pending.round == number

    world.until(sent)
    node = world.nodes["ada"]
    assert node.protocol.pending is not None
    return node.protocol.pending.digest, node.model_q24.tobytes()


@pytest.mark.parametrize("steps", [1, 4, 9])
def test_a_power_cut_gives_the_same_update_and_the_same_personal_part(
    world: World, tiny, tiny_data, tmp_path_factory, steps: int
) -> None:
    calm = World(tiny, tiny_data, tmp_path_factory.mktemp("calm"))
    calm.add("ada", config_of(calm, "A"))
    expected = update_of_round(calm, 2)
    calm.close()
    node = world.add("ada", config_of(world, "A"))
    world.until(lambda: node.trainer.round == 2 and node.trainer.progress[0] == steps)
    before = node.model_q24
    world.cut_power("ada")
    again = world.add("ada", config_of(world, "A"))
    np.testing.assert_array_equal(again.model_q24, before)
    assert update_of_round(world, 2) == expected


def test_a_power_cut_before_the_commit_loses_update_and_personal_part_together(
    world: World,
) -> None:
    node = world.add("ada", config_of(world, "A"))
    world.until(lambda: node.protocol.version == 2 and node.trainer.progress[0] == 9)
    before = node.model_q24
    node._train()
    assert node.protocol.pending is not None
    assert not np.array_equal(node.model_q24, before)
    node._store.commit()  # as at the end of an evaluation
    world.cut_power("ada")
    again = world.add("ada", config_of(world, "A"))
    assert again.protocol.pending is None
    np.testing.assert_array_equal(again.model_q24, before)


def test_damaged_bytes_are_no_personal_part(world: World) -> None:
    node = world.add("ada", config_of(world, "A"))
    world.until(lambda: node.protocol.version == 2)
    node._store.put(KEY, b"\xff")
    node._store.commit()
    world.cut_power("ada")
    again = world.add("ada", config_of(world, "A"))
    np.testing.assert_array_equal(again.model_q24, again.protocol.model_q24)


# Another setting


@pytest.mark.parametrize("is_received", [False, True])
def test_a_tensor_that_becomes_personal_leaves_no_more(world: World, is_received: bool) -> None:
    world.new_host(min_peers=2)
    node, _ = world.add("ada"), world.add("bob")
    world.until(lambda: node.protocol.version == 2)

    def waits() -> bool:
        pending = node.protocol.pending
        return pending is not None and node.protocol.received == is_received

    world.until(waits, ["ada"])
    node.turn(0.0)  # it commits, and the host hears nothing
    pending = node.protocol.pending
    assert pending is not None
    assert node.protocol.received == is_received
    assert pending.corrected[A].any()
    world.cut_power("ada")
    node = world.add("ada", config_of(world, "A"))
    np.testing.assert_array_equal(node.model_q24, node.protocol.model_q24)
    assert node.evaluation.best is None
    assert node.protocol.received == is_received
    left = node.protocol.pending
    assert left is not None
    assert (left.digest == pending.digest) == is_received
    np.testing.assert_array_equal(left.corrected[B], pending.corrected[B])
    if not is_received:
        assert not left.corrected[A].any()
    assert not node.protocol.residual[A].any()
    world.cut_power("ada")
    node = world.add("ada", config_of(world, "A"))
    assert node.protocol.pending is not None
    assert node.protocol.pending.bodies == left.bodies, "it is stored"
    assert node.protocol.received == is_received
    world.until(lambda: node.protocol.version == 3)
    if is_received:
        assert not node.protocol.residual[A].any()
    world.until(lambda: node.protocol.finished)
    assert not np.array_equal(node.model_q24[A], node.protocol.model_q24[A])


def test_what_was_to_be_sent_of_a_tensor_that_becomes_personal_is_dropped(world: World) -> None:
    node = world.add("ada")
    world.until(lambda: node.protocol.version == 2 and node.trainer.progress[0] == 3)
    residual = node.protocol.residual
    assert residual[A].any()
    for _ in range(2):
        world.cut_power("ada")
        node = world.add("ada", config_of(world, "A"))
        assert not node.protocol.residual[A].any()
        np.testing.assert_array_equal(node.protocol.residual[B], residual[B])


def test_a_tensor_that_is_personal_no_more_drops_its_personal_part(world: World) -> None:
    node = world.add("ada", config_of(world, "A"))
    world.until(lambda: node.protocol.version == 3)
    part = node.model_q24[A]
    world.cut_power("ada")
    node = world.add("ada")
    np.testing.assert_array_equal(node.model_q24, node.protocol.model_q24)
    assert node.evaluation.best is None
    world.cut_power("ada")
    node = world.add("ada", config_of(world, "A"))
    assert not np.array_equal(node.model_q24[A], part), "it does not come back either"


def test_a_run_from_nothing_begins_without_the_personal_part(world: World) -> None:
    node = world.add("ada", config_of(world, "A"))
    world.until(lambda: node.protocol.version == 3)
    part = node.model_q24[A]
    world.new_host(run=b"second  ")
    new_run(world)
    assert not node.model_q24.any()
    assert part.any()
    world.until(lambda: node.protocol.finished)
    assert node.model_q24[A].any()


def test_a_run_that_takes_the_adapter_along_keeps_the_personal_part(world: World) -> None:
    node = world.add("ada", config_of(world, "A"))
    world.until(lambda: node.protocol.version == 3)
    part, old = node.model_q24[A], world.host.protocol
    start = replace(new_host_state(18), model_q24=old.model_q24, residual=old.residual)
    world.new_host(run=b"second  ", min_peers=2, state=start)
    new_run(world)
    assert node.protocol.before is not None
    np.testing.assert_array_equal(node.model_q24[A], part)
    # Meanwhile B becomes personal, too little of it has left, and no more does.
    world.cut_power("ada")
    node = world.add("ada", config_of(world, "B"))
    before = node.protocol.before
    assert before is not None
    assert not before.residual[B].any()
    np.testing.assert_array_equal(node.model_q24[B], before.model_q24[B])
    world.cut_power("ada")
    node = world.add("ada", config_of(world, "B"))
    assert node.protocol.before is not None
    assert not node.protocol.before.residual[B].any(), "also at the next start"


# Wrong names


def package_of(names: Sequence[str], tiny: LoadedModel) -> ModelPackage:
    return replace(tiny.package, adapter=tuple(TensorSpec(n, "float32", (2,)) for n in names))


def test_names_and_patterns_find_tensors(tiny: LoadedModel) -> None:
    package = package_of(("layers.0.q", "layers.1.q", "head[0]"), tiny)
    found = [find_places(package, wanted) for wanted in (("layers.*",), ("*.1.?", "head[0]"), ())]
    assert [list(one[::2]) for one in found] == [[1, 1, 0], [0, 1, 1], [0, 0, 0]]


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (("A", "heads"), "'heads', and .* has no such tensor in its adapter: it has A, B$"),
        (("?",), "names the whole adapter, .* leave out at least one of A, B$"),
        (("B", "A"), "names the whole adapter"),
    ],
)
def test_wrong_names_are_one_sentence(world: World, names: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        world.add("ada", config_of(world, *names))
