"""From a bare Debian to a node that learns: every command with its time, then sizes and memory.

A new root of the suite is made, a .deb for it, and a fleet of a host and a node inside it. Programs
of another architecture run under qemu: their times and memory are those of the emulator. With
`--boot` systemd runs there as the first process (systemd-nspawn), with the units that the package
brings. Root is needed, and for another architecture binfmt_misc with qemu-user-static.
"""

import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from check import Log, enrol, learn
from deb import EXAMPLES, make_deb
from tree import PREFIX, PYTHONS, PackageError, Target, make_tree, run

SUITES = {suite: python for python, suite in PYTHONS.items() if suite}
REST_S = 30  # an idle node frees its sessions after 20 s
PATIENCE_S = 120
QUICK = "[Service]\nWatchdogSec=6s\nRestartSec=1s\nRestartSteps=0\n"  # in place of minutes
NAMES = ("host", "node", "gateway")
# There is no Bluetooth controller: a unit with these starts, and uses none.
DROP_INS = (
    ("gateway", "20-serial.conf"),
    ("node", "20-ble.conf"),
    ("node", "20-ble-controller.conf"),
)


def prove(arch: str, suite: str, *, boot: bool) -> dict[str, Any]:
    """Install a package of this checkout in a new root, let it learn there; the figures."""
    steps: list[tuple[str, float]] = []

    def log(command: str, seconds: float) -> None:
        steps.append((command, round(seconds, 1)))
        print(f"{seconds:8.1f} s  {command}", flush=True)

    target = Target(arch, SUITES[suite])
    with tempfile.TemporaryDirectory(prefix="prove-") as name:
        folder = Path(name)
        root = folder / "root"
        options = ["--variant=minbase", f"--arch={arch}"]
        options += ["--include=bluez,dbus,systemd-sysv"] if boot else []
        with timed(log, " ".join(["mmdebstrap", *options, suite])):
            # What it mounts is not seen outside, whatever ends it.
            run("unshare", "--mount", "mmdebstrap", "--quiet", *options, suite, root)
        with timed(log, f"./run package deb --arch {arch} --python {target.python}"):
            make_tree(folder / "tree", target)
            deb = make_deb(folder / "tree", target, folder, "zstd")
        (root / "tmp/ternmesh.deb").write_bytes(deb.read_bytes())
        (root / "etc/resolv.conf").write_text(Path("/etc/resolv.conf").read_text())
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in ("apt-get update -q", "apt-get install -q -y /tmp/ternmesh.deb"):
            with timed(log, command):
                run("chroot", root, *command.split(), env=environment, cwd="/")
        figures: dict[str, Any] = {
            "arch": arch,
            "suite": suite,
            "deb_mb": _mb([deb]),
            "tree_mb": _mb(p for p in (root / PREFIX).rglob("*") if "__pycache__" not in p.parts),
            "tree_with_byte_code_mb": _mb((root / PREFIX).rglob("*")),
        }
        # With /proc, which a node reads to free its memory.
        words = ("unshare", f"--mount-proc={root}/proc", "chroot", "--userspec=ternmesh")
        command_line = (*words, str(root), "/opt/ternmesh/bin/ternmesh")
        if boot:
            figures |= _boot(root, command_line, log)
        else:
            learn(
                command_line, root, root / "etc/ternmesh", log=log,
                look=lambda node: figures.update(_memory(node)),
            )  # fmt: skip
    figures["steps"] = [{"command": command, "s": seconds} for command, seconds in steps]
    for key, value in figures.items():
        if key != "steps":
            print(f"{key:24}{value}")
    print(json.dumps({"prove": figures}))
    return figures


@contextmanager
def timed(log: Log, command: str) -> Iterator[None]:
    begun = time.monotonic()
    yield
    log(command, time.monotonic() - begun)


