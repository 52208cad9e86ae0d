"""One way to train, one model, one process: prints its step time and memory as JSON.

`python -m bench.zeroth_order_worker gradient|zeroth_order BUNDLE DATA`; the folder DATA holds
batch.npz and vector.npy, as `bench.train_step_worker export` writes them. One pair of passes stands
for a zeroth-order step: the time grows with the number of probes, the memory does not.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

from edge.config import ZEROTH_ORDER
from edge.session import Inference, TrainStep, load_bundle
from edge.zeroth_order import ZerothOrder

WARM_UP, STEPS = 3, 25


def main() -> None:
    """See the module."""
    mode, folder, where = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    loaded = load_bundle(folder)
    bundle = loaded.bundle
    with np.load(where / "batch.npz") as data:
        batch = {spec.name: data[spec.name] for spec in bundle.batch_inputs}
    vector = np.load(where / "vector.npy")
    before_mib = _mib("VmRSS")
    if mode == ZEROTH_ORDER:
        forward = Inference(folder, bundle)
        step = ZerothOrder(forward, bundle, probes=1, epsilon=1e-3, seed=b"bench").run
    else:
        step = TrainStep(folder, bundle).run
    times = []
    for _ in range(WARM_UP + STEPS):
        begun = time.perf_counter()
        step(vector, batch)
        times.append(time.perf_counter() - begun)
    answer = {"step_s": float(np.median(times[WARM_UP:])), "peak_mib": _mib("VmHWM")}
    print(json.dumps(answer | {"own_mib": _mib("VmRSS") - before_mib}))


def _mib(field: str) -> float:
    """A field of this process's status; getrusage would count its parent's peak before exec."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


if __name__ == "__main__":
    main()
