"""The .deb around a small tree in place of the real one: CI builds and tries that in .ci/run."""

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

import deb as deb_module
import pytest
from deb import EXAMPLES, files, make_deb, place_of
from tree import PREFIX, ROOT, PackageError, Target, debian_version, furnish, prune, source_date

from edge.config import read_node_config
from edge.gateway.service import read_gateway_config
from host.config import read_host_config

THIS_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
ALLOWED = (
    "opt/ternmesh/",
    "usr/bin/ternmesh",
    "usr/lib/systemd/system/ternmesh-",
    "usr/lib/sysusers.d/ternmesh.conf",
    "usr/lib/tmpfiles.d/ternmesh.conf",
    "usr/share/doc/ternmesh/",
)
START = "import sys\ndef start():\n    print({word!r}, *sys.path)\n    return 0\n"
METADATA = "Metadata-Version: 2.4\nName: small\nVersion: 1\nLicense-Expression: MIT\n"


def small_tree(
    root: Path, python: str = "3.11", interpreter: str = "/usr/bin/python3.11"
) -> Target:
    """A tree with one module and what must be left out of it."""
    target = Target("arm64", python)
    site = root / target.site
    texts = {
        "ternmesh_cli/__init__.py": "",
        "ternmesh_cli/__main__.py": START.format(word="ours"),
        "small-1.dist-info/METADATA": METADATA,
        "small-1.dist-info/licenses/LICENSE": "MIT",
        "small-1.dist-info/direct_url.json": "{}",
        "numpy/lib/tests/test_io.py": "",
        "onnxruntime/capi/libonnxruntime.so.1.31.1": "",
        "bin/f2py": "",
    }
    for name, text in texts.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
        (site / name).chmod(0o640)
    prune(site)
    furnish(root, target, Path(interpreter))
    return target


@pytest.fixture(scope="module")
def deb(tmp_path_factory) -> Path:
    if shutil.which("dpkg-deb") is None:
        pytest.skip("dpkg-deb is not installed: only Debian and Ubuntu have it")
    folder = tmp_path_factory.mktemp("deb")
    return make_deb(folder / "root", small_tree(folder / "root"), folder / "out", "none")


@pytest.mark.parametrize("fails", [False, True])
def test_a_package_has_its_name_only_when_it_is_whole(tmp_path, monkeypatch, fails):
    seen: list[str] = []

    def pack(*command, **_):
        seen.extend(path.name for path in (tmp_path / "out").glob("*.deb"))
        Path(command[-1]).write_bytes(b"half")
        if fails:
            raise PackageError("no room on the disk")

    monkeypatch.setattr(deb_module, "run", pack)
    target = small_tree(tmp_path / "root")
    with pytest.raises(PackageError) if fails else nullcontext():
        make_deb(tmp_path / "root", target, tmp_path / "out", "none")
    assert seen == []
    assert len(list((tmp_path / "out").iterdir())) == (0 if fails else 1)


def members(deb: Path) -> dict[str, tarfile.TarInfo]:
    content = subprocess.check_output(["dpkg-deb", "--fsys-tarfile", deb])
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        return {member.name.removeprefix("./"): member for member in archive}


def test_control_says_which_python_and_machine(deb):
    def field(name: str) -> str:
        return subprocess.check_output(["dpkg-deb", "--field", deb, name], text=True).strip()

    assert field("Architecture") == "arm64"
    assert "python3 (>= 3.11~), python3 (<< 3.12~)" in field("Depends")
    assert field("Version").endswith("+py311")
    assert field("Version") in deb.name
    assert int(field("Installed-Size")) > 0


def test_only_our_folders_root_and_no_byte_code(deb):
    for name, member in members(deb).items():
        assert (member.uname, member.gname) == ("root", "root"), name
        assert member.mtime <= source_date(), name
        if member.isdir():
            assert member.mode == 0o755, name
            continue
        assert name.startswith(ALLOWED)
        assert not name.endswith((".pyc", ".pyi"))
        is_program = name == "opt/ternmesh/bin/ternmesh"
        assert member.issym() or member.mode == (0o755 if is_program else 0o644), name
    for left_out in ("tests", "libonnxruntime.so", "f2py", "direct_url.json"):
        assert not [name for name in members(deb) if left_out in name]


