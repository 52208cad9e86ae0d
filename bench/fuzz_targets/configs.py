"""The configuration files of all programs."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from bench.fuzz_targets.target import Target, scratch_folder
from edge.config import read_node_config
from edge.gateway import read_gateway_config
from edge.split_config import read_split_board_config
from host.config import read_host_config
from host.pipeline.config import read_pipeline_config
from host.split_config import read_split_host_config
from ternmesh.config import ConfigError

_BROKER = b'[link]\nurl = "mqtt://127.0.0.1:1"\nfleet = "attic"\n'
_NODE = b'name = "ada"\nstate_dir = "s"\nbundle = "keyword"\n'
_HOST = b'state_dir = "s"\nbundle = "keyword"\n'
_PIPELINE = b'state_dir = "s"\ndata = "."\nsteps = 9\n'
_SERIAL = (
    b'port = "/dev/tty"\ndialect = "reyax"\nfrequency_hz = 869525000\nspreading_factor = 7\n'
    b"addresses = { ada = 1 }\n"
)
_MEMORY_MAX = 4 << 20


def _check(read: Callable[[Path], object]) -> Callable[[bytes], None]:
    def check(data: bytes) -> None:
        path = scratch_folder() / "config.toml"
        path.write_bytes(data)
        read(path)

    return check


_SEEDS: Mapping[str, tuple[Callable[[Path], object], Sequence[bytes]]] = {
    "node_config": (
        read_node_config,
        [
            b"a = " + b"[" * 1000,
            _NODE + _BROKER + b'[data]\npath = "."\nwhere = {s = "x"}\n[training]\nthreads = 2\n',
            _NODE
            + b'[link]\nregion = "EU868"\n[link.serial]\n'
            + _SERIAL
            + b'[data]\npath = "."\n',
        ],
    ),
    "host_config": (
        read_host_config,
        [_HOST + _BROKER + b"[run]\nrounds = 6\nup_bytes = 900\nsilence = 0.1\n"],
    ),
    "gateway_config": (
        read_gateway_config,
        [
            b'state_dir = "s"\n[radio]\nregion = "EU868"\n[radio.serial]\n'
            + _SERIAL
            + _BROKER.replace(b"link", b"network")
        ],
    ),
    "split_host_config": (
        read_split_host_config,
        [
            _HOST + _BROKER + b'[run]\nlabels = "stay"\nclip_norm = 1.0\n',
            _HOST + _BROKER + b'[boundary]\nmethod = "resbm"\nlatent = 4\nbits_up = 8\n',
        ],
    ),
    "split_board_config": (
        read_split_board_config,
        [_NODE + _BROKER + b'[data]\npath = "."\n[training]\nthreads = 2\ncheckpoint = 5\n'],
    ),
    "pipeline_config": (
        read_pipeline_config,
        [
            _PIPELINE + b'[boundary]\nmethod = "subspace"\nform = "rows"\nlatent = 2\n',
            _PIPELINE + b'[replicas]\ncount = 2\nzeros = 0.9\n[optimizer]\nname = "muon"\n',
            _PIPELINE + b"[model]\nwidth = 64\nlayers = 2\nheads = 4\nlength = 16\n",
        ],
    ),
}
TARGETS = tuple(
    Target(name, _check(read), partial(list, seeds), (ConfigError,), memory_max=_MEMORY_MAX)
    for name, (read, seeds) in _SEEDS.items()
)
