"""Which bugs the tests notice: `python -m tests.mutants draw`, `map`, `judge`, `report`.

`draw` writes a list of mutants by a fixed seed. `map` runs the tests once, and notes which lines
each of them runs. `judge` gives every mutant a verdict: it runs the tests that cover its line, the
quick ones first, until one fails. After a stop it goes on where it was. `--earlier FILE` names the
verdicts from before a change: the test that failed then runs first.
"""

import argparse
import ast
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tests.mutants.coverage_map import MAPS, PACKAGES
from tests.mutants.mutations import Mutant, bytecode, find_mutants

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("list.jsonl")
SUITES = ("tests/ternmesh", "tests/sim", "tests/security", "tests/vectors")
PYTEST = (sys.executable, "-m", "pytest", "-q", "--hypothesis-seed=0")
SEED = 20261127
WORKERS = 2
CPU_S = 60  # of a mutant: one that takes longer hangs, so it counts as killed
TESTS_S = 30  # of its tests by the map, so that in a healthy module they end in time
WALL_S = 600  # the same limit for a mutant that waits
MEMORY_KIB = 4 << 20

Tests = dict[str, tuple[float, dict[str, list[int]]]]


def draw(count: int) -> None:
    files = [f for package in PACKAGES for f in sorted((ROOT / package).rglob("*.py"))]
    trees = {str(file.relative_to(ROOT)): ast.parse(file.read_text()) for file in files}
    sites = [pair for path, tree in trees.items() for pair in find_mutants(path, tree).items()]
    random.Random(SEED).shuffle(sites)
    drawn: list[Mutant] = []
    for mutant, site in sites:
        if len(drawn) < count:
            before = bytecode(trees[mutant.path])
            old = site.swap()
            if bytecode(trees[mutant.path]) not in (None, before):
                drawn.append(mutant)
            old.swap()
    LIST.write_text("".join(json.dumps(mutant) + "\n" for mutant in drawn))
    print(f"{len(drawn)} of {len(sites)} possible mutants are in {LIST.relative_to(ROOT)}")


def make_map() -> None:
    shutil.rmtree(ROOT / MAPS, ignore_errors=True)
    options = (f"-n{WORKERS}", "-p", "tests.mutants.coverage_map")
    subprocess.run([*PYTEST, *options, *SUITES], cwd=ROOT, check=False)
    print(f"{len(_read_map())} tests that passed are in the map")


def judge(verdicts: Path, limit: int, earlier: Path | None) -> None:
    tests = _read_map()
    killers = {
        Mutant(*row["mutant"]): row["by"].split()[1].partition("[")[0]
        for row in (_read_lines(earlier) if earlier else ())
        if row.get("by", "").startswith("FAILED ")
    }
    listing = [*PYTEST, "-n0", "--collect-only", *SUITES]
    listed = subprocess.run(listing, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    if not tests or tests.keys() - set(listed.stdout.split("\n")):
        sys.exit("the map is not of these tests: run `python -m tests.mutants map` first")
    judged = [row["mutant"] for row in _read_lines(verdicts)]
    waiting = [Mutant(*row) for row in _read_lines(LIST) if row not in judged][:limit]
    copies: SimpleQueue[Path] = SimpleQueue()

    def judge_one(mutant: Mutant) -> dict[str, object]:
        copy = copies.get()
        verdict = _judge(copy, mutant, tests, killers.get(mutant))
        copies.put(copy)
        return verdict

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(WORKERS) as pool:
        for worker in range(WORKERS):
            copies.put(_copy_checkout(Path(folder) / str(worker)))
        for mutant, verdict in zip(waiting, pool.map(judge_one, waiting), strict=True):
            with verdicts.open("a") as file:
                file.write(json.dumps({"mutant": mutant, **verdict}) + "\n")
            print(verdict["verdict"], *mutant)


def report(verdicts: Path) -> None:
    rows = _read_lines(verdicts)
    counts = Counter(row["verdict"] for row in rows)
    killed = counts["killed"] + counts["timeout"]
    print(f"{killed} of {len(rows)} killed ({killed / max(1, len(rows)):.1%}): {dict(counts)}")
    for row in rows:
        if row["verdict"] not in ("killed", "timeout"):
            print(row["verdict"], *row["mutant"])


def _judge(copy: Path, mutant: Mutant, tests: Tests, killer: str | None) -> dict[str, object]:
    file = copy / mutant.path
    text = file.read_text() if file.exists() else ""
    tree = ast.parse(text)
    if (site := find_mutants(mutant.path, tree).get(mutant)) is None:
        return {"verdict": "gone"}
    covering = {test: row for test, row in tests.items() if mutant.path in row[1]}
    lines = set(site.lines)
    if on_line := {test for test, row in covering.items() if lines & set(row[1][mutant.path])}:
        covering = {test: covering[test] for test in on_line}  # else it runs at the import
    chosen: list[str] = []
    total_s = 0.0
    by_time = sorted(covering, key=lambda test: (covering[test][0], test))
    for test in sorted(by_time, key=lambda test: test.partition("[")[0] != killer):
        total_s += covering[test][0]
        if total_s <= TESTS_S:
            chosen.append(test)
    site.swap()
    file.write_text(ast.unparse(ast.fix_missing_locations(tree)))
    try:
        verdict = _run(copy, chosen) if chosen else {"verdict": "not covered"}
    finally:
        file.write_text(text)
    return {**verdict, "tests": len(chosen), "left_out": len(covering) - len(chosen)}


def _run(copy: Path, chosen: list[str]) -> dict[str, object]:
    shutil.rmtree(copy / ".hypothesis", ignore_errors=True)
    # Two mutants of one second and one length would share a .pyc, so none is written.
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    shell = ("sh", "-c", f'ulimit -t {CPU_S}; ulimit -v {MEMORY_KIB}; exec "$@"', "sh")
    process = subprocess.Popen(
        [*shell, *PYTEST, "-n0", "-x", "-rfE", *chosen],
        cwd=copy,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=WALL_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    if process.returncode < 0:
        return {"verdict": "timeout"}
    if process.returncode == 0:
        return {"verdict": "survived"}
    failed = [line for line in output.split("\n") if line.startswith(("FAILED", "ERROR"))]
    return {"verdict": "killed", "by": "".join(failed[:1])[:160] or output[-160:]}


def _copy_checkout(target: Path) -> Path:
    for name in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name)
    return target


def _read_map() -> Tests:
    return {k: v for file in (ROOT / MAPS).glob("*.json") for k, v in _read_lines(file)[0].items()}


def _read_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("step", choices=("draw", "map", "judge", "report"))
    parser.add_argument("--count", type=int, default=400, help="how many `draw` or `judge` takes")
    parser.add_argument("--earlier", type=Path, help="verdicts from before a change")
    parser.add_argument("--verdicts", type=Path, default=LIST.with_name("verdicts.jsonl"))
    arguments = parser.parse_args()
    match arguments.step:
        case "draw":
            draw(arguments.count)
        case "map":
            make_map()
        case "judge":
            judge(arguments.verdicts, arguments.count, arguments.earlier)
        case _:
            report(arguments.verdicts)


if __name__ == "__main__":
    main()
