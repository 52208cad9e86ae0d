"""The commands and settings in README, CONTRIBUTING, guides and examples work as they are written.

A document is walked from top to bottom in an empty folder: settings files are written as it shows
them, commands are run. What cannot run here stands in one of three tables with the reason.
"""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import tomllib
import wave
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import numpy as np
import pytest
from PIL import Image

from edge.config import NodeConfig, read_node_config
from edge.gateway.service import GatewayConfig, read_gateway_config
from edge.onnx.session import load_model, write_adapter
from host.config import HostConfig, read_host_config
from models.zoo import package_path
from ternmesh.link.airtime import LoraSetting
from ternmesh.security.identity import ENTROPY_SIZE, Role, identity_text, make_identity
from ternmesh_cli import main
from ternmesh_cli.process import write_toml
from ternmesh_service.control_socket import ControlError, ask
from tests.models.test_shelf import put_in_wheel
from tests.ternmesh_cli.test_adapt import CNN, CNN_WEIGHTS, save
from transports.ble.config import BoardConfig
from transports.mqtt.embedded_broker import EmbeddedBroker
from transports.serial_lora.settings import SerialLoraSettings

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
USE_CASES = sorted((ROOT / "docs" / "use-cases").glob("*.md"))
DOCUMENTS = (
    README,
    ROOT / "CONTRIBUTING.md",
    *sorted(path for path in (ROOT / "docs").glob("*.md") if path.stem not in ("SPEC", "DESIGN")),
    *USE_CASES,
    *sorted((ROOT / "examples").glob("*/README.md")),
)
READERS = {"host": read_host_config, "node": read_node_config, "gateway": read_gateway_config}
PATIENCE_S = 60.0
RADIO = SerialLoraSettings(port="p", dialect="ebyte", role="host", addresses={}).radio

# How a command begins, and why no test runs it.
ELSEWHERE = {
    "docker compose": "needs a docker daemon: test_cluster.py reads its settings",
    "git clone": "needs a published address",
    "cd ternmesh": "follows git clone",
    "sudo apt": "changes this machine",
    "sudo tee": "changes this machine",
    "sudo systemctl": "changes this machine",
    "sudo mkdir": "root: test_broker_install.py runs it",
    "sudo python3 -m venv": "writes to /opt",
    "sudo /opt/ternmesh": "downloads packages",
    "sudo systemd-": "changes this machine",
    "sudo rm": "changes this machine",
    "sudo ternmesh": "root: tests/ternmesh_cli/test_setup.py, test_upgrade.py",
    "sudo -u ternmesh": "needs the user of the units",
    "(cd broker": "root: test_broker_install.py runs it",
    "(cd /etc": "root: test_broker_install.py runs it",
    "sudo cp": "root: test_broker_install.py runs the same",
    "sudo touch": "root: tests/packaging/test_deb.py",
    "make -s -C firmware_tools/c": "tests/firmware_tools/test_c_library.py builds it",
    "podman": "needs a container engine",
    "pipx install": "downloads packages",
    "uv tool install": "downloads packages",
    "uv pip compile": "downloads packages",
    ".venv/bin/python -m pip wheel": ".ci/run makes one",
    "./run test": "runs this test",
    "./run python -m pip": "downloads a package",
    ".venv/bin/python -m pytest": "`./run test` runs it",
    ".venv/bin/python -m ruff": "`./run test` runs it",
    ".venv/bin/python -m mypy": "`./run test` runs it",
    ".venv/bin/python tests/vectors/make.py": "writes vectors: test_vectors.py compares them",
}
# How a command begins that only its own parser checks here, and what does run it.
PARSED = {
    "./run demo": "tests/ternmesh_cli/test_demo.py",
    "./run host --config host.toml --return-to": "tests/ternmesh_cli/test_programs.py",
    "./run firmware": "needs modems in configuration mode: test_provision.py",
    "./run export --config host.toml --out begun": "tests/ternmesh_cli/test_export.py",
    "./run forecast": "tests/ternmesh_cli/test_forecast.py",
    "./run import": "tests/edge/data/live/test_history.py",
    "./run adapt": "tests/ternmesh_cli/test_adapt.py",
    "./run wake-word": "tests/edge/test_wake_word.py",
    "./run gateway": "needs a radio: tests/edge/gateway/test_service.py",
    "./run split": "tests/ternmesh_cli/split/test_split_programs.py",
    "./run pipeline": "tests/ternmesh_cli/test_pipeline_cli.py",
    "./run enrol rotate --config host.toml": "a stopped host: transcripts/rotate.txt",
    "./run release progress": "a running host: tests/host/test_releases.py",
    "./run upgrade": "needs a package: tests/ternmesh_cli/test_upgrade.py",
    "./run status --config host.toml --node": "tests/ternmesh_cli/test_boards.py",
    "./run predict": "tests/ternmesh_cli/test_predict.py",
    "./run settings": "tests/ternmesh_cli/test_boards.py",
    "./run label": "needs samples of a source: tests/ternmesh_cli/test_samples.py",
    "./run data": "needs samples of a source: tests/ternmesh_cli/test_samples.py",
    "./run host --config examples/": "needs the model of the example, and its data",
    "./run node --config examples/": "needs the model of the example, and its data",
    "./run status --config examples/": "needs the model of the example, and its data",
}
# Programs of minutes or with downloads: their `--help` has to know the options that are written.
HELPED = (
    "./run bench",
    "./run experiments",
    "./run package",
    "./run python ",
    ".venv/bin/python -m bench",
    ".venv/bin/python -m fuzz",
)
PIP = ".venv/bin/python -m pip install"  # downloads: only its extras are looked up
STARTED = ("./run host", "./run node", "./run radio emulate")


