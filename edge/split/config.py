"""The settings of a board in a split training: its TOML file as frozen dataclasses."""

from dataclasses import dataclass, field
from pathlib import Path

from edge.config import DataConfig, EvaluateConfig
from ternmesh.config import LOG_LEVELS, ConfigError, choices, limits
from ternmesh_service.config_file import PATH, check_name, read_config_file
from ternmesh_service.keyring import SecurityConfig
from transports.factory import check_link
from transports.link_config import LinkConfig


@dataclass(frozen=True, slots=True)
class SplitTrainingConfig:
    """How the board trains its part. The host's plan has the length and the learning rate.

    What was learned goes to disk every `checkpoint` micro-batches.
    """

    threads: int = field(default=1, metadata=limits(1, 256))
    seed: int = field(default=0, metadata=limits(0, 2**63 - 1))
    checkpoint: int = field(default=20, metadata=limits(1, 1_000_000))


@dataclass(frozen=True, slots=True)
class SplitBoardConfig:
    """One board. `model` is a folder with `first`.

    In [data] and [evaluate] the tensor of the classes is called `label`.
    """

    name: str
    state_dir: str = field(metadata=PATH)
    model: str = field(metadata=PATH)
    link: LinkConfig
    data: DataConfig
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    training: SplitTrainingConfig = field(default_factory=SplitTrainingConfig)
    security: SecurityConfig = field(default_factory=SecurityConfig)
    control_socket: str | None = field(default=None, metadata=PATH)
    log_level: str = field(default="INFO", metadata=choices(*LOG_LEVELS))


def read_split_board_config(path: Path) -> SplitBoardConfig:
    """The settings in the file at `path`; ConfigError. Relative paths start from its folder."""
    return read_config_file(SplitBoardConfig, path, _check)


def _check(config: SplitBoardConfig) -> SplitBoardConfig:
    check_name(config.name)
    check_link(config.link, config.name)
    config.security.check(has_radio=config.link.has_radio)
    if config.data.path is None or config.data.source is not None:
        raise ConfigError("data.path is missing: a split training learns from .npz files")
    return config
