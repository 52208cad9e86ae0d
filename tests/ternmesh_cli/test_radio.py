import json

import pytest

from ternmesh_cli import main

CHANNEL = ["--bytes", "300000", "--sf", "7", "--bandwidth", "125"]
EU868 = ["--region", "EU868", "--frequency", "869.5"]


def ternmesh(*arguments: object) -> int:
    return main.main([str(argument) for argument in arguments])


def estimate(capsys, *arguments: object) -> dict:
    assert ternmesh("radio", "estimate", *arguments, "--json") == 0
    shown = capsys.readouterr().out
    assert shown.count("\n") == 1
    return json.loads(shown, parse_constant=pytest.fail)


def test_an_estimate_as_json(capsys):
    answer = estimate(capsys, *CHANNEL, *EU868)
    assert answer == {
        "bytes": 300_000,
        "region": "EU868",
        "sub_band": "869.4-869.65 MHz",
        "duty_cycle": 0.1,
        "symbols": 1261,
        "frame_bytes": 255,
        "frames": 1261,
        "offers": 1,
        "statuses": 1,
        "airtime_s": pytest.approx(504, abs=1),
        "reply_airtime_s": pytest.approx(0.06, abs=0.01),
        "wall_s": pytest.approx(3600 + 144, abs=20),
    }
    lossy = estimate(capsys, *CHANNEL, *EU868, "--loss", "0.1")
    assert lossy["frames"] == 1402
    assert lossy["wall_s"] > answer["wall_s"]
    full = estimate(capsys, *CHANNEL, *EU868, "--spent", 360)
    assert full["wall_s"] == pytest.approx(answer["wall_s"] + 3600, abs=20)


def test_an_estimate_as_text(capsys):
    assert ternmesh("radio", "estimate", *CHANNEL, *EU868) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "300,000 bytes, EU868 869.4-869.65 MHz (duty cycle 10 %), SF7 at 125 kHz"
    assert [line.split("  ")[0] for line in lines[1:]] == ["frames", "airtime", "wall time"]
    assert "8 min 24 s" in lines[2]
    assert "1 h 2 min" in lines[3]


def test_without_a_law_it_takes_the_airtime(capsys):
    for region, mhz, khz in (("unregulated", 433, 125), ("US915", 915, 500)):
        where = ["--region", region, "--frequency", mhz, "--bandwidth", khz]
        answer = estimate(capsys, "--bytes", 1000, *where)
        assert answer["wall_s"] == pytest.approx(answer["airtime_s"] + answer["reply_airtime_s"])


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--region", "US915", "--frequency", "915"], "fixed channel of 125 kHz is not allowed"),
        (["--region", "EU868", "--frequency", "869.3"], "for alarms"),
        (["--region", "EU868", "--frequency", "868.1", "--power", "20"], "too strong"),
    ],
)
def test_a_channel_that_the_law_forbids_is_2_and_a_sentence(capsys, arguments, why):
    assert ternmesh("radio", "estimate", *CHANNEL, *arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("ternmesh: ")
    assert why in shown.err
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["estimate"],
        ["fly"],
        ["estimate", *CHANNEL, *EU868, "--sf", "6"],
        ["estimate", *CHANNEL, *EU868, "--bandwidth", "200"],
        ["estimate", *CHANNEL, *EU868, "--loss", "1"],
        ["estimate", *CHANNEL, *EU868, "--loss", "nan"],
        ["estimate", *CHANNEL, *EU868, "--frequency", "much"],
        ["estimate", *CHANNEL, *EU868, "--bytes", "0"],
        ["estimate", *CHANNEL, "--region", "Mars", "--frequency", "869.5"],
    ],
)
def test_a_wrong_command_line_is_2(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        ternmesh("radio", *arguments)
    assert caught.value.code == 2


@pytest.mark.parametrize("arguments", [["radio"], ["radio", "estimate"]])
def test_help_tells_the_exit_codes(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        ternmesh(*arguments, "--help")
    assert caught.value.code == 0
    assert "exit codes:\n  0  done" in capsys.readouterr().out
