"""A source that takes files of sound, numbers and pictures as they appear in a folder."""

import hashlib
import os
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from edge.data.decode import SUFFIXES, read_sample
from edge.data.live.base import LiveSource
from edge.data.live.options import FolderOptions
from edge.data.sources import Label, Sample, label_arrays
from edge.errors import DataError
from ternmesh.model_package import ModelPackage

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
        self._path = Path(options.path)
        self._package = package
        self._seen: dict[str, State] = {}  # in the last poll
        self._unread: dict[str, str] = {}  # the same of what is not read, with the reasons
        self._done: dict[str, State] = {}  # when they were read
        self._contents: dict[str, bytes] = {}  # the hash of their samples
        self._copies: dict[str, str] = {}  # the files with the same sample, which is read once

    @property
    def has_more(self) -> bool:
        """Whether there are files that were not taken yet."""
        return any(state != self._done.get(path) for path, state in self._seen.items())

    def _read(self, now: float) -> list[Sample | Label]:
        unread: dict[str, str] = {}
        old, self._seen = self._seen, dict(self._files(unread))
        for path in sorted(unread.keys() - self._unread.keys()):
            self._leave_out(unread[path], path)
        self._unread = unread
        self._done = {path: state for path, state in self._done.items() if path in self._seen}
        self._contents = {path: one for path, one in self._contents.items() if path in self._seen}
        for path in [path for path, first in self._copies.items() if first not in self._seen]:
            del self._copies[path]  # it is what the first was moved to: read it
            self._done.pop(path, None)
        ready = [
            path
            for path, state in sorted(self._seen.items())
            if old.get(path) == state != self._done.get(path)
        ]
        chosen = ready[: min(FILES_MAX, self._free(now))]
        self._done |= {path: self._seen[path] for path in chosen}
        return [item for path in chosen for item in self._items(Path(path))]

    def _files(self, unread: dict[str, str]) -> Iterator[tuple[str, State]]:
        """The files with samples; `unread` gets why other entries are left out."""
        left = ENTRIES_MAX
        folders = [self._path]
        for folder in folders:
            try:
                entries = [*islice(os.scandir(folder), left + 1)]
            except OSError:
                if folder == self._path:
                    raise
                unread[str(folder)] = "folder that cannot be read"  # such as lost+found of a disk
                continue
            if (left := left - len(entries)) < 0:
                raise DataError(f"{self._path} has over {ENTRIES_MAX} files: remove some")
            for entry in entries:
                if entry.name.startswith("."):
                    continue  # such as those that a program is still writing
                try:
                    state = entry.stat()
                    if entry.is_dir() and folder == self._path:
                        folders.append(Path(entry.path))
                    elif entry.is_dir():
                        unread[entry.path] = "folder in a folder of the source"
                    elif not entry.name.lower().endswith(SUFFIXES):
                        unread[entry.path] = f"file that is none of {', '.join(SUFFIXES)}"
                    else:
                        yield entry.path, (state.st_mtime_ns, state.st_size)
                except OSError as error:  # such as a link to itself, or a dead mount
                    if not isinstance(error, FileNotFoundError) or entry.is_symlink():
                        unread[entry.path] = f"file that cannot be used ({error.strerror})"

    def _leave_out(self, reason: str, text: str) -> None:
        # Without the path of our folder there is room for what is wrong.
        self.left_out.add(reason, text.replace(f"{self._path}/", ""))

    def _items(self, path: Path) -> list[Sample | Label]:
        # A name that is no UTF-8 must still be a key.
        name = os.fsencode(path.relative_to(self._path)).decode(errors="backslashreplace")
        try:
            sample = read_sample(path, self._package, partial(self.left_out.add, value=name))
        except (DataError, OSError) as error:
            wrong = f"{path}: {error.strerror}" if isinstance(error, OSError) else str(error)
            self._leave_out("file that cannot be used", wrong)
            return []
        content = hashlib.sha256(b"".join(map(np.ndarray.tobytes, sample.values()))).digest()
        same = (other for other, one in self._contents.items() if one == content)
        if (first := next(same, str(path))) != str(path):
            self._copies[str(path)] = first
            self._leave_out("file with the same content as another", f"{path} is {first}")
            return []
        self._contents[str(path)] = content
        # The same key after a restart, so that no sample is stored twice.
        file = name[-NAME_MAX:]
        key = f"{file}@{self._seen[str(path)][0]:x}"
        own = path.stem.replace("-", "_").split("_")[0]
        said = own if own in self._package.labels else Path(name).parent.name
        if not said:
            return [Sample(key, sample, file)]  # it waits for a label from elsewhere
        try:
            return [Sample(key, sample, file), Label(key, label_arrays(self._package, said))]
        except DataError:
            self.left_out.add("sample of a folder that is called by no label", name)
            return [Sample(key, sample, file)]
