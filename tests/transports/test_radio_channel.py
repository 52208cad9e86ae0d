import math
from collections.abc import Iterable

import numpy as np
import pytest

from ternmesh.link.airtime import LoraSetting, airtime_us
from transports.radio_channel import (
    QUEUE_MAX,
    SENSE_SYMBOLS,
    SNR_MIN_DB,
    Delivery,
    Link,
    RadioChannel,
    RadioCounters,
    snr_db,
)

SETTING = LoraSetting()
AIRTIME_S = airtime_us(SETTING, 50) / 1e6
FRAME = bytes(50)


def channel(names: Iterable[str] = "abc", seed: int = 1, **options) -> RadioChannel:
    options = {"csma": False} | options
    made = RadioChannel(SETTING, np.random.default_rng(seed), **options)
    for name in names:
        made.attach(name)
    return made


def finish(radio: RadioChannel) -> list[Delivery]:
    deliveries = []
    while (at := radio.next_time()) is not None:
        deliveries += radio.advance(at)
    return deliveries


def who(deliveries: Iterable[Delivery]) -> list[tuple[str, str]]:
    return [(each.sender, each.name) for each in deliveries]


def test_a_frame_reaches_all_others_after_its_time_on_air() -> None:
    radio = channel()
    assert radio.transmit("a", FRAME, 5.0)
    assert radio.waiting("a") == 1
    assert radio.advance(5.0 + AIRTIME_S - 1e-6) == []
    at = pytest.approx(5.0 + AIRTIME_S)
    assert radio.advance(6.0) == [
        Delivery(at, "b", "a", FRAME, 10.0),
        Delivery(at, "c", "a", FRAME, 10.0),
    ]
    assert (radio.waiting("a"), radio.next_time()) == (0, None)
    assert radio.counters["a"] == RadioCounters(
        sent=1, airtime_s=pytest.approx(AIRTIME_S), delivered=2
    )


def test_frames_of_one_node_wait_for_each_other_and_the_queue_is_bounded() -> None:
    radio = channel("ab")
    assert [radio.transmit("a", bytes([n]), 0.0) for n in range(QUEUE_MAX + 1)] == [
        *[True] * QUEUE_MAX, False,
    ]  # fmt: skip
    assert [each.frame for each in finish(radio)] == [bytes([n]) for n in range(QUEUE_MAX)]
    assert radio.counters["a"].refused == 1


def test_overlapping_frames_collide_and_touching_ones_do_not() -> None:
    radio = channel()
    radio.transmit("a", FRAME, 0.0)
    radio.transmit("b", FRAME, AIRTIME_S - 1e-3)
    assert finish(radio) == []
    assert (radio.total().collided, radio.total().deaf) == (2, 2)
    radio = channel()
    radio.transmit("a", FRAME, 0.0)
    radio.transmit("b", FRAME, AIRTIME_S)
    assert who(finish(radio)) == [("a", "b"), ("a", "c"), ("b", "a"), ("b", "c")]


def test_who_transmits_is_deaf() -> None:
    """Two that send to each other hear nothing, however well; a third hears the stronger."""
    links = {("a", "b"): Link(20.0), ("b", "a"): Link(20.0), ("a", "c"): Link(9.0)}
    radio = channel(links=links)
    radio.transmit("a", FRAME, 0.0)
    radio.transmit("b", b"short", 0.01)
    assert who(finish(radio)) == [("a", "c")]
    assert (radio.counters["a"].deaf, radio.counters["b"].deaf) == (1, 1)


@pytest.mark.parametrize(
    ("stronger_db", "heard"), [(6.0, ["a"]), (5.9, []), (-5.9, []), (-6.0, ["b"])]
)
def test_the_stronger_frame_is_captured_from_6_db(stronger_db: float, heard: list[str]) -> None:
    for first, second in (("a", "b"), ("b", "a")):
        radio = channel(links={("a", "c"): Link(stronger_db), ("b", "c"): Link(0.0)})
        radio.transmit(first, FRAME, 0.0)
        radio.transmit(second, FRAME, 0.05)
        deliveries = finish(radio)
        assert [each.sender for each in deliveries] == heard
        assert radio.total().collided == 2 - len(heard)


