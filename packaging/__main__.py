"""`./run package`: make what is installed on a board. It needs pip, and dpkg-deb or mmdebstrap.

This folder is no package and is not installed: modules here import each other as scripts do.
"""

import argparse
import platform
import sys
import tempfile
from pathlib import Path

from check import check_installed, check_program, check_unpacked
from deb import make_deb
from machine import prove_machine
from oci import make_oci
from prove import SUITES, prove
from site_pages import make_site
from tree import MACHINES, PYTHONS, ROOT, PackageError, Target, make_tree


def main() -> int:
    """Run the command line of this process, and return its exit code."""
    here = {machine: arch for arch, machine in MACHINES.items()}.get(platform.machine(), "amd64")
    python = ".".join(platform.python_version_tuple()[:2])
    parser = argparse.ArgumentParser("./run package", description="Make what is installed.")
    rows = parser.add_subparsers(dest="what", metavar="COMMAND", required=True)
    summaries = {"tree": "a folder like /", "deb": "a package for apt", "oci": "an image"}
    for name, summary in summaries.items():
        row = rows.add_parser(name, help=summary, description=f"Make {summary}.")
        nargs = "+" if name == "oci" else None
        default = [here] if name == "oci" else here
        row.add_argument("--arch", choices=MACHINES, default=default, nargs=nargs)
        row.add_argument(
            "--python", choices=PYTHONS, default=python if python in PYTHONS else "3.11"
        )
        row.add_argument("--out", type=Path, default=ROOT / "dist", metavar="FOLDER")
    what = "that of the app for Home Assistant"
    rows.choices["oci"].add_argument("--app", action="store_true", help=what)
    rows.choices["deb"].add_argument(
        "--compression", choices=("xz", "zstd", "none"), default="xz", help="xz is the smallest"
    )
    row = rows.add_parser("check", help="try it", description="Let a fleet of what was made learn.")
    row.add_argument("deb", type=Path, metavar="FILE", help="a .deb, or an installed `ternmesh`")
    row.add_argument("--install", action="store_true", help="as root, in a Debian made for it")
    row = rows.add_parser("prove", help="from a bare Debian", description="Let a new Debian learn.")
    row.add_argument("--arch", choices=MACHINES, default=here)
    row.add_argument("--suite", choices=SUITES, default="bookworm")
    row.add_argument("--boot", action="store_true", help="with systemd and the units")
    what = "a whole emulated board (arm64): power cuts, upgrade and roll-back"
    row.add_argument("--machine", action="store_true", help=what)
    row = rows.add_parser("site", help="the documents", description="Make the documents a site.")
    row.add_argument("--out", type=Path, default=ROOT / "build" / "site", metavar="FOLDER")
    options = parser.parse_args()
    try:
        make(options)
    except PackageError as error:
        print(f"package: {error}", file=sys.stderr)
        return 1
    return 0


def make(options: argparse.Namespace) -> None:
    if options.what == "check":
        if options.deb.suffix != ".deb":
            check_program(options.deb)
        else:
            (check_installed if options.install else check_unpacked)(options.deb)
        return
    if options.what == "prove":
        if options.machine:
            prove_machine(options.suite)
        else:
            prove(options.arch, options.suite, boot=options.boot)
        return
    if options.what == "site":
        print(make_site(options.out))
        return
    if options.what == "oci":
        print(make_oci(options.python, options.arch, options.out, app=options.app))
        return
    target = Target(options.arch, options.python)
    if options.what == "tree":
        # To be run here, where the distribution may have another Python.
        is_ours = sys.version.startswith(f"{target.python}.")
        base = Path(sys._base_executable)  # type: ignore[attr-defined]
        make_tree(options.out, target, base if is_ours else None)
        print(options.out)
        return
    with tempfile.TemporaryDirectory() as folder:
        make_tree(Path(folder), target)
        print(make_deb(Path(folder), target, options.out, options.compression))


if __name__ == "__main__":
    sys.exit(main())
