"""What a target ran of our code, and whether that is still the same code.

    python -m bench.fuzz_reach TARGET FOLDER

runs the target's seeds and the inputs in the folder's `corpus/`, in a process in which nothing has
been made or cached before, and writes the functions that they called to the folder's `reach.json`.
"""

import ast
import hashlib
import itertools
import json
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any

from bench.fuzz_files import CORPUS, INSTRUMENTED, REACH
from bench.fuzz_targets.target import Target
from bench.parts import without_docstrings

ROOT = Path(__file__).parents[1]
# By module the functions that were called: "read", or "Reader.read" of a class.
Reach = Mapping[str, Iterable[str]]
_OURS = tuple(str(ROOT / name.replace(".", "/")) for name in INSTRUMENTED)
_Def = (ast.FunctionDef, ast.AsyncFunctionDef)


class Recorder:
    """Notes which of our functions are called; for `sys.setprofile`."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, str]] = set()

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        """One event of the interpreter."""
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(_OURS):
            self._seen.add((code.co_filename, code.co_qualname))

    def run(self, target: Target, inputs: Iterable[bytes]) -> None:
        """Run inputs and note what they call."""
        for data in inputs:
            sys.setprofile(self)  # anew: an input that recurses too deep has ended it
            try:
                target.run(data)
            finally:
                sys.setprofile(None)

    def reach(self) -> dict[str, list[str]]:
        """What was called so far; functions in functions are part of them."""
        found: dict[str, set[str]] = {}
        for file, qualified in self._seen:
            name = ".".join(qualified.partition(".<locals>")[0].split(".")[:2])
            module = ".".join(Path(file).relative_to(ROOT).with_suffix("").parts)
            if "<" not in name:
                found.setdefault(module.removesuffix(".__init__"), set()).add(name)
        return {module: sorted(names) for module, names in sorted(found.items())}


def fingerprint(settings: object, reach: Reach) -> str:
    """16 hex digits for `settings` and the code that was reached.

    That is: the functions that were called, and what they name of their modules' constants, classes
    and what makes these. Other functions, comments and docstrings do not count.
    """
    digest = hashlib.sha256(repr(settings).encode())
    for module, name, text in sorted(_slices(reach)):
        digest.update(f"{module} {name} {text}\n".encode())
    return digest.hexdigest()[:16]


def changed_since(reach: Reach, moment: float) -> bool:
    """Whether a file that was reached is younger than `moment` (seconds, as files have it)."""
    files = [file for module in reach if (file := file_of(module))]
    return len(files) < len(list(reach)) or any(f.stat().st_mtime > moment for f in files)


def file_of(module: str) -> Path | None:
    """The source of one of our modules."""
    path = ROOT / module.replace(".", "/")
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)


class _Module:
    """The top-level names of a module: its definitions, its imports, and what always runs."""

    def __init__(self, source: str) -> None:
        tree = without_docstrings(ast.parse(source))
        self.definitions: dict[str, list[ast.stmt]] = {}
        self.imports: dict[str, tuple[str, str]] = {}
        self.always: list[ast.stmt] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    self.imports[alias.asname or alias.name] = (node.module, alias.name)
        for statement in tree.body:
            if names := list(_defined(statement)):
                for name in names:
                    self.definitions.setdefault(name, []).append(statement)
            elif not isinstance(statement, ast.Import | ast.ImportFrom | ast.Pass):
                self.always.append(statement)


def _defined(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement defines where it stands at the top."""
    if isinstance(statement, (*_Def, ast.ClassDef)):
        yield statement.name
    elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            yield from (node.id for node in ast.walk(target) if isinstance(node, ast.Name))


@lru_cache(maxsize=1024)
def _read(source: str) -> _Module:
    return _Module(source)


def _slices(reach: Reach) -> Iterator[tuple[str, str, str]]:
    """Module, name and code of all that the functions in `reach` run and name.

    A function that is only named by functions counts with its body where it was called; one that a
    constant or a class names counts always, as importing may call it.
    """
    called = {module: set(names) for module, names in reach.items()}
    wanted = [(m, name.partition(".")[0], False) for m in called for name in called[m]]
    done: set[tuple[str, str, bool]] = set()
    while wanted:
        item = wanted.pop()
        module, name, is_whole = item
        if item in done or (file := file_of(module)) is None:
            continue
        done.add(item)
        source = _read(file.read_text())
        if (module, "", True) not in done:
            wanted.append((module, "", True))
        if name in source.imports:
            wanted += _imported(*source.imports[name], is_whole=is_whole)
            yield module, name, repr(source.imports[name])
        for node in source.definitions.get(name, []) if name else source.always:
            kept = list(_kept(node, called.get(module, set()), is_whole=is_whole))
            for part, as_whole in kept:
                wanted += [(*place, as_whole) for place in _named(part, module, source)]
            yield module, name, " ".join(ast.dump(part) for part, _ in kept)


def _kept(node: ast.stmt, called: set[str], *, is_whole: bool) -> Iterator[tuple[ast.AST, bool]]:
    """What counts of a definition, and whether the functions that it names count as well."""
    if isinstance(node, _Def):
        if is_whole or node.name in called:
            yield node, is_whole
    elif isinstance(node, ast.ClassDef):
        for part in (*node.decorator_list, *node.bases, *node.keywords):
            yield part, True
        for inner in node.body:
            if not isinstance(inner, _Def):
                yield inner, True
            elif is_whole or f"{node.name}.{inner.name}" in called:
                yield inner, is_whole
            else:
                yield ast.Name(inner.name), False
    else:
        yield node, True


def _named(node: ast.AST, module: str, source: _Module) -> Iterator[tuple[str, str]]:
    """The top-level names, of this module and of others, that code uses."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and part.id in source.definitions.keys() | source.imports:
            yield module, part.id
        elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
            where = ".".join(source.imports.get(part.value.id, ()))
            if where and file_of(where):
                yield where, part.attr


def _imported(module: str, name: str, *, is_whole: bool) -> list[tuple[str, str, bool]]:
    """What an import asks for: a name, unless it is a module, of which attributes are asked for."""
    return [] if file_of(f"{module}.{name}") else [(module, name, is_whole)]


def main() -> None:
    """Record what the seeds and the inputs reach."""
    from bench.fuzz_targets import TARGETS

    logging.disable()
    target, folder, recorder = TARGETS[sys.argv[1]], Path(sys.argv[2]), Recorder()
    inputs = [path.read_bytes() for path in sorted((folder / CORPUS).iterdir())]
    recorder.run(target, itertools.chain(target.seeds(), inputs))
    (folder / REACH).write_text(json.dumps(recorder.reach()))


if __name__ == "__main__":
    main()
