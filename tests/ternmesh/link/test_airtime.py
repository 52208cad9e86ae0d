import json
from pathlib import Path

import pytest

from ternmesh.link.airtime import LoraSetting, airtime_us

VECTORS = Path(__file__).parents[2] / "vectors" / "lora_airtime.json"


def test_equals_every_row_of_the_oracle() -> None:
    for factor, bandwidth, rate, size, airtime in json.loads(VECTORS.read_text()):
        assert airtime_us(LoraSetting(factor, bandwidth, rate), size) == airtime


def test_meshtastic_preamble() -> None:
    # LongFast (SF11, 250 kHz, preamble 16) at 255 bytes, from Meshtastic's own table.
    setting = LoraSetting(11, 250, 1, preamble_symbols=16)
    assert airtime_us(setting, 255) == 2_156_544


@pytest.mark.parametrize("size", [-1, 256])
def test_refuses_a_frame_that_no_radio_sends(size: int) -> None:
    with pytest.raises(ValueError, match="0 to 255 bytes"):
        airtime_us(LoraSetting(), size)


@pytest.mark.parametrize("setting", [(6, 125, 1), (7, 100, 1), (7, 125, 5)])
def test_refuses_a_setting_that_no_radio_has(setting: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="it must be"):
        LoraSetting(*setting)
