"""Frames that nobody should believe: what arrives from a hostile or broken neighbour."""

import random

import numpy as np

from ternmesh.federated.aggregation import encode_update
from ternmesh.plan import Plan
from ternmesh.wire import control, fragments
from ternmesh.wire.frame import BROADCAST, DOWN, UNASSIGNED, Header, seal_open
from ternmesh.wire.update import Manifest, write_manifest
from tests.sim.simledger import MODEL


class Hostile:
    """Draws frames; they may look well-formed and are worth nothing."""

    def __init__(self, rng: random.Random, plan: Plan) -> None:
        self.rng, self.plan = rng, plan
        ones = np.ones(plan.dimension, np.float32)
        self.good_share = encode_update(ones, MODEL, 0, plan)[0][0]

    def for_host(self, version: int, names: dict[int, str]) -> tuple[str, bytes]:
        """A frame that the host must refuse, whatever it knows, and who brings it."""
        rng = self.rng
        item = self.good_share
        stale = item[:1] + ((version + rng.choice((-1, 1, 30000))) % 65536).to_bytes(2, "little")
        header = Header(rng.choice((1, 2, 3)), rng.getrandbits(24))
        other = Manifest(version % 65536, b"othermod", 5, bytes(4), self.plan.up.count)
        hello = control.Hello("node0", bytes(8), b"othermod", bytes(8), 0, bytes(16), 5)
        match rng.randrange(7):
            case 0:
                return "mallory", rng.randbytes(rng.randrange(200))
            case 1:  # a good share of an old or future round, in the right name
                name = names.get(header.address, "mallory")
                return name, seal_open(header, stale + item[3:])
            case 2:  # a good share in another node's name
                return "mallory", seal_open(header, item)
            case 3:  # another model
                name = names.get(header.address, "mallory")
                return name, seal_open(header, write_manifest(other))
            case 4:  # nobody has this context
                return "node0", seal_open(Header(rng.randrange(100, 0x7FFE), 0), item)
            case 5:  # an absurd scale in the right round and name
                name = names.get(header.address, "mallory")
                low = (version % 65536).to_bytes(2, "little")
                absurd = item[:1] + low + item[3:5] + b"\xff\x9f" + item[7:]
                return name, seal_open(header, absurd)
            case _:  # a hello for another model, or in another node's name
                return rng.choice(("node0", "mallory")), seal_open(
                    Header(UNASSIGNED, 0), control.write_control(hello)
                )

    def for_node(self) -> bytes:
        """A frame that a node must survive: it may look well-formed and is worth nothing."""
        rng = self.rng
        fragment = fragments.split(rng.randbytes(rng.randrange(1, 9000)), self.plan.frame_mtu)
        word = "".join(rng.choices("abcdefghij", k=6))
        body = rng.choice(
            (
                rng.choice(fragment),
                control.write_control(control.Refusal(rng.getrandbits(8), word)),
                control.write_control(control.Announce(rng.randbytes(8), 3, 1, 0)),
                control.write_control(control.Receipt(rng.randrange(6), bytes(4), b"\xff")),
                rng.randbytes(rng.randrange(1, 100)),
            )
        )
        address = rng.choice((BROADCAST, UNASSIGNED, 1 | DOWN, 5))
        frame = seal_open(Header(address, rng.getrandbits(24)), body)
        return rng.randbytes(rng.randrange(80)) if rng.random() < 0.2 else frame
