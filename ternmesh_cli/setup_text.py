"""What `ternmesh setup` asks, and the settings files that it writes from the answers."""

import json
import re
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from models.zoo import package_path
from ternmesh.config import ConfigError
from ternmesh.link.regions import REGIONS
from ternmesh_cli import process
from transports.link_config import LinkConfig
from transports.serial_lora.settings import DIALECTS

MICROPHONE = "microphone"
SPEAKERS = ("theo", "nicolas", "yweweler")  # of the shipped clips
HEAD = """\
# docs/settings.md explains these and all other settings. A change needs a restart. Fleet, model and
# the channel of a radio are the same on host and boards. The name belongs to the keys, too.
"""

Answers = dict[str, str]


@dataclass(frozen=True, slots=True)
class SetupQuestion:
    """One setting: the name of its option, and what is asked. "" is no default."""

    key: str
    text: str
    default: str = ""
    of_radio: bool = False

    def is_asked(self, answers: Mapping[str, str]) -> bool:
        """Whether the earlier answers leave this open."""
        return not self.of_radio or is_port(answers.get("link", ""))


_FLEET = SetupQuestion("fleet", "the fleet, the same on host and boards", LinkConfig().fleet)
_MODEL = SetupQuestion(
    "model", "what to learn: keyword, or a folder that `ternmesh models add` or you made", "keyword"
)
BOARD = (
    SetupQuestion(
        "name", "name of this board, another on each", socket.gethostname().partition(".")[0]
    ),
    _FLEET,
    SetupQuestion("link", "broker (mqtt://ADDRESS:1883), or radio's port (/dev/ttyUSB0)"),
    SetupQuestion("dialect", f"of the radio: {', '.join(DIALECTS)}", "rnode", of_radio=True),
    SetupQuestion("region", f"radio law: {', '.join(REGIONS)}", of_radio=True),
    SetupQuestion("frequency", "middle of the channel in MHz, like 869.525", of_radio=True),
    SetupQuestion("address", "of this board on the air, 1 to 254", of_radio=True),
    SetupQuestion(
        "data",
        "microphone; or a folder of .npz files; or package.module:Class of your own; or, to try "
        f"it, one of the speakers {', '.join(SPEAKERS)}",
    ),
    _MODEL,
)
HOST = (
    _FLEET,
    SetupQuestion("link", "broker (mqtt://ADDRESS:1883)"),
    _MODEL,
    SetupQuestion("rounds", "number of rounds of the run", "20"),
    SetupQuestion("min_peers", "boards that a round needs at least", "2"),
)


def is_port(link: str) -> bool:
    """Whether a link is a serial port, and no URL."""
    return link.startswith("/")


def write(kind: str, state: str, answers: Answers, files: Mapping[str, str]) -> str:
    """The text of a settings file; ConfigError."""
    fixed = Path(sys.prefix, "zoo")  # the clips of a .deb stay there when Python is upgraded
    zoo = fixed if fixed.is_dir() else package_path("keyword").parent
    name, model, link = answers.get("name"), answers["model"], answers["link"]
    model = str(Path(model).absolute()) if Path(model).is_dir() else model
    tables: dict[str, dict[str, object]]
    tables = {"": {"name": name, "state_dir": state, "model": model}}
    if not is_port(link):
        tables["link"] = {"url": link, "fleet": answers["fleet"], **files}
    elif files:
        raise ConfigError("--ca and --credentials have no effect with a radio: leave them out")
    else:
        tables["link"] = {"fleet": answers["fleet"], "region": answers["region"]}
        tables["link.serial"] = {
            "port": link,
            "dialect": answers["dialect"],
            "frequency_hz": _number("frequency", answers, lambda mhz: round(float(mhz) * 1e6)),
            "addresses": {json.dumps(name): _number("address", answers)},
        }
    if kind == "node":
        tables |= _data(answers["data"], zoo)
    else:
        tables["run"] = {key: _number(key, answers) for key in ("rounds", "min_peers")}
    text = HEAD + process.write_toml(tables)
    if state.startswith("/") and re.search('= "/(home|root)/', text.replace(str(zoo), "")):
        raise ConfigError("a service sees no file in /home or /root: move it, to /srv say")
    return text


def _data(data: str, zoo: Path) -> dict[str, dict[str, object]]:
    if data in SPEAKERS:
        clips = {"arrays": {"features": "x", "target": "y"}, "where": {"speaker": data}}
        return {
            table: {"path": f"{zoo}/fsdd/fsdd_logmel_{split}.npz", **clips, "divide_by": 255}
            for table, split in (("data", "train"), ("evaluate", "dev"))
        }
    if data == MICROPHONE:
        return {"data": {"source": data, "poll_s": 0.1}}
    if ":" in data and not is_port(data):
        return {"data": {"source": data}}
    return {"data": {"path": str(Path(data).absolute())}}


def _number(key: str, answers: Answers, read: Callable[[str], int] = int) -> int:
    try:
        return read(answers[key])
    except (ValueError, OverflowError) as error:
        what = "a whole number" if read is int else "a number"
        name = key.replace("_", "-")
        raise ConfigError(f"--{name} is {answers[key]!r}: write {what}") from error
