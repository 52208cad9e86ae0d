import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ternmesh.errors import CodecError, WireError
from ternmesh.generator import derive_key, words
from ternmesh.hypervector import trellis

KEY = derive_key("test", b"trellis")


def gaussian(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def error(vector: np.ndarray, data: bytes, scale: float, step: int, window: int) -> float:
    decoded = np.float32(scale) * trellis.decode(data, KEY, step, vector.size, window)
    return float(np.square(vector - decoded).sum() / np.square(vector).sum())


@pytest.mark.parametrize(("step", "share"), [(1, 0.68), (2, 0.44), (4, 0.25), (10, 0.105)])
def test_a_path_captures_nearly_what_theory_allows(step: int, share: float) -> None:
    vector = gaussian(4096)
    data, scale = trellis.encode(vector, KEY, step, 9)
    assert len(data) == -(-4096 // step // 8) or len(data) * 8 * step >= 4096
    captured = 1 - error(vector, data, scale, step, 9)
    assert share < captured < 1 - 2 ** (-2 / step)


def test_a_longer_window_captures_more() -> None:
    vector = gaussian(8192)
    errors = [error(vector, *trellis.encode(vector, KEY, 4, w), 4, w) for w in (4, 7, 10)]
    assert errors == sorted(errors, reverse=True)


def test_no_other_path_is_nearer() -> None:
    """All 2**10 paths by hand, with a shift register: the search finds the best of them."""
    step, window, length = 2, 4, 10
    vector = gaussian(step * length, 3)
    data, _ = trellis.encode(vector, KEY, step, window)
    parts = words(KEY, step << window).astype("<u4").view(np.uint8).reshape(-1, step, 4)
    values = (parts.sum(axis=2).astype(float) - 510) / 147.8
    share = np.sqrt(1 - 2 ** (-2 / step))
    unit = vector / np.sqrt(np.mean(np.square(vector)))
    errors = {}
    for path in range(1 << length):
        register, total = 0, 0.0
        for time in range(length):
            register = (register << 1 | path >> time & 1) & ((1 << window) - 1)
            chosen = share * values[register]
            total += float(np.square(unit[step * time :][:step] - chosen).sum())
        errors[path] = total
    assert int.from_bytes(data, "little") == min(errors, key=lambda path: errors[path])


@settings(max_examples=20)
@given(st.integers(0, 5000), st.integers(1, 7))
def test_every_length_decodes_to_its_own_length(size: int, step: int) -> None:
    vector = gaussian(size)
    data, scale = trellis.encode(vector, KEY, step, 4)
    assert trellis.decode(data, KEY, step, size, 4).shape == (size,)
    assert size == 0 or error(vector, data, scale, step, 4) <= 1.0


def test_a_chunk_decodes_alone() -> None:
    """The same numbers in the second chunk get the same bits, whatever stood before them."""
    step, size = 2, 2 * trellis.CHUNK_BITS
    first, second = gaussian(size, 1), gaussian(size, 2)
    rms = np.sqrt(np.mean(np.square(np.concatenate([first, second]))))
    both, _ = trellis.encode(np.concatenate([first, second]), KEY, step, 6)
    swapped, _ = trellis.encode(np.concatenate([second, first]), KEY, step, 6)
    half = trellis.CHUNK_BITS // 8
    assert rms > 0
    assert both[half:] == swapped[:half]
    assert both[:half] == swapped[half:]


def test_zeros_and_nan() -> None:
    data, scale = trellis.encode(np.zeros(100, np.float32), KEY, 4, 6)
    assert scale == 0
    assert len(data) == 4
    with pytest.raises(CodecError):
        trellis.encode(np.array([1, np.nan], np.float32), KEY, 4, 6)


def test_wrong_bytes_are_refused() -> None:
    with pytest.raises(WireError, match="not 3 bytes"):
        trellis.decode(b"abc", KEY, 4, 100, 6)
    with pytest.raises(WireError, match="left over"):
        trellis.decode(b"\0\0\0\xff", KEY, 4, 100, 6)