def _mb(paths: Iterable[Path]) -> float:
    """Bytes on disk, in blocks of 4096, in units of 10**6."""
    return round(sum(-(-path.lstat().st_size // 4096) * 4096 for path in paths) / 1e6, 1)


def _memory(pid: int) -> dict[str, float]:
    """A node's peak, and what it has after a rest; with the emulator, where there is one."""
    time.sleep(REST_S)
    names = {"VmHWM": "training_mib", "VmRSS": "idle_mib", "RssAnon": "idle_anonymous_mib"}
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    found = {names[line[0][:-1]]: int(line[1]) for line in lines if line[0][:-1] in names}
    return {name: round(kib / 1024, 1) for name, kib in found.items()}


def _boot(root: Path, command: Sequence[str], log: Log) -> dict[str, Any]:
    """Start the units under systemd, stop a node's process, give it a wrong setting."""
    from transports.mqtt.embedded_broker import EmbeddedBroker

    done: dict[str, Any] = {}
    with EmbeddedBroker() as broker, ExitStack() as stack:
        settings = root / "etc/ternmesh"

        def ternmesh(*words: str) -> str:
            return run(*command, *words, cwd="/")

        enrol(ternmesh, root, settings, broker.url)
        text = (root / EXAMPLES / "gateway.toml").read_text()
        text = text.replace("/dev/ttyUSB0", "/run/modems/modem-0")
        (settings / "gateway.toml").write_text(re.sub(r"mqtt://[^\"]+", broker.url, text))
        for line, adds, at in (("host", "host", "gateway"), ("gateway", "add", "host")):
            mine = ternmesh("enrol", "identity", "--config", f"/etc/ternmesh/{line}.toml")
            words = ("--config", f"/etc/ternmesh/{at}.toml", *re.findall(r"TM1:\S+", mine))
            ternmesh("enrol", adds, *words)
        for name in NAMES:
            place = root / f"etc/systemd/system/ternmesh-{name}.service.d"
            place.mkdir(parents=True)
            (place / "90-quick.conf").write_text(QUICK)
        for name, drop_in in DROP_INS:
            text = (root / EXAMPLES / "drop-ins" / drop_in).read_text()
            (root / f"etc/systemd/system/ternmesh-{name}.service.d" / drop_in).write_text(text)
        nspawn = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--console=pipe"]
        container = subprocess.Popen(
            [*nspawn, "--boot", "-D", root], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        stack.callback(container.wait)
        stack.callback(container.terminate)
        leader = _until(lambda: run("pgrep", "-P", container.pid).strip())

        def inside(line: str) -> str:
            return run("nsenter", "-at", leader, "sh", "-c", line).strip()

        def show(field: str, name: str = "node") -> str:
            return inside(f"systemctl show -P {field} ternmesh-{name}")

        _until(lambda: inside("systemctl is-active multi-user.target"))
        with timed(log, "systemd-run ... ternmesh radio emulate"):
            radio = "systemd-run -q -p User=ternmesh -p RuntimeDirectory=modems --unit=modems"
            inside(f"{radio} /opt/ternmesh/bin/ternmesh radio emulate --folder /run/modems")
            _until(lambda: inside("ls /run/modems"))
        for name in NAMES:
            with timed(log, f"systemctl start ternmesh-{name}"):
                inside(f"systemctl start ternmesh-{name}")
        _until(lambda: "adapter 1 of 1" in show("StatusText"))
        _until(lambda: all("link up" in show("StatusText", name) for name in NAMES))
        done["units"] = {name: show("StatusText", name) for name in NAMES}
        inside(f"kill -STOP {show('MainPID')}")
        with timed(log, "kill -STOP of the node: until the watchdog has started it again"):
            _until(lambda: show("NRestarts") == "1" and show("ActiveState") == "active")
        done["restarts_of_a_stopped_node"] = 1
        inside("echo wrong = 1 >> /etc/ternmesh/node.toml; systemctl restart ternmesh-node || :")
        time.sleep(5)  # longer than RestartSec
        done["wrong_setting"] = {k: show(k) for k in ("ExecMainStatus", "ActiveState", "NRestarts")}
        inside("systemctl poweroff")
    return done


def _until(ask: Callable[[], Any]) -> Any:
    """The first answer that is not empty; PackageError if there is none in time."""
    give_up_at = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up_at:
        with suppress(PackageError):  # the program that is asked does not answer yet
            if answer := ask():
                return answer
        time.sleep(0.5)
    raise PackageError("the system in the container does not do what it should: see above")
