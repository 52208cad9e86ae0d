"""`python -m bench NAME [--quick] [--keep]`: measure one claim. Exit code 0 when it ran."""

import argparse
import importlib
import inspect
from pathlib import Path

from bench.result import commit, is_clean, show
from experiments.data import DataMissing

FILES = sorted(Path(__file__).parent.glob("*.py"))
NAMES = [path.stem for path in FILES if "\ndef measure(" in path.read_text()]


def main() -> None:
    """Run the named benchmark, or regenerate the figures of the READMEs."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("name", choices=(*NAMES, "readme"))
    parser.add_argument("--quick", action="store_true", help="a coarse answer in under a minute")
    parser.add_argument("--keep", action="store_true", help="write the result to docs/results/")
    parser.add_argument("--check", action="store_true", help="readme: only compare")
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="FILE",
        help="long runs: keep finished parts in FILE, and skip those that it holds",
    )
    arguments = parser.parse_args()
    module = importlib.import_module(f"bench.{arguments.name}")
    if arguments.name == "readme":
        module.main(check=arguments.check)
        return
    measured = commit()
    if arguments.keep and not is_clean(measured):
        parser.error("--keep needs a clean tree: commit the changes first")
    accepted = inspect.signature(module.measure).parameters
    options = {
        name: value
        for name, value in vars(arguments).items()
        if name in accepted and value is not None
    }
    try:
        result = module.measure(**options)
    except DataMissing as error:
        parser.error(str(error))
    show(result, measured=measured, keep=arguments.keep)


if __name__ == "__main__":
    main()
