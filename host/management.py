"""What the owner asks of the boards: the answers to `ternmesh settings` and `status --node`."""

from collections.abc import Mapping
from typing import Any

from ternmesh import __version__
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.management import LIMITS, VALUES, BoardRecord, are_allowed, readable, unpack
from ternmesh.security.membership import ALL
from ternmesh_service.control_socket import BOARDS
from ternmesh_service.status import ManagedBoard, to_json


def answer(host: HostProtocol, request: Mapping[str, Any], now: float) -> dict[str, Any]:
    """The answer to `{"boards": NAME or "all", "set": {...}, "inquire": true}`, or an "error".

    `set` has values by name of a setting, None for its default. Both may be missing.
    """
    known = [n.name for n in host.nodes.values() if not host.is_excluded(n.name)]
    names = sorted(known) if request[BOARDS] == ALL else [str(request[BOARDS])]
    if not set(names) <= set(known):
        return {"error": f"{names[0]} is no board of this run: `ternmesh status` shows all"}
    changes = request.get("set", {})
    if not are_allowed({name: value for name, value in changes.items() if value is not None}):
        return {"error": f"not all of these are settings of a board within bounds: {changes}"}
    management = host.session.management
    for name in names:
        if changes:
            wanted = {**unpack(LIMITS, management.boards[name].wanted), **changes}
            host.session.set_board(name, wanted, now)
        if request.get("inquire"):
            management.inquire(name, now)
    host.handle_timeout(now)  # sends what the boards have to hear
    rows = [to_json(managed_board(name, management.boards[name], now)) for name in names]
    return {"software": __version__, "boards": rows}


def managed_board(name: str, board: BoardRecord, now: float) -> ManagedBoard:
    """What the host wants of a board, and knows of it."""
    report = board.report
    return ManagedBoard(
        name=name,
        software=board.software,
        awaited=board.must_report,
        wanted=unpack(LIMITS, board.wanted),
        in_force=board.in_force,
        behind=board.is_behind,
        reported_s_ago=None if report is None else round(now - board.reported_at, 1),
        report={} if report is None else readable(unpack(VALUES, report.values)),
    )
