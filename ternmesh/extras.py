"""How to add an optional package: there is no index that has ternmesh."""

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from urllib.parse import unquote, urlsplit


@contextmanager
def installed(extra: str, what: str, kind: type[Exception] = ImportError) -> Iterator[None]:
    """For imports of the packages of an extra: `what` needs them, said by an error of a `kind`."""
    try:
        yield
    except ImportError as error:
        raise kind(f"{what}: {how_to_install(extra)}") from error


def how_to_install(extra: str) -> str:
    """A command that adds an extra to this installation, or where to read on.

    >>> how_to_install("page").endswith("[page]'") or "docs/install.md" in how_to_install("page")
    True
    """
    from importlib.metadata import PackageNotFoundError, distribution  # of no use to most programs

    try:
        installed = distribution("ternmesh")
        origin = json.loads(installed.read_text("direct_url.json") or "{}")  # PEP 610
    except (PackageNotFoundError, ValueError):
        origin = {}
    url, pip = urlsplit(origin.get("url", "")), shlex.quote(sys.executable)
    place = unquote(url.path) if url.scheme == "file" else "FILE.whl"  # what was installed
    if find_spec("pip") is None:  # a .deb, an image, uv
        return f"this installation has no pip: docs/install.md says how it gets the extra {extra!r}"
    if origin.get("dir_info", {}).get("editable"):
        return f"{pip} -m pip install -e {shlex.quote(f'{place}[{extra}]')}"
    return f"{pip} -m pip install {shlex.quote(f'{place}[{extra}]')}"
