"""Updates boards with MCUboot over SMP, on serial ports or UDP, by smpclient (imported here only).

An image goes to the second slot and is tried at the next start. Unless it is confirmed then,
MCUboot goes back to the one before.
"""

import asyncio
import logging
import struct
import termios
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import cbor2

from firmware_tools.errors import FirmwareError, NoAnswer
from firmware_tools.flash.image import (
    Image,
    Progress,
    Version,
    mcuboot_hash,
    read_version,
    reason,
    refuse_older,
    refuse_other,
    text_of,
)
from transports.base import MissingExtra

try:
    from smp.error import Err, ErrorV1, ErrorV2
    from smp.exceptions import SMPException
    from smpclient import SMPClient
    from smpclient.exceptions import SMPClientException, SMPUploadError
    from smpclient.generics import success
    from smpclient.requests.image_management import ImageStatesRead, ImageStatesWrite
    from smpclient.requests.os_management import OSApplicationInfoRead, ResetWrite
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
    *(ValueError, KeyError, TypeError, AssertionError, struct.error),
    *(cbor2.CBORError, termios.error),
)
for _name in ("smp", "smpclient"):  # what they log is told in our sentences
    logging.getLogger(_name).addHandler(logging.NullHandler())
UDP = "udp:"  # how an address begins that is no serial port
CONNECT_S, ANSWER_S, ERASE_S, LOOK_S = 5.0, 4.0, 40.0, 1.0
RESTART_S = 180.0  # MCUboot swaps a large image before it starts it
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

    Called again it goes on from where it was, also within the upload.
    """
    digest = mcuboot_hash(image.data)

    async def upload(client: SMPClient) -> None:
        refuse_other(image, await _board(client))
        found = await _slots(client)
        running = _running(found)
        if running.digest == digest:
            return
        refuse_older(image, running.version)
        if digest not in [slot.digest for slot in found]:
            await _upload(client, image, progress)
        await _start(client, digest)

    try:
        _run(address, upload)
        _confirm(address, digest, image.label, restart_s)
    except KeyboardInterrupt as error:
        raise FirmwareError(
            "interrupted: the running firmware is as it was, or comes back at a later start; give "
            "this command again, and it goes on from there"
        ) from error
    return "it was started, answers and is confirmed"


def revert(address: str, *, restart_s: float = RESTART_S) -> str:
    """Start the image in the other slot and confirm it; the sentence about it. FirmwareError."""

    async def back(client: SMPClient) -> Slot:
        found = await _slots(client)
        other = next((slot for slot in found if not slot.active), None)
        if other is None:
            raise FirmwareError("the board has no other image: upload one with `firmware flash`")
        if _running(found).confirmed:
            await _start(client, other.digest)
        else:  # a restart alone goes back
            await _restart(client)
        return other

    other = _run(address, back)
    label = text_of(other.version) if other.version else "the other image"
    _confirm(address, other.digest, label, restart_s)
    return f"the board runs {label}, and it is confirmed"


async def _upload(client: SMPClient, image: Image, progress: Progress) -> None:
    as_it_was = "the running firmware is as it was"
    try:
        async for offset in client.upload(
            image.data, first_timeout_s=ERASE_S, subsequent_timeout_s=ANSWER_S
        ):
            progress(offset, len(image.data))
    except SMPUploadError as error:
        why = _code(error.args[0])
        raise FirmwareError(f"the board refuses the upload ({why}): {as_it_was}") from error
    except _FAULTS as error:
        raise FirmwareError(
            f"the upload broke off ({reason(error)}): {as_it_was}; give this command again, and it "
            "goes on from there"
        ) from error
    if mcuboot_hash(image.data) not in [slot.digest for slot in await _slots(client)]:
        raise FirmwareError(
            f"the board does not hold {image.label} after the upload: give this command again; "
            f"{as_it_was}"
        )


async def _start(client: SMPClient, digest: bytes) -> None:
    """Restart a board into the image of a slot, on trial: one that fails is left by a restart."""
    if not any(slot.pending and slot.digest == digest for slot in await _slots(client)):
        await _ask(client, ImageStatesWrite(hash=digest))
    await _restart(client)


async def _restart(client: SMPClient) -> None:
    with suppress(*_FAULTS):  # the board may restart before it has answered
        await _ask(client, ResetWrite())


def _confirm(address: str, digest: bytes, label: str, restart_s: float) -> None:
    """Wait until a board runs an image, and confirm it; FirmwareError where it runs another."""

    async def settled(client: SMPClient) -> Slot:
        """What runs after the restart. FirmwareError before it, and from a recovery loader."""
        found = await _slots(client)
        running = _running(found)
        is_other_trial = running.digest != digest and not running.confirmed
        if is_other_trial or any(slot.pending for slot in found):
            raise FirmwareError("it has not restarted")
        return running

    end = time.monotonic() + restart_s
    while True:
        time.sleep(LOOK_S)
        try:
            running = _run(address, settled)
            break
        except FirmwareError as error:
            if time.monotonic() > end:
                raise NoAnswer(
                    f"the board does not run {label} after {restart_s:g} s ({error}): switch it "
                    "off and on, and see what it runs with `ternmesh firmware slots`: MCUboot "
                    "goes back to the one before"
                ) from error
    if running.digest != digest:
        raise FirmwareError(
            f"the board did not start {label} and runs "
            f"{text_of(running.version) if running.version else 'another'} again: is the image "
            "signed with the key that its bootloader knows?"
        )
    if not running.confirmed:
        _run(address, lambda client: _ask(client, ImageStatesWrite(confirm=True)))


def _run(address: str, work: Callable[[SMPClient], Awaitable[T]]) -> T:
    """What `work` returns of a board; NoAnswer where there is none."""

    async def connected() -> T:
        async with _client(address) as client:
            return await work(client)

    try:
        return asyncio.run(connected())
    except _FAULTS as error:
        raise NoAnswer(
            f"no board answers SMP on {address} ({reason(error)}): is it connected, does its "
            "firmware have MCUmgr, and is the port free?"
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
        with suppress(*_FAULTS):
            await client.disconnect()


async def _ask(client: SMPClient, request: Any) -> Any:
    """The answer to a request; FirmwareError where the board refuses it."""
    answer = await client.request(request)
    if not success(answer):
        raise FirmwareError(f"the board refuses {type(request).__name__} ({_code(answer)})")
    return answer


def _code(answer: object) -> str:
    """The name of what a board answers in place of a result."""
    match answer:
        case ErrorV1(rc=code) | ErrorV2(err=Err(rc=code)):
            return str(code.name)
    return str(answer).partition(":")[0]  # smpclient's words, before the whole answer


def _running(found: list[Slot]) -> Slot:
    for slot in found:
        if slot.active:
            return slot
    raise FirmwareError(
        "the board does not say which firmware runs: is this its recovery loader? Restart it, and "
        "give this command again"
    )


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
