"""Where the broker mosquitto is on this machine, and how to tell that one listens."""

import os
import shutil
import socket

ADDRESS = "127.0.0.1"


def find_mosquitto() -> str | None:
    """The program, also where Debian puts it and users' paths do not look; None without one."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    return shutil.which("mosquitto", path=path)


def free_port() -> int:
    """A TCP port of this machine that nothing uses now."""
    with socket.socket() as sock:
        sock.bind((ADDRESS, 0))
        return int(sock.getsockname()[1])


def listens(port: int) -> bool:
    """Whether something takes connections on a port of this machine."""
    with socket.socket() as sock:
        return sock.connect_ex((ADDRESS, port)) == 0


def configuration(port: int, *further: str) -> str:
    """A mosquitto.conf for `port` of this machine alone, defaults else, with `further` lines."""
    # Started as root it would become another user, who may not read the folder that it is given.
    lines = [f"listener {port} {ADDRESS}", "allow_anonymous true", "user root", *further]
    return "\n".join([*lines, ""])
