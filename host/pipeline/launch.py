"""Starts the ranks of a pipeline on this machine, again where one dies, and reads their reports.

Ranks that are started again go on from their last common checkpoint. A rank holds a lock in the
state folder as long as it lives.
"""

import fcntl
import importlib.util
import json
import logging
import os
import re
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TextIO

from host.pipeline.config import PipelineConfig, PipelineError, host_and_port
from host.pipeline.meeting import PENDING_MAX, place_of
from host.pipeline.report import PROGRESS, parse
from ternmesh.extras import how_to_install

_log = logging.getLogger(__name__)

POLL_S = 0.5
STOP_S = 10.0  # until ranks have ended by themselves, after one has given a reason
REFUSED = 3  # exit code: started again, ranks would end with the same reason
REASON = "ternmesh: "  # how a line begins in which a rank gives its reason to end
RAISED = re.compile(r"^((?:\w+\.)*\w+Error: \S.*)")


def hold(folder: Path, rank: int) -> TextIO:
    """Lock a rank's place in a state folder until the returned file is closed or the process ends.

    PipelineError where other ranks train there, or the folder cannot be used.
    """
    path = folder / f"rank-{rank}.lock"
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        file = path.open("a+")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise PipelineError(
            f"other ranks train in {folder}: end them first (kill {path.read_text().strip()}), or "
            "choose another state_dir"
        ) from error
    except OSError as error:
        raise PipelineError(f"state_dir cannot be used: {error}") from error
    file.truncate(0)
    file.write(f"{os.getppid()}\n")  # which would start this process again
    file.flush()
    return file


def command(path: Path, rank: int, is_insecure: bool) -> list[str]:
    """The command of one rank of the configuration at `path`."""
    options = ["--insecure"] if is_insecure else []
    return [sys.executable, "-m", "host.pipeline", str(path), str(rank), "--supervised", *options]


class Ranks:
    """The processes of one run on this machine, which is `host` in `addresses`.

    PipelineError where `addresses` does not have it.
    """

    def __init__(
        self, config: PipelineConfig, path: Path, host: str | None = None, is_insecure: bool = False
    ) -> None:
        self._config = config
        self._path = path
        self._is_insecure = is_insecure
        self._own = own_ranks(config, host)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._restarts = 0  # since the newest checkpoint
        self._was_saved: list[str] = []  # before the newest start
        self._read = 0  # bytes of the progress file that have been read

    @property
    def log(self) -> Path:
        return self._config.folder / "ranks.log"

    def start(self) -> None:
        """Start the ranks; PipelineError without torch, or where others train in the folder."""
        if importlib.util.find_spec("torch") is None:
            raise PipelineError(f"torch is not installed: {how_to_install('pipeline')}")
        place_of(self._config, self._own[0], self._config.addresses, "", self._is_insecure)
        for rank in self._own:
            hold(self._config.folder, rank).close()  # the ranks lock it again
        progress = self._config.folder / PROGRESS
        self._read = progress.stat().st_size if progress.exists() else 0
        self.log.write_bytes(b"")
        self._was_saved = self._saved()
        self._start()

    def reports(self, stop: threading.Event) -> Iterator[dict[str, Any]]:
        """New reports until all ranks have ended or `stop` is set; PipelineError if they failed.

        Where a rank dies, all of this machine are started again. Those of other machines lose
        their links and are started again as well.
        """
        running = True
        while running and not stop.wait(POLL_S):
            running = self._look_after()
            yield from self._new_reports()

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()  # checkpoints are complete or absent
        for process in self._processes.values():
            process.wait()

    def _start(self) -> None:
        token = "" if self._config.addresses else secrets.token_hex(16)  # machines share none
        environment = {"OMP_NUM_THREADS": str(self._config.threads), **os.environ}
        with self.log.open("ab") as out, ExitStack() as stack:
            servers = self._servers(stack)
            addresses = [f"127.0.0.1:{server.getsockname()[1]}" for server in servers]
            for rank in self._own:
                own = [servers[rank].fileno()] if servers else []
                process = subprocess.Popen(
                    command(self._path, rank, self._is_insecure),
                    stdin=subprocess.PIPE,
                    stdout=out,
                    stderr=out,
                    env=environment,
                    start_new_session=True,
                    pass_fds=own,
                )
                assert process.stdin is not None
                given = [addresses or self._config.addresses, token, own[0] if own else None]
                with suppress(BrokenPipeError):  # it is dead already, and will be looked after
                    process.stdin.write(json.dumps(given).encode() + b"\n")
                    process.stdin.flush()  # stays open: a rank ends with this process
                self._processes[rank] = process

    def _look_after(self) -> bool:
        """Whether ranks run; starts them again where one has died. PipelineError."""
        codes = [process.poll() for process in self._processes.values()]
        if not any(codes):
            return None in codes
        if any(code is not None and code > 0 for code in codes):  # not a signal: it gives a reason
            deadline = time.monotonic() + STOP_S
            for process in self._processes.values():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
        codes = [process.poll() for process in self._processes.values()]
        self.stop()
        if REFUSED in codes or self._restarts >= self._config.restarts_max:
            raise PipelineError(self._reason())
        if (saved := self._saved()) != self._was_saved:  # it got on: only vain restarts count
            self._restarts, self._was_saved = 0, saved
        self._restarts += 1
        most = self._config.restarts_max
        _log.warning("%s; starting again (%d of %d)", self._reason(), self._restarts, most)
        self._start()
        return True

    def _saved(self) -> list[str]:
        """The names of the checkpoints of a rank of this machine."""
        folder = self._config.folder / "checkpoints"
        return sorted(path.name for path in folder.glob(f"rank-{self._own[0]}-*.safetensors"))

    def _servers(self, stack: ExitStack) -> list[socket.socket]:
        """Where no addresses are given, a listening socket for each rank, on a free port.

        A rank inherits its socket: another program could take a port that was only looked up.
        """
        if self._config.addresses:
            return []
        return [
            stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=PENDING_MAX))
            for _ in range(self._config.ranks)
        ]

    def _new_reports(self) -> Iterator[dict[str, Any]]:
        progress = self._config.folder / PROGRESS
        if not progress.exists():
            return
        with progress.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if line.endswith(b"\n"):
                    self._read += len(line)
                    if (report := parse(line)) is not None:
                        yield report

    def _reason(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        if reasons := [line for line in lines if line.startswith(REASON)]:
            return reasons[-1].removeprefix(REASON)
        raised = [found[1] for line in lines if (found := RAISED.match(line))]
        reason = f" ({raised[-1]})" if raised else ""
        return f"the ranks ended badly{reason}: see {self.log}"


def own_ranks(config: PipelineConfig, host: str | None) -> list[int]:
    """The ranks of this machine, which is `host` in `addresses`; PipelineError."""
    if len(config.hosts) < 2 and host is None:
        return list(range(config.ranks))
    own = [r for r, each in enumerate(config.addresses) if host_and_port(each)[0] == host]
    if not own:
        raise PipelineError(
            f"addresses names the hosts {', '.join(config.hosts) or 'of no other machine'}: say "
            "with --host which of them this machine is"
        )
    return own
