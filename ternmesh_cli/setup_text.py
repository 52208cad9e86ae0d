"""What `ternmesh setup` asks, and the settings files that it writes from the answers."""

import json
import re
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from models.zoo import package_path
from ternmesh.config import ConfigError
from ternmesh.link.regions import REGIONS
from ternmesh_cli import process
from transports.link_config import LinkConfig
from transports.serial_lora.settings import DIALECTS

SPEAKERS = ("theo", "nicolas", "yweweler")  # of the shipped clips
LINE = "{:<27} {}\n"  # a setting and its comment

Answers = dict[str, str]


@dataclass(frozen=True, slots=True)
class Question:
    """One setting: the name of its option, and what is asked. "" is no default."""

    key: str
    text: str
    default: str = ""
    of_radio: bool = False

    def is_asked(self, answers: Mapping[str, str]) -> bool:
        """Whether the earlier answers leave this open."""
        return not self.of_radio or is_port(answers.get("link", ""))


_FLEET = Question("fleet", "the fleet, the same on host and boards", LinkConfig().fleet)
_MODEL = Question("model", "a shipped model, or the folder of your own", "keyword")
BOARD = (
    Question("name", "name of this board, another on each", socket.gethostname().partition(".")[0]),
    _FLEET,
    Question("link", "broker (mqtt://ADDRESS:1883), or radio's port (/dev/ttyUSB0)"),
    Question("dialect", f"of the radio: {', '.join(DIALECTS)}", "reyax", of_radio=True),
    Question("region", f"radio law: {', '.join(REGIONS)}", of_radio=True),
    Question("frequency", "middle of the channel in MHz, like 869.525", of_radio=True),
    Question("address", "of this board on the air, 1 to 254", of_radio=True),
    Question(
        "data",
        "a folder of .npz files; or package.module:Class of your own; or, to try it, one of the "
        f"speakers {', '.join(SPEAKERS)}",
    ),
    _MODEL,
)
HOST = (
    _FLEET,
    Question("link", "broker (mqtt://ADDRESS:1883)"),
    _MODEL,
    Question("rounds", "number of rounds of the run", "20"),
    Question("min_peers", "boards that a round needs at least", "1"),
)


def is_port(link: str) -> bool:
    """Whether a link is a serial port, and no URL."""
    return link.startswith("/")


def write(
    kind: str, state: str, answers: Answers, files: Mapping[str, str], zoo: Path | None = None
) -> str:
    """The text of a settings file, with what may be changed in comments. ConfigError.

    `zoo` holds the shipped clips. That of a .deb stays where it is when Python is upgraded.
    """
    fixed = Path(sys.prefix, "zoo")
    zoo = zoo or (fixed if fixed.is_dir() else package_path("keyword").parent)
    lines = [f"# Settings of this {kind}: docs/settings.md has all. A change needs a restart.\n"]
    if kind == "node":
        lines.append(_line("name", answers["name"], "of its keys, too: it cannot be changed alone"))
    lines.append(_line("state_dir", state, "what was learned, and the private key"))
    model = answers["model"]
    model = str(Path(model).absolute()) if Path(model).is_dir() else model
    lines += [_line("model", model, "shipped, or a folder; the same everywhere"), "\n[link]\n"]
    if is_port(answers["link"]):
        if files:
            raise ConfigError("--ca and --credentials have no effect with a radio: leave them out")
        lines += _radio(answers)
    else:
        lines.append(_line("url", answers["link"], "mqtts:// for TLS, then with ca_file"))
        lines.append(_line("fleet", answers["fleet"], "the same on the host and all boards"))
        lines += [_line(key, name) for key, name in files.items()]
    lines += _data(answers["data"], zoo) if kind == "node" else _run(answers)
    text = "".join(lines)
    if state.startswith("/") and re.search('= "/(home|root)/', text):
        raise ConfigError("a service sees no file in /home or /root: move it, to /srv say")
    return text


def _line(key: str, value: object, comment: str = "") -> str:
    shown = f"{key} = {process.toml_value(value)}"
    return LINE.format(shown, f"# {comment}") if comment else f"{shown}\n"


def _radio(answers: Answers) -> Iterator[str]:
    yield _line("fleet", answers["fleet"], "the same on the host and all boards")
    yield _line("region", answers["region"], "the radio law that is kept")
    yield "\n[link.serial]\n"
    yield _line("port", answers["link"])
    yield _line("dialect", answers["dialect"])
    hertz = _number("frequency", answers, lambda text: round(float(text) * 1e6))
    yield _line("frequency_hz", hertz, "the same everywhere")
    yield "# spreading_factor, bandwidth_khz, power_dbm: docs/radio.md\n"
    yield _line("addresses", {json.dumps(answers["name"]): _number("address", answers)})


def _data(data: str, zoo: Path) -> Iterator[str]:
    if data in SPEAKERS:
        for table, split in (("data", "train"), ("evaluate", "dev")):
            yield f"\n[{table}]\n"
            yield _line("path", str(zoo / "fsdd" / f"fsdd_logmel_{split}.npz"))
            yield _line("arrays", {"features": "x", "target": "y"})
            yield _line("where", {"speaker": data})
            yield _line("divide_by", 255)
        return
    yield "\n[data]\n"
    if ":" in data and not is_port(data):
        yield _line("source", data, "source_path: the folder of its module")
        return
    yield _line("path", str(Path(data).absolute()), ".npz files with the arrays of the model")
    yield '# arrays = { features = "x" }  # where the files call an array "x"\n'
    yield "# divide_by = 255            # for bytes that become floats\n"
    yield '\n# [evaluate]                # held out, to measure what was learned\n# path = "..."\n'


def _run(answers: Answers) -> Iterator[str]:
    yield "\n[run]\n"
    yield _line("rounds", _number("rounds", answers), "a change begins a new run")
    yield _line("min_peers", _number("min_peers", answers), "boards that a round needs")
    yield "# deadline_s = 60            # after this a round closes without late boards\n"


def _number(key: str, answers: Answers, read: Callable[[str], int] = int) -> int:
    try:
        return read(answers[key])
    except (ValueError, OverflowError) as error:
        what = "a whole number" if read is int else "a number"
        name = key.replace("_", "-")
        raise ConfigError(f"--{name} is {answers[key]!r}: write {what}") from error
