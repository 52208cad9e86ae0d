"""`ternmesh status`: the status of a running host, node, gateway or split training, as text."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ternmesh.config import ConfigError
from ternmesh.federated.management import settings_text
from ternmesh.federated.refusals import DIVERGED, NO_ANSWER, NORMAL, NORMAL_UP_TO, shortened, why
from ternmesh.plan import of_rounds
from ternmesh.security.identity import Role
from ternmesh.wire.control import FINISHED, PHASES
from ternmesh_cli.keys import read, read_end, socket_of
from ternmesh_cli.predict import figures_text
from ternmesh_cli.process import add_json, as_run
from ternmesh_cli.status_nodes import (
    NO_REPORT,
    ROUND_HEADS,
    Answer,
    distrusted,
    nodes,
    round_row,
    size,
    table,
)
from ternmesh_service.control_socket import BOARDS, ControlError, ask

WATCH_S = 2.0
REPORT_S = 10.0  # how long to wait for the report of a board
POLL_S = 0.2
CLEAR = "\x1b[H\x1b[2J"  # of a terminal
ROUNDS_SHOWN = 5
RELEASES_SHOWN = 3  # refused ones
HASH_SHOWN = 12  # hex digits
JOINING = "joining"  # the activity of a node that the host has not welcomed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    target = parser.add_mutually_exclusive_group(required=True)
    what = "the configuration of the running process"
    target.add_argument("--config", type=Path, metavar="FILE", help=what)
    target.add_argument("--socket", type=Path, metavar="PATH", help="its control socket")
    what = "with --config of a host: ask this board over the link, or all"
    parser.add_argument("--node", metavar="NAME", help=what)
    add_json(parser, "print the whole answer as one JSON object")
    parser.add_argument("--watch", action="store_true", help="show it anew every 2 s, until Ctrl-C")


def run(arguments: argparse.Namespace) -> int:
    if arguments.node is not None:
        return _ask_board(arguments)
    socket = arguments.socket or socket_of(arguments.config, read_end(arguments.config))
    if not arguments.watch:
        print(_shown(socket, indent=1 if arguments.json else None, as_json=arguments.json))
        return 0
    while True:
        try:
            text = _shown(socket, indent=None, as_json=arguments.json)
        except ControlError as error:  # the process may be restarting
            text = json.dumps({"error": str(error)}) if arguments.json else str(error)
        print(f"{CLEAR if sys.stdout.isatty() else ''}{text}", flush=True)
        time.sleep(WATCH_S)


def ask_boards(
    path: Path, name: str, request: Answer, is_done: Callable[[Answer], bool], wait_s: float
) -> dict[str, Any]:
    """The running host's answer about one board, or all; a later one, until all are done."""
    end = read(path)
    if end.role is not Role.HOST:
        raise ConfigError(f"{path} is of a {end.role.name.lower()}: give the file of a host")
    give_up_at = time.monotonic() + wait_s
    answer = ask(end.socket, {BOARDS: name, **request})
    if "role" in answer:
        raise ControlError(
            "the host that answers has an older ternmesh, or trains a split model: it sets nothing "
            "on boards"
        )
    while not all(map(is_done, answer["boards"])) and time.monotonic() < give_up_at:
        time.sleep(POLL_S)
        answer = ask(end.socket, {BOARDS: name})
    return answer


def _ask_board(arguments: argparse.Namespace) -> int:
    """Ask for a report; where none comes, show the last one."""
    if arguments.config is None or arguments.watch:
        raise ConfigError("--node needs --config with the file of a host, and takes no --watch")
    request = {"inquire": True}
    answer = ask_boards(
        arguments.config, arguments.node, request, lambda row: not row["awaited"], REPORT_S
    )
    shown = ("\n".join(_report(row)) for row in answer["boards"])
    print(json.dumps(answer) if arguments.json else "\n\n".join(shown))
    return 0


def _report(row: Answer) -> Iterator[str]:
    if row["reported_s_ago"] is None:
        yield f"{row['name']}: {NO_REPORT}"
        return
    late = f"no answer within {REPORT_S:.0f} s, so this is its last: " if row["awaited"] else ""
    yield f"{late}report of {row['name']}, {row['reported_s_ago']:.0f} s old"
    own = {"software": row["software"], "settings": settings_text(row["in_force"]) or "none"}
    yield from (f"{name:16} {value}" for name, value in {**own, **row["report"]}.items())


