"""The configuration of a node: its TOML file as frozen dataclasses."""

import logging
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from edge.data.live.options import BUILT_IN, anchor_options, read_options
from edge.data.sources import NpzSettings
from ternmesh.config import LOG_LEVELS, ConfigError, Table, choices, limits, needs
from ternmesh.federated.management import LIMITS
from ternmesh_service.config_file import MODEL, PATH, check_name, package_folder, read_config_file
from ternmesh_service.keyring import SecurityConfig
from ternmesh_service.metrics import MetricsConfig
from ternmesh_service.mqtt_health import HealthConfig
from ternmesh_service.page.config import PageConfig, check_page
from ternmesh_service.webhook import AlarmsConfig, check_alarms
from transports.factory import check_link
from transports.link_config import LinkConfig
from transports.mqtt.topics import check_topic

ADAPTER = "current.onnx_adapter"
PREDICT_SOCKET = "predict.sock"  # in the state_dir
_OF_SOURCE = needs("source")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DataConfig(NpzSettings):
    """`[data]`, the training data: .npz files at `path`, what `source` names, or both.

    A source is a built-in one (`edge.data.live.options`) or a class, whose module is also searched
    in the folder `source_path`. The source is made with `options` and polled every `poll_s`. Its
    samples wait on disk for their labels, and stay there after: at most `replay_samples_max`
    samples and `replay_bytes_max` bytes, and for at most `keep_days` (0: no limit). Beside files,
    a quarter of what is drawn is from the source (`edge.data.feed.Rehearsal`).

    >>> DataConfig(path="clips.npz", arrays={"features": "x"}, divide_by=255).poll_s
    1.0
    """

    path: str | None = field(default=None, metadata=PATH)
    source: str | None = None
    source_path: str | None = field(default=None, metadata=PATH | _OF_SOURCE)
    options: Table = field(default_factory=dict, metadata=_OF_SOURCE)
    poll_s: float = field(default=1.0, metadata=limits(0.01, 3600.0) | _OF_SOURCE)
    replay_samples_max: int = field(default=4096, metadata=limits(1, 1_000_000) | _OF_SOURCE)
    replay_bytes_max: int = field(default=64 << 20, metadata=limits(1024, 1 << 40) | _OF_SOURCE)
    keep_days: float = field(default=0.0, metadata=limits(0.0, 36_500.0) | _OF_SOURCE)


@dataclass(frozen=True, slots=True)
class EvaluateConfig(NpzSettings):
    """`[evaluate]`, the samples at `path` on which each new global adapter is evaluated.

    Without `path`, samples of a source are evaluated when their labels come, before training.
    `report`: whether the host gets loss and accuracy with each update; without `path` it never
    does.

    >>> EvaluateConfig(path="held_out.npz").samples_max
    1000
    """

    path: str | None = field(default=None, metadata=PATH)
    samples_max: int = field(default=1000, metadata=limits(1, 1_000_000))
    report: bool = True


@dataclass(frozen=True, slots=True)
class KnowledgeConfig(NpzSettings):
    """`[knowledge]`: the probe set at `path`, by which models of other architectures teach this.

    Its samples need no labels, and are the same on all boards and the host. Where models see them
    in other forms, the array `identity` says which samples they are.
    """

    path: str | None = field(default=None, metadata=PATH)
    identity: str = field(default="", metadata=needs("path"))


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """`[training]`; the number of steps and the learning rate come with the host's plan.

    No round begins with fewer than `samples_min` samples. In a run without an end, `news_min` newly
    labelled samples are news (`ternmesh.federated.news`). With `keep_moments`, Adam keeps its state
    between rounds; `clip_norm` 0 means no limit. `provider` is where onnxruntime runs the model
    (`edge.onnx.session.choose_providers`).

    >>> TrainingConfig(threads=2).samples_min
    32
    """

    provider: str = field(default="auto", metadata=choices("auto", "cpu", "cuda", "tensorrt"))
    threads: int = field(default=1, metadata=limits(1, 256))
    seed: int = field(default=0, metadata=limits(0, 2**63 - 1))
    samples_min: int = field(default=32, metadata=limits(1, 1_000_000))
    news_min: int = field(default=32, metadata=limits(1, 1_000_000))
    keep_moments: bool = False
    clip_norm: float = field(default=0.0, metadata=limits(0.0, 1e6))


@dataclass(frozen=True, slots=True)
class ResourcesConfig:
    """`[resources]`: training waits above a temperature or memory pressure (percent); 0: never."""

    temperature_max_c: float = field(default=80.0, metadata=limits(0.0, 150.0))
    memory_pressure_max: float = field(default=10.0, metadata=limits(0.0, 100.0))


@dataclass(frozen=True, slots=True)
class ReleasesConfig:
    """`[releases]`: the folder of the model's releases, if the node takes any.

    A new release takes its first steps in a process that may use `memory_mib` and `cpu_s`. With
    `insecure`, releases need no signature.
    """

    dir: str | None = field(default=None, metadata=PATH)
    memory_mib: int = field(default=512, metadata=limits(16, 65_536) | needs("dir"))
    cpu_s: int = field(default=60, metadata=limits(1, 3600) | needs("dir"))
    insecure: bool = field(default=False, metadata=needs("dir"))


