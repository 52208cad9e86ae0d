"""Hypervectors keep which samples are alike, and nothing of the coordinates."""

import numpy as np

from experiments.hypervectors import (
    TernaryHDCEncoder,
    learned_hypervectors,
    random_hypervectors,
    similarities,
)


def clusters(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Hidden representations of five classes, and their classes."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, 5, 200)
    centres = rng.normal(size=(5, 24)) * 2
    return (centres[classes] + rng.normal(size=(200, 24))).astype(np.float32), classes


def correlation(hidden: np.ndarray, trits: np.ndarray) -> float:
    centred = hidden - hidden.mean(axis=0)
    unit = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    return float(np.corrcoef((unit @ unit.T).ravel(), similarities(trits, trits).ravel())[0, 1])


def test_both_encodings_keep_the_similarities() -> None:
    hidden, _ = clusters()
    centred = hidden - hidden.mean(axis=0)
    assert correlation(hidden, random_hypervectors(centred)) > 0.95
    assert correlation(hidden, learned_hypervectors(hidden, 16)) > 0.85


def test_the_seed_gives_the_projection() -> None:
    hidden = clusters()[0][:3]
    assert (random_hypervectors(hidden, 64) == random_hypervectors(hidden, 64)).all()
    assert (random_hypervectors(hidden, 64) != random_hypervectors(hidden, 64, b"a")).any()


def test_the_published_encoder_bundles_and_decodes_directions() -> None:
    hidden, classes = clusters()
    encoder = TernaryHDCEncoder(dimension=10_000, sparsity=0.8)
    trits = encoder.encode(hidden)
    back = encoder.decode(trits, hidden.shape[1])
    unit = hidden / np.linalg.norm(hidden, axis=1, keepdims=True)
    assert (back * unit).sum(1).min() > 0.95
    bundle = encoder.bundle(trits[classes == 2])
    alike = encoder.similarity(bundle, trits)[0]
    assert alike[classes == 2].min() > alike[classes != 2].max()
