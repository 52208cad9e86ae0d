"""The tables of `ternmesh status` for a host: its nodes, whom it trusts, and its rounds."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ternmesh.federated.refusals import shortened

NO_REPORT = "no report yet: away, on a slow link, or of an older version"
Answer = Mapping[str, Any]
NODE_HEADS = (
    "node",
    "active",
    "heard",
    "update",
    "counted",
    "missed",
    "weight",  # of the newest round
    "samples",
    "up",
    "down",
    "trust",  # the factor of its weight
    "to others",  # the cosine of its recent updates to those of other nodes
    "software",  # shown where it is not the host's everywhere
)
ROUND_HEADS = ("version", "seconds", "counted", "missing", "up", "down", "loss before", "accuracy")


def nodes(answer: Answer, is_over: bool) -> Iterator[str]:
    """The table, with a column for the software where that is not the host's everywhere."""
    found = answer["nodes"]
    own = answer.get("software")
    boards = {n["name"]: n["board"] for n in found if "board" in n and not n["revoked"]}
    others = [name for name, board in boards.items() if board["software"] not in (None, own)]
    rows = [
        (*_node_row(node, is_over), boards.get(node["name"], {}).get("software") or "-")
        for node in found
    ]
    shown = len(NODE_HEADS) - (not others)
    yield from table(NODE_HEADS[:shown], [cells[:shown] for cells in rows])
    factors = {n["name"]: n["influence"]["clipped"] for n in found if n.get("influence")}
    cut = [f"{name} to {factor:.0%}" for name, factor in factors.items() if factor < 1]
    for sentence, names in (
        ("longer than updates usually are, and cut", cut),
        (f"other versions than this host's {own}", others),
        (NO_REPORT, [name for name, board in boards.items() if board["software"] is None]),
        ("settings not taken yet", [name for name, board in boards.items() if board["behind"]]),
        ("paused", [name for name, board in boards.items() if board["in_force"].get("pause")]),
    ):
        if names:
            yield f"{sentence}: {shortened(names)}"


def distrusted(nodes: Sequence[Answer]) -> Iterator[str]:
    """Who counts little, and why; whose updates are unlike the others', or empty."""
    for node in nodes:
        known = node.get("standing") or {}
        if known.get("since"):
            yield (
                f"{node['name']} counts {known['weight']:.0%} since global update "
                f"{known['since']}: {known['reason']}"
            )
    if unlike := [n["name"] for n in nodes if (n.get("standing") or {}).get("unlike")]:
        yield f"unlike the others: {shortened(unlike)}"
    if empty := [n["name"] for n in nodes if (n.get("influence") or {}).get("norm") == 0]:
        yield f"empty updates: {shortened(empty)}: does training diverge there? See its log"


def _node_row(node: Answer, is_over: bool) -> tuple[str, ...]:
    heard = node["heard_s_ago"]
    active = "-" if is_over else "yes" if node["active"] else "no"
    influence, known = node.get("influence"), node.get("standing")
    return (
        node["name"],
        "revoked" if node["revoked"] else active,
        "never" if heard is None else f"{heard:.0f} s ago",
        node["delivered"],
        str(node["rounds_counted"]),
        str(node["rounds_missed"]),
        "-" if influence is None else f"{influence['share']:.0%}",
        str(node["samples"]),
        size(node["bytes_up"]),
        size(node["bytes_down"]),
        "-" if known is None else f"{known['weight']:.0%}",
        "-" if known is None or known["agreement"] is None else f"{known['agreement']:.2f}",
    )


def round_row(item: Answer) -> tuple[str, ...]:
    loss, accuracy = item.get("loss"), item.get("accuracy")
    return (
        str(item["version"]),
        f"{item['seconds']:.1f}",
        shortened(item["counted"]),
        shortened(item["missing"]) or "-",
        size(sum(item["bytes_up"].values())),
        size(item["bytes_down"]),
        "-" if loss is None else f"{loss:.3f}",
        "-" if accuracy is None else f"{accuracy:.1%}",
    )


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for row in (heads, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def size(count: int) -> str:
    return f"{count} B" if count < 10_000 else f"{count / 1000:.1f} kB"
