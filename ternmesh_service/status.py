"""What a program says of itself: one tree of values, which its control socket carries as JSON.

All that shows a program reads these attributes: `ternmesh status`, the page, the alarms, the
metrics, the health over MQTT, `ternmesh doctor` and the demo.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

from ternmesh.federated.robust import Influence
from ternmesh.plan import Plan
from ternmesh_service.control_socket import ControlError, ask
from ternmesh_store.host_store import StoredRound
from transports.base import TransportStatus
from transports.driver import PeerTraffic

T = TypeVar("T")
ATOMS = frozenset((str, int, float, bool, type(None)))
WITHDRAWN = "withdrawn by the owner"  # a release
INSECURE: Final = "insecure"
UNOPENED: Final = TransportStatus(connected=False, last_error="not opened yet")


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityStatus:
    """The keys of a program; without keys the texts are empty."""

    mode: str = INSECURE  # or "keys"
    fingerprint: str = ""
    fleet: str = ""
    host: str = ""
    host_before: tuple[str, ...] = ()
    # Frames from a copied or restored disk, by member; `all`: broadcasts that a member has forged
    clones: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_insecure(self) -> bool:
        """Whether there are no keys, so that every message is accepted."""
        return self.mode == INSECURE


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineStatus:
    """The machine that a program runs on."""

    up_s: float = 0.0  # since the program began
    disk_free_mb: float | None = None  # where its state is
    # Seconds until each one ends, by file
    certificates: Mapping[str, float] = field(default_factory=dict)
    not_served: tuple[str, ...] = ()  # why page, metrics or alarms are not
    loss: str = ""  # why what is written is lost when the program ends


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedBoard:
    """What a host wants of a board, and what the board has reported."""

    name: str
    software: str | None
    awaited: bool  # whether its report is on its way
    wanted: Mapping[str, float]
    in_force: Mapping[str, float]
    behind: bool  # whether it has not taken the settings yet
    reported_s_ago: float | None
    report: Mapping[str, float | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedBoard:
    """A board as its host sees it."""

    name: str
    address: int
    samples: int
    revoked: bool
    active: bool  # whether a round waits for it: none does once the run is over
    heard_s_ago: float | None
    delivered: str
    members: int  # boards of an aggregator, whose updates it adds up; 0: it is a board
    refused: Mapping[str, int]
    rounds_counted: int
    rounds_missed: int
    bytes_up: int
    bytes_down: int
    weight: float  # the factor by which the host trusts it; see `federated.reputation`
    reason: str  # why it is trusted little
    since: int  # the version from which on that is so; 0: it is not
    agreement: float | None
    uptime: float
    harm: float
    unlike: bool
    influence: Influence | None  # how its own update counted in the newest round, if it did
    board: ManagedBoard


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFigures:
    """Figures of the newest rounds; None before there are any.

    `convergence_rate`: how much the loss falls a round, by least squares. `model_divergence`: 0
    where the boards' updates agree, 1 where they have nothing in common. `communication_overhead`:
    bytes on the bearer for each byte of updates that arrived and of global updates.
    """

    global_loss: float | None
    convergence_rate: float | None
    model_divergence: float | None
    communication_overhead: float | None
    round_latency_s: float | None
    byzantine_detections: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TeachingStatus:
    """What the other groups of a mixed fleet teach this one."""

    group: str
    sent: int | None  # the global adapter at which knowledge was sent last
    less: Mapping[str, str]  # why a group teaches less, by its name


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardRelease:
    """How far a board is with a release."""

    state: str
    held: float  # the share that is there
    away: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRelease:
    """The release that a host has published; without a version none is, for a reason."""

    reason: str
    version: int | None = None
    stage: str = ""
    bytes: int = 0
    eta_s: float = 0.0
    boards: Mapping[str, BoardRelease] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreementStatus:
    """The voters of a fleet, as one of them sees them."""

    name: str  # of this voter
    mode: str
    term: int
    leader: str
    voters: tuple[str, ...]
    missing: tuple[str, ...]  # of which nothing was heard lately
    needed: int  # voters of a quorum
    decisions: int = 0  # that this process has led to, with their mean and 95th percentile
    decision_mean_s: float | None = None
    decision_p95_s: float | None = None

    @property
    def has_quorum(self) -> bool:
        """Whether enough voters are connected to agree."""
        return len(self.voters) - len(self.missing) >= self.needed


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamStatus:
    """An aggregator's session with the host above it; `version` is the newest that came."""

    transport: TransportStatus
    joined: bool
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStatus:
    """A host and its run. Refusals are counted since the program began."""

    role: str = "host"
    software: str
    fleet: str = ""
    model: str = ""
    run: str
    version: int
    rounds: int  # 0: the run has no end
    plan: Plan
    phase: str
    deadline_s: float | None
    min_peers: int
    global_hash: str
    nodes: tuple[HostedBoard, ...]
    rule: str  # of the aggregation
    remark: str  # what failed in the aggregation, or empty
    returned: str  # to which version the run went back, or empty
    behind: str | None  # a sentence where boards are ahead of this host
    refused: Mapping[str, int]
    first_contacts: int
    knocking: Mapping[str, str] = field(default_factory=dict)  # strangers' reasons, by name
    metrics: FleetFigures
    history: tuple[StoredRound, ...]
    carried_from: str | None = None  # run and version of the adapter with which this run began
    teaching: TeachingStatus | None = None
    release: PublishedRelease | None = None
    agreement: AgreementStatus | None = None  # where the fleet has several hosts
    upstream: UpstreamStatus | None = None  # where this host is an aggregator
    caught: Mapping[str, str] = field(default_factory=dict)  # aggregators that lied, and how
    security: SecurityStatus = SecurityStatus()
    transport: TransportStatus = UNOPENED
    machine: MachineStatus = MachineStatus()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStatus:
    """The training of one round."""

    round: int
    steps_done: int
    steps: int
    loss: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxStatus:
    """The update that waits for the host's receipt, or for the global update."""

    round: int
    bytes: int
    received: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingStatus:
    """A microphone, and the recordings of one label that somebody makes with it."""

    label: str | None
    left: int
    said: str  # what was wrong with the last one
    level: float  # the peak of the newest sound, of full scale


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveStatus:
    """A source that this package reads by itself."""

    open: bool
    left_out: Mapping[str, int]  # samples and labels, by reason
    first: Mapping[str, str]  # what was left out first, by reason
    broker: TransportStatus | None = None
    behind: int = 0  # bytes of a file that are not read yet
    recording: RecordingStatus | None = None


