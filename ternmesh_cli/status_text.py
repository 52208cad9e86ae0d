"""The text of `ternmesh status`: what a program says of itself, and its alarms."""

from collections.abc import Iterator, Sequence

from ternmesh.federated.management import settings_text
from ternmesh.federated.refusals import shortened
from ternmesh.plan import of_rounds
from ternmesh_cli.predict import figures_text
from ternmesh_service.alarms import BAD, PAUSED, alarms, board_state, is_over
from ternmesh_service.status import (
    BoardStatus,
    GatewayStatus,
    HostedBoard,
    HostStatus,
    PublishedRelease,
    SourceStatus,
    SplitBoardStatus,
    SplitHostStatus,
    Status,
    reasons,
)
from ternmesh_store.host_store import StoredRound
from transports.base import HOST, TransportStatus
from transports.driver import PeerTraffic

NO_REPORT = "no report yet: away, on a slow link, or of an older version"
NO_DATA = ": [evaluate] names the data for that"
CPU = "CPUExecutionProvider"
ROUNDS_SHOWN = 5
RELEASES_SHOWN = 3  # refused ones
HASH_SHOWN = 12  # hex digits
# Weight is that of the newest round, trust a factor of it, and "to others" the cosine of recent
# updates to theirs. Software is shown where it is not the host's everywhere.
BOARD_HEADS = (
    "board", "state", "heard", "counted", "missed", "weight", "samples", "up", "down", "trust",
    "to others", "software",
)  # fmt: skip
ROUND_HEADS = ("version", "seconds", "counted", "missing", "up", "down", "loss before", "accuracy")


def describe(status: Status) -> Iterator[str]:
    """The lines of a status; its alarms come after what it is and where it stands."""
    match status:
        case HostStatus():
            yield from _host(status)
        case BoardStatus():
            yield from _board(status)
        case GatewayStatus():
            yield from _gateway(status)
        case SplitHostStatus():
            yield from _split_host(status)
        case SplitBoardStatus():
            yield from _split_board(status)
    for alarm in alarms(status):
        yield f"{'ALARM' if alarm.level == BAD else 'warning'}: {alarm.sentence}"
    if isinstance(status, HostStatus):
        yield from _tables(status)


def _host(status: HostStatus) -> Iterator[str]:
    end = "" if status.rounds else " without end"
    yield f"host of fleet {status.fleet}, model {status.model}, run {status.run}{end}"
    yield from _connection(status)
    left = "" if status.deadline_s is None else f", {status.deadline_s:.0f} s left"
    digest = status.global_hash[:HASH_SHOWN]
    yield (
        f"global adapter {status.version}{of_rounds(status.rounds)} ({digest}), "
        f"{status.phase}{left}"
    )
    if status.carried_from:
        run, version = status.carried_from.split()
        yield f"begun with the adapter of run {run}, global adapter {version}"
    if (seat := status.agreement) is not None:
        mean_s = seat.decision_mean_s
        took = "" if mean_s is None else f", decisions take {mean_s:.2f} s"
        leader = seat.leader if seat.has_quorum else "nobody"
        yield f"voter {seat.name} of {', '.join(seat.voters)}: {leader} leads{took}"
    if (above := status.upstream) is not None:
        where = f"has global adapter {above.version}" if above.joined else "does not answer"
        yield f"adds up for the host above, which {where}"
    active = sum(board.active for board in status.nodes)
    takes_part = f"{active} active, a round needs {status.min_peers}"
    yield f"{len(status.nodes)} boards, {'the run is over' if is_over(status) else takes_part}"
    if status.returned:
        yield status.returned
    if status.teaching is not None:
        sent = status.teaching.sent
        when = "none yet" if sent is None else f"the last at global adapter {sent}"
        yield f"knowledge packets of other groups: {when}"
        for name, why_less in status.teaching.less.items():
            yield f"{name} teaches less: {why_less}"
    if status.release is not None:
        yield from published(status.release)


def _tables(status: HostStatus) -> Iterator[str]:
    """The boards, what is special of some of them, and the newest rounds."""
    if status.nodes:
        yield ""
        present = [board for board in status.nodes if not board.revoked]
        known = {board.board.software for board in present} - {None, status.software}
        cells = None if known else -1
        rows = [_board_row(board, status)[:cells] for board in status.nodes]
        yield from table(BOARD_HEADS[:cells], rows)
        yield from _remarks(present, status.software)
    if status.history:
        yield ""
        shown = status.history[-ROUNDS_SHOWN:]
        cells = None if any(row.evaluations for row in shown) else -2
        yield from table(ROUND_HEADS[:cells], [_round_row(row)[:cells] for row in shown])
        if cells is None and any(row.accuracy is None for row in shown):
            yield "accuracy -: in that round the boards told something else in its place"


