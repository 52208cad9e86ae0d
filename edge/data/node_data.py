"""The data of a node, as its configuration names it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from edge.config import DataConfig, EvaluateConfig, NodeConfig
from edge.data.buffer import DAY_S, ReplayBuffer
from edge.data.feed import Feed, Rehearsal
from edge.data.front import Front
from edge.data.gate import SetAside, aside_status
from edge.data.heard import HeardWords
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
from edge.data.speech import SHARE, shipped_speech
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
    damaged: SetAside = field(default_factory=SetAside)  # what was to be one of these two
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
        """What of all of it the model cannot compute, and the files that cannot be read."""
        known = [data.aside for data in (self.files, self.held_out) if data is not None]
        live = SetAside() if self.feed is None else self.feed.buffer.aside
        return aside_status(*known, self.damaged, live, in_source=live.count)

    def close(self) -> None:
        if self.feed is not None:
            self.feed.close()


def open_data(
    config: NodeConfig, package: ModelPackage, database: Database, front: Front | None = None
) -> NodeData:
    """The data that the configuration names, past the front, and the probe set; DataError."""
    data = _open_samples(config, package, database, front)
    probe = open_knowledge(config, package, front)
    if front is not None:
        front.prune()
    if probe is None:
        return data
    if data.held_out is None:
        _log.warning("[knowledge] without [evaluate]: a lie is learned as anything else")
    return replace(data, knowledge=BoardKnowledge(probe, data.training))


def open_files(
    config: NodeConfig, package: ModelPackage
) -> tuple[FolderData | None, FolderData | None, SetAside]:
    """The files to evaluate and to train on, and what could not be read in their place.

    DataError where a board without a source has none to train on, or none that [evaluate] names.
    """
    data, damaged = config.data, SetAside()

    def opened(table: str, settings: DataConfig | EvaluateConfig, name: str) -> FolderData | None:
        is_past = settings.path is None
        path = Path(settings.path or Path(config.state_dir, HISTORY, name))
        if is_past and not path.exists():
            return None
        try:
            return open_folder(path, package.outside(), NpzSettings() if is_past else settings)
        except DataError as error:
            why = f"{error} (`ternmesh import` wrote it: import again, or delete it)"
            about = ("what was imported", why) if is_past else (f"[{table}]", str(error))
            if data.source is None and (settings is data or not is_past):
                raise DataError(": ".join(about)) from error
            damaged.add(*about, is_file=True)
            _log.warning("set aside: %s: %s", *about)
            return None

    held_out = opened("evaluate", config.evaluate, HELD_OUT)
    files = opened("data", data, TRAIN)
    if data.source is None and data.path and files and len(files) < config.training.samples_min:
        aside = f", and {aside_status(files.aside).sentence()}" if files.aside.newest else ""
        least = f"training.samples_min is {config.training.samples_min}: add some"
        raise DataError(f"{data.path} holds {len(files)} samples{aside}: {least}")
    if data.source is None and files is None:
        raise DataError(
            f"data needs path (.npz files) or source: {', '.join(BUILT_IN)}, or a class "
            "package.module:Class; or import samples: `ternmesh import`"
        )
    return held_out, files, damaged


def _open_samples(
    config: NodeConfig, package: ModelPackage, database: Database, front: Front | None
) -> NodeData:
    held_out, files, damaged = open_files(config, package)
    if front is not None:
        held_out, files = (one and front.data(one) for one in (held_out, files))
    data = config.data
    if data.source is None:
        assert files is not None
        return NodeData(files, held_out, files, damaged)
    folder = None if data.source_path is None else Path(data.source_path)
    with _about("data"):
        source = make_source(data.source, data.options, folder, package.outside())
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
    if (speech := shipped_speech(package)) is not None:
        training = Rehearsal(training, speech, SHARE)
    outside, words = package.outside(), None
    if outside.front is not None and outside.front.rate:
        words = HeardWords(outside, buffer.values)
    feed = Feed(source, buffer, data.poll_s, front, words)
    return NodeData(training, held_out, files, damaged, feed)


def open_knowledge(
    config: NodeConfig, package: ModelPackage, front: Front | None
) -> ProbeSet | None:
    """The probe set that the configuration names, if it names one; DataError."""
    settings = config.knowledge
    if settings.path is None:
        return None
    with _about("knowledge"):
        return open_probe_set(Path(settings.path), package, settings, settings.identity, front)


@contextmanager
def _about(table: str) -> Iterator[None]:
    """Add the configuration's table to the message of a DataError."""
    try:
        yield
    except DataError as error:
        raise DataError(f"[{table}]: {error}") from error
