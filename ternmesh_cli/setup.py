"""`ternmesh setup`: the settings, keys and service of a board or a host, in one command.

It asks on a terminal alone. What is there already stays: a second call goes on from there.
"""

import argparse
import os
import pwd
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ternmesh.config import ConfigError, read_toml
from ternmesh.errors import TernmeshError
from ternmesh_cli import enrol, keys, process, setup_text
from ternmesh_cli.programs import read_program
from ternmesh_cli.setup_text import BOARD, HOST, Answers, SetupQuestion
from ternmesh_service import commands
from ternmesh_service.config_file import read_settings
from ternmesh_store.files import PRIVATE, copy_file, replace_file, replace_private_file, sync_folder
from ternmesh_store.state_file import StateFile

USER = "ternmesh"  # whom the units run as
STATE = Path("/var/lib/ternmesh")
SYSTEMD, UNITS = Path("/run/systemd/system"), Path("/etc/systemd/system")
SERIAL, SOUND = "20-serial.conf", "20-sound.conf"  # beside the package or in a checkout
DROP_INS = (
    Path("/usr/share/doc/ternmesh/examples/drop-ins"),
    Path(__file__).parents[1] / "packaging/systemd/drop-ins",
)
STARTED_S = 330  # a unit may take five minutes
MODE = 0o640
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
    what = f"the settings to write (default: in {commands.SETTINGS} as root, else here)"
    parser.add_argument("--config", type=process.path, metavar="FILE", help=what)
    what = "never ask: take the defaults"
    parser.add_argument("--yes", action="store_true", help=what)
    for question in {question.key: question for question in (*BOARD, *HOST)}.values():
        default = f" (default: {question.default})" if question.default else ""
        option = f"--{question.key.replace('_', '-')}"
        parser.add_argument(option, help=f"{question.text}{default}")
    for key, what in FILES.items():
        parser.add_argument(f"--{key}", type=process.path, metavar="FILE", help=what)
    enrolling = parser.add_mutually_exclusive_group()
    what = "join with this one-time code of the running host"
    enrolling.add_argument("--code", help=what)
    what = "trust the host with this public line, which begins with TM1:"
    enrolling.add_argument("--trust", metavar="LINE", help=what)


def run(arguments: argparse.Namespace) -> int:
    """Write settings, make keys, enrol and start, as far as none of it is done yet."""
    kind = "host" if arguments.host else "node"
    questions: tuple[SetupQuestion, ...] = HOST if arguments.host else BOARD
    path: Path = arguments.config or default_config(kind)
    user = service_user(path)
    is_service = path.parent.resolve() == commands.SETTINGS
    state = STATE / kind if is_service else Path(f"{path.stem}-state")
    given = {q.key: getattr(arguments, q.key) for q in questions}
    refused = {q.key for q in (*BOARD, *HOST)} - given.keys()
    for key in sorted(refused | ({"code", "trust"} if arguments.host else set())):
        if getattr(arguments, key) is not None:
            raise ConfigError(f"--{key.replace('_', '-')} is not for a {kind}: leave it out")
    files = {key: getattr(arguments, key) for key in FILES if getattr(arguments, key)}
    if not path.exists() or files or any(value is not None for value in given.values()):
        ask = None if arguments.yes or not sys.stdin.isatty() else _ask
        while True:
            answers = find_answers(questions, given, ask)
            try:
                if install(path, kind, str(state), answers, files, user):
                    print(f"wrote        {path}")
                break
            except ConfigError as error:
                if ask is None or path.exists():
                    raise
                process.complain(error)
            given = {}  # each is asked for again, with the answers as defaults
            questions = tuple(replace(q, default=answers.get(q.key, "")) for q in questions)
    if user is not None:  # root's alone until it is chowned; its parent stays root's
        state.mkdir(0o700, parents=True, exist_ok=True)
        os.chown(state, user.pw_uid, user.pw_gid, follow_symlinks=False)
    with acting_as(user):
        end = keys.read(path)
        print(f"identity     {enrol.own_identity(end)['identity']}")
        if arguments.trust is not None:
            enrol.trust_host(end, arguments.trust)
        elif arguments.code is not None:
            enrol.join_fleet(path, arguments.code)
        is_running = end.ask({"command": "status"}) is not None
        is_enrolled = is_running or StateFile(end.folder).stored_fleet() is not None
    if kind == "node" and arguments.code is None:
        line = "on the host  `ternmesh enrol add --config host.toml TM1:...` (this)"
        print(commands.as_run(line))
    if not is_enrolled:
        print(commands.as_run("then here    `ternmesh setup --trust TM1:...` (the host's line);"))
        print(commands.as_run("or           `ternmesh setup --code CODE` (`enrol code` prints it)"))
    elif is_running:
        print(f"running      {end.name} runs already")
    elif user is None or path.name != f"{kind}.toml" or not SYSTEMD.is_dir():
        print(f"start it     {commands.program()} {kind} --config {shlex.quote(str(path))}")
    else:
        for drop_in in drop_ins(keys.read_end(path)):
            place_drop_in(UNITS, f"ternmesh-{kind}", drop_in)
            _systemctl("daemon-reload")
        _systemctl("enable", "--now", f"ternmesh-{kind}")
        print(f"started      ternmesh-{kind}; look: ternmesh status --config {path}")
    return 0


