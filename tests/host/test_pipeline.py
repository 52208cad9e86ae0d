"""A pipeline of ranks computes what one process does, survives kill -9, refuses in one voice."""

import gzip
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from host.pipeline import launch
from host.pipeline.agreement import GONE, Control
from host.pipeline.checkpoint import Checkpoints, common_step
from host.pipeline.config import PipelineError, read_pipeline_config
from host.pipeline.launch import Ranks
from host.pipeline.links import LinkEvents
from host.pipeline.rank import build
from host.pipeline.report import PROGRESS, Progress, line
from host.pipeline.texts import Texts, read_texts, tokenizer
from host.pipeline.train import RankContext, own_stage
from models.bottleneck.config import BottleneckConfig
from ternmesh.config import ConfigError
from tests.host.pipeline_ranks import (
    LATENT,
    STEPS,
    free_addresses,
    in_one_process,
    reports,
    run_rank,
    run_ranks,
    write_config,
)


def sentences(log: str) -> list[str]:
    return [text for text in log.splitlines() if text.startswith("ternmesh: ")]


@pytest.mark.parametrize(
    ("schedule", "method", "stages"),
    [("1f1b", "subspace", 3), pytest.param("gpipe", "resbm", 2, marks=pytest.mark.nightly)],
)
def test_ranks_compute_what_one_process_computes(tmp_path, schedule, method, stages) -> None:
    path = write_config(
        tmp_path,
        schedule=schedule,
        boundary__method=method,
        boundary__bits=8,
        stages=stages,
        model__layers=3,
        micro_batches=3,
        recompute=method == "resbm",
        trace=method == "resbm",
    )
    config = read_pipeline_config(path)
    logs = run_ranks([path] * stages, tmp_path)
    assert [log[-2:] for log in logs] == ["\n0"] * stages, logs
    losses, judged = in_one_process(config)
    found = reports(config)
    means = [sum(parts) / len(parts) for parts in losses]
    assert [row["loss"] for row in found if "loss" in row] == pytest.approx(means, abs=1e-4)
    assert found[-1]["validation_loss"] == pytest.approx(judged, abs=1e-4)
    assert all(line(row) for row in found)
    traces = sorted(path.name for path in config.folder.glob("trace-*.json"))
    assert traces == (["trace-0.json", "trace-1.json"] if method == "resbm" else [])
    tables = [path.read_text() for path in config.folder.glob("trace-*.txt")]
    assert all("Input Shapes" in table and "Self CPU Mem" in table for table in tables)
    assert len(tables) == len(traces)


Eventually = Callable[[Callable[[], object], float], None]


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.nightly)])
def test_a_rank_that_is_killed_is_started_again_and_nothing_is_lost(
    tmp_path: Path, eventually: Eventually, kills: int
) -> None:
    """Ranks are killed after checkpoints; all are started again, with the same losses."""
    steps = 60 * (kills + 1)
    changes: dict[str, Any] = {"steps": steps, "checkpoint_steps": 10, "report_steps": 10}
    path = write_config(tmp_path, **changes, restarts_max=2)  # one that led on does not count
    config = read_pipeline_config(path)
    ranks, stop, seen = Ranks(config, path), threading.Event(), list[int]()
    checkpoints = [Checkpoints(config.folder / "checkpoints", r, config.digest) for r in (0, 1)]

    def newest() -> int:
        return min(max([0, *each.steps()]) for each in checkpoints)

    def is_newer(step: int) -> bool:
        return newest() > step

    def is_other(rank: int, pid: int) -> bool:
        return ranks._processes[rank].pid != pid

    ranks.start()
    following = threading.Thread(
        target=lambda: seen.extend(row["step"] for row in ranks.reports(stop))
    )
    following.start()
    try:
        for kill in range(kills):
            eventually(partial(is_newer, newest()), 120.0)
            os.kill(killed := ranks._processes[kill % 2].pid, signal.SIGKILL)
            eventually(partial(is_other, kill % 2, killed), 120.0)
        following.join(300.0)
    finally:
        stop.set()
        ranks.stop()
        following.join(60.0)
    assert seen[-1] == steps
    calm = tmp_path / "undisturbed"
    calm.mkdir()
    path = write_config(calm, **changes)
    run_ranks([path] * 2, calm)
    undisturbed = reports(read_pipeline_config(path))
    losses = {row["step"]: row["loss"] for row in undisturbed if "loss" in row}
    assert {row["step"] for row in reports(config) if "loss" in row} == losses.keys()
    assert all(row["loss"] == losses[row["step"]] for row in reports(config) if "loss" in row)


