"""The checks of `ternmesh doctor`. Each yields results; an error of ours counts as one, too."""

import math
import os
import secrets
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from edge.enrolment import KNOWN, ask_host
from ternmesh.federated.refusals import NO_ANSWER, why
from ternmesh.security.identity import Role
from ternmesh.security.membership import found_fleet
from ternmesh_cli.setup import SERIAL, SYSTEMD
from ternmesh_service import commands
from ternmesh_service.alarms import BAD, DOCTOR, SOURCE, alarms
from ternmesh_service.config_file import load_model_package, package_folder
from ternmesh_service.identity_file import check_owner, read_identity_file
from ternmesh_service.status import BoardStatus, Status
from ternmesh_store.state_file import StateFile
from transports.base import HOST
from transports.factory import is_linked
from transports.link_config import LinkConfig, link_settings
from transports.mqtt.tls import check_certificate
from transports.mqtt.transport import MqttTransport
from transports.serial_lora.airtime_budget import read_moment
from transports.serial_lora.settings import tcp_address

OK, WARNING, WRONG = "ok", "warning", "wrong"
DAY_S = 86_400.0
FUTURE_S = 10 * 365 * DAY_S  # after the newest file of ours
FREE_MIN, FREE_FEW = 16 << 20, 128 << 20  # bytes
FULL_DAYS, FAR_DAYS = 30, 10_000
BROKER_S = 5.0  # for a connection, perhaps with another MQTT version after the first
SYSTEMCTL_S = 10.0

STRANGER = ("revoked", "other host", "unknown key", "wrong model")  # what the host may say
SHOWN = 12  # hex digits of a key
RESTORE = "bring a copy back (`ternmesh restore`)"
SETUP = "`ternmesh setup`"

Result = tuple[str, str]  # and what it means, with what to do


@dataclass(frozen=True, slots=True)
class Subject:
    """What is checked: the settings, as far as they can be read, and the running program."""

    path: Path
    now: float  # seconds since 1970, by the clock of this machine
    end: Any  # keys.End; None for settings without a name, say
    config: Any  # of a node, host or gateway; None for wrong ones
    status: Status | None  # of the running program; None where none runs
    error: str = ""  # of the settings
    silence: str = ""  # why a program that is there does not answer

    @property
    def kind(self) -> str:
        """What the program is; also the name of its settings and unit."""
        return str(self.end.program)

    @property
    def is_unit(self) -> bool:
        """Whether a unit of systemd runs it."""
        return SYSTEMD.is_dir() and self.path.resolve() == commands.SETTINGS / f"{self.kind}.toml"

    def bearers(self) -> Iterator[tuple[str, LinkConfig]]:
        """Each bearer with the role of this end on it."""
        if self.kind == "host":
            yield from ((HOST, one) for one in self.config.link.bearers().values())
            if self.config.upstream.url:
                yield self.end.name, replace(self.config.upstream, fleet=self.config.link.fleet)
        elif self.kind == "gateway":
            yield from ((HOST, one) for one in self.config.radio.bearers().values())
            yield from ((board, self.config.network) for board in self.config.boards[:1])
        else:
            yield from ((self.end.name, one) for one in self.config.link.bearers().values())


def settings(subject: Subject) -> Iterator[Result]:
    if subject.error:
        yield WRONG, subject.error
    else:
        yield OK, f"{subject.path}: {subject.kind} {subject.end.name} of {subject.end.fleet}"


def clock(subject: Subject) -> Iterator[Result]:
    """Certificates, and the hours of the radio law, need the right time."""
    folder = [] if subject.end is None else [subject.end.folder]
    files = [path for path in (Path(__file__), subject.path, *folder) if path.exists()]
    newest = max(files, key=lambda path: path.stat().st_mtime)
    age_s = subject.now - newest.stat().st_mtime
    shown = f"{datetime.fromtimestamp(subject.now, UTC):%Y-%m-%d %H:%M} UTC"
    if not -DAY_S < age_s < FUTURE_S:
        far = "before" if age_s < 0 else "years after"
        yield WRONG, f"it is {shown} here, {far} {newest}: set the clock (`timedatectl set-ntp 1`)"
    elif read_moment().wall_s is None:
        yield WARNING, f"{shown}, but nothing synchronises the clock: `timedatectl set-ntp 1`"
    else:
        yield OK, f"{shown}, synchronised"


