"""The size and the shape of the repository: lines, import circles, doubled names, wide classes.

A line that is only a comment does not count, nor does an example of a docstring.
"""

import ast
import doctest
import io
import subprocess
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.result import Figure, Result

ROOT = Path(__file__).parents[1]
PRODUCT = (
    "ternmesh/",
    "ternmesh_service/",
    "ternmesh_store/",
    "transports/",
    "models/",
    "edge/",
    "host/",
    "ternmesh_cli/",
    "firmware_tools/",
)
BENCH = ("bench/", "fuzz/", "experiments/")
C_AND_PAGE = ("*.c", "*.h", "*.js", "*.css", "*.html")
ATTRIBUTES_MAX = 25
METHODS_MAX = 45


def measure(*, quick: bool) -> Result:
    """Counts over the files that git tracks; they take seconds, so `quick` is exact too."""
    texts = {path: (ROOT / path).read_text() for path in _tracked("*.py")}
    trees = {path: ast.parse(texts[path]) for path in texts if path.startswith(PRODUCT + BENCH)}
    product = {path: tree for path, tree in trees.items() if path.startswith(PRODUCT)}
    named = defaultdict(list)
    for path, tree in product.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                named[node.name].append((path, node))
    doubled = {
        name: [path for path, _ in places]
        for name, places in named.items()
        if len(places) > 1 and not name.startswith("_")
    }
    circles = import_circles({_module(path): tree for path, tree in trees.items()})
    classes = {name: places[0][1] for name, places in named.items()}
    every = [owner for places in named.values() for _, owner in places]
    attributes = [(owner.name, len(attributes_set(owner, classes))) for owner in every]
    methods = [(owner.name, len(methods_defined(owner, classes))) for owner in every]
    wide = [(name, count) for name, count in attributes if count > ATTRIBUTES_MAX]
    long = [(name, count) for name, count in methods if count > METHODS_MAX]

    def lines(folders: tuple[str, ...]) -> int:
        return sum(counted_lines(texts[path]) for path in texts if path.startswith(folders))

    c_and_page = sum((ROOT / path).read_text().count("\n") for path in _tracked(*C_AND_PAGE))
    figures = {
        "product_lines": Figure(lines(PRODUCT), "<=58200"),
        "bench_lines": Figure(lines(BENCH), "<=14000"),
        "test_lines": Figure(lines(("tests/",)), "<=52000"),
        "c_and_page_lines": Figure(c_and_page, "<=4539"),
        "import_circles": Figure(len(circles), "<=0"),
        "doubled_class_names": Figure(len(doubled), "<=0"),
        f"classes_over_{ATTRIBUTES_MAX}_attributes": Figure(len(wide), "<=0"),
        f"classes_over_{METHODS_MAX}_methods": Figure(len(long), "<=0"),
    }
    notes = (
        *(f"circle: {', '.join(sorted(circle))}" for circle in circles),
        *(f"class {name}: {', '.join(paths)}" for name, paths in sorted(doubled.items())),
        *(f"class {name} sets {count} attributes" for name, count in sorted(wide)),
        *(f"class {name} has {count} methods" for name, count in sorted(long)),
    )
    return Result("house", figures, {}, notes, quick=quick)


def counted_lines(text: str) -> int:
    """The lines of a Python file without those of comments and of examples in docstrings."""
    comments = [
        token
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip()
    ]
    examples = 0
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for example in doctest.DocTestParser().get_examples(ast.get_docstring(node) or ""):
                examples += example.source.count("\n") + example.want.count("\n")
    return text.count("\n") - len(comments) - examples


def attributes_set(cls: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> set[str]:
    """The attributes that a class and its base classes among `classes` set on `self`."""
    return {
        node.attr
        for owner in _with_bases(cls, classes)
        for node in ast.walk(owner)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def methods_defined(cls: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> set[str]:
    """The methods of a class and of its base classes among `classes`."""
    return {
        node.name
        for owner in _with_bases(cls, classes)
        for node in owner.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def _with_bases(cls: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> list[ast.ClassDef]:
    bases = [
        classes[base.id] for base in cls.bases if isinstance(base, ast.Name) and base.id in classes
    ]
    return [cls, *(owner for base in bases for owner in _with_bases(base, classes))]


def import_circles(trees: Mapping[str, ast.Module]) -> list[set[str]]:
    """The sets of modules that import each other, at the top level of the module."""
    imports = {name: set(_imports(tree, trees)) - {name} for name, tree in trees.items()}
    reached = {name: _reached(name, imports) for name in imports}
    circles = {frozenset(m for m in reached[name] if name in reached[m]) for name in imports}
    return [set(circle) for circle in circles if circle]


def _reached(start: str, imports: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = imports[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def _imports(tree: ast.Module, known: Mapping[str, ast.Module]) -> Iterator[str]:
    for node in tree.body:
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parts = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [part if part in known else str(node.module) for part in parts]
        yield from (name for name in names if name in known)


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _tracked(*patterns: str) -> list[str]:
    listed = subprocess.check_output(["git", "ls-files", *patterns], cwd=ROOT, text=True)
    return [path for path in listed.splitlines() if (ROOT / path).exists()]
