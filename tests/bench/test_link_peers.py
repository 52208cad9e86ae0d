"""The models give what was tabulated when links were chosen, and what can be done by hand."""

import pytest

from bench.link_peers import PEERS

LARGE, SMALL = 300_000, 10_000


@pytest.mark.parametrize(
    ("peer", "size", "loss", "expected"),
    [
        ("schc", LARGE, 0.0, 0.93),
        ("schc", LARGE, 0.3, 0.64),
        ("schc", SMALL, 0.3, 0.63),
        ("coap_block1", LARGE, 0.1, 0.68),
        ("meshtastic", LARGE, 0.0, 0.82),
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
        ("coap_block1", LARGE, 0.1, 0.56),
        ("meshtastic", SMALL, 0.2, 0.13),
        ("meshtastic_app_retry", LARGE, 0.5, 1.0),
        ("schc", LARGE, 0.5, 0.0),
    ],
)
def test_how_often_a_transfer_completes(
    peer: str, size: int, loss: float, tabulated: float
) -> None:
    assert PEERS[peer](size, loss).completed == pytest.approx(tabulated, abs=0.006)
