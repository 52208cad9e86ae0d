"""`ternmesh demo`: three rooms learn ten words from each other.

The terminal and a web page show the progress.
"""

import argparse
import json
import math
import os
import shutil
import signal
import socket
import sys
import time
import webbrowser
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from statistics import fmean as mean
from typing import TYPE_CHECKING, Any, TypeVar

from ternmesh.config import ConfigError
from ternmesh.wire.control import GATHERING, PHASES
from ternmesh_cli.demo.bearer import BLE, LORA, MQTT, Ble, Radios
from ternmesh_cli.demo.fleet import BOARDS, CONFIG, HOST, DemoError, DemoSettings, Fleet, fleet
from ternmesh_cli.demo.voters import AWAY_S, COUNTS, KILL_VERSION
from ternmesh_cli.process import add_json, add_option, add_uses, number, path, real, refuse_unused
from ternmesh_cli.status_text import table
from ternmesh_cli.workers import Worker
from ternmesh_service.alarms import alarms
from ternmesh_service.commands import as_run
from ternmesh_service.config_file import control_path
from ternmesh_service.page.config import PageConfig, read_token
from ternmesh_service.status import BoardStatus, HostStatus, from_json
from ternmesh_store.files import GITIGNORE, make_private_folder
from transports.mqtt.settings import parse_url
from transports.serial_lora.settings import DIALECTS, HOPS_MAX

if TYPE_CHECKING:
    from ternmesh_cli.demo.judge import Judged

POLL_S = 0.25
PATIENCE_S = 600.0  # the demo fails if no new global adapter appears for this time
STAY_S = 300  # after the last round, at a terminal
ROUNDS_MAX = 100  # the longest history in the host's status
SEED_MAX = 2**31
SPEED_MAX = 1000.0
OWN_BROKER = "the demo's own MQTT broker"
MARK = "host/config.toml"  # a folder with this file comes from an earlier demo
NEXT = """\
Next:
  ternmesh export --config {out}/host/config.toml --out learned
      writes what they have learned as a model
  ternmesh demo --bearer lora --loss 0.2
      shows the same over slow radios that lose every fifth frame
  ternmesh setup --host
      begins a fleet of your own boards: README.md, "Run a fleet"
"""

T = TypeVar("T")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    what = "the MQTT broker to use, such as mqtt://127.0.0.1:1883 (default: the demo starts one)"
    parser.add_argument("--broker", metavar="URL", type=_url, help=what)
    what = (
        "how the boards reach the host; lora: emulated radio modems with real airtimes and the "
        "European duty cycle; ble: simulated Bluetooth controllers and a gateway to the broker "
        "(default: mqtt)"
    )
    parser.add_argument("--bearer", choices=(MQTT, LORA, BLE), default=MQTT, help=what)
    what = "fraction of frames (lora) or of attribute values (ble) that are lost"
    add_option(parser, "--loss", real(0, 0.9), 0.0, what)
    what = "lora: command set of the emulated modems (default: rnode)"
    parser.add_argument("--dialect", choices=DIALECTS, default="rnode", help=what)
    what = "lora: simulated radio seconds per real second"
    add_option(parser, "--speed", real(1, SPEED_MAX), 20.0, what)
    add_option(parser, "--hops", number(0, HOPS_MAX), 0, "lora: repeaters in a row")
    add_option(parser, "--rounds", number(1, ROUNDS_MAX), 20, "number of rounds")
    what = "random seed of the batches that the boards draw"
    add_option(parser, "--seed", number(0, SEED_MAX), 0, what)
    what = "folder for states and logs (default: demo-run)"
    parser.add_argument("--out", type=path, default=Path("demo-run"), help=what)
    what = "keep the fleet and its page until Ctrl-C (default: for 5 minutes at a terminal)"
    parser.add_argument("--stay", action="store_true", help=what)
    what = "hosts that keep the fleet together, as voters (3, 4 or 7; default: 1)"
    parser.add_argument("--voters", type=int, choices=(1, *COUNTS), default=1, help=what)
    what = f"kill the voter that leads at round {KILL_VERSION}, for {AWAY_S:.0f} s"
    parser.add_argument("--kill-leader", action="store_true", help=what)
    add_json(parser, "show no live progress and no page; print one JSON object at the end")
    radio = dict.fromkeys(("dialect", "hops", "speed"), (LORA,))
    uses = {"broker": (MQTT, BLE), "loss": (LORA, BLE), "voters": (MQTT,), **radio}
    add_uses(parser, "bearer", uses)


