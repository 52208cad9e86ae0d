"""The house rules that a machine can check: names, sizes, imports, silence about errors."""

import ast
import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FUNCTION_LINES_MAX = 60
TOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
INSTALLED = tuple(TOOLS["hatch"]["build"]["targets"]["wheel"]["packages"])
PACKAGES = tuple(TOOLS["importlinter"]["root_packages"])
SOURCES = sorted(
    path for folder in (*PACKAGES, "packaging") for path in (ROOT / folder).rglob("*.py")
)
TESTS = sorted((ROOT / "tests").rglob("*.py"))
Function = ast.FunctionDef | ast.AsyncFunctionDef


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(tree: ast.AST) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, Function):
            yield node


@pytest.mark.parametrize("package", PACKAGES)
def test_nobody_else_owns_our_package_names(package: str) -> None:
    """`models` or `host` of another wheel would shadow ours: install into an own environment."""
    owners = importlib.metadata.packages_distributions().get(package, ["ternmesh"])
    assert set(owners) == {"ternmesh"}, f"{package} is also installed by {owners}"


@pytest.mark.parametrize("package", PACKAGES)
def test_the_working_tree_is_what_is_imported(package: str) -> None:
    spec = importlib.util.find_spec(package)
    assert spec.origin is not None
    assert Path(spec.origin).parent == ROOT / package


def test_every_package_is_in_the_tools_that_check_it() -> None:
    assert set(TOOLS["mypy"]["files"]) == {*PACKAGES, "packaging", "tests"}
    assert set(INSTALLED) == set(PACKAGES) - {"bench", "experiments", "fuzz"}


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_functions_stay_small(path: Path) -> None:
    for function in functions(ast.parse(path.read_text())):
        lines = (function.end_lineno or function.lineno) - function.lineno + 1
        assert lines <= FUNCTION_LINES_MAX, f"{function.name} has {lines} lines"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_no_error_is_swallowed_in_silence(path: Path) -> None:
    """An error may be passed over only by its name and with the reason beside it."""
    text = path.read_text()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ExceptHandler):
            line = f"line {node.lineno}"
            assert node.type is not None, f"{line}: a bare except"
            if all(isinstance(item, ast.Pass) for item in node.body):
                named = ast.unparse(node.type) not in ("Exception", "BaseException")
                reason = "#" in text.splitlines()[node.body[0].lineno - 1]
                assert (named, reason) == (True, True), f"{line}: an error is swallowed"


def test_cbor_is_read_in_one_place() -> None:  # which refuses tags: some cost hours
    found = [name_of(path) for path in SOURCES if "cbor2.loads(" in path.read_text()]
    assert [name for name in found if not name.startswith("bench")] == ["ternmesh/wire/control.py"]


def test_tests_are_no_packages() -> None:
    assert not [name_of(path) for path in TESTS if path.name == "__init__.py"]


def test_vectors_have_their_script() -> None:
    made = {path.stem for path in (ROOT / "tests" / "vectors").glob("*.json")}
    text = (ROOT / "tests" / "vectors" / "make.py").read_text()
    assert {name for name in made if f'"{name}"' in text} >= {"philox", "controls", "objects"}


def test_the_sections_that_docstrings_name_are_in_the_specification() -> None:
    headings = {
        line.split()[1].rstrip(".")
        for line in (ROOT / "docs" / "SPEC.md").read_text().splitlines()
        if line.startswith("#") and len(line.split()) > 1
    }
    for path in SOURCES:
        for part in path.read_text().split("SPEC.md section ")[1:]:
            number = part.split()[0].rstrip(".,;)\"'")
            assert number in headings, f"{name_of(path)} names section {number}"


def test_imports_point_inward() -> None:
    """The contracts of import-linter: layers, no I/O in the core, torch only where it belongs."""
    beside = Path(sys.executable).with_name("lint-imports")
    program = str(beside) if beside.exists() else shutil.which("lint-imports")
    if program is None:
        pytest.skip("import-linter is not installed: pip install -e '.[dev]'")
    done = subprocess.run(
        [program, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_core_imports_without_any_extra() -> None:
    """The core runs where only its own dependencies are."""
    modules = sorted(
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in (ROOT / "ternmesh").rglob("*.py")
    )
    script = (
        "import sys\n"
        "for name in ('torch', 'onnx', 'onnxruntime', 'paho', 'rich', 'sqlite3'):\n"
        "    sys.modules[name] = None\n"
        f"for name in {modules!r}:\n"
        "    __import__(name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
