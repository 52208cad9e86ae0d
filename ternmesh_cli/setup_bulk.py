"""`ternmesh setup --bulk`: many boards from one table, enrolled in one go.

Each board gets a folder like the root of its card: settings, keys, and the link that starts the
service. The owner of the files is set on the board (packaging/systemd/ternmesh.tmpfiles).
"""

import argparse
import csv
import os
import shlex
import shutil
from pathlib import Path

from ternmesh.config import ConfigError
from ternmesh.errors import SecurityError, TernmeshError
from ternmesh.security.host_keys import parse_host
from ternmesh.security.identity import Role, identity_text
from ternmesh.security.membership import found_fleet
from ternmesh_cli import enrol, keys
from ternmesh_cli.setup import (
    FILES,
    STATE,
    acting_as,
    default_config,
    find_answers,
    install,
    place_drop_in,
    refuse,
    service_user,
)
from ternmesh_cli.setup_text import BOARD, SPEAKERS, Answers, is_port
from ternmesh_service.config_file import check_name
from ternmesh_store.files import make_private_folder, read_text

TABLE_MAX = 4 << 20  # bytes
ZOO = Path("/opt/ternmesh/zoo")  # of a .deb
UNIT = "ternmesh-node"
WANTED = Path(f"etc/systemd/system/multi-user.target.wants/{UNIT}.service")


def run_bulk(arguments: argparse.Namespace) -> int:
    """Make a folder for each board, then enrol all of them. A second call adds what is new."""
    table, out = arguments.bulk
    host = arguments.config or default_config("host")
    fleet = keys.read(host).fleet
    refuse(arguments, ("name", "fleet", "address"), "table of boards")
    with acting_as(service_user(host)):
        answer = enrol.ask_host(host, {"enrol": "list"})
    members = {row["name"] for row in answer["members"] if not row["revoked"]}
    given = {q.key: getattr(arguments, q.key) for q in BOARD} | {"fleet": fleet}
    files = {key: getattr(arguments, key).absolute() for key in FILES if getattr(arguments, key)}
    boards = read_boards(table, given)
    work = out / ".new"  # no name of a board begins so
    shutil.rmtree(work, ignore_errors=True)
    make_private_folder(out)
    try:
        for where, answers in boards.items():
            name = answers["name"]
            is_made = (out / name).exists()
            try:
                if name in members and not is_made:
                    raise ConfigError(f"{name} is enrolled, and not in {out}: take the line away")
                _prepare((out if is_made else work) / name, answers, files)
            except (ConfigError, OSError) as error:
                raise ConfigError(f"{table}: {where}{error}") from error
        identities = {}
        state = found_fleet(fleet, parse_host(answer["host"]))
        for where, answers in boards.items():
            root = out / answers["name"]
            if not root.exists():
                (work / answers["name"]).rename(root)
            folder = root / STATE.relative_to("/") / "node"
            with keys.keyring_at(folder, answers["name"], Role.NODE) as keyring:
                keyring.adopt(state)
                identities[where] = identity_text(keyring.own.public)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    try:
        with acting_as(service_user(host)):
            enrol.ask_host(host, {"enrol": "add", "identities": identities})
    except TernmeshError as error:
        raise SecurityError(f"{table}: {error}; no board was enrolled") from error
    print(f"{len(boards)} boards are enrolled in {fleet}; the folder of each is in {out}")
    first = shlex.quote(str(out / next(iter(boards.values()))["name"]))
    print(f"onto a card with ternmesh on it: sudo cp -r {first}/. CARD  (its root folder)")
    return 0


def read_boards(path: Path, given: dict[str, str | None]) -> dict[str, Answers]:
    """The answers of each board by its line; ConfigError. A row goes before what is `given`."""
    try:
        text = read_text(path, TABLE_MAX).removeprefix("\ufeff")  # spreadsheets begin a file so
        reader = csv.DictReader(text.splitlines(), strict=True)
        rows = {f"line {reader.line_num}: ": row for row in reader}
    except (OSError, csv.Error) as error:
        raise ConfigError(f"{path} is no table that can be read: {error}") from error
    known = [question.key for question in BOARD if question.key != "fleet"]
    if unknown := [str(name) for name in reader.fieldnames or () if name not in known]:
        raise ConfigError(
            f"{path}: line 1: {', '.join(unknown)} is no column: write {', '.join(known)}"
        )
    boards: dict[str, Answers] = {}
    taken: set[str] = set()
    for where, row in rows.items():
        try:
            if None in row or None in row.values():
                raise ConfigError("it has more or fewer cells than line 1")
            own = given | {key: cell.strip() for key, cell in row.items() if cell.strip()}
            boards[where] = find_answers(BOARD, own | {"name": row.get("name", "")})
            _check(boards[where], taken)
        except ConfigError as error:
            raise ConfigError(f"{path}: {where}{error}") from error
    if not boards:
        raise ConfigError(f"{path} names no board: write `name` into line 1, and a board a line")
    return boards


def _check(answers: Answers, taken: set[str]) -> None:
    """ConfigError for what a board cannot have, or another has; adds what it has to `taken`."""
    check_name(answers["name"])
    is_path = answers["data"] not in SPEAKERS and ":" not in answers["data"]
    paths = [answers["data"]] * is_path + [answers["model"]] * Path(answers["model"]).is_dir()
    if relative := [path for path in paths if not path.startswith("/")]:
        raise ConfigError(f"{relative[0]!r}: a path on the board begins with /")
    own = {answers["name"]}
    if "address" in answers:
        own.add(f"address {answers['address']} on {answers['frequency']} MHz")
    if twice := own & taken:
        raise ConfigError(f"{twice.pop()} is there twice")
    taken |= own


def _prepare(root: Path, answers: Answers, files: dict[str, Path]) -> None:
    """The folder of a board without its keys. Only the identity in it is secret, and the login."""
    make_private_folder(root.parent)
    install(root / "etc/ternmesh/node.toml", "node", str(STATE / "node"), answers, files, zoo=ZOO)
    link = root / WANTED
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        os.symlink(f"/usr/lib/systemd/system/{UNIT}.service", link)
    if is_port(answers["link"]):
        place_drop_in(root / "etc/systemd/system", UNIT)
