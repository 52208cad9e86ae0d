"""A whole fleet in one process, one thread and virtual time, from one seed.

A seed draws which faults are on and how strong they are. In the first phase everything goes wrong;
then the faults stop, and the run must finish with everybody in the same place and nothing lost.
"""

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np

from ternmesh.errors import CodecError, WireError
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.management import LIMITS, pack
from ternmesh.federated.node import NodeProtocol
from ternmesh.plan import make_plan
from ternmesh.security.membership import ALL, HOST
from ternmesh.wire import control
from tests.sim.simhostile import Hostile
from tests.sim.simkeys import Keys
from tests.sim.simledger import Violation, expect
from tests.sim.simprocess import DIMENSION, TOLERANCE, HostProcess, NodeProcess, Process

HEALED_MAX_S = 3000.0  # a healed fleet that is not done by then never will be
EVENTS_MAX = 400_000


@dataclass(frozen=True)
class Options:
    """What a seed stands for; printed when it fails."""

    nodes: int
    rounds: int
    min_peers: int
    deadline_s: float
    chain_max: int
    faults_s: float  # how long things go wrong
    drop: float
    duplicate: float
    flip: float
    delay_s: float
    node_crash: float  # chance at each commit, half of it before and half after
    host_crash: float
    partition: float  # chance that a node is cut off for a while, each 5 s
    hostile: float  # hostile frames a second
    burst: bool
    late: float  # share of nodes that start late
    stragglers: float  # share of trainings that take ten times as long
    vanish: int  # nodes that die for ever
    reset: bool  # the operator starts a new run in between
    silence: float  # of the plan: the share of the learned energy below which a node is silent
    silence_rounds: int
    manifest_repeats: int
    keyed: bool = False
    rotations: int = 0  # of the host's key
    settings: int = 0  # times that the owner sets something on a board
    old_copies: int = 0  # times that the host's disk is set back to an old copy
    news_rounds: int = 0  # with 0 rounds: the run has no end
    carried: int = 0  # times that the operator starts a run that takes along what was learned
    old_version: bool = False  # node0 knows nothing of such runs
    liars: int = 0  # the first nodes, which lie now and then
    returns: int = 0  # times that the owner goes back to an older version
    cooperation: float = 1.0
    staleness_rounds: int = 0


