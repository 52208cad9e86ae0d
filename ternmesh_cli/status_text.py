"""The answer of a host, a node or a gateway as text for people."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ternmesh_cli import split_text
from transports.control_socket import ControlError

ROUNDS_SHOWN = 5
RELEASES_SHOWN = 3  # bad ones
HASH_SHOWN = 12  # hex digits

Answer = Mapping[str, Any]
NODE_HEADS = (
    *("node", "active", "heard", "packet", "counted", "missed", "samples", "up", "down"),
    *("to past", "to others"),  # similarities
)
ROUND_HEADS = ("reference", "seconds", "counted", "missing", "up", "down")


def describe(answer: Answer) -> Iterator[str]:
    """The lines that `ternmesh status` prints."""
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
    yield f"host of fleet {answer['fleet']}, model {answer['model']}, run {answer['run']}"
    yield from _trust(answer.get("trust"))
    yield from _links(answer["transport"])
    left = "" if answer["deadline_s"] is None else f", {answer['deadline_s']:.0f} s left"
    reference = answer["reference"][:HASH_SHOWN]
    yield (
        f"reference {answer['version']} of {answer['rounds']} ({reference}), "
        f"{answer['phase']}{left}"
    )
    active = sum(node["active"] for node in answer["nodes"])
    yield (
        f"{len(answer['nodes'])} nodes, {active} active, "
        f"a round needs {answer['min_peers']}{_refused(answer)}"
    )
    if answer["nodes"]:
        yield ""
        yield from _table(NODE_HEADS, [_node_row(node) for node in answer["nodes"]])
        yield from (f"{n['name']}{_refused(n)}" for n in answer["nodes"] if n["refused"])
        yield from (f"{n['name']} is drifting" for n in answer["nodes"] if n["drifting"])
        if bundled := [n["name"] for n in answer["nodes"] if n.get("bundle") is not None]:
            yield f"counted last in a gateway's bundle: {', '.join(bundled)}"
    if answer["history"]:
        yield ""
        shown = answer["history"][-ROUNDS_SHOWN:]
        yield from _table(ROUND_HEADS, [_round_row(item) for item in shown])


def _node(answer: Answer) -> Iterator[str]:
    yield f"node {answer['name']} of fleet {answer['fleet']}, model {answer['model']}"
    yield from _trust(answer.get("trust"))
    yield from _links(answer["transport"])
    where = f"of {answer['rounds']}" if answer["rounds"] else "of a run that it has not joined"
    yield f"reference {answer['version']} {where}, {answer['phase']}; {_activity(answer)}"
    yield f"{answer['samples']} samples; {_metric(answer)}"
    yield (
        f"up {_size(answer['bytes_up'])}, down {_size(answer['bytes_down'])} "
        f"since it started{_refused(answer)}"
    )
    outbox = answer["outbox"]
    if outbox is not None:
        fate = "received by the host" if outbox["received"] else "without a receipt"
        yield f"outbox: the packet of round {outbox['round'] + 1}, {_size(outbox['bytes'])}, {fate}"
    releases = answer.get("releases")
    if releases is not None:
        yield from _releases(releases)


def _split_host(answer: Answer) -> Iterator[str]:
    yield from split_text.host_lines(answer)
    yield from _trust(answer.get("trust"))
    yield from _links(answer["transport"])


def _split_board(answer: Answer) -> Iterator[str]:
    yield from split_text.board_lines(answer)
    yield from _trust(answer.get("trust"))
    yield from _links(answer["transport"])


def _trust(trust: Answer | None) -> Iterator[str]:
    if trust is None:
        return
    if trust["mode"] == "insecure":
        yield "INSECURE: without keys, everybody is believed"
    else:
        yield f"keys {trust['fingerprint'][:HASH_SHOWN]}, sealed and signed"
        for peer, count in sorted(trust["clones"].items()):
            copy = f"a copied or set-back disk of {peer}"
            what = "a broadcast that a member has forged" if peer == "all" else copy
            yield f"{count} times {what} was heard: see SECURITY.md"


def _releases(releases: Answer) -> Iterator[str]:
    current = releases["current"]
    yield f"release {current} of the model" if current else "no release: the configured bundle"
    for refused in releases["bad"][-RELEASES_SHOWN:]:
        yield f"release {refused['version']} was bad: {refused['reason']}"
    for refused in releases["not_taken"][-RELEASES_SHOWN:]:
        yield f"release {refused['version']} is not taken: {refused['reason']}"


def _activity(answer: Answer) -> str:
    training = answer["training"]
    if training is None:
        return str(answer["activity"])
    return f"{answer['activity']}, step {training['steps_done']} of {training['steps']}"


def _metric(answer: Answer) -> str:
    name = answer["metric_name"].replace("_", " ")
    if answer["metric"] is not None:
        return f"{name} {answer['metric']:.3g}"
    if answer["source"] is None and answer["history"]:
        return f"{name} not measured: [evaluate] names the data for that"
    return f"{name} not measured yet"


def _gateway(answer: Answer) -> Iterator[str]:
    yield f"gateway for {', '.join(answer['network'])}"
    yield from _trust(answer.get("trust"))
    yield from _links(answer["transport"])
    yield from (f"{board}: {_link(link)}" for board, link in answer["network"].items())
    lost = f", {answer['frames_refused']} too long" if answer["frames_refused"] else ""
    lost += f", {answer['frames_lost']} lost for want of a login" if answer["frames_lost"] else ""
    yield f"{answer['frames_up']} frames up, {answer['frames_down']} down{lost}"
    if answer.get("bundles") is not None:
        yield _bundles(answer["bundles"])


def _bundles(bundles: Answer) -> str:
    if bundles["refused"]:
        return "this host takes no bundles ([run] bundles): packets pass as they come"
    if bundles["run"] is None:
        return "no bundles yet: no board has joined a run since the gateway began"
    return (
        f"{bundles['bundles_made']} bundles of {bundles['packets_bundled']} packets, "
        f"{bundles['bundles_counted']} counted so far"
    )


def _links(transport: Answer) -> Iterator[str]:
    """A line for each bearer, and one for the link where it stands around several."""
    if "bearers" not in transport:
        yield _link(transport)
        yield from _link_refusals(transport)
        return
    for name, bearer in transport["bearers"].items():
        frames = f"; {bearer['frames_sent']} frames sent"
        for line in _links(bearer):
            yield f"{name}: {line}{frames}"
    if "link" in transport:
        yield f"together: {_objects(transport['link'])}"
        yield from _link_refusals(transport)


def _link(transport: Answer) -> str:
    if "dialect" in transport:
        return _radio(transport)
    if "peer" in transport:
        end = f"{transport['peer']} over BLE"
        trouble = "" if transport["connected"] else f": {transport['last_error']}"
        return f"{'connected' if transport['connected'] else 'not connected'} to {end}{trouble}"
    if transport["connected"]:
        return f"connected to {transport['broker']} with MQTT {transport['protocol']}"
    return f"not connected to {transport['broker']}: {transport['last_error']}"


def _radio(transport: Answer) -> str:
    modem = f"the {transport['dialect']} modem at {transport['port']}"
    state = "connected to" if transport["connected"] else "not connected to"
    trouble = "" if transport["connected"] else f": {transport['last_error']}"
    objects = f", {_objects(transport['link'])}" if "link" in transport else ""
    return f"{state} {modem}{trouble}; {transport['airtime_us'] / 1e6:.1f} s on the air{objects}"


def _link_refusals(transport: Answer) -> Iterator[str]:
    for peer, reasons in transport.get("link", {}).get("refused", {}).items():
        shown = ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items()))
        yield f"the link refused from or for {peer}: {shown}"


def _objects(link: Answer) -> str:
    return f"{link['objects_under_way']} objects under way, {link['objects_lost']} given up"


def _refused(answer: Answer) -> str:
    reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(answer["refused"].items()))
    return f"; refused: {reasons}" if reasons else ""


def _node_row(node: Answer) -> tuple[str, ...]:
    heard = node["heard_s_ago"]
    return (
        node["name"],
        "yes" if node["active"] else "no",
        "never" if heard is None else f"{heard:.0f} s ago",
        node["delivered"],
        str(node["rounds_counted"]),
        str(node["rounds_missed"]),
        str(node["samples"]),
        _size(node["bytes_up"]),
        _size(node["bytes_down"]),
        _similarity(node["similarity_own"]),
        _similarity(node["similarity_others"]),
    )


def _similarity(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _round_row(item: Answer) -> tuple[str, ...]:
    return (
        str(item["version"]),
        f"{item['seconds']:.1f}",
        ", ".join(item["counted"]),
        ", ".join(item["missing"]) or "-",
        _size(sum(item["bytes_up"].values())),
        _size(item["bytes_down"]),
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for row in (heads, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _size(count: int) -> str:
    return f"{count} B" if count < 10_000 else f"{count / 1000:.1f} kB"