def reasons(left_out: Mapping[str, int], first: Mapping[str, str]) -> list[str]:
    """How many things were left out, by reason, and what the first one was."""
    shown = {reason: f" (first: {value})" for reason, value in first.items()}
    return [f"{left_out[reason]} {reason}{shown.get(reason, '')}" for reason in sorted(left_out)]


@dataclass(frozen=True, slots=True, kw_only=True)
class WordsStatus:
    """Words in a stream of sound, of the whole life of a board; what people answered of them."""

    hours: float  # that were listened to
    heard: int
    right: int  # of those heard
    false: int  # the same: another sound
    missed: int  # close misses that were the word

    @property
    def recall(self) -> float | None:
        """Of the words that people have confirmed; None before the first."""
        known = self.right + self.missed
        return self.right / known if known else None

    @property
    def false_per_hour(self) -> float | None:
        """None before people have answered."""
        return self.false / self.hours if self.hours and self.right + self.false else None

    def sentence(self) -> str:
        recall = "no recall yet" if self.recall is None else f"recall {self.recall:.0%}"
        rate = "" if self.false_per_hour is None else f" ({self.false_per_hour:.2f} an hour)"
        return (
            f"{self.heard} words heard in {self.hours:.1f} h; of those that people have answered "
            f"{self.right} are right, {self.false} false{rate}, {self.missed} were missed "
            f"({recall})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """The source of samples, and the buffer that keeps them."""

    labelled: int
    waiting: int
    capacity: int
    last_refusal: str | None
    by_label: Mapping[str, int]
    last_label: tuple[str, str] | None  # key and label
    failures: int
    floods: int
    last_failure: str | None
    counters: Mapping[str, int]  # of `edge.data.buffer.ReplayCounters`
    live: LiveStatus | None
    words: WordsStatus | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AsideStatus:
    """What the model cannot compute or nobody can read, and the newest with their reasons."""

    count: int = 0  # of samples
    files: int = 0  # whole ones, whose samples nobody can count
    in_files: int = 0  # of `count`: others are of a source
    newest: tuple[tuple[str, str], ...] = ()

    def amount(self) -> str:
        """How many samples and files; empty for none."""
        counts = ((self.count, "samples"), (self.files, "files"))
        return " and ".join(f"{count} {what}" for count, what in counts if count)

    def sentence(self) -> str:
        """How many, and a few of them."""
        shown = "; ".join(map(": ".join, self.newest[-3:]))
        return f"{self.amount()} are set aside, such as {shown}"


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """The history of one global adapter; bytes and seconds count from the entry before.

    Without evaluation data, `metric` is the score of the previous global adapters on the samples
    whose labels came since the entry before, at times when `[resources]` let the board work.
    """

    version: int
    metric: float | None
    loss: float | None  # mean of this board's steps in the round before; None if it took none
    bytes_up: int  # on the bearer
    bytes_down: int
    seconds: float
    metric_loss: float | None = None  # of the samples that gave `metric`
    metric_samples: int = 0  # how many these are


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledReleases:
    """The releases of a board; `bad` ones have failed, others were never tried."""

    current: int
    last_good: int
    attempts: int
    bad: tuple[tuple[int, str], ...]  # version and reason
    not_taken: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingRelease:
    """A release on its way over the link."""

    version: int
    stage: str
    state: str
    reason: str
    held: float  # the share that is here


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictStatus:
    """Predictions since the program began; latencies are of the newest ones."""

    count: int
    failed: int
    refused: int
    clients_refused: int
    clients_dropped: int
    live_skipped: int
    p50_ms: float | None
    p99_ms: float | None
    max_ms: float | None
    clients: int
    version: int | None  # of the global adapter
    bad_adapters: int
    last_error: str  # of an adapter
    live: Mapping[str, Any] | None  # the newest live prediction, as clients get it
    topics: TransportStatus | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnowledgeStatus:
    """What a board knows of the public samples of a mixed fleet."""

    samples: int
    known: int
    number: int | None
    teacher_accuracy: float
    remark: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardStatus:
    """A board. Refusals, bytes and silent rounds are counted since the program began."""

    role: str = "node"
    software: str
    name: str
    fleet: str
    model: str
    joined: bool
    run: str
    version: int
    rounds: int | None  # None before the board has joined a run
    phase: str
    activity: str
    held_back: str  # what `[resources]` waits for
    provider: str
    training: TrainingStatus | None
    samples: int
    aside: AsideStatus = AsideStatus()
    source: SourceStatus | None
    metric_name: str
    metric: float | None  # the newest
    metric_samples: int = 0  # of how many samples
    adapter: str
    outbox: OutboxStatus | None
    bytes_up: int
    bytes_down: int
    traffic: Mapping[str, PeerTraffic]
    settings: Mapping[str, float]  # that the host has set
    refused: Mapping[str, int]
    first_contacts: int
    diverged: int  # rounds
    silent_rounds: int
    history: tuple[HistoryEntry, ...]
    rss_mib: float | None
    releases: InstalledReleases | None = None
    incoming: IncomingRelease | None = None
    predict: PredictStatus | None = None
    knowledge: KnowledgeStatus | None = None
    belongs_to: str = ""  # where it chooses among several hosts
    trips_s: Mapping[str, float] = field(default_factory=dict)  # to each that answers
    security: SecurityStatus = SecurityStatus()
    transport: TransportStatus = UNOPENED
    machine: MachineStatus = MachineStatus()


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayStatus:
    """A gateway: its radio, and its connection to the broker for each board."""

    role: str = "gateway"
    frames_up: int
    frames_down: int
    frames_refused: int
    frames_lost: int
    transport: TransportStatus
    network: Mapping[str, TransportStatus]
    security: SecurityStatus | None = None  # None over BLE, where the link is not sealed


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPeer:
    """A board of a split training, as its host sees it; numbers are micro-batches."""

    name: str
    number: int
    skipped: int
    heard_s_ago: float | None
    refused: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitHostStatus:
    """The host of a split training."""

    role: str = "split host"
    fleet: str
    run: str
    phase: str
    steps: int
    micro_batches: int
    plan: Mapping[str, Any]
    counts: Mapping[str, int]
    loss: float | None
    accuracy: float | None
    boards: tuple[SplitPeer, ...]
    traffic: Mapping[str, PeerTraffic]
    refused: Mapping[str, int]
    security: SecurityStatus = SecurityStatus()
    transport: TransportStatus = UNOPENED


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitBoardStatus:
    """A board of a split training."""

    role: str = "split board"
    name: str
    fleet: str
    model: str
    run: str
    joined: bool
    phase: str
    number: int
    micro_batches: int | None
    samples: int
    counts: Mapping[str, int]
    accuracy: float | None
    right: tuple[int, int] | None
    learning_traffic: PeerTraffic
    traffic: Mapping[str, PeerTraffic]
    refused: Mapping[str, int]
    rss_mib: float | None
    security: SecurityStatus = SecurityStatus()
    transport: TransportStatus = UNOPENED


Status = HostStatus | BoardStatus | GatewayStatus | SplitHostStatus | SplitBoardStatus
KINDS: Final[Mapping[str, type[Status]]] = {
    kind.__dataclass_fields__["role"].default: kind for kind in get_args(Status)
}


def ask_status(socket: Path, since: int = 0) -> Status:
    """The status of the program behind a control socket; ControlError.

    The rounds of a host begin after version `since`.
    """
    return read_status(ask(socket, {"command": "status", "since": since}))


def read_status(answer: Mapping[str, Any]) -> Status:
    """The status in an answer; ControlError."""
    try:
        return from_json(KINDS[answer["role"]], answer)
    except (KeyError, TypeError, ValueError) as error:
        raise ControlError(
            "the program that answers is none of this ternmesh, or runs another version: start it "
            f"again ({error})"
        ) from error


def newest_reports(history: Sequence[StoredRound]) -> dict[str, tuple[float | None, float | None]]:
    """The newest loss and accuracy by board in a host's history, and of the fleet as "".

    A report may lack either: it has another value in place of the accuracy in some rounds.
    """
    newest: dict[str, tuple[float | None, float | None]] = {}
    for row in history:
        for name, (loss, accuracy) in {**row.reports, "": (row.loss, row.accuracy)}.items():
            old = newest.get(name, (None, None))
            newest[name] = (
                old[0] if loss is None else loss,
                old[1] if accuracy is None else accuracy,
            )
    return newest


def to_json(value: object) -> dict[str, Any]:
    """A dataclass of dataclasses, mappings and sequences as new dicts and lists."""
    kind: Any = type(value)
    return {name: _plain(getattr(value, name)) for name in _hints(kind)}


def _plain(value: Any) -> Any:
    if type(value) in ATOMS:  # nearly all are: the status of a large fleet has 100,000 of them
        return value
    if is_dataclass(value):
        return to_json(value)
    if isinstance(value, Mapping):
        return {key: item if type(item) in ATOMS else _plain(item) for key, item in value.items()}
    return [item if type(item) in ATOMS else _plain(item) for item in value]


def from_json(kind: type[T], content: Any) -> T:
    """The value of type `kind` that `to_json` wrote; ValueError for anything else."""
    wanted: Any = kind
    found: T = _reader(wanted)(content)
    return found


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return lambda value: _read_fields(kind, value)
    if origin is not None and issubclass(origin, Mapping):
        read = _reader(arguments[1])
        return lambda value: {key: read(item) for key, item in value.items()}
    if origin is tuple:
        readers = [_reader(item) for item in arguments if item is not Ellipsis]
        if arguments[-1] is Ellipsis:
            return lambda value: tuple(map(readers[0], value))
        return lambda value: tuple(r(item) for r, item in zip(readers, value, strict=True))
    if type(None) in arguments:
        read = _reader(arguments[0])
        return lambda value: None if value is None else read(value)
    return partial(_checked, kind, arguments or (kind,))


def _read_fields(kind: Any, value: Any) -> Any:
    hints = _hints(kind)
    if not isinstance(value, dict) or value.keys() != hints.keys():
        names = sorted(hints.keys() ^ (value if isinstance(value, dict) else {}).keys())
        raise ValueError(f"{kind.__name__} differs in {', '.join(names)}")
    return kind(**{name: _reader(hint)(value[name]) for name, hint in hints.items()})


def _checked(kind: Any, allowed: tuple[Any, ...], value: Any) -> Any:
    if type(value) in allowed or kind is Any:
        return value
    if type(value) is int and float in allowed:
        return float(value)
    raise ValueError(f"{value!r} is not {kind}")