def disk(subject: Subject) -> Iterator[Result]:
    """The room, and the days until it is used, at the mean rate since the keys were made."""
    folder = subject.end.folder
    place = next(path for path in (folder, *folder.parents) if path.exists())
    filesystem = os.statvfs(place)
    free = filesystem.f_bavail * filesystem.f_frsize
    identity, days = subject.end.security.path(folder), math.inf
    if identity.exists() and (age_s := subject.now - identity.stat().st_mtime) > DAY_S:
        used = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        days = free / max(1, used) * age_s / DAY_S
    when = "" if days > FAR_DAYS else f", full in {days:.0f} days at the rate so far"
    if filesystem.f_flag & os.ST_RDONLY:
        yield WRONG, f"{place} is read-only: after errors of a card that is so, so replace the card"
    elif free < FREE_MIN or (filesystem.f_files and not filesystem.f_favail):
        yield WRONG, f"{place} has {free >> 20} MiB and {filesystem.f_favail} files left: make room"
    elif free < FREE_FEW or days < FULL_DAYS:
        yield WARNING, f"{free >> 20} MiB free{when}: make room"
    else:
        yield OK, f"{free >> 20} MiB free{when}"


def state(subject: Subject) -> Iterator[Result]:
    """Only the program's user may use the folder of its state."""
    folder = subject.end.folder
    if not folder.exists():
        yield WARNING, f"{folder} is not there: after a lost disk {RESTORE}; else {SETUP} makes it"
        return
    info = folder.stat()
    mend = f"sudo chown -R USER: {folder}, USER being that of the program"
    if not folder.is_dir():
        yield WRONG, f"{folder} is no folder: choose another state_dir"
    elif not os.access(folder, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
        yield WRONG, f"user {os.geteuid()} may not write {folder} of user {info.st_uid}: {mend}"
    elif strange := [one for one in folder.iterdir() if one.lstat().st_uid != info.st_uid]:
        yield WRONG, f"{strange[0]} belongs to another user than its folder: {mend}"
    elif info.st_mode & 0o077:
        yield WRONG, f"others may use {folder}: chmod 700 {folder}"
    else:
        yield OK, f"{folder} is for its user alone"


def keys(subject: Subject) -> Iterator[Result]:
    end = subject.end
    if subject.kind == "gateway" and subject.config and not _ports(subject):
        return  # a gateway of BLE has no keys
    security = subject.status and subject.status.security
    if end.security.insecure or (security and security.is_insecure):
        yield WARNING, "anyone who reaches the link may send: take `insecure` away and enrol"
        return
    path = end.security.path(end.folder)
    own = read_identity_file(path)
    check_owner(path, own, end.name, end.role)
    if end.role is Role.HOST and subject.config and subject.config.agreement.voters:
        from host.voting import read_own

        read_own(subject.config)
    enrolled = StateFile(end.folder).stored_fleet()
    if enrolled is None:
        how = f"{SETUP} and `ternmesh enrol` say how it joins"
        yield WRONG, f"{end.name} belongs to no fleet: {how}"
    elif found_fleet(end.fleet, enrolled.hosts).fleet != enrolled.fleet:
        yield WRONG, f"the keys are not of fleet {end.fleet!r}: correct link.fleet, or enrol again"
    else:
        trusts = enrolled.hosts.present.fingerprint.hex()[:SHOWN]
        host = "" if end.role is Role.HOST else f", trusts the host {trusts}"
        yield OK, f"{own.public.fingerprint.hex()[:SHOWN]} of {end.fleet}{host}"


def _ports(subject: Subject) -> list[tuple[str, LinkConfig]]:
    return [(role, link) for role, link in subject.bearers() if link.serial]


def program(subject: Subject) -> Iterator[Result]:
    """What the running program says: its alarms."""
    if subject.silence:
        yield WRONG, subject.silence
    elif subject.status is None:
        yield OK, "it does not run"
    else:
        yield OK, "it runs; `ternmesh status` shows more"
        is_asked = any(link.url for _, link in subject.bearers()) if subject.config else True
        advice = "see what follows" if is_asked else "see docs/troubleshooting.md"
        for alarm in alarms(subject.status):
            sentence = alarm.sentence.replace(DOCTOR, advice)
            yield WRONG if alarm.level == BAD else WARNING, sentence


@contextmanager
def _connection(link: LinkConfig, role: str) -> Iterator[tuple[MqttTransport, object]]:
    """A connection under a name of its own, and why it is none; None: nobody answers."""
    name = f"ternmesh-doctor-{secrets.token_hex(4)}"
    asked = replace(link_settings(link, role), client_id=name, session_expiry_s=0)
    with closing(MqttTransport(asked)) as transport:
        transport.open()
        first: object = f"not connected to {asked.broker} yet"
        error = first
        give_up_at = time.monotonic() + BROKER_S
        while not transport.connected and time.monotonic() < give_up_at:
            time.sleep(0.05)
            last = transport.status().last_error
            error = error if last == first else last
        yield transport, None if error == first else error


def broker(subject: Subject) -> Iterator[Result]:
    """Name, network, TLS, login and topics."""
    for role, link in subject.bearers():
        if not link.url:
            continue
        with _connection(link, role) as (transport, error):
            status = transport.status()
        if status.connected:
            yield OK, f"the broker takes the login: {status.end}"
        elif error is None:
            name = transport.settings.broker
            yield WRONG, f"{name} does not answer: check url, network and firewall"
        else:
            is_far = str(error).startswith("cannot reach")
            advice = ": is [link] right, and does the broker run?" if is_far else ""
            yield WRONG, f"{error}{advice}"


def host(subject: Subject) -> Iterator[Result]:
    """Whether the host knows this board, as the board has heard or the host says now."""
    end, status = subject.end, subject.status
    if end.role is not Role.NODE or end.security.insecure:
        return
    if isinstance(status, BoardStatus) and status.joined:
        yield OK, "the host knows this board, and has the same model"
    elif isinstance(status, BoardStatus):
        heard = [reason for reason in STRANGER if reason in status.refused]
        yield (WRONG, why(heard[0], on_host=False)) if heard else (WARNING, NO_ANSWER)
    elif not (link := subject.config.link).url or is_linked(link):
        yield WARNING, "the host was not asked: over this link only the running board can"
    elif (fleet := StateFile(end.folder).stored_fleet()) is not None:
        own = read_identity_file(end.security.path(end.folder))
        with _connection(link, end.name) as (transport, _):
            reason = ask_host(transport, own, fleet.fleet) if transport.connected else None
        if reason is None:
            yield WARNING, "the host was asked whether it knows this board, and did not answer"
        elif reason == KNOWN:
            yield OK, "the host knows this board, and this board trusts it"
        else:
            yield WRONG, why(reason, on_host=False)


def ports(subject: Subject) -> Iterator[Result]:
    """Those of page and metrics; a running program says itself what it cannot serve."""
    with ExitStack() as taken:  # neither may have the port of the other
        for name in () if subject.status else ("page", "metrics"):
            table = getattr(subject.config, name, None)
            if table is None or not table.port:
                continue
            family = socket.AF_INET6 if ":" in table.address else socket.AF_INET
            try:
                address = table.address, table.port
                taken.enter_context(socket.create_server(address, family=family))
                if name == "page" and table.certificate_file:
                    check_certificate(table.certificate_file, table.key_file)
                yield OK, f"port {table.port} is free for the {name}"
            except OSError as error:
                why = str(error.strerror).partition(" (while")[0]
                yield WRONG, f"[{name}] cannot have port {table.port} ({why}): choose another"
            except ValueError as error:
                yield WRONG, f"[page]: {error}"


def port(subject: Subject) -> Iterator[Result]:
    """The device and its rights; it is not opened, since that resets some modems."""
    for name in (str(link.serial.get("port", "")) for _, link in _ports(subject)):
        if tcp_address(name) is not None:
            yield OK, f"{name} is on the network, and is not tried: a bridge has one client"
            continue
        try:
            device = os.stat(name)
        except OSError as error:
            yield WRONG, f"{name}: {error.strerror}: is the modem plugged in? See ls /dev/tty*"
            continue
        if not stat.S_ISCHR(device.st_mode):
            yield WRONG, f"{name} is no serial port: correct link.serial.port"
        elif subject.is_unit and "dialout" not in _shown(subject).get("SupplementaryGroups", ""):
            yield WRONG, f"the unit may not use {name}: copy {SERIAL} as docs/service.md says"
        elif not subject.is_unit and not os.access(name, os.R_OK | os.W_OK, effective_ids=True):
            yield WRONG, f"this user may not use {name}: sudo usermod -a -G dialout USER"
        else:
            yield OK, f"{name} is there"


def model(subject: Subject) -> Iterator[Result]:
    if subject.kind == "gateway":
        return
    package = load_model_package(subject.config.model)
    if subject.kind == "node":
        from edge.onnx.session import load_model

        load_model(package_folder(subject.config.model))
    shown = f"{package.name}, {package.model_hash().hex()[:SHOWN]}"
    is_same = isinstance(subject.status, BoardStatus) and subject.status.joined
    yield OK, f"{shown}, as on the host" if is_same else f"{shown}: it must be so on every machine"


def data(subject: Subject) -> Iterator[Result]:
    """The samples; a running program tells their number, so that memory holds them once."""
    config = subject.config
    if subject.kind != "node":
        return
    if isinstance(subject.status, BoardStatus):
        source, result = subject.status.source, f"{subject.status.samples} samples"
        failed = source and source.last_failure
        more = f"; the source {config.data.source} fails: {failed}: {SOURCE}" if failed else ""
        yield WRONG if failed else OK, result + more
        return
    from edge.data.gate import aside_status
    from edge.data.node_data import open_files

    held_out, files, damaged = open_files(config, load_model_package(config.model))
    known = [found for found in (held_out, files) if found is not None]
    if (aside := aside_status(damaged, *(found.aside for found in known))).newest:
        yield WARNING, aside.sentence()
    yield from ((WARNING, found.remark) for found in known if found.remark)
    if config.data.source is not None:
        yield OK, f"from the source {config.data.source}, which is not started here"
    elif files is not None:
        yield OK, f"{len(files)} samples in {config.data.path or 'what was imported'}"


def unit(subject: Subject) -> Iterator[Result]:
    """The unit of systemd that runs these settings."""
    if not subject.is_unit:
        return
    name, shown = f"ternmesh-{subject.kind}", _shown(subject)
    is_enabled = shown.get("UnitFileState") == "enabled"
    active = shown.get("ActiveState")
    if shown.get("LoadState") == "not-found":
        yield WARNING, f"{name} is not installed: docs/service.md says how"
    elif active == "failed" or shown.get("SubState") == "auto-restart":
        why = f"`journalctl -p warning -u {name}` says why"
        yield WRONG, f"{name} is {shown.get('SubState')}: {why}"
    elif active == "active" and is_enabled:
        yield OK, shown.get("StatusText") or f"{name} runs"
    else:
        start = f"systemctl enable --now {name}"
        yield WARNING, f"{name} is {active}, and not sure to start: {start}"


def _shown(subject: Subject) -> dict[str, str]:
    """What systemd knows about the unit."""
    asked = "LoadState,ActiveState,SubState,UnitFileState,StatusText,SupplementaryGroups"
    done = subprocess.run(
        ["systemctl", "show", f"ternmesh-{subject.kind}", f"--property={asked}"],
        capture_output=True, text=True, check=False, timeout=SYSTEMCTL_S,
    )  # fmt: skip
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


Check = Callable[[Subject], Iterator[Result]]
CHECKS: tuple[Check, ...]
CHECKS = (
    settings, clock, disk, state, keys, program, unit, broker, host, ports, port, model, data,
)  # fmt: skip


def checks_of(subject: Subject) -> tuple[Check, ...]:
    """All checks, without those that need right settings, or an end, where there is none."""
    return CHECKS[: None if subject.config else 7 if subject.end else 2]
