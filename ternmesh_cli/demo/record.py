"""What a demo run measured, and what follows from it. Values and arithmetic only."""

from collections.abc import Mapping
from dataclasses import dataclass

from ternmesh.link.airtime import FRAME_MAX, LoraSetting, airtime_us, wall_time_s

DUTY_CYCLE = 0.01
RADIOS = (LoraSetting(7), LoraSetting(9), LoraSetting(12))
RAW_FRAME = 222  # bytes of a LoRa frame for what is sent as plain float32


@dataclass(frozen=True, slots=True)
class Round:
    """One closed round: wire bytes of each board and of the way down, and who was not counted."""

    version: int
    bytes_up: Mapping[str, int]
    bytes_down: int
    missing: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class DemoRecord:
    """A whole run. `accuracy` maps a board to its accuracy by reference version, 0 first."""

    boards: tuple[str, ...]
    accuracy: Mapping[str, Mapping[int, float]]
    rounds: tuple[Round, ...]
    dimension: int
    frame_mtu: int
    seconds: float
    bearer: str
    airtime_s: Mapping[str, float] | None = None  # of each radio, where there are any

    @property
    def raw_bytes(self) -> int:
        """What one update costs as float32 numbers and nothing else."""
        return 4 * self.dimension

    @property
    def bytes_up(self) -> float:
        """Mean wire bytes of one board in one round."""
        return _mean([size for item in self.rounds for size in item.bytes_up.values()])

    @property
    def bytes_down(self) -> float:
        """Mean wire bytes of one reference, sent once to all boards."""
        return _mean([item.bytes_down for item in self.rounds])

    def mean_accuracy(self, version: int) -> float:
        """The boards' mean accuracy under one reference."""
        return _mean([self.accuracy[board][version] for board in self.boards])


@dataclass(frozen=True, slots=True)
class RadioCost:
    """What one board's update of one round would cost on a LoRa radio."""

    setting: LoraSetting
    airtime_s: float
    hours: float
    raw_airtime_s: float
    raw_hours: float


def radio_costs(record: DemoRecord) -> list[RadioCost]:
    """Airtime and hours at 1 % duty cycle of one update, ours and as float32, per radio setting."""
    costs = []
    for setting in RADIOS:
        ours = _airtime_s(setting, round(record.bytes_up), min(record.frame_mtu, FRAME_MAX))
        raw = _airtime_s(setting, record.raw_bytes, RAW_FRAME)
        hours = [wall_time_s(airtime, DUTY_CYCLE) / 3600 for airtime in (ours, raw)]
        costs.append(RadioCost(setting, ours, hours[0], raw, hours[1]))
    return costs


def _airtime_s(setting: LoraSetting, size: int, frame: int) -> float:
    full, rest = divmod(size, frame)
    total = full * airtime_us(setting, frame) + (airtime_us(setting, rest) if rest else 0)
    return total / 1e6


def _mean(values: list[float] | list[int]) -> float:
    return sum(values) / len(values) if values else 0.0