def run(arguments: argparse.Namespace) -> int:
    refuse_unused(arguments)
    if arguments.stay and arguments.json:
        raise ConfigError("--stay keeps the page, and --json has none: leave one of them out")
    if arguments.kill_leader and arguments.voters == 1:
        raise ConfigError("--kill-leader needs others that go on: give --voters 3, 4 or 7")
    # SIGTERM acts like Ctrl-C: it ends the demo and the processes of its fleet.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = _prepare(arguments.out)
    radios = Radios(
        arguments.dialect, arguments.loss, arguments.speed, arguments.seed, arguments.hops
    )
    settings = DemoSettings(
        folder=folder.resolve(),
        broker=arguments.broker,
        radios=radios if arguments.bearer == LORA else None,
        ble=Ble(arguments.loss, arguments.seed) if arguments.bearer == BLE else None,
        rounds=arguments.rounds,
        seed=arguments.seed,
        name=f"demo-{os.urandom(3).hex()}",
        page=0 if arguments.json else _free_ports(arguments.voters),
        voters=arguments.voters,
        kills_leader=arguments.kill_leader,
    )
    start = time.monotonic()
    simulated = settings.radios or settings.ble
    bearer = simulated.title if simulated else arguments.broker or OWN_BROKER
    is_watched = sys.stdin.isatty() and sys.stdout.isatty()
    stay_s = math.inf if arguments.stay else STAY_S * is_watched
    with fleet(settings) as processes:
        if settings.page:
            _show_page(processes, settings)
        if simulated and not arguments.json:
            print(bearer, file=sys.stderr)
        host, boards = _watch(processes, settings.rounds, quiet=arguments.json)
        seconds = time.monotonic() - start
        from ternmesh_cli.demo.judge import judge  # needs onnxruntime

        judged = judge(settings.folder / HOST / CONFIG, host.plan, settings.seed)
        result = result_of(host, boards, judged, bearer, seconds)
        if arguments.json:
            print(json.dumps(result))
            return 0
        _show(host, judged, result)
        _stay(processes, stay_s)
    print(as_run(NEXT.format(out=arguments.out)), end="")
    return 0


def result_of(
    host: HostStatus,
    boards: Mapping[str, BoardStatus],
    judged: "Judged",
    bearer: str,
    seconds: float,
) -> dict[str, Any]:
    """What `--json` prints of a finished demo, by the last status of its processes."""
    up = [size for item in host.history for size in item.bytes_up.values()]
    return {
        "rounds": host.history[-1].version,
        "accuracy_alone": mean(judged.alone.values()),
        "accuracy_fleet": judged.fleet,
        "accuracy_float": judged.averaged,
        "bytes_per_round": mean(up or [0]),
        "downlink_bytes_per_round": mean([item.bytes_down for item in host.history] or [0]),
        "float32_bytes": 4 * host.plan.dimension,
        "seconds": seconds,
        "airtime_s": _airtimes({"host": host, **boards}),
        "bearer": bearer,
    }


def _free_ports(count: int) -> int:
    """The first of so many ports in a row that are free now."""
    while True:
        with ExitStack() as stack, suppress(OSError, OverflowError):
            first = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            for number in range(1, count):
                stack.enter_context(socket.create_server(("127.0.0.1", first + number)))
            return int(first)