def test_a_signal_too_weak_to_decode_still_disturbs() -> None:
    floor = SNR_MIN_DB[7]
    links = {("a", "c"): Link(floor + 1), ("b", "c"): Link(floor - 1)}
    radio = channel(links=links)
    radio.transmit("b", FRAME, 0.0)
    assert finish(radio) == []
    radio.transmit("a", FRAME, 1.0)
    assert who(finish(radio)) == [("a", "c")]
    radio.transmit("a", FRAME, 2.0)
    radio.transmit("b", FRAME, 2.01)
    assert finish(radio) == []
    assert radio.counters["a"] == RadioCounters(2, 0, pytest.approx(2 * AIRTIME_S), 1, 1)
    assert radio.counters["b"].collided == 0


def test_distance_decides_where_nodes_have_positions() -> None:
    reach_m = next(d for d in range(1, 2000) if snr_db(d, SETTING) < SNR_MIN_DB[7])
    assert 100 < reach_m < 200
    radio = RadioChannel(SETTING, np.random.default_rng(1), csma=False)
    for name, x in (("a", 0.0), ("near", reach_m - 1.0), ("far", reach_m + 1.0)):
        radio.attach(name, (x, 0.0))
    radio.transmit("a", FRAME, 0.0)
    [delivery] = finish(radio)
    assert (delivery.name, delivery.snr_db) == ("near", snr_db(reach_m - 1.0, SETTING))


def test_a_link_loses_its_share() -> None:
    radio = channel(links={("a", "b"): Link(10.0, 0.3), ("a", "c"): Link(10.0, 0.0)})
    count = 4000
    for n in range(count):
        radio.transmit("a", b"x", float(n))
    received = [each.name for each in finish(radio)]
    assert received.count("c") == count
    assert received.count("b") == pytest.approx(0.7 * count, abs=4 * math.sqrt(0.21 * count))
    assert radio.counters["a"].lost == count - received.count("b")


def poisson(
    load: float, seed: int = 1, frames: int = 6000, nodes: int = 40, **options
) -> tuple[float, RadioChannel]:
    """Throughput in frames per airtime at one listener, with Poisson traffic of many nodes."""
    rng = np.random.default_rng(seed)
    names = [f"n{n}" for n in range(nodes)]
    radio = channel(["listener", *names], seed, **options)
    now, received = 0.0, 0
    for _ in range(frames):
        now += rng.exponential(AIRTIME_S / load)
        radio.transmit(names[rng.integers(nodes)], FRAME, now)
        received += sum(each.name == "listener" for each in radio.advance(now))
    return received * AIRTIME_S / now, radio


@pytest.mark.parametrize("load", [0.2, 0.5, 1.0])
def test_without_csma_and_capture_it_is_pure_aloha(load: float) -> None:
    """S = G exp(-2G); a node's frames do not hit each other, which gives 1/40 less load."""
    throughput, radio = poisson(load, capture_db=math.inf)
    rivals = 2 * load * (1 - 1 / 40)
    assert throughput == pytest.approx(load * math.exp(-rivals), rel=0.06)
    total = radio.total()
    assert total.sent * 40 == pytest.approx(
        total.delivered + total.collided + total.deaf + total.lost, abs=40 * 41
    )


def test_csma_does_better_than_aloha_and_capture_helps() -> None:
    aloha, _ = poisson(1.0, frames=2000, capture_db=math.inf)
    csma, radio = poisson(1.0, frames=2000, capture_db=math.inf, csma=True)
    assert aloha < 0.16
    assert csma > 0.6
    assert radio.total().deaf > 0  # Who senses at the same moment still collides.
    links = {(f"n{n}", "listener"): Link(snr) for n, snr in enumerate(np.linspace(-5.0, 20.0, 40))}
    capture, _ = poisson(1.0, frames=2000, links=links)
    no_capture, _ = poisson(1.0, frames=2000, links=links, capture_db=math.inf)
    assert capture > 1.5 * no_capture


