"""The local socket on which a running process answers requests such as `ternmesh status`.

A connection carries one request and one answer, each a JSON object on one line. Only the owner of
the process may connect (mode 0600). The server has its own threads; `Relay` passes requests to the
thread that owns the state.
"""

import contextlib
import json
import logging
import queue
import socket
import stat
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ternmesh.config import ConfigError
from ternmesh.errors import TernmeshError
from ternmesh_store.database import StoreError
from ternmesh_store.files import make_private_folder

REQUEST_MAX = 4 << 20  # bytes, line end included; the identities of a large fleet are the longest
ANSWER_MAX = 4 << 20
CLIENTS_MAX = 16  # at once; a further one waits
ANSWER_S = 10.0  # how long a client waits
CLIENT_S = 5.0  # for a whole request and its answer
BACKUP = "backup"  # the request for a copy of the state, with its folder
DATA = "data"  # the request about samples of a node
BOARDS = "boards"  # the request about the boards of a host, with a name or `all`
INSTALLED = "installed"  # the request that a node takes the releases that a person installed
RELOAD = "reload"  # a request to a board: read the data anew
PUBLISHED = "published"  # the request about a host's release: publish, progress or withdraw
SLOW = {BACKUP, DATA, PUBLISHED}  # requests that write much
SLOW_S = 600.0  # for such a request
RETURN = "return_to"  # the request that a host goes back to an older version
PATH_MAX = 107  # bytes in the address of a Unix socket

Answer = Callable[[dict[str, Any]], Mapping[str, Any]]

_log = logging.getLogger(__name__)


class NotServed(ConfigError):
    """An address or a file of a server cannot be used now."""


class ControlError(TernmeshError):
    """The socket cannot be served, or no answer comes; the sentence says what to do."""


class NobodyAnswers(ControlError):
    """No process serves the socket."""


