"""Tables of figures from the newest kept results: `python -m bench readme`.

README.md has five, docs/results.md the headlines, docs/flower.md those of Flower, and
docs/results/README.md all figures.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any

from bench.result import RESULTS, Figure, is_clean

README, ALL = RESULTS.parents[1] / "README.md", RESULTS / "README.md"
HEADLINE_PAGE, FLOWER = RESULTS.parent / "results.md", RESULTS.parent / "flower.md"
BEGIN, END = "<!-- figures: python -m bench readme -->", "<!-- end of figures -->"
HEADLINES = (
    ("demo", "accuracy_fleet", "three rooms that lack words, 20 rounds: share of clips right"),
    ("demo", "gain_over_alone", "the same: gain over what a room learns alone"),
    ("demo", "bytes_per_round", "the same: bytes up, of a board and round, with keys"),
    ("demo", "downlink_bytes_per_round", "the same: bytes down"),
    ("m3", "points_lost_1600b", "SNLI, 22 M encoder: points lost to float32 at 1,562 B up a round"),
    ("m3", "points_lost_10kb", "the same at 9,870 B up a round"),
    ("endless", "points_below_joint", "voices come and go in 140 rounds: points below all at once"),
    ("robust", "worst_points_lost", "1 of 6 to 4 of 12 boards lie, 13 attacks: most points lost"),
    ("hierarchy", "points_lost", "nine boards behind an aggregator: points lost"),
    ("hierarchy", "uplink_ratio", "the same: bytes on its uplink, of those of nine boards"),
    ("hierarchy", "uplink_ratio_audited", "the same with audits, over 50 rounds"),
    ("transfer", "efficiency_digits", "taught by packets: gain over that of the teacher, digits"),
    ("mixed", "points_below_mqtt", "three models teach each other: points below all data, worst"),
    ("predict", "requests_lost", "predictions: requests lost, 100 swaps, 20 kills of the host"),
    ("release", "air_ratio", "400 kB to ten boards, radio, 20 % loss: bytes on air over one copy"),
    ("link", "efficiency_300kb_loss20_keys", "radio, 20 % loss: useful bytes of those on the air"),
    ("seal", "frame_overhead_bytes", "bytes that security adds to a frame"),
    ("pipeline", "speedup_80mbit_subspace", "pipeline, 80 Mbit/s links: times uncompressed speed"),
    ("pipeline", "speedup_linkbound", "the same over links that slow uncompressed runs 16 times"),
    ("pipeline", "home_share", "80 Mbit/s, 50 ms, 0.1 % loss: share of the unthrottled rate"),
    ("split", "activation_ratio", "split training: float32 bytes over bytes of a sample"),
    ("footprint", "idle_mib", "a board's process at rest, MiB resident"),
    ("footprint", "training_mib", "a board's process at its peak in training, MiB resident"),
    ("agreement", "failover_s", "three hosts, the one that leads killed: s to the next update"),
    ("agreement", "updates_lost", "four and seven hosts, liars, kills: updates lost or taken back"),
    ("crash", "violations", "broken promises: 1,000 kill -9 of host, boards, broker"),
)
# Those of HEADLINES that README shows.
SHOWN = (
    ("demo", "accuracy_fleet"),
    ("demo", "gain_over_alone"),
    ("demo", "bytes_per_round"),
    ("m3", "points_lost_1600b"),
    ("footprint", "training_mib"),
    ("crash", "violations"),
)

_WAYS = {"flower_torch": "Flower, torch", "flower_onnx": "Flower, our client", "ours": "ternmesh"}
PEERS = (
    *(
        ("peers", f"{figure}_{way}", f"{label}: {name}")
        for figure, label in (
            ("accuracy", "accuracy after 20 rounds"),
            ("bytes_up", "bytes of a node and round, up"),
            ("bytes_down", "the same, down"),
            ("round_s", "seconds of a round"),
            ("memory_mb", "memory of a node, MB"),
            ("installed_mb", "installed on a node, MB"),
        )
        for way, name in _WAYS.items()
    ),
    ("peers", "kill_clientapp_s_flower_onnx", "killed ClientApp: seconds to the next round"),
    ("peers", "kill_supernode_s_flower_onnx", "killed SuperNode: the same"),
    ("peers", "kill_serverapp_run_lost_flower_onnx", "killed ServerApp: 1 where the run is lost"),
    ("peers", "kill_superlink_run_lost_flower_onnx", "killed SuperLink with --database: the same"),
    ("peers", "kill_board_s_ours", "killed node of ternmesh: seconds to the next round"),
    ("peers", "kill_host_s_ours", "killed host: the same"),
    ("peers", "kill_broker_s_ours", "killed broker: the same"),
    ("peers", "kills_updates_lost_ours", "updates that these three kills lost"),
)


def main(*, check: bool) -> None:
    """Rewrite the figures in these files, or with `check` exit 1 if one is not up to date."""
    shown = [row for row in HEADLINES if row[:2] in SHOWN]
    tables = (
        (README, headlines(shown)),
        (HEADLINE_PAGE, headlines(HEADLINES)),
        (FLOWER, headlines(PEERS)),
        (ALL, everything()),
    )
    for path, table in tables:
        text = path.read_text()
        head, rest = text.split(BEGIN)
        _, tail = rest.split(END)
        wanted = f"{head}{BEGIN}\n{table}{END}{tail}"
        if not check:
            path.write_text(wanted)
        elif wanted != text:
            sys.exit(f"{path} differs from docs/results: run `python -m bench readme`")
    if check:
        print("the documents' figures match docs/results")
        for bench, result in sorted(newest().items()):
            if not is_clean(result["commit"]):
                print(
                    f"  {bench}: {result['commit']} is no commit of this repository: measure anew"
                )


def headlines(chosen: Sequence[tuple[str, str, str]]) -> str:
    """The table of figures (bench, figure, label); KeyError where a kept result lacks one."""
    results = newest()
    rows = [
        (label, *_measured(results[bench], figure), f"`{bench}`, {_where(results[bench])}")
        for bench, figure, label in chosen
    ]
    return _table(("what", "measured", "95 % interval", "aim", "benchmark, processor, date"), rows)


def everything() -> str:
    """The table of docs/results/README.md."""
    rows = [
        (bench, name, *_measured(result, name), f"{_where(result)}, {result['commit']}")
        for bench, result in sorted(newest().items())
        for name in result["figures"]
    ]
    head = ("benchmark", "figure", "measured", "95 % interval", "aim", "processor, date, commit")
    return _table(head, rows)


def newest() -> dict[str, dict[str, Any]]:
    """The newest kept result of each benchmark, by name."""
    results = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    return {result["bench"]: result for result in results}


def _measured(result: dict[str, Any], name: str) -> tuple[str, str, str]:
    kept = result["figures"][name]
    figure = Figure(kept["value"], kept["limit"], kept["ci95"])
    interval = f"{figure.ci95[0]:.4g} to {figure.ci95[1]:.4g}" if figure.ci95 else ""
    verdict = {None: "", True: "", False: " (missed)", "not shown": " (not shown)"}[figure.holds]
    return f"{figure.value:.4g}", interval, (figure.limit or "") + verdict


def _where(result: dict[str, Any]) -> str:
    return f"{result['machine']['cpu']}, {result['date']}"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
