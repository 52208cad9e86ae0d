"""How patient a node is with its bearer: seconds on a network, many minutes on a radio."""

from dataclasses import dataclass

ANNOUNCES_MISSED = 3  # in a row, before a node doubts that the host knows it


@dataclass(frozen=True, slots=True)
class Pace:
    """When a node asks again, all in seconds; each wait doubles from its first to its longest.

    The first ones are how long an answer usually takes: to a hello, to a packet, and until a
    reference that is announced has come.
    """

    hello_s: float = 1.0
    hello_longest_s: float = 60.0
    packet_s: float = 3.0
    packet_longest_s: float = 120.0
    catch_up_s: float = 5.0


NETWORK = Pace()
