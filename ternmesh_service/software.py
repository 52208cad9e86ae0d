"""A version of ternmesh as a .deb: does it fit here, and what goes back to before?"""

import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ternmesh_service.rollback import Failed, dpkg, run

NAME = "ternmesh"
DEB_FIELDS = "${Package}\n${Version}\n${Architecture}\n${Installed-Size}\n${Depends}"
PYTHON = "{}.{}".format(*sys.version_info)


@dataclass(frozen=True, slots=True)
class Package:
    """A file that fits this machine."""

    path: Path
    version: str
    installed: str  # the version that it replaces


def read_package(path: Path) -> Package:
    """What is in a .deb; Failed where it is damaged, is not for this machine, or is too old."""
    try:
        run("dpkg-deb", "--contents", path)  # it reads all
        about = run("dpkg-deb", "--show", f"--showformat={DEB_FIELDS}", path).split("\n", 4)
    except Failed as error:
        raise Failed(f"{path.name} is damaged, or no .deb: copy it again ({error})") from error
    name, version, architecture, size, depends = about
    ours = run("dpkg", "--print-architecture").strip()
    _require(path, name == NAME, f"is {name}, and not {NAME}")
    _require(path, architecture in (ours, "all"), f"is for {architecture}, and this is {ours}")
    found = re.search(r"python3 \(>= (\d+\.\d+)", depends)
    python = found[1] if found else PYTHON
    _require(path, python == PYTHON, f"is for Python {python}, and here is {PYTHON}")
    try:
        versions = run("dpkg-query", "--show", "--showformat=${Version} ${Installed-Size}", NAME)
    except Failed as error:
        raise Failed(
            f"{NAME} was not installed from a .deb here: upgrade it with pip ({error})"
        ) from error
    installed, _, installed_size = versions.partition(" ")
    try:
        run("dpkg", "--compare-versions", version, "ge", installed)
    except Failed as error:
        raise Failed(
            f"{path.name} is {version}, and {installed} here is newer: an older one may not read "
            "its state; see docs/backup.md"
        ) from error
    needed = (int(size or 0) + 2 * int(installed_size or 0)) << 10
    free = shutil.disk_usage(path.parent).free
    sizes = f"{needed >> 20} MiB with the way back, and {free >> 20} MiB are free"
    _require(path, needed <= free, f"needs {sizes}: make room")
    return Package(path, version, installed)


def keep(package: Package, folder: Path) -> dict[str, Any]:
    """Keep what is installed in `folder`. Returns what a marker says of it."""
    return {"old": package.installed, "new": package.version, "previous": str(_repack(folder))}


def install(package: Package) -> None:
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
            shutil.copy2(source, target, follow_symlinks=False)
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