def _shown(socket: Path, *, indent: int | None, as_json: bool) -> str:
    answer = ask(socket, {"command": "status"})
    return json.dumps(answer, indent=indent) if as_json else as_run("\n".join(describe(answer)))


def describe(answer: Answer) -> Iterator[str]:
    """The lines of an answer; ControlError where it is of an unknown kind of process."""
    kinds = {
        "host": _host,
        "node": _node,
        "gateway": _gateway,
        "split host": _split_host,
        "split board": _split_board,
    }
    if answer.get("role") not in kinds:
        raise ControlError(
            "the process that answers is neither a host nor a node nor a gateway of this version"
        )
    return kinds[answer["role"]](answer)


def _host(answer: Answer) -> Iterator[str]:
    end = "" if answer["rounds"] else " without end"
    yield f"host of fleet {answer['fleet']}, model {answer['model']}, run {answer['run']}{end}"
    yield from _connection(answer)
    left = "" if answer["deadline_s"] is None else f", {answer['deadline_s']:.0f} s left"
    digest = answer["global_hash"][:HASH_SHOWN]
    yield (
        f"global adapter {answer['version']}{of_rounds(answer['rounds'])} ({digest}), "
        f"{answer['phase']}{left}"
    )
    if origin := answer.get("carried_from"):
        yield "begun with the adapter of run {}, global adapter {}".format(*origin.split())
    if answer["behind"] is not None:
        yield answer["behind"]
    active = sum(node["active"] for node in answer["nodes"])
    is_over = answer["phase"] == PHASES[FINISHED]
    rest = "the run is over" if is_over else f"{active} active, a round needs {answer['min_peers']}"
    yield f"{len(answer['nodes'])} nodes, {rest}"
    if remark := answer.get("aggregation", {}).get("remark"):
        yield str(remark)
    if returned := answer.get("aggregation", {}).get("returned"):
        yield str(returned)
    yield from _teaching(answer.get("teaching"))
    yield from _refusals(answer, answer["nodes"], on_host=True)
    if answer["nodes"]:
        yield ""
        yield from nodes(answer, is_over)
        yield from distrusted(answer["nodes"])
        if added := [n["name"] for n in answer["nodes"] if n.get("partial_aggregate") is not None]:
            yield f"counted last in a gateway's partial aggregate: {shortened(added)}"
    if answer.get("release") is not None:
        yield from published(answer["release"])
    if answer["history"]:
        yield ""
        shown = answer["history"][-ROUNDS_SHOWN:]
        cells = None if any(item.get("evaluations") for item in shown) else -2
        yield from table(ROUND_HEADS[:cells], [round_row(item)[:cells] for item in shown])


def _teaching(teaching: Answer | None) -> Iterator[str]:
    """What the other groups of a mixed fleet teach this one."""
    if teaching is None:
        return
    sent = teaching["sent"]
    when = "none yet" if sent is None else f"the last at global adapter {sent}"
    yield f"knowledge packets of other groups: {when}"
    for name, why_less in teaching["less"].items():
        yield f"{name} teaches less: {why_less}"


def _node(answer: Answer) -> Iterator[str]:
    yield f"node {answer['name']} of fleet {answer['fleet']}, model {answer['model']}"
    yield from _connection(answer)
    is_in_run = answer["rounds"] is not None
    total = of_rounds(answer["rounds"]) if is_in_run else ", no run joined yet"
    yield f"global adapter {answer['version']}{total}, {answer['phase']}; {_activity(answer)}"
    yield f"{answer['samples']} samples; {_metric(answer)}"
    if answer.get("provider") not in (None, "", "CPUExecutionProvider"):
        yield f"training runs on {answer['provider']}"
    if "by_label" in (source := answer.get("source") or {}):
        yield _samples(source)
    if known := answer.get("knowledge"):
        less = f"; {known['remark']}" if known["remark"] else ""
        yield (
            f"taught by other models: {known['known']} of {known['samples']} samples, by a teacher "
            f"of accuracy {known['teacher_accuracy']:.3g}{less}"
        )
    up = "handed to the link" if "link" in answer["transport"] else "up"  # on the air or not yet
    yield f"{up} {size(answer['bytes_up'])}, down {size(answer['bytes_down'])} since it started"
    if answer["diverged"]:
        yield f"rounds without a delta, as training diverged: {answer['diverged']}; {DIVERGED}"
    yield from _refusals(answer, on_host=False)
    if answer["activity"] == JOINING and answer["transport"].get("connected", True):
        yield NO_ANSWER
    if answer.get("settings"):
        yield f"set by the host: {settings_text(answer['settings'])}"
    outbox = answer["outbox"]
    if outbox is not None:
        fate = "received by the host" if outbox["received"] else "no receipt yet"
        yield f"outbox: the update of round {outbox['round'] + 1}, {size(outbox['bytes'])}, {fate}"
    releases = answer.get("releases")
    if releases is not None:
        yield from _releases(releases)
    if answer.get("predict") is not None:
        yield from figures_text(answer["predict"])
    if incoming := answer.get("incoming"):
        reason = f": {incoming['reason']}" if incoming["reason"] else ""
        yield (
            f"release {incoming['version']} over the link: {incoming['state']}, "
            f"{incoming['held']:.0%} here{reason}"
        )


