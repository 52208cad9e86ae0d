"""The app for Home Assistant: its folder, its settings, and its programs beside a false Supervisor.

The Supervisor here is a local server; the broker and the Wyoming client are real.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import oci
import pytest
from tree import PYTHONS, ROOT, Target, project_version

pytest.importorskip("wyoming", reason="wyoming is not installed")
from wyoming.client import AsyncClient
from wyoming.info import Describe, Info

from edge.config import read_node_config
from host.config import read_host_config
from tests.conftest import Eventually
from tests.mosquitto import Mosquitto, free_port, listens
from transports.mqtt.credentials import Credentials, read_credentials

sys.path.append(str(oci.APP))
import start

yaml: Any = pytest.importorskip("yaml", reason="pyyaml is not installed")
APP = oci.APP / "ternmesh"
CONFIG: Mapping[str, Any] = yaml.safe_load((APP / "config.yaml").read_text())
OPTIONS: Mapping[str, Any] = CONFIG["options"]
BROKER = start.Broker("mqtt://core-mosquitto:1883", Credentials("addons", 's"e\\c'), True)
OWN = {"broker": "mqtt://127.0.0.1:9"}  # in an option
TOKEN = "of the Supervisor"
# What the Supervisor's own schema says of the keys that are used here.
TYPES: Mapping[str, type] = {
    **dict.fromkeys(("name", "version", "slug", "description", "image", "stage", "startup"), str),
    **dict.fromkeys(("homeassistant", "backup", "panel_icon", "panel_title"), str),
    **dict.fromkeys(("arch", "services", "discovery", "map"), list),
    **dict.fromkeys(("options", "schema", "ports"), dict),
    **dict.fromkeys(("audio", "ingress"), bool),
    **dict.fromkeys(("ingress_port", "timeout"), int),
}
ELEMENT = (
    r"(bool|str|password|int\(\d*,\d*\)|float\([\d.]*,[\d.]*\)|match\(.*\)|list\([a-z|]+\))\??"
)


# The folder


def test_the_description_is_as_home_assistant_wants_it() -> None:
    assert {key: type(value) for key, value in CONFIG.items()} == TYPES
    assert CONFIG["version"] == project_version(), "it is the tag of the image"
    assert set(CONFIG["arch"]) == set(oci.APP_ARCHS.values())
    assert CONFIG["ingress_port"] == start.INGRESS_PORT
    assert CONFIG["ports"] == {f"{start.WAKE_PORT}/tcp": None}, "closed unless the owner opens it"
    assert CONFIG["timeout"] > start.STOP_S
    assert (CONFIG["services"], CONFIG["discovery"]) == (["mqtt:want"], ["wyoming"])
    assert set(yaml.safe_load((oci.APP / "repository.yaml").read_text())) == {"name", "maintainer"}
    for size, name in (((128, 128), "icon.png"), ((250, 100), "logo.png")):
        head = (APP / name).read_bytes()[:24]
        assert head[:8] == b"\x89PNG\r\n\x1a\n"
        assert tuple(int.from_bytes(head[i : i + 4]) for i in (16, 20)) == size
    assert f"## {CONFIG['version']}" in (APP / "CHANGELOG.md").read_text()


def test_each_option_has_a_type_a_default_or_none_and_words() -> None:
    schema = CONFIG["schema"]
    given = {key for key, kind in schema.items() if kind == ["str"] or not kind.endswith("?")}
    assert given == OPTIONS.keys(), "one without a default may be left out"
    for kind in schema.values():
        assert re.fullmatch(ELEMENT, kind[0] if isinstance(kind, list) else kind)
    assert schema["role"] == f"list({'|'.join(start.ROLES)})"
    for path in (APP / "translations").iterdir():
        told = yaml.safe_load(path.read_text())
        assert told["configuration"].keys() == schema.keys(), path
        assert told["network"].keys() == CONFIG["ports"].keys(), path
        assert all(row["name"] for row in told["configuration"].values()), path
    for key in schema:
        assert f"`{key}`" in (APP / "DOCS.md").read_text()


def test_the_image_is_labelled_and_starts_the_app(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setattr(oci, "base_layer", lambda *_, app: b"tree" * app)
    monkeypatch.setattr(oci, "tree_layer", lambda *_, app: b"tree" * app)
    assert oci.make_oci("3.11", ("arm64",), tmp_path, app=True).name.startswith("ternmesh-app_")
    config: Any = oci.app_config("arm64")
    assert config["Labels"] == {
        "io.hass.type": "app", "io.hass.version": CONFIG["version"], "io.hass.arch": "aarch64",
    }  # fmt: skip
    assert config["Entrypoint"][-1] == f"/{oci.APP_FILES['start.py']}"
    assert "User" not in config, "/data belongs to root"


# From options to settings


def test_options_become_settings_that_the_programs_read(tmp_path: Path) -> None:
    options = {**OPTIONS, "min_boards": 3}
    assert start.install(options, BROKER, tmp_path) == ["host", "node"]
    host, node = read_host_config(tmp_path / "host.toml"), read_node_config(tmp_path / "node.toml")
    assert (host.run.rounds, host.run.min_peers, host.page.port) == (0, 3, 0)
    assert (node.name, node.data.source, node.link.fleet) == ("home", "microphone", "home")
    assert (node.page.port, node.page.ingress) == (8099, "172.30.32.2")
    assert node.health.home_assistant
    assert host.health.home_assistant
    for name in ("home", "host"):
        assert read_credentials(tmp_path / "credentials.toml", name) == BROKER.login
    start.install({**options, "page": "host", "data": str(tmp_path)}, BROKER, tmp_path)
    host, node = read_host_config(tmp_path / "host.toml"), read_node_config(tmp_path / "node.toml")
    assert (host.page.port, node.page.port, node.data.source) == (8099, 0, "folder")
    for role, kinds in (("host", ["host"]), ("board", ["node"])):
        assert start.install({**options, "role": role}, BROKER, tmp_path / role) == kinds
        assert "172.30.32.2" in (tmp_path / role / f"{kinds[0]}.toml").read_text()
    words = start.commands(["node"], {"words": ["one", "two"], "threshold": 0.5}, tmp_path)
    assert words["wake-word"][-6:] == ["--threshold", "0.5", "--word", "one", "--word", "two"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"role": "king"}, "role must be one of both, host, board"),
        ({"data": "recordings", **OWN}, "write microphone, or a folder"),
        ({"username": "u"}, "are for the option broker"),
        ({"broker": "mqtts://b:8883", "username": "u"}, "belong together"),
        ({"broker": "mqtt://b", "username": "u", "password": "p"}, "in the clear"),
        ({"broker": "http://b"}, "mqtt"),
        ({"name": "a b", **OWN}, "letters, digits"),
        ({"model": "/share/none", **OWN}, "/share/none"),
        ({"min_boards": 0, **OWN}, "min_peers"),
        ({}, "install the app Mosquitto broker"),
        ({"role": "board", **OWN}, "switch `invite` on at its host"),
    ],
)
def test_options_that_cannot_work_get_a_sentence(
    changes: Any, sentence: str, tmp_path: Path, monkeypatch: Any, capfd: Any
) -> None:
    monkeypatch.setattr(start, "DATA", tmp_path)
    monkeypatch.setattr(start, "SUPERVISOR", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setitem(os.environ, "ORT_DISABLE_TELEMETRY", "1")
    monkeypatch.setattr(os, "umask", lambda _: 0)
    (tmp_path / "options.json").write_text(json.dumps({**OPTIONS, **changes}))
    assert start.main() == 2
    assert re.search(sentence, capfd.readouterr().err.splitlines()[-1])


# The programs


class Supervisor:
    """Answers as the Supervisor does, for one app, and keeps what it was told."""

    def __init__(self, broker: Mosquitto) -> None:
        self.told: list[Any] = []
        self.refusals = 1  # it may be busy at first
        own = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self, data: object, status: int = 200) -> None:
                if self.headers["Authorization"] != f"Bearer {TOKEN}":
                    status = 401
                self.send_response(status)
                self.end_headers()
                result = "ok" if status == 200 else "error"
                self.wfile.write(json.dumps({"result": result, "data": data}).encode())

            def do_GET(self) -> None:
                login = {"username": "addons", "password": "secret", "ssl": False}
                found = {"host": "127.0.0.1", "port": broker.port, "protocol": "3.1.1", **login}
                self.answer(found, 200 if self.path == "/services/mqtt" else 404)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if own.refusals:
                    own.refusals -= 1
                    return self.answer({}, 503)
                own.told.append((self.path, body))
                self.answer({"uuid": "1"})

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def supervisor(new_mosquitto: Callable[..., Mosquitto]) -> Iterator[Supervisor]:
    made = Supervisor(new_mosquitto())
    threading.Thread(target=made.server.serve_forever, daemon=True).start()
    yield made
    made.server.shutdown()
    made.server.server_close()


# The script as it is, with other places than those of a real Home Assistant.
SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
from pathlib import Path
import start
start.DATA, start.SUPERVISOR, start.INGRESS = Path({data!r}), {url!r}, "127.0.0.1"
start.WAKE_PORT, start.INGRESS_PORT, start.AGAIN_S = {wake}, {page}, 1.0
sys.exit(start.main())
"""


