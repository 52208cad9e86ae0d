"""One board of `python -m bench split`: the shipped program, without torch, on a link with losses.

python -m bench.split_board CONFIG DROP SEED
"""

import json
import sys
import threading
import time
from pathlib import Path

from ternmesh_service.status import to_json

sys.modules["torch"] = None  # type: ignore[assignment]  # importing it raises ImportError

import numpy as np  # noqa: E402

from edge.split.config import read_split_board_config  # noqa: E402
from edge.split.node import run_split_board  # noqa: E402
from ternmesh_cli.process import set_up_logging  # noqa: E402
from tests.faulty import Faults, FaultyTransport  # noqa: E402
from transports.base import Transport  # noqa: E402


def main(config_path: str, drop: str, seed: str) -> None:
    """Run the board until training is done; the last line is its status as JSON."""
    config = read_split_board_config(Path(config_path))
    set_up_logging(config.log_level)
    rng = np.random.default_rng((int(seed), *config.name.encode()))

    def around(transport: Transport) -> Transport:
        faults = Faults(drop=float(drop))
        return FaultyTransport(transport, faults, rng, time.monotonic) if faults.drop else transport

    status = run_split_board(config, threading.Event(), until_finished=True, around=around)
    torch = sorted(name for name, found in sys.modules.items() if found and "torch" in name)
    print(json.dumps({**to_json(status), "torch": torch}))


if __name__ == "__main__":
    main(*sys.argv[1:])
