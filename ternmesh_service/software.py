"""A version of ternmesh as a file, .deb or .whl: does it fit here, and what goes back to before?"""

import importlib.util
import json
import os
import re
import shutil
import sys
import zipfile
import zlib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from ternmesh_service.rollback import Failed, copy, dpkg, run

NAME = "ternmesh"
DEB_FIELDS = "${Package}\n${Version}\n${Architecture}\n${Installed-Size}\n${Depends}"
PYTHON = "{}.{}".format(*sys.version_info)


@dataclass(frozen=True, slots=True)
class Package:
    """A file that fits this machine."""

    path: Path
    version: str
    installed: str  # the version that it replaces
    needed: int  # bytes on the disk, with those of the way back
    names: tuple[str, ...] = ()  # of a wheel: what it puts into site-packages


def read_package(path: Path) -> Package:
    """What is in a file; Failed where it is damaged, is not for this machine, or is too old."""
    package = _read_wheel(path) if path.suffix == ".whl" else _read_deb(path)
    free = shutil.disk_usage(path.parent).free
    if package.needed > free:
        raise Failed(
            f"{path.name} needs {package.needed >> 20} MiB with the way back, and {free >> 20} MiB "
            "are free: make room"
        )
    return package


def _read_deb(path: Path) -> Package:
    try:
        run("dpkg-deb", "--contents", path)  # it reads all
        about = run("dpkg-deb", "--show", f"--showformat={DEB_FIELDS}", path).split("\n", 4)
    except Failed as error:
        raise Failed(f"{path.name} is damaged, or no .deb: copy it again ({error})") from error
    name, version, architecture, size, depends = about
    ours = run("dpkg", "--print-architecture").strip()
    _require(path, name == NAME, f"is {name}, and not {NAME}")
    _require(path, architecture in (ours, "all"), f"is for {architecture}, and this is {ours}")
    python = re.search(r"python3 \(>= (\d+\.\d+)", depends)
    _require(
        path, python is None or python[1] == PYTHON,
        f"is for Python {python and python[1]}, and here is {PYTHON}",
    )  # fmt: skip
    try:
        versions = run("dpkg-query", "--show", "--showformat=${Version} ${Installed-Size}", NAME)
    except Failed as error:
        raise Failed(f"{NAME} was not installed from a .deb here: give a .whl ({error})") from error
    installed, _, installed_size = versions.partition(" ")
    try:
        run("dpkg", "--compare-versions", version, "ge", installed)
    except Failed as error:
        raise _older(path, version, installed) from error
    return Package(path, version, installed, (int(size or 0) + 2 * int(installed_size or 0)) << 10)


def _read_wheel(path: Path) -> Package:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = tuple({name.split("/")[0] for name in archive.namelist()})
            size = sum(entry.file_size for entry in archive.infolist())
            damaged = archive.testzip()
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError) as error:
        raise Failed(f"{path.name} is damaged, or no wheel: copy it again ({error})") from error
    _require(path, damaged is None, "is damaged: copy it again")
    if f"{NAME}/__init__.py" not in map(str, metadata.files(NAME) or ()):
        raise Failed(f"{NAME} was not installed from a wheel here: give a .deb, or use git")
    if importlib.util.find_spec("pip") is None:
        raise Failed(f"pip is not in {sys.prefix}: install it there (`python -m ensurepip`)")
    from pip._vendor.packaging.version import Version

    # pip refuses a wheel for another system or Python.
    [planned] = json.loads(_pip("--quiet", "--dry-run", "--report", "-", path))["install"]
    name, version = planned["metadata"]["name"], planned["metadata"]["version"]
    _require(path, name == NAME, f"is {name}, and not {NAME}")
    installed = metadata.version(NAME)
    if Version(version) < Version(installed):
        raise _older(path, version, installed)
    return Package(path, version, installed, 3 * size, entries)


def _pip(*options: object) -> str:
    pip = (sys.executable, "-I", "-m", "pip", "--disable-pip-version-check", "install")
    return run(*pip, "--no-index", "--no-deps", "--force-reinstall", *options)


def keep(package: Package, folder: Path) -> dict[str, Any]:
    """Keep what is installed in `folder`. Returns what a marker says of it."""
    about = {"old": package.installed, "new": package.version, "previous": None}
    if package.path.suffix != ".whl":
        return {**about, "previous": str(_repack(folder))}
    site = Path(str(metadata.distribution(NAME).locate_file("")))
    parts = [file.parts for file in metadata.files(NAME) or ()]
    names = {p[0] if p[0] != ".." else os.path.normpath(site.joinpath(*p)) for p in parts}
    kept = {str(site / name): str(folder / f"{number}") for number, name in enumerate(names)}
    for name, place in kept.items():
        copy(Path(name), Path(place))
    added = [str(site / name) for name in set(package.names) - names]
    return {**about, "files": kept, "added": added, "site": str(site)}


def install(package: Package) -> None:
    """Replace what is installed."""
    if package.path.suffix == ".whl":
        _pip(package.path)
    else:
        dpkg("--install", package.path)


def _repack(folder: Path) -> Path:
    """The installed .deb, made again from what dpkg knows and the files, as dpkg-repack does."""
    root = Path(os.environ.get("DPKG_ROOT", "/"))
    tree, deb = folder / "tree", folder / "previous.deb"
    control = tree / "DEBIAN"
    control.mkdir(parents=True)
    control.chmod(0o755)  # whatever the umask is: dpkg-deb asks for it
    for name in run("dpkg-query", "--listfiles", NAME).splitlines():
        source, target = root / name.lstrip("/"), tree / name.lstrip("/")
        if source.is_dir() and not source.is_symlink():
            target.mkdir(exist_ok=True)
            shutil.copymode(source, target)
        elif os.path.lexists(source):  # a setting of dpkg may leave out documents
            copy(source, target)
    about = run("dpkg-query", "--status", NAME).splitlines(keepends=True)
    left_out = ("Status:", "Config-Version:")
    texts = {"control": "".join(line for line in about if not line.startswith(left_out))}
    for name in run("dpkg-query", "--control-list", NAME).split():
        texts[name] = run("dpkg-query", "--control-show", NAME, name)
    for name, text in texts.items():
        (control / name).write_text(text)
        (control / name).chmod(0o755)
    run("dpkg-deb", "--build", "--root-owner-group", "-Zgzip", "-z1", tree, deb)
    shutil.rmtree(tree)
    return deb


def _require(path: Path, holds: bool, else_it: str) -> None:
    if not holds:
        raise Failed(f"{path.name} {else_it}: nothing was changed")


def _older(path: Path, version: str, installed: str) -> Failed:
    return Failed(
        f"{path.name} is {version}, and {installed} here is newer: an older one may not read its "
        "state; see docs/backup.md"
    )
