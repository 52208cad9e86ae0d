"""`ternmesh release`: make, sign, check, install and publish releases of a model."""

import argparse
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ternmesh.config import ConfigError
from ternmesh.errors import SecurityError, WireError
from ternmesh.release import MANIFEST, MANIFEST_MAX, SIGNATURES, SIGNATURES_MAX
from ternmesh.security import signatures
from ternmesh_cli import keys
from ternmesh_cli.process import Subcommands, add_config, add_json, add_option, number, path, real
from ternmesh_service.config_file import package_folder
from ternmesh_service.control_socket import INSTALLED, PUBLISHED, ControlError
from ternmesh_service.release_files import entry_of, pack_folder
from ternmesh_store import files

if TYPE_CHECKING:
    from edge.config import NodeConfig
    from edge.releases.store import Releases
    from ternmesh.release import ReleaseManifest, Verify

VERSION_MAX = (1 << 32) - 1
UNSIGNED = "the signature of this release is not checked"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    rows = Subcommands(parser)
    make = rows.add("make", "write a model package as an unsigned release", _make)
    make.add_argument("package", type=Path, metavar="PACKAGE", help="a shipped one or a folder")
    make.add_argument("--out", type=path, required=True, metavar="DIR", help="a new folder")
    for option, parse, what in (
        ("--version", number(1, VERSION_MAX), "greater than the last one"),
        ("--loss-max", real(1e-6, 4000.0), "on a board's held-out data"),
        ("--latency-max-ms", number(1, VERSION_MAX), "of one step on a board"),
    ):
        make.add_argument(option, type=parse, required=True, help=what)
    what = "boards that have another front take it, and lose the samples they have labelled"
    make.add_argument("--new-front", action="store_true", help=what)
    row = rows.add("sign", "sign a release with the key of the host or of another signer", _sign)
    _add_release(row)
    add_signer(row)
    check = rows.add("check", "check a release and run its first steps here", _check)
    _add_release(check)
    what = "also check its signatures: host.toml, or that of any end of the fleet"
    check.add_argument("--config", type=Path, metavar="FILE", help=what)
    add_option(check, "--memory-mib", number(16, 65_536), 512, "limit of the first steps")
    install = rows.add("install", "give a release to the board of a configuration", _install)
    _add_release(install)
    add_config(install, "node.toml")
    publish = rows.add("publish", "send a release to all boards over the link", _publish)
    _add_release(publish)
    add_config(publish, "host.toml")
    what = "share of boards that try it before all others"
    add_option(publish, "--canary", real(0.0, 1.0), 0.1, what)
    for name, what in (
        ("progress", "show how far each board is with the published release"),
        ("withdraw", "offer the published release no more; boards that run it keep it"),
    ):
        row = rows.add(name, what, _ask_host)
        row.set_defaults(asked=name)
        add_config(row, "host.toml")
        add_json(row)


def add_signer(parser: argparse.ArgumentParser) -> None:
    """The options that `sign` reads."""
    add_config(parser, "host.toml; with --identity that of any end, whose [security] names signers")
    what = "a signer's private identity, instead of the host's"
    parser.add_argument("--identity", type=Path, metavar="FILE", help=what)


