"""The host's reports: costs of each round, log lines, and answers about the run and its boards."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from statistics import linear_regression, mean, median
from typing import Any

from ternmesh import __version__
from ternmesh.federated import events
from ternmesh.federated.host import HostProtocol
from ternmesh.federated.management import LIMITS, VALUES, BoardRecord, are_allowed, readable, unpack
from ternmesh.federated.refusals import AHEAD, shortened, why
from ternmesh.federated.state import RegisteredNode
from ternmesh.plan import of_rounds
from ternmesh.security.membership import ALL
from ternmesh.wire.control import FINISHED, OPEN, PHASES
from ternmesh_service.control_socket import BOARDS
from ternmesh_service.status import FleetFigures, HostedBoard, HostStatus, ManagedBoard, to_json
from ternmesh_store.host_store import StoredRound, Tally
from transports.driver import PeerTraffic

HISTORY_MAX = 100
HISTORY_CELLS_MAX = 20_000  # nodes times rounds in one answer, which has a limit of bytes
RECENT = 10  # rounds of which a rate or a mean is


class RoundCosts:
    """What was spent since the last call: bytes, from a driver's running totals, and seconds."""

    def __init__(self, traffic: Mapping[str, PeerTraffic], now: float) -> None:
        self._traffic = traffic
        self._taken: dict[str, tuple[int, int]] = {}
        self._since = now

    def take_bytes(self) -> dict[str, tuple[int, int]]:
        """Bytes (up, down) by peer since the last call, without peers that moved none."""
        moved = {}
        for peer, total in self._traffic.items():
            up, down = self._taken.get(peer, (0, 0))
            if (total.bytes_in, total.bytes_out) != (up, down):
                moved[peer] = (total.bytes_in - up, total.bytes_out - down)
                self._taken[peer] = (total.bytes_in, total.bytes_out)
        return moved

    def take_seconds(self, now: float) -> float:
        """Seconds since the last call."""
        seconds = now - self._since
        self._since = now
        return seconds


def describe(event: events.HostEvent, host: HostProtocol, now: float) -> str | None:
    of_all = of_rounds(host.plan.rounds)
    match event:
        case events.NodeJoined():
            return f"{event.name} takes part with {event.samples} samples"
        case events.RoundOpened():
            left = f"{max(0.0, event.deadline - now):.0f} s"
            return f"round {event.round + 1}{of_all} is open for {left}"
        case events.RoundExtended():
            return f"round {event.round + 1} goes on: too few updates by its deadline"
        case events.UpdateForgotten():
            name = _names(host, [event.address])
            if host.is_excluded(name):
                return f"{name} is revoked: its update does not count"
            return f"the update of {name} is not consistent: it must be sent again"
        case events.RunAdopted():
            return (
                f"{event.node} follows run {event.run.hex()}, which this host has lost: it takes "
                "the run back from its boards, and goes on with it"
            )
        case events.GlobalUpdateMade() if event.given_by:
            return f"global update {event.version}{of_all} came back from {event.given_by}"
        case events.GlobalUpdateMade() if event.version == 1 and not event.counted:
            return f"global update 1{of_all} is the adapter of the run before"
        case events.GlobalUpdateMade() if event.returns_to is not None and not event.counted:
            return host.combiner.returned
        case events.GlobalUpdateMade():
            counted = _names(host, [entry.address for entry in event.counted])
            missing = _names(host, event.missing)
            end = "; the run is finished" if event.finished else ""
            without = f", without {missing}" if missing else ""
            head = f"global update {event.version}{of_all} counts"
            returned = "" if event.returns_to is None else f"; {host.combiner.returned}"
            return f"{head} {counted or 'no board'}{without}{returned}{end}"
        case events.Refused():
            return f"refused from {event.peer}: {event.reason}: {why(event.reason, on_host=True)}"
        case _:
            return None


