"""The documents as a site: README is its first page, and links lead where they lead in a clone."""

import re
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from tree import ROOT, PackageError

SETTINGS = "mkdocs.yml"
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)")


def reached() -> set[Path]:
    """README and every file that links lead to from it, relative to ROOT. PackageError."""
    found: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        path = waiting.pop()
        if not (path.is_file() and path.is_relative_to(ROOT)):
            raise PackageError(f"a link leads to {path}, which is no file here")
        if path.relative_to(ROOT) in found:
            continue
        found.add(path.relative_to(ROOT))
        if path.suffix == ".md":
            targets = LINK.findall(path.read_text(encoding="utf-8"))
            waiting.extend((path.parent / target).resolve() for target in targets)
    return found


def make_site(out: Path) -> Path:
    """Build the site in `out`, in place of an older one. PackageError: also for a wrong link."""
    if find_spec("zensical") is None:
        raise PackageError("zensical is not installed: pip install 'ternmesh[docs]'")
    if out.exists() and not (out / "search.json").exists():
        raise PackageError(f"{out} is no site: move it away, or name another folder")
    with tempfile.TemporaryDirectory() as folder:
        stage = Path(folder)
        shutil.copy(ROOT / SETTINGS, stage)
        for name in reached():
            copy = stage / "build" / "pages" / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy)
        command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file"]
        done = subprocess.run(
            [*command, str(stage / SETTINGS)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise PackageError(f"the site has errors:\n{done.stdout}{done.stderr}")
        shutil.rmtree(out, ignore_errors=True)
        shutil.move(stage / "build" / "site", out)
    return out
