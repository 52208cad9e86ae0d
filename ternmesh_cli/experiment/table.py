"""The table of the arms as texts, for the terminal and for the report."""

from collections.abc import Sequence

from ternmesh_cli.experiment.payload import FRAME
from ternmesh_cli.experiment.result import ArmResult, part_names
from ternmesh_cli.experiment.settings import NODES

DIRECTIONS = ("up", "down")
NOTES = (
    "Bytes are those of message bodies at the bearer, without the headers of MQTT and TCP: up for "
    "a node and round, down for a round, sent once for both nodes. Those of ternmesh hold seals, "
    "signatures, receipts and announcements too.",
    "A packet of ternmesh mixes all parts of the model (a permutation): its bytes by part are "
    "shares by the count of numbers.",
    "Accuracy is that of the reference that each node holds at the end, on all dev and extra "
    "pairs; 'own' is that of a node's state before the last exchange.",
)


def titles(results: Sequence[ArmResult]) -> list[str]:
    """The first column, for these arms together."""
    parts = [*part_names(results), FRAME]
    return [
        "trained numbers",
        *(f"bytes {way}, {name}" for way in DIRECTIONS for name in [*parts, "total"]),
        "bytes up, whole run",
        "bytes down, whole run",
        "bits up per trained number",
        "steps of each node",
        "sync rounds",
        *(f"accuracy, node {node}" for node in NODES),
        *(f"own accuracy, node {node}" for node in NODES),
        "messages sent again",
        "wall time",
    ]


def cells(result: ArmResult, results: Sequence[ArmResult]) -> list[str]:
    """The column of one of these arms, in the order of `titles`."""
    parts = [*part_names(results), FRAME]
    up, down = result.bytes_run
    return [
        f"{result.dimension:,}",
        *(_bytes(result.parts_up.get(name)) for name in parts),
        _bytes(result.bytes_up),
        *(_bytes(result.parts_down.get(name)) for name in parts),
        _bytes(result.bytes_down),
        f"{up:,}",
        f"{down:,}",
        f"{result.bits(result.dimension):.3f}",
        f"{result.steps:,}",
        str(len(result.rounds)),
        *(_share(result.accuracy.get(node)) for node in NODES),
        *(_share(result.own.get(node)) for node in NODES),
        str(result.repeats),
        f"{result.seconds:,.0f} s",
    ]


def _bytes(size: float | None) -> str:
    return "" if size is None else f"{size:,.0f}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.2%}"
