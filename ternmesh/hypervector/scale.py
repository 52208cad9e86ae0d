"""Scales on the wire and the fixed-point unit that every CPU adds in.

A scale is a u16: 5 bits of exponent e over 11 bits of mantissa m, worth m * 2**e units of 2**-24.
It has no NaN, no infinity and one code for each value, and it is an exact integer: applying a
reference is integer addition, so every board holds the same reference bit for bit.
"""

import numpy as np
from numpy.typing import NDArray

from ternmesh.errors import CodecError, WireError

FRACTION_BITS = 24
UNIT = 2.0**-FRACTION_BITS
MANTISSA_BITS = 11
EXPONENT_MAX = 19
_MANTISSA = 1 << MANTISSA_BITS
_NORMAL = _MANTISSA >> 1
SCALE_MAX = (_MANTISSA - 1) << EXPONENT_MAX  # in units of 2**-24: 63.97
FIXED_MAX = 2**31 - 1


def encode_scale(value: float) -> int:
    """The code whose worth is nearest to `value` (a non-negative float), saturating at 63.97."""
    if not value >= 0.0:
        raise CodecError(f"a scale is a number of at least 0, not {value}")
    units = min(value / UNIT, float(SCALE_MAX))
    exponent = max(0, int(units).bit_length() - MANTISSA_BITS)
    mantissa = round(units / (1 << exponent))
    if mantissa == _MANTISSA:
        mantissa, exponent = _NORMAL, exponent + 1
    return exponent << MANTISSA_BITS | mantissa


def floor_scale(units: int) -> int:
    """The code of the largest scale that is worth at most `units` (at least 0)."""
    units = min(units, SCALE_MAX)
    exponent = max(0, units.bit_length() - MANTISSA_BITS)
    return exponent << MANTISSA_BITS | units >> exponent


def decode_scale(code: int) -> int:
    """The worth of a code in units of 2**-24; WireError for a code that is not canonical."""
    exponent, mantissa = code >> MANTISSA_BITS, code & (_MANTISSA - 1)
    if exponent > EXPONENT_MAX or (exponent > 0 and mantissa < _NORMAL):
        raise WireError("scale", f"0x{code:04x} is not the code of a scale")
    return mantissa << exponent


def to_fixed(values: NDArray[np.float32]) -> NDArray[np.int32]:
    """Floats as integers in units of 2**-24, rounded half to even, saturating at +-128."""
    if not np.isfinite(values).all():
        raise CodecError("an adapter vector holds NaN or infinity: training has diverged")
    scaled = np.rint(values.astype(np.float64) / UNIT)
    clipped: NDArray[np.float64] = np.clip(scaled, -FIXED_MAX, FIXED_MAX)
    return clipped.astype(np.int32)


def to_float(fixed: NDArray[np.int32]) -> NDArray[np.float32]:
    """Integers in units of 2**-24 as float32."""
    return (fixed.astype(np.float64) * UNIT).astype(np.float32)


def to_vector(units: NDArray[np.int64]) -> NDArray[np.float32]:
    """Decoded units of 2**-24 as float32; what both ends take out of a residual."""
    return (units * UNIT).astype(np.float32)


def add_fixed(fixed: NDArray[np.int32], units: NDArray[np.int64]) -> NDArray[np.int32]:
    """`fixed + units`, saturating: the one addition that defines a reference."""
    total: NDArray[np.int64] = np.clip(fixed.astype(np.int64) + units, -FIXED_MAX, FIXED_MAX)
    return total.astype(np.int32)
