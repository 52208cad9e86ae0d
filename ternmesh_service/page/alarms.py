"""What an owner should look at now: pure functions of a status, each alarm with what to do."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ternmesh.wire.control import FINISHED, PHASES

Answer = Mapping[str, Any]

BAD, WARN = "bad", "warn"
SILENT_S = 600.0  # after which a board that no round waits for is an alarm, and a report is old
DISK_MB = 500.0
HOT = "paused: too hot"
FALL = 0.05  # of the accuracy below its best, both as medians of RECENT rounds
BOARD_FALL = 0.1  # the same for one board
RECENT = 5  # rounds
WEIGHT = 0.5  # a board that counts less is an alarm
ENDS_DAYS = 21.0
ALARMS_MAX = 50
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Alarm:
    """`about` is a board, or empty for the whole."""

    level: str
    about: str
    text: str
    advice: str


@dataclass(frozen=True, slots=True)
class Machine:
    """What the page knows of the machine that serves it."""

    disk_free_mb: float
    certificates: Mapping[str, float]  # seconds until each ends
    up_s: float = SILENT_S  # since the program started


def alarms(answer: Answer, rounds: Sequence[Answer], machine: Machine) -> list[Alarm]:
    """The alarms of a host or node, worst first, at most `ALARMS_MAX`."""
    found = [*_machine(answer, machine)]
    if answer.get("role") == "host":
        fallen = [*_fallen(rounds)]
        found += [*_fleet(answer), *_boards(answer, machine), *fallen]
        found += [] if fallen else _fallen_boards(answer, rounds)
    if answer.get("role") == "node":
        found += _node(answer)
    found.sort(key=lambda alarm: (alarm.level != BAD, alarm.about))
    return found[:ALARMS_MAX]


def _machine(answer: Answer, machine: Machine) -> Iterator[Alarm]:
    transport = answer.get("transport") or {}
    if transport.get("connected") is False:
        yield Alarm(
            BAD, "", f"the link is down: {transport.get('last_error')}", "ask `ternmesh doctor`"
        )
    if (answer.get("security") or {}).get("mode") == "insecure":
        yield Alarm(
            WARN, "", "there are no keys: every message is accepted", "start without --insecure"
        )
    if machine.disk_free_mb < DISK_MB:
        yield Alarm(
            BAD, "", f"only {machine.disk_free_mb:.0f} MB are free here", "make room on this disk"
        )
    for name, left_s in machine.certificates.items():
        if left_s < ENDS_DAYS * DAY_S:
            ends = f"ends in {left_s / DAY_S:.0f} days" if left_s > 0 else "has ended"
            yield Alarm(
                BAD if left_s < 3 * DAY_S else WARN,
                "",
                f"the certificate {name} {ends}",
                "renew it",
            )


def _node(answer: Answer) -> Iterator[Alarm]:
    activity = str(answer["activity"])
    if activity.startswith("revoked"):
        yield Alarm(BAD, "", "the host has revoked this board", "ask the owner of the fleet")
    if activity.startswith("paused: "):
        yield Alarm(WARN, "", f"training is {activity}", str(answer.get("held_back") or ""))
    if answer.get("diverged"):
        text = f"training diverged in {answer['diverged']} rounds"
        yield Alarm(WARN, "", text, "look at this board's samples and labels")
    if failure := (answer.get("source") or {}).get("last_failure"):
        yield Alarm(WARN, "", f"the source of samples failed: {failure}", "ask `ternmesh doctor`")


def _fleet(answer: Answer) -> Iterator[Alarm]:
    if answer["behind"]:
        yield Alarm(BAD, "", answer["behind"], "keep this host running until it has caught up")
    if remark := answer["aggregation"]["remark"]:
        yield Alarm(WARN, "", remark, "see [run] aggregation")
    for peer, count in (answer.get("security") or {}).get("clones", {}).items():
        text = f"frames from a copied or restored disk arrived {count} times"
        yield Alarm(BAD, "" if peer == "all" else peer, text, "see SECURITY.md")
    here, needed = sum(node["active"] for node in answer["nodes"]), answer["min_peers"]
    if here < needed and not _is_over(answer):
        text = f"{here} of the {needed} boards that a round needs are here"
        yield Alarm(WARN, "", text, "start boards, or lower run.min_peers")


def _is_over(answer: Answer) -> bool:
    return bool(answer["phase"] == PHASES[FINISHED])


def _fallen(rounds: Sequence[Answer]) -> Iterator[Alarm]:
    """The accuracy of the fleet, where it fell."""
    known = [row for row in rounds if row["accuracy"] is not None]
    values = [row["accuracy"] for row in known]
    if (at := _fall(values, FALL)) is not None:
        fell = f"from {median(values[at : at + RECENT]):.1%} to {median(values[-RECENT:]):.1%}"
        yield Alarm(
            BAD,
            "",
            f"the accuracy of the fleet fell {fell}",
            "look for doubted boards; `ternmesh host --return-to "
            f"{known[at + RECENT - 1]['version'] - 1}` goes back",
        )


def _fall(values: Sequence[float], limit: float) -> int | None:
    """Where the best `RECENT` values begin, if the newest are worse by `limit`, as medians."""
    starts = range(0, len(values) - 2 * RECENT + 1, RECENT)
    best = max(starts, key=lambda at: median(values[at : at + RECENT]), default=None)
    if best is None or median(values[best : best + RECENT]) - median(values[-RECENT:]) <= limit:
        return None
    return best


def _boards(answer: Answer, machine: Machine) -> Iterator[Alarm]:
    for node in answer["nodes"]:
        name, heard_s, report = node["name"], node["heard_s_ago"], node["board"]["report"]
        if node["revoked"]:
            continue
        silent_s = machine.up_s if heard_s is None else heard_s
        if not (node["active"] or _is_over(answer)) and silent_s >= SILENT_S:
            since = "since this host started" if heard_s is None else f"for {_time(heard_s)}"
            advice = "check its power and its link: rounds go on without it"
            yield Alarm(BAD, name, f"silent {since}", advice)
        standing = node["standing"]
        if standing["weight"] < WEIGHT and "owner" not in standing["reason"]:
            yield Alarm(
                WARN,
                name,
                f"counts {standing['weight']:.0%}: {standing['reason']}",
                "look at its samples and labels; mute or revoke it if it lies",
            )
        if report.get("disk_free_mb", DISK_MB) < DISK_MB:
            text = f"{report['disk_free_mb']:.0f} MB of its disk were free at its last report"
            yield Alarm(WARN, name, text, "make room: a full disk stops its learning")
        is_new = (node["board"]["reported_s_ago"] or 0.0) < SILENT_S
        if report.get("activity") == HOT and is_new:
            yield Alarm(WARN, name, f"too hot: {report.get('temperature_c')} °C", "cool it")


def _fallen_boards(answer: Answer, rounds: Sequence[Answer]) -> Iterator[Alarm]:
    """Boards that still report, and whose own accuracy fell."""
    here = {
        node["name"]
        for node in answer["nodes"]
        if node["active"] and node["standing"]["weight"] > 0 and not node["revoked"]
    }
    here &= {name for row in rounds[-RECENT:] for name in row["reports"]}
    for name in here:
        reports = [row["reports"][name][1] for row in rounds if name in row["reports"]]
        values = [accuracy for accuracy in reports if accuracy is not None]
        if (at := _fall(values, BOARD_FALL)) is not None:
            fell = f"from {median(values[at : at + RECENT]):.1%} to {median(values[-RECENT:]):.1%}"
            advice = "look at its sensor: what it hears or sees may have changed"
            yield Alarm(WARN, name, f"its own accuracy fell {fell}", advice)


def _time(seconds: float) -> str:
    minutes = seconds / 60
    if minutes < 120:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:.0f} h" if minutes < 2880 else f"{minutes / 1440:.0f} days"
