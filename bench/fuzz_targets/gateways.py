"""Gateways: bundles on their way through one, into the host, and into what a gateway keeps."""

from collections.abc import Iterator
from functools import cache

import numpy as np

from bench.fuzz_targets import wire
from bench.fuzz_targets.machines import HostRun, first_reference
from bench.fuzz_targets.target import Target, joined, number, parts, same, settle
from ternmesh.errors import WireError
from ternmesh.plan import to_numbers
from ternmesh.swarm import bundle_records, bundling
from ternmesh.swarm.bundle_intake import BundleIntake
from ternmesh.swarm.bundler import Bundler
from ternmesh.swarm.coordinator import Coordinator
from ternmesh.swarm.intake import Intake
from ternmesh.swarm.packet import make_packet
from ternmesh.swarm.records import Settings, new_state
from ternmesh.wire import contributions, control, manifest, pieces, seal
from ternmesh.wire.reference import Counted, certify

RUN = b"runrunru"
BOARDS = ("ada", "bo", "cy")
_STEPS_MAX = 64
_SAMPLES = 10


def packets() -> dict[int, Intake]:
    """Whole packets of two boards, by context."""
    found = {}
    for context in (3, 4):
        vector = np.full(wire.DIMENSION, 0.1 * context, np.float32)
        intake = found[context] = Intake(wire.PLAN, wire.MODEL[:8], 0)
        for body in make_packet(vector, wire.MODEL, 0, _SAMPLES, wire.PLAN).bodies:
            intake.add(body)
    return found


@cache
def bundle() -> bundle_records.Bundle:
    """What a gateway makes of both."""
    residual = np.zeros(wire.DIMENSION, np.float32)
    return bundling.make_bundle(packets(), residual, wire.MODEL, 0, wire.PLAN, "ada")


def _check_contributions(data: bytes) -> None:
    rows = contributions.read_contributions(data)
    again = contributions.write_contributions(number(data, 1, 2), rows)
    same(again, data, "a list of contributions")


def _check_intake(data: bytes) -> None:
    intake = BundleIntake(wire.PLAN, wire.MODEL[:8], 0, lead=3, nodes=(3, 4, 5))
    for body in parts(data):
        try:
            intake.add(body or b"\0")
        except WireError:
            continue
        if intake.complete and not intake.usable:
            raise AssertionError("a whole bundle that nobody can count")
    intake.hypervector().units()
    if intake.usable:
        same(set(intake.rows) <= {3, 4, 5}, True, "the contributors of a bundle")
        intake.counted_itself()
        _ = [intake.counted(context) for context in intake.rows]


def run_on(gateway: Bundler, data: bytes) -> None:
    """Boards and host say anything in any order."""
    gateway.start(0.0)
    now = 0.0
    for step, item in zip(range(_STEPS_MAX), parts(data), strict=False):
        choice, body = number(item, 0, 1), item[1:] or b"\0"
        now += (choice >> 5) * 0.5
        if choice & 1:
            context = (seal.ENROL, 3, 4, 900)[choice >> 1 & 3]
            frame = body if choice & 8 else seal.seal(seal.Header(context, step), body)
            gateway.receive_up(BOARDS[choice >> 4 & 1], [frame], now)
        else:
            context = (seal.ENROL, seal.DOWN | 3, seal.BROADCAST, seal.DOWN | 4)[choice >> 1 & 3]
            frame = body if choice & 8 else seal.seal(seal.Header(context, step), body)
            gateway.receive_down("all" if choice & 4 else BOARDS[choice >> 4 & 1], [frame], now)
        settle(gateway, now)
        gateway.frames_up()
        gateway.frames_down()


def _check_bundler(data: bytes) -> None:
    state = bundle_records.new_state(wire.DIMENSION)
    run_on(Bundler(wire.MODEL, BOARDS, 1.0, state, np.random.default_rng(0)), data)


def _bodies() -> Iterator[bytes]:
    yield joined(bundle().bodies)
    yield joined(reversed(bundle().bodies))


def conversations() -> Iterator[bytes]:
    """Boards that join, send whole packets, and what the host says then."""
    said = []
    for index, name in enumerate(BOARDS[:2]):
        instance = name.ljust(8, "-").encode()
        hello = control.Hello(name, instance, wire.MODEL[:8], bytes(8), 0, bytes(16), _SAMPLES)
        said.append(bytes((1 | index << 4,)) + control.write_control(hello))
        numbers = to_numbers(wire.PLAN)
        welcome = control.Welcome(instance, 3 + index, RUN, 0, control.OPEN, 5000, numbers)
        said.append(bytes((index << 4,)) + control.write_control(welcome))
    for context, intake in packets().items():
        choice = bytes((1 | context - 2 << 1 | context - 3 << 4,))
        assert intake.manifest is not None
        head = manifest.write_manifest(intake.manifest)
        said += [choice + body for body in (head, *intake.bodies.values())]
    said.append(b"\xe1\0")  # later: the bundle is made
    yield joined(said)
    row = Counted(3, 0, bundle().digest, b"\x01")
    whole = pieces.cut(certify(first_reference(row)), wire.PLAN.frame_mtu)
    yield joined([*said, *(b"\x04" + body for body in whole)])
    yield joined([*said, *(b"\x02" + body for body in wire.controls())])
    later = [b"\xe1\0"] * 4
    receipts = [b"\x02" + _receipt(3), b"\x16" + _receipt(4)]
    yield joined([*said, *later, *said[4:6], *receipts, *said[6:8], *later])


def _receipt(context: int) -> bytes:
    item = packets()[context].manifest
    assert item is not None
    return control.write_control(control.Receipt(0, item.digest, b"\x01"))


def _check_host(data: bytes) -> None:
    """A host that believes bundles, its boards and the gateway between them."""
    settings = Settings(min_peers=1, deadline_s=5.0, nodes_max=3, chain_max=2, bundles=True)
    run = HostRun(Coordinator(wire.PLAN, settings, wire.MODEL, RUN, new_state(wire.DIMENSION)))
    now = 0.0
    for step, item in zip(range(_STEPS_MAX), parts(data), strict=False):
        choice, body = number(item, 0, 1), item[1:] or b"\0"
        now += (choice >> 5) * 0.5
        context = (seal.ENROL, 1, 2, 900)[choice & 3]
        frame = body if choice & 4 else seal.seal(seal.Header(context, step), body)
        run.hear(frame, now, BOARDS[choice >> 3 & 1])
        run.settle(now)


def _to_host() -> Iterator[bytes]:
    said = []
    for index, name in enumerate(BOARDS[:2]):
        instance = name.ljust(8, "-").encode()
        hello = control.Hello(name, instance, wire.MODEL[:8], bytes(8), 0, bytes(16), _SAMPLES)
        said.append(bytes((index << 3,)) + control.write_control(hello))
    zeros = np.zeros(wire.DIMENSION, np.float32)
    made = bundling.make_bundle(
        dict(zip((1, 2), packets().values(), strict=True)), zeros, wire.MODEL, 0, wire.PLAN, "ada"
    )
    yield joined([*said, *(b"\x01" + body for body in made.bodies), b"\xe1\0"])
    yield joined([*said, *(b"\x0a" + body for body in reversed(made.bodies)), b"\xe1\0"])


TARGETS = (
    Target("bundle_host", _check_host, _to_host, memory_max=2 << 20),
    Target(
        "contributions",
        _check_contributions,
        lambda: [bundle().bodies[1]],
    ),
    Target("bundle_intake", _check_intake, _bodies),
    Target("bundler", _check_bundler, conversations, memory_max=2 << 20),
)
