"""The tree that is installed, /opt/ternmesh and /usr/bin/ternmesh, without emulation.

The wheels are those of the package index, unchanged: files are left out, none is edited. `strip` is
not used: it breaks the libraries in numpy.libs, whose ELF headers patchelf has moved. /opt/ternmesh
is a virtual environment whose `bin/python` is the Python of the distribution. So what the program
starts with `sys.executable` sees the same packages, and none of PYTHONPATH, the system or the user.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
# Debian 12, Ubuntu 24.04 (Jetson), Debian 13. The image needs the release that has the Python.
PYTHONS = {"3.11": "bookworm", "3.12": None, "3.13": "trixie"}
# A host and a gateway need no more than a node. Not `ble-bridge`: bumble brings 12 packages.
EXTRAS = "node,serial,ble"
GLIBC_MINOR = 28  # of the newest wheels; bookworm has 2.36
PREFIX = Path("opt/ternmesh")
STATE = "var/lib/ternmesh"

# What is left out, and why. Patterns are relative to site-packages.
PRUNED: Mapping[str, tuple[str, ...]] = {
    "onnxruntime as a C library; its Python module contains all of it again": (
        "onnxruntime/capi/libonnxruntime.so*",
    ),
    "converters and quantisers of models": (
        *(f"onnxruntime/{name}" for name in ("backend", "datasets", "quantization", "tools")),
        "onnxruntime/transformers",
    ),
    "only these converters import them": ("flatbuffers*", "google", "packaging*", "protobuf-*"),
    "cryptography needs the compiled half of cffi only": ("cffi", "pycparser*"),
    "for building extensions": (
        *(f"numpy/{name}" for name in ("_pyinstaller", "distutils", "f2py")),
        *(f"numpy/_core/{name}" for name in ("include", "lib")),
        *(f"numpy/random/{name}" for name in ("_examples", "lib")),
        *(f"**/*.{suffix}" for suffix in ("c", "h", "pxd", "pyx")),
    ),
    "parts of numpy that numpy imports only when somebody asks for them, and nobody does": (
        "numpy/polynomial",
        "numpy/testing",
    ),
    "for other systems": (
        *(f"bleak/backends/{name}" for name in ("android", "corebluetooth", "p4android", "winrt")),
        *(f"serial/{name}.py" for name in ("serialcli", "serialjava", "serialwin32", "win32")),
    ),
    "anyio imports it for names of servers that it opens, and it opens none": ("idna*",),
    "faster forms of modules that are there in Python; a BLE link has few messages": (
        "dbus_fast/**/*.so",
    ),
    "for type checkers": ("**/*.pyi",),
    "tests and examples": (
        "**/tests",
        "**/test_*.py",
        "bitarray/examples",
        "numpy/_core/_*_tests.*.so",
        "numpy/_core/_simd.*.so",
    ),
    "commands and manual pages of the dependencies": ("bin", "share"),
    "list files that are not there, and paths of the builder": (
        *(f"*.dist-info/{name}" for name in ("INSTALLER", "RECORD", "REQUESTED")),
        "*.dist-info/direct_url.json",
    ),
}

LAUNCHER = """\
#!/opt/ternmesh/bin/python -I
import os
import sys

# onnxruntime >= 1.31 would keep a device id and prepare reports to its makers.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
from ternmesh_cli.__main__ import start

sys.exit(start())
"""


class PackageError(Exception):
    """One sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of machine."""

    arch: str  # Debian's name
    python: str  # "3.11"

    @property
    def site(self) -> Path:
        """Where the packages lie, relative to the root folder."""
        return PREFIX / "lib" / f"python{self.python}" / "site-packages"

    def pip_options(self) -> list[str]:
        """Let pip choose wheels for this machine; the newest that it may run come first."""
        machine = MACHINES[self.arch]
        tags = [f"manylinux_2_{n}_{machine}" for n in range(GLIBC_MINOR, 16, -1)]
        tags.append(f"manylinux2014_{machine}")
        options = [option for tag in tags for option in ("--platform", tag)]
        return [*options, "--python-version", self.python, "--implementation", "cp"]


def run(*command: object, **options: Any) -> str:
    """The output of a program; PackageError where it is missing or fails."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words, check=True, stdout=subprocess.PIPE, text=True, **{"cwd": ROOT, **options}
        )
    except FileNotFoundError as error:
        raise PackageError(f"{words[0]} is missing: apt install the package that has it") from error
    except subprocess.CalledProcessError as error:
        raise PackageError(f"`{' '.join(words[:4])} ...` ended with {error.returncode}") from error
    output: str = done.stdout
    return output


