"""Reports and settings of boards, with both ends of a fleet; attacks; ends of older versions."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmesh import __version__
from ternmesh.federated.events import BoardChanged, SettingsTaken
from ternmesh.federated.management import (
    LIMITS,
    SCALES,
    VALUES,
    BoardManagement,
    BoardRecord,
    FleetManagement,
    are_allowed,
    pack,
    unpack,
)
from ternmesh.federated.refusals import NORMAL
from ternmesh.security.membership import HOST
from ternmesh.security.signatures import NO_RUN, SIGNED
from ternmesh.wire import control
from ternmesh.wire.control import INTEGER_MAX, Inquiry, Refusal, Report, Settings
from ternmesh.wire.frame import BROADCAST, UNASSIGNED

New = Callable[..., Any]
PAUSE = {"pause": 1}
WAITS = [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0, 2560.0]


@pytest.fixture(params=[(), ("theo", "yan")], ids=["open", "keyed"])
def bench(request: pytest.FixtureRequest, new_bench: New) -> Any:
    return begun(new_bench, request.param)


@pytest.fixture
def keyed(new_bench: New) -> Any:
    return begun(new_bench, ("theo", "yan"))


def begun(new_bench: New, keys: tuple[str, ...]) -> Any:
    """An open round of two boards that let the host set everything."""
    made = new_bench(rounds=9, min_peers=1, deadline_s=30, keys=keys)
    for name in ("theo", "yan"):
        made.add(name).joining.management = BoardManagement(
            allowed=LIMITS, values=lambda: {"version": 0}
        )
    made.settle()
    return made


def set_all(bench: Any, name: str, **settings: int) -> None:
    bench.host.session.set_board(name, settings, bench.now)


def sent(bench: Any, message: control.Control) -> bytes:
    """The body of a message as the host would send it to theo."""
    body = control.write_control(message)
    if isinstance(message, Settings):
        body = bench.host.channel.authenticator.sign_receipt("theo", NO_RUN, body)
    return body


def give(bench: Any, body: bytes, name: str = "theo", address: int = UNASSIGNED) -> list[bytes]:
    """Let a board take a body as if the host had sealed it; returns what it answers."""
    node = bench.nodes[name]
    bench.sealed = getattr(bench, "sealed", 1 << 20) + 1
    frame = bench.host.channel.sealing.seal(name, address, bench.sealed, body)
    with patch.object(node.channel.outgoing, "push", wraps=node.channel.outgoing.push) as push:
        node.receive_frames(HOST, [frame], bench.now)
    return [body for call in push.call_args_list for body in call.args[2]]


def odd(end: Any) -> dict[str, int]:
    """What an end has refused, without what is normal."""
    return {reason: count for reason, count in end.refused.items() if reason not in NORMAL}


# The numbers


values = st.dictionaries(st.sampled_from(VALUES), st.integers(-(1 << 70), 1 << 70))


@given(values)
def test_values_read_as_written_or_are_the_nearest(found: dict[str, int]) -> None:
    again = unpack(VALUES, pack(VALUES, found))
    for name, value in found.items():
        scale = SCALES.get(name, 1)
        assert again[name] == min(max(0, scale * value), INTEGER_MAX - 1) / scale


@given(st.dictionaries(st.sampled_from([*LIMITS, "shell"]), st.integers(-2, 90_000)))
def test_only_named_settings_within_their_bounds_are_allowed(chosen: dict[str, int]) -> None:
    good = all(n in LIMITS and v in range(LIMITS[n] + 1) for n, v in chosen.items())
    assert are_allowed(chosen) is good


# Reports


def test_a_board_reports_once_after_it_has_joined(bench: Any) -> None:  # R6.10-1, R6.10-6
    board = bench.host.session.management.boards["theo"]
    assert board.report == Report(__version__, 0, pack(LIMITS, {}), pack(VALUES, {"version": 0}))
    assert bench.count(HOST, BoardChanged) == 2
    bench.nodes["theo"].say_hello(bench.now)  # of the same process
    bench.exchange()
    assert bench.count(HOST, BoardChanged) == 2
    again = bench.add("theo")
    again.joining.instance = b"another "
    bench.settle()
    assert bench.count(HOST, BoardChanged) == 3


def test_inquiries_are_answered_once_in_two_seconds(bench: Any) -> None:  # R6.10-6
    bench.wait(2.0)
    count = [len(give(bench, sent(bench, Inquiry()))) for _ in range(5)]
    assert count == [1, 0, 0, 0, 0]
    bench.wait(2.0)
    assert len(give(bench, sent(bench, Inquiry()))) == 1


def test_a_report_of_a_board_that_has_not_joined_is_refused(new_bench: New) -> None:  # R6.10-4
    bench = new_bench()
    node = bench.add("theo")
    bench.take("theo")  # its hello is lost
    node.channel.outgoing.push(HOST, UNASSIGNED, [control.write_control(Report("1", 0, (), ()))])
    bench.exchange()
    assert bench.host.refused["unknown node"] == 1
    assert not bench.host.session.management.boards


# Settings


def test_settings_arrive_at_once_and_are_reported(bench: Any) -> None:  # R6.10-2, R6.10-3
    set_all(bench, "theo", pause=1, pace_s=60)
    bench.exchange()
    theo = bench.nodes["theo"].joining.management
    assert theo.settings == {"pause": 1, "pace_s": 60}
    assert bench.last("theo", SettingsTaken) == SettingsTaken(1, (2, 61, 0, 0, 0))
    board = bench.host.session.management.boards["theo"]
    assert (board.in_force, board.is_behind) == (theo.settings, False)
    assert bench.nodes["yan"].joining.management.settings == {}
    set_all(bench, "theo")
    bench.exchange()
    assert (theo.number, theo.settings) == (2, {})
    assert odd(bench.nodes["theo"]) == {}


def test_lost_settings_come_again_and_more_and_more_seldom(bench: Any) -> None:  # R6.10-3
    set_all(bench, "theo", **PAUSE)
    told = [bench.now]
    board = bench.host.session.management.boards["theo"]
    for _ in range(8000):
        tries = board.tries
        bench.now += 1.0
        bench.host.handle_timeout(bench.now)
        told += [bench.now] * (board.tries - tries)
    bench.take(HOST)  # none of it arrives
    assert np.diff(told) == pytest.approx(WAITS)
    bench.nodes["theo"].say_hello(bench.now)
    bench.exchange()
    assert bench.nodes["theo"].joining.management.paused


def test_a_host_that_was_restored_counts_on_from_what_boards_report(bench: Any) -> None:
    # R6.10-2
    for pace_s in (1, 2, 3):
        set_all(bench, "theo", pace_s=pace_s)
        bench.exchange()
    bench.host.session.management = FleetManagement(5.0)  # it has lost all
    bench.host.session.management.inquire("theo", bench.now)
    bench.wait(2.0)
    bench.host.handle_timeout(bench.now)
    bench.exchange()
    assert bench.host.session.management.boards["theo"].in_force == {"pace_s": 3}
    set_all(bench, "theo", **PAUSE)
    bench.exchange()
    assert bench.nodes["theo"].joining.management.number == 4
    assert bench.nodes["theo"].joining.management.settings == PAUSE


def test_a_board_lets_the_host_choose_what_its_owner_allows(bench: Any) -> None:  # R6.10-9
    bench.nodes["theo"].joining.management = BoardManagement(allowed=("pause",))
    set_all(bench, "theo", pause=1, log_level=0)
    bench.exchange()
    board = bench.host.session.management.boards["theo"]
    assert (board.in_force, board.is_behind) == (PAUSE, False)
    assert odd(bench.nodes["theo"]) == {"settings": 1}
    # What its owner allows no more is out of force after a restart
    assert BoardManagement(1, (2, 0, 1, 0), ("log_level",)).settings == {"log_level": 0}


# A board that is paused


def test_a_paused_board_sends_no_work_and_no_round_waits_for_it(bench: Any) -> None:
    # R6.10-5, R6.10-11
    theo, yan = bench.nodes["theo"], bench.nodes["yan"]
    theo.submit(0, bench.delta(0), bench.now)
    bench.take("theo")  # its update is lost
    set_all(bench, "theo", **PAUSE)
    bench.exchange()
    for number in (0, 1):
        yan.submit(number, bench.delta(number), bench.now)
        bench.exchange()
        assert bench.host.version == number + 1, "before any deadline"
    assert theo.version == 2
    theo.submit(2, bench.delta(3), bench.now)
    for _ in range(10):
        bench.wait(30.0)
        bench.exchange()
    assert bench.host.round.delivered(theo.address) == "none"
    set_all(bench, "theo")
    bench.exchange()
    bench.wait(1.0)
    bench.exchange()
    assert bench.host.round.delivered(theo.address) == "whole"
    assert bench.host.nodes[theo.address].active


# Attacks


def test_older_settings_are_refused_also_after_a_restart(keyed: Any) -> None:  # R6.10-7
    old = sent(keyed, Settings(1, pack(LIMITS, PAUSE)))
    assert len(give(keyed, old)) == 1
    give(keyed, sent(keyed, Settings(2, pack(LIMITS, {}))))
    theo = keyed.nodes["theo"]
    give(keyed, old)
    assert (theo.joining.management.settings, theo.refused["replay"]) == ({}, 1)
    stored = keyed.take("theo") and keyed.last("theo", SettingsTaken)
    theo.joining.management = BoardManagement(stored.number, stored.settings, LIMITS)
    give(keyed, old)
    assert (theo.joining.management.settings, theo.refused["replay"]) == ({}, 2)


def test_settings_for_another_board_are_refused(keyed: Any) -> None:  # R9.7-2
    give(keyed, sent(keyed, Settings(9, pack(LIMITS, PAUSE))), name="yan")
    yan = keyed.nodes["yan"]
    assert (yan.refused["signature"], yan.joining.management.number) == (1, 0)


def test_settings_without_a_signature_are_refused(keyed: Any) -> None:  # R9.7-2
    body = control.write_control(Settings(1, pack(LIMITS, PAUSE)))
    theo = keyed.nodes["theo"]
    give(keyed, body)
    signed = sent(keyed, Settings(1, pack(LIMITS, PAUSE)))
    give(keyed, signed[:-1] + bytes([signed[-1] ^ 1]))
    own = theo.channel.authenticator._own  # a board cannot sign for the host
    with patch.object(keyed.host.channel.authenticator, "_own", own):
        give(keyed, sent(keyed, Settings(1, pack(LIMITS, PAUSE))))
    assert (theo.refused["signature"], theo.joining.management.number) == (3, 0)


@pytest.mark.parametrize("place", range(len(LIMITS)))
def test_settings_out_of_bounds_are_refused_whole(keyed: Any, place: int) -> None:  # R6.10-8
    numbers = [*pack(LIMITS, LIMITS)]
    numbers[place] += 1
    answers = give(keyed, sent(keyed, Settings(1, tuple(numbers))))
    theo = keyed.nodes["theo"]
    assert [control.read_control(body) for body in answers] == [Refusal(1, "settings")]
    assert (theo.joining.management.number, theo.joining.management.settings) == (0, {})
    assert theo.refused["settings"] == 1


def test_a_host_hears_that_a_board_has_refused_settings(bench: Any) -> None:  # R6.10-8
    board = bench.host.session.management.boards["theo"]
    board.number, board.wanted = 1, (3, 0, 0, 0)
    bench.nodes["theo"].say_hello(bench.now)
    bench.exchange()
    assert bench.host.nodes[1].refused["settings"] == 1
    assert board.is_behind
    set_all(bench, "theo", **PAUSE)
    bench.exchange()
    assert bench.nodes["theo"].joining.management.paused


def test_settings_for_all_or_under_an_address_are_refused(new_bench: New) -> None:  # R4.3-7
    bench = begun(new_bench, ())
    theo = bench.nodes["theo"]
    for address in (BROADCAST, theo.address | 0x8000):
        for message in (Settings(1, pack(LIMITS, PAUSE)), Inquiry()):
            assert give(bench, sent(bench, message), address=address) == []
    assert theo.refused["kind"] == 4
    assert theo.joining.management.number == 0


def test_a_revoked_board_is_not_served(keyed: Any) -> None:  # R6.10-4
    keyed.host.channel.authenticator._member_list.revoke("theo")
    keyed.host.exclude("theo", keyed.now)
    keyed.take(HOST)
    set_all(keyed, "theo", **PAUSE)
    keyed.host.session.management.inquire("theo", keyed.now)
    for _ in range(5):
        keyed.wait(100.0)
        keyed.host.handle_timeout(keyed.now)
        assert "theo" not in [peer for peer, _ in keyed.take(HOST)]


# Ends of an older version, which know the types up to `wanted`


def test_a_signed_body_under_another_address_keeps_its_run(keyed: Any) -> None:
    """Settings alone are signed for every run: a receipt of another run is not believed."""
    receipt = control.write_control(control.Receipt(0, bytes(4), b"\1"))
    theo = keyed.nodes["theo"]
    body = keyed.host.channel.authenticator.sign_receipt("theo", bytes(8), receipt)
    assert body[0] == SIGNED
    give(keyed, body, address=theo.address | 0x8000)
    assert theo.refused["signature"] == 1


def test_a_board_that_reports_without_end_gets_no_settings_and_no_disk_for_it(bench: Any) -> None:
    # R6.10-3
    theo = bench.nodes["theo"]
    receive = BoardManagement.receive
    liar = control.write_control(Report("1", 0, (), ()))
    with patch.object(BoardManagement, "receive", lambda *_: iter([liar])):
        set_all(bench, "theo", **PAUSE)
        bench.exchange()
        count, frames = bench.count(HOST, BoardChanged), len(bench.sent[HOST])
        for _ in range(100):
            theo.channel.outgoing.push(HOST, UNASSIGNED, [liar])
            bench.exchange()
    assert bench.count(HOST, BoardChanged) <= count + 1
    assert len(bench.sent[HOST]) == frames
    assert BoardManagement.receive is receive
    assert bench.host.session.management.boards["theo"].is_behind


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_board_that_has_not_reported_is_sent_no_settings(is_restarted: bool) -> None:
    # R6.10-1, R6.10-3
    fleet = FleetManagement(5.0)
    fleet.set("theo", PAUSE, 0.0)
    if is_restarted:
        saved = fleet.boards["theo"]
        fleet = FleetManagement(5.0)
        fleet.restore({"theo": BoardRecord(saved.number, saved.wanted)})
    assert list(fleet.due(0.0)) == [("theo", Inquiry())]
    fleet.reported("theo", Report("1", 0, (), ()), 1.0)
    assert list(fleet.due(1.0)) == [("theo", Settings(1, pack(LIMITS, PAUSE)))]
