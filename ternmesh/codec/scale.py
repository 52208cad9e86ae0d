"""Scales on the wire, and the fixed-point numbers in which all ends add.

A scale is a u16: 5 bits of exponent e, then 11 bits of mantissa m; its value is m * 2**e units of
2**-24. It has no NaN, no infinity and one code for each value, and its value is an exact integer.
Applying a global update is integer addition, so every board holds the same global adapter bit for
bit.
"""

import numpy as np

from ternmesh.errors import CodecError, WireError
from ternmesh.types import DeltaQ24, ModelQ24, Vector

FRACTION_BITS = 24
UNIT = 2.0**-FRACTION_BITS
MANTISSA_BITS = 11
EXPONENT_MAX = 19
_MANTISSA = 1 << MANTISSA_BITS
_NORMAL = _MANTISSA >> 1
SCALE_MAX = (_MANTISSA - 1) << EXPONENT_MAX  # in units of 2**-24: 63.97
Q24_MAX = 2**31 - 1


def encode_scale(value: float) -> int:
    """The code whose value is nearest to `value` (not negative), at most 63.97."""
    if not value >= 0.0:
        raise CodecError(f"a scale must be a number of at least 0, not {value}")
    units = min(value / UNIT, float(SCALE_MAX))
    exponent = max(0, int(units).bit_length() - MANTISSA_BITS)
    mantissa = round(units / (1 << exponent))
    if mantissa == _MANTISSA:
        mantissa = _NORMAL
        exponent += 1
    return exponent << MANTISSA_BITS | mantissa


def floor_scale(units: int) -> int:
    """The code of the largest scale of at most `units` (units of 2**-24, at least 0)."""
    units = min(units, SCALE_MAX)
    exponent = max(0, units.bit_length() - MANTISSA_BITS)
    return exponent << MANTISSA_BITS | units >> exponent


def decode_scale(code: int) -> int:
    """The value of a code in units of 2**-24; WireError for a code that is not canonical."""
    exponent = code >> MANTISSA_BITS
    mantissa = code & (_MANTISSA - 1)
    if exponent > EXPONENT_MAX or (exponent > 0 and mantissa < _NORMAL):
        raise WireError("scale", f"0x{code:04x} is not the code of a scale")
    return mantissa << exponent


def to_float(model_q24: ModelQ24) -> Vector:
    """A model's integers in units of 2**-24 as float32."""
    return (model_q24.astype(np.float64) * UNIT).astype(np.float32)


def to_vector(delta_q24: DeltaQ24) -> Vector:
    """A delta's integers in units of 2**-24 as float32; both ends subtract this from a residual."""
    return (delta_q24 * UNIT).astype(np.float32)


def add_q24(model_q24: ModelQ24, delta_q24: DeltaQ24) -> ModelQ24:
    """`model_q24 + delta_q24`, saturating: the one addition that applies a global update."""
    total: DeltaQ24 = np.clip(model_q24.astype(np.int64) + delta_q24, -Q24_MAX, Q24_MAX)
    return total.astype(np.int32)
