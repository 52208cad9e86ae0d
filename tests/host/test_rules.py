from pathlib import Path

import numpy as np
import pytest

from host.config import RunConfig, load_rule, read_host_config, settings_of
from ternmesh.config import ConfigError
from ternmesh.errors import RuleError
from ternmesh.federated.rules import RULES, Context

EXAMPLE = Path(__file__).parents[2] / "examples" / "aggregation" / "nearest_half.py"
HOST = """
state_dir = "state"
model = "keyword"
[link]
url = "mqtt://127.0.0.1"
[run]
{}
"""


def test_the_example_keeps_the_half_that_agrees() -> None:
    rule = load_rule("nearest_half", str(EXAMPLE))
    updates = np.array([[1, 0.1], [1, 0], [1, -0.1], [-9, 3], [-9, -9]], np.float32)
    weights = np.array([1.0, 2, 1, 5, 5])
    assert rule(updates, weights, Context(2)).tolist() == [1, 0]
    with pytest.raises(RuleError, match="more honest nodes"):
        rule(updates, weights, Context(3))


def test_pre_steps_stand_before_a_rule_of_a_file() -> None:
    rule = load_rule("nnm+nearest_half", str(EXAMPLE))
    assert rule(np.eye(4, dtype=np.float32), np.ones(4), Context()).shape == (4,)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "write the path of a Python file"),
        ("1 / 0", "failed: ZeroDivisionError: division by zero"),
        ("import ("[:8], "failed: SyntaxError"),
        ("other = 1", "has no function 'mine'"),
        ("mine = 1", "has no function 'mine'"),
    ],
)
def test_a_file_without_a_rule(tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_rule("mine", str(tmp_path / "mine.py"))
    assert "run.aggregation_file" in str(caught.value)
    assert said in str(caught.value)


def test_the_settings_name_the_rule(tmp_path: Path) -> None:
    path = tmp_path / "host.toml"
    (tmp_path / "mine.py").write_text("def mine(updates, weights, context): return updates[0]")
    path.write_text(
        HOST.format('aggregation = "nnm+mine"\naggregation_file = "mine.py"\nbyzantine = 2')
    )
    found = settings_of(read_host_config(path).run).aggregation
    assert (found.name, found.byzantine, found.memory) == ("nnm+mine", 2, 0.9)
    assert settings_of(RunConfig()).aggregation.rule is RULES["weighted_mean"]
