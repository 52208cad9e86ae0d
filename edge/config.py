"""What a node is told: its TOML file as frozen dataclasses, and what follows from it."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from edge.adam import AdamSettings
from edge.sources import NpzSettings
from models.zoo import bundle_path
from ternmesh.config import LOG_LEVELS, ConfigError, Table, choices, limits
from ternmesh_store.keyring import TrustConfig
from transports.bearer import check_link
from transports.config_file import anchored, check_name, control_path, read_config_file
from transports.link_config import LinkConfig

STORE, REPLAY, ADAPTER = "node.sqlite", "replay.sqlite", "current.onnx_adapter"
GRADIENT, ZEROTH_ORDER = "gradient", "zeroth_order"


@dataclass(frozen=True, slots=True)
class DataConfig:
    """What the node learns from: `path` (.npz file or folder), or the class that `source` names.

    `arrays`, `where` and `divide_by` are those of `edge.sources.NpzSettings`. The class is made
    with `options`; Python looks for its module in the folder `source_path` too. It is asked every
    `poll_s`; its samples wait in a buffer on disk for their labels, and stay there after.
    """

    path: str | None = None
    arrays: Table = field(default_factory=dict)
    where: Table = field(default_factory=dict)
    divide_by: float = field(default=1.0, metadata=limits(1e-12, 1e12))
    source: str | None = None
    source_path: str | None = None
    options: Table = field(default_factory=dict)
    poll_s: float = field(default=1.0, metadata=limits(0.01, 3600.0))
    replay_samples_max: int = field(default=4096, metadata=limits(1, 1_000_000))
    replay_bytes_max: int = field(default=64 << 20, metadata=limits(1024, 1 << 40))


@dataclass(frozen=True, slots=True)
class EvaluateConfig:
    """What each new reference is judged on; the other fields are those of `DataConfig`.

    Without `path`, samples of a source are judged as their labels come, before they are learnt.
    """

    path: str | None = None
    arrays: Table = field(default_factory=dict)
    where: Table = field(default_factory=dict)
    divide_by: float = field(default=1.0, metadata=limits(1e-12, 1e12))
    samples_max: int = field(default=1000, metadata=limits(1, 1_000_000))


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """How the node trains; the host's plan says how many steps, and at what rate.

    No round begins with fewer than `samples_min` samples. `keep_moments` lets Adam go on from one
    round to the next; `clip_norm` 0 means no limit. With `mode` "zeroth_order" the board runs
    forward.onnx alone and estimates each gradient from `probes` pairs of predictions, `epsilon`
    to either side of the adapter (`edge.zeroth_order`).
    """

    threads: int = field(default=1, metadata=limits(1, 256))
    seed: int = field(default=0, metadata=limits(0, 2**63 - 1))
    samples_min: int = field(default=32, metadata=limits(1, 1_000_000))
    keep_moments: bool = False
    clip_norm: float = field(default=0.0, metadata=limits(0.0, 1e6))
    weight_decay: float = field(default=0.0, metadata=limits(0.0, 1.0))
    mode: str = field(default=GRADIENT, metadata=choices(GRADIENT, ZEROTH_ORDER))
    probes: int = field(default=1, metadata=limits(1, 10_000))
    epsilon: float = field(default=0.001, metadata=limits(1e-6, 1.0))


@dataclass(frozen=True, slots=True)
class ReleasesConfig:
    """Where releases of the model lie, if a node takes any, and what a new one may use at first.

    `memory_mib` and `cpu_s` limit the process in which it takes its first steps.
    """

    dir: str | None = None
    memory_mib: int = field(default=512, metadata=limits(16, 65_536))
    cpu_s: int = field(default=60, metadata=limits(1, 3600))
    insecure: bool = False


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """One node. `bundle` is the name of a shipped model, or a folder with a model.json."""

    name: str
    state_dir: str
    bundle: str
    link: LinkConfig
    data: DataConfig
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    releases: ReleasesConfig = field(default_factory=ReleasesConfig)
    trust: TrustConfig = field(default_factory=TrustConfig)
    control_socket: str | None = None
    log_level: str = field(default="INFO", metadata=choices(*LOG_LEVELS))

    @property
    def store_path(self) -> Path:
        """The file that holds where the node stands in its run."""
        return Path(self.state_dir) / STORE

    @property
    def replay_path(self) -> Path:
        """The file that holds the samples of a source."""
        return Path(self.state_dir) / REPLAY

    @property
    def adapter_path(self) -> Path:
        """The adapter of the newest reference, for this node and for any other program."""
        return Path(self.state_dir) / ADAPTER

    @property
    def control_path(self) -> Path:
        """The socket that `ternmesh status` asks."""
        return control_path(self.state_dir, self.control_socket)


def read_node_config(path: Path) -> NodeConfig:
    """The settings in the file at `path`; ConfigError. Relative paths start from its folder."""
    return read_config_file(NodeConfig, path, lambda c, folder: check_config(_anchor(c, folder)))


def check_config(config: NodeConfig) -> NodeConfig:
    """`config` if it agrees with itself; ConfigError with a sentence otherwise."""
    check_name(config.name)
    check_link(config.link, config.name)
    config.trust.check(has_radio=config.link.has_radio)
    bundle_folder(config)
    if (config.data.path is None) == (config.data.source is None):
        raise ConfigError("data needs either path (.npz files) or source (package.module:Class)")
    for name, arrays in (("data", config.data.arrays), ("evaluate", config.evaluate.arrays)):
        for tensor, array in arrays.items():
            if not isinstance(array, str):
                raise ConfigError(f"{name}.arrays.{tensor} is {array!r}: it must be text")
    for name, where in (("data", config.data.where), ("evaluate", config.evaluate.where)):
        for array, value in where.items():
            if not isinstance(value, str | int | float):
                raise ConfigError(f"{name}.where.{array} is {value!r}: it must be text or a number")
    return config


def bundle_folder(config: NodeConfig) -> Path:
    """The folder of the model; ConfigError where there is none."""
    try:
        return bundle_path(config.bundle)
    except ValueError as error:
        folder = Path(config.bundle)
        if not folder.is_dir():
            raise ConfigError(
                f"bundle is {config.bundle!r}: no such folder, and {error}"
            ) from error
        return folder


def npz_settings(config: DataConfig | EvaluateConfig) -> NpzSettings:
    """How .npz files are read."""
    return NpzSettings(config.arrays, config.where, config.divide_by)


def adam_settings(config: TrainingConfig) -> AdamSettings:
    """Adam's constants."""
    return AdamSettings(weight_decay=config.weight_decay, clip_norm=config.clip_norm)


def _anchor(config: NodeConfig, folder: Path) -> NodeConfig:
    """`config` with its relative paths made absolute from `folder`."""
    is_folder = (folder / config.bundle).is_dir()
    return replace(
        config,
        state_dir=str(folder / config.state_dir),
        bundle=str(folder / config.bundle) if is_folder else config.bundle,
        control_socket=anchored(config.control_socket, folder),
        link=config.link.anchored(folder),
        data=replace(
            config.data,
            path=anchored(config.data.path, folder),
            source_path=anchored(config.data.source_path, folder),
        ),
        evaluate=replace(config.evaluate, path=anchored(config.evaluate.path, folder)),
        releases=replace(config.releases, dir=anchored(config.releases.dir, folder)),
    )
