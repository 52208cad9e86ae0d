"""The size and the shape of the repository: lines, import circles, small and doubled things."""

import ast
import subprocess
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
SHARD_LINES = 40
SHORT_BY_NATURE = ("__init__.py", "__main__.py", "errors.py")


def measure(*, quick: bool) -> Result:
    """Counts over the Python files that git tracks; they take seconds, so `quick` is exact too."""
    listed = subprocess.check_output(["git", "ls-files", "*.py"], cwd=ROOT, text=True)
    texts = {path: (ROOT / path).read_text() for path in listed.split()}
    lines = {path: text.count("\n") for path, text in texts.items()}
    ours = {p: ast.parse(t) for p, t in texts.items() if p.startswith(PRODUCT + BENCH)}
    product = {path: tree for path, tree in ours.items() if path.startswith(PRODUCT)}
    classes = defaultdict(list)
    for path, tree in product.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(path)
    doubled = {name: paths for name, paths in classes.items() if len(paths) > 1}
    shards = [
        path for path in product if lines[path] < SHARD_LINES and not path.endswith(SHORT_BY_NATURE)
    ]
    circles = import_circles({_module(path): tree for path, tree in ours.items()})
    figures = {
        "product_lines": Figure(sum(lines[path] for path in product), "<=36000"),
        "bench_lines": Figure(sum(lines[p] for p in ours.keys() - product.keys()), "<=9000"),
        "test_lines": Figure(sum(lines[p] for p in lines if p.startswith("tests/")), "<=39368"),
        "import_circles": Figure(len(circles), "<=0"),
        "shards": Figure(len(shards)),
        "doubled_class_names": Figure(len(doubled)),
    }
    notes = (
        f"shards, below {SHARD_LINES} lines: {', '.join(shards)}",
        *(f"circle: {', '.join(sorted(circle))}" for circle in circles),
        *(f"class {name}: {', '.join(paths)}" for name, paths in sorted(doubled.items())),
    )
    return Result("house", figures, {}, notes, quick=quick)


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
