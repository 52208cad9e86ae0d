"""`ternmesh release`: make a release of a model, check one, give it to a board, see what it has."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ternmesh.config import ConfigError
from ternmesh.errors import TrustError
from ternmesh_cli import key_ends
from ternmesh_cli.arguments import number, real

if TYPE_CHECKING:
    from edge.config import NodeConfig
    from edge.releases import Releases
    from ternmesh.release import Manifest, Verify

EXIT_CODES = """\
exit codes:
  0  done
  1  a release or a bundle is refused, or the disk fails; a sentence on stderr says why
  2  the command line or the configuration is wrong; a sentence says what is allowed
"""
VERSION_MAX = (1 << 32) - 1
UNSIGNED = "who made this release is not checked"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The subcommands of `ternmesh release`."""
    rows = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(
        name: str, summary: str, run: Callable[[argparse.Namespace], int]
    ) -> argparse.ArgumentParser:
        row = rows.add_parser(
            name,
            help=summary,
            description=summary.capitalize() + ".",
            formatter_class=parser.formatter_class,
            epilog=EXIT_CODES,
        )
        row.set_defaults(run_release=run)
        return row

    make = add("make", "write a bundle as an unsigned release", _make)
    make.add_argument("bundle", type=Path, metavar="BUNDLE", help="folder with a model.json")
    make.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new folder")
    make.add_argument("--version", type=number(1, VERSION_MAX), required=True, help="only grows")
    make.add_argument(
        "--loss-max",
        type=real(1e-6, 4000.0),
        required=True,
        metavar="X",
        help="on a board's held-out data",
    )
    make.add_argument(
        "--latency-max-ms",
        type=number(1, VERSION_MAX),
        required=True,
        metavar="N",
        help="of one step on a board",
    )
    make.add_argument("--previous", type=Path, metavar="DIR", help="the release that it replaces")
    sign = add("sign", "sign a release with the key of the host, or of another signer", _sign)
    sign.add_argument("release", type=Path, metavar="RELEASE", help="folder of a release")
    what = "host.toml; with --identity that of any end, whose [trust] names the signers"
    sign.add_argument("--config", type=Path, required=True, metavar="FILE", help=what)
    what = "a signer's private identity, in the place of the host's"
    sign.add_argument("--identity", type=Path, metavar="FILE", help=what)
    check = add("check", "check a release and take its first steps here", _check)
    check.add_argument("release", type=Path, metavar="RELEASE", help="folder of a release")
    check.add_argument("--memory-mib", type=number(16, 65_536), default=512)
    install = add("install", "give a release to the node of a configuration", _install)
    install.add_argument("release", type=Path, metavar="RELEASE", help="folder of a release")
    install.add_argument("--config", type=Path, required=True, metavar="FILE", help="node.toml")
    listing = add("list", "show the releases that a node has", _list)
    listing.add_argument("--config", type=Path, required=True, metavar="FILE", help="node.toml")
    listing.add_argument("--json", action="store_true", help="as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Run the subcommand; returns the exit code."""
    code: int = arguments.run_release(arguments)
    return code


def _make(arguments: argparse.Namespace) -> int:
    from edge.releases import make_release

    limits = (arguments.loss_max, arguments.latency_max_ms / 1000)
    manifest = make_release(
        arguments.bundle, arguments.out, arguments.version, limits, arguments.previous
    )
    print(f"{arguments.out}: {_named(manifest)}, not signed")
    return 0


def _sign(arguments: argparse.Namespace) -> int:
    from edge.errors import ModelError
    from edge.releases import MANIFEST, SIGNATURES, Releases, accept_unsigned
    from ternmesh.trust.release_signatures import sign_release, signatures_of
    from ternmesh.trust.signers import own_quantum
    from ternmesh_store.files import replace_file
    from ternmesh_store.keyring import read_identity_file

    if arguments.identity is None:
        own, fleet = key_ends.host_of(arguments.config)
        quantum = own_quantum(fleet.signers, own)
    else:
        own, fleet = read_identity_file(arguments.identity), key_ends.fleet_of(arguments.config)
        quantum = None  # that is the host's
    folder, signers = arguments.release, fleet.signers
    manifest = Releases(folder.parent, accept_unsigned).read(folder)
    if own.public.verify not in [key.verify for key in signers.keys]:
        raise TrustError(f"{own.public.name} is none of trust.signers in {arguments.config}")
    content, path = (folder / MANIFEST).read_bytes(), folder / SIGNATURES
    before = path.read_bytes() if path.exists() else b""
    signed = sign_release(own, fleet.name, content, signers, before, quantum)
    try:
        replace_file(path, signed)
    except OSError as error:
        raise ModelError(
            f"cannot write {path} ({error.strerror}): check the folder and the disk"
        ) from error
    print(f"{_named(manifest)} is signed by {own.public.name} {own.public.fingerprint.hex()}")
    if len(signers.keys) > 1:
        have = signatures_of(signers, fleet.name, content, signed)
        print(f"{have} of {len(signers.keys)} signers have signed, and {signers.needed} are needed")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from edge.model_trial import TrialLimits, try_model
    from edge.releases import Releases, accept_unsigned, load_release
    from ternmesh.release import LATENCY_UNIT, LOSS_UNIT

    folder = arguments.release
    manifest = Releases(folder.parent, accept_unsigned).read(folder)
    load_release(folder, manifest)
    limits = TrialLimits(memory_mib=arguments.memory_mib)
    latency_s = try_model(folder, limits, with_gradient=True)
    size = sum(entry.size for entry in manifest.files)
    print(f"{_named(manifest)}, model {manifest.model.hex()[:16]}, {size:,} bytes")
    print(f"a step takes {latency_s * 1e3:.1f} ms here", end="")
    print(f", and {manifest.latency_max * LATENCY_UNIT * 1e3:.0f} ms are allowed on a board")
    print(f"a loss of {manifest.loss_max * LOSS_UNIT:g} is allowed on a board's held-out data")
    print(UNSIGNED, file=sys.stderr)
    return 0


def _install(arguments: argparse.Namespace) -> int:
    config, releases = _board(arguments.config)
    manifest = releases.install(arguments.release)
    if config.releases.insecure:
        print(UNSIGNED, file=sys.stderr)
    print(f"{_named(manifest)} is installed: a running node tries it within seconds")
    return 0


def _list(arguments: argparse.Namespace) -> int:
    from edge.rollout import passed_over, report

    config, releases = _board(arguments.config)
    standing, installed = releases.standing(), releases.installed()
    refused = releases.survey(standing.floor)[1]
    if arguments.json:
        told = {"installed": installed, "passed_over": passed_over(standing, installed)}
        print(json.dumps({**report(standing, refused), **told}, indent=1))
        return 0
    bad = dict(standing.bad)
    for version in sorted({0, *installed, *bad}):
        words = [f"the bundle {config.bundle}"] if version == 0 else []
        if version == standing.current:
            words.append("on trial" if standing.on_trial else "current")
        if version == standing.last_good:
            words.append("last good")
        if version in refused:
            words.append(f"not taken: {refused[version]}")
        elif version > standing.floor:
            words.append("not tried yet")
        if version in passed_over(standing, installed):
            words.append("passed over: a newer one was taken")
        if version in bad:
            words.append(f"bad: {bad[version]}")
        print(f"{version:>4}  {', '.join(words)}".rstrip())
    return 0


def _board(path: Path) -> "tuple[NodeConfig, Releases]":
    """The configuration of a node and its releases, which its fleet's host must have signed."""
    from edge.config import read_node_config
    from edge.release_trust import signed_by
    from edge.releases import Releases, accept_unsigned

    config = read_node_config(path)
    if config.releases.dir is None:
        raise ConfigError(f"{path} has no releases.dir: this node takes no releases")
    verify: Verify = accept_unsigned
    if not config.releases.insecure:
        fleet = key_ends.fleet_of(path)
        verify = signed_by(fleet.signers, fleet.name)
    return config, Releases(Path(config.releases.dir), verify)


def _named(manifest: "Manifest") -> str:
    return f"version {manifest.version} of {manifest.name}"
