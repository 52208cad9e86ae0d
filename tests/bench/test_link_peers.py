"""The models give what was tabulated when links were chosen, and what can be done by hand."""

import pytest

from bench.link_peers import PEERS

LARGE, SMALL = 300_000, 10_000


@pytest.mark.parametrize(
    ("peer", "size", "loss", "expected"),
    [
        ("schc", LARGE, 0.0, 0.93),
        ("schc", LARGE, 0.1, 0.83),
        ("schc", LARGE, 0.3, 0.64),
        ("schc", SMALL, 0.1, 0.81),
        ("schc", SMALL, 0.3, 0.63),
        ("coap_block1", LARGE, 0.0, 0.83),
        ("coap_block1", LARGE, 0.1, 0.68),
        ("meshtastic", LARGE, 0.0, 0.82),
        ("meshtastic_app_retry", LARGE, 0.1, 0.67),
        ("meshtastic_app_retry", SMALL, 0.3, 0.42),
    ],
)
def test_useful_bytes_per_byte_on_the_air(
    peer: str, size: int, loss: float, expected: float
) -> None:
    assert size / PEERS[peer](size, loss).air_bytes == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize(
    ("peer", "size", "loss", "tabulated"),
    [
        ("coap_block1", LARGE, 0.05, 0.98),
        ("coap_block1", LARGE, 0.1, 0.56),
        ("meshtastic", LARGE, 0.05, 0.30),
        ("meshtastic", SMALL, 0.1, 0.74),
        ("meshtastic", SMALL, 0.2, 0.13),
        ("meshtastic_app_retry", LARGE, 0.5, 1.0),
        ("schc", SMALL, 0.2, 1.0),
        ("schc", LARGE, 0.5, 0.0),
    ],
)
def test_how_often_a_transfer_completes(
    peer: str, size: int, loss: float, tabulated: float
) -> None:
    assert PEERS[peer](size, loss).completed == pytest.approx(tabulated, abs=0.006)


def test_a_frame_carries_what_its_protocol_says() -> None:
    def one(peer: str, size: int) -> float:
        return PEERS[peer](size, 0.0).air_bytes

    assert one("schc", 240) == 254 + 18 + 14
    assert one("schc", 241) == 254 + 15 + 18 + 14
    assert one("coap_block1", 129) == 143 + 16 + 2 * 12
    assert one("meshtastic", 234) == 255 + 23 + 2 * 29
