"""The host's settings: its TOML file as frozen dataclasses, and the plan made from it."""

import importlib.util
from dataclasses import dataclass, field, replace
from pathlib import Path

from ternmesh.config import LOG_LEVELS, ConfigError, Table, choices, limits, needs
from ternmesh.errors import RuleError, SecurityError, WireError
from ternmesh.federated import rules
from ternmesh.federated.agreement.voters import BFT, make_voters
from ternmesh.federated.state import HostSettings
from ternmesh.plan import FRAME_MTU_MAX, MANIFEST_REPEATS_MAX, Plan, make_plan
from ternmesh.security.identity import PublicIdentity, parse_identity
from ternmesh.wire.global_update import COUNTED_MAX
from ternmesh_service.config_file import (
    MODEL,
    PATH,
    anchored,
    check_name,
    load_model_package,
    read_config_file,
)
from ternmesh_service.keyring import SecurityConfig
from ternmesh_service.metrics import MetricsConfig
from ternmesh_service.mqtt_health import HealthConfig
from ternmesh_service.page.config import PageConfig, check_page
from ternmesh_service.webhook import AlarmsConfig, check_alarms
from transports.base import HOST, BearerProfile
from transports.factory import NETWORK_PROFILE, check_link, profile_of
from transports.link_config import LinkConfig

ZEROS_MAX, BYTES_MAX = 0.999, 1 << 22


@dataclass(frozen=True, slots=True)
class RunConfig:
    """How the fleet learns. A change of a field above `min_peers` needs a new run.

    `*_zeros` are the shares of zeros, up from the nodes and down from the host. `up_bytes` and
    `down_bytes` are target sizes of an update and of a global update; if one is not 0, the share of
    zeros follows from it. `scale_max` is the largest weight of a node's trits that the host
    accepts. The learning rate falls linearly to (1 - `learning_rate_drop`) of its start; above 1 it
    reaches 0 before the end, and the last rounds only send the residuals. A node stays silent, at
    most `silence_rounds` in a row, while the energy of its update is below `silence` times that of
    the global adapter (0: never). At a global update, the adapter that a board uses moves by the
    share `cooperation` towards the global one. An update may come `staleness_rounds` after the
    round for which its training began, and then weighs less. `chain_max` global updates are kept
    for nodes that catch up.

    With `rounds` 0 the run has no end. A board trains in `news_rounds` rounds for new samples, and
    its learning rate falls as it does over a run with an end; then only while others have news.
    While nobody has, the round stays open.

    `aggregation` names the rule that makes a step of the nodes' updates: one of
    `ternmesh.federated.rules`, or a function in `aggregation_file`, with pre-steps before it
    ("nnm+median"). `momentum` is how much of the steps before a step takes
    along, where the boards agree. At most `byzantine` nodes are expected to lie. `memory` is how
    much of a node's past updates such a rule sees: the decay of their mean, by round; 0 also
    switches reputations off. `probes`: whether global updates carry a node's recent updates for the
    others to evaluate, for which its reputation falls if they raise the loss. `pinned` names nodes
    that count in full, `muted` nodes that count nothing, whatever their reputation. `guard`: the
    rise of the nodes' loss, in losses at the beginning, from which on the host goes back to an
    older version (0: never). `groups` are the settings files of further groups of boards, each with
    a model of another architecture, which this process hosts too: they teach each other by
    knowledge packets (`host.groups`).

    >>> RunConfig(rounds=20, up_bytes=670, down_bytes=1200).min_peers
    2
    """

    rounds: int = field(default=20, metadata=limits(0, 1_000_000))
    news_rounds: int = field(default=20, metadata=limits(1, 1_000_000) | needs("rounds", 0))
    local_steps: int = field(default=8, metadata=limits(1, 100_000))
    learning_rate: float = field(default=0.005, metadata=limits(1e-6, 10.0))
    learning_rate_drop: float = field(default=0.0, metadata=limits(0.0, 10.0))
    up_zeros: float = field(default=0.9, metadata=limits(0.0, ZEROS_MAX))
    down_zeros: float = field(default=0.9, metadata=limits(0.0, ZEROS_MAX))
    up_bytes: int = field(default=0, metadata=limits(0, BYTES_MAX))
    down_bytes: int = field(default=0, metadata=limits(0, BYTES_MAX))
    scale_max: float = field(default=1.0, metadata=limits(2.0**-24, 63.97))
    silence: float = field(default=0.0, metadata=limits(0.0, 1.0) | needs("silence_rounds"))
    silence_rounds: int = field(default=0, metadata=limits(0, 1000) | needs("silence"))
    cooperation: float = field(default=1.0, metadata=limits(0.0, 1.0))
    staleness_rounds: int = field(default=0, metadata=limits(0, 1000))
    min_peers: int = field(default=2, metadata=limits(1, 1024))
    deadline_s: float = field(default=60.0, metadata=limits(1.0, 2_592_000.0))
    nodes_max: int = field(default=1024, metadata=limits(1, COUNTED_MAX))
    chain_max: int = field(default=256, metadata=limits(1, 65_536))
    aggregation: str = "weighted_mean"
    aggregation_file: str = field(default="", metadata=PATH)
    byzantine: int = field(default=0, metadata=limits(0, 1000))
    momentum: float = field(default=0.0, metadata=limits(0.0, 0.95) | needs("memory"))
    memory: float = field(default=0.9, metadata=limits(0.0, 0.99))
    probes: bool = True
    guard: float = field(default=0.5, metadata=limits(0.0, 100.0))
    pinned: tuple[str, ...] = ()
    muted: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    # The next three are for experiments only; 0: the value that fits the bearer.
    frame_mtu: int = field(default=0, metadata=limits(0, FRAME_MTU_MAX))
    announce_s: int = field(default=0, metadata=limits(0, 86_400))
    manifest_repeats: int = field(default=0, metadata=limits(0, MANIFEST_REPEATS_MAX))