def test_csma_waits_for_what_it_hears_and_not_for_a_hidden_node() -> None:
    sense_s = SENSE_SYMBOLS * SETTING.symbol_us / 1e6
    radio = channel(csma=True)
    radio.transmit("a", FRAME, 0.0)
    first_end = sense_s + AIRTIME_S
    radio.advance(0.05)
    radio.transmit("b", b"x", 0.05)
    deliveries = finish(radio)
    assert who(deliveries) == [("a", "b"), ("a", "c"), ("b", "a"), ("b", "c")]
    assert deliveries[0].at >= first_end
    assert deliveries[2].at >= deliveries[0].at + sense_s
    hidden = {("a", "c"): Link(), ("b", "c"): Link()}
    radio = channel(csma=True, links=hidden)
    radio.transmit("a", FRAME, 0.0)
    radio.advance(0.05)
    radio.transmit("b", FRAME, 0.05)
    assert finish(radio) == []
    assert radio.total().collided == 2


def test_a_budget_holds_frames_back_and_is_spent_once_for_each() -> None:
    """A duty cycle of one tenth: nine times its airtime passes before the next frame."""
    free_at: dict[str, float] = {}
    granted: list[float] = []

    def budget(name: str, airtime_s: float, now: float) -> float:
        wait_s = free_at.get(name, 0.0) - now
        if wait_s > 1e-9:
            return wait_s
        free_at[name] = now + 10 * airtime_s
        granted.append(airtime_s)
        return 0.0

    radio = channel("ab", budget=budget)
    for _ in range(5):
        radio.transmit("a", FRAME, 0.0)
    times = [each.at for each in finish(radio)]
    assert times == pytest.approx([AIRTIME_S * (1 + 10 * n) for n in range(5)])
    assert granted == pytest.approx([AIRTIME_S] * 5)


def test_one_seed_is_one_history() -> None:
    def history(seed: int) -> list[Delivery]:
        radio = channel("abcdef", seed, csma=True, link=Link(10.0, 0.2))
        for n in range(100):
            radio.transmit("abcdef"[n % 6], bytes([n]), 0.05 * n)
        return finish(radio)

    assert history(1) == history(1)
    assert history(1) != history(2)


def test_what_is_received_was_sent_once_to_each() -> None:
    radio = channel("abcdef", csma=True)
    sent = [("abcdef"[n % 6], n.to_bytes(2, "big")) for n in range(300)]
    deliveries = []
    for n, (name, frame) in enumerate(sent):
        assert radio.transmit(name, frame, 0.2 * n)
        deliveries += radio.advance(0.2 * n)
    deliveries += finish(radio)
    assert {(each.sender, each.frame) for each in deliveries} <= set(sent)
    assert len({(each.name, each.frame) for each in deliveries}) == len(deliveries)
    assert [each.at for each in deliveries] == sorted(each.at for each in deliveries)


def test_nothing_of_the_past_is_kept() -> None:
    """On a channel that is never silent, what it holds does not grow."""
    radio = channel("abc")
    for n in range(2000):
        radio.transmit("abc"[n % 3], FRAME, 0.5 * n * AIRTIME_S)
        radio.advance(0.5 * n * AIRTIME_S)
        assert len(radio._on_air) <= 3
        assert len(radio._events) <= 6
    assert radio.total().sent > 1900


def test_wrong_use_is_refused_with_a_sentence() -> None:
    radio = channel("ab")
    radio.advance(5.0)
    with pytest.raises(ValueError, match=r"at 5 s already, not at 4 s"):
        radio.transmit("a", b"x", 4.0)
    with pytest.raises(ValueError, match="attached already"):
        radio.attach("a")
    with pytest.raises(ValueError, match="0 to 255 bytes, not 256"):
        radio.transmit("a", bytes(256), 5.0)
    with pytest.raises(ValueError, match="loss must be 0 to 1"):
        Link(10.0, 1.5)
    with pytest.raises(ValueError, match="no node 'z' is attached"):
        radio.transmit("z", b"x", 5.0)
