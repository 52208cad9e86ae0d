"""Boards that tests flash: an ESP32-C3, MCUboot with MCUmgr, the drive of a UF2 bootloader.

Each is simulated on a pseudo-terminal or in a folder, and may fail on request.
"""

import hashlib
import os
import pty
import select
import struct
import threading
import tty
import zlib
from collections.abc import Iterator
from pathlib import Path

import cbor2
from smp import packet

FLASH = 1 << 22
ESP32_C3, FLASH_ID = 5, 0x1640EF
SPI_DATA = 0x60002058  # the register from which esptool reads what the flash memory answers
CRYPT_COUNT, IS_ENCRYPTED = 0x60008834, 1 << 18


class Board(threading.Thread):
    """A thread that answers on a pseudo-terminal until it is unplugged."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._master, slave = pty.openpty()
        tty.setraw(slave)
        self.port = os.ttyname(slave)
        self._slave = slave  # held open, as else a read fails between two programs
        self._ended = self._stopped = False

    def run(self) -> None:
        while not (self._ended or self._stopped):
            if select.select([self._master], [], [], 0.05)[0]:
                try:
                    self.take(os.read(self._master, 4096))
                except OSError:
                    return

    def take(self, data: bytes) -> None:
        raise NotImplementedError

    def send(self, data: bytes) -> None:
        if not self._ended:
            os.write(self._master, data)

    def unplug(self) -> None:
        """Answer no more: whoever has the port open gets an error."""
        if not self._ended:
            self._ended = True
            os.close(self._slave)
            os.close(self._master)

    def close(self) -> None:
        self._stopped = True
        self.join()
        self.unplug()


class EspChip(Board):
    """The ROM loader of an ESP32-C3, then the flasher that esptool loads into its memory."""

    def __init__(
        self,
        chip: int = ESP32_C3,
        fails_after: int = -1,
        spoils: bool = False,
        encrypts: bool = False,
        stays: bool = False,
    ) -> None:
        super().__init__()
        self.flash = bytearray(b"\xff" * FLASH)
        self.restarts = 0
        self._chip, self._left, self._spoils, self._stays = chip, fails_after, spoils, stays
        self._registers = {SPI_DATA: FLASH_ID, CRYPT_COUNT: IS_ENCRYPTED if encrypts else 0}
        self._is_stub, self._buffer, self._reads = False, b"", 0
        self._at, self._zip = 0, zlib.decompressobj()

    def restart(self, _chip: object, mode: str) -> None:
        """What the RTS line does, which a pseudo-terminal does not have."""
        if self._stays:
            raise OSError(5, "Input/output error")
        assert mode == "hard-reset"
        self.restarts += 1
        self._is_stub = False

    def take(self, data: bytes) -> None:
        *frames, self._buffer = (self._buffer + data).split(b"\xc0")
        for frame in filter(None, frames):
            self._frame(frame.replace(b"\xdb\xdc", b"\xc0").replace(b"\xdb\xdd", b"\xdb"))

    def _slip(self, data: bytes) -> None:
        self.send(
            b"\xc0" + data.replace(b"\xdb", b"\xdb\xdd").replace(b"\xc0", b"\xdb\xdc") + b"\xc0"
        )

    def _answer(self, op: int, data: bytes = b"", value: int = 0) -> None:
        status = bytes(2 if self._is_stub else 4)
        self._slip(struct.pack("<BBHI", 1, op, len(data + status), value) + data + status)

    def _frame(self, frame: bytes) -> None:
        if self._reads and len(frame) == 4:  # flash memory that was read has arrived
            self._reads = 0
            return
        op, body = frame[1], frame[8:]
        numbers = struct.unpack(f"<{len(body) // 4}I", body[: len(body) // 4 * 4])
        if op == 0x08:
            for _ in range(8):
                self._answer(op, value=0 if self._is_stub else 0x20120707)
        elif op == 0x14:
            self._answer(op, struct.pack("<IB7sII", 0, 0, bytes(7), self._chip, 0))
        elif op == 0x0A:
            self._answer(op, value=self._registers.get(numbers[0], 0))
        elif op == 0x06 and not self._is_stub:
            self._answer(op)
            self._is_stub = True
            self._slip(b"OHAI")
        elif op == 0xD2:
            self._answer(op)
            self._reads = 1
            part = bytes(self.flash[numbers[0] : numbers[0] + numbers[1]])
            self._slip(part)
            self._slip(hashlib.md5(part).digest())
        elif op == 0x10:
            self._at, self._zip = numbers[3], zlib.decompressobj()
            self._answer(op)
        elif op == 0x11:
            self._write(self._zip.decompress(body[16:]))
            self._answer(op)
        elif op == 0x13:
            part = bytes(self.flash[numbers[0] : numbers[0] + numbers[1]])
            self._answer(op, hashlib.md5(part).digest())
        else:  # registers, memory, settings of the flash memory, the rate
            self._answer(op)

    def _write(self, data: bytes) -> None:
        if self._left == 0:
            self.unplug()
        self._left -= 1
        if self._spoils:
            data = bytes([data[0] ^ 1]) + data[1:]
        self.flash[self._at : self._at + len(data)] = data
        self._at += len(data)


class McubootBoard(Board):
    """A board with MCUboot, which swaps slots, and an application with MCUmgr."""

    def __init__(self, running: bytes, digest: bytes, board: str = "nrf52840dk") -> None:
        super().__init__()
        self.slots: list[tuple[bytes, bytes] | None] = [(digest, running), None]
        self.confirmed, self.pending, self.permanent = True, False, False
        self.accepts, self.hangs, self.hangs_after_start = True, False, False
        self.unplugged_at = -1
        self.garbage = b""  # before each answer
        self.body = b""  # in place of that of each answer
        self.loses: set[tuple[int, int, int]] = set()  # op, group, command: one answer each
        self.refuses = 0  # an error code (img_mgmt_err_code_t) for each request that writes
        self.late = 0  # so often it tells its slots after an order to restart, before it does
        self.recovers = 0  # so often a recovery loader tells them, before the application does
        self._due = 0
        self.received = 0  # bytes of uploads
        self._board, self._partial, self._size, self._key = board, b"", 0, b""
        self._reader = packet.decode()
        next(self._reader)
        self._lines = b""

    def power_cycle(self) -> None:
        """What MCUboot does at a start."""
        self.hangs = False
        if (self.pending and self.accepts) or not (self.pending or self.confirmed):
            self.confirmed = self.permanent or not self.pending
            self.slots.reverse()
        self.pending = self.permanent = False

    def take(self, data: bytes) -> None:
        *lines, self._lines = (self._lines + data).split(b"\n")
        for line in lines:
            try:
                self._reader.send(line + b"\n")
            except StopIteration as found:
                self._reader = packet.decode()
                next(self._reader)
                self._message(found.value)

    def _message(self, message: bytes) -> None:
        op, _, _, group, sequence, command = struct.unpack("!BBHHBB", message[:8])
        if self.hangs:
            return
        asked = cbor2.loads(message[8:])
        said = self._image(op & 7, command, asked) if group == 1 else self._os(command, asked)
        if said is None:
            return
        if (op & 7, group, command) in self.loses:
            self.loses.remove((op & 7, group, command))
            return
        body = self.body or cbor2.dumps(said)
        head = struct.pack(
            "!BBHHBB", (op & ~7) | (op & 7) + 1, 0, len(body), group, sequence, command
        )
        self.send(self.garbage)
        for line in packet.encode(head + body):
            self.send(line)

    def _os(self, command: int, asked: dict) -> dict | None:
        if command == 5:
            self._due = self.late
            if not self._due:
                self._restart()
        return {0: {"r": asked.get("d", "")}, 5: {}, 6: {"buf_size": 384, "buf_count": 4},
                7: {"output": self._board}}.get(command, {"rc": 8})  # fmt: skip

    def _restart(self) -> None:
        before = self.slots[0]
        self.power_cycle()
        self.hangs = self.hangs_after_start and self.slots[0] != before

    def _image(self, op: int, command: int, asked: dict) -> dict | None:
        if op == 2 and self.refuses:
            return {"err": {"group": 1, "rc": self.refuses}}
        if command == 1:
            return self._upload(asked)
        if op == 2:
            wanted = asked.get("hash")
            if wanted is None or (self.slots[0] and wanted == self.slots[0][0]):
                self.confirmed = True
            elif self.pending or not self.confirmed:
                return {"err": {"group": 1, "rc": 28}}
            elif self.slots[1] and wanted == self.slots[1][0]:
                self.pending, self.permanent = True, bool(asked.get("confirm"))
            else:
                return {"rc": 3}
        states = list(self._states())
        if self._due:
            self._due -= 1
            if not self._due:
                self._restart()
        elif self.recovers:
            self.recovers -= 1
        return {"images": states}

    def _states(self) -> Iterator[dict]:
        is_recovery = self.recovers and not self._due
        for number, slot in enumerate(self.slots):
            if slot is None:
                continue
            *numbers, build = struct.unpack_from("<BBHI", slot[1], 20)
            version = ".".join(map(str, [*numbers, build] if build else numbers))
            yield {
                "slot": number, "version": version, "hash": slot[0], "bootable": True,
                "active": number == 0 and not is_recovery,
                "confirmed": number == 0 and self.confirmed,
                "pending": number == 1 and self.pending,
            }  # fmt: skip

    def _upload(self, asked: dict) -> dict | None:
        if asked["off"] == 0:
            key = bytes(asked["sha"])
            if key != self._key or not self._partial:
                self._key, self._partial, self._size = key, b"", asked["len"]
            elif self._partial:
                return {"off": len(self._partial)}
        if asked["off"] == len(self._partial):
            self._partial += asked["data"]
            self.received += len(asked["data"])
        if 0 <= self.unplugged_at <= len(self._partial):
            self.unplugged_at = -1
            return None
        if len(self._partial) == self._size:
            header, protected, size = struct.unpack_from("<HHI", self._partial, 8)
            digest = hashlib.sha256(self._partial[: header + protected + size]).digest()
            self.slots[1] = digest, self._partial
            self._partial = b""
            return {"off": self._size, "match": True}
        return {"off": len(self._partial)}


class Uf2Drive(threading.Thread):
    """The drive of a bootloader: it goes away once it has all blocks of an image.

    With a `device` only that file goes away, and the folder shows what it had.
    """

    def __init__(
        self, folder: Path, board: str, size: int, *, takes: bool = True, device: Path | None = None
    ) -> None:
        super().__init__(daemon=True)
        self.folder = folder
        self.held = b""
        self._size, self._takes, self._device = size, takes, device
        self._end = threading.Event()
        (folder / "INFO_UF2.TXT").write_text(f"UF2 Bootloader v3.0\r\nBoard-ID: {board}\r\n")

    def run(self) -> None:
        while not self._end.wait(0.02):
            for path in self.folder.glob("*.uf2"):
                if self._takes and path.stat().st_size == self._size:
                    self.held = path.read_bytes()
                    if self._device is not None:  # a mount that nothing has removed
                        self._device.unlink()
                        return
                    path.unlink()
                    (self.folder / "INFO_UF2.TXT").unlink()
                    return

    def close(self) -> None:
        self._end.set()
        self.join()
