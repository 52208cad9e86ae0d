"""From hourly air and weather records to what the PM2.5 forecaster reads; numpy only, for boards.

A record is one row of the data's 11 columns: pm25 (µg/m³, NaN where missing), dew point (°C),
temperature (°C), pressure (hPa), cumulated wind (m/s), hours of snow, hours of rain, wind direction
(0 NE, 1 NW, 2 SE, 3 calm or variable), month, day, hour.
"""

import numpy as np
from numpy.typing import NDArray

HOURS = 24  # how far the forecaster looks back
FEATURES = 16

# Mean and deviation over 2010 and 2011, of log(1 + x) for the four columns with long tails.
PM25_LOG = (4.21, 0.98)
DEW_POINT_C = (1.9, 14.4)
TEMPERATURE_C = (12.1, 12.3)
PRESSURE_HPA = (1016.8, 10.4)
WIND_LOG = (2.28, 1.38)
SNOW_LOG = (0.02, 0.18)
RAIN_LOG = (0.06, 0.33)

Floats = NDArray[np.float32]


def scale_pm25(pm25: Floats) -> Floats:
    """PM2.5 in µg/m³ as the forecaster's target: about zero mean and unit deviation."""
    return np.asarray((np.log1p(pm25) - PM25_LOG[0]) / PM25_LOG[1], np.float32)


def unscale_pm25(target: Floats) -> Floats:
    """The inverse of `scale_pm25`, never below zero."""
    return np.asarray(np.maximum(np.expm1(target * PM25_LOG[1] + PM25_LOG[0]), 0), np.float32)


def encode(records: Floats) -> Floats:
    """Records [hours, 11] as features [hours, 16], in the order of the lines below.

    A missing PM2.5 takes the last one that was measured; the second feature says which are real.
    """
    pm25 = scale_pm25(_carry_forward(records[:, 0]))
    month = 2 * np.pi * (records[:, 8] - 1) / 12
    hour = 2 * np.pi * records[:, 10] / 24
    columns = [
        pm25,
        ~np.isnan(records[:, 0]),
        _standard(records[:, 1], DEW_POINT_C),
        _standard(records[:, 2], TEMPERATURE_C),
        _standard(records[:, 3], PRESSURE_HPA),
        _standard(np.log1p(records[:, 4]), WIND_LOG),
        _standard(np.log1p(records[:, 5]), SNOW_LOG),
        _standard(np.log1p(records[:, 6]), RAIN_LOG),
        *(records[:, 7] == direction for direction in range(4)),
        np.sin(month),
        np.cos(month),
        np.sin(hour),
        np.cos(hour),
    ]
    return np.stack(columns, axis=1).astype(np.float32)


def windows(records: Floats) -> tuple[Floats, Floats]:
    """The windows whose next hour was measured: features [n, 24, 16], scaled targets [n, 1]."""
    features = encode(records)
    targets = scale_pm25(records[HOURS:, 0])
    views = np.lib.stride_tricks.sliding_window_view(features, HOURS, axis=0)[: len(targets)]
    known = ~np.isnan(targets)
    return np.ascontiguousarray(views.transpose(0, 2, 1)[known]), targets[known, None]


def _standard(values: Floats, mean_and_deviation: tuple[float, float]) -> Floats:
    mean, deviation = mean_and_deviation
    return (values - mean) / deviation


def _carry_forward(values: Floats) -> Floats:
    """`values` with each NaN replaced by the number before it; a NaN at the start by the mean."""
    last = np.maximum.accumulate(np.where(np.isnan(values), -1, np.arange(len(values))))
    return np.where(last < 0, np.float32(np.expm1(PM25_LOG[0])), values[last])
