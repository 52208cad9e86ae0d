import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from host.config import HostConfig, RunConfig, load_rule, plan_of, read_host_config, settings_of
from models.zoo import package_path
from ternmesh.config import ConfigError
from ternmesh.errors import ModelPackageError, RuleError
from ternmesh.federated.rules import RULES, Context
from ternmesh.federated.state import HostSettings
from ternmesh_service.config_file import control_path, load_model_package
from transports.factory import profile_of
from transports.link_config import link_settings

EXAMPLE = Path(__file__).parents[2] / "examples" / "aggregation" / "nearest_half.py"
GOOD = """
state_dir = "state"
model = "keyword"
[link]
url = "mqtts://ada:secret@broker.example:1884"
fleet = "garden"
[run]
rounds = 7
learning_rate = 0.01
up_zeros = 0.8
min_peers = 2
deadline_s = 12
chain_max = 9
announce_s = 5
scale_max = 2
"""


@pytest.fixture
def read(tmp_path):
    def read(text: str) -> HostConfig:
        path = tmp_path / "host.toml"
        path.write_text(text)
        return read_host_config(path)

    return read


def test_a_file_becomes_a_plan_settings_and_a_link(read, tmp_path):
    config = read(GOOD)
    assert (
        control_path(config.state_dir, config.control_socket) == tmp_path / "state" / "control.sock"
    )
    plan = plan_of(config.run, 15_312)
    assert (plan.rounds, plan.learning_rate_e6, plan.announce_s) == (7, 10_000, 5)
    assert (plan.up_zeros_permille, plan.down_zeros_permille) == (800, 900)
    assert plan.scale_max == 2 << 24
    assert settings_of(config.run) == HostSettings(2, 12.0, 1024, 9)
    link = link_settings(config.link, "host")
    assert (link.role, link.fleet, str(link.broker)) == (
        "host",
        "garden",
        "mqtts://broker.example:1884",
    )


def test_paths_start_from_the_folder_of_the_file(read, tmp_path, monkeypatch):
    monkeypatch.setattr("transports.link_config.check_ca_file", lambda path: None)
    shutil.copytree(package_path("keyword"), tmp_path / "mine")
    text = GOOD.replace('"keyword"', '"mine"').replace("[link]", '[link]\nca_file = "ca.pem"')
    config = read('control_socket = "/run/x.sock"\n' + text)
    assert config.model == str(tmp_path / "mine")
    assert config.link.ca_file == str(tmp_path / "ca.pem")
    assert str(control_path(config.state_dir, config.control_socket)) == "/run/x.sock"
    assert load_model_package(config.model) == load_model_package("keyword")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("rounds = 7", "rounds = -1", "run.rounds is -1: it must be 0 to 1000000"),
        ("rounds = 7", 'rounds = "7"', "run.rounds is '7': it must be a whole number"),
        ("rounds = 7", "turns = 7", "run.turns is not a setting"),
        ("learning_rate = 0.01", "learning_rate = nan", "run.learning_rate is nan: it must be"),
        ("deadline_s = 12", "deadline_s = 0.9", "run.deadline_s is 0.9: it must be 1 to"),
        ("min_peers = 2", "min_peers = 5\nnodes_max = 4", "min_peers is 5, and run.nodes_max 4"),
        (
            "min_peers = 2",
            'pinned = ["ada", "bob"]\nmuted = ["bob"]',
            "run.pinned and run.muted both name 'bob': take it out of one",
        ),
        ("up_zeros = 0.8", 'aggregation = "best"', "there is no aggregation rule 'best'"),
        (
            "up_zeros = 0.8",
            'aggregation = "krum"\nbyzantine = 3\nnodes_max = 8',
            "krum then needs 9 nodes, and run.nodes_max is 8",
        ),
        ("up_zeros = 0.8", "up_zeros = 1.0", "run.up_zeros is 1.0: it must be 0 to 0.999"),
        ("min_peers = 2", "frame_mtu = 20", r"frame_mtu is 20: it must be \d+ to 4096"),
        ('state_dir = "state"', "", "state_dir is missing"),
        ("url =", "broker =", "link.broker is not a setting"),
        ("mqtts://ada", "http://ada", "does not begin with mqtt://"),
        ('"garden"', '"a"\nca_file = "host.toml"', r"\[link\]: ca_file .*host.toml holds no cert"),
        ('"garden"', '"a/b"', r"\[link\]: fleet 'a/b' must be"),
        ('"keyword"', '"keywords"', "model is 'keywords': no such folder as /"),
        ("[run]", "[run", "this is not TOML"),
        ("[link]", 'log_level = "LOUD"\n[link]', "log_level is 'LOUD': it must be one of DEBUG"),
    ],
)
def test_a_wrong_setting_is_one_sentence_that_names_it(read, tmp_path, old, new, sentence):
    assert old in GOOD
    with pytest.raises(ConfigError, match=sentence) as caught:
        read(GOOD.replace(old, new))
    assert str(caught.value).startswith(f"{tmp_path / 'host.toml'}: ")
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_plan_that_no_frame_can_carry_is_a_sentence():
    config = HostConfig("state", "keyword", link=cast(Any, None))
    with pytest.raises(ConfigError, match=r"\[run\] does not fit: up_span is"):
        plan_of(config.run, 1 << 24)


