"""`ternmesh demo`: three boards learn three voices, live, with a report at the end."""

import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ternmesh_cli.arguments import number, real
from ternmesh_cli.demo.bearer import BLE, LORA, MQTT, Ble, Radios
from ternmesh_cli.demo.fleet import DemoError, DemoSettings, Fleet, fleet
from ternmesh_cli.demo.record import DemoRecord, Round
from transports.link_config import AS_IS, COMPLETE
from transports.mqtt_settings import parse_url
from transports.serial_lora.settings import DIALECTS

POLL_S = 0.25
PATIENCE_S = 600.0  # with no new reference for so long, the demo gives up
ROUNDS_MAX = 100  # what one answer of the host's status holds
SEED_MAX = 2**31
SPEED_MAX = 1000.0
OWN_BROKER = "the demo's own MQTT broker"
REPORT, MARK = "report.html", "host/config.toml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ternmesh demo`."""
    parser.add_argument(
        "--broker",
        metavar="URL",
        type=_url,
        help="an MQTT broker, such as mqtt://127.0.0.1:1883 (default: one inside the demo)",
    )
    parser.add_argument(
        "--bearer",
        choices=(MQTT, LORA, BLE),
        default=MQTT,
        help="lora: emulated radio modems, in radio time, under the law of Europe; ble: simulated "
        "Bluetooth controllers, and a gateway to the broker (default: mqtt)",
    )
    parser.add_argument(
        "--loss",
        type=real(0, 0.9),
        default=0.0,
        help="lora: share of frames lost; ble: of values (default: 0)",
    )
    parser.add_argument(
        "--dialect", choices=DIALECTS, default="reyax", help="lora: of the modems (default: reyax)"
    )
    parser.add_argument(
        "--speed",
        type=real(1, SPEED_MAX),
        default=20.0,
        help="lora: radio seconds in a second (default: 20)",
    )
    parser.add_argument(
        "--service",
        choices=(COMPLETE, AS_IS),
        default=COMPLETE,
        help="lora: whether packets arrive whole, or each of their frames is sent once and what "
        "arrives counts (default: complete)",
    )
    parser.add_argument("--rounds", type=number(1, ROUNDS_MAX), default=20, help="default: 20")
    parser.add_argument(
        "--seed", type=number(0, SEED_MAX), default=0, help="which batches are drawn (default: 0)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("demo-run"), help="for states, logs and the report"
    )
    parser.add_argument("--json", action="store_true", help="no live picture; one JSON line")


def run(arguments: argparse.Namespace) -> int:
    """Run the demo; returns the exit code."""
    from ternmesh_cli.demo.report import write_report

    # As Ctrl-C does: whoever ends the demo ends its fleet.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = _prepare(arguments.out)
    settings = DemoSettings(
        folder.resolve(),
        arguments.broker,
        _radios(arguments),
        _ble(arguments),
        arguments.rounds,
        arguments.seed,
        f"demo-{os.urandom(3).hex()}",
    )
    begun = time.monotonic()
    simulated = settings.radios or settings.ble
    bearer = simulated.title if simulated else arguments.broker or OWN_BROKER
    with fleet(settings) as members:
        shown = bearer if simulated else ""
        watched = _watch(members, settings.rounds, shown, quiet=arguments.json)
    record = make_record(watched, bearer, time.monotonic() - begun)
    report = folder / REPORT
    report.write_text(write_report(record))
    _tell(record, report, as_json=arguments.json)
    return 0


@dataclass(frozen=True, slots=True)
class Watched:
    """The last answers of host and boards."""

    host: Mapping[str, Any]
    boards: Mapping[str, Mapping[str, Any]]


def make_record(watched: Watched, bearer: str, seconds: float) -> DemoRecord:
    """What the answers say, as the record of a run."""
    rounds = tuple(
        Round(r["version"], r["bytes_up"], r["bytes_down"], tuple(r["missing"]), r["seconds"])
        for r in watched.host["history"]
    )
    accuracy = {
        name: {item["version"]: item["metric"] for item in status["history"]}
        for name, status in watched.boards.items()
    }
    return DemoRecord(
        boards=tuple(watched.boards),
        accuracy=accuracy,
        rounds=rounds,
        dimension=watched.host["plan"]["dimension"],
        frame_mtu=watched.host["plan"]["frame_mtu"],
        seconds=seconds,
        bearer=bearer,
        airtime_s=_airtimes(watched),
    )


def _airtimes(watched: Watched) -> dict[str, float] | None:
    everyone = {"host": watched.host, **watched.boards}
    airtimes = {name: answer["transport"].get("airtime_us") for name, answer in everyone.items()}
    if None in airtimes.values():
        return None
    return {name: airtime_us / 1e6 for name, airtime_us in airtimes.items()}


def _radios(arguments: argparse.Namespace) -> Radios | None:
    if arguments.bearer != LORA:
        return None
    return Radios(
        arguments.dialect, arguments.loss, arguments.speed, arguments.seed, arguments.service
    )


def _ble(arguments: argparse.Namespace) -> Ble | None:
    return Ble(arguments.loss, arguments.seed) if arguments.bearer == BLE else None


def _url(text: str) -> str:
    try:
        parse_url(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _prepare(folder: Path) -> Path:
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARK).exists():
            raise DemoError(f"{folder} holds something else: name another folder with --out")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _watch(members: Fleet, rounds: int, simulated: str, *, quiet: bool) -> Watched:
    """Follow the fleet until every board has judged the last reference."""
    from rich.console import Console
    from rich.live import Live

    from ternmesh_cli.demo.screen import picture

    begun = progress_at = time.monotonic()
    version = -1
    with Live(console=Console(stderr=True, quiet=quiet), refresh_per_second=4) as live:
        while True:
            for member in members.everyone:
                member.keep_alive()
            now = time.monotonic()
            answer = members.host.status()
            answers = {board.name: board.status() for board in members.boards}
            live.update(picture(answer, answers, rounds, now - begun, simulated))
            if answer and all(a and _has_judged(a, rounds) for a in answers.values()):
                return Watched(answer, {n: a for n, a in answers.items() if a})
            if answer and answer["version"] != version:
                version, progress_at = answer["version"], now
            if now > progress_at + PATIENCE_S:
                raise DemoError(f"no new reference for {PATIENCE_S:.0f} s: see the logs in --out")
            time.sleep(POLL_S)


def _has_judged(answer: Mapping[str, Any], version: int) -> bool:
    return any(item["version"] == version for item in answer["history"])


def _tell(record: DemoRecord, report: Path, *, as_json: bool) -> None:
    last = record.rounds[-1].version
    if as_json:
        content = {
            "rounds": last,
            "accuracy_before": record.mean_accuracy(0),
            "accuracy_after": record.mean_accuracy(last),
            "bytes_per_round": record.bytes_up,
            "downlink_bytes_per_round": record.bytes_down,
            "float32_bytes": record.raw_bytes,
            "seconds": record.seconds,
            "airtime_s": record.airtime_s,
            "bearer": record.bearer,
            "report": str(report),
        }
        print(json.dumps(content))
        return
    from rich.console import Console

    from ternmesh_cli.demo.screen import summary

    console = Console(file=sys.stdout)
    console.print(summary(record))
    console.print(
        f"{record.bytes_up:,.0f} bytes up for a board and round (float32: {record.raw_bytes:,}), "
        f"{record.bytes_down:,.0f} down for all; {record.seconds:.0f} s in all"
    )
    console.print(f"report with plots: {report}", soft_wrap=True)
