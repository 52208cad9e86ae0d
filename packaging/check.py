"""Does a .deb work? A host and a node of its files, unpacked anywhere, learn together."""

import json
import re
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tree import PREFIX, STATE, PackageError, run

LINE = re.compile(r"TM1:\S+")
PATIENCE_S = 60
SETTINGS = {r"rounds = \d+": "rounds = 2", r"min_peers = \d+": "min_peers = 1"}


def check(deb: Path) -> None:
    """Let the programs of a .deb learn for two rounds, with the shipped examples as settings.

    The broker is that of this checkout, since no package has one. PackageError where they fail.
    """
    from transports.mqtt.embedded_broker import EmbeddedBroker

    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker() as broker:
        root = Path(folder) / "root"
        run("dpkg-deb", "--extract", deb.resolve(), root)
        replaced = {
            r"mqtt://[^\"]+": broker.url,
            f"/{STATE}": folder,
            f"/{PREFIX}": str(root / PREFIX),
        }
        for name in ("host", "node"):
            text = (root / "usr/share/doc/ternmesh/examples" / f"{name}.toml").read_text()
            for old, new in {**replaced, **SETTINGS}.items():
                text = re.sub(old, new, text)
            (Path(folder) / f"{name}.toml").write_text(text)
        programs = root / PREFIX / "bin"
        command = (str(programs / "python"), "-I", str(programs / "ternmesh"))
        print(run(*command, "--version", cwd="/").strip())
        learn(command, Path(folder))


def learn(command: Sequence[str], folder: Path) -> None:
    """Enrol the node at the host, and run both until the node has the second global adapter."""
    host, node = ("--config", "host.toml"), ("--config", "node.toml")

    def ternmesh(*words: str) -> str:
        return run(*command, *words, cwd=folder)

    lines = [LINE.findall(ternmesh("enrol", "identity", *end))[0] for end in (host, node)]
    ternmesh("enrol", "host", *node, lines[0])
    ternmesh("enrol", "add", *host, lines[1])
    processes = [
        subprocess.Popen([*command, *words], cwd=folder)
        for words in (("host", *host), ("node", *node))
    ]
    give_up_at = time.monotonic() + PATIENCE_S
    version = 0
    while version < 2 and time.monotonic() < give_up_at and not any(p.poll() for p in processes):
        time.sleep(0.5)
        with suppress(PackageError):  # the node is still starting
            version = json.loads(ternmesh("status", "--json", *node))["version"]
    for process in processes:
        process.terminate()
    codes = [process.wait(PATIENCE_S) for process in processes]
    if version < 2 or any(codes):
        raise PackageError(f"host and node ended with {codes} at version {version}: see above")
    print(f"the node has global adapter {version}")
