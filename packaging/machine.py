"""A whole emulated Arm board: Debian with systemd on qemu's Cortex-A53, with 512 MB of memory.

Host and broker of its fleet run outside, as on another machine. A power cut is a SIGKILL of qemu:
what the board had not synchronised to its disk is lost. All seconds and memory are those of the
emulated machine; no board was there. Root, qemu-system-arm, mmdebstrap, binfmt_misc with
qemu-user-static, e2fsprogs and ssh are needed.
"""

import json
import os
import random
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from deb import make_deb
from prove import SUITES, timed
from tree import ROOT, PackageError, Target, make_tree, run

MEMORY_MB, DISK_MB, CUTS = 512, 3000, 3
OUTSIDE = "10.0.2.2"  # the address at which the board reaches this machine
INSIDE = "systemd-sysv,udev,dbus,linux-image-arm64,initramfs-tools,iproute2,openssh-server"
NETWORK = f"[Match]\nName=e*\n[Network]\nAddress=10.0.2.15/24\nGateway={OUTSIDE}\n"
START_S, ROUND_S, REST_S, TRIAL_S = 900.0, 1200.0, 45.0, 60
HOST = (sys.executable, "-m", "ternmesh_cli.main")
TERNMESH = "/usr/bin/ternmesh"
SETTINGS = "/etc/ternmesh/node.toml"
MEMORY = "grep -hE '^(VmHWM|VmRSS|RssAnon|Pss):' /proc/{pid}/status /proc/{pid}/smaps_rollup"