def test_a_rank_that_loses_another_one_says_which(tmp_path: Path) -> None:
    """Without whoever would start them again: a sentence, and the exit code that asks for it."""
    path = write_config(tmp_path, steps=100_000, checkpoint_steps=0, timeout_s=30.0)
    context, addresses = multiprocessing.get_context("forkserver"), free_addresses(2)
    logs = [tmp_path / f"{rank}.log" for rank in range(2)]
    jobs = [
        context.Process(target=run_rank, args=(str(path), rank, addresses, str(logs[rank])))
        for rank in range(2)
    ]
    for job in jobs:
        job.start()
    progress = read_pipeline_config(path).folder / PROGRESS
    while not progress.exists():
        assert all(job.is_alive() for job in jobs)
        jobs[0].join(0.1)
    jobs[1].kill()
    jobs[0].join(120.0)
    assert jobs[0].exitcode == GONE
    assert ["rank 1 is gone" in text for text in sentences(logs[0].read_text())] == [True]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_two_ranks_on_one_gpu_learn_what_a_cpu_learns(tmp_path: Path) -> None:
    found = {}
    for device in ("cuda", "cpu"):
        (tmp_path / device).mkdir()
        path = write_config(tmp_path / device, device=device)
        assert [log[-2:] for log in run_ranks([path] * 2, tmp_path)] == ["\n0"] * 2
        rows = reports(read_pipeline_config(path))
        found[device] = [row["loss"] for row in rows if "loss" in row]
    assert found["cuda"] == pytest.approx(found["cpu"], abs=1e-3)


def test_fast_boundaries_are_not_compressed_and_layers_may_be_bfloat16(tmp_path: Path) -> None:
    path = write_config(
        tmp_path,
        stages=3,
        model__layers=3,
        micro_batches=2,  # fewer than stages
        precision="bf16",
        boundary__slow=["1"],
        diagnose=True,
    )
    config = read_pipeline_config(path)
    logs = run_ranks([path] * 3, tmp_path)
    assert [log[-2:] for log in logs] == ["\n0"] * 3, logs
    row = cast(Any, next(row for row in reports(config) if "loss" in row))
    assert row["devices"] == ["cpu"] * 3
    assert row["links"] == ["loopback"] * 3
    # A boundary of 16 channels as bfloat16, one of 4 numbers as float32; ids of 8 bits on both.
    sent, ids = 2 * (16 * 2 + LATENT * 4), 2
    assert 0.5 < row["activation_share"] <= (sent + ids) / sent
    assert [len(row[name]) for name in ("drift", "error", "captured")] == [2, 1, 1]


def test_ranks_that_disagree_all_say_so(tmp_path: Path) -> None:
    paths = [write_config(tmp_path), write_config(tmp_path, "other.toml", boundary__latent=5)]
    for log in run_ranks(paths, tmp_path):
        assert ["do not agree on boundary.latent" in text for text in sentences(log)] == [True], log
        assert log.endswith(f"\n{launch.REFUSED}")


