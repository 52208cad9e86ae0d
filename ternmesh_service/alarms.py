"""What an owner should look at now: pure functions of a status, each alarm with what to do.

`ternmesh status`, `ternmesh doctor` and the page show the same list.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ternmesh.federated.channel import KNOCKS
from ternmesh.federated.refusals import DIVERGED, NO_ANSWER, NORMAL_UP_TO, is_normal, shortened, why
from ternmesh.federated.reputation import ABSENT, ALIKE, MUTED, PINNED
from ternmesh.wire.control import FINISHED, PHASES
from ternmesh_service.status import (
    WITHDRAWN,
    BoardStatus,
    GatewayStatus,
    HostedBoard,
    HostStatus,
    MachineStatus,
    SplitHostStatus,
    SplitPeer,
    Status,
    reasons,
)
from ternmesh_store.host_store import StoredRound
from transports.base import ALL, HOST, TransportStatus

GOOD, WARN, BAD, OFF = "good", "warn", "bad", "off"
DELIVERED = {"whole": "update is here", "part": "sending", "silent": "nothing new"}
SILENT_S = 600.0  # after which a board that no round waits for is an alarm, and a report is old
START_S = 120.0  # in which a program waits for others after its start
LINK_S = 15.0  # the same for its link
DISK_MB = 500.0
PAUSED = "paused: "  # the activity of a board that is too hot, or short of memory
HOT = f"{PAUSED}too hot"
JOINING = "joining"
STRAYS = 100  # malformed arrivals from which on they are an alarm
FALL = 0.05  # of the accuracy below its best, both as medians of RECENT rounds
BOARD_FALL = 0.1  # the same for one board
RECENT = 5  # rounds
WEIGHT = 0.5  # a board that counts less is an alarm
ENDS_DAYS = 21.0
ALARMS_MAX = 50
DOCTOR = "ask `ternmesh doctor`"
SOURCE = "mend [data], or what its source reads; it is tried again by itself"
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Alarm:
    """`about` is a board, or empty for the whole."""

    level: str
    about: str
    text: str
    advice: str

    @property
    def sentence(self) -> str:
        return f"{self.about}{self.about and ': '}{self.text}: {self.advice}"


def alarms(status: Status, rounds: Sequence[StoredRound] | None = None) -> list[Alarm]:
    """The alarms of a program, worst first, at most `ALARMS_MAX`.

    `rounds` are all that are known of a host's run, where the status has only the newest.
    """
    machine = getattr(status, "machine", None)  # a split training and a gateway tell none
    is_new = machine is not None and machine.up_s < LINK_S
    found = [] if is_new else [*_links(status.transport, "")]
    found += [*_security(status), *_refusals(status)]
    match status:
        case HostStatus():
            rounds = status.history if rounds is None else rounds
            members = [board for board in status.nodes if not board.revoked]
            found += [*_machine(status.machine), *_fleet(status)]
            found += [alarm for board in members for alarm in _board(board, status)]
            found += [*_fallen(rounds)] or [*_fallen_boards(members, rounds)]
        case BoardStatus():
            found += [*_machine(status.machine), *_own(status)]
        case GatewayStatus():
            for board, transport in status.network.items():
                found += _links(transport, board)
    found.sort(key=lambda alarm: (alarm.level != BAD, alarm.about))
    return found[:ALARMS_MAX]


def is_over(status: HostStatus) -> bool:
    """Whether the run is over, so that no round waits for any board."""
    return status.phase == PHASES[FINISHED]


def board_state(board: HostedBoard, status: HostStatus) -> tuple[str, str]:
    """How a board does, and the word for it: GOOD, WARN, BAD, or OFF where it is revoked."""
    if board.revoked:
        return OFF, "revoked"
    if board.reason == MUTED:
        return WARN, "muted"
    if board.board.wanted.get("pause"):
        return WARN, "paused"
    if not (board.active or is_over(status)):
        return BAD, "not heard yet" if board.heard_s_ago is None else "silent"
    activity = str(board.board.report.get("activity", ""))
    if activity.startswith(PAUSED) and _is_new(board):
        return WARN, activity.removeprefix(PAUSED)
    if board.weight < WEIGHT:
        return WARN, "doubted"
    return GOOD, "finished" if is_over(status) else DELIVERED.get(board.delivered, "at work")


def _is_new(board: HostedBoard) -> bool:
    """Whether its report says something of now."""
    return (board.board.reported_s_ago or 0.0) < SILENT_S


def _links(transport: TransportStatus, about: str, name: str = "") -> Iterator[Alarm]:
    for part, bearer in transport.bearers.items():
        yield from _links(bearer, about, part)
    if not (transport.connected or transport.bearers):
        text = f"the link{name and ' '}{name} is down: {transport.last_error}"
        yield Alarm(BAD, about, text, DOCTOR)
    numbers = {key: value or 0 for key, value in transport.numbers.items()}
    is_mute = numbers.get("refused", 0) > 0 and not transport.bytes_out
    often = [(reason, n) for reason, n in transport.refusals.items() if n >= NORMAL_UP_TO]
    for reason, n in transport.refusals.items() if is_mute else often:
        text = f"{transport.end}: {n} frames were not sent: {reason}"
        level, more = (BAD, "; not one was sent") if is_mute else (WARN, "")
        yield Alarm(level, about, f"{text}{more}", "see docs/troubleshooting.md")
    for text in (*transport.remarks, *_strays(numbers)):
        yield Alarm(WARN, about, f"{transport.end}: {text}", "see docs/troubleshooting.md")
    for peer, refused in (transport.link.refused if transport.link else {}).items():
        shown = ", ".join(f"{reason} {count}" for reason, count in sorted(refused.items()))
        text = f"the link refused from or for {peer}: {shown}"
        yield Alarm(WARN, about, text, "see docs/troubleshooting.md")


def _strays(numbers: Mapping[str, int]) -> Iterator[str]:
    """What arrived and is not ours, unless it is a small part; a radio hears frames for others."""
    malformed, ours = numbers.get("malformed", 0), numbers.get("frames_in", 0)
    if malformed >= max(STRAYS, ours / STRAYS):
        yield f"{malformed} arrivals are malformed: another program sends here, or they are damaged"
    if (foreign := numbers.get("foreign", 0)) >= STRAYS and not ours:
        yield f"{foreign} frames are for others, and none is for this end: check the addresses"


def _security(status: Status) -> Iterator[Alarm]:
    if status.security is None:
        return
    if status.security.is_insecure:
        text = "INSECURE: there are no keys, so every message is accepted"
        yield Alarm(WARN, "", text, "start without --insecure")
    for peer, count in sorted(status.security.clones.items()):
        text = f"received {count} times: frames from a copied or restored disk of {peer}"
        if peer == ALL:
            text = f"received {count} times: a broadcast that a member has forged"
        elif peer == getattr(status, "name", HOST):
            text = f"its disk was copied or restored, as others have seen {count} times"
        yield Alarm(BAD, "" if peer == ALL else peer, text, "see SECURITY.md")


def _refusals(status: Status) -> Iterator[Alarm]:
    """One for each reason, unless it is normal so far: how often, of whom, and what to do."""
    if isinstance(status, GatewayStatus):
        return
    peers: Sequence[HostedBoard | SplitPeer] = ()
    if isinstance(status, HostStatus):
        peers = status.nodes
    elif isinstance(status, SplitHostStatus):
        peers = status.boards
    on_host = isinstance(status, HostStatus | SplitHostStatus)
    named = set(status.knocking.values()) if isinstance(status, HostStatus) else set()
    for reason, count in sorted(status.refused.items()):
        if not is_normal(reason, count) and reason not in named:
            names = [peer.name for peer in peers if reason in peer.refused]
            sender = f" from {shortened(names)}" if names else ""
            yield Alarm(WARN, "", f"refused {reason} {count}{sender}", why(reason, on_host=on_host))


def _machine(machine: MachineStatus) -> Iterator[Alarm]:
    free_mb = machine.disk_free_mb
    if free_mb is not None and free_mb < DISK_MB:
        text = f"only {free_mb:.0f} MB are free here"
        yield Alarm(BAD, "", text, "make room on this disk")
    if machine.loss:
        yield Alarm(BAD, "", machine.loss, "`ternmesh backup`, stop it, and `ternmesh restore`")
    for text in machine.not_served:
        yield Alarm(WARN, "", text, "it is tried again by itself")
    for name, left_s in machine.certificates.items():
        if left_s < ENDS_DAYS * DAY_S:
            ends = f"ends in {left_s / DAY_S:.0f} days" if left_s > 0 else "has ended"
            level = BAD if left_s < 3 * DAY_S else WARN
            yield Alarm(level, "", f"the certificate {name} {ends}", "renew it")


def _own(status: BoardStatus) -> Iterator[Alarm]:
    if status.activity.startswith("revoked"):
        yield Alarm(BAD, "", "the host has revoked this board", "ask the owner of the fleet")
    if status.activity.startswith(PAUSED):
        yield Alarm(WARN, "", f"training is {status.activity}", status.held_back)
    is_told = any(reason in status.refused for reason in KNOCKS)  # why: that is an alarm already
    has_started = status.machine.up_s >= START_S and not is_told
    if has_started and status.activity == JOINING and status.transport.connected:
        yield Alarm(WARN, "", "this board has not joined a run yet", NO_ANSWER)
    if status.diverged:
        yield Alarm(WARN, "", f"training diverged in {status.diverged} rounds", DIVERGED)
    if status.aside.newest:
        is_file = status.aside.count == status.aside.in_files
        look = "look at them with `ternmesh data list`"
        advice = "repair that file, or remove it" if is_file else look
        yield Alarm(WARN, "", status.aside.sentence(), advice)
    live = status.source and status.source.live
    counters = status.source.counters if status.source else {}
    if live and live.left_out and not (counters["samples"] or counters["repeated"]):
        shown = "; ".join(reasons(live.left_out, live.first)[:3])
        text = f"no sample has come from the source since the start; left out: {shown}"
        yield Alarm(WARN, "", text, "see docs/live-data.md")
    if status.source is not None and status.source.last_failure:
        text = f"the source of samples failed: {status.source.last_failure}"
        yield Alarm(WARN, "", text, SOURCE)
    if status.releases is not None:
        for version, reason in (*status.releases.bad[-1:], *status.releases.not_taken[-1:]):
            text = f"release {version} was rejected here: {reason}"
            yield Alarm(WARN, "", text, "it needs another release, with a higher version")


def _fleet(status: HostStatus) -> Iterator[Alarm]:
    if status.behind:
        yield Alarm(BAD, "", status.behind, "keep this host running until it has caught up")
    if status.remark:
        yield Alarm(WARN, "", status.remark, "see [run] aggregation")
    for name, how in status.caught.items():
        text = f"the aggregator {name} has lied: {how}"
        yield Alarm(BAD, "", text, "it is muted: let its boards join this host, and look at it")
    if (above := status.upstream) is not None and not (above.transport.connected and above.joined):
        text = "the host above is not reached: nothing of this region counts meanwhile"
        yield Alarm(WARN, "", text, above.transport.last_error or "see [upstream], and that host")
    if (seat := status.agreement) is not None and seat.missing:
        names = ", ".join(seat.missing)
        if seat.has_quorum:
            yield Alarm(WARN, "", f"nothing is heard of the voters {names}", "start them again")
        else:
            text = (
                f"nothing is learned: {seat.needed} voters must agree; nothing is heard of {names}"
            )
            yield Alarm(BAD, "", text, "start them, and see that all reach the broker")
    if status.min_peers == 1:
        text = "a round needs one board alone, and what that sends is checked by nobody"
        yield Alarm(WARN, "", text, "set run.min_peers = 2 or more")
    for name, reason in sorted(status.knocking.items()):
        yield Alarm(WARN, name, f"asks to take part: {reason}", why(reason, on_host=True))
    release = status.release
    if release is not None and release.reason not in ("", WITHDRAWN):
        version = "" if release.version is None else f" {release.version}"
        text = f"release{version} was rejected: {release.reason}"
        yield Alarm(WARN, "", text, "publish another, with a higher version")
    if is_over(status):
        again = "`ternmesh host --continue` goes on from here once this host is stopped"
        if status.upstream is not None:
            again = "it goes on with the next run of the host above"
        yield Alarm(WARN, "", "the run is over: nothing more is learned", again)
    elif _lacks_boards(status) and status.machine.up_s >= START_S:
        active = sum(board.active for board in status.nodes)
        text = f"{active} of the {status.min_peers} boards that a round needs are here"
        yield Alarm(WARN, "", text, "start boards, or lower run.min_peers")


def _lacks_boards(status: HostStatus) -> bool:
    return sum(board.active for board in status.nodes) < status.min_peers


def _fallen(rounds: Sequence[StoredRound]) -> Iterator[Alarm]:
    """The accuracy of the fleet, where it fell."""
    judged = [row for row in rounds if row.accuracy is not None]
    # Of as many boards as now: one more has other samples
    alike = [row for row in judged if row.evaluations == judged[-1].evaluations]
    known = [(row.version, row.accuracy) for row in alike if row.accuracy is not None]
    if fall := _fall([accuracy for _, accuracy in known], FALL):
        last = known[fall[0] + RECENT - 1][0] - 1
        text = f"the accuracy of the fleet fell {fall[1]}"
        back = f"`ternmesh host --return-to {last}` goes back"
        yield Alarm(BAD, "", text, f"look for doubted boards; {back}")


def _fall(values: Sequence[float], limit: float) -> tuple[int, str] | None:
    """Where the best `RECENT` values begin, and from what to what they fell, as medians.

    None where the newest are not worse by `limit`.
    """
    starts = range(0, len(values) - 2 * RECENT + 1, RECENT)
    medians = {at: median(values[at : at + RECENT]) for at in starts}
    if not medians:
        return None
    best, now = max(medians, key=medians.__getitem__), median(values[-RECENT:])
    fell = medians[best] - now > limit
    return (best, f"from {medians[best]:.1%} to {now:.1%}") if fell else None


def _board(board: HostedBoard, status: HostStatus) -> Iterator[Alarm]:
    name, heard_s, report = board.name, board.heard_s_ago, board.board.report
    silent_s = status.machine.up_s if heard_s is None else heard_s
    if not (board.active or is_over(status)) and silent_s >= SILENT_S:
        since = "since this host started" if heard_s is None else f"for {_time(heard_s)}"
        until = "no round ends until enough boards are here"
        effect = until if _lacks_boards(status) else "rounds go on without it"
        advice = f"check its power and its link: {effect}"
        yield Alarm(BAD, name, f"silent {since}", advice)
    if board.weight < WEIGHT and board.reason not in (PINNED, MUTED):
        since = f" since global update {board.since}" if board.since else ""
        advice = "look at its samples and labels; mute or revoke it if it lies"
        advice = "check its power and its link" if board.reason == ABSENT else advice
        if board.reason == ALIKE:
            advice = "no fault where they hear the same: together they count as one board"
        yield Alarm(WARN, name, f"counts {board.weight:.0%}{since}: {board.reason}", advice)
    if board.influence is not None and board.influence.norm == 0:
        yield Alarm(WARN, name, "sends empty updates", "see its log: training may diverge there")
    free_mb = report.get("disk_free_mb", DISK_MB)
    if isinstance(free_mb, float | int) and free_mb < DISK_MB:
        text = f"{free_mb:.0f} MB of its disk were free at its last report"
        yield Alarm(WARN, name, text, "make room: a full disk stops its learning")
    if report.get("activity") == HOT and _is_new(board):
        yield Alarm(WARN, name, f"too hot: {report.get('temperature_c')} °C", "cool it")


def _fallen_boards(
    members: Sequence[HostedBoard], rounds: Sequence[StoredRound]
) -> Iterator[Alarm]:
    """Boards that still report, and whose own accuracy fell."""
    reporting = {name for row in rounds[-RECENT:] for name in row.reports}
    for board in members:
        if not (board.active and board.weight > 0 and board.name in reporting):
            continue
        reports = [row.reports[board.name][1] for row in rounds if board.name in row.reports]
        values = [accuracy for accuracy in reports if accuracy is not None]
        if fall := _fall(values, BOARD_FALL):
            advice = "look at its sensor: what it hears or sees may have changed"
            yield Alarm(WARN, board.name, f"its own accuracy fell {fall[1]}", advice)


def _time(seconds: float) -> str:
    minutes = seconds / 60
    if minutes < 120:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:.0f} h" if minutes < 2880 else f"{minutes / 1440:.0f} days"
