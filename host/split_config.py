"""What the host of a split training is told: its TOML file, and the plan that follows from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ternmesh.bundle import Bundle, read_bundle
from ternmesh.config import LOG_LEVELS, ConfigError, choices, limits
from ternmesh.errors import WireError
from ternmesh.split.host import BOARDS_MAX, Settings
from ternmesh.split.plan import FRAME_MTU_MIN, SplitPlan
from ternmesh.wire.activation import BITS, SAMPLES_MAX
from ternmesh.wire.seal import FRAME_MAX
from ternmesh_store.keyring import TrustConfig
from transports.base import HOST
from transports.bearer import check_link
from transports.config_file import control_path, read_config_file
from transports.link_config import LinkConfig

STORE = "split.sqlite"
FIRST, HEAD, DESCRIPTION = "first", "head", "model.json"
METHODS = ("none", "resbm", "learned")  # those of models.split


@dataclass(frozen=True, slots=True)
class SplitBoundaryConfig:
    """What crosses: `latent` numbers of each position, and the bits of a number.

    With the method "none" all numbers cross; 32 bits are float32.
    """

    method: str = field(default="learned", metadata=choices(*METHODS))
    latent: int = field(default=8, metadata=limits(1, 65_535))
    bits_up: int = field(default=4, metadata=limits(min(BITS), max(BITS)))
    bits_gradient: int = field(default=4, metadata=limits(min(BITS), max(BITS)))


@dataclass(frozen=True, slots=True)
class SplitRunConfig:
    """How the boards and the host learn together.

    Each board sends `micro_batches` of `batch` samples. The host takes a step, and answers, when it
    has one of every board that is not done, or `wait_s` after the first: so nobody gets ahead of
    the others. The rate falls as that of a fleet's run. A board waits `answer_s` for each answer,
    and counts as gone when none of its micro-batches was taken for `silence_s`. Where `labels` stay
    on the board, so does the head. Every `checkpoint` steps what was learned goes to disk. Numbers
    larger than `value_max` are refused, and a micro-batch's gradient is made no longer than
    `clip_norm`, at both ends.
    """

    micro_batches: int = field(default=160, metadata=limits(1, 2**32 - 2))
    batch: int = field(default=16, metadata=limits(2, SAMPLES_MAX))
    learning_rate: float = field(default=0.005, metadata=limits(1e-6, 10.0))
    learning_rate_drop: float = field(default=0.8, metadata=limits(0.0, 10.0))
    labels: str = field(default="sent", metadata=choices("sent", "stay"))
    min_boards: int = field(default=1, metadata=limits(1, BOARDS_MAX))
    boards_max: int = field(default=BOARDS_MAX, metadata=limits(1, BOARDS_MAX))
    silence_s: float = field(default=300.0, metadata=limits(1.0, 2_592_000.0))
    wait_s: float = field(default=2.0, metadata=limits(0.0, 86_400.0))
    answer_s: float = field(default=10.0, metadata=limits(0.001, 86_400.0))
    value_max: int = field(default=1000, metadata=limits(1, 1_000_000))
    clip_norm: float = field(default=10.0, metadata=limits(1e-6, 1000.0))
    frame_mtu: int = field(default=FRAME_MAX, metadata=limits(FRAME_MTU_MIN, FRAME_MAX))
    checkpoint: int = field(default=20, metadata=limits(1, 1_000_000))
    seed: int = field(default=0, metadata=limits(0, 2**31 - 1))

    @property
    def clip_norm_e6(self) -> int:
        """`clip_norm` as the plan has it, so that both ends have the same."""
        return round(1e6 * self.clip_norm)


@dataclass(frozen=True, slots=True)
class SplitHostConfig:
    """One host. `bundle` is the folder that `ternmesh split export` writes.

    `model` is the function `package.module:name` that makes the parts (`models.split.Make`).
    """

    state_dir: str
    bundle: str
    link: LinkConfig
    model: str = "models.split_keyword:make"
    boundary: SplitBoundaryConfig = field(default_factory=SplitBoundaryConfig)
    run: SplitRunConfig = field(default_factory=SplitRunConfig)
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

    @property
    def labels_stay(self) -> bool:
        """Whether labels and head stay on the board."""
        return self.run.labels == "stay"


def read_split_host_config(path: Path) -> SplitHostConfig:
    """The settings in the file at `path`; ConfigError. Relative paths start from its folder."""
    return read_config_file(SplitHostConfig, path, lambda c, folder: _check(_anchor(c, folder)))


def read_parts(config: SplitHostConfig) -> Mapping[str, Bundle]:
    """The descriptions of the boards' bundles by name; ConfigError or BundleError."""
    names = (FIRST, HEAD) if config.labels_stay else (FIRST,)
    found = {}
    for name in names:
        path = Path(config.bundle) / name / DESCRIPTION
        try:
            found[name] = read_bundle(path.read_bytes())
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be read: write it with `ternmesh split export`"
            ) from error
    return found


def plan_of(config: SplitHostConfig, parts: Mapping[str, Bundle], classes: int) -> SplitPlan:
    """The plan of a configuration; ConfigError where none fits."""
    run, first = config.run, parts[FIRST]
    if first.batch != run.batch:
        raise ConfigError(
            f"run.batch is {run.batch}, and {config.bundle} was exported for {first.batch}: "
            "export it again, or go back"
        )
    down = parts[HEAD].inputs[0].shape[-1] if config.labels_stay else classes
    try:
        return SplitPlan(
            width=first.outputs[0].shape[-1],
            bits_up=config.boundary.bits_up,
            bits_gradient=config.boundary.bits_gradient,
            batch=run.batch,
            micro_batches=run.micro_batches,
            learning_rate_e6=round(1e6 * run.learning_rate),
            learning_rate_drop_permille=round(1000 * run.learning_rate_drop),
            labels_stay=int(config.labels_stay),
            classes=classes,
            width_down=down,
            frame_mtu=run.frame_mtu,
            answer_ms=round(1000 * run.answer_s),
            value_max=run.value_max,
            clip_norm_e6=run.clip_norm_e6,
        )
    except WireError as error:
        raise ConfigError(f"[run] and [boundary] make no plan: {error}") from error


def settings_of(run: SplitRunConfig) -> Settings:
    """What is no board's business."""
    return Settings(run.min_boards, run.boards_max, run.silence_s)


def _check(config: SplitHostConfig) -> SplitHostConfig:
    check_link(config.link, HOST)
    config.trust.check(has_radio=config.link.has_radio)
    if config.run.wait_s >= config.run.answer_s:
        raise ConfigError("run.wait_s must be shorter than run.answer_s, or boards give up before")
    if config.run.min_boards > config.run.boards_max:
        raise ConfigError("run.min_boards is above run.boards_max: the run could never begin")
    for name in ("bits_up", "bits_gradient"):
        if getattr(config.boundary, name) not in BITS:
            raise ConfigError(f"boundary.{name} must be one of {', '.join(map(str, BITS))}")
    return config


def _anchor(config: SplitHostConfig, folder: Path) -> SplitHostConfig:
    """`config` with its relative paths made absolute from `folder`."""
    socket = config.control_socket
    return replace(
        config,
        state_dir=str(folder / config.state_dir),
        bundle=str(folder / config.bundle),
        control_socket=str(folder / socket) if socket else None,
        link=config.link.anchored(folder),
    )
