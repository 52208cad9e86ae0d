"""The state machines: whatever frames arrive, in whatever order, nothing is raised."""

from collections.abc import Iterator

import numpy as np

from bench.fuzz_targets import wire
from bench.fuzz_targets.target import Target, joined, number, parts, same, settle
from ternmesh.errors import WireError
from ternmesh.link import frames
from ternmesh.link.link import Link, LinkSettings
from ternmesh.link.records import LinkState
from ternmesh.plan import genesis, to_numbers
from ternmesh.swarm import member
from ternmesh.swarm.coordinator import Coordinator
from ternmesh.swarm.intake import Intake
from ternmesh.swarm.records import Settings, new_state
from ternmesh.swarm.step import encode_step, read_shares, step_units
from ternmesh.wire import control, pieces, reference, seal, share

_RUN = b"runrunru"
_PEERS = ("ada", "bob", "host")
_LINK = LinkSettings(mtu=64, object_max=4096, incoming_bytes_max=8192, outgoing_bytes_max=8192)
STEPS_MAX = 64


def _check_frames(data: bytes) -> None:
    if data and frames.is_link(data):
        same(frames.write(frames.read(data), len(data)), data, "a frame of the link")


def _link_bodies() -> list[bytes]:
    messages: list[frames.Message] = [
        frames.Offer(3, 1, b"name", 60, 20),
        frames.Symbol(3, 0, bytes(20), is_last=False),
        frames.Symbol(3, 1, bytes(20), is_last=True),
        frames.Status(b"name", (1, 0, 0, 2)),
        frames.Question(3),
    ]
    return [frames.write(message) for message in messages]


def _check_link(data: bytes) -> None:
    link = Link(_LINK, LinkState(), np.random.default_rng(0))
    link.start(0.0)
    link.send("ada", bytes(100))
    now = 0.0
    for step, item in zip(range(STEPS_MAX), parts(data), strict=False):
        choice, body = number(item, 0, 1), item[1:] or b"\0"
        now += (choice >> 4) * 0.5
        context = seal.BROADCAST if choice & 4 else step % 3
        frame = body if choice & 8 else seal.seal(seal.Header(context, step), body)
        link.receive_frame(_PEERS[choice & 1], frame, now)
        settle(link, now)
        link.frames_to_send(now, 8)


def _check_intake(data: bytes) -> None:
    intake = Intake(wire.PLAN, wire.MODEL[:8], 0)
    for body in parts(data):
        try:
            intake.add(body or b"\0")
        except WireError:
            continue
    intake.hypervector().units()
    _ = intake.have, intake.usable, intake.complete


def _check_step(data: bytes) -> None:
    bodies = list(parts(data))[: wire.SHARES_MAX]
    read_shares((share.read_share(body) for body in bodies), wire.PLAN.down)
    step_units(bodies, wire.MODEL, 1, wire.PLAN)


def _check_host(data: bytes) -> None:
    settings = Settings(min_peers=1, deadline_s=5.0, nodes_max=2, chain_max=2)
    host = Coordinator(wire.PLAN, settings, wire.MODEL, _RUN, new_state(wire.DIMENSION))
    host.start(0.0)
    now = 0.0
    for step, item in zip(range(STEPS_MAX), parts(data), strict=False):
        choice, body = number(item, 0, 1), item[1:] or b"\0"
        now += (choice >> 4) * 0.5
        context = (seal.ENROL, 1, 2, 900)[choice & 3]
        frame = body if choice & 8 else seal.seal(seal.Header(context, step), body)
        host.receive_frames(_PEERS[choice >> 2 & 1], [frame], now)
        settle(host, now)
        host.frames_to_send(now)


def _check_node(data: bytes) -> None:
    node = member.Member(
        "ada", wire.MODEL, 10, b"instance", member.new_state(wire.DIMENSION),
        np.random.default_rng(0),
    )  # fmt: skip
    node.start(0.0)
    now = 0.0
    for step, item in zip(range(STEPS_MAX), parts(data), strict=False):
        choice, body = number(item, 0, 1), item[1:] or b"\0"
        now += (choice >> 4) * 0.5
        context = (seal.ENROL, seal.DOWN | 1, seal.BROADCAST, 1)[choice & 3]
        frame = body if choice & 8 else seal.seal(seal.Header(context, step), body)
        node.receive_frames("host", [frame], now)
        settle(node, now)
        node.frames_to_send(now)


def _conversations() -> Iterator[bytes]:
    bodies = wire.bodies()
    yield joined(b"\x00" + body for body in bodies)
    yield joined(b"\x11" + body for body in bodies)
    hello = control.Hello("ada", b"instance", wire.MODEL[:8], bytes(8), 0, bytes(16), 10)
    said = [b"\x00" + control.write_control(hello)]
    yield joined(said + [b"\x01" + body for body in (*wire.manifests(), *wire.shares(1))])


def _answers() -> Iterator[bytes]:
    numbers = to_numbers(wire.PLAN)
    welcome = control.Welcome(b"instance", 1, _RUN, 0, control.OPEN, 5000, numbers)
    said = [b"\x00" + control.write_control(welcome)]
    yield joined(said)
    whole = pieces.cut(_first_reference(), wire.PLAN.frame_mtu)
    yield joined(said + [b"\x02" + body for body in whole])
    yield joined(said + [b"\x01" + body for body in wire.controls()])


def _first_reference() -> bytes:
    origin = genesis(wire.MODEL, _RUN, wire.PLAN)
    shares = encode_step(np.ones(wire.DIMENSION, np.float32), wire.MODEL, 1, wire.PLAN)
    step = reference.Reference(1, origin, wire.MODEL[:8], False, 5000, (), shares)
    return reference.certify(reference.write_reference(step))


TARGETS = (
    Target("link_frames", _check_frames, _link_bodies),
    Target("link", _check_link, lambda: [joined(b"\x10" + b for b in _link_bodies())]),
    Target("intake", _check_intake, lambda: [joined([*wire.manifests(), *wire.shares()])]),
    Target("step", _check_step, lambda: [joined(wire.shares(1))]),
    Target("host", _check_host, _conversations),
    Target("node", _check_node, _answers),
)
