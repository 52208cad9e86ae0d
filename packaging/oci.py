"""An OCI image for several architectures, written without a registry, a daemon or emulation.

Its first layer is Python on a small Debian, unpacked by mmdebstrap; its second is the tree. That of
the app for Home Assistant has the folder home-assistant as well, and its labels.
"""

import gzip
import hashlib
import io
import json
import os
import re
import tarfile
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from tree import (
    EXTRAS,
    PREFIX,
    PYTHONS,
    STATE,
    PackageError,
    Target,
    make_tree,
    package_version,
    project_version,
    run,
    source_date,
    unfinished,
    write,
)

UID = 990  # of the image's user; a .deb takes the number that adduser gives
APP = Path(__file__).with_name("home-assistant")
APP_ARCHS = {"amd64": "amd64", "arm64": "aarch64"}  # Home Assistant's names
APP_FILES = {"start.py": PREFIX / "home-assistant/start.py", "arecord": Path("usr/bin/arecord")}


def make_oci(python: str, archs: Sequence[str], out: Path, *, app: bool = False) -> Path:
    """An OCI image archive for several architectures: a small Debian, and the tree on it.

    With `app`, it is that of the app for Home Assistant, tagged with the version of config.yaml.
    """
    release = PYTHONS[python]
    if release is None:
        raise PackageError(f"no Debian has Python {python}: give --python 3.11 or 3.13")
    date = source_date()
    blobs: dict[str, bytes] = {}
    manifests = []
    for arch in archs:
        target = Target(arch, python)
        layers = [base_layer(target, release, date, app=app), tree_layer(target, date, app=app)]
        config = {
            "architecture": arch,
            "os": "linux",
            "created": datetime.fromtimestamp(date, UTC).isoformat(),
            "config": app_config(arch) if app else program_config(),
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha256(x)}" for x in layers]},
        }
        parts = [("config", encoded(config))]
        parts += [("layer", gzip.compress(layer, 6, mtime=0)) for layer in layers]
        found = [add_blob(blobs, kind, content) for kind, content in parts]
        manifest = {"schemaVersion": 2, "mediaType": media("manifest"), "config": found[0]}
        described = add_blob(blobs, "manifest", encoded({**manifest, "layers": found[1:]}))
        manifests.append({**described, "platform": {"architecture": arch, "os": "linux"}})
    version = package_version(Target(archs[0], python)).replace("~", "-").replace("+", "-")
    name, tag = ("ternmesh-app", project_version()) if app else ("ternmesh", version)
    # One image that is an index: tools refuse an archive with several images.
    index = {"schemaVersion": 2, "mediaType": media("index")}
    image = add_blob(blobs, "index", encoded({**index, "manifests": manifests}))
    image["annotations"] = {"org.opencontainers.image.ref.name": f"{name}:{tag}"}
    blobs["index.json"] = encoded({**index, "manifests": [image]})
    blobs["oci-layout"] = encoded({"imageLayoutVersion": "1.0.0"})
    path = out / f"{name}_{version}.oci.tar"
    with unfinished(path) as new, tarfile.open(new, "w") as archive:
        for name, content in sorted(blobs.items()):
            archive.addfile(entry(name, date, size=len(content)), io.BytesIO(content))
    return path


def program_config() -> dict[str, object]:
    return {
        "User": str(UID),
        "Entrypoint": [f"/{PREFIX}/bin/ternmesh"],
        "Env": ["PATH=/usr/bin:/bin", f"HOME=/{STATE}"],
        "WorkingDir": f"/{STATE}",
        "Volumes": {f"/{STATE}": {}},
    }


def app_config(arch: str) -> dict[str, object]:
    """The Supervisor gives /data and the sound to root."""
    labels = {"type": "app", "version": project_version(), "arch": APP_ARCHS[arch]}
    return {
        "Entrypoint": [f"/{PREFIX}/bin/python", "-I", f"/{APP_FILES['start.py']}"],
        "Env": ["PATH=/usr/bin:/bin", "HOME=/root"],
        "WorkingDir": "/",
        "Labels": {f"io.hass.{key}": value for key, value in labels.items()},
    }


