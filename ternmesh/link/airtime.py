"""Compute the LoRa time on air, in integer arithmetic.

Semtech AN1200.13 (SX1276; the same for SX126x at SF7 and above): explicit header, CRC on.
"""

from dataclasses import dataclass

FRAME_MAX = 255
SPREADING_FACTORS = range(7, 13)
BANDWIDTHS_KHZ = (62.5, 125, 250, 500)
LOW_RATE_SYMBOL_US = 16_000  # low data rate optimisation is on from this symbol time
CODING_RATES = range(1, 5)


@dataclass(frozen=True, slots=True)
class LoraSetting:
    """A radio setting: spreading factor 7 to 12, bandwidth in kHz, coding rate 4/(4 + cr)."""

    spreading_factor: int = 7
    bandwidth_khz: float = 125
    coding_rate: int = 1
    preamble_symbols: int = 8

    def __post_init__(self) -> None:
        if self.spreading_factor not in SPREADING_FACTORS:
            raise ValueError(f"spreading factor {self.spreading_factor}: it must be 7 to 12")
        if self.bandwidth_khz not in BANDWIDTHS_KHZ:
            raise ValueError(
                f"bandwidth {self.bandwidth_khz:g} kHz: it must be 62.5, 125, 250 or 500"
            )
        if self.coding_rate not in CODING_RATES:
            raise ValueError(f"coding rate {self.coding_rate}: it must be 1 (4/5) to 4 (4/8)")

    @property
    def symbol_us(self) -> int:
        """Return the time of one symbol in microseconds; exact: 8 us times a power of two."""
        return int((1 << self.spreading_factor) * 1000 / self.bandwidth_khz)


def airtime_us(setting: LoraSetting, frame_bytes: int) -> int:
    """Return the time on air of one frame of 0 to 255 bytes, in microseconds."""
    if not 0 <= frame_bytes <= FRAME_MAX:
        raise ValueError(f"a LoRa frame has 0 to {FRAME_MAX} bytes, not {frame_bytes}")
    factor = setting.spreading_factor
    low_rate = setting.symbol_us >= LOW_RATE_SYMBOL_US
    bits = 8 * frame_bytes - 4 * factor + 28 + 16
    blocks = max(0, -(-bits // (4 * (factor - 2 * low_rate))))
    quarters = 4 * (setting.preamble_symbols + 8 + blocks * (setting.coding_rate + 4)) + 17
    return quarters * setting.symbol_us // 4
