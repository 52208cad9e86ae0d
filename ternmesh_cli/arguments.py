"""Types of arguments that several commands take."""

import argparse
from collections.abc import Callable


def number(low: int, high: int) -> Callable[[str], int]:
    """A whole number of `low` to `high`, as `type` of an argument."""

    def count(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of {low} to {high}")
        return int(text)

    return count