@dataclass(frozen=True, slots=True)
class PublishConfig:
    """`[releases]` of a host: how much of the bearer's time symbols of a release may take.

    `radio_bytes_s` is what the slowest gateway's radio may send in a second: gateways do not tell.
    """

    airtime_share: float = field(default=0.5, metadata=limits(0.01, 1.0))
    radio_bytes_s: float = field(default=0.0, metadata=limits(0.0, 1e6))


@dataclass(frozen=True, slots=True)
class HostKnowledgeConfig:
    """`[knowledge]`: the probe set of a fleet with `run.groups`, as a board's `[knowledge]` has it.

    Every `every_rounds` rounds the group's boards are sent what the other groups know.
    """

    path: str | None = field(default=None, metadata=PATH)
    arrays: Table = field(default_factory=dict, metadata=needs("path"))
    where: Table = field(default_factory=dict, metadata=needs("path"))
    divide_by: float = field(default=1.0, metadata=limits(1e-12, 1e12) | needs("path"))
    identity: str = field(default="", metadata=needs("path"))
    every_rounds: int = field(default=2, metadata=limits(1, 1000) | needs("path"))


@dataclass(frozen=True, slots=True)
class AgreementConfig:
    """`[agreement]`: the hosts that share one fleet, so that it goes on without any of them.

    `voters` are the public identities of all, the same on each; `name` is this one's. In the mode
    "crash" fewer than half of them may stop, in "bft" fewer than a third may stop or lie. A voter
    takes over from a leader of which it has heard nothing for `timeout_s`.
    """

    name: str = field(default="", metadata=needs("voters"))
    voters: tuple[str, ...] = field(default=(), metadata=needs("name"))
    mode: str = field(default="crash", metadata=choices("crash", "bft"))
    timeout_s: float = field(default=5.0, metadata=limits(0.5, 3600.0))