def _remarks(boards: Sequence[HostedBoard], software: str) -> Iterator[str]:
    clipped = [
        f"{board.name} to {board.influence.clipped:.0%}"
        for board in boards
        if board.influence is not None and board.influence.clipped < 1
    ]
    silent = [board.name for board in boards if board.board.software is None]
    others = [b.name for b in boards if b.board.software not in (None, software)]
    regions = [f"{board.name} of {board.members} boards" for board in boards if board.members]
    for sentence, names in (
        ("longer than updates usually are, and cut", clipped),
        (f"other versions than this host's {software}", others),
        (NO_REPORT, silent),
        ("settings not taken yet", [board.name for board in boards if board.board.behind]),
        ("unlike the others", [board.name for board in boards if board.unlike]),
        ("aggregators", regions),
    ):
        if names:
            yield f"{sentence}: {shortened(names)}"


def _board_row(board: HostedBoard, status: HostStatus) -> tuple[str, ...]:
    heard, agreement = board.heard_s_ago, board.agreement
    return (
        board.name,
        board_state(board, status)[1],
        "never" if heard is None else f"{heard:.0f} s ago",
        str(board.rounds_counted),
        str(board.rounds_missed),
        "-" if board.influence is None else f"{board.influence.share:.0%}",
        str(board.samples),
        size(board.bytes_up),
        size(board.bytes_down),
        f"{board.weight:.0%}",
        "-" if agreement is None else f"{agreement:.2f}",
        board.board.software or "-",
    )


def _round_row(row: StoredRound) -> tuple[str, ...]:
    return (
        str(row.version),
        f"{row.seconds:.1f}",
        shortened(row.counted),
        shortened(row.missing) or "-",
        size(sum(row.bytes_up.values())),
        size(row.bytes_down),
        "-" if row.loss is None else f"{row.loss:.3f}",
        _accuracy(row),
    )


def _accuracy(row: StoredRound) -> str:
    told = sum(accuracy is not None for _, accuracy in row.reports.values())
    on = f" on {told} boards" if told else ""
    return "-" if row.accuracy is None else f"{row.accuracy:.1%}{on}"


def _board(status: BoardStatus) -> Iterator[str]:
    yield f"board {status.name} of fleet {status.fleet}, model {status.model}"
    yield from _connection(status)
    if status.belongs_to:
        trips = [f"{name} {1000 * s:.0f} ms" for name, s in sorted(status.trips_s.items())]
        yield f"belongs to {status.belongs_to}; round trips: {', '.join(trips) or 'none yet'}"
    total = ", no run joined yet" if status.rounds is None else of_rounds(status.rounds)
    yield f"global adapter {status.version}{total}, {status.phase}; {_activity(status)}"
    aside = f", {amount} set aside" if (amount := status.aside.amount()) else ""
    yield f"{status.samples} samples{aside}; {_metric(status)}"
    if status.provider not in ("", CPU):
        yield f"training runs on {status.provider}"
    if status.source is not None:
        yield _samples(status.source)
        if (live := status.source.live) is not None and live.left_out:
            yield f"left out: {'; '.join(reasons(live.left_out, live.first))}"
        if live is not None and live.behind:
            yield f"the source is behind: {size(live.behind)} are not read yet"
        if status.source.words is not None:
            yield status.source.words.sentence()
    if (known := status.knowledge) is not None:
        less = f"; {known.remark}" if known.remark else ""
        yield (
            f"taught by other models: {known.known} of {known.samples} samples, by a teacher of "
            f"accuracy {known.teacher_accuracy:.3g}{less}"
        )
    # On the air or not yet
    up = "up" if status.transport.link is None else "handed to the link"
    yield f"{up} {size(status.bytes_up)}, down {size(status.bytes_down)} since it started"
    if status.settings:
        yield f"set by the host: {settings_text(status.settings)}"
    if (outbox := status.outbox) is not None:
        fate = "received by the host" if outbox.received else "no receipt yet"
        yield f"outbox: the update of round {outbox.round + 1}, {size(outbox.bytes)}, {fate}"
    yield from _releases(status)
    if status.predict is not None:
        yield from figures_text(status.predict)


def _activity(status: BoardStatus) -> str:
    doing = status.activity
    if doing.startswith(PAUSED):
        doing = f"{PAUSED}{status.held_back}"
    if status.training is None:
        return doing
    return f"{doing}, step {status.training.steps_done} of {status.training.steps}"


def _metric(status: BoardStatus) -> str:
    name = status.metric_name.replace("_", " ")
    if status.metric is None:
        is_without = status.source is None and status.history
        return f"{name} not measured" + (NO_DATA if is_without else " yet")
    of = f" of {status.metric_samples} samples" if status.metric_samples else ""
    return f"{name} {status.metric:.3g}{of}"


