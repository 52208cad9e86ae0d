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
_DIALECTS = (b"reyax", b"ebyte", b"meshtastic", b"rnode", b"meshcore")
_FILES = b'ca_file = "ca.pem"\ncertificate_file = "c.pem"\nkey_file = "k.pem"\n'
_DATA = b'[data]\npath = "."\n'
_BRIDGES = b'ada = {hci = "usb:0"}\nbo = {hci = "usb:1", address = "F0:F1:F2:F3:F4:05"}\n'


def _radio(table: bytes, dialect: bytes, region: bytes = b"EU868") -> bytes:
    serial = _SERIAL.replace(b"reyax", dialect)
    return b'[%b]\nregion = "%b"\n[%b.serial]\n%b' % (table, region, table, serial)


def _nodes() -> list[bytes]:
    """A node's file with each kind of link."""
    far = b"[link.also.far]\n" + _BROKER.partition(b"\n")[2]
    links = [
        *(_radio(b"link", dialect) for dialect in _DIALECTS),
        _radio(b"link", b"rnode", b"US915").replace(b"869525000", b"915000000")
        + b"bandwidth_khz = 500\n",
        _radio(b"link", b"ebyte") + b"air_rate_bps = 9600\nspeed = 2.0\n",
        b'[link.ble]\nadapter = "bleak"\nbridge = "x"\n',
        b'[link.ble]\nhci = "usb:0"\naddress = "F0:F1:F2:F3:F4:05"\n',
        _BROKER + _FILES,
        _BROKER + b'credentials_file = "c.toml"\n',
        _radio(b"link", b"meshcore") + far,
        _radio(b"link", b"reyax").replace(b"[link]", b'[link]\ngateway = "roof"'),
    ]
    return [_NODE + link + _DATA for link in links]


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
            *_nodes(),
            _NODE + _BROKER + b'[data]\npath = "."\nwhere = {s = "x"}\n[training]\nthreads = 2\n',
        ],
    ),
    "host_config": (
        read_host_config,
        [
            _HOST + _BROKER + b"[run]\nrounds = 6\nup_bytes = 900\nsilence = 0.1\n",
            _HOST + b"[link.ble]\n" + _BRIDGES,
            _HOST + _radio(b"link", b"reyax") + b"[link.also.near.ble]\n" + _BRIDGES,
            _HOST + _BROKER + _FILES,
        ],
    ),
    "gateway_config": (
        read_gateway_config,
        [
            b'state_dir = "s"\n' + radio + _BROKER.replace(b"link", b"network")
            for radio in (_radio(b"radio", b"reyax"), b"[radio.ble]\n" + _BRIDGES)
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
