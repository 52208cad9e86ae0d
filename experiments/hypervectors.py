"""Ternary hypervectors of hidden representations, which carry their similarity, not coordinates.

Two models have other hidden sizes, so a receiver compares only how similar pairs of samples are.
"""

import numpy as np
from numpy.typing import NDArray

from ternmesh.generator import derive_key, seeded_signs
from ternmesh.types import Trits

ZEROS = 0.7  # the share of zeros in a hypervector, as in the published encoding
PUBLISHED_DIMENSION = 10_000
ROWS_AT_ONCE = 64
ROTATIONS = 30  # of the learned encoding; more change less than 1 % of the trits

Hidden = NDArray[np.float32]
"""Hidden representations, float32 [rows, features]."""


def random_hypervectors(
    hidden: Hidden, dimension: int = PUBLISHED_DIMENSION, seed: bytes = b"", zeros: float = ZEROS
) -> Trits:
    """The published encoding, int8 [rows, dimension]: signs of a random projection, or zero.

    Zero is the share `zeros` of a row's numbers, those with the smallest magnitudes. The projection
    has signs in place of normal numbers, which the seed gives on every machine.
    """
    projection = _projection(hidden.shape[1], dimension, seed)
    blocks = range(0, len(hidden), ROWS_AT_ONCE)
    parts = [ternarise_rows(hidden[at : at + ROWS_AT_ONCE] @ projection, zeros) for at in blocks]
    return np.concatenate(parts) if parts else np.zeros((0, dimension), np.int8)


class TernaryHDCEncoder:
    """The published encoder: trits that keep how similar rows are, and a rough way back.

    >>> rows = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    >>> encoder = TernaryHDCEncoder(dimension=10_000, sparsity=0.7)
    >>> packed = encoder.encode(rows)
    >>> packed.shape, round(float(np.mean(packed == 0)), 2)
    ((3, 10000), 0.7)
    >>> bool((encoder.similarity(packed, packed).diagonal() > 0.999).all())
    True
    """

    def __init__(
        self, dimension: int = PUBLISHED_DIMENSION, sparsity: float = ZEROS, seed: bytes = b""
    ) -> None:
        self._dimension = dimension
        self._sparsity = sparsity
        self._seed = seed

    def encode(self, rows: Hidden) -> Trits:
        """int8 [rows, dimension]: signs of a random projection, zero for the smallest."""
        return random_hypervectors(rows, self._dimension, self._seed, self._sparsity)

    def decode(self, trits: Trits, features: int) -> Hidden:
        """The direction of each row, float32 [rows, features] of length 1; lengths are not sent."""
        back = trits.astype(np.float32) @ _projection(features, self._dimension, self._seed).T
        unit: Hidden = back / np.linalg.norm(back, axis=1, keepdims=True).clip(1e-30)
        return unit

    def bundle(self, trits: Trits) -> Trits:
        """What is similar to all rows, int8 [1, dimension]."""
        return ternarise_rows(trits.sum(axis=0, dtype=np.float32)[None], self._sparsity)

    def similarity(self, a: Trits, b: Trits) -> NDArray[np.float32]:
        """Cosines, float32 [a, b]."""
        return similarities(a, b)


def learned_hypervectors(hidden: Hidden, dimension: int) -> Trits:
    """A shorter encoding, learned of the rows: int8 [rows, at most `dimension`].

    The principal components, rotated so that little is lost when they become trits (iterative
    quantisation: Gong and Lazebnik, CVPR 2011).
    """
    centred = hidden - hidden.mean(axis=0)
    _, _, components = np.linalg.svd(centred, full_matrices=False)
    reduced = centred @ components[:dimension].T
    rotation = np.eye(reduced.shape[1], dtype=np.float32)
    for _ in range(ROTATIONS):
        left, _, right = np.linalg.svd(reduced.T @ ternarise_rows(reduced @ rotation))
        rotation = (left @ right).astype(np.float32)
    return ternarise_rows(reduced @ rotation)


def prototypes(hypervectors: Trits, weights: NDArray[np.floating]) -> Trits:
    """The hypervector of each class, int8 [classes, dimension]: the bundle of its samples.

    `weights` [rows, classes] says how much a row belongs to a class.
    """
    return ternarise_rows(weights.T.astype(np.float32) @ hypervectors.astype(np.float32))


def similarities(a: Trits, b: Trits) -> NDArray[np.float32]:
    """The cosines of all rows of `a` and of `b`, float32 [a, b]; a row of zeros is like none."""
    lengths = [np.sqrt(np.count_nonzero(rows, axis=1).clip(1)) for rows in (a, b)]
    products = a.astype(np.float32) @ b.astype(np.float32).T  # exact below 2^24 trits
    cosines: NDArray[np.float32] = products / np.outer(*lengths)
    return cosines.astype(np.float32)


def _projection(features: int, dimension: int, seed: bytes) -> Hidden:
    signs = seeded_signs(derive_key("hypervectors", seed), features * dimension)
    return signs.reshape(features, dimension)


def ternarise_rows(rows: NDArray[np.floating], zeros: float = ZEROS) -> Trits:
    """The signs of each row's numbers, with zero for the share of smallest magnitude."""
    magnitudes = np.abs(rows)
    least = np.quantile(magnitudes, zeros, axis=1, keepdims=True)
    trits: Trits = (np.sign(rows) * (magnitudes > least)).astype(np.int8)
    return trits
