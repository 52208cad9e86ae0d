"""`python -m experiments NAME ...`: repeat published work and measure it here.

exit codes:
  0  done
  1  cannot start or continue; a message on stderr says why
  2  the command line is wrong, or the folder holds another experiment
  130  interrupted; `transfer` continues by the same command, `m3` begins anew
"""

import argparse
import importlib
import sys
from collections.abc import Sequence

from ternmesh.config import ConfigError
from ternmesh.errors import TernmeshError
from ternmesh_service.commands import as_run
from transports.base import TransportError

FAILED, MISUSED, INTERRUPTED = 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiment that the command line names; returns its exit code."""
    parser = argparse.ArgumentParser(
        "python -m experiments",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=("m3", "transfer"))
    parser.add_argument("options", nargs=argparse.REMAINDER, help="NAME --help lists them")
    chosen = parser.parse_args(arguments)
    try:
        importlib.import_module(f"experiments.{chosen.name}.command").main(chosen.options)
    except ConfigError as error:
        return _fail(error, MISUSED)
    except (TernmeshError, TransportError) as error:
        return _fail(error, FAILED)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    return 0


def _fail(message: object, code: int) -> int:
    print(f"experiments: {as_run(str(message))}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
