from functools import partial

import numpy as np
import pytest

from ternmesh.link.airtime import LoraSetting, airtime_us
from ternmesh.link.erasure_code import best_symbol_bytes
from ternmesh.link.estimate import OFFER_FRAME, STATUS_FRAME, SYMBOL_OVERHEAD, estimate
from ternmesh.link.ledger import HOUR_S
from ternmesh.link.messages import SYMBOL_HEAD, Offer, Status, write_message
from ternmesh.wire.frame import FRAME_OVERHEAD

SF7 = partial(airtime_us, LoraSetting(7))


def test_it_assumes_what_the_link_sends() -> None:
    assert FRAME_OVERHEAD + SYMBOL_HEAD == SYMBOL_OVERHEAD
    offer = Offer(slot=0, number=0, name=b"name", size=1000, symbol_bytes=200)
    assert FRAME_OVERHEAD + len(write_message(offer)) == OFFER_FRAME
    status = Status(b"name", (100,))
    assert FRAME_OVERHEAD + len(write_message(status)) == STATUS_FRAME
    for size in (1, 238, 239, 1000, 10_000, 300_000):
        symbol_bytes = best_symbol_bytes(size, 255 - SYMBOL_OVERHEAD)
        cost = estimate(size, SF7)
        assert cost.frame_bytes == symbol_bytes + SYMBOL_OVERHEAD
        assert cost.symbols == -(-size // symbol_bytes)


def test_without_loss_and_law_it_is_arithmetic() -> None:
    cost = estimate(300_000, SF7)
    assert (cost.symbols, cost.frames, cost.offers, cost.statuses) == (1261, 1261, 1, 1)
    assert cost.frame_bytes == 255
    assert cost.airtime_us == 1261 * 399_616 + SF7(OFFER_FRAME)
    assert cost.reply_airtime_us == SF7(STATUS_FRAME)
    assert cost.wall_s == pytest.approx((cost.airtime_us + cost.reply_airtime_us) / 1e6)


@pytest.mark.parametrize("loss", [0.1, 0.3, 0.6])
def test_the_loss_is_what_a_link_of_this_kind_meets(loss: float) -> None:
    rng = np.random.default_rng(0)
    symbols = 500
    sent, asked = [], []
    for _ in range(200):
        missing, total, rounds = symbols, 0, 0
        while missing:
            total, rounds = total + missing, rounds + 1
            missing = int(rng.binomial(missing, loss))
        sent.append(total)
        asked.append(rounds)
    cost = estimate(symbols * 238, SF7, loss=loss)
    assert cost.frames == pytest.approx(np.mean(sent), rel=0.02)
    assert cost.statuses * (1 - loss) == pytest.approx(np.mean(asked), rel=0.25)


def test_the_first_hour_is_quick_and_then_the_law_waits() -> None:
    cost = estimate(300_000, SF7, budget_us=360_000_000)
    rest_s = (cost.airtime_us - 360_000_000) / 1e6
    assert HOUR_S + rest_s < cost.wall_s < HOUR_S + rest_s + 20
    assert estimate(100_000, SF7, budget_us=360_000_000).wall_s < 180, "it fits at once"


def test_what_never_fits_takes_for_ever() -> None:
    slow = partial(airtime_us, LoraSetting(12))
    assert estimate(1000, slow, budget_us=3_600_000).wall_s == float("inf")


@pytest.mark.parametrize(
    ("size", "frame_max", "loss"), [(0, 255, 0), (1, 26, 0), (1, 255, 1), (1, 255, -0.1)]
)
def test_refuses_what_makes_no_sense(size: int, frame_max: int, loss: float) -> None:
    with pytest.raises(ValueError, match="are needed"):
        estimate(size, SF7, frame_max, loss)