def _samples(source: SourceStatus) -> str:
    last, counters = source.last_label, source.counters
    newest = f", the last one: {last[0]!r} is {last[1]}" if last else ""
    labels = ", ".join(f"{label} {count}" for label, count in sorted(source.by_label.items()))
    return (
        f"{source.waiting} wait for a label; by label: {labels or 'none'}{newest}; "
        f"{counters['refused']} refused, {counters['unmatched']} labels without a sample, "
        f"{counters['evicted'] + counters['expired']} made room"
    )


def _releases(status: BoardStatus) -> Iterator[str]:
    if (releases := status.releases) is not None:
        model = "no release: the configured model package"
        yield f"release {releases.current} of the model" if releases.current else model
        for version, reason in releases.bad[-RELEASES_SHOWN:]:
            yield f"release {version} was bad: {reason}"
        for version, reason in releases.not_taken[-RELEASES_SHOWN:]:
            yield f"release {version} is not taken: {reason}"
    if (incoming := status.incoming) is not None:
        reason = f": {incoming.reason}" if incoming.reason else ""
        yield (
            f"release {incoming.version} over the link: {incoming.state}, "
            f"{incoming.held:.0%} here{reason}"
        )


def published(release: PublishedRelease | None) -> Iterator[str]:
    """How far the boards are with the release that a host has published."""
    if release is None or release.version is None:
        yield "no release is published" if release is None else release.reason
        return
    why_not = f": {release.reason}" if release.reason else ""
    yield (
        f"release {release.version} is {release.stage}{why_not}; {size(release.bytes)}, "
        f"about {release.eta_s:.0f} s of sending left"
    )
    for name, board in sorted(release.boards.items()):
        away = ", away" if board.away else ""
        reason = f": {board.reason}" if board.reason else ""
        yield f"{name}: {board.state}, {board.held:.0%} here{away}{reason}"


def _gateway(status: GatewayStatus) -> Iterator[str]:
    yield f"gateway for {', '.join(status.network)}"
    yield from _connection(status)
    for board, transport in status.network.items():
        yield from (f"{board}: {line}" for line in _links(transport))
    lost = f", {status.frames_refused} too long" if status.frames_refused else ""
    lost += f", {status.frames_lost} lost before the login" if status.frames_lost else ""
    yield f"{status.frames_up} frames up, {status.frames_down} down{lost}"


def _split_host(status: SplitHostStatus) -> Iterator[str]:
    loss = "" if status.loss is None else f"; loss {status.loss:.3f}"
    accuracy = "" if status.accuracy is None else f"; accuracy {status.accuracy:.1%}"
    yield (
        f"split training in fleet {status.fleet}, run {status.run}, {status.phase}: "
        f"{status.steps} steps{loss}{accuracy}"
    )
    for board in status.boards:
        ago = board.heard_s_ago
        heard = "never heard" if ago is None else f"heard {ago:.0f} s ago"
        yield (
            f"{board.name}: {board.number} of {status.micro_batches} micro-batches, "
            f"{board.skipped} skipped, {heard}"
        )
    yield from _connection(status)


def _split_board(status: SplitBoardStatus) -> Iterator[str]:
    total, counts = status.micro_batches, status.counts
    where = f" of {total} micro-batches" if total else ", not joined yet"
    accuracy = "" if status.accuracy is None else f"; accuracy {status.accuracy:.1%}"
    yield f"board {status.name} of fleet {status.fleet}, model {status.model}, run {status.run}"
    yield (
        f"{status.number}{where}, {status.phase}: {counts.get('lost', 0)} lost, "
        f"{counts.get('diverged', 0)} diverged{accuracy}"
    )
    moved = status.traffic.get(HOST, PeerTraffic())
    yield (
        f"{status.samples} samples; up {size(moved.bytes_out)}, down {size(moved.bytes_in)} since "
        "it started"
    )
    yield from _connection(status)


def _connection(status: Status) -> Iterator[str]:
    """The keys and links of any program."""
    if status.security is not None and not status.security.is_insecure:
        yield f"keys {status.security.fingerprint[:HASH_SHOWN]}, sealed and signed"
    yield from _links(status.transport)


def _links(transport: TransportStatus) -> Iterator[str]:
    """A line for each transport, and one for the link where it combines several."""
    for name, bearer in transport.bearers.items():
        for line in _links(bearer):
            yield f"{name}: {line}; {bearer.numbers['frames_sent']} frames sent"
    link = transport.link
    objects = link and f"{link.objects_under_way} objects under way, {link.objects_lost} given up"
    if not transport.bearers:
        state = "connected" if transport.connected else "not connected"
        air_us = transport.airtime_us
        air = None if air_us is None else f"{air_us / 1e6:.1f} s on the air"
        counted = ", ".join(text for text in (air, objects) if text)
        yield f"{state} to {transport.end}{'; ' if counted else ''}{counted}"
    elif objects:
        yield f"together: {objects}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for row in (heads, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def size(count: int) -> str:
    return f"{count} B" if count < 10_000 else f"{count / 1000:.1f} kB"
