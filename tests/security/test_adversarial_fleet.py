"""A whole fleet against enemies on a real mosquitto: the short form of `bench adversary`."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.adversary import is_told, result
from bench.adversary_attacks import Attack
from bench.adversary_proxy import Meddler, Publish, bend, read_publish, write_packet
from bench.adversary_scenes import BY_BROKER, Scene, Stage, wiretap
from ternmesh_cli.mosquitto import find_mosquitto
from transports import batch

ROUNDS, MESSAGES = 3, 10


def test_whatever_is_said_on_the_broker_is_refused_told_and_costs_no_round(tmp_path: Path) -> None:
    program = find_mosquitto()
    if program is None:
        pytest.skip("mosquitto is not installed: apt install mosquitto")
    scene = wiretap(Stage(tmp_path, program, ROUNDS, MESSAGES))
    assert len(scene.attacks) == 11
    for attack in scene.attacks:
        assert attack.heard >= 3, attack
        assert attack.accepted == 0, attack
        assert is_told(attack, scene), attack
    assert (scene.rounds, scene.lost) == (ROUNDS, 0)
    reasons = sum((Counter(attack.reasons) for attack in scene.attacks), Counter[str]())
    assert {"replay", "seal", "suite", "version", "signature", "revoked"} <= set(reasons)


STATUS = {"refused": {"seal": 7}, "transport": {"malformed": 1}, "trust": {"clones": 0}}
SCENE = Scene((), 3, 0, "one", 0.9, {"host": STATUS}, 1.0)


def test_what_is_accepted_hidden_lost_or_changed_shows_in_the_figures() -> None:
    refused = Attack("bits", 7, 7, {"seal": 7})
    passed = Attack("more bits", 9, 8, {"seal": 8})
    by_broker = Attack(BY_BROKER, 4, 4, {"Not authorized": 4})
    control = Attack("control", 5, 2)
    good = replace(SCENE, attacks=(refused, by_broker))
    figures = result([(good, SCENE)], [], control, quick=False).figures
    assert all(figure.holds is not False for figure in figures.values())
    bad = replace(SCENE, attacks=(refused, passed), lost=1, adapter="two")
    figures = result([(good, SCENE), (bad, SCENE)], [], control, quick=False).figures
    assert {name for name, figure in figures.items() if figure.holds is False} == {
        "frames_accepted",
        "honest_rounds_lost",
        "attacks_visible",
        "adapter_unchanged",
    }
    assert figures["frames_accepted"].value == 1
    assert not is_told(Attack("a copy", 0, 0, {"clones": 1}), good)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("flags", [0, 2])
@pytest.mark.parametrize("size", [20, 20_000])
def test_the_man_in_the_middle_reads_what_clients_write(
    version: int, flags: int, size: int
) -> None:
    number = b"\x00\x09" if flags else b""
    properties = b"\x03\x23\x00\x01" if version == 5 else b""
    message = Publish(flags, b"ternmesh/f/up/ada", number, properties, batch.join([bytes(size)]))
    head = 2 if size < 100 else 4
    assert read_publish(flags, message.wire[head:], version) == message
    assert message.acknowledgement == (b"\x40\x02\x00\x09" if flags else b"")
    again = message.again(b"t", b"\x01\x00x")
    assert read_publish(0, again[2:], version) == Publish(0, b"t", b"", properties, b"\x01\x00x")


def test_bending_changes_one_bit_of_one_frame() -> None:
    frames = [bytes(40), bytes(50)]
    bent = batch.split(bend(batch.join(frames), np.random.default_rng(0)))
    ones = [sum(byte.bit_count() for byte in frame) for frame in bent]
    assert [len(frame) for frame in bent] == [40, 50]
    assert sorted(ones) == [0, 1]


def test_a_connect_may_get_another_client_id() -> None:
    meddler = Meddler(1, {}, 0, rename=(b"ada", b"eve"))
    assert meddler.renamed(b"\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x03ada").endswith(b"eve")
    assert write_packet(1, 0, b"x" * 200)[:3] == b"\x10\xc8\x01"