def test_checkpoints_are_whole_recent_and_their_own(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, 0, "abc")
    for step in (10, 20, 30):
        store.save(step, [("w", torch.full((2,), float(step)))])
    assert store.steps() == [20, 30]
    assert store.load(30)["w"].tolist() == [30.0, 30.0]
    assert common_step([[10, 20, 30], [10, 20], [20, 30]]) == 20
    store.forget_after(20)
    assert store.steps() == [20]
    store.save(30, [("w", torch.full((2,), 30.0))])
    assert common_step([[], [10]]) == 0  # killed before all had saved the first
    with pytest.raises(PipelineError, match="that of step 20 is missing on rank 0, 2; bring"):
        common_step([[5], [10, 20], []])
    with pytest.raises(PipelineError, match="another configuration"):
        Checkpoints(tmp_path, 0, "def").load(30)
    (tmp_path / "rank-0-30.safetensors").write_bytes(b"\xff" * 40)
    with pytest.raises(PipelineError, match="is damaged"):
        store.load(30)


def test_texts_depend_on_seed_and_step_alone(tmp_path: Path) -> None:
    config = read_pipeline_config(write_config(tmp_path))
    texts, again = (read_texts(Path(config.data), 12) for _ in range(2))
    assert (texts.batch(5, 1, 4, 12) == again.batch(5, 1, 4, 12)).all()
    long = Texts(np.arange(1 << 20), np.arange(20))
    places = [{*long.batch(step, seed, 128, 12)[:, 0]} for step, seed in ((5, 1), (6, 1), (5, 2))]
    assert len(places[0] | places[1] | places[2]) > 380  # hardly any again
    assert texts.batch(5, 1, 4, 12).shape == (4, 13)
    assert texts.validation_batch(3, 4, 12).shape == (4, 13)
    for folder, length in ((Path(config.data), 100_000), (tmp_path / "nothing", 12)):
        with pytest.raises(PipelineError, match="too little text"):
            read_texts(folder, length)


