"""One rank, started by torchrun: `torchrun --nproc-per-node N -m host.pipeline CONFIG`."""

import os
import sys
import time
from pathlib import Path

from host.pipeline import agreement
from host.pipeline.config import read_pipeline_config
from ternmesh.errors import TernmeshError


def main(arguments: list[str]) -> int:
    """Run the rank that torchrun's variables name; returns its exit code."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        config = read_pipeline_config(Path(arguments[0]))
        agreement.check_world(config.stages, config.replicas.count, ranks)
        from host.pipeline.rank import run_rank  # torch takes its time to load

        run_rank(config, rank, ranks)
    except TernmeshError as error:
        agreement.end_with(str(error), rank)
        # torchrun ends the other ranks with the first one: they shall have said it, too.
        time.sleep(agreement.SEEN_S)
        return agreement.REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
