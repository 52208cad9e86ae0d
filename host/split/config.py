"""The settings of the host of a split training: its TOML file, and the plan made from it."""

from dataclasses import dataclass, field
from pathlib import Path

from ternmesh.config import LOG_LEVELS, ConfigError, choices, limits
from ternmesh.errors import WireError
from ternmesh.model_package import ModelPackage, read_model_package
from ternmesh.split.host import BOARDS_MAX
from ternmesh.split.plan import SplitPlan
from ternmesh.wire.activation import BITS, SAMPLES_MAX
from ternmesh_service.config_file import DESCRIPTION, DESCRIPTION_MAX, PATH, read_config_file
from ternmesh_service.keyring import SecurityConfig
from ternmesh_store.files import read_file
from transports.base import HOST
from transports.factory import check_link, profile_of
from transports.link_config import LinkConfig

FIRST = "first"
METHODS = ("none", "learned")  # those of models.split.cut


@dataclass(frozen=True, slots=True)
class SplitBoundaryConfig:
    """What crosses the cut: `latent` numbers for each position, and the bits of a number.

    With the method "none" all numbers cross. 32 bits are float32.
    """

    method: str = field(default="learned", metadata=choices(*METHODS))
    latent: int = field(default=8, metadata=limits(1, 65_535))
    bits_up: int = field(default=4, metadata=limits(min(BITS), max(BITS)))
    bits_gradient: int = field(default=4, metadata=limits(min(BITS), max(BITS)))


@dataclass(frozen=True, slots=True)
class SplitRunConfig:
    """How the boards and the host train together.

    Each board sends `micro_batches` of `batch` samples. The host takes a step and answers when it
    has a micro-batch of every board that is not done, or `wait_s` after the first one: so no board
    gets ahead of the others. The learning rate falls as in a fleet's run. A board waits `answer_s`
    for each answer; it counts as gone when the host took none of its micro-batches for `silence_s`.
    What was learned goes to disk every `checkpoint` steps. Both ends shorten the gradient of a
    micro-batch to `clip_norm`.
    """

    micro_batches: int = field(default=160, metadata=limits(1, 2**32 - 2))
    batch: int = field(default=16, metadata=limits(2, SAMPLES_MAX))
    learning_rate: float = field(default=0.005, metadata=limits(1e-6, 10.0))
    learning_rate_drop: float = field(default=0.8, metadata=limits(0.0, 10.0))
    min_boards: int = field(default=1, metadata=limits(1, BOARDS_MAX))
    silence_s: float = field(default=300.0, metadata=limits(1.0, 2_592_000.0))
    wait_s: float = field(default=2.0, metadata=limits(0.0, 86_400.0))
    answer_s: float = field(default=10.0, metadata=limits(0.001, 86_400.0))
    clip_norm: float = field(default=10.0, metadata=limits(1e-6, 1000.0))
    checkpoint: int = field(default=20, metadata=limits(1, 1_000_000))

    @property
    def clip_norm_e6(self) -> int:
        """`clip_norm` as it stands in the plan, so that both ends use the same number."""
        return round(1e6 * self.clip_norm)


@dataclass(frozen=True, slots=True)
class SplitHostConfig:
    """One host. `model` is the folder that `ternmesh split export` writes.

    `builder` is the function `package.module:name` that makes the parts (`models.split.cut.Make`).
    """

    state_dir: str = field(metadata=PATH)
    model: str = field(metadata=PATH)
    link: LinkConfig
    builder: str
    boundary: SplitBoundaryConfig = field(default_factory=SplitBoundaryConfig)
    run: SplitRunConfig = field(default_factory=SplitRunConfig)
    security: SecurityConfig = field(default_factory=SecurityConfig)
    control_socket: str | None = field(default=None, metadata=PATH)
    log_level: str = field(default="INFO", metadata=choices(*LOG_LEVELS))


def read_split_host_config(path: Path) -> SplitHostConfig:
    """The settings in the file at `path`; ConfigError. Relative paths start from its folder."""
    return read_config_file(SplitHostConfig, path, _check)


def read_first(config: SplitHostConfig) -> ModelPackage:
    """The description of the boards' part; ConfigError or ModelPackageError."""
    path = Path(config.model) / FIRST / DESCRIPTION
    try:
        return read_model_package(read_file(path, DESCRIPTION_MAX))
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: write it with `ternmesh split export`"
        ) from error


def plan_of(config: SplitHostConfig, first: ModelPackage, classes: int) -> SplitPlan:
    """The plan of a configuration; ConfigError if there is none."""
    run = config.run
    if first.batch != run.batch:
        raise ConfigError(
            f"run.batch is {run.batch}, and {config.model} was exported for {first.batch}: "
            "export it again, or set run.batch back"
        )
    try:
        return SplitPlan(
            width=first.outputs[0].shape[-1],
            bits_up=config.boundary.bits_up,
            bits_gradient=config.boundary.bits_gradient,
            batch=run.batch,
            micro_batches=run.micro_batches,
            learning_rate_e6=round(1e6 * run.learning_rate),
            learning_rate_drop_permille=round(1000 * run.learning_rate_drop),
            classes=classes,
            frame_mtu=profile_of(config.link).frame_max,
            answer_ms=round(1000 * run.answer_s),
            clip_norm_e6=run.clip_norm_e6,
        )
    except WireError as error:
        raise ConfigError(f"[run] and [boundary] make no plan: {error}") from error


def _check(config: SplitHostConfig) -> SplitHostConfig:
    check_link(config.link, HOST)
    config.security.check(has_radio=config.link.has_radio)
    if config.run.wait_s >= config.run.answer_s:
        raise ConfigError("run.wait_s must be shorter than run.answer_s, or boards give up first")
    for name in ("bits_up", "bits_gradient"):
        if getattr(config.boundary, name) not in BITS:
            raise ConfigError(f"boundary.{name} must be one of {', '.join(map(str, BITS))}")
    return config