class Machine:
    """One emulated board with a disk; commands run there as root, over ssh."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._qemu: subprocess.Popen[bytes] | None = None
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]

    def start(self) -> None:
        """Boot, until commands can be given. PackageError."""
        network = f"user,id=net,hostfwd=tcp:127.0.0.1:{self._port}-:22"
        command = ["qemu-system-aarch64", "-M", "virt", "-cpu", "cortex-a53", "-smp", "2"]
        command += ["-m", str(MEMORY_MB), "-nographic", "-no-reboot"]
        command += ["-kernel", "vmlinuz", "-initrd", "initrd.img"]
        command += ["-append", "console=ttyAMA0 root=/dev/vda rw"]
        command += ["-drive", "file=disk.img,format=raw,if=virtio", "-device", "virtio-rng-pci"]
        command += ["-netdev", network, "-device", "virtio-net-pci,netdev=net,romfile="]
        with (self._folder / "console.log").open("ab") as log:
            self._qemu = subprocess.Popen(
                command, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.until("systemctl is-active multi-user.target", START_S)

    def cut_power(self) -> None:
        if self._qemu is not None:
            self._qemu.kill()
            self._qemu.wait()

    def run(self, line: str, timeout_s: float = 600.0) -> str:
        """What the command says; PackageError where it fails."""
        options = ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR"]
        words = ["ssh", "-i", str(self._folder / "key"), "-p", str(self._port)]
        words += [word for option in options for word in ("-o", option)]
        try:
            done = subprocess.run(
                [*words, "-o", "ConnectTimeout=10", "root@127.0.0.1", line],
                capture_output=True, text=True, timeout=timeout_s,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise PackageError(f"no answer in {timeout_s:.0f} s: {line}") from error
        if done.returncode:
            raise PackageError(f"{line}: {done.stdout[-500:]}{done.stderr[-500:]}")
        return done.stdout.strip()

    def until(self, line: str, patience_s: float) -> str:
        """The first output of a command that is not empty."""
        give_up_at, last = time.monotonic() + patience_s, ""
        while time.monotonic() < give_up_at:
            if self._qemu is not None and self._qemu.poll() is not None:
                console = (self._folder / "console.log").read_text(errors="replace")
                raise PackageError(f"the emulated machine has stopped:\n{console[-3000:]}")
            try:
                if answer := self.run(line, 60.0):
                    return answer
            except PackageError as error:
                last = str(error)
            time.sleep(1.0)
        raise PackageError(f"not within {patience_s:.0f} s: {line} ({last})")

    def put(self, file: Path) -> None:
        """Copy a file to the board, into /root."""
        words = ["scp", "-q", "-i", str(self._folder / "key"), "-P", str(self._port)]
        words += ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
        run(*words, file, "root@127.0.0.1:/root/")


def prove_machine(suite: str) -> dict[str, Any]:
    """Install, enrol by a code, learn, three power cuts, upgrade, roll-back; the figures."""
    from transports.mqtt.embedded_broker import EmbeddedBroker

    steps: list[tuple[str, float]] = []

    def log(what: str, seconds: float) -> None:
        steps.append((what, round(seconds, 1)))
        print(f"{seconds:8.1f} s  {what}", flush=True)

    target = Target("arm64", SUITES[suite])
    with tempfile.TemporaryDirectory(prefix="machine-") as name, ExitStack() as stack:
        folder = Path(name)
        with timed(log, f"./run package deb --arch arm64 --python {target.python}"):
            make_tree(folder / "tree", target)
            deb = make_deb(folder / "tree", target, folder, "zstd")
        with timed(log, f"a root of {suite} with the package, and its disk"):
            make_disk(folder, suite, deb)
        broker = stack.enter_context(EmbeddedBroker())
        machine = Machine(folder)
        stack.callback(machine.cut_power)
        with timed(log, "boot"):
            machine.start()
        host = stack.enter_context(fleet_host(folder, broker.url))
        url = broker.url.replace("127.0.0.1", OUTSIDE)
        words = f"--yes --name board --fleet attic --link {url} --data theo --model keyword"
        with timed(log, "ternmesh setup ... --code CODE"):
            machine.run(f"{TERNMESH} setup {words} --code {host.code()}", START_S)
        with timed(log, "four rounds"):
            host.reaches(4, ROUND_S)
        figures: dict[str, Any] = {"suite": suite, "memory_mb": MEMORY_MB}
        figures |= memory(machine, "training_mib", "VmHWM")
        with timed(log, f"{CUTS} power cuts, each in a round, and the round after"):
            figures["boot_s"] = [cut(machine, host) for _ in range(CUTS)]
        figures |= trial(machine, host, folder, deb, log)
        figures |= memory(machine, "training_mib", "VmHWM")
        figures["doctor"] = machine.run(f"{TERNMESH} doctor --config {SETTINGS} 2>&1 || true")
        host.stop()
        resting = "grep -E 'waiting for work|sending'"  # without its host, an update stays here
        machine.until(f"{TERNMESH} status --config {SETTINGS} | {resting}", START_S)
        time.sleep(REST_S)
        figures |= memory(machine, "idle_mib", "VmRSS") | memory(machine, "idle_pss_mib", "Pss")
        machine.run(f"printf '\\n[predict]\\nenabled = true\\n' >> {SETTINGS}")
        machine.run("systemctl restart ternmesh-node")
        predict = f"{TERNMESH} predict --config {SETTINGS} /root/clip.npz"
        figures["prediction"] = machine.until(predict, START_S).splitlines()[0]
        figures |= memory(machine, "predicting_mib", "VmRSS")
        figures |= host.lost()
        figures["units"] = machine.run("systemctl is-active ternmesh-node; systemctl --failed -q")
        machine.run("systemctl poweroff || true")
    figures["steps"] = [{"step": step, "s": seconds} for step, seconds in steps]
    print(json.dumps({"machine": figures}))
    return figures


def make_disk(folder: Path, suite: str, deb: Path) -> None:
    """A root with the package becomes disk.img; kernel, initrd and key stay beside it."""
    root, key = folder / "root", folder / "key"
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
    # With all modules an initial disk takes twenty minutes where the processor is emulated.
    place = '"$1/etc/initramfs-tools/conf.d"'
    hook = f"mkdir -p {place} && echo MODULES=list > {place}/list && "
    hook += f"printf 'virtio_pci\\nvirtio_blk\\next4\\n' > {place}/../modules"
    made = ["mmdebstrap", "--quiet", "--variant=minbase", "--arch=arm64", f"--include={INSIDE}"]
    made += [f"--setup-hook={hook}"]
    run("unshare", "--mount", *made, suite, root)  # what it mounts is not seen outside
    shutil.copy(deb, root / "tmp/ternmesh.deb")
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for line in ("apt-get update -q", "apt-get install -q -y /tmp/ternmesh.deb"):
        run("chroot", root, *line.split(), env=environment, cwd="/")
    (root / "etc/systemd/network/10.network").write_text(NETWORK)
    (root / "etc/hostname").write_text("board\n")
    (root / "root/.ssh").mkdir(0o700, exist_ok=True)
    shutil.copy(f"{key}.pub", root / "root/.ssh/authorized_keys")
    run("systemctl", f"--root={root}", "enable", "systemd-networkd", "ssh")
    write_clip(root / "root/clip.npz")
    for kernel in ("vmlinuz", "initrd.img"):
        shutil.copy(next((root / "boot").glob(f"{kernel}-*")), folder / kernel)
    run("truncate", f"--size={DISK_MB}M", folder / "disk.img")
    run("mke2fs", "-q", "-t", "ext4", "-d", root, folder / "disk.img")
    shutil.rmtree(root)


def write_clip(path: Path) -> None:
    """One spoken digit, as the board's [data] describes its files."""
    import numpy as np

    from models.zoo import fsdd_path

    with np.load(fsdd_path("dev")) as clips:
        np.savez(path, x=clips["x"][:1])


