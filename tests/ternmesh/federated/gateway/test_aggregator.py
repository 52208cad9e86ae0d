"""A gateway between boards and a host: what it holds, what passes, and what it settles from."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ternmesh.codec.scale import UNIT, to_float
from ternmesh.federated.events import GlobalUpdateMade
from ternmesh.federated.gateway.aggregator import TRIES, GatewayAggregator
from ternmesh.federated.gateway.partial_aggregate import PartialAggregateMade
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.joining import NodeSettings
from ternmesh.federated.node import NodeProtocol
from ternmesh.federated.state import HostSettings, new_host_state, new_node_state
from ternmesh.plan import make_plan
from ternmesh.security.membership import ALL, HOST
from ternmesh.wire import control, fragments
from ternmesh.wire.frame import BROADCAST, UNASSIGNED, Header, seal_open
from ternmesh.wire.update import CONTRIBUTIONS_KIND, MANIFEST_KIND, VOTE_CHUNK_KIND
from tests.sim.simdisks import GatewayDisk

MODEL, RUN = bytes(range(32)), b"run-id-8"
DIMENSION = 1500
BOARDS = ("ada", "bo", "cy")


@dataclass
class Yard:
    """Boards, their gateway and a host; frames move when `exchange` is called.

    `lost(where, peer, body)` says which frames get lost on the way "up", "air" or "down".
    """

    plan_changes: dict[str, object] = field(default_factory=dict)
    boards: tuple[str, ...] = BOARDS
    wait_s: float = 10.0
    settings: HostSettings = field(
        default_factory=lambda: HostSettings(3, 600.0, partial_aggregates=True)
    )

    def __post_init__(self) -> None:
        changes: dict[str, Any] = {
            "rounds": 4,
            "frame_mtu": 164,
            "up_zeros": 0.5,
            **self.plan_changes,
        }
        self.plan = make_plan(DIMENSION, local_steps=1, learning_rate=0.1, **changes)
        self.now = 100.0
        self.sent: dict[str, list[tuple[str, bytes]]] = {"up": [], "down": []}
        self.lost: Callable[[str, str, bytes], bool] = lambda *_: False
        self.events: list[object] = []
        self.made: list[GlobalUpdateMade] = []
        self.disk = GatewayDisk(DIMENSION)
        state = new_host_state(DIMENSION)
        self.host = HostProtocol(
            plan=self.plan, settings=self.settings, model_hash=MODEL, run=RUN, state=state
        )
        self.host.start(self.now)
        self.gateway = self.new_gateway()
        self.nodes: dict[str, NodeProtocol] = {}
        for name in self.boards:
            self.add(name)

    def add(self, name: str) -> None:
        rng = np.random.default_rng(len(self.nodes))
        instance = name.encode().ljust(8)
        state = new_node_state(DIMENSION)
        node = NodeProtocol(
            NodeSettings(name, MODEL, instance), state, samples=10 * (1 + len(self.nodes)), rng=rng
        )
        self.nodes[name] = node
        node.start(self.now)

    def new_gateway(self) -> GatewayAggregator:
        rng = np.random.default_rng(9)
        gateway = GatewayAggregator(MODEL, self.boards, self.wait_s, self.disk.committed, rng)
        gateway.start(self.now)
        return gateway

    def crash(self) -> None:
        self.gateway = self.new_gateway()

    def exchange(self) -> None:
        moved = True
        while moved:
            moved = self.air() | self.pass_on() | self.answer()

    def air(self) -> bool:
        """From the boards to the gateway."""
        moved = False
        for name, node in self.nodes.items():
            while node.next_event() is not None:
                pass
            for _, frames in node.frames_to_send(self.now):
                kept = [f for f in frames if not self.lost("air", name, f[6:-8])]
                self.gateway.receive_up(name, kept, self.now)
                moved = True
        return moved

    def settle(self) -> None:
        while (event := self.gateway.next_event()) is not None:
            self.events.append(event)
            self.disk.record(event)
        self.disk.commit()

    def pass_on(self) -> bool:
        """What leaves the gateway, on both sides."""
        self.settle()
        up, down = self.gateway.frames_up(), self.gateway.frames_down()
        for board, frames in up:
            for frame in frames:
                self.sent["up"].append((board, frame))
                if not self.lost("up", board, frame[6:-8]):
                    self.host.receive_frames(board, [frame], self.now)
        for peer, frames in down:
            for frame in frames:
                self.sent["down"].append((peer, frame))
                for name in self.nodes if peer == ALL else [peer]:
                    if not self.lost("down", name, frame[6:-8]) and name in self.nodes:
                        self.nodes[name].receive_frames(HOST, [frame], self.now)
        return bool(up or down)

    def answer(self) -> bool:
        """From the host to the gateway."""
        while (event := self.host.next_event()) is not None:
            if isinstance(event, GlobalUpdateMade):
                self.made.append(event)
        groups = self.host.frames_to_send(self.now)
        for peer, frames in groups:
            for frame in frames:
                if not self.lost("host", peer, frame[6:-8]):
                    self.gateway.receive_down(peer, [frame], self.now)
        return bool(groups)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        ends: list[Any] = [self.gateway, self.host, *self.nodes.values()]
        for end in ends:
            due = end.next_timeout()
            if due is not None and due <= self.now:
                end.handle_timeout(self.now)

    def submit(self, *names: str) -> None:
        for name in names:
            rng = np.random.default_rng((sum(name.encode()), self.host.version))
            delta = (rng.standard_t(3, DIMENSION) * 0.01).astype(np.float32)
            self.nodes[name].submit(self.nodes[name].version, delta, self.now)
        self.exchange()

    def bodies(self, way: str) -> list[tuple[str, int]]:
        """The kinds of what passed, by board."""
        return [(peer, frame[6]) for peer, frame in self.sent[way]]

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def joined(**changes: Any) -> Yard:
    yard = Yard(**changes)
    yard.exchange()
    assert yard.host.phase == control.OPEN
    yard.sent["up"].clear()
    return yard


def test_a_round_of_three_boards_is_one_bundle() -> None:  # R6.8-10
    yard = joined()
    yard.submit(*BOARDS)
    assert yard.host.version == 1
    partial_aggregate = [MANIFEST_KIND, CONTRIBUTIONS_KIND, *[VOTE_CHUNK_KIND] * yard.plan.up.count]
    assert yard.bodies("up") == [("ada", kind) for kind in partial_aggregate]
    [made] = yard.of(PartialAggregateMade)
    assert made.partial_aggregate.samples == 10 + 20 + 30
    assert [row.address for row in yard.made[0].counted] == [1, 2, 3]
    assert {c for c, _ in yard.made[0].partial_aggregates} == {1, 2, 3}
    assert all(node.pending is None for node in yard.nodes.values())


def test_a_silent_board_is_not_waited_for() -> None:  # R6.8-9
    yard = joined(plan_changes={"silence": 1.0, "silence_rounds": 9})
    for _ in range(2):
        yard.submit(*BOARDS)
    yard.nodes["cy"].residual = np.zeros(DIMENSION, np.float32)
    yard.nodes["cy"].submit(2, np.zeros(DIMENSION, np.float32), yard.now)
    yard.submit("ada", "bo")
    assert yard.host.version == 3
    assert {c for c, _ in yard.made[2].partial_aggregates} == {1, 2}


def test_the_host_that_takes_none_is_left_alone() -> None:  # R6.8-19
    yard = joined(settings=HostSettings(3, 600.0, partial_aggregates=False))
    yard.submit(*BOARDS)
    assert yard.gateway.is_refused
    assert yard.host.refused["bundle"] == 1
    for _ in range(6):
        yard.wait(5.0)
        yard.exchange()
    assert yard.host.version == 1
    assert yard.made[0].partial_aggregates == ()
    assert not yard.gateway.residual.any()
    yard.sent["up"].clear()
    yard.submit(*BOARDS)
    assert yard.host.version == 2, "from now on packets pass at once"
    assert {board for board, _ in yard.bodies("up")} == set(BOARDS)


def test_repeated_packets_ask_for_receipts_and_do_not_pass() -> None:  # R6.8-17
    yard = joined(boards=(*BOARDS, "dee"))
    yard.lost = lambda way, _, b: way == "down" and b[0] == control.KIND
    yard.submit(*BOARDS)
    yard.wait(10.1)  # dee is still training, and keeps the round open
    yard.exchange()
    whole = len(yard.sent["up"])
    assert yard.gateway.next_timeout() is None, "the host has it all"
    for _ in range(2):
        yard.wait(5.0)
        yard.exchange()
    yard.lost = lambda *_: False
    again = yard.bodies("up")[whole:]
    assert set(again) == {("ada", MANIFEST_KIND)}, "its head alone"
    for _ in range(4):
        yard.wait(20.0)
        yard.exchange()
    assert all(yard.nodes[name].received for name in BOARDS)


def test_contributors_without_a_word_pass_again() -> None:  # R6.8-18
    """Another gateway's bundle was whole first, say: this one's is not answered."""
    yard = joined()
    yard.lost = lambda way, _, b: way == "up" and b[0] in (VOTE_CHUNK_KIND, CONTRIBUTIONS_KIND)
    yard.submit(*BOARDS)
    for _ in range(4 * TRIES):
        yard.wait(60.0)
        yard.exchange()
    assert yard.host.version == 1
    assert yard.bodies("up").count(("ada", CONTRIBUTIONS_KIND)) == 5  # four tries, then once more
    assert yard.made[0].partial_aggregates == ()
    assert [row.address for row in yard.made[0].counted] == [1, 2, 3]


def test_boards_hear_of_a_reference_only_when_the_gateway_has_read_it() -> None:  # R6.8-22
    """A power cut amid its pieces must not leave the gateway behind its boards."""
    yard = joined(plan_changes={"down_zeros": 0.3})
    half: list[bytes] = []

    def lost(way: str, _peer: str, body: bytes) -> bool:
        if way == "host" and body[0] == fragments.KIND:
            half.append(body)
            return len(half) > 2
        return False

    yard.lost = lost
    yard.submit(*BOARDS)
    assert len(half) > 3
    assert fragments.KIND not in [kind for _, kind in yard.bodies("down")]
    yard.crash()
    yard.lost = lambda *_: False
    rest = [seal_open(Header(BROADCAST, 9), body) for body in half[2:]]
    yard.gateway.receive_down(ALL, rest, yard.now)
    yard.exchange()
    assert {node.version for node in yard.nodes.values()} == {0}
    yard.wait(31.0)  # announced: the boards ask for it
    yard.exchange()
    yard.wait(8.0)
    yard.exchange()
    assert {node.version for node in yard.nodes.values()} == {1}
    assert yard.gateway.pending is None
    assert yard.gateway.residual.any()


def test_a_welcome_that_nobody_asked_for_resets_nothing() -> None:  # R6.8-23
    yard = joined()
    yard.submit(*BOARDS)
    owed = yard.gateway.residual
    numbers = control.read_control(
        next(f[6:-8] for _, f in yard.sent["down"] if f[6:8] == bytes([1, 0x88]) and f[8] == 1)
    )
    assert isinstance(numbers, control.Welcome)
    late = control.write_control(replace(numbers, run=b"the last"))
    frame = seal_open(Header(UNASSIGNED, 1), late)
    yard.gateway.receive_down("ada", [frame], yard.now)
    assert yard.gateway.run == RUN
    assert yard.gateway.residual is owed


def test_votes_are_worth_at_most_what_the_plan_believes() -> None:  # R4.6-2
    yard = joined(plan_changes={"scale_max": 0.004})
    yard.gateway.residual = np.full(DIMENSION, 0.6, np.float32)
    yard.submit(*BOARDS)
    assert yard.host.version == 1
    assert yard.host.refused["scale"] == 0
    [made] = yard.of(PartialAggregateMade)
    assert np.abs(made.partial_aggregate.wanted / made.partial_aggregate.samples).max() > 0.004
    assert np.abs(to_float(yard.host.model_q24)).max() <= 0.004 + UNIT