def source_date() -> int:
    """SOURCE_DATE_EPOCH, or the time of the commit: the same input makes the same bytes."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or run("git", "log", "-1", "--format=%ct"))


def debian_version(version: str, commit: str | None, date: int) -> str:
    """The version in Debian's order: 0.2.0~rc1, and 0.2.0~git... of any commit, come before 0.2.0.

    `commit` is None for the tagged one.
    """
    text = re.sub(r"[.-]?(a|b|rc|dev)(?=\d)", r"~\1", version)
    if commit is None:
        return text
    return f"{text}~git{datetime.fromtimestamp(date, UTC):%Y%m%d%H%M}.{commit}"


def project_version() -> str:
    """The version in pyproject.toml."""
    project: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project["version"]


def package_version(target: Target) -> str:
    """The version of this checkout; with the Python, so that an upgrade of Debian is one too."""
    version = project_version()
    described = run("git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*").strip()
    is_release = (
        described.endswith("-dirty") is False
        and f"v{version}" in run("git", "tag", "--points-at", "HEAD").split()
    )
    commit = None if is_release else described.replace("-", ".")
    text = debian_version(version, commit, source_date())
    return f"{text}+py{target.python.replace('.', '')}"


def make_tree(
    root: Path, target: Target, interpreter: Path | None = None, extras: str = EXTRAS
) -> None:
    """Write /opt/ternmesh, without byte code, and the link in /usr/bin below `root`."""
    install(root / target.site, target, extras)
    prune(root / target.site)
    furnish(root, target, interpreter or Path(f"/usr/bin/python{target.python}"))


def install(site: Path, target: Target, extras: str) -> None:
    """Unpack the wheels for the target into `site`."""
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    with tempfile.TemporaryDirectory() as folder:
        run(*pip, "wheel", "--no-deps", "--wheel-dir", folder, ROOT)
        wheel = next(Path(folder).glob("*.whl"))
        run(
            *pip, "install", "--target", site, *target.pip_options(), "--only-binary=:all:",
            "--no-compile", "--no-warn-conflicts", "--constraint", ROOT / "constraints.txt",
            f"ternmesh[{extras}] @ {wheel.as_uri()}",
        )  # fmt: skip


def prune(site: Path) -> None:
    """Take away what PRUNED names."""
    for patterns in PRUNED.values():
        for path in [path for pattern in patterns for path in site.glob(pattern)]:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)  # two patterns may name it


def furnish(root: Path, target: Target, interpreter: Path) -> None:
    """Make the packages a virtual environment with our command, and set all modes."""
    prefix = root / PREFIX
    write(prefix / "bin" / "ternmesh", LAUNCHER)
    (prefix / "bin" / "python").symlink_to(interpreter)
    settings = {"home": interpreter.parent, "include-system-site-packages": "false"}
    text = "".join(f"{key} = {value}\n" for key, value in settings.items())
    write(prefix / "pyvenv.cfg", text)
    (prefix / "zoo").symlink_to(target.site.relative_to(PREFIX) / "models" / "zoo")
    (root / "usr" / "bin").mkdir(parents=True)
    (root / "usr" / "bin" / "ternmesh").symlink_to(f"/{PREFIX}/bin/ternmesh")
    for path in root.rglob("*"):
        if not path.is_symlink():
            is_open = path.is_dir() or path.parent == prefix / "bin"
            path.chmod(0o755 if is_open else 0o644)


def write(path: Path, text: str | bytes, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)


@contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """Another name for a file, which gets its own only when it is whole: packing takes minutes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.unfinished")
    try:
        yield new
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
