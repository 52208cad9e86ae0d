"""`ternmesh setup`: the settings, keys and service of a board or a host, in one command.

It asks on a terminal alone. What is there already stays: a second call goes on from there.
"""

import argparse
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ternmesh.config import ConfigError, read_toml
from ternmesh.errors import TernmeshError
from ternmesh.security.identity import Role
from ternmesh_cli import enrol, keys, process, setup_text
from ternmesh_cli.programs import read_program
from ternmesh_cli.setup_text import BOARD, HOST, Answers, Question
from ternmesh_service.config_file import read_settings
from ternmesh_store.files import make_private_folder, read_file, sync_folder, unfinished_file
from ternmesh_store.state_file import StateFile

USER = "ternmesh"  # whom the units run as
SETTINGS, STATE = Path("/etc/ternmesh"), Path("/var/lib/ternmesh")
SYSTEMD, UNITS = Path("/run/systemd/system"), Path("/etc/systemd/system")
SERIAL = "20-serial.conf"  # what a unit with a radio needs; beside the package or in a checkout
DROP_INS = (
    Path("/usr/share/doc/ternmesh/examples/drop-ins"),
    Path(__file__).parents[1] / "packaging/systemd/drop-ins",
)
STARTED_S = 330  # a unit may take five minutes
MODE, SECRET, PUBLIC = 0o640, 0o600, 0o644
CREDENTIALS = ".credentials.toml"
LOGIN, AUTHORITY = "credentials", "authority.pem"
FILE_MAX = 1 << 20  # bytes of either
FILES = {  # that are copied beside the settings
    "ca": "the authority of a broker with TLS: authority.pem of `ternmesh broker`",
    LOGIN: "the login at the broker: NAME.credentials.toml of `ternmesh broker`, or its folder",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    parser.add_argument("--host", action="store_true", help="set up a host in place of a board")
    what = f"the settings to write (default: in {SETTINGS} as root, else here)"
    parser.add_argument("--config", type=process.path, metavar="FILE", help=what)
    what = "never ask: take the defaults"
    parser.add_argument("--yes", action="store_true", help=what)
    for question in {question.key: question for question in (*BOARD, *HOST)}.values():
        default = f" (default: {question.default})" if question.default else ""
        option = f"--{question.key.replace('_', '-')}"
        parser.add_argument(option, metavar=question.kind, help=f"{question.text}{default}")
    for key, what in FILES.items():
        parser.add_argument(f"--{key}", type=process.path, metavar="FILE", help=what)
    enrolling = parser.add_mutually_exclusive_group()
    what = "join with this one-time code of the running host"
    enrolling.add_argument("--code", help=what)
    what = "trust the host with this public line, which begins with TM1:"
    enrolling.add_argument("--trust", metavar="LINE", help=what)
    bulk = parser.add_argument_group("many boards at once, on the host (--config is the host's)")
    what = "a table of boards with the column name, and others named as the options above"
    bulk.add_argument("--bulk", type=process.path, metavar="CSV", help=what)
    what = "the folder for a folder of each board, to be copied onto its card"
    bulk.add_argument("--out", type=process.path, metavar="DIR", help=what)


def run(arguments: argparse.Namespace) -> int:
    """Write settings, make keys, enrol and start, as far as none of it is done yet."""
    if (arguments.bulk is None) != (arguments.out is None):
        raise ConfigError("--bulk and --out belong together: name both or none")
    if arguments.bulk is not None:
        from ternmesh_cli.setup_bulk import run_bulk

        return run_bulk(arguments)
    kind = "host" if arguments.host else "node"
    path: Path = arguments.config or default_config(kind)
    user = service_user(path)
    state = STATE / kind if path.parent.resolve() == SETTINGS else Path(f"{path.stem}-state")
    questions = HOST if arguments.host else BOARD
    given = {q.key: getattr(arguments, q.key) for q in questions}
    strange = {"code", "trust"} if arguments.host else set()
    strange |= {q.key for q in (*BOARD, *HOST)} - given.keys()
    for key in sorted(strange):
        if getattr(arguments, key) is not None:
            raise ConfigError(f"--{key.replace('_', '-')} is not for a {kind}: leave it out")
    if not path.exists() or any(value is not None for value in given.values()):
        ask = None if arguments.yes or not sys.stdin.isatty() else _ask
        answers = find_answers(questions, given, ask)
        files = {key: getattr(arguments, key) for key in FILES if getattr(arguments, key)}
        if install(path, kind, str(state), answers, files, user):
            print(f"wrote        {path}")
    if not state.is_absolute():
        state = path.parent / state
    elif user is not None and not state.exists():
        make_private_folder(state)
        for place in (state, *state.iterdir()):
            os.chown(place, user.pw_uid, user.pw_gid)
    with acting_as(user):
        end = keys.read(path)
        shown = enrol.own_identity(end)
        if arguments.trust is not None:
            enrol.trust_host(end, arguments.trust)
        elif arguments.code is not None:
            enrol.join_fleet(path, arguments.code)
    print(f"identity     {shown['identity']}")
    return _go_on(path, end, joined=arguments.code is not None)


def default_config(kind: str) -> Path:
    """Where a program's settings lie: those of the unit for root, else in this folder."""
    return (SETTINGS if os.geteuid() == 0 else Path()) / f"{kind}.toml"


def find_answers(
    questions: tuple[Question, ...],
    given: Mapping[str, str | None],
    ask: Callable[[Question], str] | None = None,
) -> Answers:
    """The answers, given, asked for or by default; ConfigError for one that is missing."""
    answers: Answers = {}
    for question in questions:
        if not question.is_asked(answers):
            if given.get(question.key):
                raise ConfigError(f"--{question.key} has no effect with this --link: leave it out")
            continue
        value = given.get(question.key)
        if value is None and ask is not None:
            value = ask(question)
        value = question.default if value is None else value.strip()
        if not value:
            raise ConfigError(f"--{question.key.replace('_', '-')} is missing: {question.text}")
        if not value.isprintable():
            raise ConfigError(f"--{question.key} is {value!r}: it must be text that can be printed")
        answers[question.key] = value
    return answers


def _ask(question: Question) -> str:
    default = f" [{question.default}]" if question.default else ""
    try:
        return input(f"{question.text}{default}: ") or question.default
    except EOFError as error:
        raise ConfigError(f"--{question.key} is missing, and nobody answers") from error


def install(
    path: Path,
    kind: str,
    state: str,
    answers: Answers,
    files: Mapping[str, Path],
    user: pwd.struct_passwd | None = None,
    zoo: Path | None = None,
) -> bool:
    """Put checked settings at `path`, and the files for the broker beside them; ConfigError.

    False where they are there already.
    """
    name = answers.get("name", kind)
    names = {f"{key}_file": f"{name}{CREDENTIALS}" if key == LOGIN else AUTHORITY for key in files}
    text = setup_text.write(kind, state, answers, names, zoo or setup_text.find_zoo())
    if path.exists():
        if read_toml(read_settings(path)) != read_toml(text):
            raise ConfigError(
                f"{path} is there already, with other settings: edit it, or move it away and run "
                "this again; without answers `ternmesh setup` goes on with it"
            )
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    for key, file in files.items():
        source = file / f"{name}{CREDENTIALS}" if file.is_dir() else file
        mode = SECRET if key == LOGIN else PUBLIC
        new = unfinished_file(path.with_name(names[f"{key}_file"]), mode)
        new.write_bytes(read_file(source, FILE_MAX))
        if key == LOGIN and user is not None:
            os.chown(new, user.pw_uid, user.pw_gid)
        new.replace(new.with_suffix(""))
    new = unfinished_file(path, MODE)
    try:
        new.write_text(text)
        read_program(kind, new)
        if user is not None:
            os.chown(new, 0, user.pw_gid)
        os.link(new, path)  # never over another file
    except ConfigError as error:
        raise ConfigError(str(error).removeprefix(f"{new}: ")) from error
    finally:
        new.unlink()
    sync_folder(path.parent)
    return True


def service_user(path: Path) -> pwd.struct_passwd | None:
    """The user of the units, for root and the settings of a unit; None where there is none."""
    is_service = os.geteuid() == 0 and path.parent.resolve() == SETTINGS
    try:
        return pwd.getpwnam(USER) if is_service else None
    except KeyError:
        return None


@contextmanager
def acting_as(user: pwd.struct_passwd | None) -> Iterator[None]:
    """What is written meanwhile belongs to `user`, as does what the service writes."""
    if user is None:
        yield
        return
    umask = os.umask(0o077)
    os.setegid(user.pw_gid)
    os.seteuid(user.pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.umask(umask)


def _go_on(path: Path, end: keys.End, *, joined: bool) -> int:
    """Start the service of an enrolled end, or say what comes next."""
    is_host = end.role is Role.HOST
    kind = "host" if is_host else "node"
    running = end.ask({"command": "status"}) is not None
    enrolled = running or StateFile(end.folder).stored_fleet() is not None
    if not is_host and not joined:
        print(process.as_run("on the host  `ternmesh enrol add --config host.toml TM1:...` (this)"))
    if not enrolled:
        print(process.as_run("then here    `ternmesh setup --trust TM1:...` (the host's line);"))
        print(process.as_run("or           `ternmesh setup --code CODE` (`enrol code` prints it)"))
        return 0
    if running:
        print(f"running      {end.name} runs already")
        return 0
    unit = f"ternmesh-{kind}"
    if path.resolve() != SETTINGS / f"{kind}.toml" or not _has_unit(unit):
        print(f"start it     {process.program()} {kind} --config {path}")
        return 0
    if "serial" in keys.read_end(path).get("link", {}):
        place_drop_in(UNITS, unit)
        _systemctl("daemon-reload")
    _systemctl("enable", "--now", unit)
    print(f"started      {unit}; look: ternmesh status --config {path}")
    return 0


def place_drop_in(units: Path, unit: str) -> None:
    """Let a unit use serial ports; TernmeshError where the drop-in for that is not found."""
    source = next((folder / SERIAL for folder in DROP_INS if (folder / SERIAL).exists()), None)
    if source is None:
        raise TernmeshError(f"{SERIAL} is not found: docs/service.md says where to copy it to")
    target = units / f"{unit}.service.d" / SERIAL
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def _has_unit(unit: str) -> bool:
    if os.geteuid() != 0 or not SYSTEMD.is_dir():
        return False
    shown = subprocess.run(["systemctl", "cat", unit], capture_output=True, check=False)
    return shown.returncode == 0


def _systemctl(*words: str) -> None:
    try:
        subprocess.run(["systemctl", *words], check=True, timeout=STARTED_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise TernmeshError(
            f"`systemctl {' '.join(words)}` failed: run `ternmesh doctor`, then this again"
        ) from error
