"""Flower's side of `bench fleet`, run by a Python that has it: `fleet_peer.py N ROUNDS`.

FedAvg gets N results as a server has them, each a serialised float32 [10,000], and returns their
mean serialised: no network, no signatures, no state on disk.
"""

import importlib
import sys
import time

import numpy as np

DIMENSION = 10_000


class Client:
    """Who sent a result; the strategy only hands it on."""


def main(clients: int, rounds: int) -> float:
    """Seconds of the fastest aggregation."""
    common = importlib.import_module("flwr.common")
    done = common.Status(common.Code.OK, "")
    rng = np.random.default_rng(0)
    results = []
    for number in range(clients):
        array = rng.standard_normal(DIMENSION).astype(np.float32)
        sent = common.ndarrays_to_parameters([array])
        results.append((Client(), common.FitRes(done, sent, 100 + number % 50, {})))
    strategy, times = importlib.import_module("flwr.server.strategy").FedAvg(), []
    for number in range(rounds):
        began = time.perf_counter()
        mean, _ = strategy.aggregate_fit(number + 1, results, [])
        times.append(time.perf_counter() - began)
        assert mean is not None
    return min(times)


if __name__ == "__main__":
    print(main(int(sys.argv[1]), int(sys.argv[2])))
