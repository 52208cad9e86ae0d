"""One rank; torchrun starts it: `torchrun --nproc-per-node N -m host.pipeline CONFIG`."""

import os
import sys
import time
from pathlib import Path

from host.pipeline import agreement
from host.pipeline.config import read_pipeline_config
from ternmesh.errors import TernmeshError


def main(arguments: list[str]) -> int:
    """Run the rank in torchrun's environment variables; returns the exit code."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        config = read_pipeline_config(Path(arguments[0]))
        agreement.check_world(config.stages, config.replicas.count, ranks)
        from host.pipeline.rank import run_rank  # torch loads slowly

        run_rank(config, rank, ranks)
    except TernmeshError as error:
        agreement.end_with(str(error), rank)
        # torchrun ends all ranks when one ends: give the others time to print the reason, too.
        time.sleep(agreement.SEEN_S)
        return agreement.REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
