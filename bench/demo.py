"""The demo's claim: three unseen voices in 20 rounds, in how many bytes, against float32."""

import json
import subprocess
import sys
import tempfile

import numpy as np

from bench.result import Figure, Result, mean_figure
from bench.simulated_fleet import accuracy, average_in_float, run_fleet
from edge.onnx.session import load_model
from experiments.data import Clips
from host.config import RunConfig, plan_of
from models.zoo import fsdd_path, package_path
from ternmesh_cli.demo.fleet import BOARDS, OTHERS, REPORTED, RUN

SEEDS, SEEDS_QUICK = 8, 2


def measure(*, quick: bool) -> Result:
    """Accuracy over seeds in one process, then the demo itself once, with all its processes."""
    loaded = load_model(package_path("keyword"))
    train = [clips_of("train", board) for board in BOARDS]
    reported = [clips_of("dev", board, (REPORTED,)) for board in BOARDS]
    dev = [clips_of("dev", board, OTHERS) for board in BOARDS]
    plan = plan_of(RunConfig(min_peers=len(BOARDS), **RUN), loaded.package.dimension)
    before = accuracy(loaded, loaded.initial, dev)
    after, peer, up, down = [], [], [], []
    for seed in range(SEEDS_QUICK if quick else SEEDS):
        ours = run_fleet(loaded, train, plan, seed, keys=True, held_out=reported)
        after.append(accuracy(loaded, ours.vector, dev))
        peer.append(accuracy(loaded, average_in_float(loaded, train, plan, seed), dev))
        up.append(ours.bytes_up)
        down.append(ours.bytes_down)
        print(
            f"seed {seed}: {before:.1%} -> {after[-1]:.1%}, float32 {peer[-1]:.1%}, "
            f"{up[-1]:.0f} bytes up, {down[-1]:.0f} down",
            flush=True,
        )
    demo = _run_demo()
    lost = [p - a for p, a in zip(peer, after, strict=True)]
    figures = {
        "accuracy_before": Figure(before),
        "accuracy_after": mean_figure(after, ">=0.90"),
        "accuracy_fp32": mean_figure(peer),
        "points_lost": mean_figure([100 * value for value in lost], "<=2"),
        "bytes_per_round": mean_figure(up, "<=700"),
        "downlink_bytes_per_round": mean_figure(down),
        "demo_s": Figure(demo["seconds"], "<=90"),
        "demo_accuracy_after": Figure(demo["accuracy_after"]),
        "demo_bytes_per_round": Figure(demo["bytes_per_round"], "<=700"),
        "demo_downlink_bytes_per_round": Figure(demo["downlink_bytes_per_round"]),
    }
    notes = (
        "accuracy on 120 dev clips of the three unseen speakers; boards report on 30 others; a "
        "seed changes which batches are drawn; base model and initial adapter are shipped ones",
        "security is on: every frame sealed, packets, references, receipts and announces signed; "
        "bytes: whole MQTT payloads of a node in one round (all frames with seal, tag, signature "
        "and length prefixes, hello and control messages too); MQTT and TCP headers not counted",
        "the seeds run in one process over an in-memory bearer; demo_* is one run of "
        "`ternmesh demo`: five processes, an embedded broker, TCP on loopback",
    )
    peers = {"float32_bytes_per_round": 4.0 * plan.dimension}
    return Result("demo", figures, peers, notes, quick=quick)


def clips_of(split: str, speaker: str, recordings: tuple[int, ...] = ()) -> Clips:
    """The clips of one speaker in `train` or `dev`; of all recordings, or of some."""
    with np.load(fsdd_path(split), allow_pickle=False) as data:
        mine = data["speaker_names"][data["speaker"]] == speaker
        if recordings:
            mine &= np.isin(data["index"], recordings)
        features = data["x"][mine].astype(np.float32) / 255
        return Clips({"features": features, "target": data["y"][mine].astype(np.int64)})


def _run_demo() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "ternmesh_cli.main", "demo", "--json", "--out", folder]
        answer = subprocess.run(command, check=True, capture_output=True, text=True)
    values: dict[str, float] = json.loads(answer.stdout.strip().splitlines()[-1])
    return values