def _samples(source: Answer) -> str:
    last = source["last_label"]
    newest = f", the last one: {last[0]!r} is {last[1]}" if last else ""
    return (
        f"{source['waiting']} wait for a label; by label: {_counts(source['by_label']) or 'none'}"
        f"{newest}; {source['refused']} refused, {source['evicted'] + source['expired']} made room"
    )


def _split_host(answer: Answer) -> Iterator[str]:
    yield (
        f"split training in fleet {answer['fleet']}, run {answer['run']}, {answer['phase']}: "
        f"{answer['steps']} steps{_learned(answer)}"
    )
    yield from _refusals(answer, answer["boards"], on_host=True)
    for board in answer["boards"]:
        heard = board["heard_s_ago"]
        yield (
            f"{board['name']}: {board['number']} of {answer['micro_batches']} micro-batches, "
            f"{board['skipped']} skipped, "
            f"{'never heard' if heard is None else f'heard {heard:.0f} s ago'}"
        )
    yield from _connection(answer)


def _split_board(answer: Answer) -> Iterator[str]:
    total = answer["micro_batches"]
    counts = answer["counts"]
    where = f" of {total} micro-batches" if total else ", not joined yet"
    yield (
        f"board {answer['name']} of fleet {answer['fleet']}, model {answer['model']}, run "
        f"{answer['run']}"
    )
    yield (
        f"{answer['number']}{where}, {answer['phase']}: {counts.get('lost', 0)} lost, "
        f"{counts.get('diverged', 0)} diverged{_learned(answer)}"
    )
    moved = answer["traffic"].get("host", {"bytes_out": 0, "bytes_in": 0})
    yield (
        f"{answer['samples']} samples; up {moved['bytes_out']:,} B, down {moved['bytes_in']:,} B "
        "since it started"
    )
    yield from _refusals(answer, on_host=False)
    yield from _connection(answer)


def _learned(answer: Answer) -> str:
    loss = "" if answer["loss"] is None else f"; loss {answer['loss']:.3f}"
    accuracy = "" if answer["accuracy"] is None else f"; accuracy {answer['accuracy']:.1%}"
    return f"{loss}{accuracy}"


def _connection(answer: Answer) -> Iterator[str]:
    """The keys and links of any process."""
    yield from _security(answer.get("security"))
    yield from _links(answer["transport"])


def _security(security: Answer | None) -> Iterator[str]:
    if security is None:
        return
    if security["mode"] == "insecure":
        yield "INSECURE: there are no keys, so every message is accepted"
        return
    yield f"keys {security['fingerprint'][:HASH_SHOWN]}, sealed and signed"
    for peer, count in sorted(security["clones"].items()):
        if peer == "all":
            yield f"received {count} times: a broadcast that a member has forged; see SECURITY.md"
        else:
            what = f"frames from a copied or restored disk of {peer}"
            yield f"received {count} times: {what}; see SECURITY.md"


def _releases(releases: Answer) -> Iterator[str]:
    current = releases["current"]
    if current:
        yield f"release {current} of the model"
    else:
        yield "no release: the configured model package"
    for refused in releases["bad"][-RELEASES_SHOWN:]:
        yield f"release {refused['version']} was bad: {refused['reason']}"
    for refused in releases["not_taken"][-RELEASES_SHOWN:]:
        yield f"release {refused['version']} is not taken: {refused['reason']}"


def published(release: Answer | None) -> Iterator[str]:
    """How far the boards are with the release that a host has published."""
    if release is None or "version" not in release:
        yield "no release is published" if release is None else release["reason"]
        return
    why_not = f": {release['reason']}" if release["reason"] else ""
    yield (
        f"release {release['version']} is {release['stage']}{why_not}; {size(release['bytes'])}, "
        f"about {release['eta_s']:.0f} s of sending left"
    )
    for name, board in sorted(release["boards"].items()):
        away = ", away" if board["away"] else ""
        reason = f": {board['reason']}" if board["reason"] else ""
        yield f"{name}: {board['state']}, {board['held']:.0%} here{away}{reason}"


