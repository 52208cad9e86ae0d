"""One rank: `python -m host.pipeline CONFIG RANK`. `ternmesh pipeline train` starts all of them."""

import argparse
import json
import logging
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path

from host.pipeline.agreement import GONE, end_with
from host.pipeline.config import read_pipeline_config
from host.pipeline.launch import REFUSED
from host.pipeline.meeting import place_of
from host.pipeline.wire import LinkError
from ternmesh.errors import TernmeshError


def main(arguments: list[str]) -> int:
    """Run a rank; returns the exit code."""
    parser = argparse.ArgumentParser("host.pipeline")
    parser.add_argument("config", type=Path)
    parser.add_argument("rank", type=int)
    parser.add_argument("--insecure", action="store_true", help="no TLS between machines")
    parser.add_argument(
        "--supervised",
        action="store_true",
        help="read addresses, a secret and a descriptor as JSON from stdin; end when it is closed",
    )
    given = parser.parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    try:
        config = read_pipeline_config(given.config)
        addresses, token, listening = list(config.addresses), "", None
        if given.supervised:
            addresses, token, listening = json.loads(sys.stdin.buffer.readline())
            threading.Thread(target=_end_with_parent, daemon=True).start()
        place = place_of(config, given.rank, addresses, token, given.insecure)
        place = replace(place, listening=listening)
        from host.pipeline.rank import run_rank  # torch loads slowly

        run_rank(config, place)
    except TernmeshError as error:
        end_with(str(error), given.rank)
        return GONE if isinstance(error, LinkError) else REFUSED
    return 0


def _end_with_parent() -> None:
    """Nobody would start this rank again, or end it, once its parent is gone."""
    while os.read(sys.stdin.fileno(), 1):  # a buffer would be locked where this process ends
        pass
    os._exit(GONE)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # links still read in threads: torch aborts where Python ends one inside of it
