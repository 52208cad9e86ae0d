"""What the owner asks of the boards: the answers to `ternmesh settings` and `status --node`."""

from collections.abc import Iterator, Mapping
from typing import Any

from ternmesh import __version__
from ternmesh.config import LOG_LEVELS
from ternmesh.federated.coordinator import Coordinator
from ternmesh.federated.management import ACTIVITIES, LIMITS, VALUES, Board, are_allowed, unpack
from ternmesh.security.membership import ALL
from ternmesh_service.control_socket import BOARDS


def answer(coordinator: Coordinator, request: Mapping[str, Any], now: float) -> dict[str, Any]:
    """The answer to `{"boards": NAME or "all", "set": {...}, "inquire": true}`, or an "error".

    `set` has values by name of a setting, None for its default. Both may be missing.
    """
    known = [n.name for n in coordinator.nodes.values() if not coordinator.is_excluded(n.name)]
    names = sorted(known) if request[BOARDS] == ALL else [str(request[BOARDS])]
    if not set(names) <= set(known):
        return {"error": f"{names[0]} is no board of this run: `ternmesh status` shows all"}
    changes = request.get("set", {})
    chosen = {name: value for name, value in changes.items() if value is not None}
    if not are_allowed(chosen):
        allowed = ", ".join(f"{name} ({low} to {high})" for name, (low, high) in LIMITS.items())
        return {"error": f"these are no settings of a board: there are {allowed}"}
    management = coordinator.management
    for name in names:
        if changes:
            wanted = {**unpack(LIMITS, management.board(name).wanted), **changes}
            wanted = {name: value for name, value in wanted.items() if value is not None}
            coordinator.set_board(name, wanted, now)
        if request.get("inquire"):
            management.inquire(name, now)
    coordinator.handle_timeout(now)  # sends what the boards have to hear
    rows = [{"name": name, **row(management.board(name), now)} for name in names]
    return {"software": __version__, "boards": rows}


def row(board: Board, now: float) -> dict[str, Any]:
    """What the host wants of a board, and knows of it; ready for JSON."""
    report = board.report
    return {
        "software": board.software,
        "awaited": board.must_report,
        "mute": board.is_mute and report is None,
        "wanted": unpack(LIMITS, board.wanted),
        "in_force": board.in_force,
        "behind": board.is_behind,
        "refused": 0 < board.number == board.refused,
        "reported_s_ago": None if report is None else round(now - board.reported_at, 1),
        "report": {} if report is None else dict(_readable(unpack(VALUES, report.values))),
    }


def _readable(values: Mapping[str, int]) -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        match name.rsplit("_", 1):
            case [what, "milli"]:
                yield what, value / 1000
            case ["temperature", _]:
                yield "temperature_c", value / 10
            case ["activity"]:
                yield name, ACTIVITIES[value] if value < len(ACTIVITIES) else "unknown"
            case ["log", "level"]:
                yield name, LOG_LEVELS[min(value, len(LOG_LEVELS) - 1)].lower()
            case _:
                yield name, value
