from dataclasses import dataclass, field

import pytest

from ternmesh.config import ConfigError, choices, limits, read_config


@dataclass(frozen=True)
class Radio:
    port: str
    power_db: float = field(default=10.0, metadata=limits(-9, 20))
    watts: float = field(default=1.0, metadata=limits(1e-12, 1e12))


@dataclass(frozen=True)
class Settings:
    name: str
    radio: Radio
    rounds: int = field(default=20, metadata=limits(1, 100))
    mode: str = field(default="star", metadata=choices("star", "mesh"))
    verbose: bool = False
    note: str | None = None
    peers: tuple[str, ...] = ()


GOOD = 'name = "a"\n[radio]\nport = "/dev/tty"\n'


def test_defaults_and_nested_tables() -> None:
    assert read_config(Settings, GOOD) == Settings("a", Radio("/dev/tty"))
    text = 'name = "b"\nrounds = 3\nverbose = true\nnote = "x"\npeers = ["c", "d"]\n'
    text += '[radio]\nport = "p"\npower_db = 7\n'
    wanted = Settings("b", Radio("p", 7.0), 3, "star", True, "x", ("c", "d"))
    assert read_config(Settings, text) == wanted


def test_small_letters_and_a_byte_order_mark_do_no_harm() -> None:
    assert read_config(Settings, "\ufeff" + 'mode = "MESH"\n' + GOOD).mode == "mesh"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name = ", ["TOML"]),
        ("name = " + "9" * 5000, ["TOML"]),
        ("name = " + "[" * 5000, ["TOML"]),
        (GOOD + "prot = 1\n", ["radio.prot", "port", "power_db"]),
        ("rond = 1\n" + GOOD, ["rond", "rounds"]),
        ('[radio]\nport = "p"\n', ["name", "missing"]),
        ('name = "a"\n', ["radio.port", "missing"]),
        ("name = 3\n[radio]\n", ["name", "3", "text"]),
        ('radio = 5\nname = "a"\n', ["radio", "5", "table"]),
        ("rounds = 0\n" + GOOD, ["rounds", "0", "1 to 100"]),
        ("rounds = 101\n" + GOOD, ["rounds", "101"]),
        ("rounds = 1.5\n" + GOOD, ["rounds", "1.5", "whole"]),
        ("rounds = true\n" + GOOD, ["rounds is true: "]),
        ('mode = "ring"\n' + GOOD, ["mode", "ring", "star", "mesh"]),
        ("verbose = 1\n" + GOOD, ["verbose", "true or false"]),
        ("peers = [1]\n" + GOOD, ["peers", "list of texts"]),
        (GOOD + "watts = 0.0\n", ["radio.watts is 0.0: it must be 1e-12 to 1000000000000"]),
        (GOOD + "power_db = nan\n", ["radio.power_db", "nan", "-9 to 20"]),
        (GOOD + "power_db = " + "9" * 400 + "\n", ["radio.power_db", "number"]),
        (GOOD + 'power_db = "x"\n', ["radio.power_db", "number"]),
        (GOOD.replace("tty", "\\u0000"), ["radio.port", r"'/dev/\x00'", r"\u0000"]),
        ('peers = ["c", "\\u0000"]\n' + GOOD, ["peers", r"\u0000"]),
        ("a." * 5000 + "a = 1", ["TOML"]),
    ],
)
def test_a_wrong_setting_is_one_sentence_that_names_it(text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config(Settings, text)
    sentence = str(caught.value)
    assert all(word in sentence for word in words), sentence
    assert "\n" not in sentence