def test_a_run_without_an_end_says_which_setting_needs_one() -> None:
    with pytest.raises(ConfigError, match=r"\[run\] does not fit: staleness_rounds needs"):
        plan_of(RunConfig(rounds=0, staleness_rounds=2), 100)


def test_a_folder_without_a_model_package_is_a_sentence(tmp_path):
    with pytest.raises(ConfigError, match=r"its model\.json cannot be read"):
        load_model_package(str(tmp_path))
    (tmp_path / "model.json").write_text("{}")
    with pytest.raises(ModelPackageError, match=r"describe a model package .*: copy it again"):
        load_model_package(str(tmp_path))


def test_how_the_boards_cooperate_is_off_unless_it_is_set(read):
    plan = plan_of(read(GOOD).run, 15_312)
    assert (plan.own_permille, plan.staleness_rounds) == (0, 0)
    assert settings_of(read(GOOD).run).aggregation.momentum == 0.0
    text = "[run]\ncooperation = 0.3\nstaleness_rounds = 4\nmomentum = 0.5\n"
    run = read(GOOD.replace("[run]\n", text)).run
    plan = plan_of(run, 15_312)
    assert (plan.own_permille, plan.staleness_rounds) == (700, 4)
    assert settings_of(run).aggregation.momentum == 0.5
    with pytest.raises(ConfigError, match="with an end"):
        plan_of(replace(run, rounds=0), 15_312)


def test_the_bearer_chooses_what_fits_it(read):
    plan = plan_of(replace(read(GOOD).run, announce_s=0), 15_312)
    assert (plan.frame_mtu, plan.announce_s, plan.manifest_repeats) == (184, 30, 0)
    config = read(GOOD.replace("announce_s = 5\n", "").replace("[run]", "radios = true\n[run]"))
    plan = plan_of(config.run, 15_312, profile_of(config.link))
    assert (plan.frame_mtu, plan.announce_s, plan.manifest_repeats) == (1024, 3600, 0)


def test_a_rule_of_a_file_stands_after_steps_and_may_say_no() -> None:
    rule = load_rule("nearest_half", str(EXAMPLE))
    updates = np.array([[1, 0.1], [1, 0], [1, -0.1], [-9, 3], [-9, -9]], np.float32)
    weights = np.array([1.0, 2, 1, 5, 5])
    assert rule(updates, weights, Context(2)).tolist() == [1, 0]
    with pytest.raises(RuleError, match="more honest nodes"):
        rule(updates, weights, Context(3))
    rule = load_rule("nnm+nearest_half", str(EXAMPLE))
    assert rule(np.eye(4, dtype=np.float32), np.ones(4), Context()).shape == (4,)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "write the path of a Python file"),
        ("1 / 0", "failed: ZeroDivisionError: division by zero"),
        ("import ", "failed: SyntaxError"),
        ("mine = 1", "has no function 'mine'"),
    ],
)
def test_a_file_without_a_rule(tmp_path, text, said) -> None:
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    with pytest.raises(ConfigError, match=f"^run.aggregation_file.* {said}"):
        load_rule("mine", str(tmp_path / "mine.py"))


def test_the_settings_name_the_rule(read, tmp_path) -> None:
    (tmp_path / "mine.py").write_text("def mine(updates, weights, context): return updates[0]")
    own = 'aggregation = "nnm+mine"\naggregation_file = "mine.py"\nbyzantine = 2\n'
    kept = settings_of(read(GOOD + own).run).aggregation
    assert (kept.name, kept.byzantine, kept.memory) == ("nnm+mine", 2, 0.9)
    assert settings_of(RunConfig()).aggregation.rule is RULES["weighted_mean"]
