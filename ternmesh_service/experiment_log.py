"""Rounds of a run for TensorBoard and MLflow (`tensorboardX` and `mlflow` only here).

Each has a thread of its own, which asks the control socket as `ternmesh status` does. Where a log
cannot be written, the host does not notice; its rounds are written once it can.
"""

import importlib
import logging
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ternmesh.config import ConfigError, needs
from ternmesh.errors import TernmeshError
from ternmesh.wire.control import FINISHED, PHASES
from ternmesh_service.config_file import PATH
from ternmesh_service.observer import Observed, observed
from ternmesh_service.status import HostStatus, to_json
from ternmesh_store.files import read_text, replace_file

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from tensorboardX.event_file_writer import EventsWriter

EVERY_S = 5.0
BOARDS_MAX = 100  # with values of their own, the first by name
REASON_MAX = 500  # characters; a server may answer with a whole page
VERSION = "version"  # the file with the newest version in the events beside it
RUN_TAG, VERSION_TAG = "ternmesh.run", "ternmesh.version"
# The client waits for minutes, and reports to its maker, unless these say otherwise.
MLFLOW = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "3",  # s
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_CONFIGURE_LOGGING": "false",
}
Row = tuple[int, dict[str, float]]

_log = logging.getLogger(__name__)


class ExperimentLogError(TernmeshError):
    """Rounds cannot be written now."""


@dataclass(frozen=True, slots=True)
class ExperimentLogConfig:
    """`[experiment_log]`: where the rounds of a run are written; empty: not there.

    `tensorboard` is a folder, with a subfolder for each run of the fleet. `mlflow` is a tracking
    URI: there, a run of the fleet is a run of `experiment`.
    """

    tensorboard: str = field(default="", metadata=PATH)
    mlflow: str = ""
    experiment: str = field(default="ternmesh", metadata=needs("mlflow"))


@contextmanager
def written_logs(
    config: ExperimentLogConfig, socket: Path, every_s: float = EVERY_S
) -> Iterator[None]:
    """Write the rounds of the host behind a control socket, every `every_s` s; ConfigError."""
    with ExitStack() as stack:
        if config.tensorboard:
            _need("tensorboardX", "tensorboard")
            events = stack.enter_context(closing(_TensorBoard(Path(config.tensorboard))))
            stack.enter_context(observed(socket, every_s, events.take, since=True))
        if config.mlflow:
            if "@" in config.mlflow.partition("://")[2].partition("/")[0]:
                raise ConfigError(
                    "experiment_log.mlflow holds a name or password, which its errors would show: "
                    "use MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD in the environment"
                )
            for name, value in MLFLOW.items():
                os.environ.setdefault(name, value)
            _need("mlflow", "mlflow")
            runs = _Mlflow(config.mlflow, config.experiment)
            stack.enter_context(observed(socket, every_s, runs.take, since=True))
        yield


def rows(status: HostStatus) -> list[Row]:
    """The values of each round in a host's status, by the version that the round made."""
    boards = {board.name for board in status.nodes[:BOARDS_MAX]}
    found: list[Row] = []
    for row in status.history:
        values: dict[str, float | None] = {
            "fleet/loss": row.loss,
            "fleet/accuracy": row.accuracy,
            "round/seconds": row.seconds,
            "round/bytes_down": row.bytes_down,
            "round/bytes_up": sum(row.bytes_up.values()),
        }
        for name, (loss, accuracy) in row.reports.items():
            if name in boards:
                values |= {f"board/{name}/loss": loss, f"board/{name}/accuracy": accuracy}
        if row is status.history[-1]:  # `global_loss` is the loss of a row
            newest = to_json(replace(status.metrics, global_loss=None))
            values |= {f"fleet/{key}": value for key, value in newest.items()}
        known = {key: float(value) for key, value in values.items() if value is not None}
        found.append((row.version, known))
    return found


class _TensorBoard:
    """Event files. A write is synchronous, so that an error of the disk is seen here."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._run = ""
        self._events: EventsWriter | None = None

    def take(self, status: Observed) -> None:
        """Write the rounds that the run's subfolder lacks; OSError, ValueError."""
        assert isinstance(status, HostStatus)  # only hosts have this log
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.proto.summary_pb2 import Summary

        folder = self._folder / status.run
        path = folder / VERSION
        last = int(read_text(path, 20)) if path.exists() else 0
        new = [row for row in rows(status) if row[0] > last]
        if not new:
            return
        try:
            if self._events is None or self._run != status.run:
                self.close()
                folder.mkdir(parents=True, exist_ok=True)
                self._events = EventsWriter(str(folder / "events"), f".{last}")
                self._run = status.run
                # What files of before have after `last` is not shown any more
                start = SessionLog(status=SessionLog.START)
                event = Event(wall_time=time.time(), step=last + 1, session_log=start)
                self._events.write_event(event)
            for version, values in new:
                scalars = [Summary.Value(tag=key, simple_value=v) for key, v in values.items()]
                event = Event(wall_time=time.time(), step=version, summary=Summary(value=scalars))
                self._events.write_event(event)
            self._events.flush()
            replace_file(path, b"%d" % new[-1][0])
        except OSError:
            self.close()  # a record may be cut: the next ones go into a new file
            raise

    def close(self) -> None:
        events, self._events = self._events, None
        try:
            if events is not None:
                events.close()
        except OSError as error:
            _log.debug("closing the events of run %s: %s", self._run, error)


class _Mlflow:
    """Runs on a tracking server, which has the newest version of each as a tag."""

    def __init__(self, uri: str, experiment: str) -> None:
        self._uri = uri
        self._experiment = experiment
        self._run = ""  # of the fleet; empty: where the server stands is not known
        self._id = ""
        self._last = 0
        self._is_open = True  # and shown as running

    def take(self, status: Observed) -> None:
        """Write the rounds that the server lacks; ExperimentLogError."""
        assert isinstance(status, HostStatus)
        found = rows(status)
        if not found:
            return
        try:
            self._write(status, found)
        except Exception as error:
            self._run = ""
            reason = " ".join(str(error).split())[:REASON_MAX]
            raise ExperimentLogError(f"MLflow does not take the rounds: {reason}") from error

    def _write(self, status: HostStatus, found: list[Row]) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, RunTag

        client = MlflowClient(tracking_uri=self._uri)
        if self._run != status.run:
            self._resume(client, status.run)
        for version, values in found:
            if version > self._last:
                now_ms = round(time.time() * 1000)
                metrics = [Metric(key, value, now_ms, version) for key, value in values.items()]
                tag = RunTag(VERSION_TAG, str(version))
                client.log_batch(self._id, metrics, tags=[tag], synchronous=True)
                self._last = version
        if self._is_open and status.phase == PHASES[FINISHED]:
            client.set_terminated(self._id)
            self._is_open = False

    def _resume(self, client: "MlflowClient", run: str) -> None:
        known = client.get_experiment_by_name(self._experiment)
        place = known.experiment_id if known else client.create_experiment(self._experiment)
        found = client.search_runs([place], f"tags.`{RUN_TAG}` = '{run}'", max_results=1)
        ours = found[0] if found else client.create_run(place, tags={RUN_TAG: run}, run_name=run)
        self._id, self._last = ours.info.run_id, int(ours.data.tags.get(VERSION_TAG, 0))
        self._run, self._is_open = run, ours.info.status == "RUNNING"


def _need(package: str, extra: str) -> None:
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise ConfigError(
            f"experiment_log.{extra} needs a package: pip install 'ternmesh[{extra}]'"
        ) from error