def _activity(answer: Answer) -> str:
    training, doing = answer["training"], str(answer["activity"])
    if doing.startswith("paused: "):  # too hot, say
        doing = f"paused: {answer['held_back']}"
    if training is None:
        return doing
    return f"{doing}, step {training['steps_done']} of {training['steps']}"


def _metric(answer: Answer) -> str:
    name = answer["metric_name"].replace("_", " ")
    if answer["metric"] is not None:
        shown = f"{name} {answer['metric']:.3g}"
        if best := answer.get("best"):
            shown += f", best {best['metric']:.3g} (global adapter {best['version']})"
            shown += f"; {answer['adapter']} is the {answer['use']}"
        return shown
    if answer["source"] is None and answer["history"]:
        return f"{name} not measured: [evaluate] names the data for that"
    return f"{name} not measured yet"


def _gateway(answer: Answer) -> Iterator[str]:
    yield f"gateway for {', '.join(answer['network'])}"
    yield from _connection(answer)
    yield from (f"{board}: {_link(link)}" for board, link in answer["network"].items())
    lost = f", {answer['frames_refused']} too long" if answer["frames_refused"] else ""
    lost += f", {answer['frames_lost']} lost before the login" if answer["frames_lost"] else ""
    yield f"{answer['frames_up']} frames up, {answer['frames_down']} down{lost}"
    if answer.get("partial_aggregates") is not None:
        yield _partial_aggregates(answer["partial_aggregates"])


def _partial_aggregates(counts: Answer) -> str:
    if counts["refused"]:
        return (
            "this host takes no partial aggregates ([run] partial_aggregates): updates pass as "
            "they are"
        )
    if counts["run"] is None:
        return "no partial aggregates yet: no board has joined a run since the gateway started"
    return (
        f"{counts['made']} partial aggregates of {counts['updates']} updates, "
        f"{counts['counted']} counted so far"
    )


def _links(transport: Answer) -> Iterator[str]:
    """A line for each transport, and one for the link where it combines several."""
    if "bearers" not in transport:
        yield _link(transport)
        yield from _link_refusals(transport)
        return
    for name, part in transport["bearers"].items():
        frames = f"; {part['frames_sent']} frames sent"
        for line in _links(part):
            yield f"{name}: {line}{frames}"
    if "link" in transport:
        yield f"together: {_objects(transport['link'])}"
        yield from _link_refusals(transport)


def _link(transport: Answer) -> str:
    if "dialect" in transport:
        return _radio(transport)
    if "peer" in transport:
        return _connected(transport, f"{transport['peer']} over BLE")
    protocol = f" with MQTT {transport['protocol']}" if transport["connected"] else ""
    return f"{_connected(transport, transport['broker'])}{protocol}"


def _connected(transport: Answer, end: str) -> str:
    if transport["connected"]:
        return f"connected to {end}"
    return f"not connected to {end}: {transport['last_error']}"


def _radio(transport: Answer) -> str:
    modem = f"the {transport['dialect']} modem at {transport['port']}"
    objects = f", {_objects(transport['link'])}" if "link" in transport else ""
    airtime_s = transport["airtime_us"] / 1e6
    return f"{_connected(transport, modem)}; {airtime_s:.1f} s on the air{objects}"


def _link_refusals(transport: Answer) -> Iterator[str]:
    for peer, reasons in transport.get("link", {}).get("refused", {}).items():
        yield f"the link refused from or for {peer}: {_counts(reasons)} (docs/troubleshooting.md)"


def _objects(link: Answer) -> str:
    return f"{link['objects_under_way']} objects under way, {link['objects_lost']} given up"


def _refusals(answer: Answer, peers: Sequence[Answer] = (), *, on_host: bool) -> Iterator[str]:
    """A line for each reason, unless it is normal so far: how often, of whom, and what to do."""
    for reason, count in sorted(answer["refused"].items()):
        if reason in NORMAL and count < NORMAL_UP_TO:
            continue
        names = [peer["name"] for peer in peers if reason in peer["refused"]]
        of = f" from {shortened(names)}" if names else ""
        yield f"refused {reason} {count}{of}: {why(reason, on_host=on_host)}"


def _counts(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items()))