def draw(seed: int) -> Options:
    """Each fault is on in about half of all seeds, so that their combinations vary."""
    rng = random.Random(seed)
    nodes = rng.randint(1, 5)
    vanish = rng.choice((0, 0, 0, 1)) if nodes > 1 else 0

    def maybe(highest: float) -> float:
        return rng.random() * highest if rng.random() < 0.5 else 0.0

    return Options(
        nodes=nodes,
        rounds=rng.randint(2, 8),
        min_peers=rng.choice((1, nodes - vanish, (nodes - vanish + 1) // 2)),
        deadline_s=rng.choice((5.0, 20.0)),
        chain_max=rng.choice((1, 2, 8)),
        faults_s=rng.uniform(20, 120),
        drop=maybe(0.3),
        duplicate=maybe(0.5),
        flip=maybe(0.1),
        delay_s=rng.choice((0.01, 0.1, 1.0)),
        node_crash=maybe(0.06),
        host_crash=maybe(0.06),
        partition=maybe(0.3),
        hostile=maybe(20.0),
        burst=rng.random() < 0.03,
        late=maybe(0.8),
        stragglers=maybe(0.6),
        vanish=vanish,
        reset=rng.random() < 0.1,
        silence=maybe(1.0),
        silence_rounds=rng.randint(1, 3),
        manifest_repeats=rng.choice((0, 0, 1, 3)),
    )


def draw_with_late_updates(seed: int) -> Options:
    """The same faults, slow nodes whose updates count later, and nodes that keep their own."""
    rng = random.Random(f"late {seed}")
    return replace(
        draw(seed),
        stragglers=rng.uniform(0.2, 0.8),
        cooperation=rng.choice((0.3, 0.7)),
        staleness_rounds=rng.randint(1, 4),
    )


def draw_with_keys(seed: int) -> Options:
    """The same faults for a fleet under suite 1."""
    return replace(draw(seed), keyed=True)


def draw_with_new_run(seed: int) -> Options:
    """The same, and what a relay has held back of one run comes in the midst of the next."""
    options, rng = draw_with_keys(seed), random.Random(f"new run {seed}")
    return replace(options, reset=True, rounds=rng.randint(4, 8), faults_s=rng.uniform(20, 50))


def draw_with_new_host_keys(seed: int) -> Options:
    """The same, and the host gets other keys in the midst of it."""
    options, rng = draw_with_keys(seed), random.Random(f"new host keys {seed}")
    return replace(
        options,
        rotations=rng.randint(1, 3),
        rounds=rng.randint(4, 12),
        faults_s=rng.uniform(20, 60),
        reset=False,
    )


def draw_with_old_copy(seed: int) -> Options:
    """The same faults but for hostile frames, half with keys; old copies of the host's disk."""
    options, rng = draw(seed), random.Random(f"old copy {seed}")
    nodes = max(2, options.nodes)
    return replace(
        options,
        min_peers=max(2, options.min_peers),  # one alone may not know how far the others are
        rounds=rng.randint(4, 12),
        keyed=rng.random() < 0.5,
        old_copies=rng.randint(1, 3),
        hostile=0.0,
        burst=False,
        reset=False,
        vanish=0,
        nodes=nodes,
    )


def draw_with_settings(seed: int) -> Options:
    """The same faults, some with keys, and an owner who changes the settings of boards."""
    options, rng = draw(seed), random.Random(f"settings {seed}")
    return replace(options, keyed=rng.random() < 0.5, settings=rng.randint(1, 8), vanish=0)


def draw_with_carried_runs(seed: int) -> Options:
    """The same faults, and runs that take along what was learned.

    With keys: else an update of one run that comes late counts in the next one.
    """
    options, rng = draw_with_keys(seed), random.Random(f"carried {seed}")
    return replace(
        options,
        rounds=rng.randint(3, 8),
        faults_s=rng.uniform(30, 90),
        carried=rng.randint(1, 3),
        old_version=rng.random() < 0.3,
        reset=False,
    )


class Fleet:
    """The clock, the wires, the host and the nodes of one seed."""

    new_host: Callable[["Fleet"], HostProcess] = HostProcess
    new_node: Callable[["Fleet", str], NodeProcess] = NodeProcess

    def __init__(self, seed: int, options: Options) -> None:
        self.rng = random.Random(f"fleet {seed}")
        self.options = o = options
        self.plan = make_plan(
            DIMENSION,
            rounds=o.rounds,
            local_steps=8,
            learning_rate=0.001,
            frame_mtu=164,
            up_zeros=0.5,
            down_zeros=0.7,
            announce_s=5,
            silence=o.silence,
            silence_rounds=o.silence_rounds if o.silence else 0,
            manifest_repeats=o.manifest_repeats,
            news_rounds=o.news_rounds,
            cooperation=o.cooperation,
            staleness_rounds=o.staleness_rounds,
        )
        self.now = 1000.0
        self.healed = False
        self.names: dict[tuple[bytes, int], str] = {}
        self.cut_until: dict[str, float] = {}
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.hostile = Hostile(self.rng, self.plan)
        self._wires = 0
        self.said: set[tuple[bytes, str, bytes]] = set()  # run, node and body, under keys
        self._held: list[tuple[Process, str, list[bytes]]] = []
        names = [f"node{i}" for i in range(o.nodes)]
        self.keys = Keys(random.Random(f"keys {seed}"), names) if o.keyed else None
        self.host = type(self).new_host(self)
        self.nodes = {
            name: type(self).new_node(self, name) for name in (f"node{i}" for i in range(o.nodes))
        }

    # The clock

    def at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (max(when, self.now), next(self._order), action))

    def after(self, delay: float, action: Callable[[], None]) -> None:
        self.at(self.now + delay, action)

    def run(self) -> None:
        """Both phases; Violation where an invariant does not hold."""
        o, rng = self.options, self.rng
        self.after(rng.uniform(0, 5), self.host.boot)
        for node in self.nodes.values():
            late = rng.random() < o.late
            self.after(rng.uniform(0, o.faults_s if late else 5), node.boot)
        for node in list(self.nodes.values())[: o.vanish]:
            self.after(rng.uniform(0, o.faults_s), partial(self._vanish, node))
        if o.reset:
            self.after(rng.uniform(o.faults_s / 2, o.faults_s), self.host.new_run)
        for _ in range(o.carried):
            self.after(rng.uniform(0, o.faults_s), partial(self.host.new_run, carry=True))
        for _ in range(o.rotations):
            self.after(rng.uniform(1, 1.2 * o.faults_s), self.host.rotate)
        for _ in range(o.old_copies):
            copied, broken = sorted(rng.uniform(0, 1.5 * o.faults_s) for _ in range(2))
            self.after(copied, self.host.copy_disk)
            self.after(broken, self.host.set_back)
        for _ in range(o.settings):
            self.after(rng.uniform(0, o.faults_s), self._set_board)
        if o.burst:
            self.after(rng.uniform(5, o.faults_s), self._burst)
        self._trouble()
        self.after(o.faults_s, self._heal)
        give_up_at = self.now + o.faults_s + HEALED_MAX_S
        for _ in range(EVENTS_MAX):
            if self.healed and self._done():
                break
            when, _, action = heapq.heappop(self._heap)
            expect(when < give_up_at, "the healed fleet does not finish: " + self._where())
            self.now = when
            action()
        else:
            raise Violation(f"{EVENTS_MAX} events and no end: {self._where()}")
        self.check()

    def _vanish(self, node: NodeProcess) -> None:
        node.crash()
        node.gone = True

    def _heal(self) -> None:
        self.healed = True
        for process in self._processes():
            self.after(0.0, process.boot)
        for name in self.nodes if self.options.settings else ():
            self.after(1.0, partial(self._unpause, name))

    def _set_board(self) -> None:
        rng = self.rng
        chosen = {name: rng.randint(0, most) for name, most in LIMITS.items() if rng.random() < 0.5}
        self.host.set_board(rng.choice([*self.nodes]), chosen)

    def _unpause(self, name: str) -> None:
        """The owner lets a board go on, as soon as the host knows it."""
        if not self.host.set_board(name, {"pace_s": self.rng.randint(0, 9)}):
            self.after(5.0, partial(self._unpause, name))

    def _processes(self) -> list[Process]:
        return [self.host, *self.nodes.values()]

    def _alive(self) -> list[NodeProcess]:
        return [node for node in self.nodes.values() if not node.gone]

    def _done(self) -> bool:
        host = self.host.endpoint
        if host is not None and self._is_lost(host.version):
            return True
        return (
            host is not None
            and host.phase == control.FINISHED
            and not (self.options.settings and self._some_are_behind(host))
            and all(self._is_done(node.endpoint) for node in self._alive())
            and self._all_follow()
        )

    def _all_follow(self) -> bool:
        """Whether the host has had all its keys, and each node trusts the last one."""
        if self.keys is None or not self.options.rotations:
            return True
        hosts = self.keys.hosts
        are_there = len(hosts.rotations) == self.options.rotations
        return are_there and all(node.seals.hosts == hosts for node in self._alive())

    def _some_are_behind(self, host: HostProtocol) -> bool:
        boards = [host.session.management.boards[node.name] for node in self._alive()]
        return any(board.must_report or not board.number or board.is_behind for board in boards)

    def _is_lost(self, version: int) -> bool:
        """Whether the old copy is older than all that nodes still have to give back."""
        chains = [node.disk.committed.chain for node in self._alive()]
        is_given = any(link.version == version + 1 for chain in chains for link in chain)
        is_ahead = any(node.disk.committed.version > version for node in self._alive())
        return self.host.was_set_back and is_ahead and not is_given

    def _is_done(self, member: NodeProtocol | None) -> bool:
        return member is not None and member.finished and member.run == self.host.disk.run

    # The wires

    def carry(self, source: str, peer: str, frames: list[bytes]) -> None:
        """From a node or the host."""
        for target in self.nodes if peer == ALL else [peer]:
            process = self.host if target == HOST else self.nodes.get(target)
            if process is not None:
                self._carry_to(process, source, frames)

    def _carry_to(self, process: Process, source: str, frames: list[bytes]) -> None:
        if self.healed:
            self._deliver_after(0.01, process, source, frames)
            return
        node = source if process is self.host else process.name
        if self.cut_until.get(node, 0.0) > self.now:
            return
        o, rng = self.options, self.rng
        while frames:
            size = rng.choice((1, 4, 64))
            chunk, frames = frames[:size], frames[size:]
            if o.keyed and o.reset and self._wires == 0 and rng.random() < 0.3:
                self._held.append((process, source, chunk))
                continue
            for _ in range(2 if rng.random() < o.duplicate else 1):
                kept = [self._damage(frame) for frame in chunk if rng.random() >= o.drop]
                self._deliver_after(rng.expovariate(1 / o.delay_s), process, source, kept)

    def _damage(self, frame: bytes) -> bytes:
        if self.rng.random() >= self.options.flip or not frame:
            return frame
        at = self.rng.randrange(8 * len(frame))
        damaged = bytearray(frame)
        damaged[at // 8] ^= 1 << at % 8
        return bytes(damaged)

    def _deliver_after(
        self, delay: float, process: Process, source: str, frames: list[bytes]
    ) -> None:
        wires = self._wires
        if frames:
            self.after(
                delay, lambda: process.receive(source, frames) if wires == self._wires else None
            )

    def cut_wires(self) -> None:
        """Lose everything that is under way; what a relay has held back comes in the next run."""
        self._wires += 1
        for process, source, frames in self._held:
            delay = self.rng.uniform(0, 20)
            self.after(delay, partial(process.receive, source, frames))

    # Trouble

    def _trouble(self) -> None:
        """Partitions and hostile frames, once a second until the faults stop."""
        if self.healed:
            return
        o, rng = self.options, self.rng
        for name in self.nodes:
            if rng.random() < o.partition / 5:
                self.cut_until[name] = self.now + rng.uniform(1, 20)
        for _ in range(int(o.hostile)):
            peer, frame = self._for_host()
            self.host.receive(peer, [frame])
            rng.choice(list(self.nodes.values())).receive(HOST, [self.hostile.for_node()])
        self.after(1.0, self._trouble)

    def _burst(self) -> None:
        """10,000 frames at once, mostly from a node that is known."""
        if self.host.endpoint is None and not self.healed:
            self.after(1.0, self._burst)
            return
        self.host.receive("node0", [self._for_host()[1] for _ in range(10_000)])
        for node in self.nodes.values():
            node.receive(HOST, [self.hostile.for_node() for _ in range(2_000)])
        self.check_bounds()

    def _for_host(self) -> tuple[str, bytes]:
        host, run = self.host.endpoint, self.host.disk.run
        names = {address: name for (of, address), name in self.names.items() if of == run}
        return self.hostile.for_host(0 if host is None else host.version, names)

    # The invariants

    def check(self) -> None:
        """What must hold at the end of every run."""
        state = self.host.disk.committed
        if self._is_lost(state.version):
            return
        is_at_end = state.version == self.options.rounds or not self.plan.rounds
        expect(is_at_end, "the run has another number of rounds")
        for node in self._alive():
            own = node.disk.committed
            expect(own.run == self.host.disk.run, f"{node.name} is in another run")
            expect(own.version == state.version, f"{node.name} is at another version")
            expect(own.global_hash == state.global_hash, f"{node.name} has another hash")
            expect(
                np.array_equal(own.model_q24, state.model_q24), f"{node.name} has another reference"
            )
            expect(own.pending is None, f"{node.name} waits although the run is over")
            is_over = self.plan.rounds > 0
            expect(own.silent != is_over, f"{node.name} is silent at the end: {own.silent}")
        if self.host.was_set_back:  # its work since the copy may be lost, and it is its own clone
            self.check_bounds()
            return
        for process in (self.host, *self.nodes.values()):
            clones = getattr(process.security.sealing, "clones", {})  # some never started
            expect(not clones, f"{process.name} has heard of a clone, and nobody was copied")
        for node in self.nodes.values():
            self._check_mass(node)
        if self.options.settings:
            self._check_settings()
        self.check_bounds()

    def _check_settings(self) -> None:
        """What the host wants is on the disk of each board, and in force there."""
        for node in self._alive():
            wanted = self.host.disk.boards[node.name]
            own = node.disk.settings
            stored = own.number, own.settings
            expect(stored == (wanted.number, wanted.wanted), f"{node.name} has others: {stored}")
            in_force = pack(LIMITS, node.endpoint.joining.management.settings)
            expect(in_force == wanted.wanted, f"{node.name} does not do what it has stored")

    def _check_mass(self, node: NodeProcess) -> None:
        own = node.disk.committed
        if own.run != self.host.disk.run:
            return
        carried, counted = own.residual.astype(np.float64), self.host.ledger.counted[node.name]
        if own.pending is not None:
            carried = own.pending.corrected.astype(np.float64)
            settled = self.host.ledger.by_round.get((node.name, own.pending.round))
            carried = carried if settled is None else carried - settled.astype(np.float32)
        error = float(np.abs(node.disk.submitted - counted - carried).max())
        expect(error < TOLERANCE, f"{node.name} lost or doubled up to {error} of its work")

    def check_bounds(self) -> None:
        for process in self._processes():
            endpoint = process.endpoint
            if endpoint is not None:
                channel = endpoint.channel
                expect(len(channel.events) <= 2048, f"{process.name}: events pile up")
                expect(len(channel.outgoing._queue) <= 4096, f"{process.name}: frames pile up")
                expect(len(endpoint.refused) <= 65, f"{process.name}: too many reasons")
                if isinstance(endpoint, HostProtocol):
                    expect(len(endpoint.session._refusals._next) <= 4096, "answers pile up")
                    arrived = endpoint.round.updates.keys() | endpoint.round.silent
                    expect(arrived <= endpoint.nodes.keys(), "intakes pile up")
                else:
                    for assembly in endpoint._reassembler._assemblies.values():
                        expect(len(assembly._partials) <= 4, "partial objects pile up")

    def _where(self) -> str:
        host = self.host.endpoint
        at = "down" if host is None else f"{host.phase}@{host.version}"
        nodes = {
            name: "down"
            if (m := node.endpoint) is None
            else (m.version, m.target, m.phase, m.joined, m.pending is not None, m.received)
            for name, node in self.nodes.items()
        }
        return f"host {at}, nodes {nodes}"


FleetT = TypeVar("FleetT", bound=Fleet)


def run_seed(seed: int, draw_options: Callable[[int], Options] = draw) -> Fleet:
    """Run one seed; Violation with the seed and its options where an invariant does not hold."""
    return run_fleet(seed, Fleet(seed, draw_options(seed)))


def run_fleet(seed: int, fleet: FleetT) -> FleetT:
    """Run the fleet of a seed, as `run_seed`."""
    try:
        fleet.run()
    except Violation as error:
        raise Violation(f"seed {seed} at {fleet.now:.3f} s: {error}; {fleet.options}") from error
    except (WireError, CodecError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise Violation(f"seed {seed} at {fleet.now:.3f} s: {error!r}; {fleet.options}") from error
    return fleet