def test_every_unit_and_example_is_in_the_package(deb):
    names = members(deb)
    folder = ROOT / "packaging" / "systemd"
    for file in (path.relative_to(folder) for path in folder.rglob("*") if path.is_file()):
        assert str(place_of(file)) in names
    readers = {"host": read_host_config, "node": read_node_config, "gateway": read_gateway_config}
    for name, read in readers.items():
        assert f"{EXAMPLES}/{name}.toml" in names
        read(ROOT / "packaging" / "examples" / f"{name}.toml")


def test_licences_are_collected_and_sums_are_right(deb, tmp_path):
    subprocess.run(["dpkg-deb", "--raw-extract", deb, tmp_path / "raw"], check=True)
    text = (tmp_path / "raw/usr/share/doc/ternmesh/copyright").read_text()
    assert "small 1: MIT\n    small-1.dist-info/licenses/LICENSE" in text
    sums = (tmp_path / "raw/DEBIAN/md5sums").read_text().splitlines()
    shutil.rmtree(tmp_path / "raw/DEBIAN")
    assert len(sums) == len(list(files(tmp_path / "raw")))
    for line in sums:
        digest, name = line.split("  ")
        assert hashlib.md5((tmp_path / "raw" / name).read_bytes()).hexdigest() == digest


def test_the_same_tree_makes_the_same_bytes(deb, tmp_path):
    old = os.umask(0o077)
    try:
        again = make_deb(tmp_path / "other", small_tree(tmp_path / "other"), tmp_path, "none")
    finally:
        os.umask(old)
    assert again.read_bytes() == deb.read_bytes()


def test_a_release_is_newer_than_what_came_before_it():
    versions = [
        debian_version("0.2.0.dev1", None, 0),
        debian_version("0.2.0", "0123456789ab", 86_400),
        debian_version("0.2.0", "fedcba987654", 172_800),
        debian_version("0.2.0rc1", None, 0),
        debian_version("0.2.0", None, 0),
    ]
    assert versions[1] == "0.2.0~git197001020000.0123456789ab"
    if shutil.which("dpkg") is None:
        pytest.skip("dpkg is not installed: only Debian and Ubuntu have it")
    for older, newer in pairwise(versions):
        subprocess.run(["dpkg", "--compare-versions", older, "lt", newer], check=True)


def test_the_command_takes_its_modules_from_its_own_folder_only(tmp_path):
    base = str(Path(sys._base_executable))  # type: ignore[attr-defined]
    small_tree(tmp_path / "root", THIS_PYTHON, base)
    for place in ("path", "here"):
        (tmp_path / place / "ternmesh_cli").mkdir(parents=True)
        (tmp_path / place / "ternmesh_cli" / "__init__.py").touch()
        (tmp_path / place / "ternmesh_cli" / "__main__.py").write_text(START.format(word="theirs"))
    programs = tmp_path / "root" / PREFIX / "bin"
    shebang = (programs / "ternmesh").read_text().splitlines()[0]
    assert shebang == f"#!/{PREFIX}/bin/python -I"
    answer = subprocess.check_output(
        [programs / "python", "-I", programs / "ternmesh"],
        env={"PYTHONPATH": str(tmp_path / "path")},
        cwd=tmp_path / "here",
        text=True,
    )
    word, *paths = answer.split()
    assert word == "ours"
    packages = [path for path in paths if path.endswith("-packages")]
    assert packages == [str(tmp_path / "root" / Target("arm64", THIS_PYTHON).site)]


def purge(root: Path) -> None:
    """Run postrm as dpkg does, with /etc and /var below `root`."""
    text = (ROOT / "packaging" / "debian" / "postrm").read_text()
    for name in ("etc", "var"):
        text = text.replace(f"/{name}/", f"{root}/{name}/")
    text = text.replace("/run/systemd", str(root)).replace("deluser", "true")
    subprocess.run(["sh", "-c", text, "postrm", "purge"], check=True)


@pytest.mark.parametrize("asked", [False, True])
def test_a_purge_keeps_private_keys_unless_asked(tmp_path, asked):
    identity = tmp_path / "var/lib/ternmesh/node/identity"
    identity.parent.mkdir(parents=True)
    identity.touch()
    (tmp_path / "etc/ternmesh").mkdir(parents=True)
    if asked:
        (tmp_path / "etc/ternmesh/purge-state").touch()
    purge(tmp_path)
    assert identity.exists() is not asked
    assert not (tmp_path / "etc/ternmesh").exists()
