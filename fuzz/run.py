"""One fuzz target in this process, with atheris (imported here only).

    python -m fuzz.run TARGET SECONDS FOLDER

The folder gets new inputs, for as long as the run lasts. An input that fails is written to the
corpus of the target, from where the tests run it.
"""

import importlib
import logging
import sys
from pathlib import Path
from typing import Any

from ternmesh.extras import how_to_install

CORPUS = Path(__file__).parents[1] / "tests" / "fuzz_corpus"
INPUT_MAX = 4096  # bytes
PATIENCE_S = 60  # for one input, also on a busy machine
MEMORY_MB = 2048  # of the process
# Branches and comparisons of these packages guide the fuzzer.
_INSTRUMENTED = (
    *("ternmesh", "ternmesh_store", "transports", "models", "edge", "host"),
    *("fuzz", "tomllib"),
)


def main(name: str, seconds: int, folder: Path) -> None:
    """Fuzz until the time is over or an input fails; libFuzzer then ends the process."""
    try:
        atheris: Any = importlib.import_module("atheris")
    except ImportError:
        raise SystemExit(f"fuzzing needs atheris: {how_to_install('fuzz')}") from None
    logging.disable()  # decoders log what they refuse
    atheris.enabled_hooks.add("str")
    with atheris.instrument_imports(include=list(_INSTRUMENTED)):
        table: Any = importlib.import_module("fuzz.table")
    target = table.TARGETS[name]
    for index, seed in enumerate(target.seeds()):
        (folder / f"seed-{index}").write_bytes(seed)
    kept = CORPUS / name
    kept.mkdir(parents=True, exist_ok=True)
    options = {
        "max_total_time": seconds,
        "max_len": INPUT_MAX,
        "timeout": PATIENCE_S,
        "rss_limit_mb": MEMORY_MB,
        "artifact_prefix": f"{kept}/found-",
    }
    arguments = [f"-{key}={value}" for key, value in options.items()]
    atheris.Setup(["fuzz", *arguments, str(folder), str(kept)], target.run)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
