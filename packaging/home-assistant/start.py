"""Runs ternmesh as an app of Home Assistant: a host, a board, or both, from the app's options.

It is the first program of the image. All that survives is in /data: options.json, which the
Supervisor writes, and one folder with settings, keys and state.
"""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ternmesh.config import ConfigError
from ternmesh.errors import TernmeshError
from ternmesh_cli.process import write_toml
from ternmesh_cli.programs import read_program
from ternmesh_store.files import replace_private_file
from ternmesh_store.state_file import StateFile
from transports.base import HOST
from transports.mqtt.credentials import Credentials

DATA = Path("/data")
SUPERVISOR = "http://supervisor"
SUPERVISOR_S = 10.0  # for an answer of it
INGRESS, INGRESS_PORT = "172.30.32.2", 8099  # the same in each Home Assistant; of config.yaml
WAKE_PORT = 10400
AGAIN_S = 10.0  # until a program that ended, or what failed, is tried again
TURN_S = 0.2
STOP_S = 20.0  # config.yaml gives the whole app 30
INVITE_MINUTES = 60
TERNMESH = (sys.executable, "-P", "-m", "ternmesh_cli")
ROLES: Mapping[str, tuple[str, ...]] = {
    "both": ("host", "node"),
    "host": ("host",),
    "board": ("node",),
}

Options = Mapping[str, Any]
Tables = dict[str, dict[str, object]]


@dataclass(frozen=True, slots=True)
class Broker:
    """Where the fleet meets, and the login there."""

    url: str
    login: Credentials
    cleartext: bool = False