@dataclass(frozen=True, slots=True)
class HostConfig:
    """The settings of one host.

    >>> link = LinkConfig(url="mqtt://127.0.0.1:1883", fleet="attic")
    >>> HostConfig("host-state", "keyword", link, RunConfig(rounds=7, min_peers=2)).run.rounds
    7
    """

    state_dir: str = field(metadata=PATH)
    model: str = field(metadata=MODEL)  # the name of a shipped one, or the folder of a package
    link: LinkConfig
    run: RunConfig = field(default_factory=RunConfig)
    # Of an aggregator: the link to the host above, with the fleet of `link`
    upstream: LinkConfig = field(default_factory=LinkConfig)
    knowledge: HostKnowledgeConfig = field(default_factory=HostKnowledgeConfig)
    releases: PublishConfig = field(default_factory=PublishConfig)
    security: SecurityConfig = field(default_factory=SecurityConfig)
    agreement: AgreementConfig = field(default_factory=AgreementConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    page: PageConfig = field(default_factory=PageConfig)
    health: HealthConfig = field(default_factory=HealthConfig)
    alarms: AlarmsConfig = field(default_factory=AlarmsConfig)
    control_socket: str | None = field(default=None, metadata=PATH)
    log_level: str = field(default="INFO", metadata=choices(*LOG_LEVELS))

    @property
    def publishes(self) -> bool:
        """Whether it can keep to its share of the airtime, so that it may publish releases."""
        return not self.link.radios or self.releases.radio_bytes_s > 0


def read_host_config(path: Path) -> HostConfig:
    """The settings in the file at `path`; ConfigError. Paths are relative to its folder.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "host.toml")
    ...     lines = [
    ...         'state_dir = "state"', 'model = "keyword"',
    ...         "[link]", 'url = "mqtt://127.0.0.1:1883"', 'fleet = "attic"',
    ...         "[run]", "rounds = 20",
    ...     ]
    ...     _ = path.write_text("\\n".join(lines))
    ...     config = read_host_config(path)
    >>> config.run.rounds
    20
    """
    folder = path.resolve().parent

    def finish(config: HostConfig) -> HostConfig:
        groups = (str(anchored(group, folder, "run.groups")) for group in config.run.groups)
        return _check(replace(config, run=replace(config.run, groups=tuple(groups))))

    return read_config_file(HostConfig, path, finish)


def _check(config: HostConfig) -> HostConfig:
    check_link(config.link, HOST)
    if config.upstream != LinkConfig() or config.link.aggregator:
        _check_upstream(config)
    check_page(config.page)
    check_alarms(config.alarms)
    load_rule(config.run.aggregation, config.run.aggregation_file)
    least = rules.least_members(config.run.aggregation, config.run.byzantine)
    if least > config.run.nodes_max:
        raise ConfigError(
            f"run.byzantine is {config.run.byzantine}: {config.run.aggregation} then needs {least} "
            f"nodes, and run.nodes_max is {config.run.nodes_max}"
        )
    if config.run.min_peers > config.run.nodes_max:
        raise ConfigError(
            f"run.min_peers is {config.run.min_peers}, and run.nodes_max {config.run.nodes_max}: "
            "no round could ever begin"
        )
    if config.run.groups and config.knowledge.path is None:
        raise ConfigError("run.groups needs a probe set: write its file as path in [knowledge]")
    if config.agreement.voters:
        _check_agreement(config)
    if both := set(config.run.pinned) & set(config.run.muted):
        raise ConfigError(f"run.pinned and run.muted both name {min(both)!r}: take it out of one")
    config.security.check(has_radio=config.link.has_radio)
    plan_of(config.run, load_model_package(config.model).dimension, profile_of(config.link))
    return config


def _check_upstream(config: HostConfig) -> None:
    if not (config.upstream.url and config.link.aggregator):
        raise ConfigError(
            "an aggregator needs its own name as link.aggregator, and a url in [upstream]"
        )
    check_name(config.link.aggregator)
    try:
        check_link(config.upstream, config.link.aggregator)
    except ConfigError as error:  # it speaks of [link], as a board has it
        raise ConfigError(f"in [upstream]: {error}") from error
    if config.agreement.voters or config.run.groups:
        raise ConfigError("an aggregator has no [agreement] and no run.groups")


def _check_agreement(config: HostConfig) -> None:
    if config.run.groups or config.run.aggregation_file:
        raise ConfigError(
            "[agreement]: voters make the same update each, so none may have run.groups or "
            "run.aggregation_file"
        )
    voters = make_voters(b"", read_seats(config.agreement), config.agreement.mode)
    if config.security.threshold < voters.witnesses:
        raise ConfigError(
            f"agreement.mode is {BFT!r}: write [security] signers = [the voters' lines] and "
            f"threshold = {voters.witnesses} on all hosts and boards (docs/voters.md)"
        )


def read_seats(config: AgreementConfig) -> dict[str, PublicIdentity]:
    """The voters that the settings name, by name; ConfigError."""
    try:
        found = [parse_identity(line) for line in config.voters]
    except SecurityError as error:
        raise ConfigError(f"agreement.voters: {error}") from error
    names = [public.name for public in found]
    if config.name not in names:
        raise ConfigError(f"agreement.name is {config.name!r}: no line of agreement.voters has it")
    make_voters(b"", names, config.mode)
    return dict(zip(names, found, strict=True))


def plan_of(run: RunConfig, dimension: int, bearer: BearerProfile = NETWORK_PROFILE) -> Plan:
    """The plan of a run for an adapter of `dimension` numbers; ConfigError where none fits."""
    try:
        return make_plan(
            dimension,
            rounds=run.rounds,
            local_steps=run.local_steps,
            learning_rate=run.learning_rate,
            frame_mtu=run.frame_mtu or bearer.frame_mtu,
            up_zeros=run.up_zeros,
            down_zeros=run.down_zeros,
            up_bytes=run.up_bytes,
            down_bytes=run.down_bytes,
            nodes=run.min_peers,
            scale_max=run.scale_max,
            announce_s=run.announce_s or bearer.announce_s,
            learning_rate_drop=run.learning_rate_drop,
            silence=run.silence,
            silence_rounds=run.silence_rounds,
            manifest_repeats=run.manifest_repeats or bearer.manifest_repeats,
            news_rounds=0 if run.rounds else run.news_rounds,
            cooperation=run.cooperation,
            staleness_rounds=run.staleness_rounds,
        )
    except WireError as error:
        raise ConfigError(f"[run] does not fit: {error}") from error


def settings_of(run: RunConfig) -> HostSettings:
    """The host's settings that are no part of the plan."""
    rule = load_rule(run.aggregation, run.aggregation_file)
    return HostSettings(
        run.min_peers,
        run.deadline_s,
        run.nodes_max,
        run.chain_max,
        rules.AggregationSettings(
            run.aggregation,
            rule,
            run.byzantine,
            run.memory,
            run.probes,
            dict.fromkeys(run.pinned, 1.0) | dict.fromkeys(run.muted, 0.0),
            run.guard,
            run.momentum,
        ),
    )


def load_rule(name: str, file: str = "") -> rules.Rule:
    """The aggregation rule called `name`, with its pre-steps; ConfigError.

    `file` is a Python file whose function of that name is the rule; it runs with the host's rights.
    """
    last = name.rsplit("+", 1)[-1]
    own = {last: _from_file(Path(file), last)} if file else {}
    try:
        return rules.compose(name, {**rules.RULES, **own})
    except RuleError as error:
        raise ConfigError(f"run.aggregation: {error}") from error


def _from_file(path: Path, name: str) -> rules.Rule:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ConfigError(f"run.aggregation_file is {path}: write the path of a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(
            f"run.aggregation_file: {path} failed: {type(error).__name__}: {error}"
        ) from error
    rule: rules.Rule | None = getattr(module, name, None)
    if not callable(rule):
        raise ConfigError(f"run.aggregation_file: {path} has no function {name!r}")
    return rule
