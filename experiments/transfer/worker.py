"""One transfer: `python -m experiments.transfer.worker PAIR SEED KEPT DATA`.

It prints its progress on stderr, and one JSON line with all arms. What is made once for all seeds
is kept in the folder KEPT.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path

import torch

from experiments.transfer.arms import Run
from experiments.transfer.pairs import PAIRS, Pair
from experiments.transfer.report import efficiency, published_ratio


def main() -> None:
    """Run the command in the module's docstring; PAIR may be TASK:TEACHER:STUDENT."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    name, seed, kept, data = sys.argv[1:5]
    pair = PAIRS.get(name)
    if pair is None:
        task, teacher, student = name.split(":")
        pair = Pair(task, teacher, student, is_long=True)
    torch.set_num_threads(1)
    Path(kept).mkdir(parents=True, exist_ok=True)
    show = partial(print, f"{name}, seed {seed}:", file=sys.stderr, flush=True)
    result = Run(pair, int(seed), Path(kept), Path(data), show).all()
    ratios = {"efficiency": efficiency(result), "published_ratio": published_ratio(result)}
    print(json.dumps(result | ratios))


if __name__ == "__main__":
    main()