def _show_page(processes: Fleet, settings: DemoSettings) -> None:
    """Say where the page is once it answers, and open it where there is a desktop."""
    print("starting a host and its boards", file=sys.stderr)
    name = _shown(processes)
    port = settings.page + list(processes.hosts).index(name)
    url = f"{PageConfig(port).url}#token={read_token(processes.hosts[name].folder)}"
    print(f"watch it live: {url}", file=sys.stderr)
    if sys.stderr.isatty() and ("DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ):
        webbrowser.open(url)


def _shown(processes: Fleet) -> str:
    """The host whose page is shown, once it answers: not the one that may be killed."""
    give_up_at = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up_at:
        for name, status in _hosts(processes).items():
            if status.agreement is None or status.agreement.leader not in (name, ""):
                return name
        processes.keep_alive()
        time.sleep(POLL_S)
    raise DemoError(f"no host answers for {PATIENCE_S:.0f} s: see the logs in --out")


def _hosts(processes: Fleet) -> dict[str, HostStatus]:
    """The status of each host that answers."""
    found = {name: _status(host, HostStatus) for name, host in processes.hosts.items()}
    return {name: status for name, status in found.items() if status is not None}


def merged(hosts: Sequence[HostStatus]) -> HostStatus:
    """The newest status of several hosts, with the bytes that each has moved while it led."""
    newest = max(hosts, key=lambda status: status.version)
    rows = []
    for row in newest.history:
        same = [one for host in hosts for one in host.history if one.version == row.version]
        up = Counter[str]()
        for one in same:
            up.update(one.bytes_up)
        down = sum(one.bytes_down for one in same)
        rows.append(replace(row, bytes_up=dict(up), bytes_down=down))
    return replace(newest, history=tuple(rows))


def _stay(processes: Fleet, seconds: float) -> None:
    """Keep the fleet and its page for a time, or for ever; Ctrl-C ends it."""
    end = time.monotonic() + seconds
    if seconds == math.inf:
        print("the page stays until Ctrl-C", file=sys.stderr)
    with suppress(KeyboardInterrupt):  # which is asked for
        while (left_s := end - time.monotonic()) > 0:
            processes.keep_alive()
            if left_s < math.inf:
                left = f"{int(left_s) // 60}:{int(left_s) % 60:02}"
                print(f"\rthe page stays for {left}; Ctrl-C ends it ", end="", file=sys.stderr)
            time.sleep(1.0)
    print(file=sys.stderr)


def _airtimes(programs: Mapping[str, HostStatus | BoardStatus]) -> dict[str, float] | None:
    times_us = {name: status.transport.airtime_us for name, status in programs.items()}
    times_s = {name: us / 1e6 for name, us in times_us.items() if us is not None}
    return times_s if len(times_s) == len(times_us) else None


def _url(text: str) -> str:
    try:
        parse_url(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _prepare(folder: Path) -> Path:
    if folder.exists() and {path.name for path in folder.iterdir()} - {GITIGNORE}:
        if not (folder / MARK).exists():
            raise DemoError(f"{folder} holds other files: name another folder with --out")
        shutil.rmtree(folder)
    try:
        control_path(str(folder.resolve() / max(BOARDS, key=len)), None)
    except ConfigError as error:
        raise ConfigError(f"--out {folder}: {error}") from error
    make_private_folder(folder)
    return folder


def _watch(
    processes: Fleet, rounds: int, *, quiet: bool
) -> tuple[HostStatus, dict[str, BoardStatus]]:
    """Show the progress until every board has evaluated the last global adapter.

    Return the last status of the host and of each board. Raises DemoError if there is no progress
    for `PATIENCE_S`.
    """
    progress_at = time.monotonic()
    version, shown = -1, ""
    while True:
        processes.keep_alive()
        boards = {board.name: _status(board, BoardStatus) for board in processes.boards}
        hosts = list(_hosts(processes).values())  # after the boards: they know no newer version
        host = merged(hosts) if hosts else None
        if not quiet and (line := progress(host, boards, rounds)) != shown:
            print(line, file=sys.stderr)
            shown = line
        done = {n: b for n, b in boards.items() if b and rounds in {e.version for e in b.history}}
        if host and len(done) == len(boards):
            return host, done
        now = time.monotonic()
        if host and host.agreement and processes.killed:
            leader = host.agreement.leader
            if said := processes.killed.turn(processes.hosts, host.version, leader, now):
                print(said, file=sys.stderr)
        if host and host.version != version:
            version, progress_at = host.version, now
        if now > progress_at + PATIENCE_S:
            raise DemoError(f"no progress for {PATIENCE_S:.0f} s: see the logs in --out")
        time.sleep(POLL_S)


def progress(host: HostStatus | None, boards: Mapping[str, BoardStatus | None], rounds: int) -> str:
    """The rounds so far, the newest accuracy of each board, and the alarms of the host."""
    if host is None:
        return "starting"
    if host.phase == PHASES[GATHERING] and not host.version:
        here = sum(board.active for board in host.nodes)
        return f"starting: {here} of {host.min_peers} boards are here"
    newest = [
        f"{name} {board.history[-1].metric or 0.0:.0%}" if board and board.history else name
        for name, board in boards.items()
    ]
    leads = "" if host.agreement is None else f" ({host.agreement.leader} leads)"
    line = f"round {host.version:>2} of {rounds}{leads}: {', '.join(newest)}"
    return "\n".join([line, *(alarm.sentence for alarm in alarms(host))])


def _status(worker: Worker, kind: type[T]) -> T | None:
    answer = worker.status()
    return None if answer is None else from_json(kind, answer)


def _show(host: HostStatus, judged: "Judged", result: Mapping[str, Any]) -> None:
    """What each room understands, as a table, and what it has cost."""
    rows = [
        (
            room,
            f"{alone:.1%}",
            f"{judged.fleet:.1%}",
            f"{judged.averaged:.1%}",
            f"{sum(item.bytes_up.get(room, 0) for item in host.history):,}",
            str(sum(room in item.missing for item in host.history)),
        )
        for room, alone in judged.alone.items()
    ]
    heads = ("room of", "alone", "with the fleet", "float averaging", "bytes sent", "rounds missed")
    print("\n".join(table(heads, rows)))
    print(
        "Each room has heard one voice say seven of ten words. Shown: the share of new clips of "
        "all ten words and three voices that it understands."
    )
    print(
        f"{result['bytes_per_round']:,.0f} bytes up per board and round "
        f"(float32: {result['float32_bytes']:,}), "
        f"{result['downlink_bytes_per_round']:,.0f} bytes down per round for all boards; "
        f"{result['seconds']:.0f} s in total"
    )
