"""Commands in our sentences, written so that they work as typed; and where settings are found."""

import os
import re
import shlex
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ternmesh.config import ConfigError

PROGRAM = "TERNMESH_PROGRAM"  # an environment variable: how the script `run` was called
CONFIG = "TERNMESH_CONFIG"  # another: the settings with which this process was called
SETTINGS = Path("/etc/ternmesh")
NODE, HOST, GATEWAY = "node", "host", "gateway"  # each is also the name of its settings
ALL = (NODE, HOST, GATEWAY)
# By command, whose settings it reads
_KINDS = {
    **dict.fromkeys(("doctor", "status", "backup", "restore"), ALL),
    **dict.fromkeys(("enrol identity", "enrol rotate"), ALL),
    **dict.fromkeys(("page", "export"), (NODE, HOST)),
    **dict.fromkeys(("enrol host", "enrol join", "enrol import"), (NODE, GATEWAY)),
    **dict.fromkeys(("data", "import", "label", "node", "predict", "wake-word"), (NODE,)),
    **dict.fromkeys(("enrol", "host", "release", "settings"), (HOST,)),
    "upgrade sign": (HOST,),
    "release install": (NODE,),
    "setup": (NODE,),
    "gateway": (GATEWAY,),
}
_COMMAND = re.compile(r"(?<=`)ternmesh(?= [a-z])|^(\s+)ternmesh(?= [a-z]+ )", re.MULTILINE)
_WHOLE = re.compile(r"`ternmesh ([a-z][^`\n]*)`(?= (?:prints )?on (?:the|each) (host|board)|)")


def kinds_of(words: Sequence[str]) -> tuple[str, ...]:
    """Whose settings a command reads; none for one that finds no settings by itself."""
    return _KINDS.get(" ".join(words[:2]), _KINDS.get(words[0], ()))


def found(kinds: Sequence[str]) -> list[Path]:
    """The settings of these kinds that lie here, or else in `SETTINGS`; root's the other way."""
    folders = (Path(), SETTINGS) if os.geteuid() else (SETTINGS, Path())
    paths = ([folder / f"{kind}.toml" for kind in kinds] for folder in folders)
    # os.path: a folder that this user may not read has none
    there = ([path for path in group if os.path.exists(path)] for group in paths)
    return next(filter(None, there), [])


def find(kinds: Sequence[str]) -> Path:
    """The only settings of these kinds; ConfigError."""
    match found(kinds):
        case [path]:
            return path
        case []:
            names = " or ".join(f"{kind}.toml" for kind in kinds)
            raise ConfigError(f"--config is missing, and there is no {names} here or in {SETTINGS}")
        case several:
            raise ConfigError(f"choose one with --config: {', '.join(map(str, several))}")


def program() -> str:
    """The command that the user types to run us."""
    return os.environ.get(PROGRAM) or "ternmesh"


def as_run(text: str) -> str:
    """`text` with its `ternmesh` commands as the user types them: `./run enrol`, say.

    Those about this process name its settings, where they are not found by themselves.
    """
    text = _WHOLE.sub(_with_config, text)
    return _COMMAND.sub(lambda found: (found[1] or "") + program(), text)


def _with_config(command: re.Match[str]) -> str:
    given, words = os.environ.get(CONFIG, ""), command[1].split()
    kind, kinds = kind_of(given), kinds_of(words)
    is_there = command[2] in (None, HOST if kind == HOST else "board")
    if (
        kind not in kinds
        or not is_there
        or "--config" in command[1]
        or found(kinds) == [Path(given)]
    ):
        return command[0]
    return f"`ternmesh {command[1]} --config {shlex.quote(given)}`"


def kind_of(path: str) -> str:
    """What settings are of; empty where there are none."""
    with suppress(OSError, ValueError):
        content = tomllib.loads(Path(path).read_text())
        return GATEWAY if "network" in content else NODE if "name" in content else HOST
    return ""
