"""Somebody near the radios: what modems hear is bent, said again, and forged.

The enemy sits in the emulated modems' ears, so that each frame that one end hears too much or bent
is counted; the emulator, the dialect and everything above are as they are.
"""

import time
from collections import Counter
from collections.abc import Hashable
from typing import Any
from unittest import mock

import numpy as np

from bench.adversary_attacks import Attack
from bench.adversary_scenes import Scene, Stage, finish, refused_by_all
from bench.processes import FLEET, ProcessFleet, started
from ternmesh.wire.seal import HEAD_SIZE
from ternmesh_cli.demo.bearer import RADIO_RUN, Radios, on_radio
from ternmesh_cli.demo.fleet import BOARDS
from transports.serial_lora.coding import PREFIX
from transports.serial_lora.emulator import radios
from transports.serial_lora.emulator.modem import Action, EmulatedModem, Reception
from transports.serial_lora.rnode import HEADER
from transports.serial_lora.settings import ALL_ADDRESS

FLIP, TWICE, FORGE = "flip", "twice", "forge"
CHANCES = {FLIP: 0.06, TWICE: 0.12, FORGE: 0.12}
SPEED = 20.0
KEPT_MAX = 64  # payloads that are remembered
START = HEADER + PREFIX  # of a frame in a payload; what stands before says whose it is


class Ear:
    """A modem that hears what an enemy wants it to; see `EmulatedModem`."""

    def __init__(self, modem: EmulatedModem, address: int, seed: int) -> None:
        self._modem, self._address = modem, address
        self._rng = np.random.default_rng((seed, address))
        self.done, self._kept, self.is_on = Counter[str](), list[Reception](), True
        self.fail_next = modem.fail_next

    @property
    def tuning(self) -> Hashable:
        """See `EmulatedModem`."""
        return self._modem.tuning

    def power_up(self) -> list[Action]:
        """See `EmulatedModem`."""
        return self._modem.power_up()

    def receive_bytes(self, data: bytes) -> list[Action]:
        """See `EmulatedModem`."""
        return self._modem.receive_bytes(data)

    def transmitted(self) -> list[Action]:
        """See `EmulatedModem`."""
        return self._modem.transmitted()

    def paused(self) -> list[Action]:
        """See `EmulatedModem`."""
        return self._modem.paused()

    def hear(self, heard: Reception) -> list[Action]:
        """What has arrived, or something else, or more; only where it is for this modem's end."""
        actions = self._modem.hear(heard)
        to = heard.payload[HEADER]
        if not self.is_on or to not in (self._address, ALL_ADDRESS):
            return actions
        draw = float(self._rng.random())
        if draw < CHANCES[FLIP]:
            self.done[FLIP] += 1
            return self._modem.hear(self._bent(heard))
        if draw < CHANCES[FLIP] + CHANCES[TWICE] and self._kept:
            self.done[TWICE] += 1
            actions += self._modem.hear(self._kept[int(self._rng.integers(len(self._kept)))])
        elif draw < sum(CHANCES.values()):
            self.done[FORGE] += 1
            actions += self._modem.hear(self._forged(heard))
        self._kept = [*self._kept[1 - KEPT_MAX :], heard]
        return actions

    def _bent(self, heard: Reception) -> Reception:
        payload = bytearray(heard.payload)
        payload[int(self._rng.integers(START, len(payload)))] ^= 1 << int(self._rng.integers(8))
        return Reception(bytes(payload), heard.rssi_dbm, heard.snr_db)

    def _forged(self, heard: Reception) -> Reception:
        """Symbols, status and all else: a head as that of a real one, and a tag that is guessed."""
        head = heard.payload[: START + HEAD_SIZE]
        payload = head + self._rng.bytes(len(heard.payload) - len(head))
        return Reception(payload, heard.rssi_dbm, heard.snr_db)


def air(stage: Stage, *, is_peace: bool = False) -> Scene:
    """A whole run over emulated radios, with an enemy in every ear unless there is peace."""
    begun, ears = time.monotonic(), list[Ear]()
    real = radios.new_modem

    def new_modem(dialect: str, index: int, **more: Any) -> Ear:
        ears.append(Ear(real(dialect, index, **more), index, stage.seed))
        ears[-1].is_on = not is_peace
        return ears[-1]

    setting = Radios("rnode", speed=SPEED)
    with (
        mock.patch.object(radios, "new_modem", new_modem),
        on_radio(setting, BOARDS, FLEET) as links,
    ):
        run = {**stage.run, **RADIO_RUN}
        fleet = ProcessFleet(stage.folder / ("silence" if is_peace else "air"), links.table, run)
        with started(fleet):
            fleet.wait_version(stage.rounds, [*fleet.boards.values()])
            done = sum((ear.done for ear in ears), Counter[str]())
            for ear in ears:
                ear.is_on = False
            found = refused_by_all(fleet, done.total())
            note = ", ".join(f"{what} {count}" for what, count in sorted(done.items()))
            refused = min(done.total(), found.total())
            made = Attack("forged and bent radio frames", done.total(), refused, dict(found), note)
            return finish(stage, fleet, [] if is_peace else [made], begun)