def nightly(value: object) -> Any:
    """A parameter of a test that takes minutes: it exports models, or trains."""
    return pytest.param(value, marks=pytest.mark.nightly)


class Block(NamedTuple):
    language: str
    text: str


def blocks(document: Path) -> list[Block]:
    """The fenced blocks of a document, those in lists too."""
    fence = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
    return [Block(m[2], textwrap.dedent(m[3])) for m in fence.finditer(document.read_text())]


def commands(text: str) -> list[str]:
    """The commands of a block: continued lines and here-documents are one, comments go."""
    text = re.sub(r" *\\\n\s*", " ", text)
    text = re.sub(r" <<'(\w+)'\n.*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = (re.sub(r"(^|\s+)#.*", "", line).strip() for line in text.splitlines())
    return [line for line in lines if line]


def in_prose(document: Path) -> list[str]:
    """The `./run` commands that stand in the text, without those that only name a program."""
    text = re.sub(r"^( *)```.*?^\1```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = [" ".join(code.split()) for code in re.findall(r"`(\./run [^`]+)`", text)]
    return [code for code in found if not re.search(r"NAME|^\./run python$", code)]


def begins(command: str, *starts: str) -> str | None:
    """The one of `starts` that `command` begins with."""
    return next((start for start in starts if command.startswith(start)), None)


def parse(command: str) -> None:
    """Let the real parser read a `./run` command; it exits with 2 where it is wrong."""
    arguments = shlex.split(command)[1:]
    if "--help" in arguments or (len(arguments) == 1 and arguments[0] != "demo"):
        with pytest.raises(SystemExit) as caught:
            main.main([*arguments, "--help"])
        assert caught.value.code == 0, command
    else:
        main.make_parser(arguments).parse_args(arguments)


def check_help(command: str) -> None:
    """Ask the program of a command for its help, and look for the options that are written."""
    words = shlex.split(command)
    if words[:2] == ["./run", "python"]:
        words = words[2:]
    elif words[:2] == ["./run", "package"]:
        words = [str(ROOT / "packaging"), *words[2:]]
    elif words[0] == "./run":
        words = ["-m", *words[1:]]
    else:
        words = words[1:]
    asked = subprocess.run(
        [sys.executable, *words, "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert asked.returncode == 0, f"{command}: {asked.stderr}"
    for option in (word for word in words if word.startswith("--")):
        assert option in asked.stdout, command


def check_extras(command: str) -> None:
    """The extras in `pip install -e '.[serial]'` are ours."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extras in re.findall(r"\.\[([\w,-]+)\]", command):
        assert set(extras.split(",")) <= set(known["optional-dependencies"]), command


class Walk:
    """One document in a folder, with a broker where the documents have theirs."""

    def __init__(self, folder: Path, url: str, capsys, eventually) -> None:
        self.folder = folder
        self.url = url
        self.texts: dict[str, str] = {}  # placeholders, and what stands for them here
        self.files: dict[str, dict[str, Any]] = {}
        self.processes: list[subprocess.Popen[str]] = []
        self.run_here: tuple[str, ...] = ()  # commands that are run although they stand in PARSED
        self.modems: list[str] = []  # emulated, for ports that are written next
        self._capsys = capsys
        self._eventually = eventually

    def settings(self, text: str) -> None:
        """Write the file that the first line of a block names, or change it, and read it."""
        head, body = text.split("\n", 1)
        names, _, how = head.lstrip("# ").partition(":")
        for name in re.findall(r"([\w-]+)\.toml", names):
            found = tomllib.loads(self._filled(body))
            if not how:
                self.files[name] = found
            elif "in place of" in how:
                self.files[name] = {**self._begun(name), **found}
            else:
                self.files[name] = merged(self._begun(name), found)
            for table in re.findall(r"\[(\w+)\]", how.partition("without")[2]):
                self.files[name].pop(table, None)
            path = self.folder / f"{name}.toml"
            path.write_text(toml(self.files[name]))
            if name in READERS:
                READERS[name](path)

    def _begun(self, name: str) -> dict[str, Any]:
        """A file so far; where this document does not have it whole, as another one has it."""
        if name not in self.files:
            texts = (b.text for d in DOCUMENTS for b in blocks(d) if b.language == "toml")
            whole = next(text for text in texts if text.startswith(f"# {name}.toml\n"))
            self.files[name] = tomllib.loads(self._filled(whole))
        return self.files[name]

    def run(self, command: str) -> None:
        """Run one command as it is written, or check it as the tables say."""
        if begins(command, *ELSEWHERE):
            return
        if begins(command, PIP):
            check_extras(command)
        elif begins(command, *HELPED):
            check_help(command)
        elif begins(command, *PARSED) and not begins(command, *self.run_here):
            parse(command)
        elif begins(command, *STARTED):
            self._start(shlex.split(command)[1:])
        elif command.startswith("./run "):
            assert main.main(shlex.split(self._filled(command))[1:]) == 0, command
            self._note(command, self._capsys.readouterr().out)
        else:
            words = [sys.executable, *shlex.split(command)[1:]]
            assert command.startswith(".venv/bin/python "), f"no test knows how to run: {command}"
            subprocess.run(words, cwd=self.folder, check=True, timeout=PATIENCE_S)

    def _start(self, arguments: list[str]) -> None:
        log = self.folder / f"{arguments[0]}.log"
        with log.open("w") as file:
            command = [sys.executable, "-m", "ternmesh_cli.main", *arguments]
            self.processes.append(subprocess.Popen(command, stdout=file, stderr=file, text=True))

        def is_up() -> bool:
            assert self.processes[-1].poll() is None, log.read_text()
            if arguments[0] == "radio":
                self.modems = re.findall(r"^/.*modem.*", log.read_text(), re.MULTILINE)
                return bool(log.read_text())
            try:
                state = self.folder / f"{arguments[0]}-state"
                return bool(ask(state / "control.sock", {"command": "status"}, PATIENCE_S))
            except ControlError:
                return False

        self._eventually(is_up, PATIENCE_S)

    def stop(self) -> None:
        """End what was started, as Ctrl-C does; all end with 0."""
        for process in self.processes:
            process.send_signal(signal.SIGINT)
        for process in self.processes:
            assert process.wait(PATIENCE_S) == 0, process.args
        self.processes.clear()

    def _filled(self, text: str) -> str:
        for old, new in self.texts.items():
            text = text.replace(old, new)
        while self.modems and '"/dev/ttyUSB0"' in text:
            text = text.replace('"/dev/ttyUSB0"', f'"{self.modems.pop()}"\nspeed = 50.0', 1)
        return re.sub(r"mqtt://[\d.]+:1883", self.url, text)

    def _note(self, command: str, out: str) -> None:
        """What the command printed that later ones take up."""
        line = re.search(r"TM1:\S+", out)
        if "enrol identity" in command and line:
            places = {
                "host": "HOST",
                "node": "BOARD",
                "gateway": "GATEWAY",
                "ann": "ANN",
                "barn": "AGGREGATOR",
            }
            config = re.search(r"--config (\w+)\.toml", command)
            assert config is not None
            self.texts[f"TM1:{places[config[1]]}-LINE"] = line[0]
        if "enrol code" in command:
            code = re.search(r"^code +(\S+)", out, re.MULTILINE)
            assert code is not None, out
            self.texts["CODE"] = code[1]


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """`old` with what `new` adds to it and to its tables."""
    both = dict(old)
    for key, value in new.items():
        is_table = isinstance(value, dict) and isinstance(old.get(key), dict)
        both[key] = merged(old[key], value) if is_table else value
    return both


def toml(content: dict[str, Any]) -> str:
    """TOML text of a file's content."""
    tables = {key: value for key, value in content.items() if isinstance(value, dict)}
    return write_toml({"": {k: v for k, v in content.items() if k not in tables}, **tables})


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with EmbeddedBroker() as broker:
        yield broker.url


@pytest.fixture
def walk(tmp_path, url: str, monkeypatch, capsys, eventually) -> Iterator[Walk]:
    """In a folder that has what a clone has, with README's settings, keys made and exchanged."""
    monkeypatch.chdir(tmp_path)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    for name in ("models", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    walk = Walk(tmp_path, url, capsys, eventually)
    walk.texts["TM1:BEN-LINE"] = new_line("ben")
    yield walk
    for process in walk.processes:
        process.kill()
        process.wait()


def new_line(name: str) -> str:
    """The public line of a new node."""
    return identity_text(make_identity(name, Role.NODE, os.urandom(ENTROPY_SIZE)).public)


def prepare(walk: Walk) -> None:
    """README's files and its commands about keys."""
    for language, text in blocks(README):
        if language == "toml":
            walk.settings(text)
        for command in commands(text) if "./run enrol identity" in text else ():
            if "enrol" in command:
                walk.run(command)


def follow(
    walk: Walk,
    document: Path,
    *,
    before: Callable[[str], None] = lambda _: None,
    at_the_end: Callable[[], None] = lambda: None,
) -> None:
    """Do what the blocks of a document say; `before` hears of each command before it is run."""
    for language, text in blocks(document):
        if language == "toml":
            walk.settings(text)
        elif language == "python":
            words = [sys.executable, "-c", text]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{text}\n{done.stderr}"
        for command in commands(text) if language == "sh" else ():
            before(command)
            walk.run(command)
    at_the_end()
    walk.stop()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_in_the_text_are_understood(document: Path) -> None:
    for command in in_prose(document):
        if begins(command, *HELPED):
            check_help(command)
        elif not begins(command, *ELSEWHERE):
            parse(command)


def test_each_entry_of_the_tables_is_needed() -> None:
    found = [
        c for d in DOCUMENTS for b in blocks(d) if b.language == "sh" for c in commands(b.text)
    ]
    for start in (*ELSEWHERE, *PARSED, *HELPED, *STARTED, PIP):
        assert any(command.startswith(start) for command in found), start


@pytest.mark.parametrize(
    "document",
    [*DOCUMENTS, ROOT / "SECURITY.md", ROOT / "docs" / "results" / "README.md"],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_links_lead_to_files_and_headings(document: Path) -> None:
    for target in re.findall(r"\]\(((?!https?:)[^)]+)\)", document.read_text()):
        name, _, heading = target.partition("#")
        path = document.parent / name if name else document
        assert path.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
            assert heading in [re.sub(r"[^\w -]", "", t).lower().replace(" ", "-") for t in titles]


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 200


def test_blocks_have_a_language_that_is_tested_or_only_shown() -> None:
    shown = {"", "ini"}
    for document in DOCUMENTS:
        assert {block.language for block in blocks(document)} <= {"sh", "toml", "python", *shown}


def test_readme(walk: Walk) -> None:
    """The five steps, with one board for two."""
    follow(walk, README)
    assert (walk.folder / "node-state" / "current.onnx_adapter").exists()


def test_mqtt_fleet(walk: Walk) -> None:
    """A code lets a board in whose keys the host does not have; the host runs."""

    def before(command: str) -> None:
        if begins(command, "./run enrol code"):
            walk.run("./run host --config host.toml")
        elif "board-2" in command:
            walk.run(f"./run enrol add --config host.toml {new_line('board-2')}")

    for language, text in blocks(README):
        if language == "toml":
            walk.settings(text)
    walk.run("./run enrol identity --config host.toml")
    follow(walk, ROOT / "docs" / "mqtt-fleet.md", before=before)


@pytest.mark.parametrize("guide", [nightly("own-model"), "predict"])
def test_guides_that_use_an_adapter(walk: Walk, guide: str) -> None:
    prepare(walk)
    loaded = load_model(package_path("keyword"))
    (walk.folder / "node-state").mkdir(exist_ok=True)
    adapter = walk.folder / "node-state" / "current.onnx_adapter"
    write_adapter(adapter, loaded.package, loaded.initial, 1)

    def learn(command: str) -> None:
        if "./run export" in command:  # by now node.toml names the guide's own model
            own = load_model(Path(read_node_config(walk.folder / "node.toml").model))
            write_adapter(adapter, own.package, own.initial, 1)

    follow(walk, ROOT / "docs" / f"{guide}.md", before=learn)


def test_broker(walk: Walk) -> None:
    """The credentials lie where the settings look for them once they were made."""
    prepare(walk)
    made = walk.folder / "broker"
    document = ROOT / "docs" / "broker.md"
    first = commands(next(b.text for b in blocks(document) if b.language == "sh"))[0]
    walk.run(first)
    for path in (made / "authority.pem", *(made / "credentials").iterdir()):
        path.rename(walk.folder / path.name)
    subprocess.run(["rm", "-r", str(made)], check=True)
    follow(walk, document)


def test_backup(walk: Walk) -> None:
    """The host runs while it is copied, and is stopped to bring the copy back."""
    prepare(walk)
    follow(
        walk,
        ROOT / "docs" / "backup.md",
        before=lambda command: walk.stop() if "./run restore" in command else None,
    )


def test_voters(walk: Walk) -> None:
    """A host begins its run, and is stopped before it becomes several."""
    prepare(walk)
    walk.run("./run host --config host.toml")
    walk.stop()
    follow(walk, ROOT / "docs" / "voters.md")
    assert (walk.folder / "host-state" / "voter").exists()


@pytest.mark.parametrize(
    "document",
    [
        nightly(d) if d.stem in ("mixed-fleet", "library") else d
        for d in DOCUMENTS
        if d not in USE_CASES
        and d.stem
        not in ("README", "mqtt-fleet", "own-model", "predict", "broker", "backup", "voters")
    ],
    ids=lambda path: path.stem,
)
def test_guide(walk: Walk, document: Path) -> None:
    prepare(walk)
    follow(walk, document)


def make_samples(folder: Path) -> None:
    """What the pages of use cases import: sounds, pictures, rows and a plain model."""
    rng = np.random.default_rng(0)
    for label in ("hey-maria", "other", "glass", "dog", "quiet", "ant", "bee", "cat"):
        (folder / "recordings" / label).mkdir(parents=True)
        (folder / "pictures" / label).mkdir(parents=True)
        for number in range(20):
            sound = rng.integers(-9000, 9000, 24_000).astype("<i2")
            with wave.open(str(folder / "recordings" / label / f"{number}.wav"), "wb") as file:
                file.setparams((1, 2, 16_000, 0, "NONE", ""))
                file.writeframes(sound.tobytes())
            picture = rng.integers(0, 256, (20, 20, 3), dtype=np.uint8)
            Image.fromarray(picture).save(folder / "pictures" / label / f"{number}.png")
    numbers = rng.normal(size=(120, 3))
    kinds = [[("ok", "worn", "other")[n // 40], ("dry", "rain")[n % 2]] for n in range(120)]
    for name, head, column in (
        ("pump", "", 0),
        ("weather", "temperature,humidity,pressure,state\n", 1),
    ):
        rows = (
            f"{a:.3f},{b:.3f},{c:.3f},{kinds[n][column]}" for n, (a, b, c) in enumerate(numbers)
        )
        (folder / f"{name}.csv").write_text(head + "\n".join(rows) + "\n")
    save(folder / "model.onnx", CNN.replace("n, 2,", "n, 3,"), {**CNN_WEIGHTS, "K": (4, 3, 3, 3)})


@pytest.mark.parametrize("document", USE_CASES, ids=lambda path: path.stem)
def test_use_case(walk: Walk, document: Path, tmp_path_factory, monkeypatch, eventually) -> None:
    """The board learns from what the page imports; no sensor is there, and radios are emulated."""
    prepare(walk)
    walk.files["host"]["run"]["min_peers"] = 1
    make_samples(walk.folder)
    put_in_wheel(monkeypatch, tmp_path_factory.mktemp("wheel"))
    walk.run_here = ("./run import", "./run adapt")

    def has_learned() -> bool:
        if document.stem == "weather":  # over radio it joins, and an update takes minutes
            return "has joined run" in (walk.folder / "node.log").read_text()
        socket = walk.folder / "node-state" / "control.sock"
        return ask(socket, {"command": "status"}, PATIENCE_S)["version"] >= 1

    follow(walk, document, at_the_end=lambda: eventually(has_learned, PATIENCE_S))
    assert len(document.read_text().splitlines()) <= 60


@pytest.mark.nightly
@pytest.mark.parametrize("document", sorted((ROOT / "examples").glob("*/README.md")), ids=str)
def test_example(walk: Walk, document: Path) -> None:
    follow(walk, document)


PROGRAMS = {"host": HostConfig, "board": NodeConfig, "gateway": GatewayConfig}
SETTINGS = (ROOT / "docs" / "settings.md").read_text()
SECTIONS = re.findall(r"^## (Top of each file|`\[.*)$", SETTINGS, re.MULTILINE)
PARTS: dict[str, tuple[type, ...]] = {  # of a link
    "link.serial": (SerialLoraSettings, LoraSetting),
    "link.ble": (BoardConfig,),
}
TABLES = {
    (program, name): kind
    for program, config in PROGRAMS.items()
    for name, kind in get_type_hints(config).items()
    if is_dataclass(kind)
}
# Tables of the top, and what a program sets itself.
NOT_SET = {name for _, name in TABLES} | {"role", "queue_max"}


def kinds_of(section: str) -> tuple[Any, ...]:
    """The settings that a section of settings.md shows."""
    names = re.findall(r"\[([\w.]+)\]", section)
    if not names:
        return tuple(PROGRAMS.values())
    programs = [name for name in PROGRAMS if f" a {name}" in section] or PROGRAMS
    found = (TABLES.get((program, name)) for name in names for program in programs)
    return PARTS.get(names[0]) or tuple(kind for kind in found if kind is not None)


@pytest.mark.parametrize("section", SECTIONS)
def test_settings_are_named_with_their_defaults(section: str) -> None:
    text = SETTINGS.split(f"## {section}\n")[1].split("\n## ")[0]
    shown = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", text, re.MULTILINE))
    known = {item.name: item for kind in reversed(kinds_of(section)) for item in fields(kind)}
    assert set(shown) == set(known) - NOT_SET
    defaults = {name: getattr(RADIO, name, item.default) for name, item in known.items()}
    for name, cell in shown.items():
        with contextlib.suppress(tomllib.TOMLDecodeError):
            assert tomllib.loads(f"x = {cell.strip('`')}")["x"] == defaults[name], name
