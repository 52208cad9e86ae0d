"""Find an aggregation rule: a shipped one, one of an installed package, or one in a file."""

import importlib.util
from importlib.metadata import entry_points
from pathlib import Path

from ternmesh.config import ConfigError
from ternmesh.errors import RuleError
from ternmesh.federated.rules import RULES, Rule, compose

ENTRY_POINTS = "ternmesh.aggregation"  # the group in which a package names its rules


def load_rule(name: str, file: str = "") -> Rule:
    """Return the rule called `name`, with its pre-steps. Raises ConfigError.

    `file` is a Python file whose function of that name is the rule; it runs with the host's rights.
    """
    last = name.rsplit("+", 1)[-1]
    rules = dict(RULES)
    if file:
        rules[last] = _from_file(Path(file), last)
    elif last not in rules:
        for found in entry_points(group=ENTRY_POINTS, name=last):
            rules[last] = found.load()
    try:
        return compose(name, rules)
    except RuleError as error:
        raise ConfigError(f"run.aggregation: {error}") from error


def _from_file(path: Path, name: str) -> Rule:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ConfigError(f"run.aggregation_file is {path}: write the path of a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(
            f"run.aggregation_file: {path} failed: {type(error).__name__}: {error}"
        ) from error
    rule = getattr(module, name, None)
    if not callable(rule):
        raise ConfigError(f"run.aggregation_file: {path} has no function {name!r}")
    return rule  # type: ignore[no-any-return]
