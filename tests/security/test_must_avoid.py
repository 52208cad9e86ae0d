"""What the source must never do: unpickle, run text, ask a shell, extract archives, log secrets.

Behaviour is tested beside the code, in `test_hostile_input.py`, and by the fuzz corpus.
"""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ROOTS = tuple(PROJECT["tool"]["importlinter"]["root_packages"])
PACKAGES = (*ROOTS, "packaging")
SHIPPED = tuple(package for package in ROOTS if package not in ("bench", "experiments", "fuzz"))
Found = list[str]


@cache
def _nodes() -> tuple[tuple[str, ast.AST], ...]:
    """Every node of every file, with the file's name."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    named = ((str(path.relative_to(ROOT)), ast.parse(path.read_text())) for path in paths)
    kinds = (ast.Import, ast.ImportFrom, ast.Call, ast.Compare, ast.Attribute)
    return tuple(
        (name, node) for name, tree in named for node in ast.walk(tree) if isinstance(node, kinds)
    )


@cache
def _calls() -> tuple[tuple[str, str, ast.Call], ...]:
    found = ((name, node) for name, node in _nodes() if isinstance(node, ast.Call))
    return tuple((f"{name}:{node.lineno}", ast.unparse(node.func), node) for name, node in found)


def nodes(packages: tuple[str, ...] = PACKAGES) -> Iterator[tuple[str, ast.AST]]:
    return (item for item in _nodes() if item[0].partition("/")[0] in packages)


def imports(packages: tuple[str, ...] = PACKAGES) -> Iterator[tuple[str, str]]:
    """Where a module is imported, and which, wherever in the file that stands."""
    for name, node in nodes(packages):
        if isinstance(node, ast.Import):
            yield from ((f"{name}:{node.lineno}", alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            where = f"{name}:{node.lineno}"
            yield from ((where, f"{node.module}.{alias.name}") for alias in node.names)


def calls(packages: tuple[str, ...] = PACKAGES) -> Iterator[tuple[str, str, ast.Call]]:
    return (item for item in _calls() if item[0].partition("/")[0] in packages)


def of(module: str, forbidden: set[str]) -> bool:
    return bool({module, module.split(".")[0]} & forbidden)


UNPICKLING = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
UNPICKLING |= {"persistqueue", "jsonpickle", "torch.load", "torch.export.load"}
# Modules that packages must not import, wherever in a file; and why.
FORBIDDEN_MODULES: list[tuple[set[str], tuple[str, ...]]] = [
    (UNPICKLING, PACKAGES),
    ({"yaml", "ruamel", "code", "codeop"}, PACKAGES),  # text that is run as code
    ({"Crypto", "Cryptodome", "nacl", "oqs", "ecdsa", "RNS", "LXMF"}, PACKAGES),
    # Data sets of a benchmark may be .gz; no packet or message is.
    (
        {"bz2", "lzma", "zstandard", "brotli", "lz4", "snappy", "gzip"},
        ("ternmesh", "ternmesh_store", "transports", "edge"),
    ),
    # Bearers have their own libraries; nothing of ours fetches a page or a file.
    ({"urllib.request", "requests", "httpx", "aiohttp", "ftplib", "http.client"}, SHIPPED),
]
FORBIDDEN_CALLS = {"torch.load", "torch.jit.load", "torch.export.load", "torch.package"}
FORBIDDEN_CALLS |= {"read_pickle", "eval", "exec", "compile", "os.system", "os.popen", "yaml.load"}
FORBIDDEN_CALLS |= {"__import__", "shutil.unpack_archive"}
# Arguments that have only one value, where they are given.
VALUES = {"allow_pickle": "False", "weights_only": "True", "shell": "False"}


@pytest.mark.parametrize(("modules", "packages"), FORBIDDEN_MODULES)
def test_a_module_that_is_forbidden_is_not_imported(modules, packages) -> None:
    for where, module in imports(packages):
        if where.startswith("ternmesh_service/webhook.py") and module == "http.client":
            continue  # it posts to the address that its owner has set
        names = {module, module.split(".")[0], module.rpartition(".")[0]}
        assert not names & modules, (where, module)


def test_no_function_is_called_that_is_forbidden() -> None:
    for where, called, node in calls():
        assert called not in FORBIDDEN_CALLS, where
        for keyword in node.keywords:
            value = VALUES.get(keyword.arg or "")
            assert value in (None, ast.unparse(keyword.value)), where


def test_no_archive_is_extracted() -> None:
    """`zipfile` tells whether a file is an .npz and how long its list of names is, and names its
    error; numpy reads it by name.
    """
    allowed = {"is_zipfile", "_EndRecData", "BadZipFile"}
    found: Found = []
    for name, node in nodes():
        if isinstance(node, ast.Attribute):
            of_zip = isinstance(node.value, ast.Name) and node.value.id == "zipfile"
            opened = of_zip and node.attr not in allowed and name.split("/")[0] in SHIPPED
            if opened or node.attr in ("extractall", "extract"):
                found.append(f"{name}:{node.lineno} {node.attr}")
    assert found == []
    tar = [where for where, name in imports() if name.startswith("tarfile.")]
    tar += [where for where, called, _ in calls(SHIPPED) if called.startswith("tarfile.")]
    assert tar == []


def test_nothing_that_arrives_is_decompressed_but_a_release() -> None:
    """That is, up to the size that its manifest gives, after the manifest's signatures.

    And what an aggregator shows in its own session, up to one byte for each number of the adapter.
    """
    found = [where for where, called, _ in calls() if called.startswith("zlib.decompress")]
    allowed = {"ternmesh/release.py", "ternmesh/federated/audit.py"}
    assert {where.split(":")[0] for where in found} == allowed


# What runs on a board or reads what came from outside; `models` exports on the owner's machine.
BOARD = ("ternmesh", "ternmesh_store", "transports", "edge", "host", "ternmesh_cli")


def test_no_model_is_converted_nor_read_by_other_ways() -> None:
    """Models reach onnxruntime through one module, as files that were checked, or not at all."""
    modules = {"onnx", "onnx_ir", "onnxscript", "onnxruntime"}
    found = {where.partition(":")[0] for where, name in imports(BOARD) if of(name, modules)}
    assert found == {"edge/onnx/session.py"}
    unwanted = ("convert_version", "external_data", "from_external", "to_external")
    everywhere = chain(imports(SHIPPED), ((where, name) for where, name, _ in calls(SHIPPED)))
    assert [item for item in everywhere if any(word in item[1] for word in unwanted)] == []
    loaded = [node for _, called, node in calls(BOARD) if called.endswith("InferenceSession")]
    # From bytes, data outside the file would be looked for in the current directory.
    assert [ast.unparse(node.args[0]) for node in loaded] == ["str(self._path)"]


def test_no_cipher_comes_without_a_tag() -> None:
    """Of ciphers there is AES-CCM alone; whoever adds one has to come by here."""
    primitives = "cryptography.hazmat.primitives."
    allowed = {"ciphers.aead.AESCCM", "hashes", "hashes.SHA256", "kdf.hkdf.HKDF"}
    kinds = ("asymmetric.", "serialization.")  # signatures and key agreement; PEM files
    found = [where for where, name in imports(("ternmesh",)) if of(name, {"cryptography"})]
    assert {where.split(":")[0] for where in found} == {"ternmesh/security/primitives.py"}
    for where, name in imports(SHIPPED):
        if name.startswith(primitives):
            short = name.removeprefix(primitives)
            assert short in allowed or short.startswith(kinds), (where, name)


# A comparison that ends at the first other byte tells how far a guess was right. These compare
# nothing that is secret.
NOT_SECRET = {
    "tag != _tag(content)": "suite 0 has no key: its tag finds damage and nothing else",
    "symbol.tag != offer.digest[:2]": "the head of a hash that is sent in clear to all members",
}
SECRETS = ("tag", "mac", "password", "secret", "token", "proof")


def test_what_proves_knowledge_of_a_secret_is_not_compared_with_equals() -> None:
    found: Found = []
    for name, node in nodes(SHIPPED):
        if not isinstance(node, ast.Compare):
            continue
        if not any(isinstance(operator, ast.Eq | ast.NotEq) for operator in node.ops):
            continue
        sides = (node.left, *node.comparators)
        words = {word for side in sides for word in _words(side)}
        is_constant = any(isinstance(side, ast.Name) and side.id.isupper() for side in sides)
        text = ast.unparse(node)
        if words & set(SECRETS) and not is_constant and text not in NOT_SECRET:
            found.append(f"{name}:{node.lineno} {text}")
    assert found == []


def _words(side: ast.expr) -> set[str]:
    """The parts of the name that a side of a comparison ends in."""
    if isinstance(side, ast.Call):
        side = side.func
    name = side.attr if isinstance(side, ast.Attribute) else getattr(side, "id", "")
    return set(str(name).lower().strip("_").split("_"))


def test_no_log_line_is_given_a_payload_or_a_key() -> None:
    """Lengths and counts may be logged; bytes that came, and what is secret, may not."""
    levels = {"debug", "info", "warning", "error", "critical", "exception", "log"}
    secret = {"payload", "password", "body", "frame", "secret", "private", "seed", "plaintext"}
    found: Found = []
    for where, called, node in calls(SHIPPED):
        if called.rpartition(".")[2] in levels and called.startswith(("_log.", "log.", "logging.")):
            for argument in node.args[1:]:
                if _words(argument) & secret and not isinstance(argument, ast.Call):
                    found.append(f"{where} {ast.unparse(argument)}")
    assert found == []


def test_importing_does_nothing_but_import() -> None:
    """No connection, no program, no file: who imports a decoder wants nothing else."""
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for package in ("ternmesh", "ternmesh_store", "transports", "edge")
        for path in sorted((ROOT / package).rglob("*.py"))
    ]
    script = f"""
import importlib, sys
stop = ("socket.connect", "socket.bind", "subprocess.Popen", "os.system", "os.mkdir", "os.remove")
def hook(event, arguments):
    if watching and event in stop:
        raise SystemExit(f"{{event}} at import: {{arguments}}")
    if watching and event == "open" and arguments[1] and set(str(arguments[1])) & set("wax+"):
        raise SystemExit(f"a file is written at import: {{arguments}}")
sys.dont_write_bytecode = True
watching = False
for name in ("numpy", "onnxruntime", "bleak", "bumble", "serial", "paho.mqtt.client", "amqtt"):
    try:
        importlib.import_module(name)
    except ImportError:
        pass
sys.addaudithook(hook)
watching = True
for name in {names!r}:
    importlib.import_module(name)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
