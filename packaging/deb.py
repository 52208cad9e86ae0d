"""The .deb: the tree with systemd units, a user, /etc/ternmesh, examples and licences."""

import gzip
import hashlib
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from email.parser import HeaderParser
from pathlib import Path

from tree import GLIBC_MINOR, ROOT, Target, package_version, run, source_date, unfinished, write

HERE = Path(__file__).resolve().parent
DOCUMENTS = Path("usr/share/doc/ternmesh")
EXAMPLES = DOCUMENTS / "examples"


def files(root: Path) -> Iterator[Path]:
    """All files below `root` in one order."""
    yield from sorted(p for p in root.rglob("*") if p.is_file() and not p.is_symlink())


def place_of(file: Path) -> Path:
    """Where a file of packaging/systemd lies on a board; drop-ins that few need are examples."""
    if file.suffix in (".sysusers", ".tmpfiles"):
        return Path(f"usr/lib/{file.suffix[1:]}.d/{file.stem}.conf")
    return (EXAMPLES if file.parts[0] == "drop-ins" else Path("usr/lib/systemd/system")) / file


def make_deb(root: Path, target: Target, out: Path, compression: str) -> Path:
    """Add the units, documents and scripts of a .deb to the tree in `root`, and pack it."""
    version, date = package_version(target), source_date()
    for file in files(HERE / "systemd"):
        write(root / place_of(file.relative_to(HERE / "systemd")), file.read_bytes())
    documents = root / DOCUMENTS
    for guide in (ROOT / "docs").glob("*.md"):
        write(documents / guide.name, guide.read_bytes())
    for example in sorted((HERE / "examples").iterdir()):
        write(root / EXAMPLES / example.name, example.read_bytes())
    stamp = datetime.fromtimestamp(date, UTC).strftime("%a, %d %b %Y %H:%M:%S +0000")
    entry = f"ternmesh ({version}) unstable; urgency=medium\n\n  * See changelog.gz.\n\n"
    entry += f" -- The ternmesh authors <ternmesh@localhost>  {stamp}\n"
    for name, text in (
        ("changelog.Debian.gz", entry.encode()),
        ("changelog.gz", (ROOT / "CHANGELOG.md").read_bytes()),
    ):
        write(documents / name, gzip.compress(text, mtime=0))
    write(documents / "copyright", copyright_text(root / target.site, target))
    sums = [
        f"{hashlib.md5(p.read_bytes()).hexdigest()}  {p.relative_to(root)}\n" for p in files(root)
    ]
    size_kib = sum(-(-path.stat().st_size // 1024) for path in files(root))
    write(root / "DEBIAN" / "md5sums", "".join(sums))
    write(root / "DEBIAN" / "control", control_text(target, version, size_kib))
    for script in ("postinst", "prerm", "postrm"):
        write(root / "DEBIAN" / script, (HERE / "debian" / script).read_bytes(), 0o755)
    for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
        folder.chmod(0o755)
    path = out / f"ternmesh_{version}_{target.arch}.deb"
    with unfinished(path) as new:
        run(
            "dpkg-deb", "--build", "--root-owner-group", f"-Z{compression}", root, new.resolve(),
            env={**os.environ, "SOURCE_DATE_EPOCH": str(date)},
        )  # fmt: skip
    return path


def control_text(target: Target, version: str, size_kib: int) -> str:
    """Everything compiled is in the package; only Python and the C and C++ libraries are not."""
    major, minor = target.python.split(".")
    return f"""\
Package: ternmesh
Version: {version}
Architecture: {target.arch}
Maintainer: The ternmesh authors <ternmesh@localhost>
Installed-Size: {size_kib}
Depends: python3 (>= {target.python}~), python3 (<< {major}.{int(minor) + 1}~), adduser, \
libc6 (>= 2.{GLIBC_MINOR}), libstdc++6 (>= 8), zlib1g
Suggests: alsa-utils
Section: science
Priority: optional
Description: boards learn together over links that carry almost nothing
 The programs of a board (node), of a host and of a gateway, with all that they
 need in /opt/ternmesh. Settings belong into /etc/ternmesh; nothing is started
 before they are there.
"""


def copyright_text(site: Path, target: Target) -> str:
    """Whose the files are, and where each licence lies."""
    lines = ["ternmesh is Copyright The ternmesh authors, under the Apache License 2.0:"]
    lines += ["/usr/share/common-licenses/Apache-2.0. What is in models/zoo/fsdd and speech is"]
    lines += ["under CC BY-SA 4.0; ATTRIBUTION.md beside it names its authors.", ""]
    lines += [f"In /{target.site} lie unchanged parts of:", ""]
    for folder in sorted(site.glob("*.dist-info")):
        about = HeaderParser().parsestr((folder / "METADATA").read_text())
        kinds = [
            c.rsplit("::")[-1].strip() for c in about.get_all("Classifier", []) if "License" in c
        ]
        licence = about["License-Expression"] or about["License"] or ", ".join(kinds)
        lines.append(f"{about['Name']} {about['Version']}: {licence.splitlines()[0]}")
        texts = [p for p in files(folder) if re.search("licen|edl-|epl-|notice", str(p).lower())]
        if about["Name"] == "onnxruntime":
            texts = [site / "onnxruntime" / n for n in ("LICENSE", "ThirdPartyNotices.txt")]
        lines += [f"    {path.relative_to(site)}" for path in texts]
    return "\n".join([*lines, ""])
