"""From the CSV of UCI's "Beijing PM2.5" to the .npz that export and boards read; numpy only.

    python examples/pm25/prepare_data.py --csv PRSA_data_2010.1.1-2014.12.31.csv \\
        --first 2010 --last 2012 --out pm25_train_2010_2012.npz
"""

import argparse
import csv
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

# The order of the records' columns; `features.py` says what they are.
COLUMNS = ("pm2.5", "DEWP", "TEMP", "PRES", "Iws", "Is", "Ir", "cbwd", "month", "day", "hour")
DIRECTIONS = {"NE": 0.0, "NW": 1.0, "SE": 2.0, "cv": 3.0}


def number(column: str, text: str) -> float:
    """One cell; NaN where nothing was measured."""
    if column == "cbwd":
        return DIRECTIONS[text]
    return float("nan") if text == "NA" else float(text)


def records(
    rows: Iterable[Mapping[str, str]], first: int, last: int
) -> tuple[np.ndarray, np.ndarray]:
    """Records float32 [hours, 11] and the year of each, from `first` to `last` inclusive."""
    chosen = [row for row in rows if first <= int(row["year"]) <= last]
    table = [[number(column, row[column]) for column in COLUMNS] for row in chosen]
    years = np.array([int(row["year"]) for row in chosen], np.int16)
    return np.array(table, np.float32).reshape(-1, len(COLUMNS)), years


def main() -> None:
    """The command in the docstring."""
    parser = argparse.ArgumentParser(description="Turn UCI's Beijing PM2.5 into .npz.")
    parser.add_argument("--csv", type=Path, required=True, help="the file from UCI")
    parser.add_argument("--first", type=int, required=True, help="first year")
    parser.add_argument("--last", type=int, required=True, help="last year")
    parser.add_argument("--out", type=Path, required=True, help="the .npz to write")
    options = parser.parse_args()
    with options.csv.open(newline="", encoding="utf-8") as file:
        try:
            x, year = records(csv.DictReader(file), options.first, options.last)
        except (KeyError, ValueError) as error:
            parser.error(f"{options.csv} is not UCI's Beijing PM2.5: {error} is missing or wrong")
    np.savez_compressed(options.out, x=x, year=year, columns=np.array(COLUMNS))
    sys.stdout.write(f"{options.out}: {len(x)} hours\n")


if __name__ == "__main__":
    main()
