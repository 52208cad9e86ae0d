import numpy as np
import pytest

from ternmesh.errors import WireError
from ternmesh.federated.aggregation import encode_step, encode_update
from ternmesh.plan import Plan, make_plan
from ternmesh.wire import fragments
from ternmesh.wire.frame import FRAME_OVERHEAD
from ternmesh.wire.global_update import Counted, GlobalUpdate, certify, write_global_update
from ternmesh.wire.update import MANIFEST_SIZE_MIN, Manifest, write_manifest

MODEL = bytes(range(32))


def plan_of(
    dimension: int, frame_mtu: int, up_bytes: int, down_bytes: int, manifest_repeats: int = 0
) -> Plan:
    return make_plan(
        dimension,
        rounds=1,
        local_steps=1,
        learning_rate=0.1,
        frame_mtu=frame_mtu,
        scale_max=60.0,
        up_bytes=up_bytes,
        down_bytes=down_bytes,
        nodes=2,
        manifest_repeats=manifest_repeats,
    )


def message_bytes(bodies: list[bytes]) -> int:
    return sum(2 + FRAME_OVERHEAD + len(body) for body in bodies)


def up_and_down(plan: Plan, vector: np.ndarray) -> tuple[int, int]:
    """What a packet and a reference of `vector` take as messages."""
    chunks = encode_update(vector, MODEL, 3, plan)[0]
    head = Manifest(3, MODEL[:8], 100, bytes(4), len(chunks))
    up = message_bytes([write_manifest(head), *chunks])
    have = b"\xff" * -(-plan.up.count // 8)
    counted = tuple(Counted(node, 70_000, bytes(4), have) for node in (1, 2))
    step = encode_step(vector, MODEL, 3, plan)[0]
    content = certify(
        write_global_update(GlobalUpdate(70_000, bytes(16), MODEL[:8], False, 10**6, counted, step))
    )
    return up, message_bytes(fragments.split(content, plan.frame_mtu))


@pytest.mark.parametrize(
    ("dimension", "target", "frame_mtu"),
    [
        *((d, t, mtu) for d, t in ((8_292, 400), (8_292, 700)) for mtu in (184, 233, 1024)),
        (15_000, 1600, 233),
        pytest.param(148_611, 10_000, 1024, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("kind", ["gaussian", "heavy"])
def test_a_target_is_met_and_used(dimension: int, frame_mtu: int, target: int, kind: str) -> None:
    plan = plan_of(dimension, frame_mtu, target, target)
    rng = np.random.default_rng(0)
    drawn = rng.standard_normal(dimension) if kind == "gaussian" else rng.standard_t(3, dimension)
    for bytes_used in up_and_down(plan, drawn.astype(np.float32) * 0.01):
        assert 0.8 * target <= bytes_used <= target


def test_repeated_manifests_are_within_the_target() -> None:
    head = 2 + FRAME_OVERHEAD + MANIFEST_SIZE_MIN
    vector = np.random.default_rng(0).standard_normal(8_292).astype(np.float32) * 0.01
    once, again = (
        up_and_down(plan_of(8_292, 233, 900, 900, manifest_repeats=n), vector)[0] for n in (0, 2)
    )
    assert 0.8 * 900 <= again + 2 * head <= 900 < once + 2 * head


def test_a_target_chooses_zeros() -> None:
    few, many = plan_of(15_000, 233, 500, 2000), plan_of(15_000, 233, 2000, 500)
    assert few.up_zeros_permille > 950 > 900 > many.up_zeros_permille
    assert many.down_zeros_permille > few.down_zeros_permille


@pytest.mark.parametrize("target", [1, 120, 150])
def test_a_target_that_nothing_fits_gives_a_sentence(target: int) -> None:
    for up, down in ((target, 0), (0, target)):
        with pytest.raises(WireError, match="bytes are too few for 150000 numbers") as caught:
            plan_of(150_000, 184, up, down)
        assert caught.value.reason == "plan"
