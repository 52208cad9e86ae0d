"""What an owner should look at now: pure functions of a status, each alarm with what to do."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ternmesh.wire.control import FINISHED, PHASES

Answer = Mapping[str, Any]

BAD, WARN = "bad", "warn"
SILENT_S = 600.0  # after which a board that no round waits for is an alarm
DISK_MB = 500.0
HOT = "paused: too hot"
FALL = 0.03  # of the accuracy below its best, as the median of RECENT rounds
BOARD_FALL = 0.1  # the same for one board
RECENT = 3  # rounds
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


def alarms(answer: Answer, rounds: Sequence[Answer], machine: Machine) -> list[Alarm]:
    """The alarms of a host or node, worst first, at most `ALARMS_MAX`."""
    found = [*_machine(answer, machine)]
    if answer.get("role") == "host":
        found += [*_fleet(answer, rounds), *_boards(answer), *_fallen(rounds)]
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


def _fleet(answer: Answer, rounds: Sequence[Answer]) -> Iterator[Alarm]:
    if answer["behind"]:
        yield Alarm(BAD, "", answer["behind"], "keep this host running until it has caught up")
    if remark := answer["aggregation"]["remark"]:
        yield Alarm(WARN, "", remark, "see [run] aggregation")
    for peer, count in (answer.get("security") or {}).get("clones", {}).items():
        text = f"frames from a copied or restored disk arrived {count} times"
        yield Alarm(BAD, "" if peer == "all" else peer, text, "see SECURITY.md")
    known = [row["accuracy"] for row in rounds if row["accuracy"] is not None]
    fallen, now, best = _fall(known, FALL)
    if fallen:
        version = next(row["version"] for row in rounds if row["accuracy"] == best)
        yield Alarm(
            BAD,
            "",
            f"the accuracy of the fleet fell from {best:.1%} to {now:.1%}",
            f"look for doubted boards; `ternmesh host --return-to {version - 1}` goes back",
        )


def _fall(known: Sequence[float], limit: float) -> tuple[bool, float, float]:
    """Whether the newest values are below the best before; the newest median, and that best."""
    if len(known) <= RECENT:
        return False, 0.0, 0.0
    now, best = sorted(known[-RECENT:])[RECENT // 2], max(known[:-RECENT])
    return best - now > limit, now, best


def _boards(answer: Answer) -> Iterator[Alarm]:
    is_over = answer["phase"] == PHASES[FINISHED]
    for node in answer["nodes"]:
        name, heard_s = node["name"], node["heard_s_ago"]
        if node["revoked"]:
            continue
        if not (node["active"] or is_over) and (heard_s is None or heard_s > SILENT_S):
            since = "since this host started" if heard_s is None else f"for {heard_s / 60:.0f} min"
            yield Alarm(
                BAD,
                name,
                f"silent {since}",
                "check its power and its link: rounds go on without it",
            )
        standing = node["standing"]
        if standing["weight"] < WEIGHT and "owner" not in standing["reason"]:
            yield Alarm(
                WARN,
                name,
                f"counts {standing['weight']:.0%}: {standing['reason']}",
                "look at its samples and labels; mute or revoke it if it lies",
            )
        report = node["board"]["report"]
        if report.get("disk_free_mb", DISK_MB) < DISK_MB:
            text = f"{report['disk_free_mb']:.0f} MB of its disk were free at its last report"
            yield Alarm(WARN, name, text, "make room: a full disk stops its learning")
        if report.get("activity") == HOT:
            yield Alarm(WARN, name, f"too hot: {report.get('temperature_c')} °C", "cool it")


def _fallen(rounds: Sequence[Answer]) -> Iterator[Alarm]:
    """Boards whose own accuracy fell, while the fleet's did not."""
    known: dict[str, list[float]] = {}
    for row in rounds:
        for name, (_, accuracy) in row["reports"].items():
            if accuracy is not None:
                known.setdefault(name, []).append(accuracy)
    for name, values in known.items():
        fallen, now, best = _fall(values, BOARD_FALL)
        if fallen:
            yield Alarm(
                WARN,
                name,
                f"its own accuracy fell from {best:.1%} to {now:.1%}",
                "look at its sensor: what it hears or sees may have changed",
            )
