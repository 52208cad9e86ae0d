"""A pytest plugin that notes which lines of the mutated packages each test runs, and its time."""

import json
import os
import time
from collections.abc import Generator
from pathlib import Path

import coverage
import pytest

PACKAGES = [f"ternmesh/{name}" for name in ("codec", "wire", "security", "link", "federated")]
MAPS = Path("build/mutants")  # in the checkout: {test: [CPU-s, {path: lines}]} of each worker
_coverage = coverage.Coverage(data_file=None, config_file=False, source=PACKAGES)
_cpu_s: dict[str, float] = {}
_not_passed: set[str] = set()


def pytest_sessionstart() -> None:
    _coverage.start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool, bool]:
    _coverage.switch_context(item.nodeid)
    start_s = time.process_time()
    is_done = yield
    _cpu_s[item.nodeid] = round(time.process_time() - start_s, 3)
    return is_done


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if not report.passed:
        _not_passed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    _coverage.stop()
    data = _coverage.get_data()
    lines: dict[str, dict[str, list[int]]] = {name: {} for name in _cpu_s.keys() - _not_passed}
    for name in data.measured_files():
        path = str(Path(name).relative_to(Path.cwd()))
        for line, tests in data.contexts_by_lineno(name).items():
            for test in lines.keys() & set(tests):
                lines[test].setdefault(path, []).append(line)
    if lines:
        MAPS.mkdir(parents=True, exist_ok=True)
        file = MAPS / f"{os.environ.get('PYTEST_XDIST_WORKER', 'main')}.json"
        file.write_text(json.dumps({test: (_cpu_s[test], lines[test]) for test in lines}))