@dataclass(frozen=True, slots=True)
class PredictConfig:
    """`[predict]`: predictions with the newest global adapter, while the node learns.

    They are served on a Unix socket, by default predict.sock in the state_dir, and under the MQTT
    `topic` on the broker of [link]. An answer names the three most probable labels, and none as its
    `label` below `threshold`.

    >>> PredictConfig(enabled=True, threshold=0.6).topic is None
    True
    """

    enabled: bool = False
    socket: str | None = field(default=None, metadata=PATH | needs("enabled"))
    topic: str | None = field(default=None, metadata=needs("enabled"))
    threshold: float = field(default=0.0, metadata=limits(0.0, 1.0) | needs("enabled"))


@dataclass(frozen=True, slots=True)
class RemoteConfig:
    """`[remote]`: the settings of this board that its host may change."""

    allow: tuple[str, ...] = tuple(LIMITS)


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """A node. `model` is the name of a shipped model, or the folder of a model package.

    >>> link = LinkConfig(url="mqtt://broker.local:1883", fleet="attic")
    >>> clips = DataConfig(path="clips.npz")
    >>> NodeConfig("theo", "node-state", "keyword", link, clips).training.threads
    1
    """

    name: str
    state_dir: str = field(metadata=PATH)
    model: str = field(metadata=MODEL)
    link: LinkConfig
    data: DataConfig = field(default_factory=DataConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    knowledge: KnowledgeConfig = field(default_factory=KnowledgeConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    resources: ResourcesConfig = field(default_factory=ResourcesConfig)
    releases: ReleasesConfig = field(default_factory=ReleasesConfig)
    predict: PredictConfig = field(default_factory=PredictConfig)
    remote: RemoteConfig = field(default_factory=RemoteConfig)
    security: SecurityConfig = field(default_factory=SecurityConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    page: PageConfig = field(default_factory=PageConfig)
    health: HealthConfig = field(default_factory=HealthConfig)
    alarms: AlarmsConfig = field(default_factory=AlarmsConfig)
    control_socket: str | None = field(default=None, metadata=PATH)
    log_level: str = field(default="INFO", metadata=choices(*LOG_LEVELS))

    @property
    def adapter_path(self) -> Path:
        """The file of the newest global adapter, for other programs."""
        return Path(self.state_dir) / ADAPTER

    @property
    def predict_path(self) -> Path:
        return Path(self.predict.socket or Path(self.state_dir) / PREDICT_SOCKET)


def read_node_config(path: Path) -> NodeConfig:
    """The configuration at `path`; relative paths start from its folder. ConfigError.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "node.toml")
    ...     lines = [
    ...         'name = "theo"', 'state_dir = "state"', 'model = "keyword"',
    ...         "[link]", 'url = "mqtt://127.0.0.1:1883"', 'fleet = "attic"',
    ...         "[data]", 'path = "clips.npz"',
    ...     ]
    ...     _ = path.write_text("\\n".join(lines))
    ...     config = read_node_config(path)
    >>> config.name, config.data.divide_by
    ('theo', 1.0)
    """
    folder = path.resolve().parent

    def finish(config: NodeConfig) -> NodeConfig:
        options = anchor_options(config.data.source, config.data.options, folder)
        return check_config(replace(config, data=replace(config.data, options=options)))

    return read_config_file(NodeConfig, path, finish)


def check_config(config: NodeConfig) -> NodeConfig:
    """`config`, if its settings are valid and fit together; ConfigError."""
    check_name(config.name)
    check_link(config.link, config.name)
    check_page(config.page)
    check_alarms(config.alarms)
    config.security.check(has_radio=config.link.has_radio)
    package_folder(config.model)
    if (source := config.data.source) is not None and source in BUILT_IN:
        read_options(source, config.data.options)
    if config.predict.topic is not None:
        if not config.link.url:
            raise ConfigError("predict.topic needs link.url: the broker")
        try:
            check_topic(f"{config.predict.topic}/{config.name}/request")
        except ValueError as error:
            raise ConfigError(f"predict.topic: {error}") from error
    if unknown := set(config.remote.allow) - set(LIMITS):
        raise ConfigError(
            f"remote.allow names {min(unknown)!r}: it may name {', '.join(LIMITS)}, or nothing"
        )
    if config.knowledge.identity and config.knowledge.where:
        raise ConfigError("knowledge.identity has no effect with knowledge.where: remove one")
    for table, npz in (
        ("data", config.data),
        ("evaluate", config.evaluate),
        ("knowledge", config.knowledge),
    ):
        for tensor, array in npz.arrays.items():
            if not isinstance(array, str):
                raise ConfigError(f"{table}.arrays.{tensor} is {array!r}: it must be text")
        for array, value in npz.where.items():
            if not isinstance(value, str | int | float):
                raise ConfigError(
                    f"{table}.where.{array} is {value!r}: it must be text or a number"
                )
    return config


def warn_of_shared(data: DataConfig, evaluate: EvaluateConfig) -> None:
    """Warn where a file is in [data] and in [evaluate], and both read the same samples."""
    shared = _files(data.path) & _files(evaluate.path)
    if shared and data.where == evaluate.where:
        _log.warning(
            "%s is in [data] and in [evaluate]: scores on samples that were trained on are too "
            "good; name others in [evaluate]",
            min(shared),
        )


def _files(path: str | None) -> set[Path]:
    """The path itself, and the .npz files in it."""
    given = [] if path is None else [Path(path), *Path(path).glob("*.npz")]
    return {Path(os.path.realpath(one)) for one in given}  # also of a link to itself
