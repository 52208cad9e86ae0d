"""Types of arguments that several commands take."""

import argparse
import math
from collections.abc import Callable


def number(low: int, high: int) -> Callable[[str], int]:
    """A whole number of `low` to `high`, as `type` of an argument."""

    def count(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of {low} to {high}")
        return int(text)

    return count


def real(low: float, high: float) -> Callable[[str], float]:
    """A number of `low` to `high`, as `type` of an argument."""

    def value(text: str) -> float:
        try:
            found = float(text)
        except ValueError:
            found = math.nan
        if not low <= found <= high:
            raise argparse.ArgumentTypeError(f"{text!r} must be a number of {low:g} to {high:g}")
        return found

    return value