class App:
    """One app with its /data; in a root of the image where there is one."""

    def __init__(self, folder: Path, url: str, root: Path | None = None) -> None:
        self.data, self.root = folder, root
        self.wake, self.page = free_port(), free_port()
        self.log = folder / "log.txt"
        inside, place = (str(oci.APP), str(folder))
        if root is not None:
            inside, place = (f"/{oci.APP_FILES['start.py'].parent}", f"/{folder.relative_to(root)}")
        text = SCRIPT.format(folder=inside, data=place, url=url, wake=self.wake, page=self.page)
        python = [sys.executable, "-P"]
        if root is not None:
            python = ["/usr/sbin/chroot", str(root), *oci.app_config("amd64")["Entrypoint"][:2]]  # type: ignore[index]
        self.command = [*python, "-c", text]
        folder.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def running(self, **changes: object) -> Iterator[None]:
        (self.data / "options.json").write_text(json.dumps({**OPTIONS, **changes}))
        env = {**os.environ, "SUPERVISOR_TOKEN": TOKEN, "PYTHONPATH": str(ROOT)}
        env["PATH"] = f"{oci.APP}:{self.data}:{env['PATH']}"  # our arecord, and a parec
        if self.root is not None:
            env = {"SUPERVISOR_TOKEN": TOKEN, "PATH": "/usr/bin:/bin", "HOME": "/root"}
        with self.log.open("wb") as log:
            process = subprocess.Popen(self.command, env=env, stdout=log, stderr=log)
        try:
            yield
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, self.log.read_text()
        finally:
            process.kill()
            process.wait()

    def says(self, pattern: str) -> str | None:
        found = re.search(pattern, self.log.read_text())
        return found[1] if found else None

    async def words(self) -> list[str]:
        async with AsyncClient.from_uri(f"tcp://127.0.0.1:{self.wake}") as client:
            await client.write_event(Describe().event())
            event = await asyncio.wait_for(client.read_event(), 30)
            assert event is not None
            return [model.name for model in Info.from_event(event).wake[0].models]


