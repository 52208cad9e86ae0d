"""An aggregation rule of your own: the mean of the half of the updates that agree most.

    [run]
    aggregation = "nearest_half"
    aggregation_file = "nearest_half.py"

The host calls it once a round. `updates` is float32 [n, D], one row a node, after caps and clipping
(with `[run] memory` above 0, each row is the mean of a node's updates of the last rounds).
`weights` is float64 [n], by samples. What it returns, float32 [D], is the step of the round. If it
raises, or returns anything else, the host takes the weighted mean and says so.
"""

import numpy as np

from ternmesh.errors import RuleError
from ternmesh.federated.rules import Context, Updates, Weights, inner_products
from ternmesh.types import Vector


def nearest_half(updates: Updates, weights: Weights, context: Context) -> Vector:
    """The weighted mean of the n // 2 + 1 updates with the largest mean cosine to all others."""
    if context.byzantine > (len(updates) - 1) // 2:
        raise RuleError("nearest_half needs more honest nodes than liars")
    gram = inner_products(updates)
    norms = np.sqrt(np.maximum(gram.diagonal(), 1e-30))
    agreement = (gram / norms / norms[:, None]).mean(axis=1)
    chosen = np.argsort(-agreement, kind="stable")[: len(updates) // 2 + 1]
    return np.average(updates[chosen], axis=0, weights=weights[chosen]).astype(np.float32)
