"""Updates boards with MCUboot over SMP, on serial ports or UDP, by smpclient (imported here only).

An image goes to the second slot and is tried at the next start. Unless it is confirmed then,
MCUboot goes back to the one before.
"""

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from firmware_tools.errors import FirmwareError, NoAnswer
from firmware_tools.flash.image import (
    Image,
    Progress,
    Version,
    mcuboot_hash,
    read_version,
    refuse_older,
    refuse_other,
    text_of,
)
from transports.base import MissingExtra

try:
    from smp.exceptions import SMPException
    from smpclient import SMPClient
    from smpclient.exceptions import SMPClientException
    from smpclient.generics import success
    from smpclient.requests.image_management import ImageStatesRead, ImageStatesWrite
    from smpclient.requests.os_management import EchoWrite, OSApplicationInfoRead, ResetWrite
    from smpclient.transport import SMPTransportDisconnected
    from smpclient.transport.serial.encoded import SMPSerialTransport
    from smpclient.transport.udp import SMPUDPTransport
except ImportError as error:
    raise MissingExtra(
        "boards with MCUboot need the package smpclient: pip install 'ternmesh[flash]'"
    ) from error

# What a board that is gone, or sends garbage, makes of a request.
_FAULTS: tuple[type[Exception], ...] = (
    *(SMPClientException, SMPException, SMPTransportDisconnected, OSError, TimeoutError),
    *(ValueError, KeyError, struct.error),
)
UDP = "udp:"  # how an address begins that is no serial port
CONNECT_S, ANSWER_S, ERASE_S, RESTART_S, LOOK_S = 5.0, 4.0, 40.0, 60.0, 1.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Slot:
    """What one of the two slots of a board holds."""

    number: int
    version: Version | None
    digest: bytes
    active: bool
    confirmed: bool
    pending: bool  # it starts next


def slots(address: str) -> list[Slot]:
    """The slots of a board; FirmwareError."""
    return _run(address, _slots)


def flash(image: Image, address: str, progress: Progress, *, restart_s: float = RESTART_S) -> str:
    """Upload an image, start it, and confirm it once it answers. FirmwareError.

    An upload that broke off goes on where the board has it up to.
    """
    digest = mcuboot_hash(image.data)

    async def upload(client: SMPClient) -> bool:
        """Whether the image is to be started."""
        refuse_other(image, await _board(client))
        before = await _slots(client)
        running = next((slot for slot in before if slot.active), None)
        if running is not None and running.digest == digest:
            return False
        refuse_older(image, running.version if running else None)
        try:
            async for offset in client.upload(
                image.data, first_timeout_s=ERASE_S, subsequent_timeout_s=ANSWER_S
            ):
                progress(offset, len(image.data))
        except _FAULTS as error:
            raise FirmwareError(
                f"the upload to {address} broke off ({error}): the running firmware is as it was; "
                "give this command again, and it goes on from there"
            ) from error
        if digest not in [slot.digest for slot in await _slots(client)]:
            raise FirmwareError(
                f"the board does not hold {image.label} after the upload: give this command again; "
                "the running firmware is as it was"
            )
        await _ask(client, ImageStatesWrite(hash=digest))
        await _ask(client, ResetWrite())
        return True

    async def confirm(client: SMPClient) -> None:
        running = next((slot for slot in await _slots(client) if slot.active), None)
        if running is None or running.digest != digest:
            raise FirmwareError(
                f"the board did not start {image.label} and runs "
                f"{text_of(running.version) if running and running.version else 'another'} again: "
                "is the image signed with the key that its bootloader knows?"
            )
        if not running.confirmed:
            await _ask(client, ImageStatesWrite(confirm=True))

    if _run(address, upload):
        _await_restart(address, image, restart_s)
    _run(address, confirm)
    return "it was started, answers and is confirmed"


def revert(address: str) -> str:
    """Start the image in the other slot again, for good; the sentence about it. FirmwareError."""

    async def back(client: SMPClient) -> str:
        found = await _slots(client)
        other = next((slot for slot in found if not slot.active), None)
        if other is None:
            raise FirmwareError("the board has no other image: upload one with `firmware flash`")
        running = next((slot for slot in found if slot.active), None)
        if running is None or running.confirmed:  # else a restart alone goes back
            await _ask(client, ImageStatesWrite(hash=other.digest, confirm=True))
        await _ask(client, ResetWrite())
        return f"the board starts {text_of(other.version) if other.version else 'the other image'}"

    return _run(address, back)


def _await_restart(address: str, image: Image, restart_s: float) -> None:
    """Wait until the board answers again; NoAnswer."""

    async def echo(client: SMPClient) -> None:
        await _ask(client, EchoWrite(d="ternmesh"))

    end = time.monotonic() + restart_s
    while True:
        time.sleep(LOOK_S)
        try:
            return _run(address, echo)
        except NoAnswer as error:
            if time.monotonic() > end:
                raise NoAnswer(
                    f"the board does not answer {restart_s:g} s after it should have started "
                    f"{image.label}: switch it off and on, and MCUboot starts the one before again"
                ) from error


def _run(address: str, work: Callable[[SMPClient], Awaitable[T]]) -> T:
    """What `work` returns of a board; NoAnswer where there is none."""

    async def connected() -> T:
        async with _client(address) as client:
            return await work(client)

    try:
        return asyncio.run(connected())
    except _FAULTS as error:
        raise NoAnswer(
            f"no board answers SMP on {address} ({error}): is it connected, does its firmware have "
            "MCUmgr, and is the port free?"
        ) from error


@asynccontextmanager
async def _client(address: str) -> AsyncIterator[SMPClient]:
    if address.startswith(UDP):
        transport: Any = SMPUDPTransport()
    else:
        transport = SMPSerialTransport(exclusive=True)
    client = SMPClient(transport, address.removeprefix(UDP), ANSWER_S)
    await client.connect(CONNECT_S)
    try:
        yield client
    finally:
        await client.disconnect()


async def _ask(client: SMPClient, request: Any) -> Any:
    """The answer to a request; FirmwareError where the board refuses it."""
    answer = await client.request(request)
    if not success(answer):
        raise FirmwareError(f"the board refuses {type(request).__name__}: {answer}")
    return answer


async def _board(client: SMPClient) -> str:
    """Zephyr's name of a board, which is the last word of its hardware platform."""
    answer = await _ask(client, OSApplicationInfoRead(format="i"))
    return str(answer.output.split()[-1]) if answer.output.split() else "unknown"


async def _slots(client: SMPClient) -> list[Slot]:
    answer = await _ask(client, ImageStatesRead())
    return [
        Slot(
            item.slot,
            read_version(item.version),
            bytes(item.hash or b""),
            bool(item.active),
            bool(item.confirmed),
            bool(item.pending),
        )
        for item in answer.images
        if not item.image
    ]
