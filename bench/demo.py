"""The demo's claim: rooms that each lack words learn them from each other, in how many bytes."""

import json
import subprocess
import sys
import tempfile

from bench.result import Figure, Result, mean_figure

SEEDS, SEEDS_QUICK = 8, 2


def measure(*, quick: bool) -> Result:
    """Run `ternmesh demo` with all its processes, once for each seed."""
    runs = [_run_demo(seed) for seed in range(SEEDS_QUICK if quick else SEEDS)]
    found = {key: [run[key] for run in runs] for key in runs[0] if key.startswith(("acc", "byt"))}
    fleet, alone, averaged = (found[f"accuracy_{arm}"] for arm in ("fleet", "alone", "float"))
    figures = {
        "accuracy_fleet": mean_figure(fleet, ">=0.95"),
        "accuracy_alone": mean_figure(alone),
        "gain_over_alone": mean_figure(_differences(fleet, alone), ">=0.33"),
        "points_lost_float": mean_figure([100 * d for d in _differences(averaged, fleet)], "<=1"),
        "bytes_per_round": mean_figure(found["bytes_per_round"], "<=500"),
        "downlink_bytes_per_round": mean_figure([r["downlink_bytes_per_round"] for r in runs]),
        "demo_s": Figure(max(run["seconds"] for run in runs), "<=90"),
    }
    notes = (
        "three rooms heard one voice each say seven of ten digits, 20 times each; judged on 150 "
        "clips of all voices and digits that no board reports on; a seed changes the batches",
        "alone and float averaging (accuracy_float): the same clips, batches, rounds and rates, "
        "trained beside the demo; alone is the mean of three rooms",
        "five processes each, an embedded broker, TCP on loopback, keys; bytes: whole MQTT "
        "payloads of a board and round, all seals and signatures; MQTT and TCP headers not counted",
    )
    peers = {
        "float32_bytes_per_round": runs[0]["float32_bytes"],
        "accuracy_float": sum(averaged) / len(averaged),
    }
    return Result("demo", figures, peers, notes, quick=quick)


def _differences(these: list[float], those: list[float]) -> list[float]:
    return [a - b for a, b in zip(these, those, strict=True)]


def _run_demo(seed: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "ternmesh_cli.main", "demo", "--json"]
        command += ["--seed", str(seed), "--out", folder]
        answer = subprocess.run(command, check=True, capture_output=True, text=True)
    values: dict[str, float] = json.loads(answer.stdout.strip().splitlines()[-1])
    print(
        f"seed {seed}: alone {values['accuracy_alone']:.1%}, fleet {values['accuracy_fleet']:.1%}, "
        f"float32 {values['accuracy_float']:.1%}, {values['bytes_per_round']:.0f} bytes up, "
        f"{values['seconds']:.0f} s",
        flush=True,
    )
    return values
