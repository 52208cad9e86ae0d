"""The built-in sources by name, and the options of each (`[data.options]`)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ternmesh.config import ConfigError, Table, choices, limits, read_table

RECORDINGS = "recordings"
PATHS = ("path", "ca_file")  # options that start from the folder of the configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveOptions:
    """What each built-in source has: the most samples that it gives in a second, on average."""

    rate_max: float = field(default=10.0, metadata=limits(0.001, 1000.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class MicrophoneOptions(LiveOptions):
    """An ALSA device, as `arecord -L` names it, recorded at `rate` Hz."""

    device: str = "default"
    rate: int = field(default=16_000, metadata=limits(8000, 192_000))
    # All sounds, which wait for labels, or those alone that somebody records at the page
    keep: str = field(default="all", metadata=choices("all", RECORDINGS))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOptions(LiveOptions):
    """See `edge.data.live.rows`. `scale` has [mean, std] of columns; no separator: it is found."""

    columns: tuple[str, ...]
    separator: str = ""
    scale: Table = field(default_factory=dict)
    target: str | None = None
    horizon: int = field(default=0, metadata=limits(0, 10_000))


@dataclass(frozen=True, slots=True, kw_only=True)
class SerialOptions(RowOptions):
    port: str
    baud: int = field(default=9600, metadata=limits(50, 4_000_000))
    dtr: bool = True  # the control lines of the port: some boards restart, or stay off, by them
    rts: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttOptions(RowOptions):
    url: str = field(repr=False)  # it may hold a password
    topic: str
    label_topic: str | None = None
    ca_file: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvOptions(RowOptions):
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderOptions(LiveOptions):
    path: str


# The options and the class of each.
BUILT_IN: Final[Mapping[str, tuple[type[LiveOptions], str]]] = {
    "csv": (CsvOptions, "edge.data.live.csv_file:CsvSource"),
    "folder": (FolderOptions, "edge.data.live.folder:FolderSource"),
    "microphone": (MicrophoneOptions, "edge.data.live.microphone:MicrophoneSource"),
    "mqtt": (MqttOptions, "edge.data.live.mqtt:MqttSource"),
    "serial": (SerialOptions, "edge.data.live.serial_port:SerialSource"),
}


def read_options(source: str, options: Table) -> LiveOptions:
    settings = read_table(BUILT_IN[source][0], options, "data.options")
    for column, scale in getattr(settings, "scale", {}).items():
        is_pair = isinstance(scale, list | tuple) and [type(x) in (int, float) for x in scale]
        if is_pair != [True, True] or not 1e-30 < scale[1] < 1e30 or not -1e30 < scale[0] < 1e30:
            raise ConfigError(
                f"data.options.scale.{column} is {scale!r}: it must be [mean, std], std above 0"
            )
    return settings


def anchor_options(source: str | None, options: Table, folder: Path) -> Table:
    """`options` with the paths of a built-in source made absolute from `folder`."""
    if source not in BUILT_IN:
        return options
    given = {key: options[key] for key in PATHS if type(options.get(key)) is str}
    return options | {key: str(folder / path) for key, path in given.items()}