def default_config(kind: str) -> Path:
    """Where a program's settings lie: those of the unit for root, else in this folder."""
    return (commands.SETTINGS if os.geteuid() == 0 else Path()) / f"{kind}.toml"


def find_answers(
    questions: tuple[SetupQuestion, ...],
    given: Mapping[str, str | None],
    ask: Callable[[SetupQuestion], str] | None = None,
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


def _ask(question: SetupQuestion) -> str:
    default = f" [{question.default}]" if question.default else ""
    try:
        while not (answer := input(f"{question.text}{default}: ").strip() or question.default):
            pass
        return answer
    except EOFError as error:
        raise ConfigError(f"--{question.key} is missing, and nobody answers") from error


def install(
    path: Path,
    kind: str,
    state: str,
    answers: Answers,
    files: Mapping[str, Path],
    user: pwd.struct_passwd | None = None,
) -> bool:
    """Put checked settings at `path`, and the files for the broker beside them; ConfigError.

    False where the same settings are there already.
    """
    name = answers.get("name", kind)
    names = {f"{key}_file": f"{name}{CREDENTIALS}" if key == LOGIN else AUTHORITY for key in files}
    text = setup_text.write(kind, state, answers, names)
    is_new = not path.exists()
    if not is_new and read_toml(read_settings(path)) != read_toml(text):
        raise ConfigError(
            f"{path} is there already, with other settings: edit it, or move it away and run "
            "this again; without answers `ternmesh setup` goes on with it"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    work = path.with_name(f".{path.name}.new")  # nothing takes its place before all is checked
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(0o700)
    new = work / path.name
    try:
        for key, file in files.items():
            source = file / f"{name}{CREDENTIALS}" if file.is_dir() else file
            copy = work / names[f"{key}_file"]
            copy_file(source, copy, FILE_MAX, PRIVATE)
            copy.chmod(PRIVATE if key == LOGIN else 0o644)
            if user is not None:
                os.chown(copy, user.pw_uid, user.pw_gid)
        replace_private_file(new, text.encode())
        read_program(kind, new)
        new.chmod(MODE)
        if user is not None:
            os.chown(new, 0, user.pw_gid)
        for file_name in names.values():
            (work / file_name).replace(path.with_name(file_name))
        if is_new:
            os.link(new, path)  # never over another file
    except ConfigError as error:
        sentence = str(error).removeprefix(f"{new}: ").replace(f"{work}/", f"{path.parent}/")
        raise ConfigError(sentence) from error
    finally:
        shutil.rmtree(work)
    sync_folder(path.parent)
    return is_new


def service_user(path: Path) -> pwd.struct_passwd | None:
    """The user of the units, for root and the settings of a unit; None where there is none."""
    is_service = os.geteuid() == 0 and path.parent.resolve() == commands.SETTINGS
    try:
        return pwd.getpwnam(USER) if is_service else None
    except KeyError:
        return None


def give_state(path: Path) -> None:
    """What root has written in the state folder of a unit then belongs to its user."""
    if (user := service_user(path)) is None:
        return
    ids = user.pw_uid, user.pw_gid
    for _, _, files, number in os.fwalk(keys.read(path).folder):
        if os.fstat(number).st_uid == 0:
            os.fchown(number, *ids)
        for name in files:
            with suppress(FileNotFoundError):  # of a program that runs
                if os.stat(name, dir_fd=number, follow_symlinks=False).st_uid == 0:
                    os.chown(name, *ids, dir_fd=number, follow_symlinks=False)


@contextmanager
def acting_as(user: pwd.struct_passwd | None) -> Iterator[None]:
    """What is written meanwhile belongs to `user`, as does what the service writes."""
    if user is None:
        yield
        return
    umask, groups = os.umask(0o077), os.getgroups()
    os.setgroups([])  # root's would open files that the service cannot read
    os.setegid(user.pw_gid)
    os.seteuid(user.pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)
        os.umask(umask)


def _systemctl(*words: str) -> None:
    try:
        subprocess.run(["systemctl", *words], check=True, timeout=STARTED_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise TernmeshError(
            f"`systemctl {' '.join(words)}` failed: run `ternmesh doctor`, then this again"
        ) from error


def drop_ins(settings: Mapping[str, Any]) -> list[str]:
    """What a unit with these settings needs to use serial ports or a microphone."""
    source = settings.get("data", {}).get("source")
    is_serial = "serial" in settings.get("link", {}) or source == "serial"
    return [*([SERIAL] if is_serial else []), *([SOUND] if source == "microphone" else [])]


def place_drop_in(units: Path, unit: str, name: str) -> None:
    """Let a unit use devices; TernmeshError where the drop-in for that is not found."""
    target = units / f"{unit}.service.d" / name
    if target.exists():
        return
    source = next((folder / name for folder in DROP_INS if (folder / name).exists()), None)
    if source is None:
        raise TernmeshError(f"{name} is not found: docs/service.md says where to copy it to")
    target.parent.mkdir(parents=True, exist_ok=True)
    replace_file(target, source.read_bytes())