def _add_release(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("release", type=Path, metavar="RELEASE", help="folder of a release")


def _make(arguments: argparse.Namespace) -> int:
    from edge.releases.store import make_release

    limits = (arguments.loss_max, arguments.latency_max_ms / 1000)
    package: Path = arguments.package
    if not package.is_dir():
        package = package_folder(str(package), "PACKAGE")
    manifest = make_release(
        package, arguments.out, arguments.version, limits, new_front=arguments.new_front
    )
    print(f"{arguments.out}: {_named(manifest)}, not signed")
    return 0


def _sign(arguments: argparse.Namespace) -> int:
    from edge.files import read_file
    from edge.releases.store import Releases, accept_unsigned

    folder = arguments.release
    manifest = Releases(folder.parent, accept_unsigned).read(folder)
    content = read_file(folder / MANIFEST, MANIFEST_MAX)
    sign(arguments, folder / SIGNATURES, content, _named(manifest), signatures.RELEASE)
    return 0


def sign(
    arguments: argparse.Namespace, path: Path, content: bytes, named: str, domain: str
) -> None:
    """Add the signature of the host, or of another signer, for a content to those in `path`."""
    from edge.errors import ModelError
    from edge.files import read_optional
    from ternmesh_service.identity_file import read_identity_file

    if arguments.identity is None:
        own, fleet = keys.host_of(arguments.config)
        quantum = signatures.own_quantum(fleet.signers, own)
    else:
        own = read_identity_file(arguments.identity)
        fleet = keys.fleet_of(arguments.config)
        quantum = None  # only the host has a post-quantum key
    signers = fleet.signers
    if own.public.verify not in [key.verify for key in signers.keys]:
        raise SecurityError(f"{own.public.name} is none of security.signers in {arguments.config}")
    before = read_optional(path, SIGNATURES_MAX) or b""
    signed = signatures.sign_release(own, fleet.name, content, signers, before, quantum, domain)
    try:
        files.replace_file(path, signed)
    except OSError as error:
        raise ModelError(
            f"cannot write {path} ({error.strerror}): check the folder and the disk"
        ) from error
    print(f"{named} is signed by {own.public.name} {own.public.fingerprint.hex()}")
    if len(signers.keys) > 1:
        count = signatures.signatures_of(signers, fleet.name, content, signed, domain)
        total = len(signers.keys)
        print(f"{count} of {total} signers have signed, and {signers.needed} are needed")


def sign_software(arguments: argparse.Namespace) -> int:
    """Add a signature for a version of ternmesh to those beside it in FILE.sig."""
    path, digest = arguments.file, entry_of(arguments.file).sha256
    sign(arguments, _signature_file(path), digest, path.name, signatures.SOFTWARE)
    return 0


def check_software(path: Path, digest: bytes, config: Path) -> None:
    """SecurityError unless the fleet of this configuration has signed this SHA-256 of `path`."""
    file = _signature_file(path)
    if not file.exists():
        raise SecurityError(
            f"{file} is missing: the owner of the fleet makes it with `ternmesh upgrade sign`"
        )
    fleet = keys.fleet_of(config)
    try:
        signed = files.read_file(file, SIGNATURES_MAX)
        signatures.verify_release(fleet.signers, fleet.name, digest, signed, signatures.SOFTWARE)
    except WireError as error:
        raise SecurityError(f"{path} is not signed by this fleet, or damaged ({error})") from error


def _signature_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.sig")


def _check(arguments: argparse.Namespace) -> int:
    from edge.releases.store import Releases, accept_unsigned, load_release
    from edge.releases.trial import try_model
    from ternmesh.release import LATENCY_UNIT, LOSS_UNIT

    folder = arguments.release
    verify = accept_unsigned if arguments.config is None else _signed_in(arguments.config)
    manifest = Releases(folder.parent, verify).read(folder)
    load_release(folder, manifest)
    latency_s = try_model(folder, memory_mib=arguments.memory_mib)
    size = sum(entry.size for entry in manifest.files)
    print(f"{_named(manifest)}, model {manifest.model.hex()[:16]}, {size:,} bytes")
    latency_max_ms = manifest.latency_max * LATENCY_UNIT * 1e3
    print(f"a step takes {latency_s * 1e3:.1f} ms here; a board may take {latency_max_ms:.0f} ms")
    print(f"a loss of {manifest.loss_max * LOSS_UNIT:g} is allowed on a board's held-out data")
    if arguments.config is None:
        print(f"{UNSIGNED}: name a --config", file=sys.stderr)
    else:
        print(f"enough signers of the fleet in {arguments.config} have signed it")
    return 0


def _install(arguments: argparse.Namespace) -> int:
    config, releases = _board(arguments.config)
    manifest = releases.install(arguments.release)
    if config.releases.insecure:
        print(UNSIGNED, file=sys.stderr)
    answer = None
    with suppress(ControlError):  # a node that is busy sees the release at its next start
        answer = keys.read(arguments.config).ask({INSTALLED: "survey"})
    when = "at its next start" if answer is None else "now"
    print(f"{_named(manifest)} is installed: the board tries it {when}")
    return 0


def _publish(arguments: argparse.Namespace) -> int:
    from edge.releases.store import Releases, load_release
    from host.releases import FOLDER, NEW, REFUSED

    host, release = _host(arguments.config), arguments.release
    manifest = Releases(release.parent, _signed_in(arguments.config)).read(release)
    load_release(release, manifest)
    folder = host.folder / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    files.replace_file(folder / NEW, pack_folder(release))
    files.replace_file(folder / f"{NEW}.json", str(arguments.canary).encode())
    answer = host.ask({PUBLISHED: "publish"})
    if answer is None:
        print(f"{_named(manifest)} waits for the next start of the host")
    elif answer["said"].startswith(REFUSED):
        raise ControlError(answer["said"])
    else:
        print(answer["said"])
        if manifest.new_front:
            boards = (host.ask({}) or {}).get("nodes", ())
            lost = sum(board["samples"] for board in boards)
            print(f"boards with another front lose their labelled samples: up to {lost}")
    return 0


def _ask_host(arguments: argparse.Namespace) -> int:
    from ternmesh_cli.status_text import published
    from ternmesh_service.status import PublishedRelease, from_json

    answer = _host(arguments.config).ask({PUBLISHED: arguments.asked})
    if answer is None:
        raise ControlError("the host does not run: start it first")
    found = answer["release"]
    release = None if found is None else from_json(PublishedRelease, found)
    print(json.dumps(found) if arguments.json else "\n".join(published(release)))
    return 0


def _host(path: Path) -> keys.End:
    host = keys.read_host(path)
    content = keys.read_end(path)
    if content["link"].get("radios") and not content.get("releases", {}).get("radio_bytes_s"):
        raise ConfigError(
            "releases.radio_bytes_s is missing: gateways do not tell what airtime they have, so "
            "write how many bytes a second their slowest radio may send (`ternmesh radio estimate`)"
        )
    return host


def _board(path: Path) -> "tuple[NodeConfig, Releases]":
    """The configuration of a node, and its releases, which its fleet's host must have signed."""
    from edge.config import read_node_config
    from edge.releases.store import Releases, accept_unsigned

    config = read_node_config(path)
    if config.releases.dir is None:
        raise ConfigError(f"{path} has no releases.dir: this board takes no releases")
    verify = accept_unsigned if config.releases.insecure else _signed_in(path)
    return config, Releases(Path(config.releases.dir), verify)


def _signed_in(path: Path) -> "Verify":
    """What accepts only manifests that the fleet of this configuration has signed."""
    from edge.releases.store import signed_by

    fleet = keys.fleet_of(path)
    return signed_by(fleet.signers, fleet.name)


def _named(manifest: "ReleaseManifest") -> str:
    return f"version {manifest.version} of {manifest.name}"