class ControlServer:
    """Serves `answer` on the socket at `path`; a context manager, entered once.

    `answer` is called in a thread of the server. Its errors reach the client as a sentence.
    """

    def __init__(self, path: Path, answer: Answer) -> None:
        self.path = path
        self._answer = answer
        self._socket: socket.socket | None = None
        self._places = threading.Semaphore(CLIENTS_MAX)

    def __enter__(self) -> "ControlServer":
        self._socket = listening = listen_privately(self.path, CLIENTS_MAX)
        threading.Thread(target=self._accept, args=(listening,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        listening = self._socket
        self._socket = None
        if listening is not None:
            with contextlib.suppress(OSError):  # Some systems refuse it for a listening socket.
                listening.shutdown(socket.SHUT_RDWR)
            listening.close()
            self.path.unlink(missing_ok=True)

    def _accept(self, listening: socket.socket) -> None:
        while self._socket is not None:
            self._places.acquire()  # the others wait in turn, as none takes long to read
            try:
                client, _ = listening.accept()
            except OSError as error:
                self._places.release()
                if self._socket is not None:
                    _log.warning("the control socket cannot accept a client: %s", error)
                    time.sleep(1.0)  # For instance, file descriptors may become free.
                continue
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            with client:
                deadline = time.monotonic() + CLIENT_S
                answer = self._respond(_read_line(client, REQUEST_MAX, deadline))
                client.settimeout(CLIENT_S)
                client.sendall(answer)
        except OSError as error:
            _log.debug("a client of the control socket went away: %s", error)
        finally:
            self._places.release()

    def _respond(self, line: bytes) -> bytes:
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise ValueError("a request is an object")
        except (ValueError, RecursionError) as error:
            return _error(f"this is not a request: {error}")
        try:
            answer = json.dumps(self._answer(request)).encode() + b"\n"
        except Exception as error:  # noqa: BLE001  (the outermost loop of this thread)
            _log.warning("a request on the control socket failed: %r", error)
            return _error(str(error) or repr(error))
        if len(answer) > ANSWER_MAX:
            return _error(f"the answer has more than {ANSWER_MAX} bytes")
        return answer


class Relay:
    """Passes requests from the threads of the server to the one thread that owns the state."""

    def __init__(self, timeout_s: float = CLIENT_S) -> None:
        self._timeout_s = timeout_s
        self._requests: queue.Queue[tuple[dict[str, Any], queue.Queue[Mapping[str, Any]]]]
        self._requests = queue.Queue(CLIENTS_MAX)

    def ask(self, request: dict[str, Any]) -> Mapping[str, Any]:
        """The answer of the owner, for `ControlServer`; ControlError where it comes too late."""
        reply: queue.Queue[Mapping[str, Any]] = queue.Queue(1)
        try:
            self._requests.put_nowait((request, reply))
            return reply.get(timeout=SLOW_S if SLOW & request.keys() else self._timeout_s)
        except (queue.Full, queue.Empty) as error:
            raise ControlError("the process is busy: ask again") from error

    def serve(self, answer: Answer) -> None:
        """Answer waiting requests; the owner calls this often.

        At most `CLIENTS_MAX` are answered, so that no client keeps the owner from its work. Raises
        StoreError alone, after which the state is closed; other errors reach the client only.
        """
        with contextlib.suppress(queue.Empty):
            for _ in range(CLIENTS_MAX):
                request, reply = self._requests.get_nowait()
                try:
                    reply.put_nowait(answer(request))
                except StoreError as error:
                    reply.put_nowait({"error": str(error)})
                    raise
                except Exception as error:  # noqa: BLE001  (of one request, whose program goes on)
                    _log.warning("a request on the control socket failed", exc_info=error)
                    reply.put_nowait({"error": f"this request cannot be answered: {error!r}"})


def ask(path: Path, request: Mapping[str, Any], timeout_s: float = ANSWER_S) -> dict[str, Any]:
    """The answer of the process that serves `path`, or ControlError."""
    _check_path(path)
    deadline = time.monotonic() + timeout_s
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.settimeout(timeout_s)
            client.connect(str(path))
            client.sendall(json.dumps(request).encode() + b"\n")
            answer = json.loads(_read_line(client, ANSWER_MAX, deadline))
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise NobodyAnswers(f"no process answers on {path}: is it running?") from error
        except (OSError, ValueError, RecursionError) as error:
            raise ControlError(f"the process on {path} gives no answer ({error})") from error
    if not isinstance(answer, dict):
        raise ControlError(f"the process on {path} gives an answer of another kind")
    if "error" in answer:
        raise ControlError(str(answer["error"]))
    return answer


def listen_privately(path: Path, clients_max: int) -> socket.socket:
    """A Unix socket at `path` to which only our user may connect; ControlError."""
    _check_path(path)
    _clear(path)
    listening = socket.socket(socket.AF_UNIX)
    try:
        make_private_folder(path.parent)
        listening.bind(str(path))
        path.chmod(0o600)  # Before `listen`: no client can have connected.
        listening.listen(clients_max)
    except OSError as error:
        listening.close()
        raise ControlError(f"cannot listen on {path} ({error})") from error
    return listening


def _read_line(client: socket.socket, size_max: int, deadline: float) -> bytes:
    """The bytes up to a line end or the end of the stream; OSError when late or too long."""
    data = bytearray()
    while not data.endswith(b"\n"):
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("no whole line came in time")
        client.settimeout(left_s)
        part = client.recv(min(65_536, size_max + 1 - len(data)))
        if not part:
            break
        data += part
        if len(data) > size_max:
            raise OSError(f"a line has more than {size_max} bytes")
    return bytes(data)


def _error(sentence: str) -> bytes:
    return json.dumps({"error": sentence}).encode() + b"\n"


def _check_path(path: Path) -> None:
    if len(str(path).encode()) > PATH_MAX:
        raise ControlError(
            f"the control socket {path} is longer than {PATH_MAX} bytes: choose a shorter path"
        )


def _clear(path: Path) -> None:
    """Remove the socket of a killed process; ControlError for anything else."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ControlError(f"{path} is in the way: move it, or choose another control_socket")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1.0)
            probe.connect(str(path))
        raise ControlError(f"another process answers on {path}: stop it first")
    except FileNotFoundError:
        return  # nothing is in the way
    except ConnectionRefusedError:
        path.unlink()
    except OSError as error:
        raise ControlError(f"cannot use the control socket {path} ({error})") from error
