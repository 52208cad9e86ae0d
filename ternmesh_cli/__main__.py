"""`python -m ternmesh_cli`, and the script `ternmesh`: Ctrl-C is silent from the first moment on.

The imports of `ternmesh_cli.main` take a second on a small board, and an interrupted import would
end in a traceback. So this module imports nothing else before it has a handler in place.
"""

import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130


def start() -> int:
    """Run the command line of this process, and return its exit code."""
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not under nohup
    if is_ours:
        signal.signal(signal.SIGINT, _leave)
    from ternmesh_cli.main import main

    if is_ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return main()


def _leave(_number: int, _frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)  # nothing has begun that must be ended


if __name__ == "__main__":
    sys.exit(start())
