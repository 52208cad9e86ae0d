"""Does a .deb, or what uv and pipx installed, work? A host and a node of it learn together.

Their settings are the shipped examples. The broker is that of this checkout: no package has one.
"""

import json
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from deb import EXAMPLES
from tree import PREFIX, PYTHONS, ROOT, STATE, PackageError, run

NEEDED = "--include=adduser,libstdc++6,python3,zlib1g"
PATIENCE_S = 900  # a training step takes minutes where the processor is emulated
ROUNDS = 1

Log = Callable[[str, float], None]  # a command and its seconds


def no_log(_command: str, _seconds: float) -> None: ...


def check_unpacked(deb: Path) -> None:
    """Let the programs of a .deb for this machine learn where they are not installed."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        run("dpkg-deb", "--extract", deb.resolve(), root)
        programs = root / PREFIX / "bin"
        command = (str(programs / "python"), "-I", str(programs / "ternmesh"))
        moved = {f"/{STATE}": folder, f"/{PREFIX}": str(root / PREFIX)}
        learn(command, root, Path(folder), moved)


def check_program(program: Path) -> None:
    """Let `ternmesh` of an environment that uv or pipx made learn."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        shutil.copytree(ROOT / "packaging" / "examples", root / EXAMPLES)
        programs = program.resolve().parent
        zoo = next(programs.parent.glob("lib/python3*/site-packages/models/zoo"))
        command = (str(programs / "python"), "-I", str(programs / "ternmesh"))
        learn(command, root, Path(folder), {f"/{STATE}": folder, f"/{PREFIX}/zoo": str(zoo)})


def check_installed(deb: Path) -> None:
    """Install a .deb in a new Debian of its own, let it learn there, purge it. It needs root.

    For another architecture binfmt and qemu-user-static run its programs.
    """
    about = run("dpkg-deb", "--showformat=${Architecture} ${Version}", "--show", deb.resolve())
    arch, version = about.split()
    release = {f"py{python.replace('.', '')}": name for python, name in PYTHONS.items()}[
        version.rpartition("+")[2]
    ]
    if release is None:
        raise PackageError(f"no Debian has the Python of {version}: install it by hand")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        made = ("mmdebstrap", "--quiet", "--variant=minbase", f"--arch={arch}", NEEDED)
        run("unshare", "--mount", *made, release, root)  # what it mounts is not seen outside
        shutil.copy(deb, root / "tmp" / "ternmesh.deb")
        run("chroot", root, "dpkg", "--install", "/tmp/ternmesh.deb")
        learn(("chroot", "--userspec=ternmesh", str(root), "ternmesh"), root, root / "etc/ternmesh")
        run("chroot", root, "dpkg", "--purge", "ternmesh")
        if not (root / STATE / "node" / "identity").exists() or (root / "etc/ternmesh").exists():
            raise PackageError("a purge must keep the state and take away the settings")


def enrol(
    ternmesh: Callable[..., str],
    root: Path,
    folder: Path,
    url: str,
    moved: dict[str, str] | None = None,
) -> dict[str, tuple[str, str]]:
    """Write settings from the examples into `folder`, enrol a node at a host; their options.

    With `moved` nothing lies where a package puts it.
    """
    place = folder if moved else Path("/etc/ternmesh")
    ends = {name: ("--config", str(place / f"{name}.toml")) for name in ("host", "node")}
    changed = {
        r"mqtt://[^\"]+": url,
        r"min_peers = \d+": "min_peers = 1\nlocal_steps = 1",
        r"rounds = \d+": f"rounds = {ROUNDS}",
        r"deadline_s = \d+": f"deadline_s = {PATIENCE_S}",
        r"\[evaluate\].*": "[evaluate]\nsamples_max = 16",
        **(moved or {}),
    }
    for name in ends:
        text = (root / EXAMPLES / f"{name}.toml").read_text()
        for old, new in changed.items():
            text = re.sub(old, new, text)
        (folder / f"{name}.toml").write_text(text)
    lines = {
        name: re.findall(r"TM1:\S+", ternmesh("enrol", "identity", *end))
        for name, end in ends.items()
    }
    ternmesh("enrol", "host", *ends["node"], *lines["host"])
    ternmesh("enrol", "add", *ends["host"], *lines["node"])
    return ends


def learn(
    command: Sequence[str],
    root: Path,
    folder: Path,
    moved: dict[str, str] | None = None,
    *,
    log: Log = no_log,
    look: Callable[[int], None] | None = None,
) -> None:
    """Enrol a node at a host, and run both until the node has the last global adapter.

    `log` gets each command with its seconds, `look` the node's process at the end.
    """
    from transports.mqtt.embedded_broker import EmbeddedBroker

    def ternmesh(*words: str) -> str:
        begun = time.monotonic()
        output = run(*command, *words, cwd="/")
        log(shlex.join(("ternmesh", *words)), time.monotonic() - begun)
        return output

    print(ternmesh("--version").strip())
    with EmbeddedBroker() as broker:
        ends = enrol(ternmesh, root, folder, broker.url, moved)
        begun = time.monotonic()
        programs = [subprocess.Popen([*command, name, *end], cwd="/") for name, end in ends.items()]
        version = 0
        try:
            while version < ROUNDS and time.monotonic() < begun + PATIENCE_S:
                time.sleep(2)
                if any(program.poll() is not None for program in programs):
                    break
                with suppress(PackageError):  # the node is still starting, or busy
                    answer = run(*command, "status", "--json", *ends["node"], cwd="/")
                    version = json.loads(answer)["version"]
            if version >= ROUNDS:
                log(
                    "ternmesh host, ternmesh node: until both have learned",
                    time.monotonic() - begun,
                )
                if look:
                    look(programs[1].pid)
        finally:
            for program in programs:
                program.terminate()
            codes = [program.wait(PATIENCE_S) for program in programs]
    if version < ROUNDS or any(codes):
        raise PackageError(f"host and node ended with {codes} at adapter {version}: see above")
