"""How long bodies may become, and what is cut to fit."""

from dataclasses import fields, replace

import numpy as np
from hypothesis import assume, example, given
from hypothesis import strategies as st

from ternmesh.link import messages as link
from ternmesh.plan import FRAME_MTU_MIN, Plan
from ternmesh.wire import control, release
from ternmesh.wire.frame import FRAME_OVERHEAD
from ternmesh.wire.global_update import (
    COUNTED_MAX,
    Counted,
    GlobalSnapshot,
    GlobalUpdate,
    certify,
    object_max,
    read_object,
    write_global_snapshot,
    write_global_update,
)
from ternmesh.wire.update import AGGREGATOR_FRAME_MIN, Manifest, write_manifest
from tests.ternmesh.wire.test_forms import controls, manifests, needs, of_aggregators

NAME = b"name"


LONG = control.Report | control.Settings | control.Receipt  # for the last see R5-3
PLAN = tuple(item.metadata.get("limits", (0, 0xFFFF))[1] for item in fields(Plan))


@given(controls.filter(lambda message: not isinstance(message, LONG)))
def test_every_message_of_a_round_fits_the_smallest_frame(message: control.Control) -> None:
    if isinstance(message, control.Welcome):
        message = replace(message, plan=PLAN)
    assert len(control.write_control(message)) + FRAME_OVERHEAD <= FRAME_MTU_MIN


@given(manifests, of_aggregators)
def test_a_manifest_fits_the_frame_that_its_sender_needs(own: Manifest, summed: Manifest) -> None:
    assert len(write_manifest(own)) + FRAME_OVERHEAD <= 116 < FRAME_MTU_MIN
    assert len(write_manifest(summed)) + FRAME_OVERHEAD <= AGGREGATOR_FRAME_MIN == 150


def test_the_longest_objects_of_a_run_are_within_the_limit() -> None:
    rows = tuple(Counted(0x7FFE, 2**32 - 1, b"abcd", bytes(128)) for _ in range(COUNTED_MAX))
    step = GlobalUpdate(2**32 - 1, bytes(16), bytes(8), True, 2**32 - 1, rows, (bytes(170),) * 9)
    step = replace(step, returns_to=2**32 - 3)
    limit = object_max(dimension=100, chunks=9, frame_mtu=184)
    assert read_object(write_global_update(step), 100) == step
    assert len(certify(write_global_update(step), ((0, bytes(64)),) * 16)) <= limit
    state = np.zeros(1 << 18, np.int32)
    whole = GlobalSnapshot(2**32 - 1, bytes(16), bytes(8), True, 2**32 - 1, rows[:1], state)
    limit = object_max(dimension=1 << 18, chunks=9, frame_mtu=184)
    assert len(certify(write_global_snapshot(whole))) <= limit


def test_a_long_or_foreign_reason_is_cut_and_readable() -> None:
    status = release.ReleaseStatus(bytes(4), release.BAD, reason="zu groß " * 40)
    body = release.write_status(status)
    assert release.read_status(body).reason.startswith("zu gro? ")
    assert len(body) == 6 + release.REASON_MAX


@given(needs, st.integers(9, 60))
@example((*[0] * 255, 1), 9)
def test_a_status_of_the_link_is_cut_to_its_room(lacking: tuple[int, ...], room: int) -> None:
    assume(lacking)
    body = link.write_message(link.Status(NAME, lacking), room)
    assert len(body) <= room
    short = link.read_message(body)
    assert isinstance(short, link.Status)
    assert short.needs, "it is never taken for a receipt"
    assert short.needs == lacking[: len(short.needs)]
    if short.needs != lacking:
        assert len(link.write_message(link.Status(NAME, lacking))) > room


def test_zeros_at_the_end_of_a_status_are_not_written() -> None:
    for lacking, written in (((3, 0, 0), (3,)), ((0, 0), ())):
        body = link.write_message(link.Status(NAME, lacking))
        assert body == link.write_message(link.Status(NAME, written))


def test_what_belongs_to_the_link() -> None:
    kinds = [kind for kind in range(256) if link.is_link(bytes((kind,)))]
    assert kinds == [0x06, 0x07, 0x08, *range(0x50, 0x70)]