def house(folder: Path, supervisor: Supervisor, eventually: Eventually, root: Any = None) -> None:
    """A first app is host and board, a second one joins it with a code."""
    home = App(folder / "home", supervisor.url, root)
    attic = App(folder / "attic", supervisor.url, root)
    parec = '#!/bin/sh\necho "$@" >"$0.said"\nexec sleep 600\n'
    (home.data / "parec").write_text(parec)
    (home.data / "parec").chmod(0o755)
    with home.running(invite=True, words=["seven", "three"]):
        eventually(lambda: supervisor.told)
        ((path, message),) = supervisor.told
        assert (path, message["service"]) == ("/discovery", "wyoming")
        assert message["config"]["uri"].endswith(f":{home.wake}")
        assert asyncio.run(home.words()) == ["seven", "three"]
        with urllib.request.urlopen(f"http://127.0.0.1:{home.page}/") as answer:
            assert b'name="token" content=""' not in answer.read()
        if root is None:
            said = home.data / "parec.said"
            eventually(said.exists)
            assert "--raw --format=s16le --channels=1 --rate=16000" in said.read_text()
        eventually(lambda: home.says("code for one board.*: (.+)"))
        code = home.says("code for one board.*: (.+)")
        (attic.data / "clips").mkdir()
        place = attic.data / "clips" if root is None else f"/{attic.data.relative_to(root)}/clips"
        board = {"role": "board", "name": "attic", "data": str(place), "min_boards": 2}
        with attic.running(**board, code=code):
            eventually(lambda: len(supervisor.told) == 2)
            assert len(asyncio.run(attic.words())) == 10
            eventually(lambda: home.says("(attic)"))
        with attic.running(**board):  # the code is needed once
            eventually(lambda: len(supervisor.told) == 3)
    assert not listens(home.wake)
    with home.running():
        eventually(lambda: len(supervisor.told) == 4)


def test_an_app_is_host_and_board_and_another_one_joins_it(
    tmp_path: Path, supervisor: Supervisor, eventually: Eventually
) -> None:
    house(tmp_path, supervisor, eventually)


@pytest.mark.nightly
@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("mmdebstrap"), reason="it needs root and mmdebstrap"
)
def test_the_same_in_a_root_of_the_image(tmp_path, supervisor: Supervisor, eventually) -> None:
    target = Target("amd64", ".".join(map(str, sys.version_info[:2])))
    release = PYTHONS[target.python]
    assert release is not None
    for layer in (
        oci.base_layer(target, release, 0, app=True),
        oci.tree_layer(target, 0, app=True),
    ):
        (tmp_path / "layer.tar").write_bytes(layer)
        subprocess.run(["tar", "-xf", tmp_path / "layer.tar", "-C", tmp_path], check=True)
    house(tmp_path / "data", supervisor, eventually, tmp_path)