class FleetHost:
    """The host of the board, outside the machine."""

    def __init__(self, settings: Path, process: subprocess.Popen[bytes]) -> None:
        self._settings = settings
        self._process = process

    def ask(self, *words: str) -> str:
        return run(*HOST, *words, "--config", self._settings, cwd=ROOT)

    def code(self) -> str:
        return shlex.quote(str(json.loads(self.ask("enrol", "code", "--json"))["code"]))

    def status(self) -> Any:
        return json.loads(self.ask("status", "--json"))

    def reaches(self, version: int, patience_s: float) -> int:
        """The version of the host, once it is this one or a later one."""
        give_up_at = time.monotonic() + patience_s
        while time.monotonic() < give_up_at:
            with suppress(PackageError):  # it is still starting
                if (found := int(self.status()["version"])) >= version:
                    return found
            time.sleep(1.0)
        raise PackageError(f"the fleet has not reached version {version}")

    def lost(self) -> dict[str, int]:
        """Of the board: updates that no round counts though the host has acknowledged them."""
        found = json.loads((self._settings.parent / "last.json").read_text())
        [board] = found["nodes"]
        return {
            "rounds": found["version"],
            "updates_counted": board["rounds_counted"],
            "updates_lost": board["rounds_missed"],
        }

    def stop(self) -> None:
        """End the run: the board rests."""
        (self._settings.parent / "last.json").write_text(json.dumps(self.status()))
        self._process.terminate()
        self._process.wait()


@contextmanager
def fleet_host(folder: Path, url: str) -> Iterator[FleetHost]:
    place = folder / "fleet"
    place.mkdir()
    settings = place / "host.toml"
    settings.write_text(
        f'state_dir = "{place}/state"\nmodel = "keyword"\n[link]\nurl = "{url}"\nfleet = "attic"\n'
        "[run]\nrounds = 0\nmin_peers = 1\ndeadline_s = 3600\n"
    )
    run(*HOST, "enrol", "identity", "--config", settings, cwd=ROOT)
    with (place / "host.log").open("wb") as log:
        words = [*HOST, "host", "--config", str(settings)]
        process = subprocess.Popen(words, cwd=ROOT, stdout=log, stderr=log)
    try:
        host = FleetHost(settings, process)
        host.reaches(0, 120.0)
        yield host
    finally:
        process.kill()
        process.wait()


def cut(machine: Machine, host: FleetHost) -> float:
    """Cut the power somewhere in a round; the seconds until the machine has booted again."""
    version = host.reaches(0, 60.0)
    time.sleep(random.uniform(1.0, 30.0))
    machine.cut_power()
    begun = time.monotonic()
    machine.start()
    took_s = time.monotonic() - begun
    host.reaches(version + 2, ROUND_S)
    return round(took_s, 1)


def trial(machine: Machine, host: FleetHost, folder: Path, deb: Path, log: Any) -> dict[str, str]:
    """An upgrade that works, and one whose program ends at once."""
    found = {}
    for name, broken in (("upgrade", False), ("roll_back", True)):
        new = next_version(folder, deb, 1 + broken, broken=broken)
        host.ask("upgrade", "sign", str(new))
        machine.put(new)
        machine.put(new.with_name(f"{new.name}.sig"))
        install = f"{TERNMESH} upgrade install /root/{new.name} --config {SETTINGS}"
        with timed(log, f"ternmesh {name.replace('_', ' ')}"):
            said = machine.run(f"{install} --trial-s {TRIAL_S} 2>&1 || true", START_S)
        found[name] = machine.run(f"{TERNMESH} upgrade status")
        if ("runs in place of" in found[name]) == broken:
            raise PackageError(f"the {name} said: {said}")
        host.reaches(int(host.status()["version"]) + 1, ROUND_S)
    return found


def next_version(folder: Path, deb: Path, number: int, *, broken: bool) -> Path:
    """The package with a later version; a `broken` one has a program that ends."""
    tree = folder / f"next-{number}"
    run("dpkg-deb", "--raw-extract", deb, tree)
    control = tree / "DEBIAN/control"
    version = re.search(r"^Version: (\S+)", control.read_text(), re.MULTILINE)
    assert version is not None
    plain, _, python = version[1].rpartition("+")
    later = f"{plain}.{number}+{python}"
    control.write_text(control.read_text().replace(version[1], later))
    if broken:
        (tree / "opt/ternmesh/bin/ternmesh").write_text("#!/bin/sh\nexit 3\n")
    new = folder / f"ternmesh_{later}_arm64.deb"
    run("dpkg-deb", "--build", "--root-owner-group", "-Zgzip", "-z1", tree, new)
    return new


def memory(machine: Machine, name: str, field: str) -> dict[str, float]:
    """One figure of the node's process, in MiB."""
    pid = machine.run("systemctl show -P MainPID ternmesh-node")
    rows = dict(line.split(":") for line in machine.run(MEMORY.format(pid=pid)).splitlines())
    return {name: round(int(rows[field].split()[0]) / 1024, 1)}
