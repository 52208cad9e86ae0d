"""A gateway that bundles, as a process between some nodes and the host."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ternmesh.federated.gateway.aggregator import GatewayAggregator
from ternmesh.security.membership import HOST
from tests.sim.simdisks import GatewayDisk
from tests.sim.simledger import MODEL, expect
from tests.sim.simprocess import DIMENSION, TOLERANCE, HostProcess, Process

if TYPE_CHECKING:
    from tests.sim.simfleet import Fleet

WEIGHT = 1000.0  # about the samples of a bundle: its residual is that much larger than a node's


class GatewayProcess(Process):
    """It dies as a power cut kills; what it had in memory is lost with it."""

    DOWN_S = 0.3

    def __init__(self, fleet: "Fleet", boards: frozenset[str]) -> None:
        super().__init__(fleet, "gateway")
        self.disk: GatewayDisk = GatewayDisk(DIMENSION)
        self.boards = sorted(boards)

    def load(self) -> GatewayAggregator:
        rng = np.random.default_rng(self.fleet.rng.getrandbits(32))
        wait_s = self.fleet.options.wait_s
        return GatewayAggregator(MODEL, self.boards, wait_s, self.disk.committed, rng)

    def crash_chance(self) -> float:
        return self.fleet.options.gateway_crash

    def may_crash(self, *, is_down: bool) -> None:
        """Also between commits, of which it has but a few in a round; often amid an object."""
        chance = 0.0 if self.fleet.healed else self.crash_chance() / (2 if is_down else 20)
        if self.fleet.rng.random() < chance:
            self.crash()

    def send(self) -> None:
        made = len(self.endpoint._up)
        for index, (board, frames) in enumerate(self.endpoint.frames_up()):
            if index >= made:  # its own, the others have passed
                self.check_frames(frames)
            self.fleet.carry_past(board, HOST, frames)
        for peer, frames in self.endpoint.frames_down():
            self.fleet.carry_past(HOST, peer, frames)

    def check_mass(self, host: HostProcess) -> None:
        """What counted bundles could not carry is in the residual, once."""
        own = self.disk.committed
        if own.run != host.disk.run:
            return
        expect(own.pending is None, "the gateway does not know what became of its last bundle")
        owed = host.ledger.owed
        error = float(np.abs(owed - own.residual).max()) / WEIGHT
        expect(error < TOLERANCE, f"the gateway lost or doubled up to {error} of its boards' work")

    def check_bounds(self) -> None:
        bundler = self.endpoint
        expect(len(bundler._asked) <= len(self.boards), "hellos pile up at the gateway")
        if bundler._downlink is not None:
            expect(len(bundler._downlink._waiting) <= 40, "objects pile up at the gateway")

    def where(self) -> object:
        b = self.endpoint
        return "down" if b is None else (b.version, b.pending and b.pending.round, b.is_refused)


@dataclass(frozen=True)
class Port:
    """One end of the gateway: frames of the host for `name`, or of the node `name` for the host."""

    gateway: GatewayProcess
    name: str

    def receive(self, source: str, frames: list[bytes]) -> None:
        bundler, now = self.gateway.endpoint, self.gateway.fleet.now
        if bundler is None:
            return
        if source == HOST:
            bundler.receive_down(self.name, frames, now)
        else:
            bundler.receive_up(source, frames, now)
        self.gateway.settle()
        self.gateway.may_crash(is_down=source == HOST)
