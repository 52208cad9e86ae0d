"""Ranks meet although the store holds keys of an earlier start; a second start is kept out."""

import os
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.distributed import HashStore, PrefixStore  # type: ignore[attr-defined]

from host.pipeline import agreement
from host.pipeline.config import PipelineError, read_pipeline_config
from host.pipeline.launch import Ranks, hold
from host.pipeline.rank import choose_device
from tests.host.pipeline_ranks import write_config

ROOT = Path(__file__).parents[2]


def meet(store: HashStore, number: int, own: str, said: str) -> list[str]:
    """Meet like run_rank, without links."""
    meeting = agreement.join(store, number, own) if number else own
    answer = partial(agreement.welcome, store, 3, meeting) if number == 0 else (lambda: None)
    at = PrefixStore(meeting, store)
    return agreement.gather(at, "settings", number, 3, said, meanwhile=answer)


def test_ranks_that_are_started_again_meet_each_other_only() -> None:  # R11-1
    store = HashStore()
    for start in ("first", "second"):
        with ThreadPoolExecutor(3) as pool:
            # Rank 0 comes last: the others find the keys of the start before.
            jobs = [
                pool.submit(meet, store, each, f"{start}-{each}", f"{start} {each}")
                for each in (2, 1, 0)
            ]
            for job in jobs:
                assert job.result() == [f"{start} {each}" for each in range(3)]


def test_a_rank_that_died_before_it_met_the_others_does_no_harm() -> None:
    store = HashStore()
    store.set("hello/1", "dead-1")
    agreement.welcome(store, 3, "dead-0")  # by a rank 0 that died, too
    with pytest.raises(PipelineError, match="rank 0 did not answer within 0 s"):
        agreement.join(store, 1, "living-1", wait_s=0.0)
    agreement.welcome(store, 3, "living-0")
    assert agreement.join(store, 1, "living-1", wait_s=0.0) == "living-0"
    with ThreadPoolExecutor(3) as pool:
        jobs = [pool.submit(meet, store, each, f"new-{each}", str(each)) for each in range(3)]
        assert [job.result() for job in jobs] == [["0", "1", "2"]] * 3


def test_a_rank_ends_where_the_store_is_gone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Gone(HashStore):
        def check(self, keys: list[str]) -> bool:
            raise RuntimeError("Broken pipe")

    monkeypatch.setattr(agreement, "WATCH_S", 0.0)
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit) as ended:
        agreement.Watch(Gone(), 1)._listen()
    assert ended.value.code == agreement.REFUSED
    assert "rank 1 ends: torchrun, or the machine of rank 0, is gone" in capsys.readouterr().err


def test_a_second_start_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    config = read_pipeline_config(write_config(tmp_path))
    with hold(config.folder, 1):
        assert stat.S_IMODE(config.folder.stat().st_mode) == 0o700
        log = config.folder / "ranks.log"
        log.write_text("of the first start")
        said = f"other ranks train in .*: end them first \\(kill {os.getppid()}\\)"
        with pytest.raises(PipelineError, match=said):
            Ranks(config, tmp_path / "run.toml").start()
        assert log.read_text() == "of the first start"
    hold(config.folder, 1).close()


def test_a_folder_that_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = read_pipeline_config(write_config(tmp_path, state_dir="file"))
    with pytest.raises(PipelineError, match=r"state_dir cannot be used: .*file"):
        Ranks(config, tmp_path / "run.toml").start()


@pytest.mark.parametrize(
    ("device", "gpus", "chosen"),
    [("auto", 0, "cpu"), ("auto", 1, "cpu"), ("auto", 2, "cuda"), ("cpu", 2, "cpu")],
)
def test_each_rank_has_a_gpu_of_its_own_or_none_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, device: str, gpus: int, chosen: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    config = read_pipeline_config(write_config(tmp_path, device=device))
    assert choose_device(config, 4).type == chosen
    if gpus == 1:
        with pytest.raises(PipelineError, match="this machine has 1 GPUs for 2 ranks"):
            choose_device(replace(config, device="cuda"), 4)
