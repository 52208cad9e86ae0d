"""The settings of the page, and its token."""

import ipaddress
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from ternmesh.config import ConfigError, limits
from ternmesh.extras import installed
from ternmesh_service.config_file import PATH
from ternmesh_store.files import create_private_file

TOKEN = "page.token"  # in the state folder, mode 0600


@dataclass(frozen=True, slots=True)
class PageConfig:
    """`[page]`: where the web page is served. `ternmesh page` prints its address with the token.

    On this machine all may read it; actions, and reading over a network, need the token. On other
    addresses than this machine's it needs TLS (`certificate_file` with the chain, `key_file`), or a
    proxy on the way that does that (`behind_proxy`). `names` are further names by which browsers
    reach it. Or it answers one address alone, `ingress`: a proxy that lets only the owner in, like
    that of Home Assistant. What comes from there gets the token, under any name.
    """

    port: int = field(default=0, metadata=limits(0, 65_535))  # 0: not served
    address: str = "127.0.0.1"
    names: tuple[str, ...] = ()
    certificate_file: str | None = field(default=None, metadata=PATH)
    key_file: str | None = field(default=None, metadata=PATH)
    behind_proxy: bool = False
    ingress: str = ""

    @property
    def is_open(self) -> bool:
        """Whether others than this machine's users reach it, so that all needs the token."""
        return self.behind_proxy or bool(self.ingress) or not _is_loopback(self.address)

    @property
    def url(self) -> str:
        """The address for a browser on this machine, or by the first of `names`."""
        if self.behind_proxy and self.names:
            return f"https://{self.names[0]}/"
        scheme = "https" if self.certificate_file else "http"
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{scheme}://{self.names[0] if self.names else address}:{self.port}/"


def check_page(config: PageConfig) -> None:
    """ConfigError where the page would be open without protection, or its files do not fit."""
    if (config.certificate_file is None) != (config.key_file is None):
        raise ConfigError("page.certificate_file and page.key_file belong together: name both")
    for key, what in (("address", "of this machine"), ("ingress", "of the proxy")):
        value = getattr(config, key)
        try:
            if value or key == "address":
                ipaddress.ip_address(value)
        except ValueError as error:
            raise ConfigError(
                f"page.{key} is {value!r}: it must be an IP address {what}"
            ) from error
    if config.ingress and (config.behind_proxy or config.certificate_file):
        raise ConfigError(
            "page.ingress is the only way to the page: leave behind_proxy and certificate_file out"
        )
    has_tls = config.certificate_file is not None or config.behind_proxy or bool(config.ingress)
    if config.port and not _is_loopback(config.address) and not has_tls:
        raise ConfigError(
            f"page.address is {config.address}, which others reach: without TLS they could read "
            "the token. Name page.certificate_file and page.key_file, or set page.behind_proxy "
            "where a proxy with TLS is the only one that reaches it"
        )


def read_token(folder: Path) -> str:
    """The token of the page in a state folder; it is made at the first call. OSError."""
    path = folder / TOKEN
    if not path.exists():
        with suppress(FileExistsError):  # another process was faster
            create_private_file(path, secrets.token_urlsafe(24).encode())
    return path.read_text().strip()


@contextmanager
def served_page(config: PageConfig, socket: Path, folder: Path) -> Iterator[None]:
    """Serve the page of the process behind a control socket, with its state folder; ConfigError."""
    if config.port == 0:
        yield
        return
    with installed("page", "[page] needs the packages starlette and uvicorn", ConfigError):
        from ternmesh_service.page.server import serving
    with serving(config, socket, folder):
        yield


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback
