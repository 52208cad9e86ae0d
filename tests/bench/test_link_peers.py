"""The models give what was tabulated when links were chosen, and what closed forms say."""

import math

import numpy as np
import pytest

from bench.link_peers import PEERS, Transfer, ts004_redundancy

LARGE, SMALL = 300_000, 10_000


def transfers(peer: str, size: int, loss: float, seeds: int) -> list[Transfer]:
    return [PEERS[peer](size, loss, np.random.default_rng(seed)) for seed in range(seeds)]


def efficiency(peer: str, size: int, loss: float) -> float:
    """Useful bytes for each byte on the air, over the transfers that completed."""
    seeds = 60 if size == SMALL else 12
    done = [each.air_bytes for each in transfers(peer, size, loss, seeds) if each.completed]
    return size / float(np.mean(done))


@pytest.mark.parametrize(
    ("peer", "size", "loss", "expected"),
    [
        ("schc", LARGE, 0.0, 0.93),
        ("schc", LARGE, 0.1, 0.83),
        ("schc", LARGE, 0.3, 0.64),
        ("schc", SMALL, 0.0, 0.92),
        ("schc", SMALL, 0.1, 0.81),
        ("schc", SMALL, 0.3, 0.63),
        ("lorawan_ts004", LARGE, 0.0, 0.94),
        ("lorawan_ts004", LARGE, 0.1, 0.82),
        ("lorawan_ts004", LARGE, 0.3, 0.63),
        ("lorawan_ts004", SMALL, 0.0, 0.93),
        ("lorawan_ts004", SMALL, 0.1, 0.69),
        ("lorawan_ts004", SMALL, 0.3, 0.51),
        ("coap_block1", LARGE, 0.0, 0.83),
        ("coap_block1", LARGE, 0.1, 0.68),
        ("meshtastic", LARGE, 0.0, 0.82),
        ("meshtastic_app_retry", LARGE, 0.0, 0.82),
        ("meshtastic_app_retry", LARGE, 0.1, 0.67),
        ("meshtastic_app_retry", LARGE, 0.3, 0.42),
        ("meshtastic_app_retry", SMALL, 0.3, 0.42),
    ],
)
def test_useful_bytes_per_byte_on_the_air(
    peer: str, size: int, loss: float, expected: float
) -> None:
    assert efficiency(peer, size, loss) == pytest.approx(expected, abs=0.03)


def completes(unit: int, sends: int, size: int, loss: float) -> float:
    return (1 - (1 - (1 - loss) ** 2) ** sends) ** math.ceil(size / unit)


@pytest.mark.parametrize(
    ("peer", "unit", "sends", "size", "loss", "tabulated"),
    [
        ("coap_block1", 128, 5, LARGE, 0.05, 0.98),
        ("coap_block1", 128, 5, LARGE, 0.1, 0.56),
        ("coap_block1", 128, 5, LARGE, 0.2, 0.0),
        ("meshtastic", 233, 3, LARGE, 0.05, 0.30),
        ("meshtastic", 233, 3, LARGE, 0.1, 0.0),
        ("meshtastic", 233, 3, SMALL, 0.1, 0.74),
        ("meshtastic", 233, 3, SMALL, 0.2, 0.13),
        ("meshtastic_five_sends", 233, 5, SMALL, 0.2, None),
        ("meshtastic_app_retry", 233, 999, LARGE, 0.5, 1.0),
    ],
)
def test_how_often_stop_and_wait_completes(
    peer: str, unit: int, sends: int, size: int, loss: float, tabulated: float | None
) -> None:
    share = completes(unit, sends, size, loss)
    if tabulated is not None:
        assert share == pytest.approx(tabulated, abs=0.006)
    seeds = 400
    done = sum(each.completed for each in transfers(peer, size, loss, seeds))
    assert done == pytest.approx(seeds * share, abs=4 * math.sqrt(seeds * share * (1 - share)) + 1)


@pytest.mark.parametrize("loss", [0.1, 0.3, 0.5])
def test_stop_and_wait_costs_what_the_closed_form_says(loss: float) -> None:
    """A unit is sent until both ways work, and acknowledged each time that it arrives."""
    expected = 233 / (255 / (1 - loss) ** 2 + 29 / (1 - loss))
    assert efficiency("meshtastic_app_retry", 233 * 1288, loss) == pytest.approx(expected, rel=0.01)


def test_how_often_the_others_complete() -> None:
    for loss in (0.0, 0.1, 0.2):
        assert all(each.completed for each in transfers("schc", SMALL, loss, 60))
    assert 0.9 < np.mean([each.completed for each in transfers("schc", SMALL, 0.3, 200)]) < 1
    assert not any(each.completed for each in transfers("schc", LARGE, 0.5, 5))
    for size in (1000, SMALL):
        blind = transfers("lorawan_ts004", size, 0.2, 2000)
        assert 0.975 < np.mean([each.completed for each in blind]) < 1


def test_the_redundancy_is_the_least_that_is_enough() -> None:
    """Beside the table: without loss none, with one fragment a count that can be done by hand."""
    assert ts004_redundancy(42, 0.0) == 0
    # One fragment, lost half of the time; each coded one arrives and says anything a quarter of it.
    needed = next(r for r in range(99) if 0.5 + 0.5 * (1 - 0.75**r) >= 0.99)
    assert ts004_redundancy(1, 0.5) == needed


def test_a_frame_carries_what_its_protocol_says() -> None:
    def one(peer: str, size: int) -> int:
        return PEERS[peer](size, 0.0, np.random.default_rng(1)).air_bytes

    assert one("schc", 240) == 254 + 18 + 14
    assert one("schc", 241) == 254 + 15 + 18 + 14
    assert one("schc", 2520 + 10) == 10 * 254 + 134 + 32 + 24 + 32
    assert one("lorawan_ts004", 240) == 2 * 255
    assert one("coap_block1", 129) == 143 + 16 + 2 * 12
    assert one("meshtastic", 234) == 255 + 23 + 2 * 29


@pytest.mark.parametrize("peer", PEERS)
def test_one_seed_is_one_transfer_and_loss_costs(peer: str) -> None:
    assert transfers(peer, SMALL, 0.2, 5) == transfers(peer, SMALL, 0.2, 5)
    without, much = (
        np.mean([each.air_bytes for each in transfers(peer, 2000, loss, 30)]) for loss in (0.0, 0.2)
    )
    assert much > 1.15 * without
