"""`python -m experiments transfer`: the command with a worker in its place, its report, an arm."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.data import DataMissing, find_data
from experiments.transfer.pairs import PAIRS, Pair
from experiments.transfer.report import efficiency, published_ratio, report

RESULT: dict[str, Any] = {
    "teacher": {"before": 0.4, "best": 0.5, "after": 0.9},
    "student": {"before": 0.2, "few": 0.3, "best": 0.4, "packet": 0.8, "fp32": 0.8},
    "bytes": {
        "labels": 433, "labels_radio": 857, "hypervectors": 5448, "logits_fp32": 20000,
        "labelled_data": 800500,
    },
    "membership": {"packet": 0.51, "fp32": 0.52},
}  # fmt: skip


def test_efficiency_is_relative_to_the_best_controls() -> None:
    assert efficiency(RESULT) == pytest.approx(1.0)
    assert published_ratio(RESULT) == pytest.approx(1.2)


def test_the_report_names_arms_and_bytes() -> None:
    lines = report({"digits-cnn": [RESULT, RESULT]}).splitlines()
    assert "digits-cnn, 2 seeds" in lines
    assert any("by packet  " in line and "80.0%" in line for line in lines)
    assert any("bytes of labels" in line and "433" in line for line in lines)


def test_missing_data_says_what_to_fetch(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "text").mkdir()
    monkeypatch.setenv("TERNMESH_DATA", str(tmp_path))
    assert find_data("text") == find_data("text", given=tmp_path) == tmp_path
    with pytest.raises(DataMissing, match=r"snli/{snli_train_5k.*--data or TERNMESH_DATA"):
        find_data("text", "snli", given=tmp_path)


def test_a_model_that_cannot_be_had_is_a_sentence(tmp_path: Path, monkeypatch: Any) -> None:
    from experiments.transfer import arms

    monkeypatch.setattr("sys.argv", ["", "digits:nothing:keyword", "0", *2 * [str(tmp_path)]])
    with pytest.raises(SystemExit, match="nothing is no model of this task"):
        arms.main()


@pytest.mark.nightly
def test_one_transfer_has_all_arms(tmp_path: Path, monkeypatch: Any) -> None:
    from examples.voice.pretrain_keyword import pretrain
    from experiments.transfer import arms, learners, tasks
    from experiments.transfer.distillation import LearningSettings

    def learner(name: str, *rest: Any) -> learners.Learner:
        made = learners.keyword_learner(name, *rest)
        settings = LearningSettings(steps=3, learning_rate=1e-3)
        return replace(made, settings=settings, few_steps=2)

    small = replace(tasks.TASKS["digits"], teacher=60, probe=100)
    monkeypatch.setattr(arms, "TASKS", {"digits": small})
    monkeypatch.setattr(learners, "pretrain", lambda *a, **k: pretrain(*a, **{**k, "steps": 2}))
    monkeypatch.setattr(arms, "make_learner", lambda n, s, k, d, is_teacher: learner(n, s, k, d))
    shown: list[str] = []
    pair: Pair = PAIRS["digits-mlp"]
    found = arms.Run(pair, 0, tmp_path, tmp_path, shown.append).all()
    student = found["student"]
    arms_of_all = {"before", "few", "self_training", "packet", "fp32", "true_labels", "half_lost",
                   "soft_labels", "relational", "structure", "hypervectors",
                   "published_hypervectors", "prototypes", "shuffled"}  # fmt: skip
    assert arms_of_all <= set(student)
    assert found["bytes"]["labels"] <= found["bytes"]["labels_radio"] < 27_000
    assert any("by packet" in line for line in shown)
    split = tasks.split(tasks.TASKS["digits"], tasks.read_digits(tmp_path), 0)
    parts = [split.teacher, split.probe, split.test]
    assert sum(map(len, parts)) == len(np.unique(np.concatenate(parts)))
    assert set(split.few) <= set(split.teacher)