@dataclass(frozen=True, slots=True)
class Supervisor:
    """The Supervisor's API, as far as an app may use it without a role."""

    token: str = field(repr=False)
    url: str = SUPERVISOR

    def ask(self, path: str, body: object = None) -> Any:
        """The data of its answer; OSError where it refuses or is not there."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=SUPERVISOR_S) as answer:
                return json.load(answer)["data"]
        except (ValueError, KeyError, TypeError, http.client.HTTPException) as error:
            raise OSError(f"the Supervisor's answer to {path} cannot be read: {error}") from error

    def broker(self) -> Broker:
        """The broker that Home Assistant has for its apps; ConfigError where it has none."""
        try:
            found = self.ask("/services/mqtt")
            scheme = "mqtts" if found["ssl"] else "mqtt"
            login = Credentials(found["username"], found["password"])
            # In the clear it crosses the network of the apps in this machine only.
            return Broker(f"{scheme}://{found['host']}:{found['port']}", login, not found["ssl"])
        except (OSError, KeyError, TypeError) as error:
            raise ConfigError(
                f"Home Assistant has no MQTT broker for apps ({error}): install the app Mosquitto "
                "broker, or name another one in the option broker"
            ) from error

    def announce(self) -> None:
        """Tell Home Assistant about the wake-word service. OSError."""
        uri = f"tcp://{socket.gethostname()}:{WAKE_PORT}"
        self.ask("/discovery", {"service": "wyoming", "config": {"uri": uri}})


def read_options(path: Path) -> Options:
    """The options of the owner; ConfigError."""
    try:
        options = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: save the app's configuration again") from error
    if not isinstance(options, dict) or options.get("role") not in ROLES:
        raise ConfigError(f"the option role must be one of {', '.join(ROLES)}")
    return options


def named_broker(options: Options) -> Broker | None:
    """The broker of the options, if they name one; ConfigError."""
    url, user, password = (options.get(key) for key in ("broker", "username", "password"))
    if not url:
        if user or password:
            raise ConfigError("username and password are for the option broker: name it too")
        return None
    if bool(user) != bool(password):
        raise ConfigError("username and password belong together: write both, or neither")
    login = Credentials(user, password) if user else Credentials()
    return Broker(url, login, bool(options.get("cleartext")))


def settings(options: Options, broker: Broker, folder: Path) -> dict[str, Tables]:
    """The tables of host.toml and node.toml, by "host" and "node", as the role needs them."""
    kinds = ROLES[options["role"]]
    shown = kinds[0]
    if len(kinds) > 1 and options.get("page") != "host":
        shown = "node"
    link: dict[str, object] = {"url": broker.url, "cleartext": broker.cleartext or None}
    if broker.login.username is not None:
        link["credentials_file"] = str(folder / "credentials.toml")
    made: dict[str, Tables] = {}
    for kind in kinds:
        top = {"state_dir": str(folder / kind), "model": options.get("model", "keyword")}
        tables: Tables = {"": top, "link": {**link, "fleet": options.get("fleet")}}
        tables["health"] = {**link, "home_assistant": True}
        if kind == shown:
            tables["page"] = {"port": INGRESS_PORT, "address": "0.0.0.0", "ingress": INGRESS}
        if kind == "host":
            tables["run"] = {"rounds": 0, "min_peers": options.get("min_boards", 1)}
        else:
            top["name"] = options.get("name")
            tables |= _samples(options.get("data", ""))
        made[kind] = tables
    return made


def _samples(data: str) -> Tables:
    if data == "microphone":
        return {"data": {"source": data, "poll_s": 0.2}, "data.options": {"rate_max": 2}}
    if not data.startswith("/"):
        raise ConfigError(
            f"the option data is {data!r}: write microphone, or a folder such as "
            "/share/ternmesh/recordings"
        )
    return {"data": {"source": "folder"}, "data.options": {"path": data}}


def install(options: Options, broker: Broker, folder: Path) -> list[str]:
    """Write the settings, and check them as the programs do; their kinds. ConfigError."""
    made = settings(options, broker, folder)
    folder.mkdir(0o700, parents=True, exist_ok=True)
    if broker.login.username is not None:
        login = {"username": broker.login.username, "password": broker.login.password}
        names = (HOST, str(options.get("name")))
        text = write_toml({json.dumps(name): login for name in names})
        replace_private_file(folder / "credentials.toml", text.encode())
    for kind, tables in made.items():
        path = folder / f"{kind}.toml"
        replace_private_file(path, write_toml(tables).encode())
        read_program(kind, path)
    return list(made)


def enrol(kinds: list[str], code: str, folder: Path) -> None:
    """Make the keys, and let the board trust its host, as far as it is not done. TernmeshError."""
    lines = {kind: _enrol(folder, kind, "identity")["identity"] for kind in kinds}
    if "node" not in kinds or StateFile(folder / "node").stored_fleet() is not None:
        return
    if "host" in kinds:
        _enrol(folder, "host", "add", lines["node"])
        _enrol(folder, "node", "host", lines["host"])
    elif code:
        _enrol(folder, "node", "join", code)
    else:
        raise ConfigError(
            "this board belongs to no fleet yet: switch `invite` on at its host, and write the "
            "code from the host's log into the option code"
        )


def _enrol(folder: Path, kind: str, action: str, *words: str) -> Any:
    """What `ternmesh enrol` says; its own sentence goes to the log. TernmeshError."""
    config = str(folder / f"{kind}.toml")
    command = [*TERNMESH, "enrol", action, "--json", "--config", config, *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise TernmeshError(f"`ternmesh enrol {action}` failed: the line above says why")
    return json.loads(done.stdout)


class Runner:
    """Keeps the programs running, and does what has to be done once beside them."""

    def __init__(self, commands: Mapping[str, list[str]], once: list[Callable[[], None]]) -> None:
        self._commands = commands
        self._once = once  # each until it raises nothing
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._not_before: dict[str, float] = {}
        self._stopped = False

    def stop(self, *_: object) -> None:
        """Handle a signal: `run` ends the programs and returns."""
        self._stopped = True

    def run(self) -> None:
        """Run until `stop`."""
        try:
            while not self._stopped:
                self._turn(time.monotonic())
                time.sleep(TURN_S)
        finally:
            for process in self._running.values():
                process.terminate()
            end = time.monotonic() + STOP_S
            for process in self._running.values():
                try:
                    process.wait(max(0.0, end - time.monotonic()))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def _turn(self, now: float) -> None:
        for name, command in self._commands.items():
            process = self._running.get(name)
            if process is not None and process.poll() is not None:
                tell(f"{name} ended with {process.returncode}; it starts again in {AGAIN_S:.0f} s")
                del self._running[name]
                self._not_before[name] = now + AGAIN_S
            if name not in self._running and now >= self._not_before.get(name, 0.0):
                self._running[name] = subprocess.Popen(command)
        if now < self._not_before.get("", 0.0):
            return
        self._not_before[""] = now + AGAIN_S / 10
        for action in list(self._once):
            try:
                action()
                self._once.remove(action)
            except (OSError, TernmeshError) as error:
                tell(f"{error}; it is tried again")
                self._not_before[""] = now + AGAIN_S


def commands(kinds: list[str], options: Options, folder: Path) -> dict[str, list[str]]:
    """The programs to run, by name."""
    made = {kind: [*TERNMESH, kind, "--config", str(folder / f"{kind}.toml")] for kind in kinds}
    if "node" in kinds:
        words = [part for word in options.get("words") or () for part in ("--word", str(word))]
        listen = ("--listen", f"tcp://0.0.0.0:{WAKE_PORT}", "--in-lan")
        sure = ("--threshold", str(options.get("threshold", 0.8)))
        config = str(folder / "node.toml")
        made["wake-word"] = [*TERNMESH, "wake-word", "--config", config, *listen, *sure, *words]
    return made


def tell(text: str) -> None:
    print(f"ternmesh app: {text}", file=sys.stderr, flush=True)


def main() -> int:
    """Run until SIGTERM; 2 where the options cannot work."""
    os.umask(0o077)
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    folder = DATA / "ternmesh"
    supervisor = Supervisor(os.environ.get("SUPERVISOR_TOKEN", ""), SUPERVISOR)
    try:
        options = read_options(DATA / "options.json")
        kinds = install(options, named_broker(options) or supervisor.broker(), folder)
        enrol(kinds, str(options.get("code") or ""), folder)
    except (TernmeshError, OSError) as error:
        tell(str(error))
        return 2

    def announce() -> None:
        with socket.create_connection(("127.0.0.1", WAKE_PORT), SUPERVISOR_S):
            supervisor.announce()
        tell("Home Assistant knows the wake-word service")

    def invite() -> None:
        minutes = str(INVITE_MINUTES)
        code = _enrol(folder, "host", "code", "--minutes", minutes)["code"]
        tell(f"the code for one board, valid for {minutes} minutes: {code}")

    once = [announce] if "node" in kinds else []
    once += [invite] if options.get("invite") and "host" in kinds else []
    runner = Runner(commands(kinds, options, folder), once)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, runner.stop)
    runner.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