def test_what_fails_before_training_is_a_refusal_and_not_tried_again(tmp_path: Path) -> None:
    config = read_pipeline_config(write_config(tmp_path))
    whole = gzip.compress(b"text " * 10_000)
    (tmp_path / "text" / "b.txt.gz").write_bytes(whole[: len(whole) // 2])
    control, events = Control(0, 2), LinkEvents(1.0)
    place = RankContext(0, 0, control, events, torch.device("cpu"), "cpu", "loopback")
    with pytest.raises(PipelineError, match="cannot be used: EOFError: Compressed file ended"):
        build(config, place)
    broken = tmp_path / "llama"
    broken.mkdir()
    (broken / "tokenizer.json").write_text("{")
    with pytest.raises(PipelineError, match="cannot be used: Exception: EOF while parsing"):
        build(replace(config, model_folder=str(broken)), place)


def test_a_folder_in_the_environment_starts_from_the_working_folder(tmp_path, monkeypatch) -> None:
    path = write_config(tmp_path, data="")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("TERNMESH_DATA", "data")
    assert read_pipeline_config(path).data == str(tmp_path / "elsewhere" / "data" / "text")


def reports_of(script: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What is read of ranks while `script` runs in their place."""
    monkeypatch.setattr(launch, "command", lambda *_: [sys.executable, "-c", script])
    ranks = Ranks(read_pipeline_config(path), path)
    ranks.start()
    return list(ranks.reports(threading.Event()))


def test_half_a_line_of_a_rank_that_died_is_passed_over(tmp_path, monkeypatch) -> None:
    path = write_config(tmp_path)
    config = read_pipeline_config(path)
    config.folder.mkdir()
    progress, prepared = config.folder / PROGRESS, tmp_path / "prepared"
    progress.write_bytes(b'{"step": 1, "validation_loss": 1.0}\n{"step": 2, "lo')
    Progress(config, 1.0, 1.0).validation(3, 2.0)
    progress.write_bytes(progress.read_bytes() + b"\xff\x00\n[1]\n" + b"[" * 9999 + b"\n")
    Progress(config, 1.0, 1.0).validation(4, 2.0)
    assert b"\n\n" not in progress.read_bytes()
    progress.rename(prepared)
    script = f"import shutil; shutil.copy({str(prepared)!r}, {str(progress)!r})"
    assert [row["step"] for row in reports_of(script, path, monkeypatch)] == [1, 3, 4]


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("", r"^the ranks ended badly: see .*ranks\.log$"),
        (
            "ValueError: an older one\nRuntimeError: out of memory\nfurther lines",
            r"ended badly \(RuntimeError: out of memory\)",
        ),
        ("ternmesh: rank 0 ends: no text\nRuntimeError: consequence", "^rank 0 ends: no text$"),
    ],
)
def test_an_error_that_no_rank_has_put_into_a_sentence_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str, said: str
) -> None:
    script = f"import sys; sys.stderr.write({printed!r}); sys.exit(1)"
    with pytest.raises(PipelineError, match=said):
        reports_of(script, write_config(tmp_path, restarts_max=0), monkeypatch)


def test_a_hugging_face_model_by_folder(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models

    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
    shape = transformers.LlamaConfig(vocab_size=30, intermediate_size=8, **sizes)
    transformers.LlamaForCausalLM(shape).save_pretrained(tmp_path / "llama")
    letters = {letter: index for index, letter in enumerate("abcdefghijklmnopqrstuvwxyz,. I")}
    Tokenizer(models.BPE(letters, [])).save(str(tmp_path / "llama" / "tokenizer.json"))
    path = write_config(tmp_path)
    path.write_text('model_folder = "llama"\n' + path.read_text())
    config = read_pipeline_config(path)
    assert (config.model.vocabulary, config.model.layers, config.model.length) == (30, 3, 12)
    stage, _ = own_stage(config, 0)
    assert stage.exit is not None
    texts = read_texts(Path(config.data), 12, tokenizer(Path(config.model_folder)))
    assert texts.train.max() < 30
    assert texts.batch(0, 0, 2, 12).shape == (2, 13)
    (tmp_path / "llama" / "tokenizer.json").unlink()
    with pytest.raises(PipelineError, match=r"no tokenizer\.json"):
        tokenizer(Path(config.model_folder))
    (tmp_path / "llama" / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"config\.json cannot be used"):
        read_pipeline_config(path)


@pytest.mark.parametrize(
    ("family", "is_confined"), [("llama", True), ("olmo2", False), ("gpt2", False)]
)
def test_models_that_leave_the_subspace_are_refused(tmp_path, family, is_confined) -> None:
    """Olmo2 scales what its layers write once more, and GPT-2's have a bias."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
    shape = transformers.AutoConfig.for_model(family, vocab_size=30, intermediate_size=8, **sizes)
    transformers.AutoModelForCausalLM.from_config(shape).save_pretrained(tmp_path / "model")
    path = write_config(tmp_path)
    path.write_text('model_folder = "model"\n' + path.read_text())
    config = read_pipeline_config(path)
    assert (config.model.width, config.model.layers) == (16, 3)
    own_stage(replace(config, boundary=BottleneckConfig("learned", latent=4)), 0)
    config = replace(config, boundary=BottleneckConfig("subspace", latent=4))
    refused = pytest.raises(PipelineError, match="outside the subspace")
    with nullcontext() if is_confined else refused:
        own_stage(config, 0)


def test_what_is_local_does_not_part_ranks(tmp_path: Path) -> None:
    config = read_pipeline_config(write_config(tmp_path))
    assert config.shared() == replace(config, device="cuda", threads=2, congestion="cubic").shared()
    longer = replace(config, steps=STEPS + 1)
    assert config.digest == longer.digest  # a run may go on
    assert config.shared() != longer.shared()  # but all ranks must
    assert config.digest != replace(config, seed=1).digest
    assert config.digest == replace(config, addresses=("10.0.0.1:1", "10.0.0.2:1")).digest
