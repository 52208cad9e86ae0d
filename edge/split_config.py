"""What a board of a split training is told: its TOML file as frozen dataclasses."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from edge.config import DataConfig, EvaluateConfig
from ternmesh.config import LOG_LEVELS, ConfigError, choices, limits
from ternmesh_store.keyring import TrustConfig
from transports.bearer import check_link
from transports.config_file import anchored, check_name, control_path, read_config_file
from transports.link_config import LinkConfig

STORE = "split.sqlite"


@dataclass(frozen=True, slots=True)
class SplitTrainingConfig:
    """How the board trains its part; the host's plan says how long, and at what rate.

    Every `checkpoint` micro-batches what was learned goes to disk.
    """

    threads: int = field(default=1, metadata=limits(1, 256))
    seed: int = field(default=0, metadata=limits(0, 2**63 - 1))
    checkpoint: int = field(default=20, metadata=limits(1, 1_000_000))


@dataclass(frozen=True, slots=True)
class SplitBoardConfig:
    """One board. `bundle` is a folder with `first`, and with `head` where labels stay here.

    In [data] and [evaluate] the tensor of the classes is called `label`.
    """

    name: str
    state_dir: str
    bundle: str
    link: LinkConfig
    data: DataConfig
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    training: SplitTrainingConfig = field(default_factory=SplitTrainingConfig)
    trust: TrustConfig = field(default_factory=TrustConfig)
    control_socket: str | None = None
    log_level: str = field(default="INFO", metadata=choices(*LOG_LEVELS))

    @property
    def store_path(self) -> Path:
        """The file that holds the run and what was learned."""
        return Path(self.state_dir) / STORE

    @property
    def control_path(self) -> Path:
        """The socket that `ternmesh status` asks."""
        return control_path(self.state_dir, self.control_socket)


def read_split_board_config(path: Path) -> SplitBoardConfig:
    """The settings in the file at `path`; ConfigError. Relative paths start from its folder."""
    return read_config_file(SplitBoardConfig, path, lambda c, folder: _check(_anchor(c, folder)))


def _check(config: SplitBoardConfig) -> SplitBoardConfig:
    check_name(config.name)
    check_link(config.link, config.name)
    config.trust.check(has_radio=config.link.has_radio)
    if config.data.path is None or config.data.source is not None:
        raise ConfigError("data.path is missing: a split training learns from .npz files")
    return config


def _anchor(config: SplitBoardConfig, folder: Path) -> SplitBoardConfig:
    """`config` with its relative paths made absolute from `folder`."""
    return replace(
        config,
        state_dir=str(folder / config.state_dir),
        bundle=str(folder / config.bundle),
        control_socket=anchored(config.control_socket, folder),
        link=config.link.anchored(folder),
        data=replace(config.data, path=anchored(config.data.path, folder)),
        evaluate=replace(config.evaluate, path=anchored(config.evaluate.path, folder)),
    )
