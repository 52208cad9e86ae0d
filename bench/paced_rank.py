"""One rank that pauses before each send: `python -m bench.paced_rank MBIT CONFIG`.

It imitates a slow link on machines without network namespaces.
"""

import sys
import time
from collections.abc import Callable

import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

from host.pipeline.__main__ import main

Sends = Callable[[PipelineStage, int], list[dist.P2POp]]


def _paced(sends_of: Sends, mbit: float) -> Sends:
    def paced(stage: PipelineStage, chunk: int) -> list[dist.P2POp]:
        sends = sends_of(stage, chunk)
        size = sum(send.tensor.numel() * send.tensor.element_size() for send in sends)
        time.sleep(size * 8e-6 / mbit)
        return sends

    return paced


if __name__ == "__main__":
    for name in ("get_fwd_send_ops", "get_bwd_send_ops"):
        setattr(PipelineStage, name, _paced(getattr(PipelineStage, name), float(sys.argv[1])))
    sys.exit(main(sys.argv[2:]))