def status(
    host: HostProtocol,
    tallies: Mapping[str, Tally],
    history: Sequence[StoredRound],
    now: float,
    since: int = 0,
) -> HostStatus:
    """The state of the run; the history has the rounds after version `since`."""
    is_open = host.phase == OPEN
    # A round of a run without end stays open while nobody has news
    ends = is_open and (host.plan.rounds > 0 or host.round.has_news(host.round.updates))
    rows = min(HISTORY_MAX, HISTORY_CELLS_MAX // max(1, len(host.nodes)))
    unlike = set(host.combiner.aggregation.reputations.unlike())
    nodes = sorted(host.nodes.values(), key=lambda node: node.name)
    return HostStatus(
        software=__version__,
        run=host.run.hex(),
        version=host.version,
        rounds=host.plan.rounds,
        plan=host.plan,
        phase=PHASES[host.phase],
        deadline_s=round(max(0.0, host.deadline - now), 1) if ends else None,
        min_peers=host.settings.min_peers,
        global_hash=host.global_hash.hex(),
        nodes=tuple(
            _board(node, tallies.get(node.name, Tally()), host, unlike, now) for node in nodes
        ),
        rule=host.settings.aggregation.name,
        remark=host.combiner.aggregation.remark,
        returned=host.combiner.returned,
        behind=_behind(host),
        refused=events.refusals(host.refused),
        first_contacts=host.refused[events.FIRST_CONTACT],
        knocking=dict(host.channel.knocking),
        metrics=_figures(host, history),
        history=tuple(item for item in history[-rows:] if item.version > since),
    )


def _figures(host: HostProtocol, history: Sequence[StoredRound]) -> FleetFigures:
    recent = history[-RECENT:]
    losses = [(row.version, row.loss) for row in recent if row.loss is not None]
    slope = linear_regression(*zip(*losses, strict=True)).slope if len(losses) > 1 else None
    reputations = host.combiner.aggregation.reputations
    cosines = list(reputations.cosines.values())
    moved = sum(sum(row.bytes_up.values()) + row.bytes_down for row in recent if row.useful_bytes)
    useful = sum(row.useful_bytes for row in recent)
    return FleetFigures(
        global_loss=losses[-1][1] if losses else None,
        convergence_rate=None if slope is None else -slope,
        model_divergence=1 - median(cosines) if cosines else None,
        communication_overhead=moved / useful if useful else None,
        round_latency_s=mean(row.seconds for row in recent) if recent else None,
        byzantine_detections=sum(map(reputations.is_excluded, reputations.standings)),
    )


def summary(host: HostProtocol) -> str:
    """The line of `systemctl status`."""
    nodes = host.nodes.values()
    active = sum(node.active for node in nodes)
    return (
        f"{PHASES[host.phase]}; global update {host.version}"
        f"{of_rounds(host.plan.rounds)}; {active} of {len(nodes)} boards active"
    )


def _behind(host: HostProtocol) -> str | None:
    if host.state.is_behind:
        return "this host was restored from an old copy: global updates come back from its boards"
    names = host.recovery.unmet(host.version)
    return f"{', '.join(names)} {AHEAD}" if names else None


def _board(
    node: RegisteredNode, tally: Tally, host: HostProtocol, unlike: Collection[int], now: float
) -> HostedBoard:
    revoked = host.is_excluded(node.name)
    trust = host.combiner.aggregation.reputations
    cosine = trust.cosines.get(node.address)
    is_awaited = node.is_awaited(host.version, now) and host.phase != FINISHED
    return HostedBoard(
        name=node.name,
        address=node.address,
        samples=node.samples,
        revoked=revoked,
        active=is_awaited and not revoked,
        heard_s_ago=None if node.heard_at is None else round(now - node.heard_at, 1),
        delivered=host.round.delivered(node.address),
        members=node.members,
        refused=events.refusals(node.refused),
        **asdict(tally),
        weight=round(trust.weight(node.address), 3),
        reason=trust.reason(node.address),
        since=trust.of(node.address).low_since,
        agreement=None if cosine is None else round(cosine, 3),
        uptime=round(trust.of(node.address).uptime, 3),
        harm=round(trust.harm(node.address), 3),
        unlike=node.address in unlike,
        influence=host.combiner.aggregation.influence.get(node.address),
        board=managed_board(node.name, host.session.management.boards[node.name], now),
    )


def answer_boards(host: HostProtocol, request: Mapping[str, Any], now: float) -> dict[str, Any]:
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


def _names(host: HostProtocol, addresses: Sequence[int]) -> str:
    return shortened(host.nodes[address].name for address in addresses)
