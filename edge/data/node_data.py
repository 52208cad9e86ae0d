"""The data of a node, as its configuration names it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from edge.config import NodeConfig
from edge.data.buffer import DAY_S, ReplayBuffer
from edge.data.feed import Feed, Rehearsal
from edge.data.live.options import BUILT_IN
from edge.data.probe_set import ProbeSet, open_probe_set
from edge.data.sources import (
    HELD_OUT,
    HISTORY,
    TRAIN,
    FolderData,
    NpzSettings,
    make_source,
    open_folder,
)
from edge.errors import DataError
from edge.knowledge import BoardKnowledge
from edge.trainer import Dataset
from ternmesh.model_package import ModelPackage
from ternmesh_service.status import AsideStatus
from ternmesh_store.database import Database

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeData:
    """The data of a node."""

    training: Dataset
    held_out: FolderData | None = None  # for evaluation; without it, new labels are evaluated
    files: FolderData | None = None  # of `training`
    feed: Feed | None = None  # fills `training` from a source
    knowledge: BoardKnowledge | None = None  # of other models, beside `training`

    @property
    def samples(self) -> Dataset:
        return self.training if self.knowledge is None else self.knowledge.samples

    @property
    def count(self) -> int:
        """Its own samples with a label, each counted once."""
        labelled = 0 if self.feed is None else len(self.feed.buffer)
        return labelled + (0 if self.files is None else len(self.files))

    def aside(self) -> AsideStatus:
        """The samples of all of it that the model cannot compute."""
        known = [data.aside for data in (self.files, self.held_out) if data is not None]
        in_files = sum(one.count for one in known)
        if self.feed is not None:
            known.append(self.feed.buffer.aside)
        newest = [sample for one in known for sample in one.newest]
        count = sum(one.count for one in known)
        return AsideStatus(count=count, in_files=in_files, newest=tuple(newest))

    def close(self) -> None:
        if self.feed is not None:
            self.feed.close()


def open_data(config: NodeConfig, package: ModelPackage, database: Database) -> NodeData:
    """The data that the configuration names, with the probe set if there is one; DataError."""
    data, probe = _open_samples(config, package, database), open_knowledge(config, package)
    if probe is None:
        return data
    if data.held_out is None:
        _log.warning("[knowledge] without [evaluate]: a lie is learned as anything else")
    return replace(data, knowledge=BoardKnowledge(probe, data.training))


def open_files(
    config: NodeConfig, package: ModelPackage
) -> tuple[FolderData | None, FolderData | None]:
    """The files to evaluate and to train on; DataError where a board without a source has none."""
    held_out, history = None, Path(config.state_dir, HISTORY)
    if config.evaluate.path is not None:
        with _about("evaluate"):
            held_out = open_folder(Path(config.evaluate.path), package, config.evaluate)
    elif (history / HELD_OUT).exists():
        held_out = open_folder(history / HELD_OUT, package, NpzSettings())
    data, files = config.data, None
    if data.path is not None:
        with _about("data"):
            files = open_folder(Path(data.path), package, data)
    elif (history / TRAIN).exists():
        files = open_folder(history / TRAIN, package, NpzSettings())
    if data.path is not None and files is not None and len(files) < config.training.samples_min:
        aside = f", and {files.aside.count} are set aside" if files.aside.count else ""
        least = f"training.samples_min is {config.training.samples_min}: add some"
        raise DataError(f"{data.path} holds {len(files)} samples{aside}: {least}")
    if data.source is None and files is None:
        raise DataError(
            f"data needs path (.npz files) or source: {', '.join(BUILT_IN)}, or a class "
            "package.module:Class; or import samples: `ternmesh import`"
        )
    return held_out, files


def _open_samples(config: NodeConfig, package: ModelPackage, database: Database) -> NodeData:
    held_out, files = open_files(config, package)
    data = config.data
    if data.source is None:
        assert files is not None
        return NodeData(files, held_out, files)
    folder = None if data.source_path is None else Path(data.source_path)
    with _about("data"):
        source = make_source(data.source, data.options, folder, package)
    buffer = ReplayBuffer(database, package, data.replay_samples_max, data.replay_bytes_max)
    if buffer.capacity < config.training.samples_min:
        raise DataError(
            f"the replay buffer has room for {buffer.capacity} samples, and training.samples_min "
            f"is {config.training.samples_min}: raise data.replay_samples_max or "
            "data.replay_bytes_max"
        )
    buffer.keep_s = data.keep_days * DAY_S
    buffer.load()
    training = buffer if files is None else Rehearsal(buffer, files)
    return NodeData(training, held_out, files, Feed(source, buffer, data.poll_s))


def open_knowledge(config: NodeConfig, package: ModelPackage) -> ProbeSet | None:
    """The probe set that the configuration names, if it names one; DataError."""
    settings = config.knowledge
    if settings.path is None:
        return None
    with _about("knowledge"):
        return open_probe_set(Path(settings.path), package, settings, settings.identity)


@contextmanager
def _about(table: str) -> Iterator[None]:
    """Add the configuration's table to the message of a DataError."""
    try:
        yield
    except DataError as error:
        raise DataError(f"[{table}]: {error}") from error
