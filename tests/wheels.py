"""Wheels of a checkout, made without a build backend, so that a test needs no network for them."""

import base64
import hashlib
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path


def make_wheel(
    checkout: Path, out: Path, version: str | None = None, changed: Mapping[str, str] | None = None
) -> Path:
    """A wheel with the packages of `checkout`; `changed` has other texts for some of its files."""
    settings = tomllib.loads((checkout / "pyproject.toml").read_text())
    project = settings["project"]
    version = version or project["version"]
    info = f"ternmesh-{version}.dist-info"
    packages = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    files = {
        str(path.relative_to(checkout)): path.read_bytes()
        for package in packages
        for path in sorted((checkout / package).rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    }
    files |= {name: text.encode() for name, text in (changed or {}).items()}
    scripts = "".join(f"{name} = {place}\n" for name, place in project["scripts"].items())
    texts = {
        "METADATA": f"Metadata-Version: 2.1\nName: ternmesh\nVersion: {version}\n"
        f"Requires-Python: {project['requires-python']}\n",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "entry_points.txt": f"[console_scripts]\n{scripts}",
    }
    files |= {f"{info}/{name}": text.encode() for name, text in texts.items()}
    record = ""
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(content)}\n"
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"ternmesh-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    return path
