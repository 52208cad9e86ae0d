"""What a host is told: its TOML file as frozen dataclasses, and the plan that follows from it."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from models.zoo import bundle_path
from ternmesh.bundle import Bundle, read_bundle
from ternmesh.config import LOG_LEVELS, ConfigError, choices, limits
from ternmesh.errors import WireError
from ternmesh.plan import (
    FRAME_MTU_MAX,
    FRAME_MTU_MIN,
    MANIFEST_REPEATS_MAX,
    Plan,
    make_plan,
)
from ternmesh.swarm.records import NODES_BUNDLED_MAX, Settings
from ternmesh_store.keyring import TrustConfig
from transports.base import HOST
from transports.bearer import check_link
from transports.config_file import control_path, read_config_file
from transports.link_config import LinkConfig

STORE = "host.sqlite"
DESCRIPTION = "model.json"
ZEROS_MAX, BYTES_MAX = 0.999, 1 << 22


@dataclass(frozen=True, slots=True)
class RunConfig:
    """How the fleet learns. A change asks for a new run, but for min_peers and what follows it.

    `*_zeros` are shares of zeros, up from the nodes and down from the host; where `*_bytes` is
    not 0, it chooses them: what a packet, or a reference, may take. `frame_mtu` is in bytes;
    `scale_max` is the largest weight of a node's trits that the host believes. The learning
    rate loses the share `learning_rate_drop` of itself, in a straight line over the run; above
    1 it has gone before the end, and the last rounds only send what is left. A node stays
    silent, at most `silence_rounds` in a row, while the energy of its update is below `silence`
    times that of what has been learned (0: never). On a link that loses frames a manifest that is
    sent again, `manifest_repeats` times, saves whole packets. `bundles`: whether packets that a
    gateway has added up are believed.
    """

    rounds: int = field(default=20, metadata=limits(1, 1_000_000))
    local_steps: int = field(default=8, metadata=limits(1, 100_000))
    learning_rate: float = field(default=0.005, metadata=limits(1e-6, 10.0))
    learning_rate_drop: float = field(default=0.0, metadata=limits(0.0, 10.0))
    frame_mtu: int = field(default=184, metadata=limits(FRAME_MTU_MIN, FRAME_MTU_MAX))
    up_zeros: float = field(default=0.9, metadata=limits(0.0, ZEROS_MAX))
    down_zeros: float = field(default=0.9, metadata=limits(0.0, ZEROS_MAX))
    up_bytes: int = field(default=0, metadata=limits(0, BYTES_MAX))
    down_bytes: int = field(default=0, metadata=limits(0, BYTES_MAX))
    scale_max: float = field(default=1.0, metadata=limits(2.0**-24, 63.97))
    announce_s: int = field(default=30, metadata=limits(1, 86_400))
    silence: float = field(default=0.0, metadata=limits(0.0, 1.0))
    silence_rounds: int = field(default=0, metadata=limits(0, 1000))
    manifest_repeats: int = field(default=0, metadata=limits(0, MANIFEST_REPEATS_MAX))
    min_peers: int = field(default=1, metadata=limits(1, 1024))
    deadline_s: float = field(default=60.0, metadata=limits(1.0, 2_592_000.0))
    nodes_max: int = field(default=1024, metadata=limits(1, 4096))
    chain_max: int = field(default=256, metadata=limits(1, 65_536))
    bundles: bool = False


@dataclass(frozen=True, slots=True)
class HostConfig:
    """One host. `bundle` is the name of a shipped model, or a folder with a model.json."""

    state_dir: str
    bundle: str
    link: LinkConfig
    run: RunConfig = field(default_factory=RunConfig)
    trust: TrustConfig = field(default_factory=TrustConfig)
    control_socket: str | None = None
    log_level: str = field(default="INFO", metadata=choices(*LOG_LEVELS))

    @property
    def store_path(self) -> Path:
        """The file that holds the run."""
        return Path(self.state_dir) / STORE

    @property
    def control_path(self) -> Path:
        """The socket that `ternmesh status` asks."""
        return control_path(self.state_dir, self.control_socket)


def read_host_config(path: Path) -> HostConfig:
    """The settings in the file at `path`; ConfigError. Relative paths start from its folder."""
    return read_config_file(HostConfig, path, lambda c, folder: _check(_anchor(c, folder)))


def _check(config: HostConfig) -> HostConfig:
    check_link(config.link, HOST)
    config.trust.check(has_radio=config.link.has_radio)
    plan_of(config.run, load_bundle(config.bundle).dimension)
    if config.run.bundles and config.run.nodes_max > NODES_BUNDLED_MAX:
        raise ConfigError(
            f"run.nodes_max is {config.run.nodes_max}: where bundles are taken it must be at most "
            f"{NODES_BUNDLED_MAX}"
        )
    return config


def load_bundle(name: str) -> Bundle:
    """The description of a shipped model or of a bundle's folder; ConfigError or BundleError."""
    try:
        folder = bundle_path(name)
    except ValueError as error:
        folder = Path(name)
        if not folder.is_dir():
            raise ConfigError(f"bundle is {name!r}: no such folder, and {error}") from error
    try:
        return read_bundle((folder / DESCRIPTION).read_bytes())
    except OSError as error:
        raise ConfigError(f"bundle is {name!r}: its {DESCRIPTION} cannot be read") from error


def plan_of(run: RunConfig, dimension: int) -> Plan:
    """The plan of a run over an adapter of `dimension` numbers; ConfigError where none fits."""
    try:
        return make_plan(
            dimension,
            rounds=run.rounds,
            local_steps=run.local_steps,
            learning_rate=run.learning_rate,
            frame_mtu=run.frame_mtu,
            up_zeros=run.up_zeros,
            down_zeros=run.down_zeros,
            up_bytes=run.up_bytes,
            down_bytes=run.down_bytes,
            nodes=run.min_peers,
            scale_max=run.scale_max,
            announce_s=run.announce_s,
            learning_rate_drop=run.learning_rate_drop,
            silence=run.silence,
            silence_rounds=run.silence_rounds,
            manifest_repeats=run.manifest_repeats,
        )
    except WireError as error:
        raise ConfigError(f"[run] does not fit this model: {error}") from error


def settings_of(run: RunConfig) -> Settings:
    """What the coordinator is told besides the plan."""
    return Settings(run.min_peers, run.deadline_s, run.nodes_max, run.chain_max, run.bundles)


def _anchor(config: HostConfig, folder: Path) -> HostConfig:
    """`config` with its relative paths made absolute from `folder`."""
    control_socket = config.control_socket
    is_folder = (folder / config.bundle).is_dir()
    return replace(
        config,
        state_dir=str(folder / config.state_dir),
        bundle=str(folder / config.bundle) if is_folder else config.bundle,
        control_socket=str(folder / control_socket) if control_socket else None,
        link=config.link.anchored(folder),
    )
