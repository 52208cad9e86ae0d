"""Emulated radio modems on pseudo-terminals, joined by an emulated channel.

Radio time runs `speed` times faster than the wall clock. One thread does everything.
"""

import random
import select
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ternmesh.link.airtime import LoraSetting
from transports.serial_lora.emulator.channel import EmulatedChannel
from transports.serial_lora.emulator.ebyte import EbyteModem
from transports.serial_lora.emulator.line import SerialLine
from transports.serial_lora.emulator.meshcore import MeshcoreModem
from transports.serial_lora.emulator.meshtastic import MeshtasticModem
from transports.serial_lora.emulator.modem import Action, EmulatedModem, Output, Pause, Reception
from transports.serial_lora.emulator.rnode import RnodeModem
from transports.serial_lora.send_queue import Waker

MODEMS_MAX = 255
WAIT_S = 1.0
LONG_FAST = LoraSetting(11, 250, 1, 16)  # Meshtastic's factory setting


def new_modem(dialect: str, index: int, *, radio: LoraSetting = LONG_FAST) -> EmulatedModem:
    """A modem of this dialect; `radio` is for those that the host does not tune."""
    makers: dict[str, Callable[[], EmulatedModem]] = {
        "ebyte": EbyteModem,
        "meshtastic": lambda: MeshtasticModem(0x7E500000 + index, radio),
        "rnode": RnodeModem,
        "meshcore": lambda: MeshcoreModem(radio),
    }
    if dialect not in makers:
        raise ValueError(f"there is no emulated modem for {dialect!r}")
    return makers[dialect]()


class EmulatedRadios:
    """Some modems; hosts may open `paths` from `start` until `close`."""

    def __init__(
        self,
        modems: list[EmulatedModem],
        *,
        speed: float = 1.0,
        loss: float = 0.0,
        seed: int = 0,
        folder: Path | None = None,
        hops: int = 0,
    ) -> None:
        """`hops`: repeaters in a row between the first modem and all others."""
        if not 0 < len(modems) <= MODEMS_MAX or not 0 <= loss <= 1 or not speed > 0:
            raise ValueError(f"1 to {MODEMS_MAX} modems, a loss of 0 to 1, and a speed above 0")
        self.modems = modems
        self.speed = speed
        self.folder = folder or Path(tempfile.mkdtemp(prefix="ternmesh-radios-"))
        self.paths = [str(self.folder / f"modem-{index}") for index in range(len(modems))]
        self._owns_folder = folder is None
        self._channel = EmulatedChannel(random.Random(f"{seed} air"), loss, hops)
        self._lines = [SerialLine(Path(path)) for path in self.paths]
        self._pauses: dict[int, float] = {}  # their ends in radio time, by modem
        self._stop = threading.Event()
        self._waker = Waker()
        self._thread = threading.Thread(target=self._run, name="radios", daemon=True)

    def __enter__(self) -> "EmulatedRadios":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Plug all modems in; OSError where terminals or paths cannot be made."""
        try:
            for index in range(len(self.modems)):
                self._plug(index)
        except OSError:
            self._unplug_all()
            raise
        self._thread.start()

    def close(self) -> None:
        """Pull all modems out and remove the paths; may be called twice."""
        self._stop.set()
        self._waker.wake()
        if self._thread.ident is not None:
            self._thread.join()
        if self._owns_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._step()
        finally:
            self._unplug_all()
            self._waker.close()

    def _step(self) -> None:
        plugged = [line for line in self._lines if line.plugged]
        reading: list[SerialLine | Waker] = [line for line in plugged if line.reads]
        stuck = [line for line in plugged if line.stuck]
        ready, room, _ = select.select([*reading, self._waker], stuck, [], self._wait_s())
        if self._waker in ready:
            self._waker.clear()
        for index, line in enumerate(self._lines):
            if line in ready and line.plugged:
                self._act(index, self.modems[index].receive_bytes(line.read()))
        self._run_air(self._now())
        for line in room:
            line.flush()

    def _wait_s(self) -> float:
        """Until the next thing is due, in seconds of the wall clock."""
        now_s = time.monotonic()
        ends = [self._channel.next_end(), *self._pauses.values()]
        due = [end / self.speed for end in ends if end is not None]
        return min(WAIT_S, max(0.0, min(due, default=now_s + WAIT_S) - now_s))

    def _now(self) -> float:
        return time.monotonic() * self.speed

    def _run_air(self, now: float) -> None:
        for index in [index for index, end in self._pauses.items() if end <= now]:
            del self._pauses[index]
            self._act(index, self.modems[index].paused())
        while (over := self._channel.finish(now)) is not None:
            if over.sender >= 0:
                self._act(over.sender, self.modems[over.sender].transmitted())
            self._channel.repeat(over)
            payload = over.transmit.payload
            for index, modem in enumerate(self.modems):
                near = self._channel.reaches(over.sender, index)
                listening = near and index != over.sender and self._lines[index].plugged
                if listening and modem.tuning == over.tuning and self._channel.arrives():
                    self._act(index, modem.hear(Reception(payload, *self._channel.quality())))

    def _act(self, index: int, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Output(data):
                    self._lines[index].write(data)
                case Pause(seconds):
                    self._pauses[index] = self._now() + seconds
                case _:
                    tuning = self.modems[index].tuning
                    self._channel.start(index, tuning, action, self._now())

    def _plug(self, index: int) -> None:
        if not self._lines[index].plugged:
            self._lines[index].plug()
            self._act(index, self.modems[index].power_up())

    def _unplug_all(self) -> None:
        for line in self._lines:
            line.unplug()