def base_layer(target: Target, release: str, date: int, *, app: bool = False) -> bytes:
    """Python, its libraries and the public certificates of a Debian, unpacked but not set up."""
    packages = "--include=base-files,ca-certificates,libstdc++6,python3"
    packages += ",pulseaudio-utils" if app else ""
    out, certificates = io.BytesIO(), []
    unused = r"\./(dev|boot|media|mnt|var/(cache|lib/apt|log)|usr/share/(man|locale|info))/."
    unused += r"|\./usr/share/doc/[^/]+/(?!copyright)."
    with ExitStack() as stack:
        new = stack.enter_context(tarfile.open(fileobj=out, mode="w"))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        made = Path(folder) / "root.tar"
        run(
            "mmdebstrap", "--quiet", "--variant=extract", f"--arch={target.arch}", packages,
            release, made, env={**os.environ, "SOURCE_DATE_EPOCH": str(date)},
        )  # fmt: skip
        old = stack.enter_context(tarfile.open(made))
        for member in old:
            content = old.extractfile(member) if member.isreg() else None
            if re.match(unused, member.name) or member.isdev():
                continue
            if content and member.name.endswith(".crt"):
                certificates.append(content.read())
                content.seek(0)
            new.addfile(member, content)
        bundle = b"".join(sorted(certificates))
        name = "./etc/ssl/certs/ca-certificates.crt"
        new.addfile(entry(name, date, size=len(bundle)), io.BytesIO(bundle))
    return out.getvalue()


def tree_layer(target: Target, date: int, *, app: bool = False) -> bytes:
    """The tree with byte code: the image may be read-only, and a container has no postinst."""
    out = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=out, mode="w") as layer:
        root = Path(folder)
        make_tree(root, target, extras=f"{EXTRAS},wake-word" if app else EXTRAS)
        for name, place in APP_FILES.items() if app else ():
            write(root / place, (APP / name).read_bytes(), (APP / name).stat().st_mode & 0o755)
        run(
            f"python{target.python}", "-m", "compileall", "-q", "--invalidation-mode",
            "unchecked-hash", "-s", root, "-p", "/", root / PREFIX,
        )  # fmt: skip
        (root / STATE).mkdir(parents=True)
        for path in sorted(root.rglob("*")):
            name = str(path.relative_to(root))
            member = layer.gettarinfo(path, name)
            new = entry(name, date, kind=member.type, size=member.size, link=member.linkname)
            new.mode = member.mode
            new.uid = new.gid = UID if name == STATE else 0
            layer.addfile(new, path.open("rb") if member.isreg() else None)
    return out.getvalue()


def entry(
    name: str, date: int, *, kind: bytes = tarfile.REGTYPE, size: int = 0, link: str = ""
) -> tarfile.TarInfo:
    """A member of a tar file that tells nothing of the builder."""
    member = tarfile.TarInfo(name)
    member.type, member.size, member.linkname, member.mtime = kind, size, link, date
    return member


def media(kind: str) -> str:
    prefix = "application/vnd.oci.image"
    ends = {
        "layer": "layer.v1.tar+gzip",
        "config": "config.v1+json",
        "manifest": "manifest.v1+json",
    }
    return f"{prefix}.{ends.get(kind, f'{kind}.v1+json')}"


def add_blob(blobs: dict[str, bytes], kind: str, content: bytes) -> dict[str, object]:
    digest = sha256(content)
    blobs[f"blobs/sha256/{digest}"] = content
    return {"mediaType": media(kind), "digest": f"sha256:{digest}", "size": len(content)}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def encoded(content: object) -> bytes:
    return json.dumps(content, sort_keys=True).encode()
