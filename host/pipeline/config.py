"""A pipeline's settings: its TOML file as frozen dataclasses; needs no torch."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from models.bottleneck.config import BITS, BottleneckConfig, OptimizerConfig, Shape
from ternmesh.config import ConfigError, choices, limits, read_table
from ternmesh.errors import TernmeshError
from ternmesh_service.config_file import DESCRIPTION_MAX, PATH, read_config_file
from ternmesh_store.files import read_file

DATA_VARIABLE = "TERNMESH_DATA"
# Settings that may differ between ranks: paths and hardware.
LOCAL = (
    *("state_dir", "data", "device", "threads", "model_folder", "trace"),
    *("identity", "listen", "congestion"),
)
SIZES = (  # the names of a model's sizes in config.json, by family of Hugging Face
    ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    ("vocab_size", "n_embd", "n_layer", "n_head"),
)
SHAPE_SIZES = ("vocabulary", "width", "layers", "heads")  # their names in `Shape`
# Settings that may change when a run goes on from a checkpoint.
CHANGEABLE = (
    "steps",
    "checkpoint_steps",
    "report_steps",
    "validate_steps",
    "timeout_s",
    "restarts_max",
    "diagnose",
    "addresses",
    "identities",
)


class PipelineError(TernmeshError):
    """Ranks, checkpoints or texts do not fit together; a restart cannot help, and all ranks end."""


@dataclass(frozen=True, slots=True)
class ReplicasConfig:
    """`count` whole pipelines side by side, which train on different texts.

    The replicas of a stage exchange their changes every `every_steps` steps, as ternary updates
    with a share of `zeros`. With more than about 0.6 zeros, an update takes seconds of computing
    for each million numbers.
    """

    count: int = field(default=1, metadata=limits(1, 1024))
    every_steps: int = field(default=50, metadata=limits(1, 100_000))
    zeros: float = field(default=0.5, metadata=limits(0.0, 0.999))


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """One run; all ranks read the same file.

    A step reads `micro_batches` of `micro_batch` sequences of `model.length` bytes of text. Where
    `model_folder` names a Hugging Face model, that one is trained, with its tokenizer's tokens.
    `data` is a folder of texts (*.txt or *.txt.gz), by default `text` in TERNMESH_DATA. Checkpoints
    and progress are in `state_dir`. A rank that receives nothing for `timeout_s` ends and is
    started again, at most `restarts_max` times. `trace` records three steps of each rank.
    `diagnose` measures what a subspace loses.

    `addresses` names host and port of each rank (none: all on this machine), and `identities` the
    keys of these hosts, in the order in which they first appear; `identity` is the file with this
    machine's own. It listens on `listen` where its address leads to a router. `congestion` is TCP's
    congestion control.
    """

    state_dir: str = field(metadata=PATH)
    data: str = field(default="", metadata=PATH)
    stages: int = field(default=2, metadata=limits(2, 64))
    schedule: str = field(default="1f1b", metadata=choices("1f1b", "gpipe"))
    micro_batch: int = field(default=4, metadata=limits(1, 4096))
    micro_batches: int = field(default=4, metadata=limits(1, 1024))
    steps: int = field(default=1000, metadata=limits(1, 10_000_000))
    checkpoint_steps: int = field(default=100, metadata=limits(0, 1_000_000))
    report_steps: int = field(default=10, metadata=limits(1, 1_000_000))
    validate_steps: int = field(default=0, metadata=limits(0, 1_000_000))
    seed: int = field(default=0, metadata=limits(0, 2**31 - 1))
    recompute: bool = False
    device: str = field(default="auto", metadata=choices("auto", "cpu", "cuda"))
    threads: int = field(default=1, metadata=limits(1, 1024))
    timeout_s: float = field(default=600.0, metadata=limits(1.0, 86_400.0))
    restarts_max: int = field(default=20, metadata=limits(0, 1000))
    trace: bool = False
    diagnose: bool = False
    precision: str = field(default="float32", metadata=choices("float32", "bf16"))
    addresses: tuple[str, ...] = ()
    identities: tuple[str, ...] = ()
    identity: str = field(default="", metadata=PATH)
    listen: str = ""
    congestion: str = field(default="bbr", metadata=choices("bbr", "cubic"))
    model: Shape = field(default_factory=Shape)
    model_folder: str = field(default="", metadata=PATH)
    boundary: BottleneckConfig = field(default_factory=BottleneckConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    replicas: ReplicasConfig = field(default_factory=ReplicasConfig)

    @property
    def folder(self) -> Path:
        return Path(self.state_dir)

    @property
    def ranks(self) -> int:
        """The count of processes: one for each stage of each replica, replica by replica."""
        return self.stages * self.replicas.count

    @property
    def identity_path(self) -> Path:
        return Path(self.identity) if self.identity else self.folder / "identity"

    @property
    def hosts(self) -> list[str]:
        """The hosts in `addresses`, in the order in which they first appear."""
        return list(dict.fromkeys(host_and_port(each)[0] for each in self.addresses))

    @property
    def rows(self) -> int:
        """Sequences of a replica in a step."""
        return self.micro_batch * self.micro_batches

    @property
    def step_tokens(self) -> int:
        """Tokens of all replicas in a step."""
        return self.rows * self.replicas.count * self.model.length

    def shared(self) -> dict[str, Any]:
        """The settings, by dotted name, that must be equal on all ranks."""
        return {name: value for name, value in _flat(asdict(self)) if name not in LOCAL}

    @property
    def digest(self) -> str:
        """16 hex digits of the settings that a run and its checkpoints must share."""
        lasting = {key: value for key, value in self.shared().items() if key not in CHANGEABLE}
        return hashlib.sha256(json.dumps(lasting).encode()).hexdigest()[:16]


def read_pipeline_config(path: Path) -> PipelineConfig:
    """The settings in the file at `path`; ConfigError. Paths are relative to its folder."""
    return read_config_file(PipelineConfig, path, lambda c: check(_complete(c)))


def check(config: PipelineConfig) -> PipelineConfig:
    """`config` itself; ConfigError where its settings contradict each other."""
    model, boundary = config.model, config.boundary
    if model.layers < config.stages:
        raise ConfigError(f"stages is {config.stages}: model.layers must be at least as many")
    if model.width % (2 * model.heads):
        raise ConfigError(f"model.width is {model.width}: it must be a multiple of 2 model.heads")
    replicas, saved = config.replicas, config.checkpoint_steps
    if replicas.count > 1 and 0 < saved < replicas.every_steps:
        raise ConfigError(
            f"checkpoint_steps is {saved}: it must be at least replicas.every_steps (or 0), so "
            "that replicas have checkpoints in common"
        )
    for name in ("bits", "back_bits"):
        if (bits := getattr(boundary, name)) not in BITS:
            raise ConfigError(f"boundary.{name} is {bits}: it must be 4, 8, 16 or 32")
    if config.diagnose and boundary.method != "subspace":
        raise ConfigError('diagnose has no effect without boundary.method = "subspace": remove it')
    for place in boundary.slow:
        if not place.isdecimal() or int(place) >= config.stages - 1:
            raise ConfigError(
                f'boundary.slow names "{place}": boundaries are "0" to "{config.stages - 2}"'
            )
    if config.addresses and len(config.addresses) != config.ranks:
        raise ConfigError(
            f"addresses has {len(config.addresses)} entries: it must name one for each of the "
            f"{config.ranks} ranks"
        )
    hosts = config.hosts
    if config.identities and len(config.identities) != len(hosts):
        raise ConfigError(
            f"identities has {len(config.identities)} entries: it must have one for each of the "
            f"hosts {', '.join(hosts)}"
        )
    if boundary.numbers(model.width) > model.width:
        raise ConfigError(f"boundary.latent is {boundary.latent}: model.width is {model.width}")
    if model.vocabulary < 256 and not config.model_folder:
        raise ConfigError("model.vocabulary must be at least 256: texts are read as bytes")
    return config


def host_and_port(address: str) -> tuple[str, int]:
    """The two parts of `HOST:PORT` (an IPv6 address in brackets); ConfigError."""
    host, _, port = address.rpartition(":")
    if not host.strip("[]") or not port.isascii() or not port.isdecimal() or int(port) >= 1 << 16:
        raise ConfigError(f'addresses has "{address}": write HOST:PORT, such as "10.0.0.1:29400"')
    return host.strip("[]"), int(port)


def _complete(config: PipelineConfig) -> PipelineConfig:
    """`config` with the data of this machine, and the sizes of the model in `model_folder`."""
    data = config.data
    if not data and (data_folder := os.environ.get(DATA_VARIABLE)):
        data = str(Path(data_folder).absolute() / "text")
    if not data:
        raise ConfigError(f"data is missing: name a folder of texts, or set {DATA_VARIABLE}")
    model = config.model
    if config.model_folder:
        model = _shape(Path(config.model_folder), model.length)
    return replace(config, data=data, model=model)


def _shape(folder: Path, length: int) -> Shape:
    """The sizes in a Hugging Face model's config.json; ConfigError."""
    try:
        model = json.loads(read_file(folder / "config.json", DESCRIPTION_MAX))
        names = next((names for names in SIZES if model.keys() >= {*names}), SIZES[0])
        sizes = {size: model[name] for size, name in zip(SHAPE_SIZES, names, strict=True)}
    except (OSError, ValueError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigError(f"model_folder is {folder}: its config.json cannot be used") from error
    return read_table(Shape, {**sizes, "length": length}, f"{folder / 'config.json'}: model")


def _flat(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name, value in table.items():
        nested = isinstance(value, Mapping)
        rows += _flat(value, f"{prefix}{name}.") if nested else [(prefix + name, value)]
    return rows
