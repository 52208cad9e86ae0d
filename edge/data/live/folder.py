"""A source that takes files of sound, numbers and pictures as they appear in a folder."""

import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from edge.data.decode import SUFFIXES, read_sample
from edge.data.live.base import LiveSource
from edge.data.live.options import FolderOptions
from edge.data.sources import Label, Sample, label_arrays
from edge.errors import DataError
from ternmesh.model_package import ModelPackage
from ternmesh_service.status import LiveStatus

FILES_MAX = 16  # read in one poll
ENTRIES_MAX = 10_000  # looked at in one poll
NAME_MAX = 100  # characters of a file's name in its key

State = tuple[int, int]  # of a file: when it was changed, in ns, and its size


class FolderSource(LiveSource):
    """The files in a folder and in the folders in it, each once it no longer changes.

    A file is labelled by the name of its folder, or by its own name before any `_` or `-`.
    """

    def __init__(self, options: FolderOptions, package: ModelPackage) -> None:
        super().__init__(options.rate_max)
        self.last_refusal = ""
        self._path = Path(options.path)
        self._package = package
        self._seen: dict[str, State] = {}  # in the last poll
        self._done: dict[str, State] = {}  # when they were read

    @property
    def has_more(self) -> bool:
        """Whether there are files that were not taken yet."""
        return any(state != self._done.get(path) for path, state in self._seen.items())

    def status(self) -> LiveStatus:
        return replace(super().status(), last_refusal=self.last_refusal or None)

    def _read(self, now: float) -> list[Sample | Label]:
        old, self._seen = self._seen, dict(self._files())
        self._done = {path: state for path, state in self._done.items() if path in self._seen}
        ready = [
            path
            for path, state in sorted(self._seen.items())
            if old.get(path) == state != self._done.get(path)
        ]
        chosen = ready[: min(FILES_MAX, self._free(now))]
        self._done |= {path: self._seen[path] for path in chosen}
        return [item for path in chosen for item in self._items(Path(path))]

    def _files(self) -> Iterator[tuple[str, State]]:
        left = ENTRIES_MAX
        folders = [self._path]
        for folder in folders:
            try:
                entries = [*islice(os.scandir(folder), left + 1)]
            except OSError:
                if folder == self._path:
                    raise
                continue  # lost+found of a disk, or a folder that was just deleted
            if (left := left - len(entries)) < 0:
                raise DataError(f"{self._path} has over {ENTRIES_MAX} files: remove some")
            for entry in entries:
                if entry.name.startswith("."):
                    continue  # such as those that a program is still writing
                try:
                    if entry.name.lower().endswith(SUFFIXES) and entry.is_file():
                        state = entry.stat()
                        yield entry.path, (state.st_mtime_ns, state.st_size)
                    elif folder == self._path and entry.is_dir():
                        folders.append(Path(entry.path))
                except FileNotFoundError:
                    continue  # it was just renamed or deleted
                except OSError as error:  # such as a link to itself, or a dead mount
                    self._note(f"{entry.path}: {error.strerror}")

    def _note(self, refusal: str) -> None:
        self.last_refusal = refusal
        self.left_out.add("file that cannot be used", refusal)

    def _items(self, path: Path) -> list[Sample | Label]:
        try:
            sample = read_sample(path, self._package)
        except DataError as error:
            self._note(str(error))
            return []
        except OSError as error:
            self._note(f"{path}: {error.strerror}")
            return []
        # The same key after a restart, so that no sample is stored twice.
        name = str(path.relative_to(self._path))
        key = f"{name[-NAME_MAX:]}@{self._seen[str(path)][0]:x}"
        own = path.stem.replace("-", "_").split("_")[0]
        is_label = own in self._package.labels
        try:
            label = label_arrays(self._package, own if is_label else Path(name).parent.name)
        except DataError:
            self.left_out.add("no label in the name", name)
            return [Sample(key, sample)]
        return [Sample(key, sample), Label(key, label)]
