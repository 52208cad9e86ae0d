from pathlib import Path

import pytest

from edge.config import DataConfig, EvaluateConfig, read_node_config, warn_of_shared
from models.zoo import package_path
from ternmesh.config import ConfigError
from ternmesh_service.config_file import control_path, package_folder
from transports.link_config import link_settings

GOOD = """
name = "theo"
state_dir = "state"
model = "keyword"
log_level = "DEBUG"

[link]
url = "mqtt://broker.example:1884"
fleet = "digits"

[data]
path = "clips.npz"
arrays = { features = "x", target = "y" }
where = { speaker = "theo" }
divide_by = 255

[evaluate]
path = "dev.npz"

[training]
seed = 5
clip_norm = 1.5
"""


def read(folder: Path, text: str):
    path = folder / "node.toml"
    path.write_text(text)
    return read_node_config(path)


def test_a_config_and_what_follows_from_it(tmp_path: Path) -> None:
    config = read(tmp_path, GOOD)
    assert package_folder(config.model) == package_path("keyword")
    assert (
        control_path(config.state_dir, config.control_socket) == tmp_path / "state" / "control.sock"
    )
    assert config.data.path == str(tmp_path / "clips.npz")
    assert config.evaluate.path == str(tmp_path / "dev.npz")
    assert config.data.arrays == {"features": "x", "target": "y"}
    assert (config.data.divide_by, config.training.seed) == (255.0, 5)
    assert config.training.clip_norm == 1.5
    link = link_settings(config.link, config.name)
    assert (link.role, link.fleet, link.broker.port) == ("theo", "digits", 1884)


def test_a_model_may_be_a_folder_beside_the_config(tiny_copy: Path) -> None:
    config = read(tiny_copy.parent, GOOD.replace('"keyword"', '"package"'))
    assert package_folder(config.model) == tiny_copy
    config = read(tiny_copy.parent, 'control_socket = "run/c.sock"\n' + GOOD)
    assert (
        control_path(config.state_dir, config.control_socket) == tiny_copy.parent / "run" / "c.sock"
    )


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('name = "theo"', "", "name is missing"),
        ('"theo"\nstate', '"host"\nstate', "name: a node may not be called 'host'"),
        ('"theo"\nstate', '"a b"\nstate', "name: node name 'a b' must be 1 to 32 letters"),
        ('"keyword"', '"keyboard"', "model is 'keyboard': no such folder as /"),
        ('"DEBUG"', '"LOUD"', "log_level is 'LOUD': it must be one of DEBUG"),
        ('fleet = "digits"', 'ca_file = "no.pem"', r"\[link\]: ca_file .*no.pem holds no cert"),
        ('fleet = "digits"', 'fleet = "a/b"', r"\[link\]: fleet 'a/b' must be"),
        ("mqtt://", "http://", r"\[link\]: broker URL"),
        ("seed = 5", "seed = -1", "training.seed is -1: it must be 0 to"),
        ("seed = 5", "sed = 5", r"training.sed is not a setting: \[training\] allows"),
        ("[link]", "[releases]\ncpu_s = 5\n[link]", "releases.cpu_s has no effect without rel"),
        ('path = "clips.npz"', 'path = "clips.npz"\npoll_s = 3', "without data.source: remove it"),
        ("seed = 5", 'seed = "5"', "training.seed is '5': it must be a whole number"),
        ("divide_by = 255", "divide_by = 0", "data.divide_by is 0.0: it must be 1e-12"),
        ('features = "x"', "features = 3", "data.arrays.features is 3: it must be text"),
        ('speaker = "theo"', "speaker = [1]", r"data.where.speaker is \[1\]: it must be text or"),
        ('arrays = { features = "x", target = "y" }', "arrays = 3", "must be a table of options"),
        ("[link]", "[link", "this is not TOML"),
        ("[link]", '[predict]\ntopic = "a"\n[link]', r"has no effect without predict\.enabled"),
        ("[link]", '[predict]\nenabled = true\ntopic = "a/#"\n[link]', r"predict\.topic: "),
        ("[link]", '[remote]\nallow = ["sh"]\n[link]', "remote.allow names 'sh': it may"),
    ],
)
def test_what_is_wrong_is_one_sentence_that_names_it(tmp_path, old, new, sentence) -> None:
    assert GOOD.count(old) == 1
    with pytest.raises(ConfigError, match=sentence) as caught:
        read(tmp_path, GOOD.replace(old, new))
    assert "\n" not in str(caught.value).strip()
    assert "node.toml" in str(caught.value)


def test_a_config_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.toml cannot be read"):
        read_node_config(tmp_path / "missing.toml")


@pytest.mark.parametrize(
    ("data", "evaluate", "where", "warnings"),
    [
        (".", "a.npz", {}, 1),
        ("a.npz", ".", {}, 1),
        ("a.npz", "a.npz", {"speaker": "theo"}, 0),
        ("a.npz", "b.npz", {}, 0),
        ("a.npz", None, {}, 0),
    ],
)
def test_files_that_are_trained_on_and_scored_are_warned_of(
    tmp_path, caplog, data, evaluate, where, warnings
):
    for name in ("a.npz", "b.npz"):
        (tmp_path / name).touch()
    scored = None if evaluate is None else str(tmp_path / evaluate)
    warn_of_shared(DataConfig(path=str(tmp_path / data)), EvaluateConfig(where=where, path=scored))
    assert len(caplog.records) == warnings


def test_a_model_is_looked_for_beside_its_settings_alone(tmp_path, monkeypatch) -> None:
    (tmp_path / "here" / "my-model").mkdir(parents=True)
    (tmp_path / "node.toml").write_text(GOOD.replace('"keyword"', '"my-model"'))
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(ConfigError, match=str(tmp_path / "my-model")):
        package_folder(read_node_config(tmp_path / "node.toml").model)
